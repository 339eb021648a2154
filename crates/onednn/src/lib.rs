//! oneDNN's kernels, loaded at run time where the library is installed: a small safe layer over its C
//! interface (3.x).
//!
//! A [`Library`] is found and loaded once per process; an [`Engine`] makes [`Primitive`]s for a fixed
//! number of threads; a primitive runs on memory that its caller owns, scratchpads included. Elements
//! are 32-bit floats. Implementations that the library has only for reference, which are hundreds of times
//! slower, and those that allocate memory of their own are never used.
//!
//! The library's threads are those of an OpenMP runtime. [`Library::parallel`] runs a caller's own
//! loops on the same threads, so that a process has one pool at work and no other that waits for it.

mod convolution;
mod desc;
mod engine;
mod error;
mod ffi;
mod layout;
mod library;
mod locate;
mod matmul;
mod names;
mod normalization;
mod pointwise;
mod pooling;
mod primitive;
mod reorder;

pub use convolution::{Convolution, Direction};
pub use desc::Desc;
pub use engine::Engine;
pub use error::OneDnnError;
pub use ffi::Version;
pub use layout::Layout;
pub use library::{Library, wait_briefly};
pub use names::{FILE_NAME, VARIABLE, WHEEL};
pub use normalization::LayerNormalization;
pub use pointwise::Activation;
pub use pooling::{Pooling, PoolingShape};
pub use primitive::{Arg, Buffer, MOST_ARGUMENTS, Primitive};
