//! oneDNN's kernels for the operators that it computes better than ours: which operators those are, and how
//! each is composed of the library's primitives.
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
//! These operators were measured beside ours on one thread, too. Applying a layer norm takes as long (2048
//! rows of 384, with its statistics: 0.40 ms against 0.39). Batch norm with channels last and without an
//! activation takes 0.74 ms forward and 0.87 for the gradients in the library's one primitive, 0.72 and 0.96
//! in ours (64 channels of 56×56, batch 8); with 512 channels of 14×14 it takes 0.35 and 0.46 against 0.43
//! and 0.53. In rows the library is 3 to 5 times as slow as ours. It also can't compute an activation again
//! for the gradients (`kernels/norm`) but would keep its mask. For reductions it has only a reference
//! implementation (30 ms where ours takes 1).
//!
//! Images have their channels last (`format.rs`), which is the fastest format for the library's convolutions,
//! and weights of convolutions are in blocks (`weights.rs`). If an argument isn't in the format that the
//! kernel wants, it is changed in the workspace. Such changes are part of the operator, its time and its
//! workspace.

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
