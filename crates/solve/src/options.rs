//! What a caller asks for and what it gets: options, progress, outcome, errors.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scrimp_plan::CheckedPlan;
use thiserror::Error;

use crate::published::{Candidates, Published, PublishedError, PublishedOptions};

/// A way to plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// The default: repair at the worst peak, ruin and recreate.
    #[default]
    Search,
    /// Recompute nothing.
    KeepAll,
    /// A published planner.
    Published(Published),
}

impl Method {
    /// Every method.
    pub const ALL: [Method; 2 + Published::ALL.len()] = {
        let mut all = [Method::Search; 2 + Published::ALL.len()];
        all[1] = Method::KeepAll;
        let mut i = 0;
        while i < Published::ALL.len() {
            all[2 + i] = Method::Published(Published::ALL[i]);
            i += 1;
        }
        all
    };

    /// The name that [`FromStr`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Method::Search => "search",
            Method::KeepAll => "keep-all",
            Method::Published(published) => published.name(),
        }
    }
}

impl Method {
    /// Another name that [`FromStr`] reads: Chen et al. planned chains, and the tasks of any graph in index
    /// order are one.
    pub fn alias(self) -> Option<&'static str> {
        match self {
            Method::Published(Published::ChenSqrtN(Candidates::Linearized)) => Some("chen-sqrt-n"),
            Method::Published(Published::ChenGreedy(Candidates::Linearized)) => Some("chen-greedy"),
            _ => None,
        }
    }
}

impl FromStr for Method {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Method, UnknownName> {
        Method::ALL
            .into_iter()
            .find(|m| m.name() == text || m.alias() == Some(text))
            .ok_or_else(|| UnknownName {
                what: "method",
                name: text.into(),
                known: Method::ALL.map(Method::name).join(", "),
            })
    }
}

/// Whether first runs keep the given order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Any topological order.
    #[default]
    Free,
    /// First runs in index order, as checkmate and moccasin (2.3) have it.
    Fixed,
}

impl Order {
    /// The name that [`FromStr`] reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Order::Free => "free",
            Order::Fixed => "fixed",
        }
    }
}

impl FromStr for Order {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Order, UnknownName> {
        match text {
            "free" => Ok(Order::Free),
            "fixed" => Ok(Order::Fixed),
            _ => Err(UnknownName {
                what: "order",
                name: text.into(),
                known: "free, fixed".into(),
            }),
        }
    }
}

/// A name that isn't one of the choices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no {what} called {name:?}; choose one of {known}")]
pub struct UnknownName {
    what: &'static str,
    name: String,
    known: String,
}

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
    /// When to stop at the latest. A first plan is looked for two seconds at least.
    pub time_limit: Duration,
    /// Another seed, another search.
    pub seed: u64,
    /// Threads to use, 1 or 2; more bring nothing. Does not change the plan.
    pub threads: usize,
    /// Set it to stop early with the best plan so far.
    pub stop: Option<Arc<AtomicBool>>,
    /// The search stops as soon as it has a plan of no more seconds than this.
    pub enough: Option<f64>,
    /// What only published planners take: libraries, C_v, ε. Its limit, threads, seed and stop are
    /// those above.
    pub published: PublishedOptions,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            method: Method::Search,
            order: Order::Free,
            time_limit: Duration::from_secs(5),
            seed: 0,
            threads: 2,
            stop: None,
            enough: None,
            published: PublishedOptions::default(),
        }
    }
}

impl Options {
    /// Whether the caller has asked to stop.
    pub(crate) fn stopped(&self) -> bool {
        self.stop
            .as_ref()
            .is_some_and(|s| s.load(Ordering::Relaxed))
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
    /// Its seconds.
    pub cost: f64,
    /// Proven: no plan with the order that was asked for takes fewer seconds. Of a published exact
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

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SolveError {
    /// No plan within the budget was found.
    #[error("{}", infeasible(*budget, *least_found, *floor))]
    Infeasible {
        /// What was asked for.
        budget: u64,
        /// Peak of the leanest plan that was found; within the budget if the search found one where a
        /// published planner did not.
        least_found: u64,
        /// Proven: every plan needs this much.
        floor: u64,
    },
    /// The problem has something this crate can't plan yet.
    #[error("{0}")]
    Unsupported(String),
    /// A published planner has no plan.
    #[error(transparent)]
    Published(PublishedError),
    /// A planner made a sequence that isn't a plan. A defect of this crate.
    #[error("internal error, please report: the {method} method made an invalid plan: {what}")]
    Defect {
        /// Which planner.
        method: &'static str,
        /// What the checker says.
        what: String,
    },
}

fn infeasible(budget: u64, least_found: u64, floor: u64) -> String {
    if least_found <= budget {
        return format!(
            "this method found no plan within {budget} bytes, but there is one of {least_found} bytes, and none exists below {floor}: use the default method, `search`, or raise the budget"
        );
    }
    format!(
        "no plan within {budget} bytes was found: the least budget a plan was found for is {least_found}, and none exists below {floor}; raise the budget to {least_found} or more"
    )
}
