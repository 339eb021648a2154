//! The rewrite: a segment becomes, for each tile, slices of what comes in, the segment's operators on the
//! tile, and writes into what is joined of tiles. Differentiation and planning see ordinary operators: the
//! gradients of slices and writes are the overlapping halos of the backward pass, and recomputing a
//! tile there is rematerialization like any other.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntityRef, SecondaryMap};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::part::{Region, all, extents, part};
use super::segment::{Segment, access_of};
use crate::builder::GraphBuilder;
use crate::costs::flops;
use crate::error::GraphError;
use crate::graph::{Graph, Node, NodeId, TensorId};
use crate::op::{Binary, Op, Unary};

/// A segment and the number of tiles of each of its dimensions.
#[derive(Clone, Debug)]
pub struct Tiling {
    /// The nodes.
    pub segment: Segment,
    /// By dimension, at least 1.
    pub tiles: Vec<usize>,
}

/// What became of a segment.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiled {
    /// Name of the first node.
    pub first: String,
    /// Name of the last node.
    pub last: String,
    /// Tiles of each dimension.
    pub tiles: Vec<usize>,
    /// Operations that tiles do beyond those of the segment as a whole, relative to those.
    pub halo: f64,
    /// Bytes of a tile's tensors, for the largest tile: of what comes in and of what its nodes write, except where
    /// they may write over what they read.
    pub tile_bytes: u64,
}

impl Tiling {
    /// Numbers of tiles per dimension, and where each tile is.
    fn places(&self) -> impl Iterator<Item = Vec<(usize, usize)>> + '_ {
        (0..self.tiles.iter().product()).map(|number| {
            let mut rest: usize = number;
            let mut place: Vec<(usize, usize)> =
                self.tiles.iter().map(|&count| (0, count)).collect();
            for (at, count) in place.iter_mut().rev() {
                *at = rest % *count;
                rest /= *count;
            }
            place
        })
    }

    /// The nodes that are run for each tile; the others run once.
    fn nodes(&self, graph: &Graph) -> Vec<NodeId> {
        let segment = &self.segment;
        let nodes = segment.nodes.clone().map(NodeId::new);
        nodes
            .filter(|&id| segment.cuts(graph.node(id).outputs[0]) || segment.sums.contains(&id))
            .collect()
    }

    /// Operations of all tiles as if each were the one in the middle, and the bytes of that one
    /// ([`Tiled::tile_bytes`]).
    ///
    /// # Errors
    /// If that tile lies wholly in padding.
    pub fn estimate(&self, graph: &Graph) -> Result<(f64, u64), GraphError> {
        let nodes = self.nodes(graph);
        let middle: Vec<_> = self.tiles.iter().map(|&count| (count / 2, count)).collect();
        let wanted = Wanted::new(graph, &self.segment, &nodes, &middle)?;
        let count: usize = self.tiles.iter().product();
        let work = count as f64 * wanted.work(graph);
        Ok((work, wanted.bytes(graph, &self.segment)))
    }

    /// What the rewrite makes of the segment.
    ///
    /// # Errors
    /// A tile that lies wholly in padding.
    pub fn measure(&self, graph: &Graph) -> Result<Tiled, GraphError> {
        let nodes = self.nodes(graph);
        let (mut work, mut largest) = (0.0, 0);
        for place in self.places() {
            let wanted = Wanted::new(graph, &self.segment, &nodes, &place)?;
            work += wanted.work(graph);
            largest = largest.max(wanted.bytes(graph, &self.segment));
        }
        let whole: f64 = nodes.iter().map(|&id| flops(graph, graph.node(id))).sum();
        let name =
            |id: Option<&NodeId>| id.map_or_else(String::new, |&id| graph.node(id).name.clone());
        Ok(Tiled {
            first: name(nodes.first()),
            last: name(nodes.last()),
            tiles: self.tiles.clone(),
            halo: work / whole - 1.0,
            tile_bytes: largest,
        })
    }
}

/// A graph with some segments tiled, and where the source's tensors are in it, if they are whole there.
pub(crate) struct Rewritten {
    pub(crate) builder: GraphBuilder,
    pub(crate) map: SecondaryMap<TensorId, PackedOption<TensorId>>,
    pub(crate) tiled: Vec<Tiled>,
    /// The builder's nodes of each tile of the last segment, if its tiles meet only in sums that follow them.
    pub(crate) ending: Vec<Range<usize>>,
}

