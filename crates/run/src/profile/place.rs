//! Where the profiler puts tensors: as a step that keeps everything would have them, each in the first gap
//! that is free from the node that writes it to the last one that reads it. Then inputs are as warm or as
//! cold as they are in a step. If there is too little memory for that, the tensors written longest
//! ago lose their places and, when they are read, get others, where the contents mean nothing.

use cranelift_entity::{PrimaryMap, SecondaryMap};
use scrimp_graph::{Graph, NodeId, Storages, TensorId};
use std::ops::Range;

use super::distinct::Distinct;
use crate::span::ALIGN;

/// Inputs that each node overwrites: pairs of an input's and an output's index.
pub(super) type Overwrites = SecondaryMap<NodeId, Vec<(usize, usize)>>;

pub(super) fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN as u64)
}

/// Where a node's arguments are.
pub(super) struct Place {
    /// Offsets of inputs and outputs.
    pub tensors: Vec<u64>,
    pub workspace: u64,
}

/// Where everything is.
pub(super) struct Places {
    pub nodes: PrimaryMap<NodeId, Place>,
    pub given: SecondaryMap<TensorId, u64>,
    pub end: u64,
}

impl Places {
    /// Those of a step that keeps everything if they take at most `room` bytes; otherwise within those.
    pub fn new(graph: &Graph, plan: &Distinct, room: u64) -> Places {
        let whole = Places::within(graph, plan, u64::MAX);
        let given = graph.given().map(|(_, tensor)| rounded(tensor.bytes()));
        if whole.end - given.sum::<u64>() <= room {
            return whole;
        }
        Places::within(graph, plan, room)
    }

    fn within(graph: &Graph, plan: &Distinct, room: u64) -> Places {
        let mut placement = Placement::new(graph, &plan.workspaces, &plan.pairs, room);
        let given = graph.given();
        let given = given.map(|(id, _)| (id, placement.offset(id)));
        let given: Vec<_> = given.collect();
        let mut nodes = PrimaryMap::new();
        for (id, node) in graph.nodes().iter() {
            let workspace = match node.op.is_view() {
                true => 0,
                false => placement.node(id),
            };
            let tensors = node.inputs.iter().chain(&node.outputs);
            nodes.push(Place {
                tensors: tensors.map(|&tensor| placement.offset(tensor)).collect(),
                workspace,
            });
            placement.done(id);
        }
        let mut offsets = SecondaryMap::new();
        given.into_iter().for_each(|(id, at)| offsets[id] = at);
        Places {
            nodes,
            given: offsets,
            end: placement.end(),
        }
    }
}

/// A storage in memory.
#[derive(Clone, Debug)]
struct Live {
    range: Range<u64>,
    root: TensorId,
    /// Position of the node that wrote it.
    born: usize,
}

/// The places while nodes are gone through in order.
pub(super) struct Placement<'a> {
    graph: &'a Graph,
    workspaces: &'a SecondaryMap<NodeId, u64>,
    storages: Storages,
    pairs: &'a Overwrites,
    /// Position of the last node that reads or writes a storage, by root.
    last_use: SecondaryMap<TensorId, usize>,
    /// Of roots: the given ones always, others while they are live.
    offsets: SecondaryMap<TensorId, Option<u64>>,
    /// What isn't given, by start.
    live: Vec<Live>,
    /// Where given tensors end and others may lie.
    room: Range<u64>,
    /// How far it was used.
    end: u64,
}

impl<'a> Placement<'a> {
    /// Nothing placed but what is given. Others get `room` bytes, or as much as the largest node needs.
    pub(super) fn new(
        graph: &'a Graph,
        workspaces: &'a SecondaryMap<NodeId, u64>,
        pairs: &'a Overwrites,
        room: u64,
    ) -> Self {
        let storages = Storages::new(graph);
        let mut offsets = SecondaryMap::new();
        let mut start = 0;
        for (id, tensor) in graph.given() {
            offsets[id] = Some(start);
            start += rounded(tensor.bytes());
        }
        let mut last_use = SecondaryMap::new();
        for (position, node) in graph.nodes().values().enumerate() {
            for &tensor in node.inputs.iter().chain(&node.outputs) {
                last_use[storages.root(tensor)] = position;
            }
        }
        for &output in graph.outputs() {
            last_use[storages.root(output)] = usize::MAX;
        }
        let bytes = |tensors: &[TensorId]| -> u64 {
            let each = tensors.iter();
            each.map(|&tensor| rounded(graph.tensor(tensor).bytes()))
                .sum()
        };
        let touched = graph
            .nodes()
            .iter()
            .map(|(id, node)| bytes(&node.inputs) + bytes(&node.outputs) + rounded(workspaces[id]));
        let largest = touched.max().unwrap_or(0);
        Placement {
            graph,
            workspaces,
            storages,
            pairs,
            last_use,
            offsets,
            live: Vec::new(),
            room: start..start.saturating_add(room.max(2 * largest)),
            end: start,
        }
    }

