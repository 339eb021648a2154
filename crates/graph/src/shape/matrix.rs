//! Shapes of matrix products.

use super::elementwise::broadcast;
use super::error::ShapeError;
use super::signature::{Inferred, Signature, expect_shape, floating, with_optional};

/// Leading axes, rows and columns of a stack of matrices, after the transposition is undone.
fn split(
    input: usize,
    shape: &[usize],
    transposed: bool,
) -> Result<(&[usize], usize, usize), ShapeError> {
    match shape {
        [batch @ .., rows, columns] if transposed => Ok((batch, *columns, *rows)),
        [batch @ .., rows, columns] => Ok((batch, *rows, *columns)),
        _ => Err(ShapeError::Rank {
            input,
            expected: "at least 2".into(),
            found: shape.to_vec(),
        }),
    }
}

pub(super) fn matmul(
    inputs: &[Signature<'_>],
    trans_a: bool,
    trans_b: bool,
) -> Result<Inferred, ShapeError> {
    let ([a, b], addend) = with_optional::<2>(inputs, "2 or 3")?;
    let dtype = floating(inputs)?;
    let (batch_a, m, inner) = split(0, a.0, trans_a)?;
    let (batch_b, inner_b, n) = split(1, b.0, trans_b)?;
    if inner != inner_b {
        return Err(ShapeError::Shape {
            input: 1,
            expected: format!("with {inner} rows (after transposition), the columns of input 0"),
            found: b.0.to_vec(),
        });
    }
    let mut shape = broadcast(batch_a, batch_b)?;
    shape.extend([m, n]);
    if let Some((addend, _)) = addend
        && addend != shape
    {
        expect_shape(2, addend, &[n])?;
    }
    Ok((shape, dtype))
}
