//! What is in a graph, in numbers: for `scrimp inspect`.

use std::collections::BTreeMap;

use crate::costs::{bytes_moved, flops};
use crate::graph::{Graph, NodeId, Role, Tensor};
use crate::storage::Storages;

/// Sizes and counts of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// The graph's name.
    pub name: String,
    /// Number of nodes, views included.
    pub nodes: usize,
    /// By operator.
    pub operators: BTreeMap<&'static str, OperatorSummary>,
    /// Number of parameter tensors.
    pub parameter_tensors: usize,
    /// Numbers that are trained.
    pub parameters: u64,
    /// Bytes of parameters.
    pub parameter_bytes: u64,
    /// Bytes of running statistics and optimizer state.
    pub state_bytes: u64,
    /// Bytes of constants.
    pub constant_bytes: u64,
    /// Bytes of inputs.
    pub input_bytes: u64,
    /// Bytes of all tensors that nodes write, views not counted, as if all were kept.
    pub activation_bytes: u64,
    /// Floating-point operations of one run of all nodes.
    pub flops: f64,
    /// Inputs and outputs as text, `name: f32[2,3]`.
    pub inputs: Vec<String>,
    /// See above.
    pub outputs: Vec<String>,
}

/// All nodes of one operator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OperatorSummary {
    /// How many.
    pub count: usize,
    /// Their floating-point operations.
    pub flops: f64,
    /// Bytes they read and write.
    pub bytes_moved: f64,
    /// Bytes of their outputs; none for views.
    pub output_bytes: u64,
}

impl Graph {
    /// Counts and sizes.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary {
            name: self.name.clone(),
            nodes: self.nodes().len(),
            ..Summary::default()
        };
        for (_, tensor) in self.given() {
            summary.add_given(tensor);
        }
        for id in self.nodes().keys() {
            summary.add_node(self, id);
        }
        let storages = Storages::new(self);
        let written = self
            .tensors()
            .iter()
            .filter(|&(id, tensor)| tensor.role == Role::Activation && storages.root(id) == id);
        summary.activation_bytes = written.map(|(_, tensor)| tensor.bytes()).sum();
        summary.outputs = self
            .outputs()
            .iter()
            .map(|&id| self.tensor(id).to_string())
            .collect();
        summary
    }
}

impl Summary {
    fn add_given(&mut self, tensor: &Tensor) {
        let bytes = tensor.bytes();
        match tensor.role {
            Role::Parameter(_) => {
                self.parameter_tensors += 1;
                self.parameters += tensor.elements() as u64;
                self.parameter_bytes += bytes;
            }
            Role::State(_) => self.state_bytes += bytes,
            Role::Constant(_) => self.constant_bytes += bytes,
            Role::Input => {
                self.input_bytes += bytes;
                self.inputs.push(tensor.to_string());
            }
            Role::Hyper | Role::Seed | Role::Activation => {}
        }
    }

    fn add_node(&mut self, graph: &Graph, id: NodeId) {
        let node = graph.node(id);
        let flops = flops(graph, node);
        let entry = self.operators.entry(node.op.kind()).or_default();
        entry.count += 1;
        entry.flops += flops;
        entry.bytes_moved += bytes_moved(graph, node);
        if !node.op.is_view() {
            entry.output_bytes += node
                .outputs
                .iter()
                .map(|&out| graph.tensor(out).bytes())
                .sum::<u64>();
        }
        self.flops += flops;
    }
}
