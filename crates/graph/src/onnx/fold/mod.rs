//! Evaluation of nodes whose inputs are known: what exporters write to compute shapes, masks and
//! tables. Weights ([`Value::Weight`]) are not folded, as training changes them.

mod arithmetic;
mod gather;
mod matmul;
mod select;

use arithmetic::{binary, choose, clip, cumulated, fold_many, reduce, unary};
use gather::{gather, gather_elements, gather_nd, scatter_elements, scatter_nd};
use matmul::matmul;
use select::{expand, select, strides};

use super::context::{Node, Value, Weight, axis, check_size, count};
use super::error::{Outcome, invalid, unsupported};
use super::literal::{Data, Literal, element_count};
use super::proto::data_type;
use super::shapes;
use crate::dtype::DType;
use crate::graph::Init;

/// Folded tensors don't get larger: they are computed at import and kept in memory.
const MAX_ELEMENTS: usize = 1 << 24;

const UNARY: &[&str] = &[
    "Abs",
    "Ceil",
    "Cos",
    "Erf",
    "Exp",
    "Floor",
    "Log",
    "Neg",
    "Not",
    "Reciprocal",
    "Round",
    "Sin",
    "Sqrt",
    "Tanh",
];
const BINARY: &[&str] = &[
    "Add",
    "And",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "Pow",
    "Sub",
];
const OTHERS: &[&str] = &[
    "Cast",
    "Clip",
    "Concat",
    "Constant",
    "ConstantOfShape",
    "CumSum",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "MatMul",
    "Range",
    "ReduceL2",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "Reshape",
    "ScatterElements",
    "ScatterND",
    "Shape",
    "Size",
    "Slice",
    "Squeeze",
    "Tile",
    "Transpose",
    "Trilu",
    "Unsqueeze",
    "Where",
];

/// Whether the operator can be evaluated at import.
pub(super) fn knows(op: &str) -> bool {
    [UNARY, BINARY, OTHERS]
        .iter()
        .any(|list| list.contains(&op))
}

/// The values of a node's outputs if they can be known at import.
pub(super) fn fold(node: &mut Node<'_, '_>) -> Outcome<Option<Vec<Value>>> {
    let op = node.proto.op_type.as_str();
    let known = match op {
        "Constant" => constant(node)?,
        "ConstantOfShape" => return constant_of_shape(node).map(|v| Some(vec![v])),
        "Shape" => shape_of(node)?,
        "Size" => {
            let shape = node.shape(0)?;
            Literal::ints(vec![], vec![shape.iter().product::<usize>() as i64])
        }
        _ if !knows(op) => return Ok(None),
        _ => {
            let Some(inputs) = known_inputs(node) else {
                return Ok(None);
            };
            evaluate(node, op, &inputs)?
        }
    };
    Ok(Some(vec![Value::Known(known)]))
}

/// All inputs, if they are known and none is a weight. Missing optional ones are left out.
fn known_inputs(node: &Node<'_, '_>) -> Option<Vec<Literal>> {
    let mut inputs = Vec::new();
    for i in (0..node.proto.input.len()).filter(|&i| node.has(i)) {
        match node.value(i) {
            Ok(Value::Known(literal)) => inputs.push(literal.clone()),
            // What is put into known contents is known.
            Ok(Value::Weight(_)) if i > 0 && node.proto.op_type.starts_with("Scatter") => {
                inputs.push(node.known(i)?);
            }
            _ => return None,
        }
    }
    (!inputs.is_empty()).then_some(inputs)
}

fn constant(node: &mut Node<'_, '_>) -> Outcome<Literal> {
    let a = &node.attributes;
    if let Some(tensor) = a.tensor("value")? {
        return match node.state.reader.contents(tensor) {
            Ok(literal) => Ok(literal),
            Err(reason) => invalid!("{reason}"),
        };
    }
    if a.has("value_float") {
        return Ok(Literal::floats(
            vec![],
            vec![a.float("value_float", 0.0)? as f32],
        ));
    }
    if a.has("value_int") {
        return Ok(Literal::ints(vec![], vec![a.int("value_int", 0)?]));
    }
    if let Some(values) = a.floats("value_floats")? {
        return Ok(Literal::floats(vec![values.len()], values));
    }
    if let Some(values) = a.ints("value_ints")? {
        return Ok(Literal::ints(vec![values.len()], values));
    }
    unsupported!("without a tensor or number")
}

