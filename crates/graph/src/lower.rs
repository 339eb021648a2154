//! Lowering: a graph and its costs become a planning problem of tasks and storages.
//!
//! * A view runs no task; it and what it views are one value, a storage. Sizes are rounded up to
//!   [`ALIGN`].
//! * Tasks are in node order, which for a training graph is the given order: forward, backward, each
//!   update as soon as it can be.
//! * Parameters, state and constants are given and kept, or overwritten by an update whose output is
//!   kept. Inputs, seeds and optimizer settings are given and may be freed. The graph's outputs are
//!   kept.
//! * Elementwise operators overwrite an input where that can't hurt: where the input is produced by
//!   a task that may run again, nobody keeps it, and this task is its only reader but for some that
//!   can just as well run right before it: they read nothing else that counts and write next to
//!   nothing, as the sums over a gradient do. Then the input is of no use after the task, and to run
//!   the task again its producer would have to run again in any case. The gradient of a max pooling
//!   whose windows tile the plane overwrites the pooling's input in the same way.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};
use scrimp_plan::{
    Device, DeviceId, Keep, Mode, Origin, Overwrite, Phase, Problem, ProblemParts, Task, TaskId,
    Value, ValueId,
};
use std::collections::BTreeSet;

use crate::costs::Costs;
use crate::error::GraphError;
use crate::graph::{Graph, NodeId, Role, TensorId};
use crate::op::Op;
use crate::storage::Storages;

/// Storages begin at and occupy multiples of this many bytes.
pub const ALIGN: u64 = 64;

/// A storage that is this many times smaller than another is negligible beside it.
const NEGLIGIBLE: u64 = 64;

/// A planning problem, and the nodes and tensors that its tasks and values stand for.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// Without links and with no limits.
    pub problem: Problem,
    /// The node that each task runs.
    pub nodes: PrimaryMap<TaskId, NodeId>,
    /// The storage of each tensor.
    pub values: SecondaryMap<TensorId, PackedOption<ValueId>>,
}

/// Where each node belongs.
pub type Phases = SecondaryMap<NodeId, Phase>;

/// A device on which a graph may run.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Unique among the devices.
    pub name: &'a str,
    /// Devices of equal arithmetic promise equal bits.
    pub arithmetic: &'a str,
    /// What every node costs there.
    pub costs: &'a Costs,
}

/// [`lower_onto`] one device of this name.
///
/// # Errors
/// As for [`lower_onto`].
pub fn lower(
    graph: &Graph,
    phases: &Phases,
    costs: &Costs,
    device: &str,
) -> Result<Lowered, GraphError> {
    let target = Target {
        name: device,
        arithmetic: device,
        costs,
    };
    lower_onto(graph, phases, &[target])
}

