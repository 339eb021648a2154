//! Tiles: running part of a network piece by piece, so that only a piece of each of its tensors is in memory at
//! a time. This is the segmented fused tiling of SFT (Xu et al., CC 2022, doi:10.1145/3497776.3517766), as a
//! rewrite of the graph.
//!
//! `statistics` turns normalizations into sums; `interval` and `access` say which part of its inputs an operator reads
//! for a part of its output; `part` gives the operator on that part; `segment` finds the nodes that can be run by
//! tiles, `split` where to cut them, `sft` how the paper does; `rewrite` makes the graph.

mod access;
mod interval;
mod part;
mod rewrite;
mod segment;
mod sft;
mod split;
mod statistics;

pub use access::{Access, Need, Sums, access};
pub use interval::Reach;
pub use part::{Part, Region, part};
pub(crate) use rewrite::{Rewritten, rewrite};
pub use rewrite::{Tiled, Tiling};
pub use segment::{Dim, Segment};
pub use sft::{PublishedSize, published_sizes};
pub(crate) use statistics::{Expanded, expand};

#[cfg(test)]
mod tests;

use crate::error::GraphError;
use crate::graph::Graph;

/// What to run by tiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tiles {
    /// Nothing.
    #[default]
    Off,
    /// The longest segments, with this many tiles in each dimension, or as many as it is long.
    Count(usize),
    /// Segments that are cut where that saves work, each with as few tiles as let a tile and what is whole
    /// beside it take about this many bytes.
    Within(u64),
    /// SFT's segments: only what a memory can't hold (listing 3 of the paper).
    Published {
        /// Bytes of the memory.
        capacity: u64,
        /// Tiles in each dimension, or as many as it is long.
        count: usize,
    },
}

impl Tiles {
    /// The segments of a graph and their tiles.
    ///
    /// # Errors
    /// If there are none, but tiles are asked for.
    pub fn of(self, graph: &Graph) -> Result<Vec<Tiling>, GraphError> {
        let found = match self {
            Tiles::Off => return Ok(Vec::new()),
            Tiles::Count(count) => {
                let segments = Segment::longest(graph, count).into_iter();
                segments
                    .map(|segment| segment.tiled(graph, count))
                    .collect()
            }
            Tiles::Within(bytes) => split::within(graph, bytes),
            Tiles::Published { capacity, count } => sft::published(graph, capacity, count)?,
        };
        let none = found.is_empty() && Segment::longest(graph, 1).is_empty();
        if none {
            let obstacle = Segment::obstacle(graph);
            return Err(GraphError::NothingToTile {
                graph: graph.name.clone(),
                node: obstacle.map_or_else(String::new, |node| node.name.clone()),
                op: obstacle.map_or("", |node| node.op.kind()),
            });
        }
        Ok(found)
    }
}

/// A network for inference with what can be cut run by tiles, and what became of it.
///
/// # Errors
/// If nothing can be cut, or a tile lies wholly in padding.
pub fn tiled(graph: &Graph, tiles: Tiles) -> Result<(Graph, Vec<Tiled>), GraphError> {
    let Expanded { graph, .. } = expand(graph)?;
    let Rewritten { builder, tiled, .. } = rewrite(&graph, &tiles.of(&graph)?)?;
    Ok((builder.finish()?, tiled))
}
