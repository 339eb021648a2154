//! Elementwise operators; where the graph has no equal operator, several are composed.

use super::one;
use crate::dtype::DType;
use crate::graph::TensorId;
use crate::onnx::context::{Node, Value, axis};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::onnx::literal::{Data, Literal, is_float};
use crate::onnx::proto::{NodeProto, data_type};
use crate::op::{Binary, Op, Unary};
use crate::shape::broadcast;

/// Operators that are one function of the graph.
pub(super) fn function(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    node.attributes.ignore(&["consumed_inputs"]);
    let a = &node.attributes;
    let f = match node.proto.op_type.as_str() {
        "Relu" => Unary::Relu,
        "Sigmoid" => Unary::Sigmoid,
        "Tanh" => Unary::Tanh,
        "Exp" => Unary::Exp,
        "Log" => Unary::Log,
        "Sqrt" => Unary::Sqrt,
        "Erf" => Unary::Erf,
        "Abs" => Unary::Abs,
        "Neg" => scale(-1.0),
        "Reciprocal" => Unary::Pow { exponent: -1.0 },
        "LeakyRelu" => Unary::LeakyRelu {
            slope: a.float("alpha", 0.01)?,
        },
        "Gelu" => match a.text("approximate", "none")? {
            "none" => Unary::Gelu,
            "tanh" => Unary::GeluTanh,
            other => return unsupported!("approximation {other:?}"),
        },
        _ => return hard_sigmoid(node),
    };
    let x = node.x(0)?;
    one(node.last(Op::Unary(f), &[x])?)
}

fn scale(scale: f64) -> Unary {
    Unary::Affine { scale, shift: 0.0 }
}

fn hard_sigmoid(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let f = Unary::Affine {
        scale: node.attributes.float("alpha", 0.2)?,
        shift: node.attributes.float("beta", 0.5)?,
    };
    let x = node.x(0)?;
    let x = node.map("line", f, x)?;
    let clip = Unary::Clip { lo: 0.0, hi: 1.0 };
    one(node.last(Op::Unary(clip), &[x])?)
}

/// Functions made of several of the graph's.
pub(super) fn composed(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let x = node.x(0)?;
    match node.proto.op_type.as_str() {
        "HardSwish" => {
            let sixth = Unary::Affine {
                scale: 1.0 / 6.0,
                shift: 0.5,
            };
            let y = node.map("line", sixth, x)?;
            let y = node.map("clip", Unary::Clip { lo: 0.0, hi: 1.0 }, y)?;
            one(node.last(Op::Binary(Binary::Mul), &[x, y])?)
        }
        "Swish" => {
            let alpha = node.attributes.float("alpha", 1.0)?;
            if alpha == 1.0 {
                return one(node.last(Op::Unary(Unary::Silu), &[x])?);
            }
            let y = node.map("scale", scale(alpha), x)?;
            let y = node.map("sigmoid", Unary::Sigmoid, y)?;
            one(node.last(Op::Binary(Binary::Mul), &[x, y])?)
        }
        "Elu" => {
            let alpha = node.attributes.float("alpha", 1.0)?;
            exponential(node, x, 1.0, alpha, 1.0)
        }
        "Celu" => {
            let alpha = node.attributes.float("alpha", 1.0)?;
            exponential(node, x, 1.0, alpha, 1.0 / alpha)
        }
        "Selu" => {
            let alpha = node.attributes.float("alpha", 1.673_263_2)?;
            let gamma = node.attributes.float("gamma", 1.050_701)?;
            exponential(node, x, gamma, gamma * alpha, 1.0)
        }
        "Softplus" => one(softplus(node, x)?),
        "Softsign" => {
            let y = node.map("abs", Unary::Abs, x)?;
            let y = node.map(
                "plus1",
                Unary::Affine {
                    scale: 1.0,
                    shift: 1.0,
                },
                y,
            )?;
            one(node.last(Op::Binary(Binary::Div), &[x, y])?)
        }
        _ => {
            let y = softplus(node, x)?;
            let y = node.map("tanh", Unary::Tanh, y)?;
            one(node.last(Op::Binary(Binary::Mul), &[x, y])?)
        }
    }
}

