//! Normalizations, softmax and dropout.

use super::one;
use crate::dtype::DType;
use crate::graph::{Init, TensorId};
use crate::onnx::context::{Node, Value, axes, axis, check_table, count};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::onnx::literal::Literal;
use crate::onnx::proto::NodeProto;
use crate::op::{Binary, Norm, Op, Reduction, Unary};

/// With known statistics: [`Op::BatchNorm`] with these as its state. With computed ones, which
/// training couldn't update: normalization by just these.
pub(super) fn batch(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    node.attributes
        .ignore(&["training_mode", "is_test", "consumed_inputs"]);
    if !node.attributes.flag("spatial", true)? {
        return unsupported!("attribute spatial = 0");
    }
    let training = node.attributes.flag("training_mode", false)?;
    let epsilon = node.attributes.float("epsilon", 1e-5)?;
    // ONNX weighs the old statistics, PyTorch and this graph the new.
    let momentum = 1.0 - node.attributes.float("momentum", 0.9)?;
    let momentum = (momentum * 1e9).round() / 1e9;
    let x = node.x(0)?;
    let (scale, shift) = (node.weight(1)?, node.weight(2)?);
    if let (true, Err(_)) = (training, node.unused_outputs(1)) {
        return with_statistics(node, x, [scale, shift], epsilon, momentum);
    }
    node.unused_outputs(1)?;
    if let Some(running) = running(node)? {
        let op = Op::BatchNorm { epsilon, momentum };
        return one(node.last(op, &[x, scale, shift, running])?);
    }
    let channels = node.dims(scale);
    if training || computes_statistics(node) {
        // What the file computes for the statistics, the operator does.
        return apply(node, x, Norm::Batch, epsilon, scale, shift);
    }
    let (mean, variance) = (node.x(3)?, node.x(4)?);
    let row = [1, channels.iter().product()];
    let mean = node.view("mean", mean, &row)?;
    let variance = node.view("variance", variance, &row)?;
    let stats = node.step("stats", Op::Concat { axis: 0 }, &[mean, variance])?;
    let norm = Norm::Batch;
    one(node.last(applied(norm, epsilon), &[x, stats, scale, shift])?)
}

/// Normalization by the batch's statistics, and the running ones after it, which something reads: they are outputs like
/// any other then, not state.
fn with_statistics(
    node: &mut Node<'_, '_>,
    x: TensorId,
    [scale, shift]: [TensorId; 2],
    epsilon: f64,
    momentum: f64,
) -> Outcome<Vec<Value>> {
    if node.known(3).is_some() || node.known(4).is_some() {
        return unsupported!(
            "that shows running statistics which the file holds; training updates those"
        );
    }
    let norm = Norm::Batch;
    let stats = node.step("stats", Op::NormStats { norm }, &[x])?;
    let y = node.last(applied(norm, epsilon), &[x, stats, scale, shift])?;
    let mut values = vec![Value::Tensor(y)];
    for (i, part) in ["mean", "variance"].into_iter().enumerate() {
        let running = node.x(3 + i)?;
        let shape = node.dims(running);
        let new = statistic(node, stats, i, part, &shape)?;
        let weighed = |scale| Unary::Affine { scale, shift: 0.0 };
        let new = node.map(&format!("{part}.new"), weighed(momentum), new)?;
        let old = node.map(&format!("{part}.old"), weighed(1.0 - momentum), running)?;
        let sum = node.zip(&format!("{part}.running"), Binary::Add, old, new)?;
        values.push(Value::Tensor(sum));
    }
    Ok(values)
}

/// Row `i` of statistics, in this shape.
fn statistic(
    node: &mut Node<'_, '_>,
    stats: TensorId,
    i: usize,
    part: &str,
    shape: &[usize],
) -> Outcome<TensorId> {
    let count = node.dims(stats)[1];
    let op = Op::Slice {
        start: vec![i, 0],
        end: vec![i + 1, count],
        step: vec![1, 1],
    };
    let row = node.step(&format!("{part}.row"), op, &[stats])?;
    node.view(part, row, shape)
}

