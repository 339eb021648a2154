//! Why there is no plan.

use scrimp_plan::Sequence;
use scrimp_solvers::SolverError;
use thiserror::Error;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SolveError {
    /// No plan within the budget was found.
    #[error("{}", infeasible(*budget, *least_found, *floor))]
    Infeasible {
        /// The budget that was asked for.
        budget: u64,
        /// The peak of the leanest plan that was found. It is within the budget if a published planner failed
        /// but the search found a plan.
        least_found: u64,
        /// A proven floor: every plan needs at least this many bytes.
        floor: u64,
        /// That leanest plan, if the search made it.
        leanest: Option<Sequence>,
    },
    /// A method for several devices found no plan within the budget of one of them.
    #[error(
        "{method} found no plan within {budget} bytes of {device}: its plan needs {least} there, and none exists below {floor}; raise the budget of {device}{}",
        if *floor > *budget { "" } else { ", or use `--method search`" }
    )]
    NoRoom {
        /// The method's name.
        method: &'static str,
        /// The name of the device.
        device: String,
        /// Its budget.
        budget: u64,
        /// The peak of the method's plan there.
        least: u64,
        /// A proven floor: every plan needs at least this many bytes there, or on each device that could run
        /// the same task.
        floor: u64,
    },
    /// An exact method has proven that its model has no plan within the budget.
    #[error("{method} proved that its model has no plan within {budget} bytes; raise the budget")]
    OutsideModel {
        /// The method's name.
        method: &'static str,
        /// The budget that was asked for.
        budget: u64,
    },
    /// A published planner found no plan, which proves nothing.
    #[error(
        "{method} found no plan within {budget} bytes{}; raise the budget, or give it more time if it is an exact method",
        least.map(|least| format!(" (its leanest plan needs {least})")).unwrap_or_default()
    )]
    NotFound {
        /// The method's name.
        method: &'static str,
        /// The budget that was asked for.
        budget: u64,
        /// The peak of its leanest plan, if it has any.
        least: Option<u64>,
    },
    /// No plan within the capacities of several devices was found.
    #[error("{}", short(.0))]
    Short(Vec<Shortage>),
    /// No plan was found within the cap on energy.
    #[error("{}", over_the_cap(*cap, *least_found, *floor))]
    EnergyCap {
        /// The cap in joules.
        cap: f64,
        /// Joules of the plan with the fewest; none if nothing was planned because the cap is below the
        /// floor.
        least_found: Option<f64>,
        /// A proven floor: every plan takes at least the joules of running every task once.
        floor: f64,
    },
    /// The problem has something that the method can't plan.
    #[error("{0}")]
    Unsupported(String),
    /// A method's program for the problem would take too much memory.
    #[error(
        "{method}'s program of this problem would take about {}, more than {}; use `--method search`",
        scrimp_plan::format_bytes(*bytes), scrimp_plan::format_bytes(*most)
    )]
    TooLarge {
        /// The method's name.
        method: &'static str,
        /// Roughly the bytes that it would take.
        bytes: u64,
        /// The most bytes that it may take.
        most: u64,
    },
    /// A solver library is missing or failed.
    #[error(transparent)]
    Solver(#[from] SolverError),
    /// A planner made a sequence that isn't a plan, which is a defect of this crate.
    #[error("internal error, please report: the {method} method made an invalid plan: {what}")]
    Defect {
        /// The method's name.
        method: &'static str,
        /// The checker's message.
        what: String,
    },
}

/// What the best plan that was found lacks on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The device's name.
    pub device: String,
    /// Its capacity in bytes.
    pub capacity: u64,
    /// The bytes that the plan needs there.
    pub least_found: u64,
}

fn short(devices: &[Shortage]) -> String {
    let each = devices.iter().map(|short| {
        let Shortage {
            device,
            capacity,
            least_found,
        } = short;
        format!("{device} has {capacity} bytes, and the closest plan needs {least_found}")
    });
    format!(
        "no plan within the capacities of the devices was found: {}; raise these capacities",
        each.collect::<Vec<_>>().join("; ")
    )
}

impl SolveError {
    /// The problem has something that is outside a method's model.
    pub(crate) fn unsupported(method: &'static str, what: &str) -> SolveError {
        SolveError::Unsupported(format!(
            "{method} can't plan this problem: {what}; use `--method search`"
        ))
    }
}

fn over_the_cap(cap: f64, least_found: Option<f64>, floor: f64) -> String {
    match least_found {
        None => format!(
            "no plan takes {cap} joules or fewer: running every task once takes {floor}; raise the cap"
        ),
        Some(least) => format!(
            "no plan of {cap} joules or fewer was found: the least found is {least}, and none exists below {floor}; raise the cap to {least}, or the budget"
        ),
    }
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