/// positive·max(x, 0) + negative·(e^(inner·min(x, 0)) − 1)
fn exponential(
    node: &mut Node<'_, '_>,
    x: TensorId,
    positive: f64,
    negative: f64,
    inner: f64,
) -> Outcome<Vec<Value>> {
    let mut up = node.map("positive", Unary::Relu, x)?;
    if positive != 1.0 {
        up = node.map("positive.scale", scale(positive), up)?;
    }
    let lo = f64::NEG_INFINITY;
    let mut down = node.map("negative", Unary::Clip { lo, hi: 0.0 }, x)?;
    if inner != 1.0 {
        down = node.map("negative.inner", scale(inner), down)?;
    }
    down = node.map("negative.exp", Unary::Exp, down)?;
    let line = Unary::Affine {
        scale: negative,
        shift: -negative,
    };
    down = node.map("negative.scale", line, down)?;
    one(node.last(Op::Binary(Binary::Add), &[up, down])?)
}

/// ln(1 + e^x) as max(x, 0) + ln(1 + e^−|x|), which doesn't overflow. The maximum is (x + |x|)/2, so that the slope at 0
/// is a half.
fn softplus(node: &mut Node<'_, '_>, x: TensorId) -> Outcome<TensorId> {
    let abs = node.map("abs", Unary::Abs, x)?;
    let half = node.map("half", scale(0.5), x)?;
    let other = node.map("half.abs", scale(0.5), abs)?;
    let up = node.zip("positive", Binary::Add, half, other)?;
    let mut rest = node.map("neg", scale(-1.0), abs)?;
    rest = node.map("exp", Unary::Exp, rest)?;
    rest = node.map(
        "plus1",
        Unary::Affine {
            scale: 1.0,
            shift: 1.0,
        },
        rest,
    )?;
    rest = node.map("log", Unary::Log, rest)?;
    node.zip("softplus", Binary::Add, up, rest)
}

/// max(x, 0) − slope·max(−x, 0)
pub(super) fn prelu(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let (x, slope) = (node.x(0)?, node.weight(1)?);
    let up = node.map("positive", Unary::Relu, x)?;
    let down = node.map("neg", scale(-1.0), x)?;
    let down = node.map("negative", Unary::Relu, down)?;
    let down = node.zip("slope", Binary::Mul, down, slope)?;
    one(node.last(Op::Binary(Binary::Sub), &[up, down])?)
}

pub(super) fn clip(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let bound = |i: usize, name: &'static str, default: f64| {
        if node.has(i) {
            return node.scalar(i, "a bound");
        }
        match node.attributes.has(name) {
            true => node.attributes.float(name, 0.0),
            false => Ok(default),
        }
    };
    let lo = bound(1, "min", f64::NEG_INFINITY)?;
    let hi = bound(2, "max", f64::INFINITY)?;
    let x = node.x(0)?;
    // The specification lets the upper bound win where the two cross.
    let lo = lo.min(hi);
    match (lo, hi) {
        (f64::NEG_INFINITY, f64::INFINITY) => one(x),
        _ => one(node.last(Op::Unary(Unary::Clip { lo, hi }), &[x])?),
    }
}

/// Max and Min with a number.
pub(super) fn bound(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let number = |i: usize| {
        node.known(i)
            .filter(|l| l.len() == 1)
            .and_then(|l| l.scalar())
    };
    let (i, value) = match (node.variadic()?, number(0), number(1)) {
        (1, ..) => return one(node.x(0)?),
        (2, None, Some(value)) => (0, value),
        (2, Some(value), None) => (1, value),
        _ => return unsupported!("of tensors (a number and a tensor would be)"),
    };
    let f = match node.proto.op_type.as_str() {
        "Max" => Unary::Clip {
            lo: value,
            hi: f64::INFINITY,
        },
        _ => Unary::Clip {
            lo: f64::NEG_INFINITY,
            hi: value,
        },
    };
    let x = node.x(i)?;
    one(node.last(Op::Unary(f), &[x])?)
}

pub(super) fn pow(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    legacy_broadcast(node)?;
    let exponent = node.scalar(1, "an exponent")?;
    let x = node.x(0)?;
    if exponent == 1.0 {
        return one(x);
    }
    let f = if exponent == 0.5 {
        Unary::Sqrt
    } else {
        Unary::Pow { exponent }
    };
    one(node.last(Op::Unary(f), &[x])?)
}

/// Before opset 7, operands were broadcast only if an attribute said so. Without an axis that is the
/// broadcasting of today.
fn legacy_broadcast(node: &Node<'_, '_>) -> Outcome<Option<i64>> {
    node.attributes.ignore(&["broadcast", "consumed_inputs"]);
    match node.opset() < 7 && node.attributes.has("axis") {
        true => node.attributes.required_int("axis").map(Some),
        false => Ok(None),
    }
}

