//! Neural network graphs: operators, shapes, importers, built-in networks, differentiation, lowering.

pub mod builder;
pub mod costs;
pub mod data;
pub mod differentiate;
pub mod error;
pub mod graph;
mod half;
mod layers;
pub mod lower;
pub mod networks;
pub mod onnx;
pub mod op;
pub mod properties;
mod rewrite;
pub mod shape;
pub mod storage;
pub mod summary;
mod text;
pub mod weights;
mod window;

pub use builder::GraphBuilder;
pub use costs::{Costs, Machine, NodeCost, estimate};
pub use differentiate::{Loss, TrainingGraph, train};
pub use error::{GraphError, ShapeError};
pub use graph::{DType, Graph, Init, Node, NodeId, Role, Tensor, TensorId};
pub use lower::{ALIGN, Lowered, lower};
pub use op::{Binary, Norm, Op, Optimizer, Reduction, Unary, Window};
pub use properties::Saves;
pub use rewrite::inference;
pub use shape::infer;
pub use storage::Storages;
pub use summary::Summary;
