//! Segments: nodes that follow each other and share dimensions that can be cut, so that a tile of the last one's
//! output can be computed from tiles of everything before it (sections 4.1.2 and 4.2 of SFT).

use cranelift_entity::EntityRef;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use super::access::{Access, Need, access};
use super::rewrite::Tiling;
use crate::graph::{Graph, Node, NodeId, Role, TensorId};
use crate::op::{Norm, Op};

/// A dimension: the axes that are cut together. A tensor has at most one.
pub type Dim = BTreeMap<TensorId, usize>;

/// Nodes that can be run tile by tile.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Their places in the order of nodes.
    pub nodes: Range<usize>,
    /// What can be cut in all of them: height and width, or one dimension such as tokens.
    pub dims: Vec<Dim>,
    /// Tensors that are made inside and read outside, or wanted: they are joined of tiles.
    pub joined: Vec<TensorId>,
    /// Nodes that add up over all dimensions, such as a mean or a loss: each tile adds its part.
    pub sums: Vec<NodeId>,
    /// How many sums, one after the other, a node waits for. All tiles of a level come before the next level.
    pub levels: HashMap<NodeId, usize>,
}

/// What a node reads for a part of its output.
pub fn access_of(graph: &Graph, node: &Node) -> Access {
    let shape = |id: &TensorId| &*graph.tensor(*id).shape;
    let inputs: Vec<&[usize]> = node.inputs.iter().map(shape).collect();
    access(&node.op, &inputs, shape(&node.outputs[0]))
}

/// Whether an operator works on windows of height and width.
pub fn has_window(op: &Op) -> bool {
    matches!(
        op,
        Op::Conv { .. }
            | Op::ConvInputGrad { .. }
            | Op::MaxPool { .. }
            | Op::AvgPool { .. }
            | Op::ResizeNearest { .. }
    )
}

impl Segment {
    /// The longest segments one after the other, without those that have no tensor inside: they would save
    /// nothing. A segment of images is cut along height and width, and preferred; another along one dimension, first
    /// those along one that is long enough for this many tiles, and between them along ever shorter ones.
    pub fn longest(graph: &Graph, tiles: usize) -> Vec<Segment> {
        Segment::longest_within(graph, 0..graph.nodes().len(), tiles.max(1))
    }

    fn longest_within(graph: &Graph, nodes: Range<usize>, least: usize) -> Vec<Segment> {
        let long = Segment::as_long(graph, nodes.clone(), least);
        if least == 1 {
            return long;
        }
        let mut found = Vec::new();
        let mut start = nodes.start;
        for segment in long {
            let between = start..segment.nodes.start;
            found.extend(Segment::longest_within(graph, between, least / 2));
            start = segment.nodes.end;
            found.push(segment);
        }
        found.extend(Segment::longest_within(graph, start..nodes.end, least / 2));
        found
    }

    /// The longest segments within some nodes that are of images, or along a dimension of at least this length.
    fn as_long(graph: &Graph, nodes: Range<usize>, least: usize) -> Vec<Segment> {
        let mut found = Vec::new();
        let mut start = nodes.start;
        while start < nodes.end {
            // A view reads all of its input anyway, and its shape may have dimensions that its input's has not.
            if graph.node(NodeId::new(start)).op.is_view() {
                start += 1;
                continue;
            }
            let runs = Segment::starting(graph, start..nodes.end).into_iter().rev();
            let runs = runs.map(|segment| segment.trimmed(graph));
            let useful = runs.filter(|segment| segment.inside(graph).next().is_some());
            let known = useful.map(|segment| {
                let dims = match segment.is_of_images(graph) {
                    true => segment.dims.len(),
                    false => 0,
                };
                (dims, segment)
            });
            let long =
                known.filter(|(dims, segment)| *dims > 0 || segment.length(graph, 0) >= least);
            match long.max_by_key(|(dims, segment)| (*dims, segment.nodes.len())) {
                Some((_, segment)) => {
                    start = segment.nodes.end;
                    found.push(segment);
                }
                None => start += 1,
            }
        }
        found
    }

    /// The node after the first nodes that share a dimension, else the first node: why there is no segment, if
    /// there is none.
    pub fn obstacle(graph: &Graph) -> Option<&Node> {
        let count = graph.nodes().len();
        let runs = (0..count).map(|start| Segment::starting(graph, start..count));
        let ends = runs.filter_map(|runs| runs.iter().map(|segment| segment.nodes.end).max());
        ends.filter(|&end| end < graph.nodes().len())
            .map(|end| graph.node(NodeId::new(end)))
            .next()
            .or_else(|| graph.nodes().values().next())
    }