/// Add, Sub, Mul and Div.
pub(super) fn arithmetic(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    if node.proto.input.len() != 2 {
        return invalid!("it needs two inputs");
    }
    if let Some(value) = super::count::arithmetic(node)? {
        return Ok(vec![value]);
    }
    let at = legacy_broadcast(node)?;
    if let Some(c) = number(node, 1, 0)? {
        return with_number(node, 0, c, false);
    }
    if let Some(c) = number(node, 0, 1)? {
        return with_number(node, 1, c, true);
    }
    let (a, mut b) = (node.x(0)?, node.x(1)?);
    if let Some(at) = at {
        let (outer, mut shape) = (node.dims(a).len(), node.dims(b));
        let at = axis(at, outer)?;
        if at + shape.len() > outer {
            return invalid!("the second operand does not fit at axis {at}");
        }
        shape.resize(outer - at, 1);
        b = node.view("aligned", b, &shape)?;
    }
    let f = match node.proto.op_type.as_str() {
        "Add" => Binary::Add,
        "Sub" => Binary::Sub,
        "Mul" => Binary::Mul,
        _ => Binary::Div,
    };
    one(node.last(Op::Binary(f), &[a, b])?)
}

/// The known number that input `i` is, if combining it with float input `other` leaves that one's
/// shape as it is.
fn number(node: &Node<'_, '_>, i: usize, other: usize) -> Outcome<Option<f64>> {
    let Value::Known(literal) = node.value(i)? else {
        return Ok(None);
    };
    let float = literal.as_ints().is_none() && node.dtype(other)? == DType::F32;
    let fits = literal.shape.len() <= node.shape(other)?.len();
    Ok(literal.scalar().filter(|_| float && fits))
}

/// An operation with a number that doesn't change: one function of one tensor.
fn with_number(
    node: &mut Node<'_, '_>,
    i: usize,
    c: f64,
    number_first: bool,
) -> Outcome<Vec<Value>> {
    let x = node.x(i)?;
    let affine = |scale, shift| Unary::Affine { scale, shift };
    let f = match (node.proto.op_type.as_str(), number_first) {
        ("Add", _) => affine(1.0, c),
        ("Sub", false) => affine(1.0, -c),
        ("Sub", true) => affine(-1.0, c),
        ("Mul", _) => affine(c, 0.0),
        ("Div", false) if c != 0.0 => affine(1.0 / c, 0.0),
        ("Div", true) => {
            let y = node.map("reciprocal", Unary::Pow { exponent: -1.0 }, x)?;
            return one(node.last(Op::Unary(scale(c)), &[y])?);
        }
        _ => return unsupported!("by zero"),
    };
    one(node.last(Op::Unary(f), &[x])?)
}

/// Above this, x + ln(1 + e^-x) is x in float32.
const STRAIGHT: f64 = 17.0;

/// Whether numbers are above the threshold of a softplus, as PyTorch writes it: `Where(x > 20, x, Softplus(x))`. Where that
/// holds, both are the same number, so it may as well never hold.
pub(super) fn greater(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let (Some(x), Some(above)) = (node.proto.input.first(), node.proto.output.first()) else {
        return invalid!("it has no input or no output");
    };
    let is_softplus = |user: &&NodeProto| {
        let [condition, same, softplus] = &user.input[..] else {
            return false;
        };
        let by = node.written_by(softplus);
        user.op_type == "Where"
            && (condition, same) == (above, x)
            && by.is_some_and(|by| by.op_type == "Softplus" && by.input.first() == Some(x))
    };
    let structure = &node.state.structure;
    let mut users = structure.nodes.iter().copied();
    let inside = users.all(|user| !user.input.contains(above) || is_softplus(&user))
        && structure
            .graph
            .output
            .iter()
            .all(|output| output.name != *above);
    let straight = |literal: Literal| literal.scalar().is_some_and(|least| least >= STRAIGHT);
    match inside && node.known(1).is_some_and(straight) {
        true => Ok(vec![Value::Never(node.shape(0)?)]),
        false => unsupported!("of values that are not known at import"),
    }
}

