//! Problems as JSON, with the capacities that a file may state beside them.

use cranelift_entity::{EntityRef, PrimaryMap};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

use super::json::{self, Kind, PROBLEM_FORMAT};
use super::{FileError, MAX_EDGES, MAX_TASKS, MAX_VALUES};
use crate::capacities::Capacities;
use crate::ids::{DeviceId, TaskId};
use crate::problem::{Device, Link, MAX_COST, Problem, ProblemParts, Task, Units, Value};

const VERSION: u64 = 1;

/// The file's fields. Ids are positions in the lists, counted from 0.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProblemFile<'a> {
    format: Cow<'a, str>,
    version: u64,
    #[serde(default)]
    name: Cow<'a, str>,
    #[serde(default)]
    units: Cow<'a, Units>,
    devices: Vec<DeviceFile<'a>>,
    #[serde(default)]
    links: Cow<'a, [Link]>,
    tasks: Cow<'a, [Task]>,
    values: Cow<'a, [Value]>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    together: Cow<'a, [Vec<TaskId>]>,
}

/// A device with its capacity.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceFile<'a> {
    name: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arithmetic: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    energy_cap: Option<f64>,
    computes: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    concurrent: bool,
    #[serde(default)]
    resident: u64,
}

/// Writes a problem, with capacities for its devices, as one line of JSON.
#[must_use]
pub fn problem_to_json(problem: &Problem, capacities: &Capacities) -> String {
    let device = |(id, device): (DeviceId, &'_ Device)| DeviceFile {
        name: device.name.clone().into(),
        arithmetic: (device.arithmetic != device.name).then(|| device.arithmetic.clone().into()),
        capacity: capacities.bytes(id),
        energy_cap: capacities.joules(id),
        computes: device.computes,
        concurrent: device.concurrent,
        resident: device.resident,
    };
    let file = ProblemFile {
        format: PROBLEM_FORMAT.into(),
        version: VERSION,
        name: problem.name().into(),
        units: Cow::Borrowed(problem.units()),
        devices: problem.devices().iter().map(device).collect(),
        links: problem.links().as_values_slice().into(),
        tasks: problem.tasks().as_values_slice().into(),
        values: problem.values().as_values_slice().into(),
        together: problem.together().into(),
    };
    serde_json::to_string(&file)
        .expect("a problem has string and integer keys and finite numbers only")
}

/// Reads a problem, and the capacities that the file states for its devices.
///
/// # Errors
/// If the text isn't a problem file, is too large, or breaks an invariant of problems.
pub fn problem_from_json(text: &str) -> Result<(Problem, Capacities), FileError> {
    json::expect(text, Kind::Problem)?;
    json::expect_version(text, VERSION)?;
    let file: ProblemFile<'_> = json::parse(text)?;
    json::at_most(MAX_TASKS, file.tasks.len(), "tasks")?;
    json::at_most(MAX_VALUES, file.values.len(), "values")?;
    let operands = file
        .tasks
        .iter()
        .map(|task| task.inputs.len() + task.outputs.len())
        .sum();
    json::at_most(MAX_EDGES, operands, "inputs and outputs")?;
    let mut capacities = Capacities::unlimited();
    for (i, device) in file.devices.iter().enumerate() {
        if device
            .energy_cap
            .is_some_and(|cap| !(0.0..=MAX_COST).contains(&cap))
        {
            return Err(FileError::Field {
                at: format!("device {i}"),
                field: "energy_cap".into(),
                found: format!("{:?}", device.energy_cap),
                expected: "joules, finite and not negative",
            });
        }
        capacities = capacities
            .with_bytes(DeviceId::new(i), device.capacity)
            .with_joules(DeviceId::new(i), device.energy_cap);
    }
    let mut parts = ProblemParts {
        name: file.name.into_owned(),
        units: file.units.into_owned(),
        devices: file.devices.into_iter().map(Device::from).collect(),
        links: PrimaryMap::from_iter(file.links.into_owned()),
        together: file.together.into_owned(),
        ..ProblemParts::default()
    };
    parts.tasks.extend(file.tasks.into_owned());
    parts.values.extend(file.values.into_owned());
    Ok((Problem::new(parts)?, capacities))
}

impl From<DeviceFile<'_>> for Device {
    fn from(file: DeviceFile<'_>) -> Device {
        Device {
            arithmetic: file.arithmetic.unwrap_or(file.name.clone()).into_owned(),
            name: file.name.into_owned(),
            computes: file.computes,
            concurrent: file.concurrent,
            resident: file.resident,
        }
    }
}
