//! What planners and kernels need to know about an operator besides its meaning: what may or must
//! happen in place, what is a view, what may run twice, what a gradient saves.

use crate::op::{Op, Optimizer, Unary};

/// What the gradient of an elementwise function reads besides dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Saves {
    /// f(x)
    Output,
    /// x
    Input,
    /// Nothing: the derivative is a constant.
    Nothing,
}

impl Unary {
    /// What [`Op::UnaryGrad`] reads: the output wherever it determines the derivative, since the
    /// output is what the next operator keeps anyway, and the input can then die or be overwritten.
    ///
    /// At kinks the derivative is the one of the side towards zero or the flat side: relu and abs
    /// have 0 at x = 0, leaky relu its slope, clip has 0 at both bounds.
    pub fn saves(self) -> Saves {
        match self {
            Unary::Relu
            | Unary::LeakyRelu { .. }
            | Unary::Sigmoid
            | Unary::Tanh
            | Unary::Clip { .. }
            | Unary::Exp
            | Unary::Sqrt => Saves::Output,
            Unary::Affine { .. } => Saves::Nothing,
            Unary::Gelu
            | Unary::GeluTanh
            | Unary::Log
            | Unary::Erf
            | Unary::Abs
            | Unary::Pow { .. }
            | Unary::Silu => Saves::Input,
        }
    }

    /// Whether a normalization may apply it in the same pass ([`Op::NormApply`]): a choice between lines,
    /// whose result says which was chosen. To compute it again costs a gradient nothing beside reading x.
    pub fn follows_norm(self) -> bool {
        matches!(
            self,
            Unary::Relu | Unary::LeakyRelu { .. } | Unary::Clip { .. }
        )
    }
}