/// A uniform tensor. Where the shape is stored in the file and not computed, and the value isn't 0, it is a
/// weight: some published models have theirs replaced in this way to be small.
fn constant_of_shape(node: &mut Node<'_, '_>) -> Outcome<Value> {
    let mut shape = Vec::new();
    for length in node.ints(0, "a shape")? {
        shape.push(count(length, "a dimension")?);
    }
    let fill = match node.attributes.tensor("value")? {
        None => Literal::floats(vec![], vec![0.0]),
        Some(tensor) => match node.state.reader.contents(tensor) {
            Ok(fill) if fill.len() == 1 => fill,
            Ok(_) => return invalid!("its value must have one element"),
            Err(reason) => return invalid!("{reason}"),
        },
    };
    let stored = node.producer(0).is_none();
    let zero = fill.as_floats().is_some_and(|fill| fill == [0.0]);
    let weight = stored && !zero && shape.iter().any(|&n| n != 1) && !shape.contains(&0);
    if let (Data::Floats(value), true) = (&fill.data, weight) {
        check_size(&shape, DType::F32)?;
        return Ok(Value::Weight(Weight {
            name: node.proto.output[0].clone(),
            shape,
            init: Init::Constant(f64::from(value[0])),
        }));
    }
    Ok(Value::Known(select(&fill, shape, |_| 0)?))
}

fn shape_of(node: &Node<'_, '_>) -> Outcome<Literal> {
    let shape = node.shape(0)?;
    let rank = shape.len() as i64;
    let bound = |value: i64| {
        let value = if value < 0 {
            value.saturating_add(rank)
        } else {
            value
        };
        value.clamp(0, rank) as usize
    };
    let start = bound(node.attributes.int("start", 0)?);
    let end = bound(node.attributes.int("end", i64::MAX)?).max(start);
    let dims: Vec<i64> = shape[start..end].iter().map(|&n| n as i64).collect();
    Ok(Literal::ints(vec![dims.len()], dims))
}

fn evaluate(node: &Node<'_, '_>, op: &str, inputs: &[Literal]) -> Outcome<Literal> {
    let x = &inputs[0];
    let reshaped = |shape| {
        Ok(Literal {
            shape,
            data: x.data.clone(),
        })
    };
    match op {
        _ if UNARY.contains(&op) => unary(op, x),
        "Max" | "Min" if inputs.len() != 2 => fold_many(op, inputs),
        _ if BINARY.contains(&op) => match inputs {
            [a, b] => binary(node, op, a, b),
            _ => invalid!("it needs two inputs"),
        },
        "Cast" => cast(node, x),
        "Clip" => clip(node, x),
        "Concat" => concat(node, inputs),
        "CumSum" => cumulated(node, x),
        "Expand" => expand(x, &target_shape(node)?),
        "Flatten" => reshaped(shapes::flattened(node)?),
        "Gather" => gather(node, inputs),
        "GatherElements" => gather_elements(node, inputs),
        "GatherND" => gather_nd(node, inputs),
        "Identity" => Ok(x.clone()),
        "MatMul" => matmul(inputs),
        "Range" => range(inputs),
        "ReduceL2" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceSum" | "ReduceSumSquare" => {
            reduce(node, op, x)
        }
        "Reshape" => reshaped(shapes::reshaped(node)?),
        "ScatterElements" => scatter_elements(node, inputs),
        "ScatterND" => scatter_nd(node, inputs),
        "Slice" => slice(node, x),
        "Squeeze" => reshaped(shapes::squeezed(node)?),
        "Tile" => tile(node, x),
        "Transpose" => transpose(node, x),
        "Trilu" => trilu(node, x),
        "Unsqueeze" => reshaped(shapes::unsqueezed(node)?),
        "Where" => match inputs {
            [condition, a, b] => choose(condition, a, b),
            _ => invalid!("it needs three inputs"),
        },
        _ => unsupported!("of known values"),
    }
}

fn target_shape(node: &Node<'_, '_>) -> Outcome<Vec<usize>> {
    let dims = node.ints(1, "a shape")?;
    dims.iter().map(|&d| count(d, "a dimension")).collect()
}

fn cast(node: &Node<'_, '_>, x: &Literal) -> Outcome<Literal> {
    use data_type::*;
    node.attributes.ignore(&["saturate", "round_mode"]);
    let to = node.attributes.required_int("to")? as i32;
    let float = match super::literal::is_float(to) {
        Ok(float) => float,
        Err(reason) => return unsupported!("to another type: {reason}"),
    };
    let data = match (&x.data, float) {
        (_, true) => Data::Floats(x.to_floats().into()),
        (Data::Ints(v), false) if to == BOOL => {
            Data::Ints(v.iter().map(|&v| i64::from(v != 0)).collect())
        }
        (Data::Ints(_), false) => x.data.clone(),
        (Data::Floats(v), false) if to == BOOL => {
            Data::Ints(v.iter().map(|&v| i64::from(v != 0.0)).collect())
        }
        // Rust's conversion truncates towards zero and saturates.
        (Data::Floats(v), false) => Data::Ints(v.iter().map(|&v| v as i64).collect()),
    };
    Ok(Literal {
        shape: x.shape.clone(),
        data,
    })
}

