//! Losses.

use super::one;
use crate::graph::TensorId;
use crate::onnx::attributes::Attributes;
use crate::onnx::context::{Node, Value};
use crate::onnx::error::{Outcome, unsupported};
use crate::op::{Op, Unary};

/// Mean or sum over all labels, without weights and ignored labels.
pub(super) fn cross_entropy(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let logits = node.x(0)?;
    let loss = loss(node, logits)?;
    let mut values = vec![Value::Tensor(loss)];
    if node.proto.output.len() > 1 {
        let log = node.step("log_prob", Op::LogSoftmax { axis: 1 }, &[logits])?;
        values.push(Value::Tensor(log));
    }
    Ok(values)
}

/// Of a log-softmax over axis 1, which makes it the cross-entropy of what that was applied to.
pub(super) fn negative_log_likelihood(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let source = node.producer(0).filter(|p| p.op_type == "LogSoftmax");
    let Some(source) = source else {
        return unsupported!("of anything but a LogSoftmax");
    };
    let rank = node.shape(0)?.len();
    let default = if node.opset() < 13 { 1 } else { -1 };
    let axis = Attributes::new(source).int("axis", default)?;
    if axis != 1 && axis + rank as i64 != 1 || (node.opset() < 13 && rank != 2) {
        return unsupported!("of a LogSoftmax over another axis than 1");
    }
    let logits = source
        .input
        .first()
        .and_then(|n| node.state.values.get(n.as_str()))
        .cloned();
    let logits = node
        .state
        .place(&source.input[0], &logits.unwrap_or(Value::Missing))?;
    one(loss(node, logits)?)
}

fn loss(node: &mut Node<'_, '_>, logits: TensorId) -> Outcome<TensorId> {
    if node.has(2) {
        return unsupported!("with weights");
    }
    if node.attributes.has("ignore_index") {
        return unsupported!("attribute ignore_index");
    }
    let reduction = node.attributes.text("reduction", "mean")?;
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
