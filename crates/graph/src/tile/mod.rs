//! Tiles: running part of a network piece by piece, so that only a piece of each of its tensors is in memory at
//! a time. This is the segmented fused tiling of SFT (Xu et al., CC 2022, doi:10.1145/3497776.3517766), as a
//! rewrite of the graph.
//!
//! `interval` and `access` say which part of its inputs an operator reads for a part of its output; `part` gives the
//! operator on that part; `segment` finds the nodes that can be run by tiles; `rewrite` makes the graph.

mod access;
mod interval;
mod part;
mod rewrite;
mod segment;

pub use access::{Access, Need, Sums, access};
pub use interval::Reach;
pub use part::{Part, Region, part};
pub(crate) use rewrite::{Rewritten, rewrite};
pub use rewrite::{Tiled, Tiling};
pub use segment::{Dim, Segment};

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
}

impl Tiles {
    /// The segments of a graph and their tiles.
    ///
    /// # Errors
    /// If there are none, but tiles are asked for.
    pub fn of(self, graph: &Graph) -> Result<Vec<Tiling>, GraphError> {
        let Tiles::Count(count) = self else {
            return Ok(Vec::new());
        };
        let tiling = |segment: Segment| {
            let tiles = (0..segment.dims.len())
                .map(|dim| count.clamp(1, segment.length(graph, dim)))
                .collect();
            Tiling { segment, tiles }
        };
        let found: Vec<Tiling> = Segment::longest(graph).into_iter().map(tiling).collect();
        if found.is_empty() {
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
