//! Instances with a host and `accelerators` equal devices: each node has a time on the host (`cpu`) and on an
//! accelerator, the `bytes` that it needs there for good, and the time of one `transfer` of its output between
//! host and accelerator, either way.
//!
//! Each accelerator has a link of its own in both directions, to and from the host only. The bytes are those of
//! the node's mode on an accelerator, in use there from start to end, so a value itself takes none. Where
//! `host_width` is null, the host runs any number of nodes at once. Nodes of one `colocate` class are together.
//! A node runs once.

use cranelift_entity::EntityRef;
use std::collections::BTreeMap;

use super::raw::{Raw, node_at};
use super::{FileError, json};
use crate::capacities::Capacities;
use crate::ids::{DeviceId, TaskId, ValueId};
use crate::problem::{Device, Link, MAX_DEVICES, Mode, ProblemParts};

/// Whether an instance is of this kind.
pub(super) fn is_there(raw: &Raw) -> bool {
    raw.accelerators.is_some()
}

/// Adds the devices, and returns the capacities of the accelerators.
pub(super) fn devices(raw: &Raw, parts: &mut ProblemParts) -> Result<Capacities, FileError> {
    let instance = || "the instance".to_string();
    let count = json::whole(raw.accelerators.as_ref(), instance, "accelerators")?;
    json::at_most(MAX_DEVICES, count.saturating_add(1) as usize, "devices")?;
    let capacity = match &raw.accelerator_capacity {
        None => None,
        stated => Some(json::whole(
            stated.as_ref(),
            instance,
            "accelerator_capacity",
        )?),
    };
    let concurrent = match &raw.host_width {
        None => true,
        Some(width) if width.as_u64() == Some(1) => false,
        width => {
            let expected = "1, or null for a host of unlimited width";
            return Err(json::wrong(
                width.as_ref(),
                instance(),
                "host_width",
                expected,
            ));
        }
    };
    parts.devices.push(Device {
        concurrent,
        ..Device::computing("host")
    });
    let mut capacities = Capacities::unlimited();
    for i in 0..count {
        let device = Device::computing(format!("accelerator{i}"));
        capacities = capacities.with_bytes(parts.devices.push(device), capacity);
    }
    Ok(capacities)
}

/// One node's modes: on the host, then on each accelerator.
pub(super) fn modes(
    raw: &Raw,
    node: usize,
    devices: impl Iterator<Item = DeviceId>,
) -> Result<Vec<Mode>, FileError> {
    let (at, what) = (|| node_at(raw, node), &raw.nodes[node]);
    let host = json::cost(what.cpu.as_ref(), at, "cpu")?;
    let there = json::cost(what.accelerator.as_ref(), at, "accelerator")?;
    let bytes = json::whole(what.bytes.as_ref(), at, "bytes")?;
    let mode = |device: DeviceId| {
        let (seconds, resident) = match device.index() {
            0 => (host, 0),
            _ => (there, bytes),
        };
        Mode {
            device,
            seconds,
            joules: 0.0,
            workspace: 0,
            resident,
        }
    };
    Ok(devices.map(mode).collect())
}

/// Adds the links and the groups.
pub(super) fn rest(raw: &Raw, parts: &mut ProblemParts) -> Result<(), FileError> {
    let mut seconds = BTreeMap::new();
    let mut classes: BTreeMap<u64, Vec<TaskId>> = BTreeMap::new();
    for (i, node) in raw.nodes.iter().enumerate() {
        let at = || node_at(raw, i);
        let transfer = json::cost(node.transfer.as_ref(), at, "transfer")?;
        seconds.insert(ValueId::new(i), transfer);
        if let Some(class) = &node.colocate {
            let class = json::whole(Some(class), at, "colocate")?;
            classes.entry(class).or_default().push(TaskId::new(i));
        }
        parts.tasks[TaskId::new(i)].rerunnable = false;
    }
    let groups = classes.into_values().filter(|tasks| tasks.len() > 1);
    parts.together = groups.collect();
    let host = DeviceId::new(0);
    for accelerator in parts.devices.keys().skip(1) {
        for (from, to) in [(host, accelerator), (accelerator, host)] {
            // Every value has its own seconds, so the bandwidth doesn't matter.
            parts.links.push(Link {
                seconds: seconds.clone(),
                ..Link::new(from, to, f64::MAX, 0.0)
            });
        }
    }
    Ok(())
}
