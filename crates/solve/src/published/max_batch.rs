//! Checkmate's largest batch (equation 10) without its quadratic constraints.
//!
//! All values grow with the batch size `B`, and costs are compared with costs at the same size. So the
//! schedules within the cost limit are those of batch size 1, and a schedule whose values take at most `P`
//! bytes at batch size 1 fits `B = ⌊(memory − fixed) / P⌋`. The program therefore minimizes the peak under a
//! limit on the cost, and a bound on `P` bounds `B`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use scrimp_plan::{Capacities, CheckedPlan, Problem};
use scrimp_solvers::Highs;
use scrimp_solvers::highs::Start;

use super::checkmate::solver_options;
use super::chen::{greedy_sweep, runs};
use super::formulation::{Goal, Program, fits_in_memory};
use super::graph::Graph;
use super::stages::Stages;
use crate::cutoff::Cutoff;
use crate::error::SolveError;
use crate::method::{Candidates, Method, Published};
use crate::options::Options;

/// The limits under which the largest batch is sought.
#[derive(Clone, Copy, Debug)]
pub struct MaxBatchOptions {
    /// Bytes of the device.
    pub memory: u64,
    /// Bytes that don't grow with the batch: twice the parameters in the paper.
    pub fixed: u64,
    /// The most seconds that a schedule may take at the graph's batch size. Equation 10 allows one more
    /// forward pass.
    pub cost: f64,
}

/// A largest batch and the schedule that reaches it.
#[derive(Clone, Debug)]
pub struct MaxBatch {
    /// The largest batch size that the schedule fits.
    pub batch: u64,
    /// No schedule of the program fits a larger batch than this.
    pub bound: u64,
    /// The schedule, at the graph's batch size.
    pub plan: CheckedPlan,
    /// Wall time.
    pub elapsed: Duration,
}

/// Schedules of the heuristics that keep the limit on the cost.
fn known(graph: &Graph<'_>, cost: f64, cutoff: Cutoff<'_>) -> Result<Vec<Vec<usize>>, SolveError> {
    let mut known = Vec::new();
    for candidates in [Candidates::Articulation, Candidates::Linearized] {
        greedy_sweep(graph, candidates, cutoff, &mut |policy, _| {
            if let Ok(Some(runs)) = runs(graph, policy, cutoff) {
                let seconds: f64 = runs.iter().map(|&task| graph.tasks[task].seconds).sum();
                if seconds <= cost {
                    known.push(runs);
                }
            }
            Ok(())
        })?;
    }
    Ok(known)
}

/// The plan with the least peak within the limit on the cost, and its runs.
fn leanest<'c>(
    graph: &Graph<'_>,
    candidates: &'c [Vec<usize>],
    cost: f64,
) -> Result<Option<(CheckedPlan, &'c [usize])>, SolveError> {
    let mut best: Option<(CheckedPlan, &[usize])> = None;
    for runs in candidates {
        if let Ok(plan) = graph.check(runs)?
            && plan.cost() <= cost * (1.0 + 1e-9)
            && best
                .as_ref()
                .is_none_or(|(best, _)| plan.peak(graph.device) < best.peak(graph.device))
        {
            best = Some((plan, runs));
        }
    }
    Ok(best)
}

/// Finds the largest batch by checkmate's program. `problem` is the graph at batch size `at`, with costs for
/// that size too. Resident bytes don't count in addition to `fixed`.
///
/// # Errors
/// If the problem is outside the program, HiGHS is missing or fails, or no schedule is found.
pub fn max_batch(
    problem: &Problem,
    at: u64,
    wanted: MaxBatchOptions,
    options: &Options,
) -> Result<MaxBatch, SolveError> {
    let began = Instant::now();
    let cutoff = options.cutoff(began, options.time_limit);
    let method = Method::Published(Published::Checkmate(options.formulation));
    let unlimited = Capacities::unlimited();
    let graph = Graph::new(problem, &unlimited, method)?;
    let highs = Highs::load(options.highs.as_deref())?;
    fits_in_memory(&graph)?;
    let room = wanted.memory.saturating_sub(wanted.fixed);
    let not_found = SolveError::NotFound {
        method: method.name(),
        budget: room,
        least: None,
    };
    let once: Vec<usize> = (0..graph.tasks.len()).collect();
    if wanted.cost < graph.base_cost() * (1.0 - 1e-9) {
        let what = format!(
            "a cost of at most {} is asked for and running every task once takes {}",
            wanted.cost,
            graph.base_cost()
        );
        return Err(SolveError::unsupported(method.name(), &what));
    }
    let program = Program::new(
        &graph,
        options.formulation,
        Goal::Peak { cost: wanted.cost },
    );
    let mut candidates = known(&graph, wanted.cost, cutoff)?;
    candidates.push(once);
    let lean = leanest(&graph, &candidates, wanted.cost)?;
    let stages = lean.and_then(|(_, runs)| Stages::from_sequence(&graph, runs));
    let values = stages
        .map(|stages| program.start(&stages))
        .unwrap_or_default();
    let start = Start {
        values,
        basis: None,
    };
    let model = Arc::new(program.model.clone());
    let solver = solver_options(options, cutoff.left());
    let solution = highs.solve(&model, &solver, start, &mut |_| !options.stopped())?;
    candidates.extend(
        program
            .stages(&graph, &solution.values)
            .map(|stages| stages.sequence()),
    );
    let (plan, _) = leanest(&graph, &candidates, wanted.cost)?.ok_or(not_found)?;
    let at = at.max(1) as f64;
    let peak = plan.peak(graph.device).saturating_sub(graph.fixed).max(1);
    // The solver's tolerances are relative to the peak, and far below a millionth of it.
    let least = (solution.bound.max(0.0) * program.byte_unit * (1.0 - 1e-6)).max(1.0);
    let batch = (room as f64 * at / peak as f64).floor() as u64;
    let bound = (room as f64 * at / least).floor() as u64;
    Ok(MaxBatch {
        batch,
        bound: bound.max(batch),
        plan,
        elapsed: began.elapsed(),
    })
}