fn concat(node: &Node<'_, '_>, inputs: &[Literal]) -> Outcome<Literal> {
    let first = &inputs[0];
    let axis = axis(node.attributes.required_int("axis")?, first.shape.len())?;
    let mut shape = first.shape.clone();
    shape[axis] = 0;
    for part in inputs {
        let differs = |(i, (a, b)): (usize, (&usize, &usize))| i != axis && a != b;
        let fits = part.shape.len() == shape.len()
            && !part.shape.iter().zip(&shape).enumerate().any(differs);
        if !fits {
            return invalid!("shapes of its inputs differ");
        }
        shape[axis] = shape[axis].saturating_add(part.shape[axis]);
    }
    if element_count(&shape).is_none_or(|n| n > MAX_ELEMENTS) {
        return unsupported!("of known values with more than {MAX_ELEMENTS} elements");
    }
    let rows: usize = shape[..axis].iter().product();
    let inner: usize = shape[axis + 1..].iter().product();
    let widths: Vec<usize> = inputs.iter().map(|part| part.shape[axis] * inner).collect();
    let ints: Option<Vec<&[i64]>> = inputs.iter().map(Literal::as_ints).collect();
    let floats: Option<Vec<&[f32]>> = inputs.iter().map(Literal::as_floats).collect();
    let data = match (ints, floats) {
        (Some(parts), _) => Data::Ints(interleave(&parts, &widths, rows).into()),
        (_, Some(parts)) => Data::Floats(interleave(&parts, &widths, rows).into()),
        _ => return invalid!("types of its inputs differ"),
    };
    Ok(Literal { shape, data })
}

/// Row by row, each part's elements of that row.
fn interleave<T: Copy>(parts: &[&[T]], widths: &[usize], rows: usize) -> Vec<T> {
    let mut joined = Vec::new();
    for row in 0..rows {
        for (part, width) in parts.iter().zip(widths) {
            joined.extend_from_slice(&part[row * width..(row + 1) * width]);
        }
    }
    joined
}

fn range(inputs: &[Literal]) -> Outcome<Literal> {
    let [start, limit, delta] = inputs else {
        return invalid!("it needs three inputs");
    };
    let numbers = [start.scalar(), limit.scalar(), delta.scalar()];
    let [Some(start_value), Some(limit), Some(delta)] = numbers else {
        return invalid!("its inputs must be scalars");
    };
    let length = ((limit - start_value) / delta).ceil().max(0.0);
    if !length.is_finite() || length > MAX_ELEMENTS as f64 {
        return unsupported!("of more than {MAX_ELEMENTS} numbers");
    }
    let length = length as usize;
    Ok(match start.data {
        Data::Floats(_) => {
            let values: Vec<f32> = (0..length)
                .map(|i| (start_value + i as f64 * delta) as f32)
                .collect();
            Literal::floats(vec![length], values)
        }
        Data::Ints(_) => {
            let (start, delta) = (start_value as i64, delta as i64);
            let values: Vec<i64> = (0..length as i64)
                .map(|i| start.wrapping_add(i.wrapping_mul(delta)))
                .collect();
            Literal::ints(vec![length], values)
        }
    })
}

fn slice(node: &Node<'_, '_>, x: &Literal) -> Outcome<Literal> {
    let ranges = shapes::slices(node, &x.shape)?;
    let shape = ranges.iter().map(|r| r.count).collect();
    let steps = strides(&x.shape);
    select(x, shape, |index| {
        let at = index.iter().zip(&ranges).map(|(&i, range)| range.at(i));
        at.zip(&steps).map(|(i, s)| i * s).sum()
    })
}

fn tile(node: &Node<'_, '_>, x: &Literal) -> Outcome<Literal> {
    let shape = shapes::tiled(node, &x.shape)?;
    let steps = strides(&x.shape);
    let lengths = x.shape.clone();
    select(x, shape, |index| {
        index
            .iter()
            .zip(&lengths)
            .zip(&steps)
            .map(|((i, n), s)| i % n * s)
            .sum()
    })
}

fn transpose(node: &Node<'_, '_>, x: &Literal) -> Outcome<Literal> {
    let perm = shapes::permutation(node, x.shape.len())?;
    let steps = strides(&x.shape);
    let shape = perm.iter().map(|&p| x.shape[p]).collect();
    select(x, shape, |index| {
        index.iter().zip(&perm).map(|(i, &p)| i * steps[p]).sum()
    })
}

fn trilu(node: &Node<'_, '_>, x: &Literal) -> Outcome<Literal> {
    let upper = node.attributes.flag("upper", true)?;
    let k = if node.has(1) {
        node.scalar(1, "a diagonal")? as i64
    } else {
        0
    };
    let [.., rows, columns] = x.shape[..] else {
        return invalid!("it needs a matrix");
    };
    let kept = |position: usize| {
        let (row, column) = (position / columns % rows, position % columns);
        let above = column as i64 - row as i64;
        if upper { above >= k } else { above <= k }
    };
    let shape = x.shape.clone();
    Ok(match &x.data {
        Data::Floats(v) => {
            let kept = v
                .iter()
                .enumerate()
                .map(|(i, &v)| if kept(i) { v } else { 0.0 });
            Literal::floats(shape, kept.collect::<Vec<_>>())
        }
        Data::Ints(v) => {
            let kept = v
                .iter()
                .enumerate()
                .map(|(i, &v)| if kept(i) { v } else { 0 });
            Literal::ints(shape, kept.collect::<Vec<_>>())
        }
    })
}
