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
    /// What the problem's workspaces and costs belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<Cow<'a, str>>,
    /// The problem's fingerprint.
    problem: Cow<'a, str>,
    /// The fingerprint without workspaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    structure: Option<Cow<'a, str>>,
    steps: Cow<'a, [Step]>,
}

/// A plan from a file, and what it was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedPlan {
    /// The plan.
    pub plan: Plan,
    /// The device whose workspaces and costs the plan was made with; none if it wasn't made for one.
    pub device: Option<String>,
    /// Whether it was made for exactly this problem: if not, workspaces differ, nothing else.
    pub exact: bool,
}

/// Writes a plan for a problem as one line of JSON. `device` says which device the problem's workspaces
/// and costs belong to, if they belong to one.
#[must_use]
pub fn plan_to_json(problem: &Problem, plan: &Plan, device: Option<&str>) -> String {
    let file = PlanFile {
        format: PLAN_FORMAT.into(),
        version: VERSION,
        name: problem.name().into(),
        device: device.map(Cow::from),
        problem: Fingerprint::of(problem).to_string().into(),
        structure: Some(Fingerprint::without_workspaces(problem).to_string().into()),
        steps: plan.steps.as_slice().into(),
    };
    serde_json::to_string(&file).expect("a plan has string keys and integers only")
}

/// Reads a plan for a problem. Whether it is valid is for [`check`](fn@crate::check) to say.
///
/// # Errors
/// If the text isn't such a file, is too large, or was made for another problem.
pub fn plan_from_json(problem: &Problem, text: &str) -> Result<Plan, FileError> {
    let file = parse(text)?;
    if file.problem != Fingerprint::of(problem).to_string() {
        return Err(other(problem, &file));
    }
    Ok(Plan {
        steps: file.steps.into_owned(),
    })
}

/// Reads a plan for a problem whose workspaces may have changed since, with the device. Whether the
/// plan is valid for the problem as it is now is for [`check`](fn@crate::check) to say.
///
/// # Errors
/// If the text isn't such a file, is too large, or was made for another problem.
pub fn saved_plan_from_json(problem: &Problem, text: &str) -> Result<SavedPlan, FileError> {
    let file = parse(text)?;
    let exact = file.problem == Fingerprint::of(problem).to_string();
    let structure = Fingerprint::without_workspaces(problem).to_string();
    if !exact && file.structure.as_deref() != Some(&structure) {
        return Err(other(problem, &file));
    }
    Ok(SavedPlan {
        plan: Plan {
            steps: file.steps.into_owned(),
        },
        device: file.device.map(Cow::into_owned),
        exact,
    })
}

fn parse(text: &str) -> Result<PlanFile<'_>, FileError> {
    json::expect(text, Kind::Plan)?;
    json::expect_version(text, VERSION)?;
    let file: PlanFile<'_> = json::parse(text)?;
    json::at_most(MAX_STEPS, file.steps.len(), "steps")?;
    Ok(file)
}

fn other(problem: &Problem, file: &PlanFile<'_>) -> FileError {
    FileError::OtherProblem {
        found: file.problem.chars().take(40).collect(),
        expected: Fingerprint::of(problem),
    }
}
