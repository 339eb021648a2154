//! The graph: tensors with shapes and types, and nodes in topological order.

use cranelift_entity::{PrimaryMap, entity_impl};
use std::sync::Arc;

use crate::op::Op;

/// A tensor of a graph.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(u32);
entity_impl!(TensorId, "tensor");

/// A node of a graph: one operator with its inputs and outputs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);
entity_impl!(NodeId, "node");

/// Element types. `F64` exists for checking gradients; `I64` holds labels, tokens and seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit IEEE float.
    F32,
    /// 64-bit IEEE float.
    F64,
    /// 64-bit signed integer.
    I64,
}

impl DType {
    /// Size of an element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::F32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }
}

/// The first contents of a parameter, state or constant.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// Every element the same.
    Constant(f64),
    /// Independent normal draws with mean 0; the stream is the tensor's index.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// Independent uniform draws from [−bound, bound].
    Uniform {
        /// Not negative.
        bound: f64,
    },
    /// Floating-point contents (f32 or f64 tensors).
    Floats(Arc<[f32]>),
    /// Integer contents (i64 tensors).
    Ints(Arc<[i64]>),
}

/// What a tensor is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// Written by a node.
    Activation,
    /// Set anew for every step: data, labels.
    Input,
    /// Trained.
    Parameter(Init),
    /// Kept from step to step and changed by update nodes: running statistics, optimizer state.
    State(Init),
    /// Never changes.
    Constant(Init),
    /// The [learning rate, step number] tensor of update nodes.
    Hyper,
    /// The random seed of the step, i64[1].
    Seed,
}

/// A tensor's type and purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Unique within the graph.
    pub name: String,
    /// Lengths of the axes; empty for a scalar.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Purpose.
    pub role: Role,
}

/// One operator applied to tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Unique within the graph.
    pub name: String,
    /// What it does.
    pub op: Op,
    /// In the order of the operator's documentation.
    pub inputs: Vec<TensorId>,
    /// In the order of the operator's documentation.
    pub outputs: Vec<TensorId>,
}

/// A neural network. Nodes are in topological order; every tensor has at most one producer, and
/// exactly one if it is an activation. Build one with [`crate::GraphBuilder`].
#[derive(Clone, Debug)]
pub struct Graph {
    /// For people.
    pub name: String,
    pub(crate) tensors: PrimaryMap<TensorId, Tensor>,
    pub(crate) nodes: PrimaryMap<NodeId, Node>,
    /// The tensors the user wants: predictions, the loss.
    pub(crate) outputs: Vec<TensorId>,
}