/// Whether the mean and the variance are those of the input, as exporters write normalizations that have no
/// running ones: `mean(x)` and `mean((x − mean(x))²)`.
fn computes_statistics(node: &Node<'_, '_>) -> bool {
    let input = |of: &NodeProto, i: usize| of.input.get(i).cloned().unwrap_or_default();
    let written = |name: &str, op: &str| node.written_by(name).filter(|by| by.op_type == op);
    let is_mean = |name: &str| {
        let mean = written(name, "ReduceMean");
        mean.is_some_and(|mean| node.same(&input(mean, 0), &input(node.proto, 0)))
    };
    let squares = written(&input(node.proto, 4), "ReduceMean");
    let squares = squares.and_then(|mean| written(&input(mean, 0), "Mul"));
    let centred = squares
        .filter(|mul| input(mul, 0) == input(mul, 1))
        .and_then(|mul| written(&input(mul, 0), "Sub"));
    is_mean(&input(node.proto, 3))
        && centred.is_some_and(|sub| {
            node.same(&input(sub, 0), &input(node.proto, 0)) && is_mean(&input(sub, 1))
        })
}

/// The state [means, variances] where both are known.
fn running(node: &mut Node<'_, '_>) -> Outcome<Option<TensorId>> {
    let (Some(mean), Some(variance)) = (node.known(3), node.known(4)) else {
        return Ok(None);
    };
    let channels = mean.len();
    if variance.len() != channels {
        return invalid!("{channels} means and {} variances", variance.len());
    }
    let mut values = mean.to_floats();
    values.extend(variance.to_floats());
    let name = &node.proto.input[3];
    let name = match name.strip_suffix("running_mean") {
        Some(stem) => format!("{stem}running"),
        None => node.part("running"),
    };
    let init = Init::Floats(values.into());
    Ok(Some(node.state.b.state(&name, &[2, channels], init)?))
}

pub(super) fn instance(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    node.attributes.ignore(&["consumed_inputs"]);
    let epsilon = node.attributes.float("epsilon", 1e-5)?;
    let x = node.x(0)?;
    let (scale, shift) = (node.weight(1)?, node.weight(2)?);
    apply(node, x, Norm::Instance, epsilon, scale, shift)
}

pub(super) fn group(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    node.attributes.ignore(&["stash_type"]);
    let epsilon = node.attributes.float("epsilon", 1e-5)?;
    let groups = count(node.attributes.required_int("num_groups")?, "num_groups")?;
    let x = node.x(0)?;
    let channels = node.dims(x).get(1).copied().unwrap_or(0);
    if groups == 0 || channels % groups != 0 {
        return invalid!("{groups} groups of {channels} channels");
    }
    let mut affine = [node.weight(1)?, node.weight(2)?];
    // Until opset 20, scale and shift are per group.
    if node.opset() < 21 {
        for (tensor, part) in affine.iter_mut().zip(["scale", "shift"]) {
            let column = node.view(&format!("{part}.column"), *tensor, &[groups, 1])?;
            let shape = vec![groups, channels / groups];
            let op = Op::Expand { shape, scale: 1.0 };
            let expanded = node.step(&format!("{part}.expand"), op, &[column])?;
            *tensor = node.view(part, expanded, &[channels])?;
        }
    }
    apply(
        node,
        x,
        Norm::Group { groups },
        epsilon,
        affine[0],
        affine[1],
    )
}

pub(super) fn layer(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    node.attributes.ignore(&["stash_type"]);
    let epsilon = node.attributes.float("epsilon", 1e-5)?;
    let x = node.x(0)?;
    let shape = node.dims(x);
    let axis = axis(node.attributes.int("axis", -1)?, shape.len())?;
    let inner = shape[axis..].to_vec();
    let scale = node.weight(1)?;
    let scale = widened(node, "scale", scale, &inner)?;
    let shift = match node.optional_weight(2)? {
        Some(shift) => widened(node, "shift", shift, &inner)?,
        None => {
            let op = Op::Fill {
                shape: inner,
                value: 0.0,
                dtype: DType::F32,
            };
            node.step("shift", op, &[])?
        }
    };
    let norm = Norm::Layer { axis };
    let stats = node.step("stats", Op::NormStats { norm }, &[x])?;
    let y = node.last(applied(norm, epsilon), &[x, stats, scale, shift])?;
    let mut values = vec![Value::Tensor(y)];
    if node.unused_outputs(1).is_err() {
        values.extend(statistics(node, stats, &shape, axis, epsilon)?);
    }
    Ok(values)
}

