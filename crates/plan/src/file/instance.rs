//! Published instances: one node per task, one value per node, the order given by index.
//!
//! Each of the `nodes` has a `cost` and a `memory`; `edges` are pairs of node indices. A node's output is a
//! value that the node at the end of each outgoing edge reads; a repeated edge counts once. Nodes in
//! `outputs` are kept; other sinks live one step. Budgets of published results cover the nodes alone, so the
//! problem has no resident bytes and `fixed_memory` stands beside it.
//!
//! The file's fields decide which devices there are: with `devices` the module `several` reads them, with
//! `accelerators` the module `partitioning`, with page energies the module `paging`; otherwise there is one
//! device. In a scheduling example, each edge carries data of its own: a value that only the edge's end reads.

use cranelift_entity::EntityRef;
use serde_json::Value as Json;

use super::json::{self, Kind};
use super::raw::{InstanceStats, Raw, node_at};
use super::{FileError, MAX_EDGES, MAX_TASKS, paging, partitioning, several};
use crate::capacities::Capacities;
use crate::ids::{DeviceId, TaskId, ValueId};
use crate::problem::{
    Device, Keep, Mode, Origin, Phase, Problem, ProblemParts, Task, Units, Value,
};

/// A published graph.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The graph as a problem.
    pub problem: Problem,
    /// The capacities that the file states for its devices.
    pub capacities: Capacities,
    /// The kind of graph, in the file's words.
    pub kind: String,
    /// Memory that is in use at all times besides the nodes, in the problem's unit.
    pub fixed_memory: Option<u64>,
    /// The batch size to which the sizes belong, if the file states one.
    pub batch_size: Option<u64>,
    /// Other systems' results on this file, as the file gives them.
    pub published: Json,
    /// What the file says about the graph.
    pub stats: InstanceStats,
}

/// Reads a published instance.
///
/// # Errors
/// If the text is something else, or a field of a node or an edge is wrong; the error names the node or edge
/// and the field.
pub fn read_instance(text: &str) -> Result<Instance, FileError> {
    json::expect(text, Kind::Instance)?;
    let raw: Raw = json::parse(text)?;
    json::at_most(MAX_TASKS, raw.nodes.len(), "nodes")?;
    json::at_most(MAX_EDGES, raw.edges.len(), "edges")?;
    let mut parts = ProblemParts {
        name: raw.name.clone(),
        units: Units {
            cost: short(&raw.units.cost),
            memory: short(&raw.units.memory),
        },
        ..ProblemParts::default()
    };
    let mut capacities = Capacities::unlimited();
    if raw.devices.is_some() {
        capacities = several::devices(&raw, &mut parts)?;
    } else if partitioning::is_there(&raw) {
        capacities = partitioning::devices(&raw, &mut parts)?;
    } else if paging::is_there(&raw) {
        paging::devices(&raw, &mut parts)?;
    } else {
        parts.devices.push(Device::computing("device"));
    }
    graph(&raw, &mut parts)?;
    if raw.devices.is_some() {
        several::copies(&raw, &mut parts)?;
    } else if partitioning::is_there(&raw) {
        partitioning::rest(&raw, &mut parts)?;
    }
    let of_all = |json: &Option<Json>, field| {
        let whole = |json| json::whole(Some(json), || "the instance".into(), field);
        json.as_ref().map(whole).transpose()
    };
    let fixed_memory = of_all(&raw.fixed_memory, "fixed_memory")?;
    let batch_size = of_all(&raw.batch_size, "batch_size")?;
    let problem = Problem::new(parts)?;
    Ok(Instance {
        problem,
        capacities,
        kind: raw.kind,
        fixed_memory,
        batch_size,
        published: raw.published,
        stats: raw.stats,
    })
}