    /// The segments from the first of these nodes on as far as each of them goes: along height and width, then along
    /// each dimension, those of the longest first.
    fn starting(graph: &Graph, nodes: Range<usize>) -> Vec<Segment> {
        let draft = Draft::new(graph, nodes.start..nodes.start + 1);
        let alone = draft.candidates(false).into_iter().map(|root| vec![root]);
        let ways = std::iter::once(draft.candidates(true)).chain(alone);
        ways.filter(|roots| !roots.is_empty())
            .filter_map(|roots| draft.with(&roots))
            .map(|segment| segment.extended(graph, nodes.end))
            .collect()
    }

    /// With the nodes that follow, as long as they share its dimensions, up to this one.
    fn extended(mut self, graph: &Graph, end: usize) -> Segment {
        let mut step = 1;
        while step > 0 {
            let longer = self.longer(graph, step);
            match longer.filter(|longer| longer.nodes.end <= end) {
                Some(longer) => {
                    self = longer;
                    step *= 2;
                }
                None => step /= 2,
            }
        }
        self
    }

    /// With so many nodes more, if they share its dimensions.
    fn longer(&self, graph: &Graph, more: usize) -> Option<Segment> {
        let end = self.nodes.end + more;
        if end > graph.nodes().len() {
            return None;
        }
        let draft = Draft::new(graph, self.nodes.start..end);
        let root = |dim: &Dim| {
            let root = draft.root(dim.iter().map(|(&tensor, &axis)| (tensor, axis)).next()?);
            (!draft.blocked.contains(&root)).then_some(root)
        };
        let roots: Option<Vec<_>> = self.dims.iter().map(root).collect();
        draft.with(&roots?)
    }

    /// These nodes along height and width, or along the longest dimension.
    pub fn of(graph: &Graph, nodes: Range<usize>, images: bool) -> Option<Segment> {
        let draft = Draft::new(graph, nodes);
        let mut roots = draft.candidates(images);
        if !images {
            roots.truncate(1);
        }
        let segment = draft.with(&roots).filter(|_| !roots.is_empty())?;
        Some(segment.trimmed(graph))
    }

    /// With this many tiles in each dimension, or as many as it is long.
    pub fn tiled(self, graph: &Graph, count: usize) -> Tiling {
        let dims = 0..self.dims.len();
        let tiles = dims.map(|dim| count.clamp(1, self.length(graph, dim)));
        Tiling {
            tiles: tiles.collect(),
            segment: self,
        }
    }

    /// Whether it has a convolution, pooling or resizing that is cut along height or width.
    pub fn is_of_images(&self, graph: &Graph) -> bool {
        self.nodes.clone().any(|index| {
            let node = graph.node(NodeId::new(index));
            let axis = |dim: &Dim| dim.get(&node.outputs[0]).copied();
            has_window(&node.op) && self.dims.iter().filter_map(axis).any(|axis| axis >= 2)
        })
    }

    /// The tensors of which only a tile exists at a time, without views and what is written over at once.
    pub fn inside<'a>(&'a self, graph: &'a Graph) -> impl Iterator<Item = TensorId> + 'a {
        let lasts = |tensor: &TensorId| {
            let readers = graph.consumers(*tensor).iter();
            readers.clone().count() > 1
                || readers
                    .clone()
                    .any(|&id| graph.node(id).op.in_place().is_empty())
        };
        let nodes = self
            .nodes
            .clone()
            .map(|index| graph.node(NodeId::new(index)));
        nodes
            .filter(|node| !node.op.is_view())
            .map(|node| node.outputs[0])
            .filter(|tensor| self.cuts(*tensor) && !self.joined.contains(tensor))
            .filter(lasts)
    }

    /// Whether a tensor of the segment is cut.
    pub fn cuts(&self, tensor: TensorId) -> bool {
        self.dims.iter().any(|dim| dim.contains_key(&tensor))
    }

    /// The least length of a dimension among the tensors that it cuts: with more tiles some would share an element.
    pub fn length(&self, graph: &Graph, dim: usize) -> usize {
        let cut = self.dims[dim].iter();
        cut.map(|(&tensor, &axis)| graph.tensor(tensor).shape[axis])
            .min()
            .unwrap_or(1)
    }

