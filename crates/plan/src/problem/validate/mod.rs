//! Checks the invariants of a problem, with one function per kind of thing and errors that name the culprit.

mod error;

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};
use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{DeviceId, LinkId, TaskId, ValueId};
use crate::problem::parts::{Keep, Link, Origin, ProblemParts, Task, Value};

pub use error::{MAX_BYTES, MAX_COST, MAX_DEVICES, ProblemError};

/// Checks every invariant. Later checks rely on earlier ones.
pub(super) fn validate(parts: &ProblemParts) -> Result<(), ProblemError> {
    devices(parts)?;
    links(parts)?;
    if parts.tasks.is_empty() {
        return Err(ProblemError::NoTasks);
    }
    for (id, task) in parts.tasks.iter() {
        modes(parts, id, task)?;
        reads_and_writes(parts, id, task)?;
        overwrites(parts, id, task)?;
    }
    origins(parts)?;
    overwritten_values(parts)?;
    groups(parts)?;
    bytes(parts)
}

fn devices(parts: &ProblemParts) -> Result<(), ProblemError> {
    let count = parts.devices.len();
    if count > MAX_DEVICES {
        return Err(ProblemError::TooManyDevices { count });
    }
    let mut names = BTreeMap::new();
    for (second, device) in parts.devices.iter() {
        if let Some(first) = names.insert(device.name.as_str(), second) {
            return Err(ProblemError::DuplicateDevice {
                name: device.name.clone(),
                first,
                second,
            });
        }
    }
    let mut memories = parts.devices.iter().filter(|(_, device)| !device.computes);
    if let Some((device, what)) = memories.find(|(_, device)| device.concurrent) {
        let name = what.name.clone();
        return Err(ProblemError::ConcurrentMemory { device, name });
    }
    if parts.devices.values().any(|device| device.computes) {
        Ok(())
    } else {
        Err(ProblemError::NoComputingDevice)
    }
}

fn links(parts: &ProblemParts) -> Result<(), ProblemError> {
    let mut pairs = BTreeMap::new();
    for (id, link) in parts.links.iter() {
        for device in [link.from, link.to] {
            known_device(parts, device, || format!("{id}"))?;
        }
        if link.from == link.to {
            return Err(ProblemError::LinkLoop {
                link: id,
                device: link.from,
            });
        }
        if let Some(first) = pairs.insert((link.from, link.to), id) {
            return Err(ProblemError::DuplicateLink {
                first,
                second: id,
                from: link.from,
                to: link.to,
            });
        }
        link_costs(parts, id, link)?;
        link_queue(parts, id, link)?;
    }
    Ok(())
}

fn link_costs(parts: &ProblemParts, id: LinkId, link: &Link) -> Result<(), ProblemError> {
    if !(link.bandwidth.is_finite() && link.bandwidth > 0.0) {
        return Err(ProblemError::BadBandwidth {
            link: id,
            bandwidth: link.bandwidth,
        });
    }
    cost(link.latency, "latency", || format!("{id}"))?;
    for (&value, &seconds) in &link.seconds {
        known_value(parts, value, || format!("{id}"))?;
        cost(seconds, "seconds", || format!("{id}, for {value},"))?;
    }
    cost(link.drag, "drag", || format!("{id}"))?;
    cost(link.joules, "joules", || format!("{id}"))?;
    cost(link.joules_per_byte, "joules_per_byte", || format!("{id}"))?;
    for (value, Value { bytes, .. }) in parts.values.iter() {
        let joules = link.joules + *bytes as f64 * link.joules_per_byte;
        cost(joules, "joules_per_byte", || {
            format!("{id}, whose copy of {value} takes joules + bytes · joules_per_byte,")
        })?;
        let seconds = link.latency + *bytes as f64 / link.bandwidth;
        cost(seconds * link.drag.max(1.0), "bandwidth", || {
            format!("{id}, whose copy of {value} takes bytes/bandwidth + latency,")
        })?;
    }
    Ok(())
}

