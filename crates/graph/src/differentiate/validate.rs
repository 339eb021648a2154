//! A second look at a finished training graph, by other means than those that built it.

use scrimp_plan::Phase;
use std::collections::HashSet;

use super::TrainingGraph;
use crate::error::GraphError;
use crate::storage::Storages;

impl TrainingGraph {
    /// Checks the graph's own invariants; that gradients and updates have the shape of their
    /// parameters; that nothing reads a storage after its update; and that phases agree with the
    /// operators: updates overwrite, nothing in the forward part reads a gradient.
    ///
    /// # Errors
    /// The first promise that doesn't hold, with its node or tensor.
    pub fn validate(&self) -> Result<(), GraphError> {
        self.graph.validate()?;
        let wrong = |reason: String| {
            Err(GraphError::Inconsistent {
                graph: self.graph.name.clone(),
                reason,
            })
        };
        for &(old, new) in self.gradients.iter().chain(&self.updates) {
            let (old, new) = (self.graph.tensor(old), self.graph.tensor(new));
            if old.shape != new.shape || old.dtype != new.dtype {
                return wrong(format!(
                    "'{}' has shape {:?} but belongs to '{}' of shape {:?}",
                    new.name, new.shape, old.name, old.shape
                ));
            }
        }
        let storages = Storages::new(&self.graph);
        let mut overwritten = HashSet::new();
        let mut backward = HashSet::new();
        for (id, node) in self.graph.nodes().iter() {
            let phase = self.phases[id];
            if (phase == Phase::Update) != node.op.changes_state() {
                return wrong(format!(
                    "node '{}' ({}) is in phase {phase:?}",
                    node.name,
                    node.op.kind()
                ));
            }
            for &input in &node.inputs {
                let root = storages.root(input);
                if overwritten.contains(&root) {
                    return wrong(format!(
                        "node '{}' reads '{}' after its update",
                        node.name,
                        self.graph.tensor(root).name
                    ));
                }
                if phase == Phase::Forward && backward.contains(&root) {
                    return wrong(format!(
                        "forward node '{}' reads '{}', a gradient",
                        node.name,
                        self.graph.tensor(root).name
                    ));
                }
            }
            for &(input, _) in node.op.overwrites() {
                overwritten.insert(storages.root(node.inputs[input]));
            }
            if phase == Phase::Backward {
                backward.extend(node.outputs.iter().map(|&output| storages.root(output)));
            }
        }
        Ok(())
    }
}
