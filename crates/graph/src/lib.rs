//! Neural network graphs: operators, shapes, importers, built-in networks, differentiation, lowering.

pub mod graph;
pub mod op;

pub use graph::{DType, Graph, Init, Node, NodeId, Role, Tensor, TensorId};
pub use op::{Binary, Norm, Op, Optimizer, Reduction, Unary, Window};