/// Rewrites a graph; `tilings` are of segments of it, in order and disjoint.
///
/// # Errors
/// A tile that lies wholly in padding; a graph that grows too large.
pub(crate) fn rewrite(source: &Graph, tilings: &[Tiling]) -> Result<Rewritten, GraphError> {
    let mut rewriter = Rewriter {
        source,
        to: Rewritten {
            builder: GraphBuilder::new(source.name.clone()),
            map: SecondaryMap::new(),
            tiled: Vec::new(),
            ending: Vec::new(),
        },
    };
    for (id, tensor) in source.given() {
        rewriter.to.map[id] = rewriter.to.builder.copy_tensor(tensor)?.into();
    }
    let mut next = 0;
    for tiling in tilings {
        rewriter.copy(next..tiling.segment.nodes.start)?;
        rewriter.segment(tiling)?;
        next = tiling.segment.nodes.end;
    }
    rewriter.copy(next..source.nodes().len())?;
    for &output in source.outputs() {
        let output = rewriter.get(output);
        rewriter.to.builder.output(output);
    }
    Ok(rewriter.to)
}

struct Rewriter<'a> {
    source: &'a Graph,
    to: Rewritten,
}

/// The tensors of one tile: where they are, and which part of the source's tensor they hold.
type Locals = HashMap<TensorId, (TensorId, Region)>;

