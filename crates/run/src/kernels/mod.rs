//! The kernels of the CPU device, one file per kind, and the table from operators to kernels.

pub mod activation;
pub mod conv;
pub mod depthwise;
pub mod elementwise;
pub mod flat;
pub mod gather;
pub mod gemm;
pub mod loss;
pub mod matmul;
pub mod micro;
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

use scrimp_graph::{DType, Op, Reduction};

use self::norm::Layout;
use crate::args::Args;
use crate::error::RunError;
use crate::real::Real;
use crate::simd::Isa;

/// What a kernel may use: threads and an instruction set. Workspaces depend on both, results on the
/// instruction set only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Threads.
    pub slots: usize,
    /// Instruction set.
    pub isa: Isa,
}

/// Shape and element type of an argument.
pub type Signature<'a> = (&'a [usize], DType);

fn unsupported(op: &Op, reason: &str) -> RunError {
    RunError::Unsupported {
        op: op.kind().into(),
        reason: reason.into(),
    }
}

/// Bytes of scratch that [`run`] needs for arguments of these shapes, which shape inference accepted.
pub fn workspace(
    machine: Machine,
    op: &Op,
    inputs: &[Signature<'_>],
    outputs: &[Signature<'_>],
) -> usize {
    match outputs.first() {
        Some((_, DType::F64)) => workspace_of::<f64>(machine, op, inputs, outputs),
        _ => workspace_of::<f32>(machine, op, inputs, outputs),
    }
}

fn workspace_of<T: Real>(
    Machine { slots, isa }: Machine,
    op: &Op,
    inputs: &[Signature<'_>],
    outputs: &[Signature<'_>],
) -> usize {
    match op {
        Op::Conv { window, groups } => {
            conv::forward_workspace::<T>(slots, isa, window, *groups, inputs[0].0, outputs[0].0)
        }
        Op::ConvInputGrad { window, groups, .. } => {
            conv::input_grad_workspace::<T>(slots, isa, window, *groups, outputs[0].0, inputs[0].0)
        }
        Op::ConvWeightGrad { window, groups } => {
            conv::weight_grad_workspace::<T>(slots, isa, window, *groups, inputs[0].0, inputs[1].0)
        }
        Op::MatMul { trans_a, trans_b } => matmul::workspace::<T>(
            slots,
            isa,
            [*trans_a, *trans_b],
            inputs[0].0,
            inputs[1].0,
            outputs[0].0,
        ),
        Op::MaxPool { window } => {
            pool::max_workspace::<T>(slots, window, inputs[0].0, outputs[0].0)
        }
        Op::MaxPoolGrad { window } => {
            pool::max_grad_workspace::<T>(slots, window, outputs[0].0, inputs[1].0)
        }
        Op::AvgPool { window, .. } => {
            pool::average_workspace::<T>(slots, window, inputs[0].0, outputs[0].0)
        }
        Op::AvgPoolGrad { window, .. } => {
            pool::average_grad_workspace::<T>(slots, window, outputs[0].0, inputs[0].0)
        }
        Op::CrossEntropy => scratch::bytes::<f64>(loss::cross_entropy_sums(inputs[0].0)),
        Op::MeanSquaredError => {
            scratch::bytes::<f64>(loss::squared_error_sums(inputs[0].0.iter().product()))
        }
        Op::NormGrad { .. } | Op::NormParamGrad { .. } => {
            norm::workspace::<T>(op, Layout::Rows, inputs[0].0)
        }
        _ => 0,
    }
}

/// Runs an operator. Operators that only move elements work on any type.
pub fn run(machine: Machine, op: &Op, args: Args<'_>) -> Result<(), RunError> {
    let slots = machine.slots;
    match args.outputs.dtype(0) {
        DType::F32 if is_movement(op) => movement::<u32>(slots, op, args),
        DType::F64 | DType::I64 if is_movement(op) => movement::<u64>(slots, op, args),
        DType::F32 => run_real::<f32>(machine, op, args),
        DType::F64 => run_real::<f64>(machine, op, args),
        DType::I64 => match op {
            _ if padding_zero(op) => run_real::<f64>(machine, op, args),
            _ => Err(unsupported(op, "it doesn't work on integers")),
        },
    }
}

/// Padding with zero moves integers too: their zero has the same bits.
fn padding_zero(op: &Op) -> bool {
    matches!(op, Op::Pad { value, .. } if *value == 0.0 && value.is_sign_positive())
}

fn is_movement(op: &Op) -> bool {
    matches!(
        op,
        Op::Concat { .. }
            | Op::Slice { .. }
            | Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Gather { .. }
    )
}

fn movement<W: bytemuck::Pod + Send + Sync>(
    slots: usize,
    op: &Op,
    args: Args<'_>,
) -> Result<(), RunError> {
    match op {
        Op::Concat { axis } => shape::concat::<W>(slots, *axis, args),
        Op::Slice { start, step, .. } => shape::slice::<W>(slots, start, step, args),
        Op::Reshape { .. } => shape::copy::<W>(slots, args),
        Op::Transpose { perm } => shape::transpose::<W>(slots, perm, args),
        Op::Gather { axis } => gather::gather::<W>(slots, *axis, args),
        _ => Err(unsupported(op, "it isn't a movement of elements")),
    }
}

fn run_real<T: Real>(
    Machine { slots, isa }: Machine,
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
        Op::NormStats { .. }
        | Op::NormApply { .. }
        | Op::NormGrad { .. }
        | Op::NormParamGrad { .. } => norm::run::<T>(slots, op, Layout::Rows, args),
        Op::RunningStats { momentum, count } => update::running_stats::<T>(*momentum, *count, args),
        Op::Softmax { axis } => softmax::softmax::<T>(slots, *axis, false, args),
        Op::LogSoftmax { axis } => softmax::softmax::<T>(slots, *axis, true, args),
        Op::SoftmaxGrad { axis } => softmax::softmax_grad::<T>(slots, *axis, false, args),
        Op::LogSoftmaxGrad { axis } => softmax::softmax_grad::<T>(slots, *axis, true, args),
        Op::Dropout { p, stream } => elementwise::dropout::<T>(slots, *p, *stream, args),
        Op::SliceGrad { start, step, .. } => shape::slice_grad::<T>(slots, start, step, args),
        Op::Pad { begin, value, .. } => shape::pad::<T>(slots, begin, *value, args),
        Op::ResizeNearest { factor } => shape::resize_nearest::<T>(slots, *factor, args),
        Op::ResizeNearestGrad { factor } => shape::resize_nearest_grad::<T>(slots, *factor, args),
        Op::GatherGrad { axis, .. } => gather::gather_grad::<T>(slots, *axis, args),
        Op::CrossEntropy => loss::cross_entropy::<T>(slots, args),
        Op::CrossEntropyGrad => loss::cross_entropy_grad::<T>(slots, args),
        Op::MeanSquaredError => loss::squared_error::<T>(slots, args),
        Op::MeanSquaredErrorGrad => loss::squared_error_grad::<T>(slots, args),
        Op::Update(optimizer) => update::update::<T>(slots, *optimizer, args),
        Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Gather { .. } => Err(unsupported(op, "it works on whole words")),
    }
}
