//! Whole numbers that follow from words, such as positions that skip padding. It is known at import between which bounds they
//! are.

use std::collections::BTreeSet;

use super::condition::numbers;
use super::one;
use crate::dtype::DType;
use crate::graph::{Init, Role, TensorId};
use crate::onnx::context::{Node, Value, Whole, axis, check_table};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::onnx::literal::{Data, Literal};
use crate::onnx::proto::NodeProto;
use crate::op::{Binary, Op, Unary};
use crate::shape::elements;

/// Floats hold whole numbers exactly up to here.
const MOST: i64 = 1 << 24;

fn whole(x: TensorId, [least, most]: [i64; 2]) -> Outcome<Value> {
    match -MOST <= least && most <= MOST {
        true => Ok(Value::Whole(Whole { x, least, most })),
        false => unsupported!("of integers beyond {MOST} that are not known at import"),
    }
}

/// Whether words are a certain one: a row of a table that has as many rows as the one of which the words are indices.
pub(super) fn equal(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let unknown = usize::from(node.known(0).is_some());
    let word = node.known(1 - unknown).and_then(|literal| literal.scalar());
    let (Some(word), DType::I64) = (word, node.dtype(unknown)?) else {
        return unsupported!(
            "of values that are not known at import, unless integers are compared with one number"
        );
    };
    let words = node.x(unknown)?;
    let rows = rows_indexed_by(node, &node.proto.input[unknown]);
    let own = rows.map(|rows| [0, rows as i64 - 1]);
    let rows = match own.or_else(|| bounds(node, words)) {
        Some([least, most]) if word < least as f64 || word > most as f64 => {
            return Ok(vec![Value::Never(node.dims(words))]);
        }
        Some([least, most]) if least >= 0 => most as usize + 1,
        _ => {
            return unsupported!(
                "of integers that are not known at import and no indices of a table"
            );
        }
    };
    check_table(&[rows])?;
    let table = (0..rows).map(|row| if row as f64 == word { 1.0 } else { 0.0 });
    let table = node.constant("table", &[rows], table.collect())?;
    one(node.last(Op::Gather { axis: 0 }, &[table, words])?)
}

/// Between which bounds words are that were put together from known ones and from inputs that are indices of tables: an input
/// that is none of a table's rows ends the run.
fn bounds(node: &Node<'_, '_>, words: TensorId) -> Option<[i64; 2]> {
    let b = &node.state.b;
    let (mut todo, mut seen) = (vec![words], BTreeSet::new());
    let mut bounds: Option<[i64; 2]> = None;
    while let Some(x) = todo.pop() {
        if !seen.insert(x) {
            continue;
        }
        let tensor = b.get(x);
        let [least, most] = match (b.producer(x), &tensor.role) {
            (Some(by), _) => {
                match by.op {
                    Op::Concat { .. } => todo.extend(&by.inputs),
                    Op::Reshape { .. }
                    | Op::Transpose { .. }
                    | Op::Slice { .. }
                    | Op::Gather { .. } => {
                        todo.push(by.inputs[0]);
                    }
                    _ => return None,
                }
                continue;
            }
            (None, Role::Constant(Init::Ints(ints))) => [*ints.iter().min()?, *ints.iter().max()?],
            (None, Role::Input) => [0, rows_indexed_by(node, &tensor.name)? as i64 - 1],
            _ => return None,
        };
        let [a, z] = bounds.unwrap_or([least, most]);
        bounds = Some([a.min(least), z.max(most)]);
    }
    bounds
}

