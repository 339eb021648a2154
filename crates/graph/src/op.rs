//! The operators: what each reads, writes and means. Shapes are inferred in `shape/`, gradients
//! are built in `differentiate/`, kernels live in `scrimp-run`.
//!
//! Tensors are logically NCHW. The set is closed under differentiation: the gradient of every
//! operator is made of operators of this list. Input gradients and weight gradients are separate
//! operators, so that they become separate tasks.
//!
//! In the tables below `x, w[, b] -> y` lists inputs and outputs in order; brackets are optional.

use crate::data::Stream;
use crate::dtype::DType;

/// The window of a convolution or pooling over the last two axes (height, width).
/// [`Window::square`] and the methods after it make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Size of the kernel.
    pub kernel: [usize; 2],
    /// Step between windows.
    pub stride: [usize; 2],
    /// Step between a window's elements.
    pub dilation: [usize; 2],
    /// Padding before the first row and column.
    pub pad_begin: [usize; 2],
    /// Padding after the last row and column.
    pub pad_end: [usize; 2],
}

/// Where a tensor lies in a larger one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Its first element, per axis.
    pub start: Vec<usize>,
    /// Shape of the larger tensor.
    pub shape: Vec<usize>,
}

/// `f(x)`, element by element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    /// max(x, 0)
    Relu,
    /// x where x ≥ 0, else slope·x
    LeakyRelu {
        /// Not negative.
        slope: f64,
    },
    /// x·Φ(x), exactly (erf).
    Gelu,
    /// The tanh approximation of gelu, as GPT-2 uses it.
    GeluTanh,
    /// 1/(1+e^-x)
    Sigmoid,
    /// tanh(x)
    Tanh,
    /// min(max(x, lo), hi)
    Clip {
        /// May be -inf.
        lo: f64,
        /// May be +inf.
        hi: f64,
    },
    /// e^x
    Exp,
    /// ln x
    Log,
    /// √x
    Sqrt,
    /// erf(x)
    Erf,
    /// |x|
    Abs,
    /// x^exponent
    Pow {
        /// Any.
        exponent: f64,
    },
    /// x·sigmoid(x)
    Silu,
    /// scale·x + shift
    Affine {
        /// Factor.
        scale: f64,
        /// Addend.
        shift: f64,
    },
}

/// `f(a, b)`, element by element, with numpy's broadcasting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// a + b
    Add,
    /// a − b
    Sub,
    /// a · b
    Mul,
    /// a / b
    Div,
}

/// What a reduction does with the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Σ
    Sum,
    /// Σ / count
    Mean,
}

/// Which elements share a mean and a variance, and which share a scale and a shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Norm {
    /// Statistics per channel (axis 1) over all other axes; K = C.
    Batch,
    /// Statistics per sample and channel over the axes after 1; K = N·C.
    Instance,
    /// Statistics per sample and group of channels; K = N·groups.
    Group {
        /// Divides C.
        groups: usize,
    },
    /// Statistics per row over the axes from `axis` on; K = product of the axes before. Scale and
    /// shift have the shape of the axes from `axis` on.
    Layer {
        /// First normalized axis.
        axis: usize,
    },
}

/// How an update task changes a parameter. `hyper` is the tensor [learning rate, step number from 1].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// `param, grad, hyper[, velocity] -> param'[, velocity']`:
    /// g ← grad + weight_decay·param; v ← momentum·v + g; param ← param − lr·v (PyTorch's SGD).
    /// Velocity is there exactly if momentum ≠ 0.
    Sgd {
        /// 0 for none.
        momentum: f64,
        /// L2 penalty.
        weight_decay: f64,
    },
    /// `param, grad, hyper, m, v -> param', m', v'` (PyTorch's Adam, bias corrected).
    Adam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the denominator.
        epsilon: f64,
        /// L2 penalty.
        weight_decay: f64,
    },
}

