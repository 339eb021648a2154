//! Two-phase rounding of checkmate's linear relaxation (section 5): rounds `S`, then finds the fewest runs
//! for it (algorithm 2), and searches the allowance ε on the budget (5.3, appendix D).

use std::sync::Arc;
use std::time::Instant;

use scrimp_plan::CheckedPlan;
use scrimp_solvers::Highs;
use scrimp_solvers::highs::{self, LpMethod, Start, Status};

use super::checkmate::{cheaper, outcome, solver_options};
use super::formulation::{Goal, Program, fits_in_memory};
use super::graph::Graph;
use super::stages::Stages;
use crate::cutoff::Cutoff;
use crate::error::SolveError;
use crate::method::Rounding;
use crate::options::{Options, Solved};
use crate::random::Random;

/// The allowances to try, the paper's first. They apply to the bytes that planning can change.
const ALLOWANCES: [f64; 10] = [0.1, 0.0, 0.05, 0.02, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5];
/// The thresholds to try, the paper's first.
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
    graph: &Graph<'_>,
    options: &Options,
    rounding: Rounding,
) -> Result<Solved, SolveError> {
    let began = Instant::now();
    let cutoff = options.cutoff(began, options.time_limit);
    let highs = Highs::load(options.highs.as_deref())?;
    fits_in_memory(graph)?;
    let goal = Goal::Cost {
        budget: graph.capacity,
    };
    let program = Program::new(graph, options.formulation, goal);
    let mut random = Random::new(options.seed, 0);
    let mut best = Best::default();
    let mut lower_bound = graph.base_cost();
    let mut basis = None;
    for allowance in ALLOWANCES {
        if cutoff.reached() {
            break;
        }
        let changeable = graph.capacity.saturating_sub(graph.fixed) as f64;
        let budget = graph.fixed + ((1.0 - allowance) * changeable).floor() as u64;
        let solver = highs::Options {
            relax: true,
            lp: LpMethod::Simplex,
            ..solver_options(options, cutoff.left())
        };
        let start = Start {
            values: Vec::new(),
            basis: basis.take(),
        };
        let model = Arc::new(program.with_budget(budget));
        let solution = highs.solve(&model, &solver, start, &mut |_| !options.stopped())?;
        if solution.status == Status::Infeasible && allowance == 0.0 {
            return Err(graph.infeasible());
        }
        basis = solution.basis;
        if solution.status != Status::Optimal {
            continue;
        }
        if allowance == 0.0 {
            lower_bound = lower_bound.max(solution.bound * program.cost_unit * (1.0 - 1e-9));
        }
        let fractional = program.held(&solution.values);
        let tools = (cutoff, &mut random);
        round(graph, &fractional, rounding, tools, allowance, &mut best)?;
    }
    let plan = best.plan.ok_or(graph.not_found(best.least))?;
    Ok(Solved {
        note: Some(best.note),
        ..outcome(graph, plan, lower_bound, options.gap, began)
    })
}

/// Rounds one fractional `S` in every way, and keeps the cheapest plan that fits.
fn round(
    graph: &Graph<'_>,
    fractional: &[Vec<f64>],
    rounding: Rounding,
    (cutoff, random): (Cutoff<'_>, &mut Random),
    allowance: f64,
    best: &mut Best,
) -> Result<(), SolveError> {
    // A threshold for each try, or none for a random sample.
    let tries: Vec<Option<f64>> = match rounding {
        Rounding::Deterministic => THRESHOLDS.map(Some).to_vec(),
        Rounding::Randomized => vec![None; SAMPLES],
    };
    for (attempt, threshold) in tries.into_iter().enumerate() {
        if cutoff.reached() {
            break;
        }
        let mut one = |x: f64| x > threshold.unwrap_or_else(|| random.unit());
        let held: Vec<Vec<bool>> = fractional
            .iter()
            .map(|row| row.iter().map(|&x| one(x)).collect())
            .collect();
        let Ok(stages) = Stages::complete(graph, &held) else {
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
