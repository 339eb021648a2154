//! Copying a graph into a builder while replacing some of its nodes: the common part of making a
//! training graph and an inference graph. What a batch normalization means differs between the two.
//!
//! In both, an activation that is the only reader of a normalization becomes part of it
//! ([`Op::NormApply`]): one pass over memory less, and a gradient that reads the normalization's input, which
//! its own gradients read anyway, in place of the activation's output. So nothing is lost by it in any plan: the output
//! is kept for its other readers only, or made again from the input.

use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;
use std::collections::HashSet;

use crate::builder::GraphBuilder;
use crate::error::GraphError;
use crate::graph::{Graph, Node, NodeId, TensorId};
use crate::op::{Norm, Op, Unary};

/// A builder that holds the rewritten part of a graph.
pub(crate) struct Rewrite<'a> {
    source: &'a Graph,
    /// The activations that become part of the normalization before them, by its output.
    joined: SecondaryMap<TensorId, PackedOption<NodeId>>,
    /// The same activations.
    absorbed: HashSet<NodeId>,
    pub(crate) builder: GraphBuilder,
    /// Where the source's tensors are now. A state that an update node has changed is its new
    /// version, so that the next reader sees it.
    map: SecondaryMap<TensorId, PackedOption<TensorId>>,
    /// State before and after the rewritten nodes.
    pub(crate) updates: Vec<(TensorId, TensorId)>,
}

