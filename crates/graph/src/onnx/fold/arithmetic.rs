//! Arithmetic, comparisons and reductions of known tensors. Integers are checked for overflow.

use super::MAX_ELEMENTS;
use super::select::{common_shape, expand, strides};
use crate::onnx::context::{Node, axes, axis};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::onnx::literal::{Data, Literal, element_count};

pub(super) fn unary(op: &str, x: &Literal) -> Outcome<Literal> {
    let shape = x.shape.clone();
    match &x.data {
        Data::Floats(v) => {
            let f: fn(f32) -> f32 = match op {
                "Abs" => f32::abs,
                "Ceil" => f32::ceil,
                "Cos" => f32::cos,
                "Exp" => f32::exp,
                "Floor" => f32::floor,
                "Log" => f32::ln,
                "Neg" => |v| -v,
                "Reciprocal" => f32::recip,
                "Round" => f32::round_ties_even,
                "Sin" => f32::sin,
                "Sqrt" => f32::sqrt,
                "Tanh" => f32::tanh,
                _ => return unsupported!("of known floats"),
            };
            let values: Vec<f32> = v.iter().map(|&v| f(v)).collect();
            Ok(Literal::floats(shape, values))
        }
        Data::Ints(v) => {
            let f: fn(i64) -> Option<i64> = match op {
                "Abs" => i64::checked_abs,
                "Neg" => i64::checked_neg,
                "Not" => |v| Some(i64::from(v == 0)),
                _ => return unsupported!("of known integers"),
            };
            match v.iter().map(|&v| f(v)).collect::<Option<Vec<i64>>>() {
                Some(values) => Ok(Literal::ints(shape, values)),
                None => invalid!("an integer overflows"),
            }
        }
    }
}

pub(super) fn clip(node: &Node<'_, '_>, x: &Literal) -> Outcome<Literal> {
    let mut result = x.clone();
    for (i, name, op) in [(1, "min", "Max"), (2, "max", "Min")] {
        if node.has(i) {
            result = pairwise(op, &result, &node.literal(i, "a bound")?)?;
        } else if node.attributes.has(name) {
            let bound = node.attributes.float(name, 0.0)? as f32;
            result = pairwise(op, &result, &Literal::floats(vec![], vec![bound]))?;
        }
    }
    Ok(result)
}

pub(super) fn fold_many(op: &str, inputs: &[Literal]) -> Outcome<Literal> {
    let mut result = inputs[0].clone();
    for next in &inputs[1..] {
        result = pairwise(op, &result, next)?;
    }
    Ok(result)
}

pub(super) fn binary(node: &Node<'_, '_>, op: &str, a: &Literal, b: &Literal) -> Outcome<Literal> {
    if op == "Mod" && node.attributes.flag("fmod", false)? {
        return unsupported!("with fmod");
    }
    pairwise(op, a, b)
}

fn pairwise(op: &str, a: &Literal, b: &Literal) -> Outcome<Literal> {
    let Some(shape) = common_shape(&a.shape, &b.shape) else {
        return invalid!("shapes {:?} and {:?} don't broadcast", a.shape, b.shape);
    };
    let (a, b) = (expand(a, &shape)?, expand(b, &shape)?);
    match (&a.data, &b.data) {
        (Data::Ints(a), Data::Ints(b)) => {
            let values: Option<Vec<i64>> = a
                .iter()
                .zip(b.iter())
                .map(|(&a, &b)| int_pair(op, a, b))
                .collect();
            match values {
                Some(values) => Ok(Literal::ints(shape, values)),
                None => invalid!("an integer overflows or is divided by 0"),
            }
        }
        (Data::Floats(v), _) if op == "Pow" => {
            let exponents = b.to_floats();
            let values: Vec<f32> = v.iter().zip(&exponents).map(|(a, &b)| a.powf(b)).collect();
            Ok(Literal::floats(shape, values))
        }
        (Data::Ints(v), Data::Floats(exponents)) if op == "Pow" => {
            let pairs = v.iter().zip(exponents.iter());
            let values: Vec<i64> = pairs
                .map(|(&a, &b)| (a as f64).powf(f64::from(b)) as i64)
                .collect();
            Ok(Literal::ints(shape, values))
        }
        (Data::Floats(a), Data::Floats(b)) => {
            let pairs = a.iter().zip(b.iter());
            if let Some(compare) = float_comparison(op) {
                let values: Vec<i64> = pairs.map(|(a, b)| i64::from(compare(a, b))).collect();
                return Ok(Literal::ints(shape, values));
            }
            let f: fn(f32, f32) -> f32 = match op {
                "Add" => |a, b| a + b,
                "Sub" => |a, b| a - b,
                "Mul" => |a, b| a * b,
                "Div" => |a, b| a / b,
                "Max" => f32::max,
                "Min" => f32::min,
                _ => return unsupported!("of known floats"),
            };
            let values: Vec<f32> = pairs.map(|(&a, &b)| f(a, b)).collect();
            Ok(Literal::floats(shape, values))
        }
        _ => invalid!("one input is integer, the other floating point"),
    }
}

