//! Plans as JSON.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

use super::json::{self, Kind, PLAN_FORMAT};
use super::{FileError, Fingerprint, MAX_STEPS};
use crate::ids::{DeviceId, ValueId};
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
    /// The device to which the problem's workspaces and costs belong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<Cow<'a, str>>,
    /// The problem's fingerprint.
    problem: Cow<'a, str>,
    /// The fingerprint without workspaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    structure: Option<Cow<'a, str>>,
    steps: Cow<'a, [Step]>,
}

/// A plan from a file, with what the file says about its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedPlan {
    /// The plan.
    pub plan: Plan,
    /// The device with whose workspaces and costs the plan was made; none if they belong to no device.
    pub device: Option<String>,
    /// Whether the plan was made for exactly this problem. If not, only the workspaces differ.
    pub exact: bool,
    /// Given values that live elsewhere than in the problem for which the plan is read; see
    /// [`Problem::with_homes`].
    pub homes: Vec<(ValueId, DeviceId)>,
}

/// Writes a plan for a problem as one line of JSON. `device` names the device to which the problem's
/// workspaces and costs belong, if there is one.
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

/// Reads a plan for a problem. [`check`](fn@crate::check) decides whether the plan is valid.
///
/// # Errors
/// If the text isn't a plan file, is too large, or was made for another problem.
pub fn plan_from_json(problem: &Problem, text: &str) -> Result<Plan, FileError> {
    let file = parse(text)?;
    if file.problem != Fingerprint::of(problem).to_string() {
        return Err(other(problem, &file));
    }
    Ok(Plan {
        steps: file.steps.into_owned(),
    })
}

/// Reads a plan for a problem whose workspaces may have changed since, and in which values may live elsewhere
/// than under the plan, together with the plan's device.
/// [`check`](fn@crate::check) decides whether the plan is valid for the problem as it is now.
///
/// # Errors
/// If the text isn't a plan file, is too large, or was made for another problem.
pub fn saved_plan_from_json(problem: &Problem, text: &str) -> Result<SavedPlan, FileError> {
    let file = parse(text)?;
    let plan = Plan {
        steps: file.steps.to_vec(),
    };
    let homes = problem.homes_under(&plan);
    let moved = problem.with_homes(&homes);
    let moved = moved.map_err(|_| other(problem, &file))?;
    let exact = file.problem == Fingerprint::of(&moved).to_string();
    let structure = Fingerprint::without_workspaces(&moved).to_string();
    if !exact && file.structure.as_deref() != Some(&structure) {
        return Err(other(problem, &file));
    }
    Ok(SavedPlan {
        plan,
        device: file.device.map(Cow::into_owned),
        exact,
        homes,
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
