//! Reductions.

use super::one;
use crate::graph::TensorId;
use crate::onnx::context::{Node, Value, axes};
use crate::onnx::error::Outcome;
use crate::op::{Binary, Op, Reduction, Unary};

pub(super) fn reduce(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let rank = node.shape(0)?.len();
    let keep_dims = node.attributes.flag("keepdims", true)?;
    let noop = node.attributes.flag("noop_with_empty_axes", false)?;
    let listed = node.ints_of("axes", 1)?.filter(|list| !list.is_empty());
    let axes = match listed {
        Some(list) => axes(&list, rank)?,
        None if noop => Vec::new(),
        None => (0..rank).collect(),
    };
    let x = node.x(0)?;
    let op = node.proto.op_type.as_str();
    let before = match op {
        "ReduceL1" => node.map("abs", Unary::Abs, x)?,
        "ReduceL2" | "ReduceSumSquare" => node.zip("square", Binary::Mul, x, x)?,
        "ReduceLogSumExp" => node.map("exp", Unary::Exp, x)?,
        _ => x,
    };
    let kind = if op == "ReduceMean" {
        Reduction::Mean
    } else {
        Reduction::Sum
    };
    let sum = match axes.is_empty() {
        true => before,
        false => node.step(
            "reduced",
            Op::Reduce {
                kind,
                axes,
                keep_dims,
            },
            &[before],
        )?,
    };
    one(match op {
        "ReduceL2" => root(node, sum)?,
        "ReduceLogSum" | "ReduceLogSumExp" => node.map("log", Unary::Log, sum)?,
        _ => sum,
    })
}

/// The square root, of at least the smallest normal number: where all elements are 0 its slope would be infinite and
/// their gradients no numbers. Like this they are 0.
fn root(node: &mut Node<'_, '_>, x: TensorId) -> Outcome<TensorId> {
    let (lo, hi) = (f64::from(f32::MIN_POSITIVE), f64::INFINITY);
    let x = node.map("clip", Unary::Clip { lo, hi }, x)?;
    node.map("sqrt", Unary::Sqrt, x)
}
