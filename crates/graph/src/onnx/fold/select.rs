//! Known tensors made of the elements of another.

use super::MAX_ELEMENTS;
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::onnx::literal::{Data, Literal, element_count};
pub(super) use crate::onnx::shapes::strides;
use crate::shape::broadcast;

/// The tensor of this shape whose element at an index is `x`'s at the position that `from` says.
pub(super) fn select(
    x: &Literal,
    shape: Vec<usize>,
    from: impl Fn(&[usize]) -> usize,
) -> Outcome<Literal> {
    let total = element_count(&shape).filter(|&n| n <= MAX_ELEMENTS);
    let Some(total) = total else {
        return unsupported!("of known values with more than {MAX_ELEMENTS} elements");
    };
    let mut index = vec![0; shape.len()];
    let mut positions = Vec::with_capacity(total);
    for _ in 0..total {
        positions.push(from(&index));
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    let data = match &x.data {
        Data::Floats(v) => Data::Floats(positions.into_iter().map(|p| v[p]).collect()),
        Data::Ints(v) => Data::Ints(positions.into_iter().map(|p| v[p]).collect()),
    };
    Ok(Literal { shape, data })
}

pub(super) fn flat(index: &[usize], strides: &[usize]) -> usize {
    index.iter().zip(strides).map(|(i, s)| i * s).sum()
}

/// Broadcast both ways, as ONNX's Expand does.
pub(super) fn expand(x: &Literal, shape: &[usize]) -> Outcome<Literal> {
    let Some(shape) = common_shape(&x.shape, shape) else {
        return invalid!("shapes {:?} and {shape:?} don't broadcast", x.shape);
    };
    if shape == x.shape {
        return Ok(x.clone());
    }
    let skipped = shape.len() - x.shape.len();
    let mut steps = strides(&x.shape);
    for (step, &length) in steps.iter_mut().zip(&x.shape) {
        if length == 1 {
            *step = 0;
        }
    }
    select(x, shape, |index| flat(&index[skipped..], &steps))
}

/// As [`broadcast`], also for axes of length 0.
pub(super) fn common_shape(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    if !a.contains(&0) && !b.contains(&0) {
        return broadcast(a, b).ok();
    }
    let rank = a.len().max(b.len());
    let at = |shape: &[usize], axis: usize| {
        let skipped = rank - shape.len();
        axis.checked_sub(skipped).map_or(1, |i| shape[i])
    };
    let common = (0..rank).map(|axis| match (at(a, axis), at(b, axis)) {
        (x, y) if x == y => Some(x),
        (1, y) => Some(y),
        (x, 1) => Some(x),
        _ => None,
    });
    common.collect()
}
