//! The outputs of every operator: which rule of the files beside this one applies.

use super::error::ShapeError;
use super::signature::{Inferred, Signature};
use super::size::checked_bytes;
use super::{elementwise, matrix, movement, normalize, update, window};
use crate::op::Op;

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
        Op::Fill { shape, dtype, .. } | Op::Read { shape, dtype, .. } => {
            one(elementwise::fill(inputs, shape, *dtype)?)
        }
        Op::Dropout { p, place, .. } => one(elementwise::dropout(inputs, *p, place.as_ref())?),
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
