//! Update nodes, and where they go in the order of the step.
//!
//! An update overwrites its parameter, so it comes after the last reader of the old value, through
//! whatever view; and right after it, or after the gradient if that is later, so that the gradient
//! dies at once.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntityRef, SecondaryMap};
use scrimp_plan::Phase;
use std::collections::BTreeMap;

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
    pub(super) gradients: Vec<(TensorId, TensorId)>,
    pub(super) updates: Vec<(TensorId, TensorId)>,
    pub(super) ends: Ends,
    pub(super) tiled: Vec<Tiled>,
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

    /// All nodes, each parameter update after the last of the nodes it has to wait for.
    fn order(&self) -> Vec<NodeId> {
        let last_use = self.last_uses();
        let mut rest = Vec::new();
        let mut after: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for (id, node) in self.builder.nodes().iter() {
            let Op::Update(_) = node.op else {
                rest.push(id);
                continue;
            };
            let waits = node
                .inputs
                .iter()
                .filter_map(|&input| last_use[input].expand())
                .max();
            match waits {
                Some(last) => after.entry(last).or_default().push(id),
                None => rest.push(id),
            }
        }
        rest.into_iter()
            .flat_map(|id| std::iter::once(id).chain(after.remove(&id).unwrap_or_default()))
            .collect()
    }

    /// For each tensor that no view is made of, the last node that isn't an update and that writes
    /// it or reads it, through whatever view. A view's own entry is when it was made.
    fn last_uses(&self) -> SecondaryMap<TensorId, PackedOption<NodeId>> {
        let mut roots: SecondaryMap<TensorId, PackedOption<TensorId>> = SecondaryMap::new();
        let mut last: SecondaryMap<TensorId, PackedOption<NodeId>> = SecondaryMap::new();
        for (id, node) in self.builder.nodes().iter() {
            if matches!(node.op, Op::Update(_)) {
                continue;
            }
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
