//! SFT as published by Xu et al., CC 2022: the segments of section 4.2 and listing 3, and the sizes of tiles of section
//! 4.3 and listing 4. Only what can't be whole is run by tiles, in segments that begin and end at tensors that can.
//!
//! The listings are taken with their misprints mended. In listing 3, a node must be tiled if its output is *not* smaller
//! than the memory (line 4 has it the other way round), and the end of a segment belongs to it. In listing 4, a loop
//! without an output dimension keeps its size, scale and delta are those of the dimension, and what several nodes read
//! is the largest of what each reads.

use cranelift_entity::EntityRef;
use std::collections::HashMap;

use super::access::Need;
use super::interval::Reach;
use super::rewrite::Tiling;
use super::segment::{Dim, Segment, access_of};
use crate::error::GraphError;
use crate::graph::{Graph, NodeId, Role, TensorId};

/// The segments for a memory of so many bytes, each with this many tiles in each dimension.
///
/// # Errors
/// If a node's output is not smaller than the memory, and no segment can be made of it and what follows.
pub fn published(graph: &Graph, capacity: u64, tiles: usize) -> Result<Vec<Tiling>, GraphError> {
    let bytes = |index: usize| -> u64 {
        let outputs = graph.node(NodeId::new(index)).outputs.iter();
        outputs.map(|&output| graph.tensor(output).bytes()).sum()
    };
    let count = graph.nodes().len();
    let must = |index: usize| bytes(index) >= capacity;
    let fails = |index: usize, reason| {
        let node = graph.node(NodeId::new(index));
        GraphError::NotTileable {
            node: node.name.clone(),
            op: node.op.kind(),
            reason,
        }
    };
    let joins = post_dominators(graph);
    let (mut found, mut start) = (Vec::new(), 0);
    while start < count {
        if !must(start) {
            start += 1;
            continue;
        }
        let checkpoint = |from: usize| {
            let reason = "neither its output nor what follows it fits in memory; give more memory";
            (from..count)
                .find(|&index| !must(index))
                .ok_or_else(|| fails(start, reason))
        };
        let mut end = checkpoint(start)?;
        let mut next = start;
        while next < end {
            if joins[next] > end {
                end = checkpoint(joins[next].min(count - 1))?;
            }
            next += 1;
        }
        let of = |images| Segment::of(graph, start..end + 1, images);
        let segment = of(true).or_else(|| of(false)).ok_or_else(|| {
            let reason = "the nodes up to the next output that fits in memory share no dimension that can be cut; give more memory";
            fails(start, reason)
        })?;
        found.push(segment.tiled(graph, tiles));
        start = end + 1;
    }
    Ok(found)
}

/// Lengths of a tile of a tensor along the dimensions of its segment, as listing 4 has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedSize {
    /// What the forward pass makes: enough for the tile of the output and for the gradients.
    pub forward: Vec<usize>,
    /// Of the gradient, so that the gradients of disjoint tiles of the segment's input can be made.
    pub gradient: Vec<usize>,
}

/// The sizes of tiles of a segment's tensors by listing 4: lengths without positions, which hold for every tile. SFT
/// reserves them for all tiles. The rewrite's own tiles have positions: smaller ones at borders, and no halo for
/// gradients, which are added up where tiles overlap.
pub fn published_sizes(graph: &Graph, tiling: &Tiling) -> HashMap<TensorId, PublishedSize> {
    let mut sizes: HashMap<TensorId, PublishedSize> = HashMap::new();
    for (dim, &tiles) in tiling.segment.dims.iter().zip(&tiling.tiles) {
        let (forward, gradient) = sizes_along(graph, &tiling.segment, dim, tiles);
        for &tensor in dim.keys() {
            let size = sizes.entry(tensor).or_default();
            size.forward.push(forward[&tensor]);
            size.gradient.push(gradient[&tensor]);
        }
    }
    sizes
}

