//! Shapes of elementwise operators, broadcasting and reductions.

use super::error::ShapeError;
use super::signature::{Inferred, Signature, attribute, exactly, expect_shape, floating, integer};
use super::size::checked_bytes;
use crate::dtype::DType;
use crate::op::{Place, Unary};
use crate::properties::Saves;

/// The common shape of two by numpy's rules.
pub fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, ShapeError> {
    let rank = a.len().max(b.len());
    let at = |shape: &[usize], axis: usize| {
        (axis + shape.len())
            .checked_sub(rank)
            .map_or(1, |axis| shape[axis])
    };
    (0..rank)
        .map(|axis| match (at(a, axis), at(b, axis)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(ShapeError::Broadcast {
                a: a.to_vec(),
                b: b.to_vec(),
            }),
        })
        .collect()
}

fn broadcasts_to(from: &[usize], to: &[usize]) -> Result<(), ShapeError> {
    match broadcast(from, to)? {
        shape if shape == to => Ok(()),
        _ => Err(ShapeError::Broadcast {
            a: from.to_vec(),
            b: to.to_vec(),
        }),
    }
}

pub(super) fn unary(inputs: &[Signature<'_>], f: Unary) -> Result<Inferred, ShapeError> {
    let [x] = exactly(inputs, "1")?;
    check_unary(f)?;
    Ok((x.0.to_vec(), floating(inputs)?))
}

pub(super) fn check_unary(f: Unary) -> Result<(), ShapeError> {
    match f {
        Unary::LeakyRelu { slope } if !(slope >= 0.0 && slope.is_finite()) => Err(attribute(
            "slope",
            slope,
            "it must be finite and not negative",
        )),
        Unary::Clip { lo, hi } if lo.is_nan() || hi.is_nan() || lo > hi => Err(attribute(
            "lo, hi",
            (lo, hi),
            "the lower bound must not exceed the upper one",
        )),
        Unary::Pow { exponent } if !exponent.is_finite() => {
            Err(attribute("exponent", exponent, "it must be finite"))
        }
        Unary::Affine { scale, shift } if !(scale.is_finite() && shift.is_finite()) => Err(
            attribute("scale, shift", (scale, shift), "both must be finite"),
        ),
        _ => Ok(()),
    }
}

pub(super) fn unary_grad(inputs: &[Signature<'_>], f: Unary) -> Result<Inferred, ShapeError> {
    check_unary(f)?;
    let dtype = floating(inputs)?;
    if f.saves() == Saves::Nothing {
        let [dy] = exactly(inputs, "1")?;
        return Ok((dy.0.to_vec(), dtype));
    }
    let [saved, dy] = exactly(inputs, "2")?;
    expect_shape(1, dy.0, saved.0)?;
    Ok((dy.0.to_vec(), dtype))
}

pub(super) fn binary(inputs: &[Signature<'_>]) -> Result<Inferred, ShapeError> {
    let [a, b] = exactly(inputs, "2")?;
    let dtype = floating(inputs)?;
    Ok((broadcast(a.0, b.0)?, dtype))
}

pub(super) fn reduce(
    inputs: &[Signature<'_>],
    axes: &[usize],
    keep_dims: bool,
) -> Result<Inferred, ShapeError> {
    let [x] = exactly(inputs, "1")?;
    let dtype = floating(inputs)?;
    let ascending = axes.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || axes.last().is_some_and(|&last| last >= x.0.len()) {
        return Err(attribute(
            "axes",
            axes,
            format!(
                "they must be ascending and below {}, the number of axes",
                x.0.len()
            ),
        ));
    }
    let shape =
        x.0.iter()
            .enumerate()
            .filter_map(|(axis, &len)| match (axes.contains(&axis), keep_dims) {
                (false, _) => Some(len),
                (true, true) => Some(1),
                (true, false) => None,
            });
    Ok((shape.collect(), dtype))
}

pub(super) fn sum_to(inputs: &[Signature<'_>], shape: &[usize]) -> Result<Inferred, ShapeError> {
    let [x] = exactly(inputs, "1")?;
    broadcasts_to(shape, x.0)?;
    Ok((shape.to_vec(), floating(inputs)?))
}

pub(super) fn expand(
    inputs: &[Signature<'_>],
    shape: &[usize],
    scale: f64,
) -> Result<Inferred, ShapeError> {
    if !scale.is_finite() {
        return Err(attribute("scale", scale, "it must be finite"));
    }
    let [x] = exactly(inputs, "1")?;
    broadcasts_to(x.0, shape)?;
    Ok((shape.to_vec(), floating(inputs)?))
}

pub(super) fn fill(
    inputs: &[Signature<'_>],
    shape: &[usize],
    dtype: DType,
) -> Result<Inferred, ShapeError> {
    let [] = exactly(inputs, "no")?;
    match dtype {
        DType::I64 => Err(attribute(
            "dtype",
            dtype,
            "it must be a floating-point type",
        )),
        DType::F32 | DType::F64 => Ok((shape.to_vec(), dtype)),
    }
}

pub(super) fn dropout(
    inputs: &[Signature<'_>],
    p: f64,
    place: Option<&Place>,
) -> Result<Inferred, ShapeError> {
    let [x, seed] = exactly(inputs, "2")?;
    if !(0.0..1.0).contains(&p) {
        return Err(attribute("p", p, "it must be at least 0 and below 1"));
    }
    integer(1, seed)?;
    expect_shape(1, seed.0, &[1])?;
    if let Some(place) = place {
        let rank = x.0.len();
        let ends = place
            .start
            .iter()
            .zip(x.0)
            .map(|(start, length)| start.checked_add(*length));
        let inside = |(end, &length): (Option<usize>, &usize)| end.is_some_and(|end| end <= length);
        if place.start.len() != rank
            || place.shape.len() != rank
            || checked_bytes(&place.shape, x.1).is_err()
            || !ends.zip(&place.shape).all(inside)
        {
            return Err(attribute("place", place, "x must lie in the larger tensor"));
        }
    }
    Ok((x.0.to_vec(), floating(&inputs[..1])?))
}