/// A shared queue must be the own queue of an earlier link, so that every queue has one name.
fn link_queue(parts: &ProblemParts, id: LinkId, link: &Link) -> Result<(), ProblemError> {
    match link.queue {
        Some(queue)
            if link.concurrent || parts.links.get(queue).is_some_and(|first| first.concurrent) =>
        {
            Err(ProblemError::ConcurrentQueue { link: id, queue })
        }
        Some(queue) if queue >= id || parts.links[queue].queue.is_some() => {
            Err(ProblemError::BadQueue { link: id, queue })
        }
        _ => Ok(()),
    }
}

fn modes(parts: &ProblemParts, id: TaskId, task: &Task) -> Result<(), ProblemError> {
    let at = || format!("{id} ({})", task.name);
    let name = || task.name.clone();
    if task.modes.is_empty() {
        return Err(ProblemError::NoModes {
            task: id,
            name: name(),
        });
    }
    let mut last: Option<DeviceId> = None;
    for mode in &task.modes {
        let device = mode.device;
        known_device(parts, device, at)?;
        if last.is_some_and(|last| last >= device) {
            return Err(ProblemError::ModeOrder {
                task: id,
                name: name(),
                device,
            });
        }
        last = Some(device);
        if !parts.devices[device].computes {
            return Err(ProblemError::ModeOnMemory {
                task: id,
                name: name(),
                device,
            });
        }
        cost(mode.seconds, "seconds", at)?;
        cost(mode.joules, "joules", at)?;
    }
    Ok(())
}

fn reads_and_writes(parts: &ProblemParts, id: TaskId, task: &Task) -> Result<(), ProblemError> {
    let mut seen = BTreeSet::new();
    for &value in task.inputs.iter().chain(&task.outputs) {
        known_value(parts, value, || format!("{id} ({})", task.name))?;
        if !seen.insert(value) {
            return Err(ProblemError::Repeated {
                task: id,
                name: task.name.clone(),
                value,
            });
        }
    }
    for &value in &task.inputs {
        if let Origin::Task(producer) = parts.values[value].origin
            && producer >= id
        {
            return Err(ProblemError::ReadBeforeWritten {
                task: id,
                name: task.name.clone(),
                value,
                producer,
            });
        }
    }
    for &value in &task.outputs {
        let origin = parts.values[value].origin;
        if origin != Origin::Task(id) {
            return Err(ProblemError::WrongOrigin {
                task: id,
                name: task.name.clone(),
                value,
                origin,
            });
        }
    }
    Ok(())
}

fn overwrites(parts: &ProblemParts, id: TaskId, task: &Task) -> Result<(), ProblemError> {
    let mut seen = BTreeSet::new();
    for pair in &task.overwrites {
        let (input, output) = (pair.input, pair.output);
        if !task.inputs.contains(&input) || !task.outputs.contains(&output) {
            return Err(ProblemError::OverwriteNotOwn {
                task: id,
                name: task.name.clone(),
                input,
                output,
            });
        }
        for value in [input, output] {
            if !seen.insert(value) {
                return Err(ProblemError::OverwriteRepeated {
                    task: id,
                    name: task.name.clone(),
                    value,
                });
            }
        }
        let (input_bytes, output_bytes) = (parts.values[input].bytes, parts.values[output].bytes);
        if input_bytes != output_bytes {
            let name = task.name.clone();
            return Err(ProblemError::OverwriteSize {
                task: id,
                name,
                input,
                output,
                input_bytes,
                output_bytes,
            });
        }
    }
    Ok(())
}

fn origins(parts: &ProblemParts) -> Result<(), ProblemError> {
    // Each output has been checked to name its task as origin. So a value is written if it is an output of
    // some task.
    let mut written: SecondaryMap<ValueId, bool> = SecondaryMap::new();
    for &output in parts.tasks.values().flat_map(|task| &task.outputs) {
        written[output] = true;
    }
    for (id, value) in parts.values.iter() {
        let at = || format!("{id} ({})", value.name);
        match value.origin {
            Origin::Given(device) => known_device(parts, device, at)?,
            Origin::Task(task) if task.index() >= parts.tasks.len() => {
                return Err(ProblemError::UnknownTask {
                    at: at(),
                    task,
                    count: parts.tasks.len(),
                });
            }
            Origin::Task(task) if !written[id] => {
                return Err(ProblemError::NotWritten {
                    value: id,
                    name: value.name.clone(),
                    task,
                });
            }
            Origin::Task(_) => {}
        }
        if let Keep::On(device) = value.keep {
            known_device(parts, device, at)?;
        }
    }
    Ok(())
}