/// The rows of the smallest table of which a tensor is the indices, for something that is needed.
fn rows_indexed_by(node: &Node<'_, '_>, name: &String) -> Option<usize> {
    let nodes = node.state.structure.graph.node.iter();
    let runs = |by: &NodeProto| {
        let used = &node.state.structure.used;
        by.output.iter().any(|o| used.contains(o.as_str()))
    };
    let indexed = |by: &NodeProto| by.op_type == "Gather" && by.input.get(1) == Some(name);
    let gathers = nodes.filter(|by| indexed(by) && runs(by));
    let rows = gathers.filter_map(|gather| {
        let first = gather
            .attribute
            .iter()
            .all(|a| a.name != "axis" || a.i == 0);
        match node.state.values.get(gather.input.first()?.as_str())? {
            Value::Weight(weight) if first => weight.shape.first().copied(),
            Value::Known(literal) if first => literal.shape.first().copied(),
            _ => None,
        }
    });
    rows.min()
}

/// A cast of whole numbers, or of a condition to integers; nothing of what is neither.
pub(super) fn cast(node: &mut Node<'_, '_>, float: bool) -> Outcome<Option<Value>> {
    match (node.value(0)?, float) {
        (Value::Whole(whole), true) => Ok(Some(Value::Tensor(whole.x))),
        (Value::Whole(whole), false) => Ok(Some(Value::Whole(*whole))),
        (_, false) if node.dtype(0)? != DType::I64 && node.is_bool(0) => {
            let x = numbers(node, 0)?;
            whole(x, [0, 1]).map(Some)
        }
        _ => Ok(None),
    }
}

/// Add, Sub and Mul of whole numbers; nothing if none of the two is one.
pub(super) fn arithmetic(node: &mut Node<'_, '_>) -> Outcome<Option<Value>> {
    let counted = |i| matches!(node.value(i), Ok(Value::Whole(_)));
    if !counted(0) && !counted(1) {
        return Ok(None);
    }
    let (mut x, mut bounds) = (Vec::with_capacity(2), Vec::with_capacity(2));
    for (i, part) in ["a", "b"].into_iter().enumerate() {
        match node.value(i)?.clone() {
            Value::Whole(Whole { x: at, least, most }) => {
                x.push(at);
                bounds.push([least, most]);
            }
            Value::Known(Literal {
                shape,
                data: Data::Ints(ints),
            }) => {
                let (least, most) = (ints.iter().min(), ints.iter().max());
                let floats = ints.iter().map(|&n| n as f32).collect();
                bounds.push([*least.unwrap_or(&0), *most.unwrap_or(&0)]);
                x.push(node.constant(part, &shape, floats)?);
            }
            _ => return unsupported!("of integers that are not known at import"),
        }
    }
    let ([a, b], [c, d]) = (bounds[0], bounds[1]);
    let (f, bounds) = match node.proto.op_type.as_str() {
        "Add" => (Binary::Add, [a.saturating_add(c), b.saturating_add(d)]),
        "Sub" => (Binary::Sub, [a.saturating_sub(d), b.saturating_sub(c)]),
        "Mul" => {
            let all = [(a, c), (a, d), (b, c), (b, d)].map(|(x, y)| x.saturating_mul(y));
            let (least, most) = (all.iter().min(), all.iter().max());
            (Binary::Mul, [*least.unwrap_or(&0), *most.unwrap_or(&0)])
        }
        _ => return unsupported!("of integers that are not known at import"),
    };
    let y = node.last(Op::Binary(f), &x)?;
    whole(y, bounds).map(Some)
}

