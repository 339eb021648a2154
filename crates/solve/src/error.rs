//! Why there is no plan.

use scrimp_solvers::SolverError;
use thiserror::Error;

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
    /// Proven: an exact method's model has no plan within the budget.
    #[error("{method} proved that its model has no plan within {budget} bytes; raise the budget")]
    OutsideModel {
        /// The method's name.
        method: &'static str,
        /// What was asked for.
        budget: u64,
    },
    /// A published planner found none, which proves nothing.
    #[error(
        "{method} found no plan within {budget} bytes{}; raise the budget, or give it more time if it is an exact method",
        least.map(|least| format!(" (its leanest needs {least})")).unwrap_or_default()
    )]
    NotFound {
        /// The method's name.
        method: &'static str,
        /// What was asked for.
        budget: u64,
        /// Peak of its leanest plan, if it has one.
        least: Option<u64>,
    },
    /// No plan within the cap on energy was found.
    #[error("{}", over_the_cap(*cap, *least_found, *floor))]
    EnergyCap {
        /// The most joules that were allowed.
        cap: f64,
        /// Joules of the plan that takes the fewest; none if nothing was planned, as the cap is below the
        /// floor.
        least_found: Option<f64>,
        /// Proven: every plan takes this many, those of running every task once.
        floor: f64,
    },
    /// The problem has something that the method can't plan.
    #[error("{0}")]
    Unsupported(String),
    /// A method's program of the problem would take too much memory.
    #[error(
        "{method}'s program of this problem would take about {}, more than {}; use `--method search`",
        scrimp_plan::format_bytes(*bytes), scrimp_plan::format_bytes(*most)
    )]
    TooLarge {
        /// The method's name.
        method: &'static str,
        /// About what it would take.
        bytes: u64,
        /// What it may take.
        most: u64,
    },
    /// A solver library is missing or failed.
    #[error(transparent)]
    Solver(#[from] SolverError),
    /// A planner made a sequence that isn't a plan. A defect of this crate.
    #[error("internal error, please report: the {method} method made an invalid plan: {what}")]
    Defect {
        /// Which planner.
        method: &'static str,
        /// What the checker says.
        what: String,
    },
}

impl SolveError {
    /// The problem has something that a method's model doesn't.
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
