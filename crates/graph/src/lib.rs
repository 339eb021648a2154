//! Neural network graphs: operators, shapes, importers, built-in networks, differentiation, lowering.
//!
//! From a network to a planning problem:
//!
//! ```
//! use scrimp_graph::{DType, GraphBuilder, Loss, Roofline, Optimizer, Window, estimate, lower, train};
//!
//! let mut b = GraphBuilder::new("small");
//! let x = b.input("image", &[8, 3, 32, 32], DType::F32)?;
//! let x = b.conv("conv", x, 16, Window::square(3).pad(1), 1, false)?;
//! let x = b.batch_norm("bn", x)?;
//! let x = b.relu("relu", x)?;
//! let x = b.global_avg_pool("pool", x)?;
//! let x = b.flatten("flat", x)?;
//! let x = b.linear("classifier", x, 10, true)?;
//! b.output(x);
//! let graph = b.finish()?;
//!
//! let sgd = Optimizer::Sgd { momentum: 0.9, weight_decay: 1e-4 };
//! let training = train(&graph, Loss::CrossEntropy, Some(sgd))?;
//! let costs = estimate(&training.graph, &Roofline::default(), &|_| 0);
//! let lowered = lower(&training.graph, &training.phases, &costs, "cpu")?;
//! assert_eq!(lowered.problem.tasks().len(), lowered.nodes.len());
//! # Ok::<(), scrimp_graph::GraphError>(())
//! ```

pub mod builder;
pub mod costs;
pub mod data;
pub mod differentiate;
pub mod dtype;
pub mod error;
pub mod graph;
mod half;
mod layers;
pub mod lower;
pub mod networks;
pub mod onnx;
pub mod op;
pub mod properties;
mod repeat;
mod rewrite;
pub mod shape;
pub mod storage;
pub mod summary;
mod text;
pub mod tile;
pub mod weights;
mod window;

pub use builder::GraphBuilder;
pub use costs::{Costs, NodeCost, Roofline, estimate};
pub use differentiate::{Loss, TrainingGraph, train, train_tiled};
pub use dtype::DType;
pub use error::GraphError;
pub use graph::{Graph, Init, Node, NodeId, Role, Tensor, TensorId};
pub use lower::{ALIGN, Lowered, Phases, Target, lower, lower_onto};
pub use op::{Binary, Norm, Op, Optimizer, Place, Reduction, Unary, Window};
pub use properties::Saves;
pub use repeat::{Repeated, repeated};
pub use rewrite::inference;
pub use shape::{ShapeError, infer};
pub use storage::Storages;
pub use summary::Summary;
pub use tile::{Tiled, Tiles};
