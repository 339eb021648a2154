//! Copying a graph into a builder while replacing some of its nodes: the common part of making a
//! training graph and an inference graph. What a batch normalization means differs between the two.

use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;

use crate::builder::GraphBuilder;
use crate::error::GraphError;
use crate::graph::{Graph, Node, TensorId};
use crate::op::{Norm, Op};

/// A builder that holds the rewritten part of a graph.
pub(crate) struct Rewrite<'a> {
    source: &'a Graph,
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
        Ok(Rewrite {
            source,
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
        for node in self.source.nodes().values() {
            match node.op {
                Op::BatchNorm { epsilon, momentum } => {
                    self.batch_norm_training(node, epsilon, momentum)?;
                }
                _ => self.copy(node, node.op.clone(), &node.inputs)?,
            }
        }
        Ok(())
    }

    /// Copies all nodes for inference: running statistics are applied, nothing is dropped.
    pub(crate) fn for_inference(&mut self) -> Result<(), GraphError> {
        for node in self.source.nodes().values() {
            match node.op {
                Op::BatchNorm { epsilon, .. } => {
                    let &[x, scale, shift, running] = &node.inputs[..] else {
                        continue;
                    };
                    let apply = Op::NormApply {
                        norm: Norm::Batch,
                        epsilon,
                    };
                    self.copy(node, apply, &[x, running, scale, shift])?;
                }
                Op::Dropout { .. } => self.map[node.outputs[0]] = self.map[node.inputs[0]],
                _ => self.copy(node, node.op.clone(), &node.inputs)?,
            }
        }
        Ok(())
    }

    /// A node with the source node's name and outputs; `inputs` are the source's.
    fn copy(&mut self, node: &Node, op: Op, inputs: &[TensorId]) -> Result<(), GraphError> {
        let inputs: Vec<TensorId> = inputs.iter().map(|&input| self.get(input)).collect();
        self.copy_mapped(node, op, &inputs)
    }

    /// The same with inputs of the builder.
    fn copy_mapped(&mut self, node: &Node, op: Op, inputs: &[TensorId]) -> Result<(), GraphError> {
        let names = node
            .outputs
            .iter()
            .map(|&out| self.source.tensor(out).name.clone())
            .collect();
        let outputs = self.builder.add_named(&node.name, op, inputs, names)?;
        for (&old, new) in node.outputs.iter().zip(outputs) {
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
        let apply = Op::NormApply { norm, epsilon };
        self.copy_mapped(node, apply, &[x, stats, scale, shift])
    }
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