/// Makes a task and a value of each node, and a read of each edge; or of each edge a value.
fn graph(raw: &Raw, parts: &mut ProblemParts) -> Result<(), FileError> {
    for (i, node) in raw.nodes.iter().enumerate() {
        let outputs = match several::edges_own_data(raw) {
            true => Vec::new(),
            false => vec![parts.values.push(value(raw, i)?)],
        };
        parts.tasks.push(Task {
            name: node.name.clone(),
            phase: if node.is_backward == Some(true) {
                Phase::Backward
            } else {
                Phase::Forward
            },
            inputs: Vec::new(),
            outputs,
            overwrites: Vec::new(),
            modes: modes(raw, i, parts.devices.keys())?,
            rerunnable: true,
        });
    }
    for (edge, &(from, to)) in raw.edges.iter().enumerate() {
        let nodes = raw.nodes.len();
        if from.max(to) >= nodes as u64 {
            return Err(FileError::EdgeRange {
                edge,
                from,
                to,
                nodes,
            });
        }
        if from >= to {
            return Err(FileError::EdgeOrder { edge, from, to });
        }
        let (from, to) = (TaskId::new(from as usize), TaskId::new(to as usize));
        let carried = if several::edges_own_data(raw) {
            let carried = parts.values.push(value(raw, from.index())?);
            parts.tasks[from].outputs.push(carried);
            carried
        } else {
            ValueId::new(from.index())
        };
        parts.tasks[to].inputs.push(carried);
    }
    for task in parts.tasks.values_mut() {
        task.inputs.sort_unstable();
        task.inputs.dedup();
    }
    for (i, output) in raw.outputs.iter().flatten().enumerate() {
        let at = || format!("output {i}");
        let node = json::whole(Some(output), at, "outputs")?;
        if node >= raw.nodes.len() as u64 {
            return Err(json::wrong(
                Some(output),
                at(),
                "outputs",
                "the index of a node",
            ));
        }
        for &value in &parts.tasks[TaskId::new(node as usize)].outputs {
            parts.values[value].keep = Keep::Anywhere;
        }
    }
    Ok(())
}

/// A value that a node writes.
fn value(raw: &Raw, node: usize) -> Result<Value, FileError> {
    let what = &raw.nodes[node];
    let bytes = match partitioning::is_there(raw) {
        true => 0,
        false => json::whole(what.memory.as_ref(), || node_at(raw, node), "memory")?,
    };
    Ok(Value {
        name: what.name.clone(),
        bytes,
        origin: Origin::Task(TaskId::new(node)),
        keep: Keep::No,
    })
}

fn modes(
    raw: &Raw,
    node: usize,
    devices: impl Iterator<Item = DeviceId>,
) -> Result<Vec<Mode>, FileError> {
    if raw.devices.is_some() {
        return several::modes(raw, node);
    }
    if partitioning::is_there(raw) {
        return partitioning::modes(raw, node, devices);
    }
    if paging::is_there(raw) {
        return paging::modes(raw, node);
    }
    let seconds = json::cost(raw.nodes[node].cost.as_ref(), || node_at(raw, node), "cost")?;
    Ok(vec![Mode {
        device: DeviceId::new(0),
        seconds,
        joules: 0.0,
        workspace: 0,
        resident: 0,
    }])
}

/// The unit without the remarks that files append, as in `bytes (float32 layer outputs)`.
fn short(unit: &str) -> String {
    let end = unit.find([',', '(']).unwrap_or(unit.len());
    let end = [" measured", " by "]
        .iter()
        .filter_map(|word| unit.find(word))
        .fold(end, usize::min);
    match unit[..end].trim() {
        "" => "units".into(),
        "byte" | "bytes" => "B".into(),
        "second" | "seconds" => "s".into(),
        "millisecond" | "milliseconds" => "ms".into(),
        "microsecond" | "microseconds" => "µs".into(),
        "nanosecond" | "nanoseconds" => "ns".into(),
        "abstract" | "1" => "units".into(),
        other => other.into(),
    }
}
