//! Differentiation: from a network to the graph of one training step.
//!
//! 1. `rewrite` expands what training and inference do differently, `loss` appends the loss.
//! 2. `backward` walks the nodes in reverse and builds the gradients that parameters need, by the
//!    `rules` of each operator.
//! 3. `update` adds the optimizer's nodes and puts each where it can run first.
//! 4. `validate` checks the result once more, as a whole.

mod backward;
mod loss;
mod rules;
mod update;
mod validate;

use cranelift_entity::SecondaryMap;
use scrimp_plan::Phase;

use crate::error::GraphError;
use crate::graph::{Graph, NodeId, TensorId};
use crate::op::Optimizer;
use crate::rewrite::Rewrite;

/// What training minimizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Cross entropy of the first output, shape [N,C,..], with an input `labels`, i64[N,..]. If that
    /// output is a softmax or log-softmax over axis 1, the loss is that of its input, which is the
    /// same and needs less memory.
    CrossEntropy,
    /// Mean squared difference of the first output and an input `target` of its shape.
    MeanSquaredError,
    /// The last output, which must have one element.
    Output,
}

/// The graph of one training step: forward, backward, updates, in an order that frees memory early.
#[derive(Clone, Debug)]
pub struct TrainingGraph {
    /// Its outputs are the loss and, without an optimizer, the gradients.
    pub graph: Graph,
    /// Where each node belongs.
    pub phases: SecondaryMap<NodeId, Phase>,
    /// One element.
    pub loss: TensorId,
    /// What the loss compares with the labels or target; not kept at the end of a step. With
    /// [`Loss::Output`] the first output.
    pub predictions: TensorId,
    /// Parameters with their gradients, by parameter.
    pub gradients: Vec<(TensorId, TensorId)>,
    /// Parameters and state before the step, and the tensors that take their storage: trained
    /// parameters, optimizer state, running statistics.
    pub updates: Vec<(TensorId, TensorId)>,
}

/// Differentiates a network. Without an optimizer the gradients are outputs and nothing but running
/// statistics is updated.
///
/// # Errors
/// A loss that doesn't fit the outputs, an operator without a gradient between a parameter and the
/// loss, no parameter that the loss depends on, an optimizer with a number out of range.
pub fn train(
    graph: &Graph,
    loss: Loss,
    optimizer: Option<Optimizer>,
) -> Result<TrainingGraph, GraphError> {
    let mut rewrite = Rewrite::new(graph)?;
    rewrite.for_training()?;
    let ends = loss::append(&mut rewrite, graph, loss)?;
    let Rewrite {
        mut builder,
        updates,
        ..
    } = rewrite;
    let forward = builder.node_count();
    let gradients = backward::run(&mut builder, ends.loss)?;
    let mut draft = update::Draft {
        builder,
        forward,
        gradients,
        updates,
        ends,
    };
    match optimizer {
        Some(optimizer) => draft.add_updates(optimizer)?,
        None => draft.keep_gradients(),
    }
    let training = draft.finish()?;
    training.validate()?;
    Ok(training)
}
