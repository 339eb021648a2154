//! Plans as JSON.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

use super::json::{self, Kind, PLAN_FORMAT};
use super::{FileError, Fingerprint, MAX_STEPS};
use crate::plan::{Plan, Step};
use crate::problem::Problem;

const VERSION: u64 = 1;

/// The file's fields.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile<'a> {
    format: Cow<'a, str>,
    version: u64,
    /// The problem's name, for people.
    #[serde(default)]
    name: Cow<'a, str>,
    /// The problem's fingerprint.
    problem: Cow<'a, str>,
    steps: Cow<'a, [Step]>,
}

/// Writes a plan for a problem as one line of JSON.
#[must_use]
pub fn plan_to_json(problem: &Problem, plan: &Plan) -> String {
    let file = PlanFile {
        format: PLAN_FORMAT.into(),
        version: VERSION,
        name: problem.name().into(),
        problem: Fingerprint::of(problem).to_string().into(),
        steps: plan.steps.as_slice().into(),
    };
    serde_json::to_string(&file).expect("a plan has string keys and integers only")
}

/// Reads a plan for a problem. Whether it is valid is for [`check`](fn@crate::check) to say.
///
/// # Errors
/// If the text isn't such a file, is too large, or was made for another problem.
pub fn plan_from_json(problem: &Problem, text: &str) -> Result<Plan, FileError> {
    json::expect(text, Kind::Plan)?;
    json::expect_version(text, VERSION)?;
    let file: PlanFile<'_> = json::parse(text)?;
    let expected = Fingerprint::of(problem);
    if file.problem != expected.to_string() {
        let found = file.problem.chars().take(40).collect();
        return Err(FileError::OtherProblem { found, expected });
    }
    json::at_most(MAX_STEPS, file.steps.len(), "steps")?;
    Ok(Plan {
        steps: file.steps.into_owned(),
    })
}
