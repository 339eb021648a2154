//! The segments of SFT as published: section 4.2 and listing 3 of Xu et al., CC 2022. Only what can't be whole is
//! run by tiles, in segments that begin and end at tensors that can.
//!
//! The listing is taken with its misprints mended: a node must be tiled if its output is *not* smaller than the
//! memory (line 4 has it the other way round), and the end of a segment belongs to it.

use cranelift_entity::EntityRef;

use super::rewrite::Tiling;
use super::segment::Segment;
use crate::error::GraphError;
use crate::graph::{Graph, NodeId};

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