/// The problem of running every node of the graph once, each on one of these devices. `phases` says where the
/// nodes belong; for inference it may be all forward. What is given is on the first device, and parameters and
/// state end there. With several devices, outputs may end anywhere.
///
/// # Errors
/// A graph output that shares its storage with something that an update overwrites; costs that are
/// negative or not finite; no device, or two of one name.
pub fn lower_onto(
    graph: &Graph,
    phases: &Phases,
    targets: &[Target<'_>],
) -> Result<Lowered, GraphError> {
    let lowering = Lowering::new(graph)?;
    let devices = targets.iter().map(|target| Device {
        arithmetic: target.arithmetic.into(),
        ..Device::computing(target.name)
    });
    let devices: PrimaryMap<DeviceId, Device> = devices.collect();
    let nodes: PrimaryMap<TaskId, NodeId> = graph
        .nodes()
        .iter()
        .filter(|(_, node)| !node.op.is_view())
        .map(|(id, _)| id)
        .collect();
    let mode = |id: NodeId, (device, target): (DeviceId, &Target<'_>)| {
        let cost = target.costs.nodes[id];
        Mode {
            device,
            seconds: cost.seconds,
            joules: cost.joules,
            workspace: round_up(cost.workspace),
            resident: 0,
        }
    };
    let (values, ids) = lowering.values(&nodes, targets.len());
    let mut tasks = PrimaryMap::new();
    for &id in nodes.values() {
        let node = graph.node(id);
        let mut inputs: Vec<ValueId> = Vec::new();
        for &input in &node.inputs {
            let value = lowering.value(&ids, input);
            if !inputs.contains(&value) {
                inputs.push(value);
            }
        }
        tasks.push(Task {
            name: node.name.clone(),
            phase: phases[id],
            inputs,
            outputs: node
                .outputs
                .iter()
                .map(|&out| lowering.value(&ids, out))
                .collect(),
            overwrites: lowering.overwrites(id, &ids),
            modes: devices.keys().zip(targets).map(|on| mode(id, on)).collect(),
            rerunnable: !node.op.changes_state(),
        });
    }
    let problem = Problem::new(ProblemParts {
        name: graph.name.clone(),
        devices,
        tasks,
        values,
        ..ProblemParts::default()
    })?;
    let mut by_tensor = SecondaryMap::new();
    for tensor in graph.tensors().keys() {
        by_tensor[tensor] = ids[lowering.storages.root(tensor)];
    }
    Ok(Lowered {
        problem,
        nodes,
        values: by_tensor,
    })
}

type Ids = SecondaryMap<TensorId, PackedOption<ValueId>>;

/// What lowering knows about storages before it makes values. Maps are keyed by the storage's root tensor.
struct Lowering<'a> {
    graph: &'a Graph,
    storages: Storages,
    /// Nodes that read the storage through any view, without the views themselves.
    readers: SecondaryMap<TensorId, BTreeSet<NodeId>>,
    /// Whether a graph output is in it.
    wanted: SecondaryMap<TensorId, bool>,
    /// Whether an update overwrites it.
    updated: SecondaryMap<TensorId, bool>,
}

