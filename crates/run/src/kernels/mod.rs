//! The kernels of the CPU device, one file per kind, and the table from operators to kernels.

pub mod activation;
pub mod conv;
pub mod elementwise;
pub mod flat;
pub mod gather;
pub mod gemm;
pub mod loss;
pub mod matmul;
pub mod norm;
pub mod patches;
pub mod pool;
pub mod reduce;
pub mod scratch;
pub mod shape;
pub mod softmax;
pub mod strides;
pub mod update;
pub mod windows;

use bytemuck::Pod;
use scrimp_graph::{DType, Op, Reduction};

use self::norm::Layout;
use crate::args::Args;
use crate::error::RunError;
use crate::format::Operand;
use crate::real::Real;
use crate::simd::Isa;

/// What a kernel may use: threads and an instruction set. Workspaces depend on both, results only on the
/// instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    pub slots: usize,
    pub isa: Isa,
}

fn unsupported(op: &Op, reason: &str) -> RunError {
    RunError::Unsupported {
        op: op.kind().into(),
        reason: reason.into(),
    }
}

/// Bytes of scratch that [`run`] needs for arguments of these shapes, which shape inference has accepted.
pub fn workspace(
    machine: Machine,
    layout: Layout,
    op: &Op,
    inputs: &[Operand<'_>],
    outputs: &[Operand<'_>],
) -> usize {
    match outputs.first().map(|output| output.dtype) {
        Some(DType::F64) => workspace_of::<f64>(machine, layout, op, inputs, outputs),
        _ => workspace_of::<f32>(machine, layout, op, inputs, outputs),
    }
}

fn workspace_of<T: Real>(
    Machine { slots, isa }: Machine,
    layout: Layout,
    op: &Op,
    inputs: &[Operand<'_>],
    outputs: &[Operand<'_>],
) -> usize {
    let (input, output) = (|i: usize| inputs[i].shape, |o: usize| outputs[o].shape);
    match op {
        Op::Conv { window, groups } => {
            conv::forward_workspace::<T>(slots, isa, window, *groups, input(0), output(0))
        }
        Op::ConvInputGrad { window, groups, .. } => {
            conv::input_grad_workspace::<T>(slots, isa, window, *groups, output(0), input(0))
        }
        Op::ConvWeightGrad { window, groups } => {
            conv::weight_grad_workspace::<T>(slots, isa, window, *groups, input(0), input(1))
        }
        Op::MatMul { trans_a, trans_b } => {
            let trans = [*trans_a, *trans_b];
            matmul::workspace::<T>(slots, isa, trans, input(0), input(1), output(0))
        }
        Op::MaxPool { window } => pool::max_workspace::<T>(slots, window, input(0), output(0)),
        Op::MaxPoolGrad { window } => {
            pool::max_grad_workspace::<T>(slots, window, output(0), input(1))
        }
        Op::AvgPool { window, .. } => {
            pool::average_workspace::<T>(slots, window, input(0), output(0))
        }
        Op::AvgPoolGrad { window, .. } => {
            pool::average_grad_workspace::<T>(slots, window, output(0), input(0))
        }
        Op::CrossEntropy => scratch::bytes::<f64>(loss::cross_entropy_sums(input(0))),
        Op::MeanSquaredError => {
            scratch::bytes::<f64>(loss::squared_error_sums(input(0).iter().product()))
        }
        Op::NormStats { norm } => norm::stats_workspace(layout, *norm, input(0)),
        Op::NormApply { norm, .. } => norm::apply_workspace::<T>(layout, *norm, input(0)),
        Op::NormGrad { norm, .. } => norm::gradients_workspace::<T>(layout, *norm, input(0), true),
        Op::NormParamGrad { norm, .. } => {
            norm::gradients_workspace::<T>(layout, *norm, input(0), false)
        }
        Op::Unary(_)
        | Op::UnaryGrad(_)
        | Op::Binary(_)
        | Op::Reduce { .. }
        | Op::SumTo { .. }
        | Op::Expand { .. }
        | Op::Fill { .. }
        | Op::Read { .. }
        | Op::BatchNorm { .. }
        | Op::RunningStats { .. }
        | Op::Softmax { .. }
        | Op::SoftmaxGrad { .. }
        | Op::LogSoftmax { .. }
        | Op::LogSoftmaxGrad { .. }
        | Op::Dropout { .. }
        | Op::Concat { .. }
        | Op::Slice { .. }
        | Op::SliceGrad { .. }
        | Op::Pad { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::ResizeNearest { .. }
        | Op::ResizeNearestGrad { .. }
        | Op::Gather { .. }
        | Op::GatherGrad { .. }
        | Op::CrossEntropyGrad
        | Op::MeanSquaredErrorGrad
        | Op::Update(_) => 0,
    }
}

/// Runs an operator; normalizations work on tensors in this layout.
pub fn run(machine: Machine, layout: Layout, op: &Op, args: Args<'_>) -> Result<(), RunError> {
    match args.outputs.dtype(0) {
        DType::F32 => run_on::<f32, u32>(machine, layout, op, args),
        DType::F64 => run_on::<f64, u64>(machine, layout, op, args),
        DType::I64 if moves(op) => run_on::<f64, u64>(machine, layout, op, args),
        DType::I64 => Err(unsupported(op, "it doesn't work on integers")),
    }
}

/// Whether the operator only moves elements, so that it works on any type. Padding with zero counts as such,
/// since the zero of integers has the same bits.
pub fn moves(op: &Op) -> bool {
    match op {
        Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Gather { .. } => true,
        Op::Pad { value, .. } => *value == 0.0 && value.is_sign_positive(),
        _ => false,
    }
}

/// Runs an operator on elements of type `T`, which have the same size as `W`.
fn run_on<T: Real, W: Pod + Send + Sync>(
    Machine { slots, isa }: Machine,
    layout: Layout,
    op: &Op,
    args: Args<'_>,
) -> Result<(), RunError> {
    match op {
        Op::Conv { window, groups } => conv::forward::<T>(slots, isa, window, *groups, args),
        Op::ConvInputGrad { window, groups, .. } => {
            conv::input_grad::<T>(slots, isa, window, *groups, args)
        }
        Op::ConvWeightGrad { window, groups } => {
            conv::weight_grad::<T>(slots, isa, window, *groups, args)
        }
        Op::MatMul { trans_a, trans_b } => {
            matmul::matmul::<T>(slots, isa, [*trans_a, *trans_b], args)
        }
        Op::Unary(f) => elementwise::unary::<T>(slots, *f, args),
        Op::UnaryGrad(f) => elementwise::unary_grad::<T>(slots, *f, args),
        Op::Binary(f) => elementwise::binary::<T>(slots, *f, args),
        Op::Reduce { kind, axes, .. } => {
            reduce::reduce::<T>(slots, axes, *kind == Reduction::Mean, args)
        }
        Op::SumTo { .. } => reduce::sum_to::<T>(slots, args),
        Op::Expand { scale, .. } => elementwise::expand::<T>(slots, *scale, args),
        Op::Fill { value, .. } => elementwise::fill::<T>(slots, *value, args),
        Op::Read { from, start, .. } => shape::read::<T>(from, start, args),
        Op::MaxPool { window } => pool::max::<T>(slots, window, args),
        Op::MaxPoolGrad { window } => pool::max_grad::<T>(slots, window, args),
        Op::AvgPool { window, count_pad } => pool::average::<T>(slots, window, *count_pad, args),
        Op::AvgPoolGrad {
            window, count_pad, ..
        } => pool::average_grad::<T>(slots, window, *count_pad, args),
        Op::BatchNorm { .. } => Err(unsupported(
            op,
            "batch normalization must be expanded for training or for inference first",
        )),
        Op::NormStats { norm } => norm::stats::<T>(slots, layout, *norm, args),
        Op::NormApply {
            norm,
            epsilon,
            activation,
        } => norm::apply::<T>(slots, layout, *norm, (*epsilon, *activation), args),
        Op::NormGrad {
            norm,
            epsilon,
            activation,
        } => norm::gradients::<T>(slots, layout, *norm, (*epsilon, *activation), args),
        Op::NormParamGrad {
            norm,
            epsilon,
            activation,
        } => norm::param_gradients::<T>(slots, layout, *norm, (*epsilon, *activation), args),
        Op::RunningStats { momentum, count } => update::running_stats::<T>(*momentum, *count, args),
        Op::Softmax { axis } => softmax::softmax::<T>(slots, *axis, false, args),
        Op::LogSoftmax { axis } => softmax::softmax::<T>(slots, *axis, true, args),
        Op::SoftmaxGrad { axis } => softmax::softmax_grad::<T>(slots, *axis, false, args),
        Op::LogSoftmaxGrad { axis } => softmax::softmax_grad::<T>(slots, *axis, true, args),
        Op::Dropout { p, stream, place } => {
            elementwise::dropout::<T>(slots, *p, *stream, place.as_ref(), args)
        }
        Op::Concat { axis } => shape::concat::<W>(slots, *axis, args),
        Op::Slice { start, step, .. } => shape::slice::<W>(slots, start, step, args),
        Op::SliceGrad { start, step, .. } => shape::slice_grad::<T>(slots, start, step, args),
        Op::Pad { begin, value, .. } => shape::pad::<T>(slots, begin, *value, args),
        Op::Reshape { .. } => shape::copy::<W>(slots, args),
        Op::Transpose { perm } => shape::transpose::<W>(slots, perm, args),
        Op::ResizeNearest { factor } => shape::resize_nearest::<T>(slots, *factor, args),
        Op::ResizeNearestGrad { factor } => shape::resize_nearest_grad::<T>(slots, *factor, args),
        Op::Gather { axis } => gather::gather::<W>(slots, *axis, args),
        Op::GatherGrad { axis, .. } => gather::gather_grad::<T>(slots, *axis, args),
        Op::CrossEntropy => loss::cross_entropy::<T>(slots, args),
        Op::CrossEntropyGrad => loss::cross_entropy_grad::<T>(slots, args),
        Op::MeanSquaredError => loss::squared_error::<T>(slots, args),
        Op::MeanSquaredErrorGrad => loss::squared_error_grad::<T>(slots, args),
        Op::Update(optimizer) => update::update::<T>(slots, *optimizer, args),
    }
}