fn float_comparison(op: &str) -> Option<fn(&f32, &f32) -> bool> {
    Some(match op {
        "Equal" => |a, b| a == b,
        "Greater" => |a, b| a > b,
        "GreaterOrEqual" => |a, b| a >= b,
        "Less" => |a, b| a < b,
        "LessOrEqual" => |a, b| a <= b,
        _ => return None,
    })
}

/// None if the result doesn't exist or overflows.
fn int_pair(op: &str, a: i64, b: i64) -> Option<i64> {
    Some(match op {
        "Add" => a.checked_add(b)?,
        "Sub" => a.checked_sub(b)?,
        "Mul" => a.checked_mul(b)?,
        "Div" => a.checked_div(b)?,
        "Mod" => {
            // The sign is that of the divisor.
            let rest = a.checked_rem(b)?;
            if rest != 0 && (rest < 0) != (b < 0) {
                rest + b
            } else {
                rest
            }
        }
        "Pow" => a.checked_pow(u32::try_from(b).ok()?)?,
        "Max" => a.max(b),
        "Min" => a.min(b),
        "And" => i64::from(a != 0 && b != 0),
        "Or" => i64::from(a != 0 || b != 0),
        "Equal" => i64::from(a == b),
        "Greater" => i64::from(a > b),
        "GreaterOrEqual" => i64::from(a >= b),
        "Less" => i64::from(a < b),
        "LessOrEqual" => i64::from(a <= b),
        _ => return None,
    })
}

/// A reduction; sums of squares are sums after a product.
pub(super) fn reduce(node: &Node<'_, '_>, op: &str, x: &Literal) -> Outcome<Literal> {
    match op {
        "ReduceSumSquare" => reduced(node, "ReduceSum", &pairwise("Mul", x, x)?),
        "ReduceL2" => unary(
            "Sqrt",
            &reduced(node, "ReduceSum", &pairwise("Mul", x, x)?)?,
        ),
        _ => reduced(node, op, x),
    }
}

fn reduced(node: &Node<'_, '_>, op: &str, x: &Literal) -> Outcome<Literal> {
    let rank = x.shape.len();
    let keep = node.attributes.flag("keepdims", true)?;
    let noop = node.attributes.flag("noop_with_empty_axes", false)?;
    let listed = node.ints_of("axes", 1)?.filter(|list| !list.is_empty());
    let axes = match listed {
        Some(list) => axes(&list, rank)?,
        None if noop => return Ok(x.clone()),
        None => (0..rank).collect(),
    };
    let kept: Vec<usize> = (0..rank)
        .map(|i| if axes.contains(&i) { 1 } else { x.shape[i] })
        .collect();
    let mut steps = strides(&kept);
    axes.iter().for_each(|&i| steps[i] = 0);
    let Some(count) = element_count(&kept).filter(|&n| n <= MAX_ELEMENTS) else {
        return unsupported!("of known values with more than {MAX_ELEMENTS} elements");
    };
    let x_steps = strides(&x.shape);
    let target = |position: usize| {
        let index = x_steps.iter().zip(&x.shape).map(|(s, n)| position / s % n);
        index.zip(&steps).map(|(i, s)| i * s).sum()
    };
    let data = match &x.data {
        Data::Ints(values) => {
            let pair = match op {
                "ReduceMax" => "Max",
                "ReduceMin" => "Min",
                "ReduceProd" => "Mul",
                _ => "Add",
            };
            let combine = |a, b| int_pair(pair, a, b);
            let Some(results) = combined(values, count, target, combine) else {
                return invalid!("an integer overflows");
            };
            let neutral = i64::from(pair == "Mul");
            Data::Ints(results.into_iter().map(|r| r.unwrap_or(neutral)).collect())
        }
        Data::Floats(values) => {
            let (neutral, pair): (f32, fn(f32, f32) -> f32) = match op {
                "ReduceMax" => (f32::NEG_INFINITY, f32::max),
                "ReduceMin" => (f32::INFINITY, f32::min),
                "ReduceProd" => (1.0, |a, b| a * b),
                _ => (0.0, |a, b| a + b),
            };
            let results = combined(values, count, target, |a, b| Some(pair(a, b)));
            let results = results.unwrap_or_default().into_iter();
            Data::Floats(results.map(|r| r.unwrap_or(neutral)).collect())
        }
    };
    let shape = (0..rank)
        .filter(|i| keep || !axes.contains(i))
        .map(|i| kept[i])
        .collect();
    Ok(Literal { shape, data })
}

