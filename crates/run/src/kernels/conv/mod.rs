//! Convolutions and their gradients, as products of matrices that read images in place of a matrix of
//! patches. Depthwise convolutions are in `depthwise.rs`.
//!
//! * Forward: y = W·patches(x), whose columns are the output pixels of all images.
//! * Input gradient for stride 1: the forward convolution of dy with the weights turned around.
//! * Input gradient for other strides: Wᵀ·dy per image and block of channels. Each column is then added to
//!   the elements from which its patch came.
//! * Weight gradient: dy·patches(x)ᵀ, summed over the pixels of all images. Where the result is small the sum
//!   is cut into parts, by shape alone, so that threads have enough to do.

mod depthwise;
mod forward;
mod geometry;
mod input_grad;
mod weight_grad;

pub use forward::{forward, forward_workspace};
pub use input_grad::{input_grad, input_grad_workspace};
pub use weight_grad::{weight_grad, weight_grad_workspace};