    /// End of what was used so far.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Where a tensor is; it is an argument of the node that was placed last, or given.
    pub(super) fn offset(&self, tensor: TensorId) -> u64 {
        self.offsets[self.storages.root(tensor)].unwrap_or(0)
    }

    /// Places a node's arguments and its workspace, whose offset is returned. Nodes come in order; views
    /// needn't.
    pub(super) fn node(&mut self, id: NodeId) -> u64 {
        let workspace = match self.arguments(id) {
            Some(workspace) => workspace,
            None => {
                self.gather(id);
                self.arguments(id)
                    .expect("inputs lie side by side, and the room is twice the largest node")
            }
        };
        self.end = self.end.max(workspace + rounded(self.workspaces[id]));
        workspace
    }

    /// Forgets what no node after this one reads.
    pub(super) fn done(&mut self, id: NodeId) {
        let (offsets, last_use) = (&mut self.offsets, &self.last_use);
        self.live.retain(|live| {
            let stays = last_use[live.root] > id.as_u32() as usize;
            if !stays {
                offsets[live.root] = None;
            }
            stays
        });
    }

    /// Takes all of the node's inputs out and puts them side by side at the start of the room, where
    /// whatever was there loses its place.
    fn gather(&mut self, id: NodeId) {
        let mut roots: Vec<TensorId> = Vec::new();
        for &tensor in self.graph.node(id).inputs.iter() {
            let root = self.storages.root(tensor);
            if self.is_placed_here(root) && !roots.contains(&root) {
                roots.push(root);
            }
        }
        for live in std::mem::take(&mut self.live) {
            self.offsets[live.root] = None;
        }
        let mut at = self.room.start;
        for root in roots {
            at = self.occupy(at, root, id);
        }
    }

    fn is_placed_here(&self, root: TensorId) -> bool {
        self.graph.producer(root).is_some()
    }

    /// The offset of the workspace, or `None` where the node's arguments leave no gap that is large enough.
    fn arguments(&mut self, id: NodeId) -> Option<u64> {
        let graph = self.graph;
        let node = graph.node(id);
        let mut busy: Vec<TensorId> = Vec::new();
        for &input in &node.inputs {
            let root = self.storages.root(input);
            busy.push(root);
            if self.offsets[root].is_none() {
                self.take(root, id, &busy)?;
            }
        }
        for (o, &output) in node.outputs.iter().enumerate() {
            let pair = self.pairs[id].iter().find(|pair| pair.1 == o);
            if let Some(&(input, _)) = pair {
                self.inherit(self.storages.root(node.inputs[input]), output);
            } else if self.offsets[output].is_none() {
                self.take(output, id, &busy)?;
            }
            busy.push(output);
        }
        self.gap(rounded(self.workspaces[id]), &busy)
    }

    /// An output takes the place of the input that it overwrites. A given one keeps its own.
    fn inherit(&mut self, input: TensorId, output: TensorId) {
        self.offsets[output] = self.offsets[input];
        if let Some(live) = self.live.iter_mut().find(|live| live.root == input) {
            live.root = output;
        }
    }

    fn take(&mut self, root: TensorId, id: NodeId, busy: &[TensorId]) -> Option<()> {
        let at = self.gap(rounded(self.graph.tensor(root).bytes()), busy)?;
        self.occupy(at, root, id);
        Some(())
    }

    /// Puts a storage at an offset and returns its end.
    fn occupy(&mut self, at: u64, root: TensorId, id: NodeId) -> u64 {
        let end = at + rounded(self.graph.tensor(root).bytes());
        let index = self.live.partition_point(|live| live.range.start < at);
        let live = Live {
            range: at..end,
            root,
            born: id.as_u32() as usize,
        };
        self.live.insert(index, live);
        self.offsets[root] = Some(at);
        self.end = self.end.max(end);
        end
    }

    /// The first gap of so many bytes, made where there is none.
    fn gap(&mut self, bytes: u64, busy: &[TensorId]) -> Option<u64> {
        loop {
            let mut at = self.room.start;
            for live in &self.live {
                if at + bytes <= live.range.start {
                    return Some(at);
                }
                at = at.max(live.range.end);
            }
            if bytes <= self.room.end.saturating_sub(at) {
                return Some(at);
            }
            let others = self.live.iter().enumerate();
            let others = others.filter(|(_, live)| !busy.contains(&live.root));
            let (oldest, _) = others.min_by_key(|(_, live)| live.born)?;
            let live = self.live.remove(oldest);
            self.offsets[live.root] = None;
        }
    }
}