    /// Without the nodes at either end that have nothing to cut.
    fn trimmed(mut self, graph: &Graph) -> Segment {
        let tiled = |index: usize| {
            let id = NodeId::new(index);
            self.sums.contains(&id) || self.cuts(graph.node(id).outputs[0])
        };
        let start = self.nodes.clone().find(|&index| tiled(index));
        let end = self.nodes.clone().rfind(|&index| tiled(index));
        if let (Some(start), Some(end)) = (start, end) {
            self.nodes = start..end + 1;
            self.joined.retain(|tensor| {
                graph
                    .producer(*tensor)
                    .is_some_and(|node| self.nodes.contains(&node.index()))
            });
        }
        self
    }
}

/// The axes of the tensors of some nodes, as classes of those that are cut together.
struct Draft<'a> {
    graph: &'a Graph,
    nodes: Range<usize>,
    accesses: Vec<Access>,
    inside: HashSet<TensorId>,
    /// Union-find over axes; a class is known by its root, to which every axis leads at once.
    classes: HashMap<(TensorId, usize), (TensorId, usize)>,
    /// Roots of the classes that can't be cut.
    blocked: HashSet<(TensorId, usize)>,
    /// Tensors that are made inside and read outside, or wanted.
    leaving: Vec<TensorId>,
}

