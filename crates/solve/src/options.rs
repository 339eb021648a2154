//! What a caller asks for and what it gets: options, progress and outcome.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use scrimp_plan::{CheckedPlan, Sequence};

use crate::cutoff::Cutoff;
use crate::method::{Formulation, Method, Objective, Order, Precedence};
use crate::published::Layer;

/// How to plan.
///
/// The search does a number of units of work that follows from the problem's size and the time limit, not
/// from the clock. So the same seed gives the same plan on any machine and with any number of threads, as
/// long as the work ends before the limit. On a machine that is too slow for that, the limit cuts the search
/// off, and the best plan so far is returned.
#[derive(Clone, Debug)]
pub struct Options {
    /// The method that plans.
    pub method: Method,
    /// What planners minimize.
    pub objective: Objective,
    /// Whether first runs keep the given order.
    pub order: Order,
    /// How much work to do, as the time that the work takes. The search for a first plan takes up to two
    /// seconds even if the limit is shorter, and a solver library may overrun the limit by about two seconds.
    pub time_limit: Duration,
    /// A moment at which planning stops, even with work left, for callers that plan more than once in a given
    /// time.
    pub deadline: Option<Instant>,
    /// Seed of the search's random choices.
    pub seed: u64,
    /// Threads to use, 1 or 2; more don't help. The number does not change the plan.
    pub threads: usize,
    /// A flag that the caller sets to stop early with the best plan so far.
    pub stop: Option<Arc<AtomicBool>>,
    /// The price of a joule in seconds: planners minimize seconds, by the objective, plus `alpha` times joules.
    pub alpha: f64,
    /// The search stops as soon as it has a plan that costs no more than this.
    pub enough: Option<f64>,
    /// Exact methods stop when the cost is within this fraction of the bound.
    pub gap: f64,
    /// How checkmate's programs state when memory is freed, for rounding and for the largest batch.
    pub formulation: Formulation,
    /// Moccasin's C_v: how often a task may run, its first run included.
    pub runs_per_task: usize,
    /// How moccasin's program states that inputs are in memory.
    pub precedence: Precedence,
    /// A known plan of this problem from which the search and exact methods start. If it exceeds the budget, the search for one
    /// device and memory repairs it, and others ignore it. Exact methods ignore one that is outside their model.
    pub start: Option<Sequence>,
    /// POET's limit on the seconds of all runs, as a multiple of running every task once; none is unlimited.
    pub runtime_budget: Option<f64>,
    /// Whether the plan will be laid out in memory. Then the search for several devices leaves the bytes of what is given on a device
    /// and must stay there ([`scrimp_plan::Problem::fixed`]) to it throughout, since layouts do; otherwise others may take them while
    /// it is away. The search for one device ignores it.
    pub laid_out: bool,
    /// What kind of layer each task is, for methods whose rules ask. Without it, the tasks' names tell.
    pub layers: Option<Arc<[Layer]>>,
    /// The path of HiGHS, if it shouldn't be searched for.
    pub highs: Option<PathBuf>,
    /// The path of OR-tools, if it shouldn't be searched for.
    pub ortools: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            method: Method::Search,
            objective: Objective::Makespan,
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
            runtime_budget: None,
            laid_out: false,
            layers: None,
            highs: None,
            ortools: None,
        }
    }
}

impl Options {
    /// The cutoff of work that started at a moment and may take a given time.
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
    /// Time since the start.
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
    /// Other plans within the budget. Where this one's buffers don't pack, theirs may.
    pub others: Others<Sequence>,
    /// Its seconds, plus the price of its joules if they have one.
    pub cost: f64,
    /// A proven bound: no plan in the requested order costs less. For a published exact method, no plan of
    /// its model does (see [`crate::published`]).
    pub lower_bound: f64,
    /// Whether the cost meets the bound, apart from rounding.
    pub optimal: bool,
    /// The method that found the plan.
    pub method: Method,
    /// Wall time of planning.
    pub elapsed: Duration,
    /// Further facts for a reader, such as the parameter that a published planner chose or a limit that was
    /// binding.
    pub note: Option<String>,
}

/// Plans beside the one that a search returns.
#[derive(Clone, Debug)]
pub struct Others<P> {
    /// Those that cost the same.
    pub ties: Vec<P>,
    /// Dearer ones, cheapest first.
    pub dearer: Vec<P>,
}

impl<P> Default for Others<P> {
    fn default() -> Self {
        Others {
            ties: Vec::new(),
            dearer: Vec::new(),
        }
    }
}

impl<P> Others<P> {
    /// The same plans in another form.
    pub(crate) fn map<Q>(self, form: impl Fn(P) -> Q) -> Others<Q> {
        Others {
            ties: self.ties.into_iter().map(&form).collect(),
            dearer: self.dearer.into_iter().map(&form).collect(),
        }
    }
}