/// Sum and Mean of any number of tensors.
pub(super) fn sum(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let count = node.variadic()?;
    let mut sum = node.x(0)?;
    for i in 1..count {
        let x = node.x(i)?;
        sum = node.zip(&format!("add{i}"), Binary::Add, sum, x)?;
    }
    if node.proto.op_type == "Mean" && count > 1 {
        sum = node.map("mean", scale(1.0 / count as f64), sum)?;
    }
    one(sum)
}

/// Where the condition is known: x where it holds, times 0 elsewhere, plus y where it doesn't.
pub(super) fn choose(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    if let Value::Never(shape) = node.value(0)? {
        let (shape, x) = (shape.clone(), node.shape(1)?);
        let y = node.x(2)?;
        let joined = broadcast(&shape, &x).and_then(|shape| broadcast(&shape, &node.dims(y)));
        return match joined {
            Ok(joined) if joined == node.dims(y) => one(y),
            _ => unsupported!("with a condition that never holds and is larger than the result"),
        };
    }
    let Some(condition) = node.known(0) else {
        return super::condition::choose(node);
    };
    let Some(holds) = condition.as_ints() else {
        return invalid!("the condition is not a bool");
    };
    let holds: Vec<bool> = holds.iter().map(|&c| c != 0).collect();
    let shape = condition.shape.clone();
    let x = branch(node, 1, &shape, &holds)?;
    let opposite: Vec<bool> = holds.iter().map(|c| !c).collect();
    let y = branch(node, 2, &shape, &opposite)?;
    one(node.last(Op::Binary(Binary::Add), &[x, y])?)
}

/// Input `i` where `kept`, 0 elsewhere. Known numbers are selected, as infinity times 0 is no number.
fn branch(node: &mut Node<'_, '_>, i: usize, shape: &[usize], kept: &[bool]) -> Outcome<TensorId> {
    let part = |what: &str| format!("branch{i}.{what}");
    if let Some(value) = node
        .known(i)
        .filter(|l| l.len() == 1)
        .and_then(|l| l.scalar())
    {
        let values = kept
            .iter()
            .map(|&k| if k { value as f32 } else { 0.0 })
            .collect();
        return node.constant(&part("values"), shape, values);
    }
    let x = node.x(i)?;
    let values = kept.iter().map(|&k| if k { 1.0 } else { 0.0 }).collect();
    let mask = node.constant(&part("mask"), shape, values)?;
    node.zip(&part("kept"), Binary::Mul, x, mask)
}

/// A cast between types that are one in the graph.
pub(super) fn cast(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    node.attributes.ignore(&["saturate", "round_mode"]);
    if let Value::Random(random) = node.value(0)? {
        let random = random.clone();
        return super::random::mask(node, &random);
    }
    let to = node.attributes.required_int("to")? as i32;
    if to == data_type::BOOL {
        return super::condition::cast(node);
    }
    match is_float(to) {
        Ok(float) => converted(node, float),
        Err(reason) => unsupported!("to another type: {reason}"),
    }
}

/// A cast to the type of another tensor.
pub(super) fn cast_like(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    node.attributes.ignore(&["saturate", "round_mode"]);
    if let Value::Random(random) = node.value(0)? {
        let random = random.clone();
        return super::random::mask(node, &random);
    }
    let float = node.dtype(1)? != DType::I64;
    match (node.value(0)?, float) {
        (Value::Known(literal), true) => {
            let literal = Literal::floats(literal.shape.clone(), literal.to_floats());
            Ok(vec![Value::Known(literal)])
        }
        (Value::Known(literal), false) => {
            // Rust's conversion truncates towards zero and saturates.
            let ints: Vec<i64> = match &literal.data {
                Data::Floats(values) => values.iter().map(|&v| v as i64).collect(),
                Data::Ints(values) => values.to_vec(),
            };
            Ok(vec![Value::Known(Literal::ints(
                literal.shape.clone(),
                ints,
            ))])
        }
        _ => converted(node, float),
    }
}

fn converted(node: &mut Node<'_, '_>, float: bool) -> Outcome<Vec<Value>> {
    if let Some(value) = super::count::cast(node, float)? {
        return Ok(vec![value]);
    }
    match (node.dtype(0)?, float) {
        (DType::F32 | DType::F64, true) => Ok(vec![node.value(0)?.clone()]),
        (DType::I64, true) if node.is_bool(0) => super::condition::cast(node),
        (DType::I64, false) => Ok(vec![node.value(0)?.clone()]),
        _ => unsupported!("between integers and floats of values not known at import"),
    }
}
