//! Instances with several devices: `devices`, `budget_per_device`, `costs` of each node per device,
//! and `copy_costs` of each edge per pair of devices.
//!
//! A copy moves a value, not an edge: if the edges of one value have different copy costs, the largest one
//! counts. Copying a value without outgoing edges costs nothing. Every pair of devices is linked in both
//! directions.
//!
//! In a scheduling example, as its `kind` says, each edge carries its own data, copies never queue, and a task
//! runs once.

use cranelift_entity::EntityRef;
use std::collections::BTreeMap;

use super::raw::{Raw, node_at};
use super::{FileError, json};
use crate::capacities::Capacities;
use crate::ids::{DeviceId, ValueId};
use crate::problem::{Device, Link, MAX_DEVICES, Mode, ProblemParts};

/// Whether each edge carries data of its own.
pub(super) fn edges_own_data(raw: &Raw) -> bool {
    raw.kind.starts_with("heterogeneous scheduling")
}

/// Adds the devices, and returns the capacities that the file states for them.
pub(super) fn devices(raw: &Raw, parts: &mut ProblemParts) -> Result<Capacities, FileError> {
    let names = raw.devices.as_deref().unwrap_or_default();
    json::at_most(MAX_DEVICES, names.len(), "devices")?;
    let budgets = raw.budget_per_device.as_deref();
    if let Some(budgets) = budgets {
        length(
            budgets.len(),
            names.len(),
            || "the instance".into(),
            "budget_per_device",
        )?;
    }
    let mut capacities = Capacities::unlimited();
    for (i, name) in names.iter().enumerate() {
        let device = parts.devices.push(Device::computing(name));
        if let Some(budgets) = budgets {
            let at = || format!("device {i}");
            let bytes = match &budgets[i] {
                serde_json::Value::Null => None,
                stated => Some(json::whole(Some(stated), at, "budget_per_device")?),
            };
            capacities = capacities.with_bytes(device, bytes);
        }
    }
    Ok(capacities)
}

/// One node's modes: its costs on all devices.
pub(super) fn modes(raw: &Raw, node: usize) -> Result<Vec<Mode>, FileError> {
    let count = raw.devices.as_deref().unwrap_or_default().len();
    let at = || node_at(raw, node);
    let costs = raw.nodes[node]
        .costs
        .as_deref()
        .ok_or_else(|| json::wrong(None, at(), "costs", "a list with one cost per device"))?;
    length(costs.len(), count, at, "costs")?;
    let mode = |(i, json)| {
        let seconds = json::cost(Some(json), at, "costs")?;
        Ok(Mode {
            device: DeviceId::new(i),
            seconds,
            joules: 0.0,
            workspace: 0,
            resident: 0,
        })
    };
    costs.iter().enumerate().map(mode).collect()
}

/// Adds the links between the devices.
pub(super) fn copies(raw: &Raw, parts: &mut ProblemParts) -> Result<(), FileError> {
    let Some(matrices) = raw.copy_costs.as_deref() else {
        return Ok(());
    };
    let count = parts.devices.len();
    length(
        matrices.len(),
        raw.edges.len(),
        || "the instance".into(),
        "copy_costs",
    )?;
    for (edge, matrix) in matrices.iter().enumerate() {
        let at = || format!("edge {edge}");
        length(matrix.len(), count, at, "copy_costs")?;
        for row in matrix {
            length(row.len(), count, at, "copy_costs")?;
        }
    }
    let own_data = edges_own_data(raw);
    if own_data {
        let tasks = parts.tasks.values_mut();
        tasks.for_each(|task| task.rerunnable = false);
    }
    let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
    for (from, to) in pairs.filter(|(from, to)| from != to) {
        let mut seconds: BTreeMap<ValueId, f64> =
            parts.values.keys().map(|value| (value, 0.0)).collect();
        for (edge, (&(source, _), matrix)) in raw.edges.iter().zip(matrices).enumerate() {
            let cost = json::cost(
                Some(&matrix[from][to]),
                || format!("edge {edge}"),
                "copy_costs",
            )?;
            let value = if own_data { edge } else { source as usize };
            let largest = seconds.entry(ValueId::new(value)).or_default();
            *largest = largest.max(cost);
        }
        let (from, to) = (DeviceId::new(from), DeviceId::new(to));
        // Every value has its own seconds, so the bandwidth doesn't matter.
        parts.links.push(Link {
            seconds,
            concurrent: own_data,
            ..Link::new(from, to, f64::MAX, 0.0)
        });
    }
    Ok(())
}

fn length(
    found: usize,
    expected: usize,
    at: impl Fn() -> String,
    field: &'static str,
) -> Result<(), FileError> {
    if found == expected {
        Ok(())
    } else {
        Err(FileError::Length {
            at: at(),
            field,
            found,
            expected,
        })
    }
}