/// Forward and gradient lengths along one dimension.
fn sizes_along(
    graph: &Graph,
    segment: &Segment,
    dim: &Dim,
    tiles: usize,
) -> (HashMap<TensorId, usize>, HashMap<TensorId, usize>) {
    let full = |tensor: TensorId| graph.tensor(tensor).shape[dim[&tensor]];
    let tile = |tensor: TensorId| full(tensor).div_ceil(tiles);
    let inside = |tensor: TensorId| {
        let node = graph.producer(tensor);
        node.is_some_and(|node| segment.nodes.contains(&node.index()))
    };
    let mut gradient: HashMap<TensorId, usize> = dim
        .keys()
        .map(|&tensor| (tensor, if inside(tensor) { 0 } else { tile(tensor) }))
        .collect();
    let leaves = |tensor: TensorId| segment.joined.contains(&tensor);
    let mut forward: HashMap<TensorId, usize> = dim
        .keys()
        .map(|&tensor| (tensor, if leaves(tensor) { tile(tensor) } else { 0 }))
        .collect();
    let grow = |sizes: &mut HashMap<TensorId, usize>, tensor: TensorId, size: usize| {
        let largest = size.min(full(tensor));
        let known = sizes.entry(tensor).or_default();
        *known = largest.max(*known);
    };
    // The gradient of an input's tile reads the outputs that the tile reaches, that of a weight a tile of the output.
    let uses = |index: usize| {
        let node = graph.node(NodeId::new(index));
        let output = node.outputs[0];
        let weighs = |input: &&TensorId| matches!(graph.tensor(**input).role, Role::Parameter(_));
        let inputs = node.inputs.iter().zip(access_of(graph, node).inputs);
        let reached = inputs.filter_map(|(&input, needs)| match needs.get(*dim.get(&input)?) {
            Some(&Need::Along(_, reach)) => Some((input, reach)),
            _ => None,
        });
        let reached: Vec<(TensorId, Reach)> = match dim.contains_key(&output) {
            true => reached.collect(),
            false => Vec::new(),
        };
        (output, reached, node.inputs.iter().find(weighs).is_some())
    };
    for (output, reached, weighs) in segment.nodes.clone().map(uses) {
        for &(input, reach) in &reached {
            let size = reach.outputs(gradient[&input]);
            grow(&mut gradient, output, size);
        }
        if weighs && !reached.is_empty() {
            grow(&mut gradient, output, tile(output));
        }
    }
    for &tensor in dim.keys() {
        grow(&mut forward, tensor, gradient[&tensor]);
    }
    for (output, reached, weighs) in segment.nodes.clone().rev().map(uses) {
        for (input, reach) in reached {
            let weight = if weighs { tile(output) } else { 0 };
            let size = reach.inputs(forward[&output].max(weight));
            grow(&mut forward, input, size);
        }
    }
    (forward, gradient)
}

/// The immediate post-dominator of each node by its place in the order; the number of nodes stands for the end.
/// Nodes that lead to no output, such as updates of running statistics, don't count as readers.
/// Cooper, Harvey & Kennedy, "A Simple, Fast Dominance Algorithm", 2001, which takes one pass without cycles.
fn post_dominators(graph: &Graph) -> Vec<usize> {
    let count = graph.nodes().len();
    let mut joins: Vec<Option<usize>> = vec![None; count];
    for (id, node) in graph.nodes().iter().rev() {
        let mut wanted = node
            .outputs
            .iter()
            .map(|output| graph.outputs().contains(output));
        let end = wanted.any(|wanted| wanted).then_some(count);
        let readers = node
            .outputs
            .iter()
            .flat_map(|&output| graph.consumers(output));
        let readers = readers.map(|reader| reader.index());
        let leading = readers.filter(|&reader| joins[reader].is_some());
        let common = |mut a: usize, mut b: usize| {
            while a != b {
                let nearer = a.min(b);
                (a, b) = (a.max(b), joins[nearer].unwrap_or(count));
            }
            a
        };
        joins[id.index()] = leading.chain(end).reduce(common);
    }
    joins.into_iter().map(|join| join.unwrap_or(0)).collect()
}