fn overwritten_values(parts: &ProblemParts) -> Result<(), ProblemError> {
    let mut overwriters: BTreeMap<ValueId, TaskId> = BTreeMap::new();
    for (second, task) in parts.tasks.iter() {
        for pair in &task.overwrites {
            let Value { name, keep, .. } = &parts.values[pair.input];
            let (value, name) = (pair.input, name.clone());
            if let Some(first) = overwriters.insert(value, second) {
                return Err(ProblemError::OverwrittenTwice {
                    value,
                    name,
                    first,
                    second,
                });
            }
            if *keep != Keep::No {
                return Err(ProblemError::OverwrittenKept {
                    value,
                    name,
                    overwriter: second,
                });
            }
        }
    }
    for (reader, task) in parts.tasks.iter() {
        for &value in &task.inputs {
            if let Some(&overwriter) = overwriters.get(&value)
                && overwriter < reader
            {
                let name = parts.values[value].name.clone();
                return Err(ProblemError::ReadAfterOverwritten {
                    value,
                    name,
                    overwriter,
                    reader,
                });
            }
        }
    }
    Ok(())
}

fn groups(parts: &ProblemParts) -> Result<(), ProblemError> {
    let mut grouped = BTreeSet::new();
    for (group, tasks) in parts.together.iter().enumerate() {
        for &task in tasks {
            let why = match parts.tasks.get(task) {
                None => "doesn't exist",
                Some(_) if !grouped.insert(task) => "is in a group already",
                Some(_) => continue,
            };
            return Err(ProblemError::BadGroup { group, task, why });
        }
        let all_run_on = |device| tasks.iter().all(|&t| parts.tasks[t].mode(device).is_some());
        if !parts.devices.keys().any(all_run_on) {
            return Err(ProblemError::GroupWithoutDevice { group });
        }
    }
    Ok(())
}

fn bytes(parts: &ProblemParts) -> Result<(), ProblemError> {
    let values: u128 = parts
        .values
        .values()
        .map(|value| u128::from(value.bytes))
        .sum();
    let mut workspace: PrimaryMap<DeviceId, u64> = parts.devices.keys().map(|_| 0).collect();
    let mut resident: PrimaryMap<DeviceId, u128> = parts
        .devices
        .values()
        .map(|device| u128::from(device.resident))
        .collect();
    for mode in parts.tasks.values().flat_map(|task| &task.modes) {
        workspace[mode.device] = workspace[mode.device].max(mode.workspace);
        resident[mode.device] += u128::from(mode.resident);
    }
    for (id, device) in parts.devices.iter() {
        let all = values + resident[id] + u128::from(workspace[id]);
        if all > u128::from(MAX_BYTES) {
            return Err(ProblemError::TooManyBytes {
                device: id,
                name: device.name.clone(),
            });
        }
    }
    Ok(())
}

fn cost(number: f64, field: &'static str, at: impl Fn() -> String) -> Result<(), ProblemError> {
    if (0.0..=MAX_COST).contains(&number) {
        Ok(())
    } else {
        Err(ProblemError::BadCost {
            at: at(),
            field,
            number,
        })
    }
}

fn known_device(
    parts: &ProblemParts,
    device: DeviceId,
    at: impl Fn() -> String,
) -> Result<(), ProblemError> {
    let count = parts.devices.len();
    if device.index() < count {
        Ok(())
    } else {
        Err(ProblemError::UnknownDevice {
            at: at(),
            device,
            count,
        })
    }
}

fn known_value(
    parts: &ProblemParts,
    value: ValueId,
    at: impl Fn() -> String,
) -> Result<(), ProblemError> {
    let count = parts.values.len();
    if value.index() < count {
        Ok(())
    } else {
        Err(ProblemError::UnknownValue {
            at: at(),
            value,
            count,
        })
    }
}