impl<'a> Draft<'a> {
    fn new(graph: &'a Graph, nodes: Range<usize>) -> Draft<'a> {
        let all: Vec<&Node> = nodes
            .clone()
            .map(|index| graph.node(NodeId::new(index)))
            .collect();
        let outputs = || all.iter().flat_map(|node| &node.outputs).copied();
        let read_outside = |tensor: &TensorId| {
            graph.outputs().contains(tensor)
                || graph
                    .consumers(*tensor)
                    .iter()
                    .any(|node| !nodes.contains(&node.index()))
        };
        let mut draft = Draft {
            graph,
            accesses: all.iter().map(|node| access_of(graph, node)).collect(),
            inside: outputs().collect(),
            classes: HashMap::new(),
            blocked: HashSet::new(),
            leaving: outputs().filter(read_outside).collect(),
            nodes,
        };
        draft.join();
        draft.block();
        draft
    }

    fn each(&self) -> impl Iterator<Item = (NodeId, &'a Node, &Access)> {
        let graph = self.graph;
        let ids = self.nodes.clone().map(NodeId::new);
        ids.zip(&self.accesses)
            .map(move |(id, access)| (id, graph.node(id), access))
    }

    /// Whether the axes of a tensor take part: weights don't, they are read as they are.
    fn flows(&self, tensor: TensorId) -> bool {
        matches!(
            self.graph.tensor(tensor).role,
            Role::Activation | Role::Input
        )
    }

    fn root(&self, mut axis: (TensorId, usize)) -> (TensorId, usize) {
        while let Some(&above) = self.classes.get(&axis) {
            axis = above;
        }
        axis
    }

    /// The same, after which the axes on the way lead to the root at once.
    fn shortened(&mut self, axis: (TensorId, usize)) -> (TensorId, usize) {
        let root = self.root(axis);
        let mut next = axis;
        while next != root {
            next = self.classes.insert(next, root).unwrap_or(root);
        }
        root
    }

    fn join(&mut self) {
        let mut pairs = Vec::new();
        for (_, node, access) in self.each() {
            for (&input, needs) in node.inputs.iter().zip(&access.inputs) {
                for (axis, need) in needs.iter().enumerate() {
                    if let Need::Along(to, _) = *need
                        && self.flows(input)
                    {
                        pairs.push(((input, axis), (node.outputs[0], to)));
                    }
                }
            }
            let beside = access
                .sums
                .iter()
                .flat_map(|sums| &sums.beside)
                .zip(&node.inputs[node.inputs.len().min(1)..]);
            for (axes, &input) in beside {
                for (axis, along) in axes.iter().enumerate() {
                    if let Some(along) = *along {
                        pairs.push(((input, axis), (node.inputs[0], along)));
                    }
                }
            }
        }
        for (a, b) in pairs {
            let (a, b) = (self.shortened(a), self.shortened(b));
            if a != b {
                self.classes.insert(a, b);
            }
        }
        let axes: Vec<_> = self.classes.keys().copied().collect();
        for axis in axes {
            self.shortened(axis);
        }
    }

    fn block(&mut self) {
        let graph = self.graph;
        let mut blocked = Vec::new();
        let mut tensors: HashSet<TensorId> = self.inside.clone();
        for (_, node, access) in self.each() {
            for (axis, &tileable) in access.tileable.iter().enumerate() {
                if !tileable {
                    blocked.push((node.outputs[0], axis));
                }
            }
            // A gradient goes through statistics, which must be those of the tile, or given.
            if let Op::NormApply { norm, .. } = node.op {
                let allowed = match norm {
                    Norm::Batch => graph.producer(node.inputs[1]).is_none(),
                    _ => self.inside.contains(&node.inputs[1]),
                };
                let axes = 0..access.tileable.len();
                blocked.extend(
                    axes.filter(|_| !allowed)
                        .map(|axis| (node.outputs[0], axis)),
                );
            }
            for (slot, (&input, needs)) in node.inputs.iter().zip(&access.inputs).enumerate() {
                tensors.extend(self.flows(input).then_some(input));
                for (axis, need) in needs.iter().enumerate() {
                    let added_up = access.sums.as_ref().is_some_and(|sums| match slot {
                        0 => sums.over.contains(&axis),
                        _ => sums.beside[slot - 1][axis].is_some(),
                    });
                    if *need == Need::Whole && !added_up && self.inside.contains(&input) {
                        blocked.push((input, axis));
                    }
                }
            }
        }
        for tensor in tensors {
            let mut seen = HashSet::new();
            for axis in 0..graph.tensor(tensor).shape.len() {
                if graph.tensor(tensor).shape[axis] > 1 && !seen.insert(self.root((tensor, axis))) {
                    blocked.push((tensor, axis));
                }
            }
        }
        self.blocked = blocked.into_iter().map(|axis| self.root(axis)).collect();
    }

    /// Dimensions of what leaves or is added up: height and width, or all, the longest first.
    fn candidates(&self, images: bool) -> Vec<(TensorId, usize)> {
        let ends = self.leaving.iter().copied().chain(
            self.each()
                .filter(|(_, _, access)| access.sums.is_some())
                .map(|(_, node, _)| node.inputs[0]),
        );
        let mut found: Vec<((TensorId, usize), usize)> = Vec::new();
        for tensor in ends {
            let shape = &self.graph.tensor(tensor).shape;
            for (axis, &length) in shape.iter().enumerate() {
                let root = self.root((tensor, axis));
                let wanted = !images || shape.len() == 4 && axis >= 2;
                let new = found.iter().all(|(other, _)| *other != root);
                if length > 1 && wanted && new && !self.blocked.contains(&root) {
                    found.push((root, length));
                }
            }
        }
        if !images {
            found.sort_by_key(|&(_, length)| std::cmp::Reverse(length));
        }
        found.into_iter().map(|(root, _)| root).collect()
    }

    /// The segment with these dimensions, if all that leaves it has all of them or none, and no tile needs
    /// what is known only after all tiles.
    fn with(&self, roots: &[(TensorId, usize)]) -> Option<Segment> {
        let mut dims = vec![Dim::new(); roots.len()];
        let tensors = self
            .each()
            .flat_map(|(_, node, _)| node.inputs.iter().chain(&node.outputs));
        for &tensor in tensors {
            for axis in 0..self.graph.tensor(tensor).shape.len() {
                let root = self.root((tensor, axis));
                if let Some(dim) = roots.iter().position(|other| *other == root) {
                    dims[dim].insert(tensor, axis);
                }
            }
        }
        let cut = |tensor: TensorId| dims.iter().filter(|dim| dim.contains_key(&tensor)).count();
        let mut sums = Vec::new();
        let mut levels = HashMap::new();
        // The level at which a tensor is complete.
        let mut complete: HashMap<TensorId, usize> = HashMap::new();
        for (id, node, access) in self.each() {
            let output = node.outputs[0];
            let over = |axis: &usize| {
                let sums = access.sums.as_ref();
                sums.is_some_and(|sums| sums.over.contains(axis))
            };
            let first = node.inputs.first();
            let summed = first.filter(|input| self.inside.contains(input));
            let summed = summed.map_or(0, |input| {
                let axes = dims.iter().filter_map(|dim| dim.get(input));
                axes.filter(|axis| over(axis)).count()
            });
            let waits = node.inputs.iter().filter_map(|input| complete.get(input));
            let level = waits.copied().max().unwrap_or(0);
            levels.insert(id, level);
            let done = match summed {
                0 => level,
                _ if summed == dims.len() && cut(output) == 0 => {
                    sums.push(id);
                    level + 1
                }
                _ => return None,
            };
            complete.extend(node.outputs.iter().map(|&output| (output, done)));
        }
        let whole = self
            .leaving
            .iter()
            .all(|&tensor| [0, dims.len()].contains(&cut(tensor)));
        let joined: Vec<TensorId> = self
            .leaving
            .iter()
            .copied()
            .filter(|&tensor| cut(tensor) > 0)
            .collect();
        (whole && !(joined.is_empty() && sums.is_empty())).then_some(Segment {
            nodes: self.nodes.clone(),
            dims,
            joined,
            sums,
            levels,
        })
    }
}
