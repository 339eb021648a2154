//! From a planner's sequence to a checked plan.

use scrimp_plan::{CheckedPlan, Move, Problem, Sequence, Step, check};

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

/// A plan's moves, from which a search may start.
#[must_use]
pub fn sequence_of(plan: &CheckedPlan) -> Sequence {
    let moves = plan.steps().iter().map(|step| match *step {
        Step::Run { task, device } => Move::Run { task, device },
        Step::Copy { value, from, to } => Move::Copy { value, from, to },
        Step::Free { value, device } => Move::Release { value, device },
    });
    Sequence {
        moves: moves.collect(),
    }
}
