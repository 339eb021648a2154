//! Shapes of normalizations and softmax.

use super::elementwise::check_unary;
use super::error::ShapeError;
use super::signature::{
    Inferred, Signature, attribute, check_axis, exactly, expect_shape, floating,
};
use super::size::elements;
use crate::op::{Norm, Unary};

/// The number of statistics K and the shape of scale and shift of a normalized tensor.
pub(crate) fn norm_shapes(shape: &[usize], norm: Norm) -> Result<(usize, Vec<usize>), ShapeError> {
    if let Norm::Layer { axis } = norm {
        check_axis(axis, shape.len())?;
        return Ok((elements(&shape[..axis]), shape[axis..].to_vec()));
    }
    let &[n, c, ..] = shape else {
        return Err(ShapeError::Rank {
            input: 0,
            expected: "at least 2 ([N,C,..])".into(),
            found: shape.to_vec(),
        });
    };
    let k = match norm {
        Norm::Instance => n * c,
        Norm::Group { groups } if groups == 0 || c % groups != 0 => {
            return Err(attribute(
                "groups",
                groups,
                format!("it must divide the {c} channels"),
            ));
        }
        Norm::Group { groups } => n * groups,
        Norm::Batch | Norm::Layer { .. } => c,
    };
    Ok((k, vec![c]))
}

/// The number added to a variance.
fn check_epsilon(epsilon: f64) -> Result<(), ShapeError> {
    if epsilon >= 0.0 && epsilon.is_finite() {
        return Ok(());
    }
    Err(attribute(
        "epsilon",
        epsilon,
        "it must be finite and not negative",
    ))
}

/// The weight of the newest batch in running statistics.
fn check_momentum(momentum: f64) -> Result<(), ShapeError> {
    if (0.0..=1.0).contains(&momentum) {
        return Ok(());
    }
    Err(attribute(
        "momentum",
        momentum,
        "it must be between 0 and 1",
    ))
}

pub(super) fn batch_norm(
    inputs: &[Signature<'_>],
    epsilon: f64,
    momentum: f64,
) -> Result<Inferred, ShapeError> {
    check_epsilon(epsilon)?;
    check_momentum(momentum)?;
    let [x, scale, shift, running] = exactly(inputs, "4")?;
    let dtype = floating(inputs)?;
    let (c, params) = norm_shapes(x.0, Norm::Batch)?;
    expect_shape(1, scale.0, &params)?;
    expect_shape(2, shift.0, &params)?;
    expect_shape(3, running.0, &[2, c])?;
    Ok((x.0.to_vec(), dtype))
}

pub(super) fn stats(inputs: &[Signature<'_>], norm: Norm) -> Result<Inferred, ShapeError> {
    let [x] = exactly(inputs, "1")?;
    let (k, _) = norm_shapes(x.0, norm)?;
    Ok((vec![2, k], floating(inputs)?))
}

/// What a normalization does to its result in the same pass.
fn check_activation(activation: Option<Unary>) -> Result<(), ShapeError> {
    match activation {
        Some(f) if !f.follows_norm() => Err(attribute(
            "activation",
            f,
            "it must be relu, leaky relu or clip",
        )),
        Some(f) => check_unary(f),
        None => Ok(()),
    }
}

pub(super) fn apply(
    inputs: &[Signature<'_>],
    norm: Norm,
    epsilon: f64,
    activation: Option<Unary>,
) -> Result<Inferred, ShapeError> {
    check_epsilon(epsilon)?;
    check_activation(activation)?;
    let [x, stats, scale, shift] = exactly(inputs, "4")?;
    let dtype = floating(inputs)?;
    let (k, params) = norm_shapes(x.0, norm)?;
    expect_shape(1, stats.0, &[2, k])?;
    expect_shape(2, scale.0, &params)?;
    expect_shape(3, shift.0, &params)?;
    Ok((x.0.to_vec(), dtype))
}

pub(super) fn gradients(
    inputs: &[Signature<'_>],
    norm: Norm,
    epsilon: f64,
    activation: Option<Unary>,
) -> Result<Vec<Inferred>, ShapeError> {
    check_epsilon(epsilon)?;
    check_activation(activation)?;
    let ([x, stats, scale, dy], shift) = match activation {
        None => (exactly(inputs, "4")?, None),
        Some(_) => {
            let [x, stats, scale, dy, shift] = exactly(inputs, "5")?;
            ([x, stats, scale, dy], Some(shift))
        }
    };
    let dtype = floating(inputs)?;
    let (k, params) = norm_shapes(x.0, norm)?;
    expect_shape(1, stats.0, &[2, k])?;
    expect_shape(2, scale.0, &params)?;
    expect_shape(3, dy.0, x.0)?;
    if let Some(shift) = shift {
        expect_shape(4, shift.0, &params)?;
    }
    let param = (params, dtype);
    Ok(vec![(x.0.to_vec(), dtype), param.clone(), param])
}

pub(super) fn param_grad(
    inputs: &[Signature<'_>],
    norm: Norm,
    epsilon: f64,
    activation: Option<Unary>,
) -> Result<Vec<Inferred>, ShapeError> {
    check_epsilon(epsilon)?;
    check_activation(activation)?;
    let ([x, stats, dy], affine) = match activation {
        None => (exactly(inputs, "3")?, None),
        Some(_) => {
            let [x, stats, dy, scale, shift] = exactly(inputs, "5")?;
            ([x, stats, dy], Some([scale, shift]))
        }
    };
    let dtype = floating(inputs)?;
    let (k, params) = norm_shapes(x.0, norm)?;
    expect_shape(1, stats.0, &[2, k])?;
    expect_shape(2, dy.0, x.0)?;
    for (input, tensor) in (3..).zip(affine.iter().flatten()) {
        expect_shape(input, tensor.0, &params)?;
    }
    Ok(vec![(params.clone(), dtype), (params, dtype)])
}

pub(super) fn running(
    inputs: &[Signature<'_>],
    count: usize,
    momentum: f64,
) -> Result<Inferred, ShapeError> {
    check_momentum(momentum)?;
    let [stats, running] = exactly(inputs, "2")?;
    let dtype = floating(inputs)?;
    if count == 0 {
        return Err(attribute("count", count, "it must be at least 1"));
    }
    match stats.0 {
        &[2, k] => expect_shape(1, running.0, &[2, k])?,
        _ => expect_shape(0, stats.0, &[2, stats.0.get(1).copied().unwrap_or(1)])?,
    }
    Ok((running.0.to_vec(), dtype))
}

pub(super) fn softmax(inputs: &[Signature<'_>], axis: usize) -> Result<Inferred, ShapeError> {
    let [x] = exactly(inputs, "1")?;
    check_axis(axis, x.0.len())?;
    Ok((x.0.to_vec(), floating(inputs)?))
}

pub(super) fn softmax_grad(inputs: &[Signature<'_>], axis: usize) -> Result<Inferred, ShapeError> {
    let [y, dy] = exactly(inputs, "2")?;
    check_axis(axis, y.0.len())?;
    expect_shape(1, dy.0, y.0)?;
    Ok((y.0.to_vec(), floating(inputs)?))
}
