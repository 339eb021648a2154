//! Update nodes, and where they go in the order of the step.
//!
//! An update overwrites its parameter, so it comes after the last reader of the old value, through
//! whatever view; and right after it, or after the gradient if that is later, so that the gradient
//! dies at once. Likewise the gradients of a tile of the loss follow that tile.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntityRef, SecondaryMap};
use scrimp_plan::Phase;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use super::TrainingGraph;
use super::loss::Ends;
use crate::builder::{GraphBuilder, Renumbering};
use crate::error::GraphError;
use crate::graph::{Init, NodeId, Role, TensorId};
use crate::op::{Op, Optimizer};
use crate::tile::Tiled;

/// A training graph whose nodes aren't in their final order.
pub(super) struct Draft {
    /// Forward, backward, then updates.
    pub(super) builder: GraphBuilder,
    /// Number of forward nodes.
    pub(super) forward: usize,
    pub(super) early: Early,
    pub(super) gradients: Vec<(TensorId, TensorId)>,
    pub(super) updates: Vec<(TensorId, TensorId)>,
    pub(super) ends: Ends,
    pub(super) tiled: Vec<Tiled>,
}

/// Backward nodes that may come among the forward ones.
pub(super) struct Early {
    /// The forward nodes of tiles that follow each other.
    pub(super) tiles: Vec<Range<usize>>,
    /// The end of the backward nodes that may follow one of these tiles.
    pub(super) end: usize,
}

impl Draft {
    /// Without an optimizer the gradients are results.
    pub(super) fn keep_gradients(&mut self) {
        for &(_, gradient) in &self.gradients {
            self.builder.output(gradient);
        }
    }

    /// One update node per parameter, with the state it needs.
    pub(super) fn add_updates(&mut self, optimizer: Optimizer) -> Result<(), GraphError> {
        let hyper = self.builder.hyper(self.builder.dtype(self.ends.loss))?;
        let states: &[&str] = match optimizer {
            Optimizer::Sgd { momentum: 0.0, .. } => &[],
            Optimizer::Sgd { .. } => &["velocity"],
            Optimizer::Adam { .. } => &["m", "v"],
        };
        for (parameter, gradient) in self.gradients.clone() {
            let tensor = self.builder.get(parameter).clone();
            let mut old = vec![parameter];
            for state in states {
                let name = format!("{}.{state}", tensor.name);
                let role = Role::State(Init::Constant(0.0));
                old.push(
                    self.builder
                        .tensor(&name, tensor.shape.clone(), tensor.dtype, role)?,
                );
            }
            let mut inputs = vec![parameter, gradient, hyper];
            inputs.extend(&old[1..]);
            let names = old
                .iter()
                .map(|&id| format!("{}'", self.builder.get(id).name))
                .collect();
            let node = format!("update({})", tensor.name);
            let new = self
                .builder
                .add_named(&node, Op::Update(optimizer), &inputs, names)?;
            self.updates.extend(old.into_iter().zip(new));
        }
        Ok(())
    }

    /// Orders the nodes and finishes the graph.
    pub(super) fn finish(self) -> Result<TrainingGraph, GraphError> {
        let order = self.order();
        let mut phases = SecondaryMap::with_default(Phase::Forward);
        let draft_phases: Vec<Phase> = self
            .builder
            .nodes()
            .iter()
            .map(|(id, node)| self.phase(id, &node.op))
            .collect();
        let (graph, Renumbering { tensors, nodes }) = self.builder.finish_ordered(&order)?;
        for &id in &order {
            if let Some(new) = nodes[id].expand() {
                phases[new] = draft_phases[id.index()];
            }
        }
        let get =
            |id: TensorId| tensors[id].expect("pruning leaves what the loss or an update needs");
        let pair = |&(a, b): &(TensorId, TensorId)| (get(a), get(b));
        Ok(TrainingGraph {
            graph,
            phases,
            loss: get(self.ends.loss),
            predictions: self.ends.predictions.map(get),
            gradients: self.gradients.iter().map(pair).collect(),
            updates: self.updates.iter().map(pair).collect(),
            tiled: self.tiled,
        })
    }

