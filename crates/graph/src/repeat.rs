//! A graph that runs another one on several batches, for pipelines: while one device works on a batch, another can
//! work on the next.

use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;

use crate::builder::GraphBuilder;
use crate::error::GraphError;
use crate::graph::{Graph, NodeId, Role, Tensor, TensorId};

/// A graph for several batches, and what became of the tensors of the graph for one.
#[derive(Clone, Debug)]
pub struct Repeated {
    /// Its nodes run batch after batch.
    pub graph: Graph,
    /// For each batch, where the tensors are that it uses.
    pub tensors: Vec<SecondaryMap<TensorId, PackedOption<TensorId>>>,
}

/// The graph for this many batches at once, at least one. Each batch has inputs and activations of its own, whose
/// names get a suffix from the second batch on. All batches share everything else. Nothing may change state, as
/// nothing does in the graph of [`crate::inference()`].
///
/// # Errors
/// The result is too large.
pub fn repeated(graph: &Graph, batches: usize) -> Result<Repeated, GraphError> {
    let mut builder = GraphBuilder::new(graph.name.clone());
    let mut current: SecondaryMap<TensorId, PackedOption<TensorId>> = SecondaryMap::new();
    let mut all = Vec::with_capacity(batches);
    for batch in 0..batches.max(1) {
        let own = |tensor: &Tensor| batch == 0 || tensor.role == Role::Input;
        for (id, tensor) in graph.given().filter(|(_, tensor)| own(tensor)) {
            current[id] = builder.copy_tensor(tensor)?.into();
        }
        for node in graph.nodes().values() {
            let inputs: Vec<TensorId> = node.inputs.iter().map(|&id| now(&current, id)).collect();
            let names = node.outputs.iter();
            let names = names.map(|&id| graph.tensor(id).name.clone()).collect();
            let made = builder.add_named(&node.name, node.op.clone(), &inputs, names)?;
            for (&id, new) in node.outputs.iter().zip(made) {
                current[id] = new.into();
            }
        }
        let outputs = graph.outputs().iter();
        outputs.for_each(|&id| builder.output(now(&current, id)));
        all.push(current.clone());
    }
    let order: Vec<NodeId> = builder.nodes().keys().collect();
    let (graph, renumbering) = builder.finish_ordered(&order)?;
    for tensor in all.iter_mut().flat_map(SecondaryMap::values_mut) {
        let kept = tensor
            .expand()
            .and_then(|id| renumbering.tensors[id].expand());
        *tensor = kept.into();
    }
    Ok(Repeated {
        graph,
        tensors: all,
    })
}

fn now(current: &SecondaryMap<TensorId, PackedOption<TensorId>>, tensor: TensorId) -> TensorId {
    current[tensor]
        .expand()
        .expect("nodes are copied in order, so what they read is there")
}