impl Rewriter<'_> {
    fn get(&self, tensor: TensorId) -> TensorId {
        self.to.map[tensor].expect("nodes are rewritten in order, so what they read is there")
    }

    fn copy(&mut self, nodes: Range<usize>) -> Result<(), GraphError> {
        for index in nodes {
            let node = self.source.node(NodeId::new(index));
            let inputs: Vec<TensorId> = node.inputs.iter().map(|&input| self.get(input)).collect();
            let name = |id: &TensorId| self.source.tensor(*id).name.clone();
            let names = node.outputs.iter().map(name).collect();
            let made = self
                .to
                .builder
                .add_named(&node.name, node.op.clone(), &inputs, names)?;
            for (&old, new) in node.outputs.iter().zip(made) {
                self.to.map[old] = new.into();
            }
        }
        Ok(())
    }

    fn segment(&mut self, tiling: &Tiling) -> Result<(), GraphError> {
        let source = self.source;
        let nodes = tiling.nodes(source);
        let mut tiles = Vec::new();
        for place in tiling.places() {
            let wanted = Wanted::new(source, &tiling.segment, &nodes, &place)?;
            tiles.push((wanted, Locals::new()));
        }
        let level = |id: NodeId| tiling.segment.levels[&id];
        let all = || tiling.segment.nodes.clone().map(NodeId::new);
        let last = all().map(level).max().unwrap_or(0);
        self.to.ending.clear();
        for now in 0..=last {
            // What nothing is cut of runs once.
            for id in all().filter(|&id| level(id) == now && !nodes.contains(&id)) {
                self.copy(id.index()..id.index() + 1)?;
            }
            let mut shares: BTreeMap<NodeId, Vec<TensorId>> = BTreeMap::new();
            for (number, (wanted, locals)) in tiles.iter_mut().enumerate() {
                let start = self.to.builder.node_count();
                for &id in nodes.iter().filter(|&&id| level(id) == now) {
                    let share = self.node(&tiling.segment, id, number, wanted, locals)?;
                    if let Some(share) = share {
                        shares.entry(id).or_default().push(share);
                    }
                }
                if last == 0 && tiling.segment.joined.is_empty() {
                    self.to.ending.push(start..self.to.builder.node_count());
                }
            }
            for (id, shares) in shares {
                self.add_up(source.node(id), &shares)?;
            }
        }
        for &tensor in &tiling.segment.joined {
            let whole = self.get(tensor);
            self.to.builder.rename(whole, &source.tensor(tensor).name);
        }
        self.to.tiled.push(tiling.measure(source)?);
        Ok(())
    }

    /// A node of a tile, number `number`; of a node that adds up, the tile's share of the sum.
    fn node(
        &mut self,
        segment: &Segment,
        id: NodeId,
        number: usize,
        wanted: &Wanted,
        locals: &mut Locals,
    ) -> Result<Option<TensorId>, GraphError> {
        let source = self.source;
        let Some(plan) = wanted.nodes.get(&id) else {
            return Ok(None);
        };
        let node = source.node(id);
        let name = format!("{}@{number}", node.name);
        let mut inputs = Vec::new();
        for (&input, region) in node.inputs.iter().zip(&plan.inputs) {
            inputs.push(self.local(input, region, wanted, locals, number)?);
        }
        let made = self.to.builder.add1(&name, plan.op.clone(), &inputs)?;
        let output = node.outputs[0];
        if segment.sums.contains(&id) {
            return self.share(made, plan.weight, &name).map(Some);
        }
        locals.insert(output, (made, plan.made.clone()));
        if segment.joined.contains(&output) {
            let region = &wanted.joined[&output];
            let part = self.cut(made, &plan.made, region, &format!("{name}.part"))?;
            let shape = source.tensor(output).shape.clone();
            let op = Op::SliceGrad {
                start: region.iter().map(|interval| interval.start).collect(),
                step: vec![1; shape.len()],
                shape,
            };
            let mut inputs = vec![part];
            inputs.extend(self.to.map[output].expand());
            let joined = self.to.builder.add1(&format!("{name}.join"), op, &inputs)?;
            self.to.map[output] = joined.into();
        }
        Ok(None)
    }

    /// What a tile's part of a sum counts for.
    fn share(&mut self, part: TensorId, scale: f64, name: &str) -> Result<TensorId, GraphError> {
        if scale == 1.0 {
            return Ok(part);
        }
        let op = Op::Unary(Unary::Affine { scale, shift: 0.0 });
        self.to.builder.add1(&format!("{name}.share"), op, &[part])
    }

    /// Adds the shares of all tiles up to the output of a node.
    fn add_up(&mut self, node: &Node, shares: &[TensorId]) -> Result<(), GraphError> {
        let builder = &mut self.to.builder;
        let mut sum = shares[0];
        for (number, &share) in shares.iter().enumerate().skip(1) {
            let name = format!("{}@{number}.sum", node.name);
            sum = builder.add1(&name, Op::Binary(Binary::Add), &[sum, share])?;
        }
        let output = node.outputs[0];
        builder.rename(sum, &self.source.tensor(output).name);
        self.to.map[output] = sum.into();
        Ok(())
    }

    /// The part of a tensor that a node of a tile reads.
    fn local(
        &mut self,
        tensor: TensorId,
        region: &Region,
        wanted: &Wanted,
        locals: &mut Locals,
        number: usize,
    ) -> Result<TensorId, GraphError> {
        let name = format!("{}@{number}", self.source.tensor(tensor).name);
        let (made, has) = match locals.get(&tensor) {
            Some(local) => local.clone(),
            None => {
                let whole = all(&self.source.tensor(tensor).shape);
                let needed = &wanted.regions[&tensor];
                let made = self.cut(self.get(tensor), &whole, needed, &name)?;
                locals.insert(tensor, (made, needed.clone()));
                (made, needed.clone())
            }
        };
        self.cut(made, &has, region, &format!("{name}.part"))
    }

    /// A part of a tensor that holds `has` of the source's.
    fn cut(
        &mut self,
        tensor: TensorId,
        has: &Region,
        region: &Region,
        name: &str,
    ) -> Result<TensorId, GraphError> {
        if has == region {
            return Ok(tensor);
        }
        let pairs = || has.iter().zip(region);
        let op = Op::Slice {
            start: pairs().map(|(has, part)| part.start - has.start).collect(),
            end: pairs().map(|(has, part)| part.end - has.start).collect(),
            step: vec![1; has.len()],
        };
        self.to.builder.add1(name, op, &[tensor])
    }
}

/// What a tile is made of, found from the ends backwards: what several nodes read of a tensor is the hull of
/// what each of them reads.
struct Wanted {
    /// The part of each tensor that the tile has.
    regions: HashMap<TensorId, Region>,
    /// The part of each joined tensor that the tile writes.
    joined: HashMap<TensorId, Region>,
    nodes: BTreeMap<NodeId, NodePart>,
}

struct NodePart {
    op: Op,
    inputs: Vec<Region>,
    made: Region,
    /// Work, relative to that of the whole node.
    share: f64,
    /// What a sum over the part counts for in the sum over all.
    weight: f64,
}

