//! Products of known matrices, such as of positions and frequencies.

use super::MAX_ELEMENTS;
use super::select::{common_shape, expand};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::onnx::literal::{Literal, element_count};

/// Multiplications at import; more would take seconds.
const MAX_WORK: usize = 1 << 28;

/// numpy's matmul of floats: a vector on the left is a row, on the right a column, and the axis goes away.
pub(super) fn matmul(inputs: &[Literal]) -> Outcome<Literal> {
    let [a, b] = inputs else {
        return invalid!("it needs two inputs");
    };
    let (mut left, mut right) = (a.shape.clone(), b.shape.clone());
    if left.len() == 1 {
        left.insert(0, 1);
    }
    if right.len() == 1 {
        right.push(1);
    }
    let (&[ref outer_a @ .., rows, inner], &[ref outer_b @ .., depth, columns]) =
        (&left[..], &right[..])
    else {
        return invalid!("a scalar has no matrix product");
    };
    let outer = common_shape(outer_a, outer_b).filter(|_| inner == depth);
    let Some(outer) = outer else {
        return invalid!("shapes {:?} and {:?} have no product", a.shape, b.shape);
    };
    let size = [&outer[..], &[rows, columns]].concat();
    let work = element_count(&[&size[..], &[inner]].concat());
    let small = element_count(&size).is_some_and(|n| n <= MAX_ELEMENTS);
    if !small || work.is_none_or(|n| n > MAX_WORK) {
        return unsupported!(
            "of known matrices of shapes {:?} and {:?}",
            a.shape,
            b.shape
        );
    }
    let whole = |x: &Literal, own: Vec<usize>, matrix: [usize; 2]| {
        let x = Literal {
            shape: own,
            data: x.data.clone(),
        };
        expand(&x, &[&outer[..], &matrix].concat())
    };
    let (x, y) = (
        whole(a, left.clone(), [rows, inner])?,
        whole(b, right.clone(), [inner, columns])?,
    );
    let (Some(x), Some(y)) = (x.as_floats(), y.as_floats()) else {
        return unsupported!("of known integers");
    };
    let element = |position: usize| {
        let (matrix, row, column) = (
            position / columns / rows,
            position / columns % rows,
            position % columns,
        );
        let term = |k: usize| {
            let left = x[(matrix * rows + row) * inner + k];
            f64::from(left) * f64::from(y[(matrix * inner + k) * columns + column])
        };
        (0..inner).map(term).sum::<f64>() as f32
    };
    let values: Vec<f32> = (0..size.iter().product()).map(element).collect();
    let mut shape = size;
    if b.shape.len() == 1 {
        shape.pop();
    }
    if a.shape.len() == 1 {
        shape.remove(outer.len());
    }
    Ok(Literal::floats(shape, values))
}
