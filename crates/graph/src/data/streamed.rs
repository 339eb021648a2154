//! Inputs that are never whole in memory: what a node takes of an array in a file is read when it is needed.

use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;

use super::stream::Stream;
use crate::builder::GraphBuilder;
use crate::error::GraphError;
use crate::graph::{Graph, Node, NodeId, Role, TensorId};
use crate::op::Op;

/// The graph without those of these inputs of which its nodes only read parts. [`Op::Read`] takes the place of each slice.
///
/// # Errors
/// The graph grows too large.
pub fn streamed(graph: &Graph, streams: &[(String, Stream)]) -> Result<Graph, GraphError> {
    let mut replaced: SecondaryMap<TensorId, Option<&Stream>> = SecondaryMap::new();
    for (tensor, what) in graph.given() {
        let sliced = |&node: &NodeId| is_slice(graph.node(node));
        let readers = graph.consumers(tensor);
        let parts = readers.iter().all(sliced) && !graph.outputs().contains(&tensor);
        if what.role == Role::Input && parts {
            let mut streams = streams.iter();
            let stream = streams.find(|(name, _)| *name == what.name);
            replaced[tensor] = stream.map(|(_, stream)| stream);
        }
    }
    let mut builder = GraphBuilder::new(graph.name.clone());
    let mut map: SecondaryMap<TensorId, PackedOption<TensorId>> = SecondaryMap::new();
    for (id, tensor) in graph.given().filter(|&(id, _)| replaced[id].is_none()) {
        map[id] = builder.copy_tensor(tensor)?.into();
    }
    for node in graph.nodes().values() {
        let stream = node.inputs.first().and_then(|&id| replaced[id]);
        let op = match (&node.op, stream) {
            (Op::Slice { start, end, .. }, Some(stream)) => Op::Read {
                from: stream.clone(),
                start: start.clone(),
                shape: start
                    .iter()
                    .zip(end)
                    .map(|(start, end)| end - start)
                    .collect(),
                dtype: graph.tensor(node.outputs[0]).dtype,
            },
            (op, _) => op.clone(),
        };
        let inputs = node.inputs.iter().filter_map(|&id| map[id].expand());
        let inputs: Vec<TensorId> = inputs.collect();
        let names = node.outputs.iter();
        let names = names.map(|&id| graph.tensor(id).name.clone()).collect();
        let made = builder.add_named(&node.name, op, &inputs, names)?;
        for (&id, new) in node.outputs.iter().zip(made) {
            map[id] = new.into();
        }
    }
    let outputs = graph.outputs().iter().filter_map(|&id| map[id].expand());
    outputs.for_each(|id| builder.output(id));
    let order: Vec<NodeId> = builder.nodes().keys().collect();
    Ok(builder.finish_ordered(&order)?.0)
}

fn is_slice(node: &Node) -> bool {
    matches!(&node.op, Op::Slice { step, .. } if step.iter().all(|&step| step == 1))
}
