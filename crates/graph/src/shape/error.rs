//! Why an operator can't be applied to its inputs, and what to do about it.

use crate::dtype::DType;
use thiserror::Error;

/// Why an operator can't be applied to its inputs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// Too few or too many inputs.
    #[error(
        "it takes {expected} inputs but got {found}; connect the inputs its documentation lists"
    )]
    InputCount {
        /// A number or a range.
        expected: &'static str,
        /// As given.
        found: usize,
    },
    /// An element type that the operator doesn't take there.
    #[error("input {input} has element type {found} but must be {expected}; cast it before")]
    ElementType {
        /// Index of the input.
        input: usize,
        /// What would do.
        expected: &'static str,
        /// As given.
        found: DType,
    },
    /// A wrong number of axes.
    #[error("input {input} has shape {found:?} but must have {expected} axes; reshape it before")]
    Rank {
        /// Index of the input.
        input: usize,
        /// A number or a range.
        expected: String,
        /// As given.
        found: Vec<usize>,
    },
    /// A shape that doesn't fit the other inputs or the attributes.
    #[error("input {input} has shape {found:?} but must have shape {expected}")]
    Shape {
        /// Index of the input.
        input: usize,
        /// What would do.
        expected: String,
        /// As given.
        found: Vec<usize>,
    },
    /// Two shapes that don't broadcast together.
    #[error(
        "shapes {a:?} and {b:?} don't broadcast together; from the last axis backwards, lengths must be equal or 1"
    )]
    Broadcast {
        /// One.
        a: Vec<usize>,
        /// The other.
        b: Vec<usize>,
    },
    /// An attribute that makes no sense, alone or for these inputs.
    #[error("its attribute {field} is {value}; {remedy}")]
    Attribute {
        /// The attribute.
        field: &'static str,
        /// As given.
        value: String,
        /// What would do.
        remedy: String,
    },
    /// A tensor that no machine can hold, or whose size overflows.
    #[error(
        "a tensor of shape {shape:?} is larger than the limit of {limit} bytes; use a smaller shape or batch"
    )]
    TooLarge {
        /// As far as it is known.
        shape: Vec<usize>,
        /// [`crate::shape::MAX_TENSOR_BYTES`].
        limit: u64,
    },
    /// A tensor with an axis of length zero.
    #[error("a tensor of shape {shape:?} has no elements; every axis needs a length of at least 1")]
    Empty {
        /// The shape.
        shape: Vec<usize>,
    },
    /// More axes than supported.
    #[error("a tensor of {rank} axes is more than the limit of {limit}; merge axes with a reshape")]
    TooManyAxes {
        /// As given.
        rank: usize,
        /// [`crate::shape::MAX_RANK`].
        limit: usize,
    },
}
