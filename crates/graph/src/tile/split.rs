//! Where to cut segments into parts, and how many tiles each part gets, so that a tile and what is whole
//! between the parts take at most so many bytes. A short part has small halos, but what it writes is whole. SFT has one
//! part per segment, and a number of tiles that its user gives (section 4.3).

use cranelift_entity::EntityRef;
use std::collections::HashMap;
use std::ops::Range;

use super::rewrite::Tiling;
use super::segment::{Segment, has_window};
use crate::graph::{Graph, NodeId, TensorId};

/// The numbers of tiles in each dimension that are tried: steps of at most a half.
const COUNTS: [usize; 12] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96];

/// The least lengths of dimensions that are tried: samples are enough for few tiles, tokens for many.
const LENGTHS: [usize; 2] = [COUNTS[0], 64];

/// The most nodes of all tiles of a part.
const MOST_RUNS: usize = 50_000;

/// The most cuts in a row that may make it no better: often only two or three together do.
const MOST_WORSE: usize = 3;

/// The most places to cut a segment that are tried.
const MOST_PLACES: usize = 24;

/// The longest segments in parts, and their tiles: of those that take at most `bytes`, the ones with the
/// least work, else those that take the least. One cut after the other is added, the best of all places each time,
/// until so many in a row have made it no better.
pub fn within(graph: &Graph, bytes: u64) -> Vec<Tiling> {
    let ways = LENGTHS.map(|least| Segment::longest(graph, least));
    let mut best: Option<Found> = None;
    for segments in ways {
        let mut all = Found::default();
        for segment in &segments {
            all.add(cut(graph, segment, bytes));
        }
        if best.as_ref().is_none_or(|best| all.is_better_than(best)) {
            best = Some(all);
        }
    }
    let cut = |tiling: &Tiling| tiling.tiles.iter().any(|&count| count > 1);
    let tilings = best.map_or_else(Vec::new, |best| best.tilings);
    tilings.into_iter().filter(cut).collect()
}

/// One segment in parts.
fn cut(graph: &Graph, segment: &Segment, bytes: u64) -> Found {
    let mut parts = Parts {
        graph,
        images: segment.is_of_images(graph),
        bytes,
        known: HashMap::new(),
    };
    let places = places(graph, segment);
    let (mut cuts, mut best) = (Vec::new(), parts.of(&segment.nodes, &[]));
    let mut worse = 0;
    while worse < MOST_WORSE {
        let mut next: Option<(Found, Vec<usize>)> = None;
        for place in places.iter().filter(|place| !cuts.contains(*place)) {
            let mut tried = cuts.clone();
            tried.push(*place);
            tried.sort_unstable();
            let found = parts.of(&segment.nodes, &tried);
            if next
                .as_ref()
                .is_none_or(|(best, _)| found.is_better_than(best))
            {
                next = Some((found, tried));
            }
        }
        let Some((found, tried)) = next else {
            break;
        };
        cuts = tried;
        if found.is_better_than(&best) {
            (best, worse) = (found, 0);
        } else {
            worse += 1;
        }
    }
    best
}

/// Nodes that read more than they write tiles of, with the least bytes of cut tensors from nodes before to
/// nodes after: places to cut a segment.
fn places(graph: &Graph, segment: &Segment) -> Vec<usize> {
    let crossing = |place: usize| -> u64 {
        let before = segment.nodes.start..place;
        let made = before.map(|index| graph.node(NodeId::new(index)).outputs[0]);
        let read_after = |tensor: &TensorId| {
            let mut readers = graph.consumers(*tensor).iter();
            readers.any(|reader| reader.index() >= place)
        };
        made.filter(|&tensor| segment.cuts(tensor) && read_after(&tensor))
            .map(|tensor| graph.tensor(tensor).bytes())
            .sum()
    };
    let inner = segment.nodes.start + 1..segment.nodes.end;
    let windowed = inner.filter(|&index| has_window(&graph.node(NodeId::new(index)).op));
    let mut all: Vec<(u64, usize)> = windowed.map(|place| (crossing(place), place)).collect();
    all.sort_unstable();
    all.truncate(MOST_PLACES);
    all.into_iter().map(|(_, place)| place).collect()
}

/// Parts of segments with their tiles.
#[derive(Default)]
struct Found {
    tilings: Vec<Tiling>,
    /// Bytes beyond those that are allowed.
    excess: u64,
    /// Operations of all tiles beyond those without tiles.
    work: f64,
}

