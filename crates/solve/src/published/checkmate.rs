//! Checkmate's mixed-integer program, solved by HiGHS.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cranelift_entity::EntityRef;
use scrimp_plan::CheckedPlan;
use scrimp_solvers::Highs;
use scrimp_solvers::highs::{Solution, Start, Status};

use super::formulation::{Goal, Program, fits_in_memory};
use super::graph::Graph;
use super::stages::Stages;
use crate::error::SolveError;
use crate::method::Formulation;
use crate::options::{Options, Others, Solved};

/// How often a solution that exceeds the budget within the solver's tolerance is sent back.
const ATTEMPTS: usize = 5;

pub(crate) fn plan(
    graph: &Graph<'_>,
    options: &Options,
    formulation: Formulation,
) -> Result<Solved, SolveError> {
    let began = Instant::now();
    let cutoff = options.cutoff(began, options.time_limit);
    let highs = Highs::load(options.highs.as_deref())?;
    fits_in_memory(graph)?;
    let mut budget = graph.capacity;
    let program = Program::new(graph, formulation, Goal::Cost { budget });
    let known = known_plan(graph, options)?;
    let mut start = Start::default();
    if let Some((stages, _)) = &known {
        start.values = program.start(stages);
    }
    let mut lower_bound = graph.base_cost();
    let mut best = known.map(|(_, plan)| plan);
    for attempt in 0..ATTEMPTS {
        let model = if attempt == 0 {
            program.model.clone()
        } else {
            program.with_budget(budget)
        };
        let solver = solver_options(options, cutoff.left());
        let solution = highs.solve(&Arc::new(model), &solver, start.clone(), &mut |_| {
            !options.stopped()
        })?;
        if attempt == 0 {
            // The effect of the tolerances is far below a billionth of the cost.
            lower_bound =
                lower_bound.max(solution.bound.min(1e300) * program.cost_unit * (1.0 - 1e-9));
            if solution.status == Status::Infeasible && best.is_none() {
                return Err(graph.infeasible());
            }
        }
        match decode(graph, &program, &solution)? {
            Some(Ok(plan)) => {
                best = cheaper(best, plan);
                break;
            }
            Some(Err(peak)) => budget = budget.saturating_sub(2 * (peak - graph.capacity)),
            None => break,
        }
    }
    let plan = best.ok_or(graph.not_found(None))?;
    Ok(outcome(graph, plan, lower_bound, options.gap, began))
}

/// HiGHS's options with a time limit.
pub(crate) fn solver_options(
    options: &Options,
    time_limit: Duration,
) -> scrimp_solvers::highs::Options {
    scrimp_solvers::highs::Options {
        time_limit,
        threads: options.threads,
        seed: options.seed as u32,
        relative_gap: options.gap,
        ..scrimp_solvers::highs::Options::default()
    }
}

/// The outcome of an exact method, which is proven optimal if its cost meets the bound.
pub(crate) fn outcome(
    graph: &Graph<'_>,
    plan: CheckedPlan,
    bound: f64,
    gap: f64,
    began: Instant,
) -> Solved {
    let cost = plan.cost();
    Solved {
        others: Others::default(),
        optimal: cost <= bound * (1.0 + gap.max(1e-9)) + 1e-12,
        lower_bound: bound.min(cost),
        cost,
        plan,
        method: graph.method,
        elapsed: began.elapsed(),
        note: None,
    }
}

pub(crate) fn cheaper(best: Option<CheckedPlan>, plan: CheckedPlan) -> Option<CheckedPlan> {
    match best {
        Some(best) if best.cost() <= plan.cost() => Some(best),
        _ => Some(plan),
    }
}

/// The cheaper of running everything once and the caller's known plan, if it fits and has stages.
fn known_plan(
    graph: &Graph<'_>,
    options: &Options,
) -> Result<Option<(Stages, CheckedPlan)>, SolveError> {
    let n = graph.tasks.len();
    let once: Vec<usize> = (0..n).collect();
    let mut best: Option<(Stages, CheckedPlan)> = None;
    let given = options
        .start
        .as_ref()
        .map(|runs| runs.runs().map(|task| task.index()).collect::<Vec<usize>>());
    for runs in [Some(once), given].into_iter().flatten() {
        let Some(stages) = Stages::from_sequence(graph, &runs) else {
            continue;
        };
        if let Ok(Ok(plan)) = graph.check(&runs)
            && best
                .as_ref()
                .is_none_or(|(_, best)| plan.cost() < best.cost())
        {
            best = Some((stages, plan));
        }
    }
    Ok(best)
}

/// The plan of a solution. `Err` holds its peak if the plan exceeds the budget, which the tolerance allows.
pub(crate) fn decode(
    graph: &Graph<'_>,
    program: &Program,
    solution: &Solution,
) -> Result<Option<Result<CheckedPlan, u64>>, SolveError> {
    let stages = program.stages(graph, &solution.values);
    stages
        .map(|stages| graph.check(&stages.sequence()))
        .transpose()
}
