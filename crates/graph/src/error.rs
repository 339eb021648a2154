//! What can be wrong with a graph. Every error says which node or tensor, and what to do.

use crate::dtype::DType;
use crate::op::Op;
use crate::shape::ShapeError;
use scrimp_plan::ProblemError;
use thiserror::Error;

/// What is wrong with a graph.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum GraphError {
    /// An operator doesn't fit its inputs.
    #[error("node '{node}' ({op}): {source}")]
    Node {
        /// Its name.
        node: String,
        /// Its operator, see [`crate::Op::kind`].
        op: &'static str,
        /// Why.
        source: Box<ShapeError>,
    },
    /// A tensor that isn't written by a node can't exist.
    #[error("tensor '{tensor}': {source}")]
    Tensor {
        /// Its name.
        tensor: String,
        /// Why.
        source: Box<ShapeError>,
    },
    /// The first contents don't fit the tensor.
    #[error("tensor '{tensor}' of shape {shape:?} can't be initialized: {reason}")]
    Init {
        /// Its name.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Why, and what to do.
        reason: String,
    },
    /// A tensor id of another graph.
    #[error(
        "node '{node}' reads {tensor}, which isn't in this graph; use ids that its own builder returned"
    )]
    UnknownTensor {
        /// The reader, or "outputs".
        node: String,
        /// The id.
        tensor: String,
    },
    /// A graph that computes nothing.
    #[error("graph '{graph}' has no outputs; mark at least one tensor as output")]
    NoOutputs {
        /// Its name.
        graph: String,
    },
    /// The graph as a whole is too large.
    #[error(
        "graph '{graph}' has {what} than the limit of {limit}; split it or use a smaller batch"
    )]
    GraphTooLarge {
        /// Its name.
        graph: String,
        /// "more nodes", "more bytes".
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// An operator without a gradient lies between a parameter and the loss.
    #[error("node '{node}' ({op}) can't be differentiated: {reason}")]
    NotDifferentiable {
        /// Its name.
        node: String,
        /// Its operator.
        op: &'static str,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A tile that can't be computed.
    #[error("node '{node}' ({op}) can't be run by tiles: {reason}")]
    NotTileable {
        /// Its name.
        node: String,
        /// Its operator.
        op: &'static str,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// No segment of a graph can be run by tiles.
    #[error(
        "nothing of graph '{graph}' can be run by tiles: node '{node}' ({op}) needs all of what is before it; train it without tiles"
    )]
    NothingToTile {
        /// Its name.
        graph: String,
        /// Where the first nodes that could be end.
        node: String,
        /// That node's operator.
        op: &'static str,
    },
    /// Nothing to train.
    #[error(
        "the loss '{loss}' depends on no parameter, so there is nothing to train; make the weights parameters, not constants"
    )]
    NoGradient {
        /// Its name.
        loss: String,
    },
    /// The loss isn't a number.
    #[error(
        "the last output '{output}' is to be the loss but is {dtype} of shape {shape:?}; it must be floating-point with one element"
    )]
    LossShape {
        /// Its name.
        output: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its element type.
        dtype: DType,
    },
    /// A graph that breaks its own invariants: an error in this crate, reported instead of computing
    /// something wrong.
    #[error("graph '{graph}' is inconsistent: {reason}; please report this")]
    Inconsistent {
        /// Its name.
        graph: String,
        /// What doesn't hold.
        reason: String,
    },
    /// A result that a parameter update destroys.
    #[error(
        "output '{output}' shares the storage of '{storage}', which an update overwrites; copy it, or don't ask for it"
    )]
    OutputOverwritten {
        /// The output.
        output: String,
        /// What it is a view of.
        storage: String,
    },
    /// The planning problem isn't valid.
    #[error("the graph can't be planned: {0}")]
    Problem(#[source] Box<ProblemError>),
}

impl GraphError {
    /// The node of this name can't apply its operator.
    pub(crate) fn node(node: &str, op: &Op, source: ShapeError) -> GraphError {
        GraphError::Node {
            node: node.to_owned(),
            op: op.kind(),
            source: Box::new(source),
        }
    }
}

impl From<ProblemError> for GraphError {
    fn from(error: ProblemError) -> GraphError {
        GraphError::Problem(Box::new(error))
    }
}
