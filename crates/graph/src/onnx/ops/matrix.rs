//! Matrix products.

use super::one;
use crate::graph::TensorId;
use crate::onnx::attributes::Attributes;
use crate::onnx::context::{Node, Value};
use crate::onnx::error::{Outcome, invalid};
use crate::op::{Binary, Op, Unary};

/// numpy's matmul: a vector on the left is a row, on the right a column, and the axis goes away.
pub(super) fn matmul(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let (ranks, mut a) = ([node.shape(0)?.len(), node.shape(1)?.len()], node.x(0)?);
    if ranks.contains(&0) {
        return invalid!("a scalar has no matrix product");
    }
    let (mut b, trans_b) = right(node)?;
    if ranks[0] == 1 {
        let length = node.dims(a)[0];
        a = node.view("row", a, &[1, length])?;
    }
    if ranks[1] == 1 {
        let length = node.dims(b)[0];
        b = node.view("column", b, &[length, 1])?;
    }
    let op = Op::MatMul {
        trans_a: false,
        trans_b,
    };
    let y = node.last(op, &[a, b])?;
    let mut shape = node.dims(y);
    if ranks[1] == 1 {
        shape.pop();
    }
    if ranks[0] == 1 {
        shape.remove(shape.len() - usize::from(ranks[1] != 1) - 1);
    }
    one(node.view("squeeze", y, &shape)?)
}

/// The right operand; read as it is stored if the file transposes it only for this product.
fn right(node: &mut Node<'_, '_>) -> Outcome<(TensorId, bool)> {
    if let Some(transpose) = node.producer(1).filter(|p| p.op_type == "Transpose") {
        let perm = Attributes::new(transpose)
            .ints("perm")?
            .map(<[i64]>::to_vec);
        let source = transpose
            .input
            .first()
            .and_then(|n| node.state.values.get(n.as_str()));
        let source = source.cloned();
        let rank = node.shape(1)?.len();
        let swaps_last = |perm: Vec<i64>| {
            let mut plain: Vec<i64> = (0..rank as i64).collect();
            rank >= 2 && {
                plain.swap(rank - 2, rank - 1);
                plain == perm
            }
        };
        let swapped = perm.map_or(rank == 2, swaps_last);
        if let Some(source @ (Value::Tensor(_) | Value::Weight(_))) = source.filter(|_| swapped) {
            return Ok((node.state.place(&transpose.input[0], &source)?, true));
        }
    }
    Ok((node.weight(1)?, false))
}

/// alpha·A·B + beta·C
pub(super) fn gemm(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    node.attributes.ignore(&["broadcast"]);
    let alpha = node.attributes.float("alpha", 1.0)?;
    let beta = node.attributes.float("beta", 1.0)?;
    let op = Op::MatMul {
        trans_a: node.attributes.flag("transA", false)?,
        trans_b: node.attributes.flag("transB", false)?,
    };
    let (a, b) = (node.x(0)?, node.weight(1)?);
    if node.dims(a).len() != 2 || node.dims(b).len() != 2 {
        return invalid!("its operands must be matrices");
    }
    let c = match beta {
        0.0 => None,
        _ => node.optional_weight(2)?,
    };
    let Some(mut c) = c else {
        let y = node.step("product", op, &[a, b])?;
        return scaled(node, "", y, alpha);
    };
    // A bias along the columns is part of the product.
    let shape = node.dims(c);
    let columns = node.dims(b)[usize::from(!matches!(op, Op::MatMul { trans_b: true, .. }))];
    if alpha == 1.0 && beta == 1.0 && shape == [columns] {
        return one(node.last(op, &[a, b, c])?);
    }
    let y = node.step("product", op, &[a, b])?;
    let y = scale(node, "alpha", y, alpha)?;
    c = scale(node, "beta", c, beta)?;
    one(node.last(Op::Binary(Binary::Add), &[y, c])?)
}

fn scaled(node: &mut Node<'_, '_>, part: &str, x: TensorId, by: f64) -> Outcome<Vec<Value>> {
    let part = if part.is_empty() { "scaled" } else { part };
    one(scale(node, part, x, by)?)
}

fn scale(node: &mut Node<'_, '_>, part: &str, x: TensorId, by: f64) -> Outcome<TensorId> {
    match by {
        1.0 => Ok(x),
        _ => node.map(
            part,
            Unary::Affine {
                scale: by,
                shift: 0.0,
            },
            x,
        ),
    }
}