impl<'a> Lowering<'a> {
    fn new(graph: &'a Graph) -> Result<Lowering<'a>, GraphError> {
        let storages = Storages::new(graph);
        let mut readers: SecondaryMap<TensorId, BTreeSet<NodeId>> = SecondaryMap::new();
        let mut wanted = SecondaryMap::new();
        let mut updated = SecondaryMap::new();
        for (id, node) in graph.nodes().iter().filter(|(_, node)| !node.op.is_view()) {
            for &input in &node.inputs {
                readers[storages.root(input)].insert(id);
            }
            for &(input, _) in node.op.overwrites() {
                updated[storages.root(node.inputs[input])] = true;
            }
        }
        for &output in graph.outputs() {
            let root = storages.root(output);
            if updated[root] {
                return Err(GraphError::OutputOverwritten {
                    output: graph.tensor(output).name.clone(),
                    storage: graph.tensor(root).name.clone(),
                });
            }
            wanted[root] = true;
        }
        Ok(Lowering {
            graph,
            storages,
            readers,
            wanted,
            updated,
        })
    }

    /// One value per storage that a task touches, in the order of the root tensors.
    fn values(
        &self,
        nodes: &PrimaryMap<TaskId, NodeId>,
        devices: usize,
    ) -> (PrimaryMap<ValueId, Value>, Ids) {
        let device = DeviceId::new(0);
        let mut origins: SecondaryMap<TensorId, PackedOption<TaskId>> = SecondaryMap::new();
        let mut replaces_state = BTreeSet::new();
        for (task, &id) in nodes.iter() {
            let node = self.graph.node(id);
            for &output in &node.outputs {
                origins[output] = task.into();
            }
            replaces_state.extend(
                node.op
                    .overwrites()
                    .iter()
                    .map(|&(_, out)| node.outputs[out]),
            );
        }
        let mut values: PrimaryMap<ValueId, Value> = PrimaryMap::new();
        let mut ids = Ids::new();
        for (id, tensor) in self.graph.tensors().iter() {
            if self.storages.root(id) != id {
                continue;
            }
            let persists = match tensor.role {
                Role::Parameter(_) | Role::State(_) | Role::Constant(_) => !self.updated[id],
                Role::Activation => replaces_state.contains(&id),
                Role::Input | Role::Hyper | Role::Seed => false,
            };
            let keep = match (persists, self.wanted[id]) {
                (false, false) => Keep::No,
                (false, true) if devices > 1 => Keep::Anywhere,
                _ => Keep::On(device),
            };
            ids[id] = values
                .push(Value {
                    name: tensor.name.clone(),
                    bytes: round_up(tensor.bytes()),
                    origin: origins[id]
                        .expand()
                        .map_or(Origin::Given(device), Origin::Task),
                    keep,
                })
                .into();
        }
        (values, ids)
    }

    fn value(&self, ids: &Ids, tensor: TensorId) -> ValueId {
        ids[self.storages.root(tensor)].expect("every root tensor has got a value")
    }

    /// The pairs that must share a buffer; if there are none, at most one pair that may.
    fn overwrites(&self, id: NodeId, ids: &Ids) -> Vec<Overwrite> {
        let node = self.graph.node(id);
        let pair = |&(input, output): &(usize, usize)| Overwrite {
            input: self.value(ids, node.inputs[input]),
            output: self.value(ids, node.outputs[output]),
        };
        let mandatory = node.op.overwrites();
        if !mandatory.is_empty() {
            return mandatory.iter().map(pair).collect();
        }
        let free = node
            .op
            .in_place()
            .iter()
            .find(|pair| self.may_overwrite(id, **pair));
        free.map(pair).into_iter().collect()
    }

    fn may_overwrite(&self, id: NodeId, (input, output): (usize, usize)) -> bool {
        let node = self.graph.node(id);
        let (Some(&input), Some(&output)) = (node.inputs.get(input), node.outputs.get(output))
        else {
            return false;
        };
        let root = self.storages.root(input);
        let slots = node
            .inputs
            .iter()
            .filter(|&&other| self.storages.root(other) == root);
        let rerunnable = |id: NodeId| !self.graph.node(id).op.changes_state();
        self.graph.producer(root).is_some_and(rerunnable)
            && !self.wanted[root]
            && slots.count() == 1
            && self.graph.tensor(input).elements() == self.graph.tensor(output).elements()
            && self.graph.tensor(input).dtype == self.graph.tensor(output).dtype
            && self.readers[root].iter().all(|&other| {
                other == id
                    || other < id
                        && rerunnable(other)
                        && (self.is_pooling_of(other, id) || self.goes_along(other, id, root))
            })
    }

    /// Whether a node is the max pooling whose gradient the other is. It runs before its gradient in
    /// any order, and whoever wants its output again after the gradient has to make its input again.
    fn is_pooling_of(&self, pooling: NodeId, gradient: NodeId) -> bool {
        match (&self.graph.node(pooling).op, &self.graph.node(gradient).op) {
            (Op::MaxPool { window }, Op::MaxPoolGrad { window: of }) => window == of,
            _ => false,
        }
    }

    /// Whether a reader of this storage can run right before another one at no cost in memory: what
    /// it reads, the other reads too, and what it writes is negligible, beside this storage.
    fn goes_along(&self, reader: NodeId, other: NodeId, storage: TensorId) -> bool {
        let (reader, other) = (self.graph.node(reader), self.graph.node(other));
        let bytes = |id: TensorId| self.graph.tensor(id).bytes();
        let shared = |&input: &TensorId| {
            let root = self.storages.root(input);
            other
                .inputs
                .iter()
                .any(|&input| self.storages.root(input) == root)
        };
        let extra = reader
            .inputs
            .iter()
            .filter(|input| !shared(input))
            .chain(&reader.outputs);
        extra.map(|&tensor| bytes(tensor)).sum::<u64>() * NEGLIGIBLE <= bytes(storage)
    }
}

/// Up to the next multiple of [`ALIGN`]; sizes are bounded far below overflow.
fn round_up(bytes: u64) -> u64 {
    bytes.saturating_add(ALIGN - 1) / ALIGN * ALIGN
}