/// Combines the values that share a target, for every target; `None` if any two can't be combined.
fn combined<T: Copy>(
    values: &[T],
    count: usize,
    target: impl Fn(usize) -> usize,
    combine: impl Fn(T, T) -> Option<T>,
) -> Option<Vec<Option<T>>> {
    let mut results = vec![None; count];
    for (position, &value) in values.iter().enumerate() {
        let result = &mut results[target(position)];
        *result = Some(match *result {
            None => value,
            Some(so_far) => combine(so_far, value)?,
        });
    }
    Some(results)
}

/// Sums along an axis, of what comes before and, unless `exclusive`, of the element itself.
pub(super) fn cumulated(node: &Node<'_, '_>, x: &Literal) -> Outcome<Literal> {
    let (exclusive, reverse) = (
        node.attributes.flag("exclusive", false)?,
        node.attributes.flag("reverse", false)?,
    );
    let axis = axis(node.scalar(1, "an axis")? as i64, x.shape.len())?;
    let (length, step) = (x.shape[axis], strides(&x.shape)[axis]);
    let data = match &x.data {
        Data::Floats(v) => Data::Floats(running(v, length, step, [exclusive, reverse], 0.0)),
        Data::Ints(v) => {
            let wrapping = v.iter().map(|&v| std::num::Wrapping(v)).collect::<Vec<_>>();
            let zero = std::num::Wrapping(0);
            let sums = running(&wrapping, length, step, [exclusive, reverse], zero);
            Data::Ints(sums.iter().map(|sum| sum.0).collect())
        }
    };
    Ok(Literal {
        shape: x.shape.clone(),
        data,
    })
}

fn running<T: Copy + std::ops::Add<Output = T>>(
    values: &[T],
    length: usize,
    step: usize,
    [exclusive, reverse]: [bool; 2],
    zero: T,
) -> std::sync::Arc<[T]> {
    let mut sums = values.to_vec();
    for first in (0..values.len()).filter(|position| (position / step).is_multiple_of(length)) {
        let mut sum = zero;
        for i in 0..length {
            let at = first + step * if reverse { length - 1 - i } else { i };
            let next = sum + values[at];
            sums[at] = if exclusive { sum } else { next };
            sum = next;
        }
    }
    sums.into()
}

pub(super) fn choose(condition: &Literal, a: &Literal, b: &Literal) -> Outcome<Literal> {
    let shape = common_shape(&condition.shape, &a.shape);
    let Some(shape) = shape.and_then(|shape| common_shape(&shape, &b.shape)) else {
        return invalid!("its inputs don't broadcast");
    };
    let condition = expand(condition, &shape)?;
    let (a, b) = (expand(a, &shape)?, expand(b, &shape)?);
    let Some(condition) = condition.as_ints() else {
        return invalid!("the condition is not a bool");
    };
    match (&a.data, &b.data) {
        (Data::Floats(a), Data::Floats(b)) => {
            let pairs = condition.iter().zip(a.iter().zip(b.iter()));
            let values: Vec<f32> = pairs
                .map(|(&c, (&a, &b))| if c != 0 { a } else { b })
                .collect();
            Ok(Literal::floats(shape, values))
        }
        (Data::Ints(a), Data::Ints(b)) => {
            let pairs = condition.iter().zip(a.iter().zip(b.iter()));
            let values: Vec<i64> = pairs
                .map(|(&c, (&a, &b))| if c != 0 { a } else { b })
                .collect();
            Ok(Literal::ints(shape, values))
        }
        _ => invalid!("one input is integer, the other floating point"),
    }
}
