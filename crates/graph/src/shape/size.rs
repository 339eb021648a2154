//! How large a tensor may be, and how large one is.

use super::error::ShapeError;
use crate::dtype::DType;

/// No tensor is larger.
pub const MAX_TENSOR_BYTES: u64 = 1 << 44;

/// No tensor has more axes.
pub const MAX_RANK: usize = 8;

/// Bytes of a tensor, or why there can't be one of this shape.
pub fn checked_bytes(shape: &[usize], dtype: DType) -> Result<u64, ShapeError> {
    if shape.len() > MAX_RANK {
        return Err(ShapeError::TooManyAxes {
            rank: shape.len(),
            limit: MAX_RANK,
        });
    }
    if shape.contains(&0) {
        return Err(ShapeError::Empty {
            shape: shape.to_vec(),
        });
    }
    shape
        .iter()
        .try_fold(dtype.bytes(), |bytes, &len| bytes.checked_mul(len as u64))
        .filter(|&bytes| bytes <= MAX_TENSOR_BYTES)
        .ok_or_else(|| too_large(shape))
}

/// The number of elements of a shape whose size has been checked.
pub fn elements(shape: &[usize]) -> usize {
    shape.iter().product()
}

pub(super) fn too_large(shape: &[usize]) -> ShapeError {
    ShapeError::TooLarge {
        shape: shape.to_vec(),
        limit: MAX_TENSOR_BYTES,
    }
}
