//! What a caller asks for and what it gets: options, progress, outcome.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use scrimp_plan::{CheckedPlan, Sequence};

use crate::cutoff::Cutoff;
use crate::method::{Formulation, Method, Order, Precedence};

/// What to plan with.
///
/// The search does a number of units of work that follows from the problem's size and the time
/// limit, not from the clock, so the same seed gives the same plan on any machine, with any number
/// of threads, as long as the work is done before the limit. On a machine too slow for that the
/// limit cuts the search off, and the best plan so far is returned.
#[derive(Clone, Debug)]
pub struct Options {
    /// How.
    pub method: Method,
    /// Whether first runs keep the given order.
    pub order: Order,
    /// How much work to do, as the time that it takes. A first plan is looked for two seconds at least;
    /// a solver library may overrun it by about two seconds.
    pub time_limit: Duration,
    /// A moment at which to stop, whatever is left of the work: that of a caller who has more to do than
    /// plan once.
    pub deadline: Option<Instant>,
    /// Another seed, another search.
    pub seed: u64,
    /// Threads to use, 1 or 2; more bring nothing. Does not change the plan.
    pub threads: usize,
    /// Set it to stop early with the best plan so far.
    pub stop: Option<Arc<AtomicBool>>,
    /// Seconds per joule: what is made small is seconds and this times joules.
    pub alpha: f64,
    /// The search stops as soon as it has a plan that costs no more than this.
    pub enough: Option<f64>,
    /// Exact methods stop when the cost is within this fraction of the bound.
    pub gap: f64,
    /// How checkmate's programs behind rounding and the largest batch state when memory is freed.
    pub formulation: Formulation,
    /// Moccasin's C_v: how often a task may run, its first run included.
    pub runs_per_task: usize,
    /// How moccasin's program states that inputs are there.
    pub precedence: Precedence,
    /// A known plan to start exact methods from. Ignored where it is outside the method's model.
    pub start: Option<Sequence>,
    /// Where HiGHS is, if it shouldn't be looked for.
    pub highs: Option<PathBuf>,
    /// Where OR-tools is, if it shouldn't be looked for.
    pub ortools: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            method: Method::Search,
            order: Order::Free,
            time_limit: Duration::from_secs(5),
            seed: 0,
            threads: 2,
            deadline: None,
            stop: None,
            alpha: 0.0,
            enough: None,
            gap: 1e-6,
            formulation: Formulation::default(),
            runs_per_task: 2,
            precedence: Precedence::default(),
            start: None,
            highs: None,
            ortools: None,
        }
    }
}

impl Options {
    /// When work that began at a moment and may take so long must end.
    #[must_use]
    pub fn cutoff(&self, began: Instant, limit: Duration) -> Cutoff<'_> {
        Cutoff::on_any(self.stop.as_deref())
            .by(self.deadline)
            .by(began.checked_add(limit))
    }

    /// Whether the caller has asked to stop.
    #[must_use]
    pub fn stopped(&self) -> bool {
        Cutoff::on_any(self.stop.as_deref()).reached()
    }
}

/// News from a running search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Since the start.
    pub elapsed: Duration,
    /// Seconds of the cheapest plan so far that fits.
    pub cost: Option<f64>,
    /// No plan is cheaper than this.
    pub lower_bound: f64,
}

/// A plan within the budget and what is known about it.
#[derive(Clone, Debug)]
pub struct Solved {
    /// The plan.
    pub plan: CheckedPlan,
    /// Its seconds, and the price of its joules where they have one.
    pub cost: f64,
    /// Proven: no plan with the order that was asked for costs less. Of a published exact
    /// method: no plan of its model does (see [`crate::published`]).
    pub lower_bound: f64,
    /// The cost meets the bound (but for rounding).
    pub optimal: bool,
    /// How it was found.
    pub method: Method,
    /// Wall time.
    pub elapsed: Duration,
    /// What a reader should know: the parameter that a published planner chose, a limit that binds.
    pub note: Option<String>,
}