impl Op {
    /// The operator's name without attributes, for messages and statistics.
    pub fn kind(&self) -> &'static str {
        match self {
            Op::Conv { .. } => "Conv",
            Op::ConvInputGrad { .. } => "ConvInputGrad",
            Op::ConvWeightGrad { .. } => "ConvWeightGrad",
            Op::MatMul { .. } => "MatMul",
            Op::Unary(f) => f.kind(),
            Op::UnaryGrad(f) => f.grad_kind(),
            Op::Binary(f) => match f {
                crate::op::Binary::Add => "Add",
                crate::op::Binary::Sub => "Sub",
                crate::op::Binary::Mul => "Mul",
                crate::op::Binary::Div => "Div",
            },
            Op::Reduce { .. } => "Reduce",
            Op::SumTo { .. } => "SumTo",
            Op::Expand { .. } => "Expand",
            Op::Fill { .. } => "Fill",
            Op::MaxPool { .. } => "MaxPool",
            Op::MaxPoolGrad { .. } => "MaxPoolGrad",
            Op::AvgPool { .. } => "AvgPool",
            Op::AvgPoolGrad { .. } => "AvgPoolGrad",
            Op::BatchNorm { .. } => "BatchNorm",
            Op::NormStats { .. } => "NormStats",
            Op::NormApply { .. } => "NormApply",
            Op::NormParamGrad { .. } => "NormParamGrad",
            Op::NormGrad { .. } => "NormGrad",
            Op::RunningStats { .. } => "RunningStats",
            Op::Softmax { .. } => "Softmax",
            Op::SoftmaxGrad { .. } => "SoftmaxGrad",
            Op::LogSoftmax { .. } => "LogSoftmax",
            Op::LogSoftmaxGrad { .. } => "LogSoftmaxGrad",
            Op::Dropout { .. } => "Dropout",
            Op::Concat { .. } => "Concat",
            Op::Slice { .. } => "Slice",
            Op::SliceGrad { .. } => "SliceGrad",
            Op::Pad { .. } => "Pad",
            Op::Reshape { .. } => "Reshape",
            Op::Transpose { .. } => "Transpose",
            Op::ResizeNearest { .. } => "ResizeNearest",
            Op::ResizeNearestGrad { .. } => "ResizeNearestGrad",
            Op::Gather { .. } => "Gather",
            Op::GatherGrad { .. } => "GatherGrad",
            Op::CrossEntropy => "CrossEntropy",
            Op::CrossEntropyGrad => "CrossEntropyGrad",
            Op::MeanSquaredError => "MeanSquaredError",
            Op::MeanSquaredErrorGrad => "MeanSquaredErrorGrad",
            Op::Update(Optimizer::Sgd { .. }) => "Sgd",
            Op::Update(Optimizer::Adam { .. }) => "Adam",
        }
    }

    /// Whether the output shares the input's storage. Lowering merges the two; no task runs.
    pub fn is_view(&self) -> bool {
        matches!(self, Op::Reshape { .. })
    }

    /// Whether running it again gives the same result. What overwrites state may run only once.
    pub fn rerunnable(&self) -> bool {
        self.overwrites().is_empty()
    }

    /// The pairs (input, output) that always share a buffer: parameters, optimizer state and running
    /// statistics are updated in place.
    pub fn overwrites(&self) -> &'static [(usize, usize)] {
        match self {
            Op::RunningStats { .. } => &[(1, 0)],
            Op::Update(Optimizer::Sgd { momentum, .. }) if *momentum != 0.0 => &[(0, 0), (3, 1)],
            Op::Update(Optimizer::Sgd { .. }) => &[(0, 0)],
            Op::Update(Optimizer::Adam { .. }) => &[(0, 0), (3, 1), (4, 2)],
            _ => &[],
        }
    }

    /// The pairs (input, output) of which a kernel must accept any one sharing a buffer, provided
    /// that input and output have the same number of elements. The order is by preference: lowering
    /// takes the first whose input has no other use. The shared input is in no other input slot. Pairs
    /// of an optional input that isn't there don't count.
    pub fn in_place(&self) -> &'static [(usize, usize)] {
        match self {
            Op::Unary(_)
            | Op::NormApply { .. }
            | Op::Softmax { .. }
            | Op::LogSoftmax { .. }
            | Op::Dropout { .. }
            | Op::CrossEntropyGrad
            | Op::MeanSquaredErrorGrad => &[(0, 0)],
            Op::UnaryGrad(f) if f.saves() == Saves::Nothing => &[(0, 0)],
            Op::UnaryGrad(_) | Op::SoftmaxGrad { .. } | Op::LogSoftmaxGrad { .. } => {
                &[(1, 0), (0, 0)]
            }
            Op::Binary(_) => &[(0, 0), (1, 0)],
            Op::NormGrad { .. } => &[(3, 0), (0, 0)],
            Op::SliceGrad { .. } => &[(1, 0)],
            Op::GatherGrad { .. } => &[(2, 0)],
            Op::MaxPoolGrad { window } if window.tiles() => &[(0, 0)],
            _ => &[],
        }
    }
}

impl Unary {
    fn kind(self) -> &'static str {
        match self {
            Unary::Relu => "Relu",
            Unary::LeakyRelu { .. } => "LeakyRelu",
            Unary::Gelu => "Gelu",
            Unary::GeluTanh => "GeluTanh",
            Unary::Sigmoid => "Sigmoid",
            Unary::Tanh => "Tanh",
            Unary::Clip { .. } => "Clip",
            Unary::Exp => "Exp",
            Unary::Log => "Log",
            Unary::Sqrt => "Sqrt",
            Unary::Erf => "Erf",
            Unary::Abs => "Abs",
            Unary::Pow { .. } => "Pow",
            Unary::Silu => "Silu",
            Unary::Affine { .. } => "Affine",
        }
    }

    fn grad_kind(self) -> &'static str {
        match self {
            Unary::Relu => "ReluGrad",
            Unary::LeakyRelu { .. } => "LeakyReluGrad",
            Unary::Gelu => "GeluGrad",
            Unary::GeluTanh => "GeluTanhGrad",
            Unary::Sigmoid => "SigmoidGrad",
            Unary::Tanh => "TanhGrad",
            Unary::Clip { .. } => "ClipGrad",
            Unary::Exp => "ExpGrad",
            Unary::Log => "LogGrad",
            Unary::Sqrt => "SqrtGrad",
            Unary::Erf => "ErfGrad",
            Unary::Abs => "AbsGrad",
            Unary::Pow { .. } => "PowGrad",
            Unary::Silu => "SiluGrad",
            Unary::Affine { .. } => "AffineGrad",
        }
    }
}
