//! Storages: a view and what it views share one. Lowering plans storages, and updates must wait for
//! the readers of all views of what they overwrite.

use cranelift_entity::PrimaryMap;

use crate::graph::{Graph, TensorId};

/// The tensor at the bottom of every tensor's chain of views; itself if it isn't a view.
#[derive(Clone, Debug)]
pub struct Storages {
    roots: PrimaryMap<TensorId, TensorId>,
}

impl Storages {
    /// Follows all chains of views.
    pub fn new(graph: &Graph) -> Storages {
        let mut roots: PrimaryMap<TensorId, TensorId> = graph.tensors().keys().collect();
        for node in graph.nodes().values().filter(|node| node.op.is_view()) {
            roots[node.outputs[0]] = roots[node.inputs[0]];
        }
        Storages { roots }
    }

    /// The tensor whose storage this one uses.
    pub fn root(&self, tensor: TensorId) -> TensorId {
        self.roots[tensor]
    }
}
