//! Finds the largest batch that trains within a memory and a limit on the added time (checkmate's equation
//! 10), by any planner.
//!
//! The needs of a batch grow with its size, so the answer lies between the largest batch whose plan without
//! recomputation fits and the smallest batch whose proven floor doesn't. In between, plans are made at the
//! sizes that tell the most: first at the proven bound, then where the leanest plan so far would just fit,
//! otherwise in the middle. A plan that fits is tried at larger sizes before another plan is made.

mod hunt;

use std::time::Duration;

use scrimp_plan::{Capacities, CheckedPlan, Phase, Problem};
use scrimp_solve::Options;

use self::hunt::Hunt;
use crate::error::Result;
use crate::pipeline::{Budgeted, Fit};

/// The most time that a plan may add.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// The time of one more forward pass: equation 10.
    OneForward,
    /// A percentage of the cost of running every task once.
    Percent(f64),
}

impl Limit {
    /// The most that a plan may cost. `None` if the limit is one more forward pass and the graph doesn't say
    /// what its backward pass is.
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
    /// The problem. It may be that of another batch size if its budget is scaled likewise.
    pub problem: Problem,
    /// The most memory that a plan may use on the device that computes, in the problem's unit.
    pub budget_bytes: u64,
    /// What other memories hold.
    pub beside: Capacities,
}

/// The result for one batch size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attempt {
    /// The batch size.
    pub batch: u64,
    /// Whether a plan was found that keeps both limits.
    pub fits: bool,
    /// By how much the plan's makespan exceeds that of running every task once, in percent.
    pub overhead_percent: Option<f64>,
    /// Whether it is proven that no plan keeps both limits.
    pub impossible: bool,
    /// Wall time.
    pub seconds: f64,
}

/// A largest batch and the plan that trains it.
#[derive(Clone, Debug)]
pub struct LargestBatch {
    /// The largest batch for which a plan was found.
    pub batch: u64,
    /// Proven: no larger batch fits, provided that no value shrinks when the batch grows. Where the cost is
    /// the limit, this holds for the method's order of first runs.
    pub bound: u64,
    /// The largest batch that fits with every task run once; 0 if none does.
    pub keep_all: u64,
    /// The problem at that batch, with the homes of its values under the plan, and its plan without planning.
    pub budgeted: Budgeted,
    /// The plan, within the budget.
    pub plan: CheckedPlan,
    /// The most that a plan may cost at this batch.
    pub cost_limit: f64,
    /// Every size for which plans were made, in the order of the attempts.
    pub attempts: Vec<Attempt>,
    /// Wall time.
    pub elapsed: Duration,
}

/// Progress of the search for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchProgress {
    /// The size that is being tried.
    pub trying: u64,
    /// The largest size that fits so far.
    pub best: Option<u64>,
    /// No larger size can fit.
    pub bound: u64,
}

/// The largest batch that is considered.
pub const MOST_BATCH: u64 = 1 << 24;

/// Finds a largest batch and then a cheaper plan for it. `make` gives the graph at a batch size, or `None` if
/// it is too large to be counted. The time limit of the options covers the whole search. A plan for a size is
/// good enough when it keeps the limit on the cost.
///
/// # Errors
/// [`crate::Error::NoBatch`] if no size fits or none was found to fit, [`crate::Error::NoForward`] if the
/// limit can't be worked out, and errors of `make` and the planner.
pub fn largest_batch(
    make: &mut dyn FnMut(u64) -> Result<Option<AtBatch>>,
    fit: Fit,
    limit: Limit,
    options: &Options,
    watch: &mut dyn FnMut(BatchProgress),
) -> Result<LargestBatch> {
    Hunt::new(make, fit, limit, options, watch).run()
}

/// Like [`largest_batch`], for a graph whose values all grow with the batch: `problem` has batch size `at`;
/// `room` is what its values may take at any size, and `beside` what other memories hold, in the problem's unit.
///
/// # Errors
/// As for [`largest_batch`]; needs are those at batch size `at`.
pub fn largest_scaled(
    problem: &Problem,
    at: u64,
    room: u64,
    beside: &Capacities,
    limit: Limit,
    options: &Options,
    watch: &mut dyn FnMut(BatchProgress),
) -> Result<LargestBatch> {
    let mut make = |batch: u64| {
        let scaled = |bytes: u64| {
            let space = u128::from(bytes) * u128::from(at.max(1));
            u64::try_from(space / u128::from(batch)).unwrap_or(u64::MAX)
        };
        let devices = problem.devices().keys();
        let beside = devices.fold(beside.clone(), |beside, device| {
            let bytes = beside.bytes(device).map(scaled);
            beside.with_bytes(device, bytes)
        });
        Ok(Some(AtBatch {
            problem: problem.clone(),
            budget_bytes: scaled(room),
            beside,
        }))
    };
    largest_batch(&mut make, Fit::LiveBytes, limit, options, watch)
}
