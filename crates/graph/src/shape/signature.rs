//! What goes into an operator and what comes out, and the checks that many operators share.

use super::error::ShapeError;
use crate::dtype::DType;

/// Shape and element type of one input.
pub type Signature<'a> = (&'a [usize], DType);

/// Shape and element type of one output.
pub type Inferred = (Vec<usize>, DType);

/// Exactly `N` inputs.
pub(super) fn exactly<'a, const N: usize>(
    inputs: &[Signature<'a>],
    expected: &'static str,
) -> Result<[Signature<'a>; N], ShapeError> {
    inputs.try_into().map_err(|_| ShapeError::InputCount {
        expected,
        found: inputs.len(),
    })
}

/// `N` inputs and perhaps one more.
pub(super) fn with_optional<'a, const N: usize>(
    inputs: &[Signature<'a>],
    expected: &'static str,
) -> Result<([Signature<'a>; N], Option<Signature<'a>>), ShapeError> {
    match inputs.len().checked_sub(N) {
        Some(0) => Ok((exactly(inputs, expected)?, None)),
        Some(1) => Ok((exactly(&inputs[..N], expected)?, Some(inputs[N]))),
        _ => Err(ShapeError::InputCount {
            expected,
            found: inputs.len(),
        }),
    }
}

/// All of these inputs have the same floating-point type, which is returned.
pub(super) fn floating(inputs: &[Signature<'_>]) -> Result<DType, ShapeError> {
    let first = inputs.first().map_or(DType::F32, |input| input.1);
    for (input, &(_, found)) in inputs.iter().enumerate() {
        let expected = match first {
            DType::I64 => "a floating-point type",
            DType::F32 => "f32, like input 0",
            DType::F64 => "f64, like input 0",
        };
        if first == DType::I64 || found != first {
            return Err(ShapeError::ElementType {
                input,
                expected,
                found,
            });
        }
    }
    Ok(first)
}

pub(super) fn integer(input: usize, (_, found): Signature<'_>) -> Result<(), ShapeError> {
    match found {
        DType::I64 => Ok(()),
        _ => Err(ShapeError::ElementType {
            input,
            expected: "i64",
            found,
        }),
    }
}

pub(super) fn expect_shape(
    input: usize,
    found: &[usize],
    expected: &[usize],
) -> Result<(), ShapeError> {
    if found == expected {
        return Ok(());
    }
    Err(ShapeError::Shape {
        input,
        expected: format!("{expected:?}"),
        found: found.to_vec(),
    })
}

pub(super) fn attribute(
    field: &'static str,
    value: impl std::fmt::Debug,
    remedy: impl Into<String>,
) -> ShapeError {
    ShapeError::Attribute {
        field,
        value: format!("{value:?}"),
        remedy: remedy.into(),
    }
}

pub(super) fn check_axis(axis: usize, rank: usize) -> Result<(), ShapeError> {
    if axis < rank {
        return Ok(());
    }
    Err(attribute(
        "axis",
        axis,
        format!("the input has {rank} axes, so it must be below {rank}"),
    ))
}
