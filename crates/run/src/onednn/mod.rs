//! oneDNN's kernels for the operators that it does better than ours: which those are, and how each is
//! put together from the library's primitives.
//!
//! | operator | oneDNN | ours |
//! |---|---|---|
//! | convolution, its gradients (also transposed convolution) | 32-bit floats | 64-bit floats, which check gradients |
//! | product of matrices | 32-bit floats | 64-bit floats |
//! | poolings, their gradients | 32-bit floats | 64-bit floats |
//! | gradients of layer norm | 32-bit floats, without an activation, rows of at most 4096 elements | 64-bit floats, the others |
//! | gelu, silu, sigmoid, tanh, exp, softmax, their gradients | 32-bit floats | 64-bit floats, mixed formats |
//! | everything else | | always |
//!
//! Of the rest, measured beside ours on one thread: applying a layer norm takes as long (2048 rows of 384, with
//! its statistics: 0.40 ms against 0.39). Batch norm with channels last takes 0.74 ms forward and 0.87 for the gradients in the library's one
//! primitive, 0.72 and 0.96 in ours (64 channels of 56×56, batch 8), 0.35 and 0.46 against 0.43 and 0.53 with 512 of 14×14,
//! each without an activation; in rows the library is 3 to 5 times as slow as ours. It can't compute an activation
//! again for the gradients (`kernels/norm`), whose mask it would keep. Its
//! reductions have only a reference implementation (30 ms where ours takes 1).
//!
//! Images have their channels last (`format.rs`), which is how the library's convolutions are fastest, and
//! weights of convolutions are in blocks (`weights.rs`). Where an argument is in another format than the
//! kernel wants, it is changed in the workspace, by operations that are part of the operator, its time
//! and its workspace.

mod convolution;
mod matmul;
mod normalization;
mod pointwise;
mod pool;
mod program;
mod programs;
mod weights;

pub use program::Program;
pub use programs::OneDnn;
pub use weights::formats;
