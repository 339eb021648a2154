//! Shape inference: the shapes and element types of an operator's outputs, with every size checked.
//!
//! The rules follow the kinds of operators: `window` (convolution, pooling), `matrix`, `elementwise`
//! (with broadcasting and reductions), `normalize`, `movement` (what copies elements), `update`.

mod elementwise;
mod error;
mod infer;
mod matrix;
mod movement;
mod normalize;
mod signature;
mod size;
mod update;
mod window;

pub use elementwise::broadcast;
pub use error::ShapeError;
pub use infer::infer;
pub(crate) use normalize::norm_shapes;
pub use signature::{Inferred, Signature};
pub use size::{MAX_RANK, MAX_TENSOR_BYTES, checked_bytes, elements};
pub use window::window_count;
