//! The distinct measurements of a graph: each operator on each shape is measured once, however many nodes run
//! it.

use cranelift_entity::SecondaryMap;
use scrimp_graph::{Costs, Graph, Lowered, NodeCost, NodeId, TensorId, lower};
use scrimp_plan::Phase;
use std::collections::HashMap;

use crate::compiled::Compiled;
use crate::error::RunError;

/// Inputs that each node overwrites: pairs of an input's and an output's index.
type Overwrites = SecondaryMap<NodeId, Vec<(usize, usize)>>;

#[derive(Clone, Debug)]
pub(super) struct Distinct {
    workspaces: SecondaryMap<NodeId, u64>,
    /// Describes each measurement: operator, shapes, types, formats and overwritten inputs.
    pub keys: Vec<String>,
    /// The inputs that each overwrites.
    pub overwritten: Vec<Vec<(usize, usize)>>,
    /// The measurement that each node belongs to; `None` for views.
    pub of: SecondaryMap<NodeId, Option<usize>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Times {
    /// Seconds in a step that keeps everything.
    pub seconds: f64,
    /// Seconds with everything that the operator touches in the processor's caches.
    pub warm: f64,
    /// Seconds added by each byte that moves between memory and the last-level cache.
    pub per_moved_byte: f64,
}

impl Times {
    /// Seconds if this many bytes move between memory and the last-level cache.
    pub fn when_moving(&self, bytes: f64) -> f64 {
        self.warm + self.per_moved_byte * bytes
    }
}

impl Distinct {
    pub fn new(compiled: &Compiled<'_>) -> Result<Distinct, RunError> {
        let (graph, formats) = (compiled.graph(), compiled.formats());
        let pairs = overwritten(graph)?;
        let mut workspaces = SecondaryMap::new();
        let mut indices = HashMap::new();
        let (mut keys, mut overwritten) = (Vec::new(), Vec::new());
        let mut of = SecondaryMap::new();
        for (id, node) in graph.nodes().iter().filter(|(_, node)| !node.op.is_view()) {
            workspaces[id] = compiled.workspace(id);
            let signature = |&tensor: &TensorId| {
                let what = graph.tensor(tensor);
                (&what.shape[..], what.dtype, formats.of(tensor))
            };
            let tensors = node.inputs.iter().chain(&node.outputs);
            let tensors: Vec<_> = tensors.map(signature).collect();
            let key = format!("{:?} {tensors:?} {:?}", node.op, pairs[id]);
            let index = *indices.entry(key).or_insert_with_key(|key| {
                keys.push(key.clone());
                overwritten.push(pairs[id].clone());
                keys.len() - 1
            });
            of[id] = Some(index);
        }
        Ok(Distinct {
            workspaces,
            keys,
            overwritten,
            of,
        })
    }

    pub fn costs(&self, graph: &Graph, times: &[Times]) -> Costs {
        let mut costs = Costs::default();
        for id in graph.nodes().keys() {
            if let Some(key) = self.of[id] {
                costs.nodes[id] = NodeCost {
                    seconds: times[key].seconds,
                    joules: 0.0,
                    workspace: self.workspaces[id],
                };
            }
        }
        costs
    }
}

/// The inputs that each node overwrites, as lowering will decide.
fn overwritten(graph: &Graph) -> Result<Overwrites, RunError> {
    let mut phases = SecondaryMap::with_default(Phase::Forward);
    phases.resize(graph.nodes().len());
    let lowered: Lowered =
        lower(graph, &phases, &Costs::default(), "profile").map_err(|error| {
            RunError::WrongPlan {
                reason: error.to_string(),
            }
        })?;
    let mut pairs = Overwrites::new();
    for (task, &id) in lowered.nodes.iter() {
        let node = graph.node(id);
        let find = |tensors: &[TensorId], value| {
            tensors
                .iter()
                .position(|&tensor| lowered.values[tensor].expand() == Some(value))
        };
        for pair in &lowered.problem.task(task).overwrites {
            if let (Some(i), Some(o)) = (
                find(&node.inputs, pair.input),
                find(&node.outputs, pair.output),
            ) {
                pairs[id].push((i, o));
            }
        }
    }
    Ok(pairs)
}
