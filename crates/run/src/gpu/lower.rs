//! The table from operators to launches of kernels.

use scrimp_graph::{Binary, DType, Op, Optimizer, Place, Reduction, Unary};

use super::norm;
use super::program::Argument::{Input, Output};
use super::program::{Argument, Builder, Program, Walk, constant, sized, team, unsupported, word};
use super::windows;
use crate::error::RunError;
use crate::format::Operand;
use crate::kernels::shape::{dims, region};
use crate::kernels::strides::{broadcast_steps, contiguous};

/// What an operator on arguments in rows runs.
///
/// # Errors
/// The operator has no kernel for these arguments.
pub fn lower(
    op: &Op,
    inputs: &[Operand<'_>],
    outputs: &[Operand<'_>],
) -> Result<Program, RunError> {
    let mut b = Builder::new(op, inputs, outputs)?;
    if b.outputs.iter().any(|output| output.dtype == DType::I64) && !crate::kernels::moves(op) {
        return Err(unsupported(op, "it doesn't work on integers"));
    }
    match op {
        Op::Conv { window, groups } => windows::conv(&mut b, window, *groups),
        Op::ConvInputGrad { window, groups, .. } => {
            windows::conv_input_grad(&mut b, window, *groups)
        }
        Op::ConvWeightGrad { window, groups } => windows::conv_weight_grad(&mut b, window, *groups),
        Op::MatMul { trans_a, trans_b } => matmul(&mut b, *trans_a, *trans_b),
        Op::Unary(f) => unary(&mut b, *f),
        Op::UnaryGrad(f) => unary_grad(&mut b, *f),
        Op::Binary(f) => binary(&mut b, *f),
        Op::Reduce { kind, axes, .. } => {
            sums(
                &mut b,
                |axis| axes.contains(&axis),
                *kind == Reduction::Mean,
            );
        }
        Op::SumTo { shape } => {
            let steps = broadcast_steps(shape, b.shape(0).len());
            sums(&mut b, |axis| steps[axis] == 0, false);
        }
        Op::Expand { scale, .. } => {
            let walk = Walk::broadcast(b.shape(0), b.to());
            let arguments = vec![
                Input(0),
                Output(0),
                word(b.count()),
                b.real(*scale),
                constant(&walk),
            ];
            b.items("expand", b.count(), arguments);
        }
        Op::Fill { value, .. } => fill(&mut b, *value),
        Op::Read { .. } => return Err(unsupported(op, "a GPU can't read files")),
        Op::MaxPool { window } => windows::max_pool(&mut b, window),
        Op::MaxPoolGrad { window } => windows::max_pool_grad(&mut b, window),
        Op::AvgPool { window, count_pad } => windows::average_pool(&mut b, window, *count_pad),
        Op::AvgPoolGrad {
            window, count_pad, ..
        } => {
            windows::average_pool_grad(&mut b, window, *count_pad);
        }
        Op::BatchNorm { .. } => {
            let reason = "batch normalization must be expanded for training or for inference first";
            return Err(unsupported(op, reason));
        }
        Op::NormStats { norm } => norm::stats(&mut b, *norm),
        Op::NormApply {
            norm,
            epsilon,
            activation,
        } => {
            norm::apply(&mut b, *norm, *epsilon, *activation);
        }
        Op::NormGrad {
            norm,
            epsilon,
            activation,
        } => {
            norm::gradients(&mut b, *norm, *epsilon, *activation);
        }
        Op::NormParamGrad {
            norm,
            epsilon,
            activation,
        } => {
            norm::param_gradients(&mut b, *norm, *epsilon, *activation);
        }
        Op::RunningStats { momentum, count } => {
            let unbiased = *count as f64 / (*count).max(2).saturating_sub(1) as f64;
            let numbers = [b.real(*momentum), b.real(unbiased)];
            elementwise(&mut b, "running_stats", 2, numbers);
        }
        Op::Softmax { axis } => softmax(&mut b, *axis, false),
        Op::LogSoftmax { axis } => softmax(&mut b, *axis, true),
        Op::SoftmaxGrad { axis } => softmax_grad(&mut b, *axis, false),
        Op::LogSoftmaxGrad { axis } => softmax_grad(&mut b, *axis, true),
        Op::Dropout { p, stream, place } => {
            let whole = match place {
                None => Walk::straight(b.count()),
                Some(Place { shape, start }) => {
                    if shape.iter().product::<usize>() >= 1 << 32 {
                        let reason = "it is a part of a tensor of 2³² elements or more";
                        return Err(unsupported(op, reason));
                    }
                    let (base, steps) = region(shape, start, &vec![1; shape.len()]);
                    Walk::new(b.to(), &steps).from(base)
                }
            };
            // As in the CPU's kernel: the draw is below the threshold with probability p.
            let threshold = (p * 4_294_967_296.0) as u64;
            let numbers = [
                constant(stream),
                constant(&threshold),
                b.real(1.0 / (1.0 - p)),
                constant(&whole),
            ];
            elementwise(&mut b, "dropout", 2, numbers);
        }
        Op::Concat { axis } => concat(&mut b, *axis),
        Op::Slice { start, step, .. } => {
            let (base, steps) = region(b.shape(0), start, step);
            let walk = Walk::new(b.to(), &steps).from(base);
            move_elements(&mut b, "take", 0, walk);
        }
        Op::SliceGrad { start, step, .. } => {
            start_from(&mut b, 1);
            let (base, steps) = region(b.to(), start, step);
            let walk = Walk::new(b.shape(0), &steps).from(base);
            move_elements(&mut b, "add_to", 0, walk);
        }
        Op::Pad { begin, value, .. } => {
            fill(&mut b, *value);
            let (base, steps) = region(b.to(), begin, &[1; 8]);
            let walk = Walk::new(b.shape(0), &steps).from(base);
            move_elements(&mut b, "place", 0, walk);
        }
        Op::Reshape { .. } => {
            let walk = Walk::straight(b.count());
            move_elements(&mut b, "take", 0, walk);
        }
        Op::Transpose { perm } => {
            let from = contiguous(b.shape(0));
            let steps: Vec<usize> = perm.iter().map(|&axis| from[axis]).collect();
            let walk = Walk::new(b.to(), &steps);
            move_elements(&mut b, "take", 0, walk);
        }
        Op::ResizeNearest {
            factor: [down, right],
        } => {
            let [n, c, h, w] = dims(b.shape(0));
            let walk = Walk::new(&[n * c, h, *down, w, *right], &[h * w, w, 0, 1, 0]);
            move_elements(&mut b, "take", 0, walk);
        }
        Op::ResizeNearestGrad {
            factor: [down, right],
        } => {
            let [n, c, h, w] = dims(b.to());
            let wide = w * right;
            let kept = Walk::new(&[n * c, h, w], &[h * down * wide, down * wide, *right]);
            let summed = Walk::new(&[*down, *right], &[wide, 1]);
            reduce(
                &mut b,
                [Input(0), Output(0)],
                [n * c * h * w, down * right],
                1.0,
                [kept, summed],
            );
        }
        Op::Gather { axis } => gather(&mut b, *axis),
        Op::GatherGrad { axis, .. } => gather_grad(&mut b, *axis),
        Op::CrossEntropy => cross_entropy(&mut b),
        Op::CrossEntropyGrad => cross_entropy_grad(&mut b),
        Op::MeanSquaredError => {
            let count = word(b.shape(0).iter().product());
            b.groups(
                "squared_error",
                1,
                vec![Input(0), Input(1), Output(0), count],
            );
        }
        Op::MeanSquaredErrorGrad => elementwise(&mut b, "squared_error_grad", 3, []),
        Op::Update(optimizer) => update(&mut b, *optimizer),
    }
    Ok(b.finish())
}

/// The number of a function in `kernels/elementwise.cl`, and its constants.
pub fn function(f: Option<Unary>) -> (u32, f64, f64) {
    match f {
        Some(Unary::Relu) => (0, 0.0, 0.0),
        Some(Unary::LeakyRelu { slope }) => (1, slope, 0.0),
        Some(Unary::Clip { lo, hi }) => (2, lo, hi),
        Some(Unary::Gelu) => (3, 0.0, 0.0),
        Some(Unary::GeluTanh) => (4, 0.0, 0.0),
        Some(Unary::Sigmoid) => (5, 0.0, 0.0),
        Some(Unary::Tanh) => (6, 0.0, 0.0),
        Some(Unary::Exp) => (7, 0.0, 0.0),
        Some(Unary::Log) => (8, 0.0, 0.0),
        Some(Unary::Sqrt) => (9, 0.0, 0.0),
        Some(Unary::Erf) => (10, 0.0, 0.0),
        Some(Unary::Abs) => (11, 0.0, 0.0),
        Some(Unary::Pow { exponent: 2.0 }) => (12, 0.0, 0.0),
        Some(Unary::Pow { exponent }) => (13, exponent, 0.0),
        Some(Unary::Silu) => (14, 0.0, 0.0),
        Some(Unary::Affine { scale, shift }) => (15, scale, shift),
        None => (16, 0.0, 0.0),
    }
}

/// A kernel on so many inputs, output 0 and its number of elements, with these constants.
fn elementwise(
    b: &mut Builder<'_>,
    kernel: &'static str,
    inputs: usize,
    constants: impl IntoIterator<Item = Argument>,
) {
    let tensors = (0..inputs).map(Input).chain([Output(0), word(b.count())]);
    b.items(kernel, b.count(), tensors.chain(constants).collect());
}

fn unary(b: &mut Builder<'_>, f: Unary) {
    let (number, x, y) = function(Some(f));
    let constants = [constant(&number), b.real(x), b.real(y)];
    elementwise(b, "unary", 1, constants);
}

fn unary_grad(b: &mut Builder<'_>, f: Unary) {
    if let Unary::Affine { scale, .. } = f {
        return unary(b, Unary::Affine { scale, shift: 0.0 });
    }
    let (number, x, y) = function(Some(f));
    let constants = [constant(&number), b.real(x), b.real(y)];
    elementwise(b, "unary_grad", 2, constants);
}

fn binary(b: &mut Builder<'_>, f: Binary) {
    let number: u32 = match f {
        Binary::Add => 0,
        Binary::Sub => 1,
        Binary::Mul => 2,
        Binary::Div => 3,
    };
    let walks = [0, 1].map(|input| constant(&Walk::broadcast(b.shape(input), b.to())));
    elementwise(b, "binary", 2, [constant(&number)].into_iter().chain(walks));
}

fn fill(b: &mut Builder<'_>, value: f64) {
    let arguments = vec![Output(0), word(b.count()), b.real(value)];
    b.items("fill", b.count(), arguments);
}

/// Output 0 as a copy of this input, or as zero without it.
pub fn start_from(b: &mut Builder<'_>, input: usize) {
    if b.inputs.len() <= input {
        return fill(b, 0.0);
    }
    let walk = Walk::straight(b.count());
    move_elements(b, "take", input, walk);
}

/// Adds elements that lie as the output's do to the output.
pub fn add_all(b: &mut Builder<'_>, from: Argument) {
    let (count, walk) = (b.count(), Walk::straight(b.count()));
    let arguments = vec![from, Output(0), word(count), constant(&walk)];
    b.items("add_to", count, arguments);
}

/// A kernel that takes an input's elements on a walk, or puts them where a walk goes.
fn move_elements(b: &mut Builder<'_>, kernel: &'static str, input: usize, walk: Walk) {
    let count = match kernel {
        "take" => b.count(),
        _ => b.shape(input).iter().product(),
    };
    b.items(
        kernel,
        count,
        vec![Input(input), Output(0), word(count), constant(&walk)],
    );
}

fn concat(b: &mut Builder<'_>, axis: usize) {
    let (to, steps) = (b.to(), contiguous(b.to()));
    let mut first = 0;
    for input in 0..b.inputs.len() {
        let walk = Walk::new(b.shape(input), &steps[..to.len()]).from(first);
        first += b.shape(input)[axis] * steps[axis];
        move_elements(b, "place", input, walk);
    }
}

/// Sums over some axes, or means.
fn sums(b: &mut Builder<'_>, summed: impl Fn(usize) -> bool, mean: bool) {
    let (shape, steps) = (b.shape(0), contiguous(b.shape(0)));
    let part = |wanted: bool| {
        let axes = (0..shape.len()).filter(|&axis| summed(axis) == wanted);
        let (lengths, steps): (Vec<usize>, Vec<usize>) =
            axes.map(|axis| (shape[axis], steps[axis])).unzip();
        (
            Walk::new(&lengths, &steps),
            lengths.iter().product::<usize>(),
        )
    };
    let ((kept, lines), (walk, length)) = (part(false), part(true));
    let scale = if mean { 1.0 / length as f64 } else { 1.0 };
    reduce(
        b,
        [Input(0), Output(0)],
        [lines, length],
        scale,
        [kept, walk],
    );
}

pub fn reduce(
    b: &mut Builder<'_>,
    [from, to]: [Argument; 2],
    [lines, length]: [usize; 2],
    scale: f64,
    [kept, summed]: [Walk; 2],
) {
    let team = team(length);
    let scale = b.real(scale);
    let sizes = [
        word(lines),
        word(length),
        word(team),
        scale,
        constant(&kept),
        constant(&summed),
    ];
    b.items(
        "reduce",
        lines * team,
        [from, to].into_iter().chain(sizes).collect(),
    );
}

fn matmul(b: &mut Builder<'_>, trans_a: bool, trans_b: bool) {
    let (x, y, to) = (b.shape(0), b.shape(1), b.to());
    let lead = to.len() - 2;
    let (rows, columns) = (to[lead], to[lead + 1]);
    let depth = x[x.len() - if trans_a { 2 } else { 1 }];
    let steps =
        |swapped: bool, inner: usize, outer: usize| if swapped { [1, outer] } else { [inner, 1] };
    let ([a_row, a_column], [b_row, b_column]) =
        (steps(trans_a, depth, rows), steps(trans_b, columns, depth));
    let sizes = [rows, columns, depth, a_row, a_column, b_row, b_column].map(|size| size as u32);
    // Nothing, a bias, or a sum of the product's shape is added.
    let addend = match b.inputs.get(2) {
        None => 0,
        Some(bias) if bias.shape.len() == 1 => 1,
        Some(_) => 2,
    };
    let arguments = vec![
        Input(0),
        Input(1),
        Input(if addend > 0 { 2 } else { 0 }),
        Output(0),
        word(addend),
        constant(&sizes),
        constant(&batches(x, to, rows * depth)),
        constant(&batches(y, to, depth * columns)),
    ];
    let batch: usize = to[..lead].iter().product();
    b.product(sized!("matmul"), [rows, columns, batch], arguments);
}

/// A walk through the matrices, of so many elements each, that the batches of a product of shape `to` have of a factor.
pub fn batches(factor: &[usize], to: &[usize], matrix: usize) -> Walk {
    let lead = to.len() - 2;
    let steps = broadcast_steps(&factor[..factor.len() - 2], lead);
    Walk::new(&to[..lead], &steps.map(|step| step * matrix))
}

/// Number of lines along an axis, their length, and the distance between a line's elements.
fn lines(shape: &[usize], axis: usize) -> [usize; 3] {
    let inner: usize = shape[axis + 1..].iter().product();
    [
        shape[..axis].iter().product::<usize>() * inner,
        shape[axis],
        inner,
    ]
}

fn softmax(b: &mut Builder<'_>, axis: usize, logarithm: bool) {
    let sizes = lines(b.to(), axis);
    let team = team(sizes[1]);
    let constants = sizes
        .map(word)
        .into_iter()
        .chain([word(team), word(usize::from(logarithm))]);
    let arguments = [Input(0), Output(0)].into_iter().chain(constants).collect();
    b.items("softmax", sizes[0] * team, arguments);
}

fn softmax_grad(b: &mut Builder<'_>, axis: usize, logarithm: bool) {
    let sizes = lines(b.to(), axis);
    let team = team(sizes[1]);
    let constants = sizes
        .map(word)
        .into_iter()
        .chain([word(team), word(usize::from(logarithm))]);
    let arguments = [Input(0), Input(1), Output(0)]
        .into_iter()
        .chain(constants)
        .collect();
    b.items("softmax_grad", sizes[0] * team, arguments);
}

fn gather(b: &mut Builder<'_>, axis: usize) {
    let shape = b.shape(0);
    let (n, inner): (usize, usize) = (
        b.shape(1).iter().product(),
        shape[axis + 1..].iter().product(),
    );
    b.check(1, -(shape[axis] as i64), shape[axis]);
    elementwise(b, "gather", 2, [n, shape[axis], inner].map(word));
}

fn gather_grad(b: &mut Builder<'_>, axis: usize) {
    let to = b.to();
    let (n, inner): (usize, usize) = (b.shape(0).iter().product(), to[axis + 1..].iter().product());
    b.check(0, -(to[axis] as i64), to[axis]);
    start_from(b, 2);
    let columns = to[..axis].iter().product::<usize>() * inner;
    let sizes = [columns, n, to[axis], inner].map(word);
    b.items(
        "gather_grad",
        columns,
        [Input(0), Input(1), Output(0)]
            .into_iter()
            .chain(sizes)
            .collect(),
    );
}

fn cross_entropy(b: &mut Builder<'_>) {
    let sizes = lines(b.shape(0), 1);
    let team = team(sizes[1]);
    b.check(1, 0, sizes[1]);
    let losses = b.scratch(sizes[0]);
    let tensors = [Input(0), Input(1), losses.clone()].into_iter();
    let constants = sizes.map(word).into_iter().chain([word(team)]);
    b.items(
        "line_losses",
        sizes[0] * team,
        tensors.chain(constants).collect(),
    );
    let walks = [Walk::straight(1), Walk::straight(sizes[0])];
    reduce(
        b,
        [losses, Output(0)],
        [1, sizes[0]],
        1.0 / sizes[0] as f64,
        walks,
    );
}

fn cross_entropy_grad(b: &mut Builder<'_>) {
    let sizes = lines(b.shape(0), 1);
    b.check(1, 0, sizes[1]);
    softmax(b, 1, false);
    let constants = [word(b.count())].into_iter().chain(sizes.map(word));
    let arguments = [Input(1), Input(2), Output(0)]
        .into_iter()
        .chain(constants)
        .collect();
    b.items("cross_entropy_grad", b.count(), arguments);
}

fn update(b: &mut Builder<'_>, optimizer: Optimizer) {
    let count = word(b.count());
    let (kernel, tensors, numbers) = match optimizer {
        Optimizer::Sgd {
            momentum,
            weight_decay,
        } => {
            // Without momentum there is no velocity, and its kernel doesn't touch it.
            let velocity = if momentum == 0.0 {
                [Input(0), Output(0)]
            } else {
                [Input(3), Output(1)]
            };
            let [old, new] = velocity;
            let tensors = vec![Input(0), Input(1), Input(2), old, Output(0), new];
            ("sgd", tensors, vec![momentum, weight_decay])
        }
        Optimizer::Adam {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } => {
            let tensors = (0..5).map(Input).chain((0..3).map(Output)).collect();
            let betas = vec![
                beta1,
                1.0 - beta1,
                beta2,
                1.0 - beta2,
                beta1.ln(),
                beta2.ln(),
            ];
            (
                "adam",
                tensors,
                [betas, vec![epsilon, weight_decay]].concat(),
            )
        }
    };
    let numbers: Vec<Argument> = numbers.into_iter().map(|x| b.real(x)).collect();
    b.items(kernel, b.count(), [tensors, vec![count], numbers].concat());
}
