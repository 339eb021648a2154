//! The largest batch that trains within a memory and a limit on the added time (checkmate's
//! equation 10), by any planner.
//!
//! What a batch needs grows with it, so the answer lies between the largest batch whose plan without
//! recomputation fits and the first one whose proven floor doesn't. In between, plans are made at the
//! sizes where one more or one less says most: first at the proven end, then where the leanest plan
//! so far would just fit, else in the middle. A plan that fits is tried at larger sizes before
//! another is made.

mod hunt;

use std::time::Duration;

use scrimp_plan::{CheckedPlan, Phase, Problem};
use scrimp_solve::Options;

use self::hunt::Hunt;
use crate::error::Result;
use crate::pipeline::{Budgeted, Fit};

/// The most time that a plan may add.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// As much as one more forward pass takes: equation 10.
    OneForward,
    /// A share of running every task once, in percent.
    Percent(f64),
}

impl Limit {
    /// The most that a plan may cost; none where one more forward pass is asked for of a graph that
    /// doesn't say what its backward pass is.
    #[must_use]
    pub fn cost(self, problem: &Problem) -> Option<f64> {
        let base = problem.base_cost();
        match self {
            Limit::Percent(percent) => Some(base * (1.0 + percent / 100.0)),
            Limit::OneForward => {
                let device = problem.sole_device()?;
                let of = |phase: Phase| problem.tasks().values().filter(move |t| t.phase == phase);
                of(Phase::Backward).next()?;
                let modes = of(Phase::Forward).filter_map(|task| task.mode(device));
                Some(base + modes.map(|mode| mode.seconds).sum::<f64>())
            }
        }
    }
}

/// A graph at one batch size.
#[derive(Clone, Debug)]
pub struct AtBatch {
    /// The problem. It may be of another size than the batch, if its budget is too.
    pub problem: Problem,
    /// The most memory that a plan may use, in the problem's unit.
    pub budget_bytes: u64,
}

/// What became of one batch size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attempt {
    /// The batch size.
    pub batch: u64,
    /// Whether a plan was found that keeps both limits.
    pub fits: bool,
    /// Cost of the plan that was found, over running every task once.
    pub overhead_percent: Option<f64>,
    /// Whether it is proven that none keeps both limits.
    pub impossible: bool,
    /// Wall time.
    pub seconds: f64,
}

/// A largest batch and the plan that trains it.
#[derive(Clone, Debug)]
pub struct LargestBatch {
    /// The largest batch for which a plan was found.
    pub batch: u64,
    /// Proven: no larger batch fits, as long as no size shrinks when the batch grows. Where the cost
    /// decides it, that holds for the method's order of first runs.
    pub bound: u64,
    /// The largest batch that fits with every task run once; 0 if none does.
    pub keep_all: u64,
    /// The problem at that batch and its plan without recomputation.
    pub budgeted: Budgeted,
    /// The plan, within the budget.
    pub plan: CheckedPlan,
    /// The most that a plan may cost at this batch.
    pub cost_limit: f64,
    /// Every size for which plans were made, in that order.
    pub attempts: Vec<Attempt>,
    /// Wall time.
    pub elapsed: Duration,
}

/// News from the search for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchProgress {
    /// The size that is being tried.
    pub trying: u64,
    /// The largest that fits so far.
    pub best: Option<u64>,
    /// No larger one can.
    pub bound: u64,
}

/// Largest batch that is considered.
pub const MOST_BATCH: u64 = 1 << 24;

/// Finds a largest batch, and in the end a cheaper plan for it. `make` gives the graph at a batch
/// size, or nothing where that is too large to be counted. The time limit of the options is that of
/// everything together; a plan is good enough, for a size, when it keeps the limit on the cost.
///
/// # Errors
/// [`crate::Error::NoBatch`] if no size fits or was found to, [`crate::Error::NoForward`] if the limit
/// can't be worked out, and what `make` and the planner say.
pub fn largest_batch(
    make: &mut dyn FnMut(u64) -> Result<Option<AtBatch>>,
    fit: Fit,
    limit: Limit,
    options: &Options,
    watch: &mut dyn FnMut(BatchProgress),
) -> Result<LargestBatch> {
    Hunt::new(make, fit, limit, options, watch).run()
}

/// The same for a graph whose values all grow with the batch: `problem` is of batch size `at`, and
/// `room` is what its values may take, in the problem's unit, at any size.
///
/// # Errors
/// As [`largest_batch`]; needs are those at batch size `at`.
pub fn largest_scaled(
    problem: &Problem,
    at: u64,
    room: u64,
    limit: Limit,
    options: &Options,
    watch: &mut dyn FnMut(BatchProgress),
) -> Result<LargestBatch> {
    let space = u128::from(room) * u128::from(at.max(1));
    let mut make = |batch: u64| {
        Ok(Some(AtBatch {
            problem: problem.clone(),
            budget_bytes: u64::try_from(space / u128::from(batch)).unwrap_or(u64::MAX),
        }))
    };
    largest_batch(&mut make, Fit::LiveBytes, limit, options, watch)
}
