//! Shapes of losses and optimizer updates.

use super::error::ShapeError;
use super::signature::{Inferred, Signature, attribute, exactly, expect_shape, floating, integer};
use crate::op::Optimizer;

fn check_labels(logits: Signature<'_>, labels: Signature<'_>) -> Result<(), ShapeError> {
    let (&[n, _, ref rest @ ..], _) = logits else {
        return Err(ShapeError::Rank {
            input: 0,
            expected: "at least 2 ([N,C,..])".into(),
            found: logits.0.to_vec(),
        });
    };
    integer(1, labels)?;
    expect_shape(1, labels.0, &[&[n], rest].concat())
}

pub(super) fn cross_entropy(inputs: &[Signature<'_>]) -> Result<Inferred, ShapeError> {
    let [logits, labels] = exactly(inputs, "2")?;
    check_labels(logits, labels)?;
    Ok((Vec::new(), floating(&[logits])?))
}

pub(super) fn cross_entropy_grad(inputs: &[Signature<'_>]) -> Result<Inferred, ShapeError> {
    let [logits, labels, dloss] = exactly(inputs, "3")?;
    check_labels(logits, labels)?;
    expect_shape(2, dloss.0, &[])?;
    Ok((logits.0.to_vec(), floating(&[logits, dloss])?))
}

pub(super) fn squared_error(inputs: &[Signature<'_>]) -> Result<Inferred, ShapeError> {
    let [prediction, target] = exactly(inputs, "2")?;
    expect_shape(1, target.0, prediction.0)?;
    Ok((Vec::new(), floating(inputs)?))
}

pub(super) fn squared_error_grad(inputs: &[Signature<'_>]) -> Result<Inferred, ShapeError> {
    let [prediction, target, dloss] = exactly(inputs, "3")?;
    expect_shape(1, target.0, prediction.0)?;
    expect_shape(2, dloss.0, &[])?;
    Ok((prediction.0.to_vec(), floating(inputs)?))
}

pub(super) fn optimizer(
    inputs: &[Signature<'_>],
    optimizer: Optimizer,
) -> Result<Vec<Inferred>, ShapeError> {
    check_optimizer(optimizer)?;
    let (expected, count) = match optimizer {
        Optimizer::Sgd { momentum: 0.0, .. } => ("3", 3),
        Optimizer::Sgd { .. } => ("4", 4),
        Optimizer::Adam { .. } => ("5", 5),
    };
    if inputs.len() != count {
        return Err(ShapeError::InputCount {
            expected,
            found: inputs.len(),
        });
    }
    let dtype = floating(inputs)?;
    let param = inputs[0].0;
    expect_shape(1, inputs[1].0, param)?;
    expect_shape(2, inputs[2].0, &[2])?;
    for (index, state) in inputs.iter().enumerate().skip(3) {
        expect_shape(index, state.0, param)?;
    }
    Ok(vec![(param.to_vec(), dtype); count - 2])
}

/// Every number of an optimizer is finite and in its range.
fn check_optimizer(optimizer: Optimizer) -> Result<(), ShapeError> {
    let below_one = |field, value: f64| match (0.0..1.0).contains(&value) {
        true => Ok(()),
        false => Err(attribute(field, value, "it must be at least 0 and below 1")),
    };
    let not_negative = |field, value: f64| match value >= 0.0 && value.is_finite() {
        true => Ok(()),
        false => Err(attribute(
            field,
            value,
            "it must be finite and not negative",
        )),
    };
    match optimizer {
        Optimizer::Sgd {
            momentum,
            weight_decay,
        } => {
            below_one("momentum", momentum)?;
            not_negative("weight_decay", weight_decay)
        }
        Optimizer::Adam {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } => {
            below_one("beta1", beta1)?;
            below_one("beta2", beta2)?;
            not_negative("epsilon", epsilon)?;
            not_negative("weight_decay", weight_decay)
        }
    }
}
