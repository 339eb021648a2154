//! From a planner's sequence to a checked plan.

use scrimp_plan::{CheckedPlan, Problem, Sequence, check};

use crate::error::SolveError;

/// Checks the plan of a sequence that a method made.
pub(crate) fn checked(
    problem: &Problem,
    sequence: &Sequence,
    method: &'static str,
) -> Result<CheckedPlan, SolveError> {
    let defect = |what: String| SolveError::Defect { method, what };
    let plan = sequence
        .plan(problem)
        .map_err(|error| defect(error.to_string()))?;
    check(problem, plan).map_err(|all| {
        let told: Vec<String> = all.iter().take(3).map(ToString::to_string).collect();
        defect(told.join("; "))
    })
}