/// The means and the reciprocal standard deviations, with the normalized axes of length 1.
fn statistics(
    node: &mut Node<'_, '_>,
    stats: TensorId,
    shape: &[usize],
    axis: usize,
    epsilon: f64,
) -> Outcome<[Value; 2]> {
    let mut outer = shape.to_vec();
    outer[axis..].fill(1);
    let mean = statistic(node, stats, 0, "mean", &outer)?;
    let variance = statistic(node, stats, 1, "variance", &outer)?;
    let shifted = Unary::Affine {
        scale: 1.0,
        shift: epsilon,
    };
    let shifted = node.map("epsilon", shifted, variance)?;
    let inverse = node.map("inverse", Unary::Pow { exponent: -0.5 }, shifted)?;
    Ok([Value::Tensor(mean), Value::Tensor(inverse)])
}

/// The application of statistics; activations join it when the graph is made ready to run.
fn applied(norm: Norm, epsilon: f64) -> Op {
    Op::NormApply {
        norm,
        epsilon,
        activation: None,
    }
}

/// Broadcast to this shape where it isn't that already.
fn widened(node: &mut Node<'_, '_>, part: &str, x: TensorId, shape: &[usize]) -> Outcome<TensorId> {
    if node.dims(x) == shape {
        return Ok(x);
    }
    let shape = shape.to_vec();
    node.step(part, Op::Expand { shape, scale: 1.0 }, &[x])
}

fn apply(
    node: &mut Node<'_, '_>,
    x: TensorId,
    norm: Norm,
    epsilon: f64,
    scale: TensorId,
    shift: TensorId,
) -> Outcome<Vec<Value>> {
    let stats = node.step("stats", Op::NormStats { norm }, &[x])?;
    one(node.last(applied(norm, epsilon), &[x, stats, scale, shift])?)
}

/// x / √(mean(x²) + ε) · scale
pub(super) fn root_mean_square(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    node.attributes.ignore(&["stash_type"]);
    let epsilon = node.attributes.float("epsilon", 1e-5)?;
    let x = node.x(0)?;
    let rank = node.dims(x).len();
    let axis = axis(node.attributes.int("axis", -1)?, rank)?;
    let scale = node.weight(1)?;
    let y = divide_by_deviation(node, x, (axis..rank).collect(), epsilon)?;
    one(node.last(Op::Binary(Binary::Mul), &[y, scale])?)
}

/// (x − mean) / √(variance + 10⁻⁹)
pub(super) fn mean_variance(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let x = node.x(0)?;
    let rank = node.dims(x).len();
    let axes = axes(node.attributes.ints("axes")?.unwrap_or(&[0, 2, 3]), rank)?;
    let kind = Reduction::Mean;
    let op = Op::Reduce {
        kind,
        axes: axes.clone(),
        keep_dims: true,
    };
    let mean = node.step("mean", op, &[x])?;
    let centred = node.zip("centred", Binary::Sub, x, mean)?;
    one(divide_by_deviation(node, centred, axes, 1e-9)?)
}

fn divide_by_deviation(
    node: &mut Node<'_, '_>,
    x: TensorId,
    axes: Vec<usize>,
    epsilon: f64,
) -> Outcome<TensorId> {
    let square = node.zip("square", Binary::Mul, x, x)?;
    let op = Op::Reduce {
        kind: Reduction::Mean,
        axes,
        keep_dims: true,
    };
    let mean = node.step("mean_square", op, &[square])?;
    let shifted = Unary::Affine {
        scale: 1.0,
        shift: epsilon,
    };
    let mean = node.map("epsilon", shifted, mean)?;
    let factor = node.map("factor", Unary::Pow { exponent: -0.5 }, mean)?;
    node.zip("normalized", Binary::Mul, x, factor)
}

pub(super) fn softmax(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    match guarded(node)? {
        true => unmasked(node),
        false => along_axis(node, |axis| Op::Softmax { axis }),
    }
}

/// Whether a node asks if the softmax is a number, as it isn't in rows that are masked wholly, and the mask isn't known.
fn guarded(node: &Node<'_, '_>) -> Outcome<bool> {
    let asks =
        |by: &&NodeProto| by.op_type == "IsNaN" && by.input.first() == node.proto.output.first();
    let asked = node.state.structure.nodes.iter().any(asks);
    let open = asked && node.producer(0).is_some_and(|by| is_open_sum(node, by));
    match open && node.opset() < 13 {
        true => unsupported!("under a mask that is not known at import, before opset 13"),
        false => Ok(open),
    }
}

