//! Shape inference: the shapes and element types of an operator's outputs, with every size checked.
//!
//! The files follow the kinds of operators: `window` (convolution, pooling), `matrix`, `elementwise`
//! (with broadcasting and reductions), `normalize`, `movement` (what copies elements), `update`.

mod elementwise;
mod matrix;
mod movement;
mod normalize;
mod update;
mod window;

use crate::error::ShapeError;
use crate::graph::DType;
use crate::op::Op;

pub use elementwise::broadcast;
pub(crate) use normalize::norm_shapes;
pub use window::window_count;

/// No tensor is larger.
pub const MAX_TENSOR_BYTES: u64 = 1 << 44;

/// No tensor has more axes.
pub const MAX_RANK: usize = 8;

/// Shape and element type of one input.
pub type Signature<'a> = (&'a [usize], DType);

/// Shape and element type of one output.
pub type Inferred = (Vec<usize>, DType);

/// The outputs of an operator applied to inputs of these shapes and types, in order. Never panics
/// and never overflows, whatever the attributes.
pub fn infer(op: &Op, inputs: &[Signature<'_>]) -> Result<Vec<Inferred>, ShapeError> {
    for &(shape, dtype) in inputs {
        checked_bytes(shape, dtype)?;
    }
    let outputs = dispatch(op, inputs)?;
    for (shape, dtype) in &outputs {
        checked_bytes(shape, *dtype)?;
    }
    Ok(outputs)
}

fn dispatch(op: &Op, inputs: &[Signature<'_>]) -> Result<Vec<Inferred>, ShapeError> {
    let one = |(shape, dtype): Inferred| vec![(shape, dtype)];
    Ok(match op {
        Op::Conv { window, groups } => one(window::conv(inputs, window, *groups)?),
        Op::ConvInputGrad {
            window,
            groups,
            input_hw,
        } => one(window::conv_input_grad(inputs, window, *groups, *input_hw)?),
        Op::ConvWeightGrad { window, groups } => {
            one(window::conv_weight_grad(inputs, window, *groups)?)
        }
        Op::MaxPool { window } | Op::AvgPool { window, .. } => one(window::pool(inputs, window)?),
        Op::MaxPoolGrad { window } => one(window::max_pool_grad(inputs, window)?),
        Op::AvgPoolGrad {
            window, input_hw, ..
        } => one(window::avg_pool_grad(inputs, window, *input_hw)?),
        Op::ResizeNearest { factor } => one(window::resize(inputs, *factor)?),
        Op::ResizeNearestGrad { factor } => one(window::resize_grad(inputs, *factor)?),
        Op::MatMul { trans_a, trans_b } => one(matrix::matmul(inputs, *trans_a, *trans_b)?),
        Op::Unary(f) => one(elementwise::unary(inputs, *f)?),
        Op::UnaryGrad(f) => one(elementwise::unary_grad(inputs, *f)?),
        Op::Binary(_) => one(elementwise::binary(inputs)?),
        Op::Reduce {
            axes, keep_dims, ..
        } => one(elementwise::reduce(inputs, axes, *keep_dims)?),
        Op::SumTo { shape } => one(elementwise::sum_to(inputs, shape)?),
        Op::Expand { shape, scale } => one(elementwise::expand(inputs, shape, *scale)?),
        Op::Fill { shape, dtype, .. } => one(elementwise::fill(inputs, shape, *dtype)?),
        Op::Dropout { p, .. } => one(elementwise::dropout(inputs, *p)?),
        Op::BatchNorm { epsilon, momentum } => {
            one(normalize::batch_norm(inputs, *epsilon, *momentum)?)
        }
        Op::NormStats { norm } => one(normalize::stats(inputs, *norm)?),
        Op::NormApply {
            norm,
            epsilon,
            activation,
        } => one(normalize::apply(inputs, *norm, *epsilon, *activation)?),
        Op::NormGrad {
            norm,
            epsilon,
            activation,
        } => normalize::gradients(inputs, *norm, *epsilon, *activation)?,
        Op::NormParamGrad {
            norm,
            epsilon,
            activation,
        } => normalize::param_grad(inputs, *norm, *epsilon, *activation)?,
        Op::RunningStats { momentum, count } => one(normalize::running(inputs, *count, *momentum)?),
        Op::Softmax { axis } | Op::LogSoftmax { axis } => one(normalize::softmax(inputs, *axis)?),
        Op::SoftmaxGrad { axis } | Op::LogSoftmaxGrad { axis } => {
            one(normalize::softmax_grad(inputs, *axis)?)
        }
        Op::Concat { axis } => one(movement::concat(inputs, *axis)?),
        Op::Slice { start, end, step } => one(movement::slice(inputs, start, end, step)?),
        Op::SliceGrad { start, step, shape } => {
            one(movement::slice_grad(inputs, start, step, shape)?)
        }
        Op::Pad { begin, end, .. } => one(movement::pad(inputs, begin, end)?),
        Op::Reshape { shape } => one(movement::reshape(inputs, shape)?),
        Op::Transpose { perm } => one(movement::transpose(inputs, perm)?),
        Op::Gather { axis } => one(movement::gather(inputs, *axis)?),
        Op::GatherGrad { axis, shape } => one(movement::gather_grad(inputs, *axis, shape)?),
        Op::CrossEntropy => one(update::cross_entropy(inputs)?),
        Op::CrossEntropyGrad => one(update::cross_entropy_grad(inputs)?),
        Op::MeanSquaredError => one(update::squared_error(inputs)?),
        Op::MeanSquaredErrorGrad => one(update::squared_error_grad(inputs)?),
        Op::Update(optimizer) => update::optimizer(inputs, *optimizer)?,
    })
}

/// Bytes of a tensor, or why there can't be one of this shape.
pub fn checked_bytes(shape: &[usize], dtype: DType) -> Result<u64, ShapeError> {
    if shape.len() > MAX_RANK {
        return Err(ShapeError::TooManyAxes {
            rank: shape.len(),
            limit: MAX_RANK,
        });
    }
    if shape.contains(&0) {
        return Err(ShapeError::Empty {
            shape: shape.to_vec(),
        });
    }
    shape
        .iter()
        .try_fold(dtype.bytes(), |bytes, &len| bytes.checked_mul(len as u64))
        .filter(|&bytes| bytes <= MAX_TENSOR_BYTES)
        .ok_or_else(|| too_large(shape))
}

/// The number of elements of a shape whose size has been checked.
pub fn elements(shape: &[usize]) -> usize {
    shape.iter().product()
}

fn too_large(shape: &[usize]) -> ShapeError {
    ShapeError::TooLarge {
        shape: shape.to_vec(),
        limit: MAX_TENSOR_BYTES,
    }
}

/// Exactly `N` inputs.
fn exactly<'a, const N: usize>(
    inputs: &[Signature<'a>],
    expected: &'static str,
) -> Result<[Signature<'a>; N], ShapeError> {
    inputs.try_into().map_err(|_| ShapeError::InputCount {
        expected,
        found: inputs.len(),
    })
}

/// `N` inputs and perhaps one more.
fn with_optional<'a, const N: usize>(
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
fn floating(inputs: &[Signature<'_>]) -> Result<DType, ShapeError> {
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

fn integer(input: usize, (_, found): Signature<'_>) -> Result<(), ShapeError> {
    match found {
        DType::I64 => Ok(()),
        _ => Err(ShapeError::ElementType {
            input,
            expected: "i64",
            found,
        }),
    }
}

fn expect_shape(input: usize, found: &[usize], expected: &[usize]) -> Result<(), ShapeError> {
    if found == expected {
        return Ok(());
    }
    Err(ShapeError::Shape {
        input,
        expected: format!("{expected:?}"),
        found: found.to_vec(),
    })
}

fn attribute(
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

fn check_axis(axis: usize, rank: usize) -> Result<(), ShapeError> {
    if axis < rank {
        return Ok(());
    }
    Err(attribute(
        "axis",
        axis,
        format!("the input has {rank} axes, so it must be below {rank}"),
    ))
}