impl Wanted {
    fn new(
        source: &Graph,
        segment: &Segment,
        nodes: &[NodeId],
        place: &[(usize, usize)],
    ) -> Result<Wanted, GraphError> {
        let own = |tensor: TensorId| {
            let mut region = all(&source.tensor(tensor).shape);
            for (dim, &(at, count)) in segment.dims.iter().zip(place) {
                if let Some(&axis) = dim.get(&tensor) {
                    let length = region[axis].end;
                    region[axis] = length * at / count..length * (at + 1) / count;
                }
            }
            region
        };
        let mut wanted = Wanted {
            regions: HashMap::new(),
            joined: segment
                .joined
                .iter()
                .map(|&tensor| (tensor, own(tensor)))
                .collect(),
            nodes: BTreeMap::new(),
        };
        wanted.regions.extend(wanted.joined.clone());
        for &id in nodes.iter().rev() {
            let node = source.node(id);
            let output = node.outputs[0];
            let plan = if segment.sums.contains(&id) {
                sum_part(source, node, &own)
            } else if let Some(region) = wanted.regions.get(&output) {
                let shape = |id: &TensorId| &*source.tensor(*id).shape;
                let shapes: Vec<&[usize]> = node.inputs.iter().map(shape).collect();
                let part = part(&node.op, &shapes, shape(&output), region).ok_or_else(|| {
                    GraphError::NotTileable {
                        node: node.name.clone(),
                        op: node.op.kind(),
                        reason: "a tile of its output would lie wholly in its padding; use fewer tiles",
                    }
                })?;
                let (whole, cut) = match node.op {
                    Op::ConvInputGrad { .. } => (shapes[0].to_vec(), extents(&part.inputs[0])),
                    _ => (shape(&output).to_vec(), extents(&part.made)),
                };
                NodePart {
                    share: count(&cut) / count(&whole),
                    weight: 1.0,
                    op: part.op,
                    inputs: part.inputs,
                    made: part.made,
                }
            } else {
                continue;
            };
            for (&input, region) in node.inputs.iter().zip(&plan.inputs) {
                let hull = wanted
                    .regions
                    .entry(input)
                    .or_insert_with(|| region.clone());
                for (hull, part) in hull.iter_mut().zip(region) {
                    *hull = hull.start.min(part.start)..hull.end.max(part.end);
                }
            }
            wanted.nodes.insert(id, plan);
        }
        Ok(wanted)
    }
}

impl Wanted {
    /// Operations of the tile.
    fn work(&self, source: &Graph) -> f64 {
        let nodes = self.nodes.iter();
        let work = |(&id, part): (&NodeId, &NodePart)| flops(source, source.node(id)) * part.share;
        nodes.map(work).sum()
    }

    /// What [`Tiled::tile_bytes`] counts.
    fn bytes(&self, source: &Graph, segment: &Segment) -> u64 {
        let bytes = |tensor: TensorId, region: &Region| {
            count(&extents(region)) as u64 * source.tensor(tensor).dtype.bytes()
        };
        let written = self.nodes.iter().map(|(&id, part)| {
            let node = source.node(id);
            match node.op.in_place().is_empty() && !node.op.is_view() {
                true => bytes(node.outputs[0], &part.made),
                false => 0,
            }
        });
        let made_here = |tensor: TensorId| {
            source
                .producer(tensor)
                .is_some_and(|node| self.nodes.contains_key(&node))
        };
        let read = self.regions.iter().map(|(&tensor, region)| {
            match segment.cuts(tensor) && !made_here(tensor) {
                true => bytes(tensor, region),
                false => 0,
            }
        });
        written.chain(read).sum()
    }
}

fn count(shape: &[usize]) -> f64 {
    shape.iter().map(|&length| length as f64).product()
}

/// A node that adds up over the tile's own part of its input, so that no element counts twice.
fn sum_part(source: &Graph, node: &Node, own: &dyn Fn(TensorId) -> Region) -> NodePart {
    let sums = access_of(source, node).sums;
    let first = own(node.inputs[0]);
    let mut inputs = vec![first.clone()];
    for (slot, &input) in node.inputs.iter().enumerate().skip(1) {
        let mut region = all(&source.tensor(input).shape);
        let along = sums.iter().flat_map(|sums| &sums.beside[slot - 1]);
        for (interval, along) in region.iter_mut().zip(along) {
            if let Some(along) = *along {
                *interval = first[along].clone();
            }
        }
        inputs.push(region);
    }
    let share = count(&extents(&first)) / count(&source.tensor(node.inputs[0]).shape);
    NodePart {
        op: node.op.clone(),
        inputs,
        made: all(&source.tensor(node.outputs[0]).shape),
        share,
        weight: if sums.is_some_and(|sums| sums.mean) {
            share
        } else {
            1.0
        },
    }
}