impl<'a> Rewrite<'a> {
    /// Copies everything that isn't written by a node.
    pub(crate) fn new(source: &'a Graph) -> Result<Rewrite<'a>, GraphError> {
        let mut builder = GraphBuilder::new(source.name.clone());
        let mut map = SecondaryMap::new();
        for (id, tensor) in source.given() {
            map[id] = builder.copy_tensor(tensor)?.into();
        }
        let joined = joined(source);
        Ok(Rewrite {
            source,
            absorbed: joined.values().filter_map(|node| node.expand()).collect(),
            joined,
            builder,
            map,
            updates: Vec::new(),
        })
    }

    /// Where a tensor of the source is now.
    pub(crate) fn get(&self, tensor: TensorId) -> TensorId {
        self.map[tensor].expect("nodes are rewritten in order, so what they read is there")
    }

    /// Copies all nodes for training: batch statistics are computed, running statistics follow them.
    pub(crate) fn for_training(&mut self) -> Result<(), GraphError> {
        for (id, node) in self.source.nodes() {
            match node.op {
                _ if self.absorbed.contains(&id) => {}
                Op::BatchNorm { epsilon, momentum } => {
                    self.batch_norm_training(node, epsilon, momentum)?;
                }
                _ => self.copy(node)?,
            }
        }
        Ok(())
    }

    /// Copies all nodes for inference: running statistics are applied, nothing is dropped.
    pub(crate) fn for_inference(&mut self) -> Result<(), GraphError> {
        for (id, node) in self.source.nodes() {
            match node.op {
                _ if self.absorbed.contains(&id) => {}
                Op::BatchNorm { epsilon, .. } => {
                    let &[x, scale, shift, running] = &node.inputs[..] else {
                        continue;
                    };
                    let inputs = [x, running, scale, shift].map(|input| self.get(input));
                    self.apply_norm(node, Norm::Batch, epsilon, &inputs)?;
                }
                Op::Dropout { .. } => self.map[node.outputs[0]] = self.map[node.inputs[0]],
                _ => self.copy(node)?,
            }
        }
        Ok(())
    }

    /// A node as it is, but for an activation that joins it.
    fn copy(&mut self, node: &Node) -> Result<(), GraphError> {
        let inputs: Vec<TensorId> = node.inputs.iter().map(|&input| self.get(input)).collect();
        match node.op {
            Op::NormApply {
                norm,
                epsilon,
                activation: None,
            } => self.apply_norm(node, norm, epsilon, &inputs),
            _ => self.copy_mapped(node, node.op.clone(), &inputs, &node.outputs),
        }
    }

    /// A normalization with the activation that joins it, whose output it then writes.
    fn apply_norm(
        &mut self,
        node: &Node,
        norm: Norm,
        epsilon: f64,
        inputs: &[TensorId],
    ) -> Result<(), GraphError> {
        let source = self.source;
        let joined = self.joined[node.outputs[0]].expand();
        let activation = joined.map(|id| source.node(id));
        let op = Op::NormApply {
            norm,
            epsilon,
            activation: activation.and_then(|node| following(&node.op)),
        };
        let outputs = &activation.unwrap_or(node).outputs;
        self.copy_mapped(node, op, inputs, outputs)
    }

    /// A node with the source node's name and these of the source's tensors as outputs; `inputs` are the
    /// builder's.
    fn copy_mapped(
        &mut self,
        node: &Node,
        op: Op,
        inputs: &[TensorId],
        outputs: &[TensorId],
    ) -> Result<(), GraphError> {
        let names = outputs
            .iter()
            .map(|&out| self.source.tensor(out).name.clone())
            .collect();
        let made = self.builder.add_named(&node.name, op, inputs, names)?;
        for (&old, new) in outputs.iter().zip(made) {
            self.map[old] = new.into();
        }
        Ok(())
    }

    fn batch_norm_training(
        &mut self,
        node: &Node,
        epsilon: f64,
        momentum: f64,
    ) -> Result<(), GraphError> {
        let &[x, scale, shift, running] = &node.inputs[..] else {
            return Ok(());
        };
        let source = self.source.tensor(x);
        let count = source.elements() / source.shape[1];
        let [x, scale, shift, old] = [x, scale, shift, running].map(|tensor| self.get(tensor));
        let norm = Norm::Batch;
        let name = &node.name;
        let stats = self
            .builder
            .add1(&format!("{name}.stats"), Op::NormStats { norm }, &[x])?;
        let update = Op::RunningStats { momentum, count };
        let new = self
            .builder
            .add1(&format!("{name}.running'"), update, &[stats, old])?;
        self.map[running] = new.into();
        match self.updates.iter_mut().find(|(_, last)| *last == old) {
            Some((_, last)) => *last = new,
            None => self.updates.push((old, new)),
        }
        self.apply_norm(node, norm, epsilon, &[x, stats, scale, shift])
    }
}

/// The activation, if it is one that a normalization can apply.
fn following(op: &Op) -> Option<Unary> {
    match op {
        Op::Unary(f) if f.follows_norm() => Some(*f),
        _ => None,
    }
}

/// The activations that can become part of the normalization before them, by its output: nothing else
/// reads that, and nobody wants it.
fn joined(graph: &Graph) -> SecondaryMap<TensorId, PackedOption<NodeId>> {
    let mut reads: SecondaryMap<TensorId, usize> = SecondaryMap::new();
    let all = graph.nodes().values().flat_map(|node| &node.inputs);
    for &tensor in all.chain(graph.outputs()) {
        reads[tensor] += 1;
    }
    let mut joined = SecondaryMap::new();
    for (id, node) in graph.nodes() {
        if following(&node.op).is_none() || reads[node.inputs[0]] != 1 {
            continue;
        }
        let producer = graph.producer(node.inputs[0]).map(|by| &graph.node(by).op);
        let plain = matches!(
            producer,
            Some(
                Op::BatchNorm { .. }
                    | Op::NormApply {
                        activation: None,
                        ..
                    }
            )
        );
        if plain {
            joined[node.inputs[0]] = id.into();
        }
    }
    joined
}

/// The graph for inference: batch normalizations apply their running statistics, dropouts are gone.
///
/// # Errors
/// None for a graph that a builder made, other than running into the size limits.
pub fn inference(graph: &Graph) -> Result<Graph, GraphError> {
    let mut rewrite = Rewrite::new(graph)?;
    rewrite.for_inference()?;
    for &output in graph.outputs() {
        let output = rewrite.get(output);
        rewrite.builder.output(output);
    }
    rewrite.builder.finish()
}
