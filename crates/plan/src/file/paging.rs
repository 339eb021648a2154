//! Instances of small computers that page values to a slower memory: nodes with `runtime_s`, and a
//! `chipset` with the latency and throughput of paging.
//!
//! A node's `cost` is its energy, so it becomes the mode's joules; `runtime_s` becomes its seconds. The
//! slower memory is a device that doesn't compute. `PAGEOUT` describes the link to it, `PAGEIN` the link
//! back, and `MEMORY_POWER`, if the file has it, their joules.

use cranelift_entity::EntityRef;
use serde_json::Value as Json;

use super::raw::{Raw, node_at};
use super::{FileError, json};
use crate::ids::DeviceId;
use crate::problem::{Device, Link, Mode, ProblemParts, Units};

/// The field for the watts that paging takes.
const POWER: &str = "MEMORY_POWER";

/// Whether the file has every field that paging needs.
pub(super) fn is_there(raw: &Raw) -> bool {
    let has = |field| {
        raw.chipset
            .as_ref()
            .is_some_and(|chipset| chipset.get(field).is_some())
    };
    let chipset = [
        "PAGEIN_LATENCY",
        "PAGEIN_THROUGHPUT",
        "PAGEOUT_LATENCY",
        "PAGEOUT_THROUGHPUT",
    ]
    .into_iter()
    .all(has);
    chipset && raw.nodes.iter().all(|node| node.runtime_s.is_some())
}

/// Adds the computer and the memory to which it pages.
pub(super) fn devices(raw: &Raw, parts: &mut ProblemParts) -> Result<(), FileError> {
    parts.units = Units {
        cost: "s".into(),
        memory: parts.units.memory.clone(),
    };
    let computer = parts.devices.push(Device::computing("device"));
    let pages = parts.devices.push(Device::memory("pages"));
    let power = match raw.chipset.as_ref().and_then(|chipset| chipset.get(POWER)) {
        Some(power) => json::cost(Some(power), || "the chipset".into(), POWER)?,
        None => 0.0,
    };
    let link = |from, to, latency: &str, throughput: &str| {
        let field = |name: &str| {
            let json: Option<&Json> = raw.chipset.as_ref().and_then(|chipset| chipset.get(name));
            json::cost(json, || "the chipset".into(), name)
        };
        let (latency, bandwidth) = (field(latency)?, field(throughput)?);
        // The memory draws its power as long as the copy lasts.
        Ok::<Link, FileError>(Link {
            joules: power * latency,
            joules_per_byte: power / bandwidth,
            ..Link::new(from, to, bandwidth, latency)
        })
    };
    parts.links.push(link(
        computer,
        pages,
        "PAGEOUT_LATENCY",
        "PAGEOUT_THROUGHPUT",
    )?);
    parts.links.push(link(
        pages,
        computer,
        "PAGEIN_LATENCY",
        "PAGEIN_THROUGHPUT",
    )?);
    Ok(())
}

/// One node's mode: its time and energy.
pub(super) fn modes(raw: &Raw, node: usize) -> Result<Vec<Mode>, FileError> {
    let at = || node_at(raw, node);
    let seconds = json::cost(raw.nodes[node].runtime_s.as_ref(), at, "runtime_s")?;
    let joules = json::cost(raw.nodes[node].cost.as_ref(), at, "cost")?;
    Ok(vec![Mode {
        device: DeviceId::new(0),
        seconds,
        joules,
        workspace: 0,
        resident: 0,
    }])
}
