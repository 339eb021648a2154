//! What planners and kernels need to know about an operator besides its meaning: what may or must
//! happen in place, what is a view, what may run twice, what a gradient saves.

use crate::op::{Binary, Op, Optimizer, Unary};

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
                Binary::Add => "Add",
                Binary::Sub => "Sub",
                Binary::Mul => "Mul",
                Binary::Div => "Div",
            },
            Op::Reduce { .. } => "Reduce",
            Op::SumTo { .. } => "SumTo",
            Op::Expand { .. } => "Expand",
            Op::Fill { .. } => "Fill",
            Op::Read { .. } => "Read",
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
        self.effects().view
    }

    /// Whether running it changes parameters, optimizer state or running statistics. Such an operator
    /// runs once per step; any other gives the same result whenever it runs again.
    pub fn changes_state(&self) -> bool {
        self.effects().changes_state
    }

    /// The pairs (input, output) that always share a buffer.
    pub fn overwrites(&self) -> &'static [(usize, usize)] {
        self.effects().overwrites
    }

    /// The pairs (input, output) of which a kernel must accept any one sharing a buffer, provided
    /// that input and output have the same number of elements. The order is by preference: lowering
    /// takes the first whose input has no other use. The shared input is in no other input slot. Pairs
    /// of an optional input that isn't there don't count.
    pub fn in_place(&self) -> &'static [(usize, usize)] {
        self.effects().in_place
    }

    fn effects(&self) -> Effects {
        match self {
            Op::Reshape { .. } => Effects { view: true, ..PURE },
            Op::RunningStats { .. } => updates(&[(1, 0)]),
            Op::Update(Optimizer::Sgd { momentum, .. }) if *momentum != 0.0 => {
                updates(&[(0, 0), (3, 1)])
            }
            Op::Update(Optimizer::Sgd { .. }) => updates(&[(0, 0)]),
            Op::Update(Optimizer::Adam { .. }) => updates(&[(0, 0), (3, 1), (4, 2)]),
            Op::Unary(_)
            | Op::NormApply { .. }
            | Op::Softmax { .. }
            | Op::LogSoftmax { .. }
            | Op::Dropout { .. }
            | Op::CrossEntropyGrad
            | Op::MeanSquaredErrorGrad => may_share(&[(0, 0)]),
            Op::UnaryGrad(f) if f.saves() == Saves::Nothing => may_share(&[(0, 0)]),
            Op::UnaryGrad(_) | Op::SoftmaxGrad { .. } | Op::LogSoftmaxGrad { .. } => {
                may_share(&[(1, 0), (0, 0)])
            }
            Op::Binary(_) => may_share(&[(0, 0), (1, 0)]),
            Op::NormGrad { .. } => may_share(&[(3, 0), (0, 0)]),
            Op::SliceGrad { .. } => may_share(&[(1, 0)]),
            Op::GatherGrad { .. } | Op::ConvWeightGrad { .. } | Op::MatMul { .. } => {
                may_share(&[(2, 0)])
            }
            Op::MaxPoolGrad { window } if window.tiles() => may_share(&[(0, 0)]),
            Op::Conv { .. }
            | Op::ConvInputGrad { .. }
            | Op::Reduce { .. }
            | Op::SumTo { .. }
            | Op::Expand { .. }
            | Op::Fill { .. }
            | Op::Read { .. }
            | Op::MaxPool { .. }
            | Op::MaxPoolGrad { .. }
            | Op::AvgPool { .. }
            | Op::AvgPoolGrad { .. }
            | Op::BatchNorm { .. }
            | Op::NormStats { .. }
            | Op::NormParamGrad { .. }
            | Op::Concat { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Transpose { .. }
            | Op::ResizeNearest { .. }
            | Op::ResizeNearestGrad { .. }
            | Op::Gather { .. }
            | Op::CrossEntropy
            | Op::MeanSquaredError => PURE,
        }
    }
}

/// What an operator does to memory besides writing its outputs. [`Op::effects`] names every operator,
/// so that a new one can't be taken for harmless by omission.
struct Effects {
    view: bool,
    changes_state: bool,
    overwrites: &'static [(usize, usize)],
    in_place: &'static [(usize, usize)],
}

const PURE: Effects = Effects {
    view: false,
    changes_state: false,
    overwrites: &[],
    in_place: &[],
};

/// Changes what these inputs hold, in place.
const fn updates(overwrites: &'static [(usize, usize)]) -> Effects {
    Effects {
        changes_state: true,
        overwrites,
        ..PURE
    }
}

/// May write an output over one of these inputs.
const fn may_share(in_place: &'static [(usize, usize)]) -> Effects {
    Effects { in_place, ..PURE }
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