impl Found {
    fn is_better_than(&self, other: &Found) -> bool {
        (self.excess, self.work) < (other.excess, other.work)
    }

    fn add(&mut self, more: Found) {
        self.tilings.extend(more.tilings);
        self.excess = self.excess.max(more.excess);
        self.work += more.work;
    }
}

struct Parts<'a> {
    graph: &'a Graph,
    images: bool,
    bytes: u64,
    /// What can be made of some nodes.
    known: HashMap<Range<usize>, Option<Part>>,
}

/// Some nodes as a segment of their own.
#[derive(Clone)]
struct Part {
    segment: Segment,
    /// Bytes of what its tiles are joined to.
    joined: u64,
    /// Bytes of cut tensors that come from nodes outside.
    read: u64,
    /// Tiles in each dimension, operations of all of them beyond those of one, and bytes of one.
    choices: Vec<(Vec<usize>, f64, u64)>,
}

impl Parts<'_> {
    /// The parts between these cuts, each with the fewest tiles that fit beside what is whole: what all parts
    /// write, and the gradients of what this one reads and writes.
    fn of(&mut self, nodes: &Range<usize>, cuts: &[usize]) -> Found {
        let mut found = Found::default();
        let starts = std::iter::once(nodes.start).chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain(std::iter::once(nodes.end));
        let mut parts = Vec::new();
        for range in starts.zip(ends).map(|(start, end)| start..end) {
            match self.part(range) {
                Some(part) => parts.push(part),
                None => {
                    found.excess = u64::MAX;
                    return found;
                }
            }
        }
        let whole: u64 = parts.iter().map(|part| part.joined).sum();
        for part in parts {
            let beside = whole + part.joined + part.read;
            let fits = |(_, _, tile): &&(Vec<usize>, f64, u64)| beside + tile <= self.bytes;
            let least = || part.choices.iter().min_by_key(|(_, _, tile)| *tile);
            let Some((tiles, work, tile)) = part.choices.iter().find(fits).or_else(least) else {
                found.excess = u64::MAX;
                return found;
            };
            found.excess = found.excess.max((beside + tile).saturating_sub(self.bytes));
            found.work += work;
            found.tilings.push(Tiling {
                segment: part.segment,
                tiles: tiles.clone(),
            });
        }
        found
    }

    fn part(&mut self, nodes: Range<usize>) -> Option<Part> {
        if let Some(known) = self.known.get(&nodes) {
            return known.clone();
        }
        let part = self.make(nodes.clone());
        self.known.insert(nodes, part.clone());
        part
    }

    fn make(&self, nodes: Range<usize>) -> Option<Part> {
        let graph = self.graph;
        let segment = Segment::of(graph, nodes, self.images)?;
        let mut choices: Vec<(Vec<usize>, f64, u64)> = Vec::new();
        // The first choice has one tile.
        let mut whole = f64::INFINITY;
        for count in std::iter::once(1).chain(COUNTS) {
            let tiling = segment.clone().tiled(graph, count);
            let last = choices.last();
            let runs = tiling.tiles.iter().product::<usize>() * segment.nodes.len();
            if runs > MOST_RUNS || last.is_some_and(|(tiles, _, _)| *tiles == tiling.tiles) {
                break;
            }
            let Ok((work, bytes)) = tiling.estimate(graph) else {
                break;
            };
            whole = whole.min(work);
            choices.push((tiling.tiles, work - whole, bytes));
        }
        let made = |index: usize| graph.node(NodeId::new(index)).outputs[0];
        let nodes = segment.nodes.clone();
        let inputs = nodes
            .clone()
            .flat_map(|index| &graph.node(NodeId::new(index)).inputs);
        let mut read: Vec<TensorId> = inputs
            .copied()
            .filter(|&tensor| {
                segment.cuts(tensor) && !nodes.clone().any(|index| made(index) == tensor)
            })
            .collect();
        read.sort_unstable();
        read.dedup();
        let bytes = |tensors: &[TensorId]| -> u64 {
            tensors.iter().map(|&id| graph.tensor(id).bytes()).sum()
        };
        Some(Part {
            joined: bytes(&segment.joined),
            read: bytes(&read),
            segment,
            choices,
        })
    }
}