/// Sums of the elements so far: a product with a triangle of ones.
pub(super) fn cum_sum(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let shape = node.shape(0)?;
    let along = axis(node.scalar(1, "an axis")? as i64, shape.len())?;
    let exclusive = node.attributes.flag("exclusive", false)?;
    let reverse = node.attributes.flag("reverse", false)?;
    if node.dtype(0)? == DType::I64 {
        return unsupported!("of integers that are not known at import");
    }
    let length = shape[along];
    check_table(&[length, length])?;
    let counts = |from: usize, to: usize| match (from.cmp(&to), reverse) {
        (std::cmp::Ordering::Equal, _) => !exclusive,
        (order, reverse) => order.is_gt() == reverse,
    };
    let cells = (0..length).flat_map(|from| (0..length).map(move |to| (from, to)));
    let ones = cells.map(|(from, to)| if counts(from, to) { 1.0 } else { 0.0 });
    let ones = node.constant("ones", &[length, length], ones.collect())?;
    let mut perm: Vec<usize> = (0..shape.len()).collect();
    perm.swap(along, shape.len() - 1);
    let moved = along + 1 < shape.len();
    let mut x = node.x(0)?;
    if moved {
        x = node.step("last", Op::Transpose { perm: perm.clone() }, &[x])?;
    }
    let to = node.dims(x);
    let rows = node.view("rows", x, &[elements(&to) / length.max(1), length])?;
    let product = Op::MatMul {
        trans_a: false,
        trans_b: false,
    };
    let y = node.step("sums", product, &[rows, ones])?;
    let mut y = node.view("shape", y, &to)?;
    if moved {
        y = node.step("order", Op::Transpose { perm }, &[y])?;
    }
    let Value::Whole(Whole { least, most, .. }) = *node.value(0)? else {
        return one(y);
    };
    let (few, many) = (i64::from(!exclusive), length as i64);
    let least = (few * least).min(many.saturating_mul(least));
    let most = (few * most).max(many.saturating_mul(most));
    Ok(vec![whole(y, [least, most])?])
}

/// Rows of a table by whole numbers: the product with a matrix that has a one in each row, at that number.
pub(super) fn gather(node: &mut Node<'_, '_>, data: TensorId, indices: Whole) -> Outcome<TensorId> {
    let (shape, Whole { x, least, most }) = (node.dims(data), indices);
    let rows = shape[0];
    if least < 0 || most >= rows as i64 {
        return unsupported!("by indices from {least} to {most}, of {rows} rows");
    }
    let mut to = node.dims(x);
    let count = elements(&to);
    check_table(&[count, rows])?;
    let numbers = (0..rows).map(|row| row as f32).collect();
    let numbers = node.constant("numbers", &[1, rows], numbers)?;
    let column = node.view("column", x, &[count, 1])?;
    let apart = node.zip("apart", Binary::Sub, column, numbers)?;
    let apart = node.map("distance", Unary::Abs, apart)?;
    let near = Unary::Affine {
        scale: -1.0,
        shift: 1.0,
    };
    let near = node.map("near", near, apart)?;
    let hot = node.map("hot", Unary::Clip { lo: 0.0, hi: 1.0 }, near)?;
    let table = node.view("table", data, &[rows, elements(&shape[1..])])?;
    let product = Op::MatMul {
        trans_a: false,
        trans_b: false,
    };
    let y = node.step("product", product, &[hot, table])?;
    to.extend(&shape[1..]);
    node.view("shape", y, &to)
}

/// Elements by indices that aren't known, of data that are all the same.
pub(super) fn gather_same(node: &Node<'_, '_>) -> Outcome<Option<Value>> {
    let (Some(data), None) = (node.untrained(0), node.known(1)) else {
        return Ok(None);
    };
    let shape = node.shape(1)?;
    check_table(&shape)?;
    let count = elements(&shape);
    let literal = match &data.data {
        Data::Ints(values) if values.iter().all(|n| *n == values[0]) && !values.is_empty() => {
            Literal::ints(shape, vec![values[0]; count])
        }
        Data::Floats(values) if values.iter().all(|n| *n == values[0]) && !values.is_empty() => {
            Literal::floats(shape, vec![values[0]; count])
        }
        _ => return Ok(None),
    };
    match node.value(1)? {
        Value::Whole(Whole { least, most, .. }) => {
            let length = data
                .shape
                .get(axis(node.attributes.int("axis", 0)?, data.shape.len())?);
            match *least >= 0 && length.is_some_and(|&length| *most < length as i64) {
                true => Ok(Some(Value::Known(literal))),
                false => invalid!("its indices are from {least} to {most}, of {length:?}"),
            }
        }
        _ => Ok(None),
    }
}