/// Whether neither of two added tensors is known at import.
fn is_open_sum(node: &Node<'_, '_>, by: &NodeProto) -> bool {
    let known = |name: &String| match node.state.values.get(name.as_str()) {
        Some(Value::Weight(weight)) => !node.state.is_trained(weight),
        Some(Value::Known(_)) => true,
        _ => false,
    };
    by.op_type == "Add" && !by.input.iter().any(known)
}

/// A softmax that is 0 where the score is −∞, also where all are.
fn unmasked(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let x = node.x(0)?;
    let axis = axis(node.attributes.int("axis", -1)?, node.dims(x).len())?;
    let (least, most) = (f64::from(f32::MIN), f64::from(f32::MAX));
    let (lo, hi) = (least, f64::INFINITY);
    let finite = node.map("finite", Unary::Clip { lo, hi }, x)?;
    let y = node.step("softmax", Op::Softmax { axis }, &[finite])?;
    // At least half of the largest number, except of −∞.
    let (scale, shift) = (0.5, most);
    let seen = node.map("large", Unary::Affine { scale, shift }, x)?;
    let seen = node.map("seen", Unary::Clip { lo: 0.0, hi: 1.0 }, seen)?;
    one(node.last(Op::Binary(Binary::Mul), &[y, seen])?)
}

pub(super) fn log_softmax(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    along_axis(node, |axis| Op::LogSoftmax { axis })
}

/// Of a softmax, which exporters guard against rows that are masked wholly: those are known not to be there, or
/// [`unmasked`] has made them 0.
pub(super) fn is_nan(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let Some(softmax) = node.producer(0).filter(|node| node.op_type == "Softmax") else {
        return unsupported!("of anything but a softmax");
    };
    let scores = softmax.input.first().and_then(|name| node.written_by(name));
    for name in scores
        .filter(|node| node.op_type == "Add")
        .iter()
        .flat_map(|add| &add.input)
    {
        let mask = node
            .state
            .values
            .get(name.as_str())
            .and_then(Value::literal);
        let wholly = mask.is_some_and(|mask| {
            let row = mask.shape.last().copied().unwrap_or(1).max(1);
            let masked = |row: &[f32]| row.iter().all(|&x| x == f32::NEG_INFINITY);
            mask.to_floats().chunks(row).any(masked)
        });
        if wholly {
            return unsupported!("of a softmax with a row that is masked wholly");
        }
    }
    Ok(vec![Value::Never(node.shape(0)?)])
}

/// Before opset 13, over all axes from the named one on together.
fn along_axis(node: &mut Node<'_, '_>, op: fn(usize) -> Op) -> Outcome<Vec<Value>> {
    let x = node.x(0)?;
    let shape = node.dims(x);
    let old = node.opset() < 13;
    let axis = axis(
        node.attributes.int("axis", if old { 1 } else { -1 })?,
        shape.len(),
    )?;
    let alone = shape[axis + 1..].iter().all(|&n| n == 1);
    if !old || alone {
        return one(node.last(op(axis), &[x])?);
    }
    let rows = shape[..axis].iter().product();
    let columns = shape[axis..].iter().product();
    let flat = node.view("rows", x, &[rows, columns])?;
    let y = node.step("flat", op(1), &[flat])?;
    one(node.last(Op::Reshape { shape }, &[y])?)
}

/// Training drops at the stated rate and inference doesn't, whatever the file's training_mode says.
pub(super) fn dropout(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    node.attributes
        .ignore(&["seed", "is_test", "consumed_inputs"]);
    let p = match node.has(1) {
        true => node.scalar(1, "a ratio")?,
        false => node.attributes.float("ratio", 0.5)?,
    };
    let x = node.x(0)?;
    if p == 0.0 {
        if node.unused_outputs(1).is_ok() {
            return one(x);
        }
        let shape = node.dims(x);
        check_table(&shape)?;
        let count = shape.iter().product();
        let all = Literal::ints(shape, vec![1; count]);
        return Ok(vec![Value::Tensor(x), Value::Known(all)]);
    }
    node.unused_outputs(1)?;
    let name = node.name.clone();
    one(node.state.b.dropout(&name, x, p)?)
}
