//! Conditions that are not known at import, such as masks of padded words: numbers that are 1 where they hold and 0
//! elsewhere.

use super::one;
use crate::dtype::DType;
use crate::graph::TensorId;
use crate::onnx::context::{Node, Value, check_table};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::op::{Binary, Op, Unary};
use crate::shape::elements;

const NOT: Unary = Unary::Affine {
    scale: -1.0,
    shift: 1.0,
};

/// Input `i`, a condition, as numbers. An integer that is neither 0 nor 1 is found when the graph runs.
pub(super) fn numbers(node: &mut Node<'_, '_>, i: usize) -> Outcome<TensorId> {
    let part = |what: &str| format!("condition{i}.{what}");
    if let Value::Never(shape) = node.value(i)? {
        let shape = shape.clone();
        check_table(&shape)?;
        return node.constant(&part("never"), &shape, vec![0.0; elements(&shape)]);
    }
    if let Some(literal) = node.known(i) {
        let Some(ints) = literal.as_ints() else {
            return invalid!("its input {i} is not a bool");
        };
        let values = ints.iter().map(|&c| if c != 0 { 1.0 } else { 0.0 });
        return node.constant(&part("known"), &literal.shape, values.collect());
    }
    match node.dtype(i)? {
        DType::I64 => {
            let x = node.x(i)?;
            let table = node.constant(&part("table"), &[2], vec![0.0, 1.0])?;
            node.step(&part("numbers"), Op::Gather { axis: 0 }, &[table, x])
        }
        _ if node.is_bool(i) => node.x(i),
        _ => unsupported!("of a number as a condition"),
    }
}

/// A cast to bool.
pub(super) fn cast(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    one(numbers(node, 0)?)
}

pub(super) fn not(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let x = numbers(node, 0)?;
    one(node.last(Op::Unary(NOT), &[x])?)
}

/// And is the product, Or the sum but at most 1.
pub(super) fn both(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let and = node.proto.op_type == "And";
    // With what always holds, And changes nothing; Or doesn't with what never does.
    for (known, other) in [(0, 1), (1, 0)] {
        let neutral = |c: &i64| (*c != 0) == and;
        let idle = node.known(known).filter(|literal| {
            let all = literal
                .as_ints()
                .is_some_and(|ints| ints.iter().all(neutral));
            all && node
                .shape(other)
                .is_ok_and(|shape| covers(&shape, &literal.shape))
        });
        if idle.is_some() {
            return one(numbers(node, other)?);
        }
    }
    let (a, b) = (numbers(node, 0)?, numbers(node, 1)?);
    if and {
        return one(node.last(Op::Binary(Binary::Mul), &[a, b])?);
    }
    let sum = node.zip("sum", Binary::Add, a, b)?;
    let clip = Unary::Clip { lo: 0.0, hi: 1.0 };
    one(node.last(Op::Unary(clip), &[sum])?)
}

/// Whether broadcasting a tensor of shape `whole` with one of shape `part` leaves the shape as it is.
fn covers(whole: &[usize], part: &[usize]) -> bool {
    let pairs = whole.iter().rev().zip(part.iter().rev());
    part.len() <= whole.len() && pairs.into_iter().all(|(w, p)| w == p || *p == 1)
}

/// Input 1 where the condition holds, input 2 elsewhere.
pub(super) fn choose(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let holds = numbers(node, 0)?;
    let fails = node.map("fails", NOT, holds)?;
    // Nothing is added for 0.
    match [is_zero(node, 1, holds), is_zero(node, 2, holds)] {
        [true, false] => one(branch(node, 2, fails, holds)?),
        [false, true] => one(branch(node, 1, holds, fails)?),
        _ => {
            let x = branch(node, 1, holds, fails)?;
            let y = branch(node, 2, fails, holds)?;
            one(node.last(Op::Binary(Binary::Add), &[x, y])?)
        }
    }
}

/// Whether input `i` is the number 0, which changes no shape either.
fn is_zero(node: &Node<'_, '_>, i: usize, condition: TensorId) -> bool {
    let rank = node.dims(condition).len();
    let zero = node.known(i).filter(|literal| literal.shape.len() <= rank);
    zero.is_some_and(|literal| literal.len() == 1 && literal.scalar() == Some(0.0))
}

/// Input `i` where `kept` is 1, else 0. Of infinity that is a logarithm, as 0 times infinity is no number.
fn branch(node: &mut Node<'_, '_>, i: usize, kept: TensorId, other: TensorId) -> Outcome<TensorId> {
    let part = format!("branch{i}");
    let times = |scale| Unary::Affine { scale, shift: 0.0 };
    let known = node.known(i);
    let number = known.as_ref().filter(|literal| literal.len() == 1);
    match number.and_then(|literal| literal.scalar()) {
        Some(f64::NEG_INFINITY) => node.map(&part, Unary::Log, other),
        Some(value) if value.is_finite() => node.map(&part, times(value), kept),
        Some(value) => unsupported!("of {value}"),
        None if known.is_some_and(|l| l.to_floats().iter().any(|x| !x.is_finite())) => {
            unsupported!("of known values that are not all finite")
        }
        None => {
            let x = node.x(i)?;
            node.zip(&part, Binary::Mul, x, kept)
        }
    }
}
