//! Checkmate's mixed-integer program, solved by HiGHS.

use std::sync::Arc;
use std::time::Instant;

use scrimp_plan::{Capacities, CheckedPlan, Problem};
use scrimp_solvers::Highs;
use scrimp_solvers::highs::{Solution, Start, Status};

use super::formulation::{Formulation, Goal, MAX_COLUMNS, Program, columns};
use super::graph::Graph;
use super::stages::Stages;
use super::{Outcome, Published, PublishedError, PublishedOptions};

/// How often a solution that is over the budget by the solver's tolerance is sent back.
const ATTEMPTS: usize = 5;

pub(super) fn plan(
    problem: &Problem,
    capacities: &Capacities,
    options: &PublishedOptions,
    formulation: Formulation,
) -> Result<Outcome, PublishedError> {
    let began = Instant::now();
    let graph = Graph::new(
        problem,
        capacities,
        Published::Checkmate(formulation).name(),
    )?;
    let highs = Highs::load(options.highs.as_deref())?;
    fits_in_memory(&graph)?;
    let mut budget = graph.capacity;
    let program = Program::new(&graph, formulation, Goal::Cost { budget });
    let known = known_plan(&graph, options)?;
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
        let solver = options.highs(options.time_limit.saturating_sub(began.elapsed()));
        let solution = highs.solve(&Arc::new(model), &solver, start.clone(), &mut |_| {
            !options.stopped()
        })?;
        if attempt == 0 {
            // What the tolerances let slip is far below a billionth of the cost.
            lower_bound =
                lower_bound.max(solution.bound.min(1e300) * program.cost_unit * (1.0 - 1e-9));
            if solution.status == Status::Infeasible && best.is_none() {
                let budget = graph.budget();
                return Err(PublishedError::Infeasible {
                    method: graph.method,
                    budget,
                });
            }
        }
        match decode(&graph, &program, &solution)? {
            Some(Ok(plan)) => {
                best = cheaper(best, plan);
                break;
            }
            Some(Err(peak)) => budget = budget.saturating_sub(2 * (peak - graph.capacity)),
            None => break,
        }
    }
    let plan = best.ok_or(PublishedError::NotFound {
        method: graph.method,
        budget: graph.budget(),
        least: None,
    })?;
    Ok(outcome(plan, lower_bound, options.gap, began))
}

/// The outcome of an exact method: proven where cost and bound meet.
pub(super) fn outcome(plan: CheckedPlan, bound: f64, gap: f64, began: Instant) -> Outcome {
    let cost = plan.cost();
    Outcome {
        proven_optimal: cost <= bound * (1.0 + gap.max(1e-9)) + 1e-12,
        lower_bound: bound.min(cost),
        plan,
        elapsed: began.elapsed(),
        note: None,
    }
}

pub(super) fn fits_in_memory(graph: &Graph<'_>) -> Result<(), PublishedError> {
    let count = columns(graph);
    if count > MAX_COLUMNS {
        let what = format!("its program would have {count} columns, more than {MAX_COLUMNS}");
        return Err(PublishedError::Unsupported {
            method: graph.method,
            what,
        });
    }
    Ok(())
}

pub(super) fn cheaper(best: Option<CheckedPlan>, plan: CheckedPlan) -> Option<CheckedPlan> {
    match best {
        Some(best) if best.cost() <= plan.cost() => Some(best),
        _ => Some(plan),
    }
}

/// The cheaper of running everything once and the plan the caller knows, if it fits and has stages.
fn known_plan(
    graph: &Graph<'_>,
    options: &PublishedOptions,
) -> Result<Option<(Stages, CheckedPlan)>, PublishedError> {
    let n = graph.tasks.len();
    let once: Vec<usize> = (0..n).collect();
    let mut best: Option<(Stages, CheckedPlan)> = None;
    let given = options.start.as_ref().map(|runs| {
        runs.iter()
            .map(|&task| cranelift_entity::EntityRef::index(task))
            .collect::<Vec<usize>>()
    });
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

/// The plan of a solution; `Err` holds its peak if that is over the budget, by the tolerance.
pub(super) fn decode(
    graph: &Graph<'_>,
    program: &Program,
    solution: &Solution,
) -> Result<Option<Result<CheckedPlan, u64>>, PublishedError> {
    let stages = program.stages(graph, &solution.values);
    stages
        .map(|stages| graph.check(&stages.sequence()))
        .transpose()
}
