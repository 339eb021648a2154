//! Two-phase rounding of checkmate's linear relaxation (section 5): round `S`, then find the fewest
//! runs for it (algorithm 2), with the allowance ε on the budget searched (5.3, appendix D).

use std::sync::Arc;
use std::time::Instant;

use scrimp_plan::{Capacities, CheckedPlan, Problem};
use scrimp_solvers::Highs;
use scrimp_solvers::highs::{LpMethod, Options, Start, Status};

use super::checkmate::{cheaper, fits_in_memory, outcome};
use super::formulation::{Goal, Program};
use super::graph::Graph;
use super::stages::Stages;
use super::{Outcome, PublishedError, PublishedOptions};
use crate::random::Random;

/// How the fractional `S` becomes 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// By a threshold: one half as in the paper, and the other tenths as in its code.
    Deterministic,
    /// Each entry is 1 with its value as the probability.
    Randomized,
}

/// Allowances tried, the paper's first. They apply to the bytes that planning can change.
const ALLOWANCES: [f64; 10] = [0.1, 0.0, 0.05, 0.02, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5];
/// Thresholds tried, the paper's first.
const THRESHOLDS: [f64; 9] = [0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.1, 0.9];
/// Samples per allowance.
const SAMPLES: usize = 50;

/// What rounding has found so far.
#[derive(Default)]
struct Best {
    plan: Option<CheckedPlan>,
    note: String,
    least: Option<u64>,
}

pub(super) fn plan(
    problem: &Problem,
    capacities: &Capacities,
    options: &PublishedOptions,
    rounding: Rounding,
) -> Result<Outcome, PublishedError> {
    let began = Instant::now();
    let method = super::Published::CheckmateRounding(rounding).name();
    let graph = Graph::new(problem, capacities, method)?;
    let highs = Highs::load(options.highs.as_deref())?;
    fits_in_memory(&graph)?;
    let goal = Goal::Cost {
        budget: graph.capacity,
    };
    let program = Program::new(&graph, options.formulation, goal);
    let mut random = Random::new(options.seed, 0);
    let mut best = Best::default();
    let mut lower_bound = graph.base_cost();
    let mut basis = None;
    for allowance in ALLOWANCES {
        let time_limit = options.time_limit.saturating_sub(began.elapsed());
        if time_limit.is_zero() || options.stopped() {
            break;
        }
        let changeable = graph.capacity.saturating_sub(graph.fixed) as f64;
        let budget = graph.fixed + ((1.0 - allowance) * changeable).floor() as u64;
        let solver = Options {
            relax: true,
            lp: LpMethod::Simplex,
            ..options.highs(time_limit)
        };
        let start = Start {
            values: Vec::new(),
            basis: basis.take(),
        };
        let model = Arc::new(program.with_budget(budget));
        let solution = highs.solve(&model, &solver, start, &mut |_| !options.stopped())?;
        if solution.status == Status::Infeasible && allowance == 0.0 {
            let budget = graph.budget();
            return Err(PublishedError::Infeasible { method, budget });
        }
        basis = solution.basis;
        if solution.status != Status::Optimal {
            continue;
        }
        if allowance == 0.0 {
            lower_bound = lower_bound.max(solution.bound * program.cost_unit * (1.0 - 1e-9));
        }
        let fractional = program.held(&solution.values);
        round(
            &graph,
            &fractional,
            rounding,
            &mut random,
            allowance,
            &mut best,
        )?;
    }
    let (budget, least) = (graph.budget(), best.least);
    let plan = best.plan.ok_or(PublishedError::NotFound {
        method,
        budget,
        least,
    })?;
    Ok(Outcome {
        note: Some(best.note),
        ..outcome(plan, lower_bound, options.gap, began)
    })
}

/// Rounds one fractional `S` in every way, and keeps the cheapest plan that fits.
fn round(
    graph: &Graph<'_>,
    fractional: &[Vec<f64>],
    rounding: Rounding,
    random: &mut Random,
    allowance: f64,
    best: &mut Best,
) -> Result<(), PublishedError> {
    // A threshold each, or none for a sample.
    let tries: Vec<Option<f64>> = match rounding {
        Rounding::Deterministic => THRESHOLDS.map(Some).to_vec(),
        Rounding::Randomized => vec![None; SAMPLES],
    };
    for (attempt, threshold) in tries.into_iter().enumerate() {
        let mut one = |x: f64| x > threshold.unwrap_or_else(|| random.unit());
        let held: Vec<Vec<bool>> = fractional
            .iter()
            .map(|row| row.iter().map(|&x| one(x)).collect())
            .collect();
        let Ok(stages) = Stages::complete(graph, held) else {
            continue;
        };
        match graph.check(&stages.sequence())? {
            Err(peak) => best.least = Some(best.least.map_or(peak, |least| least.min(peak))),
            Ok(plan) => {
                if best
                    .plan
                    .as_ref()
                    .is_none_or(|known| plan.cost() < known.cost())
                {
                    best.note = match threshold {
                        Some(threshold) => format!("ε = {allowance}, threshold {threshold}"),
                        None => format!("ε = {allowance}, sample {attempt}"),
                    };
                }
                best.plan = cheaper(best.plan.take(), plan);
            }
        }
    }
    Ok(())
}