    fn phase(&self, id: NodeId, op: &Op) -> Phase {
        match op.changes_state() {
            true => Phase::Update,
            false if id.index() < self.forward => Phase::Forward,
            false => Phase::Backward,
        }
    }

    /// All nodes: gradients of tiles of the loss after their tile, each parameter update after the last of the
    /// nodes it has to wait for.
    fn order(&self) -> Vec<NodeId> {
        let mut early = self.early();
        let moved: HashSet<NodeId> = early.values().flatten().copied().collect();
        let mut rest = Vec::new();
        for (id, node) in self.builder.nodes().iter() {
            rest.extend(early.remove(&id.index()).unwrap_or_default());
            if !moved.contains(&id) && !matches!(node.op, Op::Update(_)) {
                rest.push(id);
            }
        }
        let mut places = SecondaryMap::with_default(0);
        for (place, &id) in rest.iter().enumerate() {
            places[id] = place;
        }
        let last_use = self.last_uses(&rest);
        let mut after: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for (id, node) in self.builder.nodes().iter() {
            if let Op::Update(_) = node.op {
                let waits = node.inputs.iter();
                let waits = waits.filter_map(|&input| last_use[input].expand());
                let last = waits.max_by_key(|&node| places[node]);
                let last = last.expect("a gradient is made by a node");
                after.entry(last).or_default().push(id);
            }
        }
        rest.into_iter()
            .flat_map(|id| std::iter::once(id).chain(after.remove(&id).unwrap_or_default()))
            .collect()
    }

    /// Gradients of the tiles of the loss, by the forward node before which they come: the one after the tile. What
    /// isn't known before a later forward node stays where it is.
    fn early(&self) -> BTreeMap<usize, Vec<NodeId>> {
        let mut early: BTreeMap<usize, Vec<NodeId>> = BTreeMap::new();
        let Early { tiles, end } = &self.early;
        let (Some(first), Some(last)) = (tiles.first(), tiles.last()) else {
            return early;
        };
        // The forward node before which a tensor is there.
        let mut known = SecondaryMap::with_default(first.start);
        // A node doesn't come before those that were appended before it.
        let mut reached = first.start;
        for (id, node) in self.builder.nodes().iter().take(*end) {
            let index = id.index();
            let place = if index >= self.forward {
                let inputs = node.inputs.iter().map(|&input| known[input]);
                reached = inputs.fold(reached, usize::max);
                reached
            } else if index < first.start {
                first.start
            } else {
                let after = tiles.partition_point(|tile| tile.end <= index);
                tiles.get(after).map_or(usize::MAX, |tile| tile.end)
            };
            for &output in &node.outputs {
                known[output] = place;
            }
            if index >= self.forward && place <= last.end {
                early.entry(place).or_default().push(id);
            }
        }
        early
    }

    /// For each tensor that no view is made of, the last of these nodes that writes it or reads it, through whatever
    /// view. A view's own entry is when it was made.
    fn last_uses(&self, order: &[NodeId]) -> SecondaryMap<TensorId, PackedOption<NodeId>> {
        let mut roots: SecondaryMap<TensorId, PackedOption<TensorId>> = SecondaryMap::new();
        let mut last: SecondaryMap<TensorId, PackedOption<NodeId>> = SecondaryMap::new();
        for &id in order {
            let node = &self.builder.nodes()[id];
            for &input in &node.inputs {
                let root = roots[input].expand().unwrap_or(input);
                if let Role::Parameter(_) = self.builder.get(root).role {
                    last[root] = id.into();
                }
            }
            for &output in &node.outputs {
                last[output] = id.into();
                if node.op.is_view() {
                    roots[output] = roots[node.inputs[0]]
                        .expand()
                        .unwrap_or(node.inputs[0])
                        .into();
                }
            }
        }
        last
    }
}
