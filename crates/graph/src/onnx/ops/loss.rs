//! Losses.

use super::one;
use crate::graph::{Init, TensorId};
use crate::onnx::attributes::Attributes;
use crate::onnx::context::{Node, Value, check_table};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::op::{Binary, Op, Reduction, Unary};

pub(super) fn cross_entropy(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let logits = node.x(0)?;
    let log = node.proto.output.len() > 1 || !is_plain(node)?;
    let log = match log {
        true => Some(node.step("log_prob", Op::LogSoftmax { axis: 1 }, &[logits])?),
        false => None,
    };
    let loss = match log.filter(|_| !is_plain(node).unwrap_or(true)) {
        Some(log) => picked(node, log)?,
        None => plain(node, logits)?,
    };
    let values = [Some(loss), log].into_iter().flatten();
    Ok(values.map(Value::Tensor).collect())
}

/// Of a log-softmax over axis 1 it is the cross-entropy of what that was applied to.
pub(super) fn negative_log_likelihood(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let logits = match is_plain(node)? {
        true => logits(node)?,
        false => None,
    };
    if let Some(logits) = logits {
        return one(plain(node, logits)?);
    }
    let x = node.x(0)?;
    one(picked(node, x)?)
}

/// The input of the log-softmax over axis 1 that writes input 0, if one does.
fn logits(node: &mut Node<'_, '_>) -> Outcome<Option<TensorId>> {
    let Some(source) = node.producer(0).filter(|p| p.op_type == "LogSoftmax") else {
        return Ok(None);
    };
    let rank = node.shape(0)?.len();
    let default = if node.opset() < 13 { 1 } else { -1 };
    let axis = Attributes::new(source).int("axis", default)?;
    if axis != 1 && axis + rank as i64 != 1 || (node.opset() < 13 && rank != 2) {
        return Ok(None);
    }
    let value = node.state.values.get(source.input[0].as_str()).cloned();
    let value = value.unwrap_or(Value::Missing);
    node.state.place(&source.input[0], &value).map(Some)
}

fn reduction<'a>(node: &Node<'_, 'a>) -> Outcome<&'a str> {
    node.attributes.text("reduction", "mean")
}

/// Whether it is a mean or sum over all labels, without weights and ignored labels.
fn is_plain(node: &Node<'_, '_>) -> Outcome<bool> {
    Ok(!node.has(2) && !node.attributes.has("ignore_index") && reduction(node)? != "none")
}

fn plain(node: &mut Node<'_, '_>, logits: TensorId) -> Outcome<TensorId> {
    let reduction = reduction(node)?;
    let labels = node.x(1)?;
    let mean = node.step("mean", Op::CrossEntropy, &[logits, labels])?;
    match reduction {
        "mean" => Ok(mean),
        "sum" => {
            let count: usize = node.dims(labels).iter().product();
            let scale = count as f64;
            node.map("sum", Unary::Affine { scale, shift: 0.0 }, mean)
        }
        other => unsupported!("reduction {other:?}"),
    }
}

/// Minus the element of `x[N,C,..]` that each label names, times its weight: the sum over classes of the product
/// with a tensor that is the weight at the label and 0 elsewhere.
fn picked(node: &mut Node<'_, '_>, x: TensorId) -> Outcome<TensorId> {
    let reduction = reduction(node)?;
    let shape = node.dims(x);
    let [_, classes, ..] = shape[..] else {
        return invalid!("it needs an axis of classes");
    };
    let mut weights = chosen(node, classes)?;
    if node.has(2) {
        let each = node.x(2)?;
        weights = node.zip("weights", Binary::Mul, weights, each)?;
    }
    // From the last axis to the second.
    let mut perm: Vec<usize> = (0..shape.len() - 1).collect();
    perm.insert(1, shape.len() - 1);
    let moved = node.step("moved", Op::Transpose { perm }, &[weights])?;
    let product = node.zip("product", Binary::Mul, x, moved)?;
    let over = |axes: Vec<usize>| Op::Reduce {
        kind: Reduction::Sum,
        axes,
        keep_dims: false,
    };
    let negative = Unary::Affine {
        scale: -1.0,
        shift: 0.0,
    };
    if reduction == "none" {
        let sum = node.step("sum", over(vec![1]), &[product])?;
        return node.map("loss", negative, sum);
    }
    let all = over((0..shape.len()).collect());
    let sum = node.step("sum", all.clone(), &[product])?;
    let sum = node.map("negative", negative, sum)?;
    match reduction {
        "sum" => Ok(sum),
        "mean" => {
            let total = node.step("total", all, &[moved])?;
            node.zip("loss", Binary::Div, sum, total)
        }
        other => unsupported!("reduction {other:?}"),
    }
}

/// For each label a row of classes: 1 at the label, 0 elsewhere; all 0 for labels to be ignored.
fn chosen(node: &mut Node<'_, '_>, classes: usize) -> Outcome<TensorId> {
    let ignored = match node.attributes.has("ignore_index") {
        true => Some(node.attributes.int("ignore_index", 0)?),
        false => None,
    };
    // An ignored label that is no class has a row of its own, which labels must be made to name at import.
    let class = |label: i64| usize::try_from(label).ok().filter(|&i| i < classes);
    let row = ignored.map(|label| class(label).unwrap_or(classes));
    let rows = classes + usize::from(row == Some(classes));
    check_table(&[rows, classes])?;
    let labels = match (ignored, node.known(1)) {
        (Some(ignored), Some(labels)) if class(ignored).is_none() => {
            let Some(ints) = labels.as_ints() else {
                return invalid!("the labels are not integers");
            };
            let named = ints.iter().map(|&label| match label == ignored {
                true => classes as i64,
                false => label,
            });
            let init = Init::Ints(named.collect());
            let name = node.part("labels");
            node.state.b.constant(&name, &labels.shape, init)?
        }
        (Some(ignored), None) if class(ignored).is_none() => {
            return unsupported!("attribute ignore_index with a label that is no class");
        }
        _ => node.x(1)?,
    };
    let mut table = vec![0.0; rows * classes];
    for i in (0..classes).filter(|&i| row != Some(i)) {
        table[i * classes + i] = 1.0;
    }
    let table = node.constant("classes", &[rows, classes], table)?;
    node.step("chosen", Op::Gather { axis: 0 }, &[table, labels])
}