/// An operator with its attributes.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `x[N,C,H,W], w[O,C/g,kh,kw][, b[O]] -> y[N,O,H',W']`
    Conv {
        /// Geometry.
        window: Window,
        /// Divides C and O.
        groups: usize,
    },
    /// `dy, w -> dx[N,C,H,W]`. Also the forward of a transposed convolution, whose weight has the
    /// shape [C_in, C_out/g, kh, kw].
    ConvInputGrad {
        /// Geometry of the convolution this is the gradient of.
        window: Window,
        /// Groups of that convolution.
        groups: usize,
        /// Height and width of dx.
        input_hw: [usize; 2],
    },
    /// `x, dy[, sum] -> dw`: sum (0 without it), plus the gradient. The gradients of several convolutions with one
    /// weight add up in place this way.
    ConvWeightGrad {
        /// Geometry of the convolution this is the gradient of.
        window: Window,
        /// Groups of that convolution.
        groups: usize,
    },
    /// `a[..,M,K], b[..,K,N][, addend] -> c[..,M,N]`. Leading axes broadcast; with `trans_*` the
    /// last two axes of that input are stored swapped. The addend is a bias `[N]`, or a sum of the shape of c.
    MatMul {
        /// a is stored as [..,K,M].
        trans_a: bool,
        /// b is stored as [..,N,K].
        trans_b: bool,
    },
    /// `x -> y`
    Unary(Unary),
    /// `saved, dy -> dx`; `saved` is what [`Unary::saves`] says, and isn't there if that is nothing.
    UnaryGrad(Unary),
    /// `a, b -> c`
    Binary(Binary),
    /// `x -> y`: reduce over the axes.
    Reduce {
        /// Sum or mean.
        kind: Reduction,
        /// Ascending.
        axes: Vec<usize>,
        /// Keep reduced axes with length 1.
        keep_dims: bool,
    },
    /// `x -> y`: sum what broadcasting to x's shape had copied; y has this shape.
    SumTo {
        /// Broadcasts to x's shape.
        shape: Vec<usize>,
    },
    /// `x -> y`: broadcast to this shape, times `scale`.
    Expand {
        /// x's shape broadcasts to it.
        shape: Vec<usize>,
        /// Factor (1/count for the gradient of a mean).
        scale: f64,
    },
    /// `-> y`: a tensor of one floating-point value.
    Fill {
        /// Shape.
        shape: Vec<usize>,
        /// The value.
        value: f64,
        /// A floating-point type.
        dtype: DType,
    },
    /// `-> y`: a box of the current batch of an array in a file, read anew each time. Such nodes take the place of slices
    /// of an input ([`crate::data::streamed()`]).
    Read {
        /// The array.
        from: Stream,
        /// First element, per axis.
        start: Vec<usize>,
        /// Shape.
        shape: Vec<usize>,
        /// A floating-point type.
        dtype: DType,
    },
    /// `x -> y`
    MaxPool {
        /// Geometry; padding is −∞.
        window: Window,
    },
    /// `x, dy -> dx`: to the first maximum of each window, in row-major order.
    MaxPoolGrad {
        /// Geometry.
        window: Window,
    },
    /// `x -> y`
    AvgPool {
        /// Geometry.
        window: Window,
        /// Whether padding counts in the divisor.
        count_pad: bool,
    },
    /// `dy -> dx`
    AvgPoolGrad {
        /// Geometry.
        window: Window,
        /// Whether padding counts in the divisor.
        count_pad: bool,
        /// Height and width of dx.
        input_hw: [usize; 2],
    },
    /// `x, scale[C], shift[C], running[2,C] -> y`. Only in graphs as imported: training expands it
    /// to statistics, application and an update of the running statistics; inference to the
    /// application of the running statistics.
    BatchNorm {
        /// Added to the variance.
        epsilon: f64,
        /// running ← (1 − momentum)·running + momentum·batch, with the unbiased variance (PyTorch's
        /// meaning; ONNX's is 1 − this).
        momentum: f64,
    },
    /// `x -> stats[2,K]`: means in row 0, biased variances in row 1.
    NormStats {
        /// What shares statistics.
        norm: Norm,
    },
    /// `x, stats, scale, shift -> y`, the activation of the normalized, scaled and shifted x.
    NormApply {
        /// What shares statistics.
        norm: Norm,
        /// Added to the variance.
        epsilon: f64,
        /// One that [`Unary::follows_norm`], in the same pass.
        activation: Option<Unary>,
    },
    /// `x, stats, scale, dy[, shift] -> dx, dscale, dshift`, dx through the statistics. What the
    /// activation did is computed again from x: shift is there exactly if there is an activation.
    NormGrad {
        /// What shares statistics.
        norm: Norm,
        /// Added to the variance.
        epsilon: f64,
        /// Of the normalization this is the gradient of.
        activation: Option<Unary>,
    },
    /// `x, stats, dy[, scale, shift] -> dscale, dshift`: [`Op::NormGrad`] where x needs no gradient. Scale
    /// and shift are there exactly if there is an activation.
    NormParamGrad {
        /// What shares statistics.
        norm: Norm,
        /// Added to the variance.
        epsilon: f64,
        /// Of the normalization this is the gradient of.
        activation: Option<Unary>,
    },
    /// `stats[2,C], running[2,C] -> running'`: update, not to be run twice.
    RunningStats {
        /// Weight of the batch.
        momentum: f64,
        /// Elements per channel, for the unbiased variance.
        count: usize,
    },
    /// `x -> y`
    Softmax {
        /// Which axis sums to 1.
        axis: usize,
    },
    /// `y, dy -> dx`
    SoftmaxGrad {
        /// Which axis sums to 1.
        axis: usize,
    },
    /// `x -> y`
    LogSoftmax {
        /// Which axis sums to 1 after exp.
        axis: usize,
    },
    /// `y, dy -> dx`
    LogSoftmaxGrad {
        /// Which axis sums to 1 after exp.
        axis: usize,
    },
    /// `x, seed[1] -> y`: x/(1−p) or 0, by a counter-based generator keyed by (seed, stream, index).
    /// Its gradient is itself, applied to dy, and a rerun gives the same bits.
    Dropout {
        /// Probability of 0.
        p: f64,
        /// Tells the dropouts of a graph apart.
        stream: u64,
        /// If x is a part of a tensor: indices are those of that tensor.
        place: Option<Place>,
    },
    /// `x -> y`
    Concat {
        /// Inputs are joined along it.
        axis: usize,
    },
    /// `x -> y`: `x[start : end : step]` on each axis.
    Slice {
        /// First index, per axis.
        start: Vec<usize>,
        /// One past the last index, per axis.
        end: Vec<usize>,
        /// Positive, per axis.
        step: Vec<usize>,
    },
    /// `dy[, sum] -> dx`: sum (0 without it), with dy added at the places that the slice read. The
    /// gradients of several slices of one tensor add up in place this way.
    SliceGrad {
        /// First index, per axis.
        start: Vec<usize>,
        /// Positive, per axis.
        step: Vec<usize>,
        /// Shape of dx.
        shape: Vec<usize>,
    },
    /// `x -> y`: constant padding.
    Pad {
        /// Elements before, per axis.
        begin: Vec<usize>,
        /// Elements after, per axis.
        end: Vec<usize>,
        /// The constant.
        value: f64,
    },
    /// `x -> y`: same elements, another shape. A view: lowering merges the two storages.
    Reshape {
        /// Same number of elements.
        shape: Vec<usize>,
    },
    /// `x -> y`
    Transpose {
        /// y's axis i is x's axis `perm[i]`.
        perm: Vec<usize>,
    },
    /// `x[N,C,H,W] -> y`: nearest neighbour by a whole factor.
    ResizeNearest {
        /// Per axis of height, width.
        factor: [usize; 2],
    },
    /// `dy -> dx`
    ResizeNearestGrad {
        /// Per axis of height, width.
        factor: [usize; 2],
    },
    /// `data, indices(i64) -> y`: `data` taken along the axis; embedding is axis 0.
    Gather {
        /// Axis of data that the indices select from.
        axis: usize,
    },
    /// `indices(i64), dy[, sum] -> ddata`: sum (0 without it), plus a scatter-add in a fixed order.
    GatherGrad {
        /// Axis of data.
        axis: usize,
        /// Shape of data.
        shape: Vec<usize>,
    },
    /// `logits[N,C,..], labels(i64)[N,..] -> loss[]`: mean negative log likelihood, softmax over axis 1.
    CrossEntropy,
    /// `logits, labels, dloss[] -> dlogits`
    CrossEntropyGrad,
    /// `prediction, target -> loss[]`: mean of squared differences.
    MeanSquaredError,
    /// `prediction, target, dloss[] -> dprediction`
    MeanSquaredErrorGrad,
    /// See [`Optimizer`]. Update, not to be run twice.
    Update(Optimizer),
}
