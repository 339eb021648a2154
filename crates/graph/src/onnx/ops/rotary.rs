//! Rotary positions: pairs of features are rotated by angles that depend on the place in the sequence.

use super::attention::{join_heads, split_heads};
use super::one;
use crate::graph::TensorId;
use crate::onnx::context::{Node, Value, count};
use crate::onnx::error::{Outcome, invalid};
use crate::op::{Binary, Op};

pub(super) fn rotary(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let x = node.x(0)?;
    let flat = node.dims(x).len() == 3;
    let heads = count(node.attributes.int("num_heads", 0)?, "num_heads")?;
    let x = match node.dims(x)[..] {
        [batch, rows, width] if heads > 0 && width % heads == 0 => {
            split_heads(node, "input", x, [batch, rows, heads, width / heads])?
        }
        [_, _, width] => return invalid!("num_heads is {heads} for a width of {width}"),
        [_, _, _, _] => x,
        ref shape => {
            return invalid!("its input has shape {shape:?}; three or four axes are needed");
        }
    };
    let width = node.dims(x)[3];
    let rotated = match count(
        node.attributes.int("rotary_embedding_dim", 0)?,
        "rotary_embedding_dim",
    )? {
        0 => width,
        n => n,
    };
    if rotated > width || rotated % 2 != 0 {
        return invalid!("{rotated} of {width} features can't be rotated in pairs");
    }
    let cos = angles(node, 1, "cos", x, rotated / 2)?;
    let sin = angles(node, 2, "sin", x, rotated / 2)?;
    let mut y = rotate(node, x, rotated, cos, sin)?;
    if rotated < width {
        let rest = features(node, "rest", x, rotated, width, 1)?;
        y = node.step("whole", Op::Concat { axis: 3 }, &[y, rest])?;
    }
    match flat {
        true => one(join_heads(node, "result", y)?),
        false => one(y),
    }
}

/// Features `first..end` in steps.
fn features(
    node: &mut Node<'_, '_>,
    part: &str,
    x: TensorId,
    first: usize,
    end: usize,
    step: usize,
) -> Outcome<TensorId> {
    let mut ends = node.dims(x);
    ends[3] = end;
    let op = Op::Slice {
        start: vec![0, 0, 0, first],
        end: ends,
        step: vec![1, 1, 1, step],
    };
    node.step(part, op, &[x])
}

/// Each pair (a, b) becomes (a·cos − b·sin, a·sin + b·cos). Pairs are neighbours, or of both halves.
fn rotate(
    node: &mut Node<'_, '_>,
    x: TensorId,
    rotated: usize,
    cos: TensorId,
    sin: TensorId,
) -> Outcome<TensorId> {
    let neighbours = node.attributes.flag("interleaved", false)?;
    let half = rotated / 2;
    let (a, b) = match neighbours {
        true => (
            features(node, "first", x, 0, rotated, 2)?,
            features(node, "second", x, 1, rotated, 2)?,
        ),
        false => (
            features(node, "first", x, 0, half, 1)?,
            features(node, "second", x, half, rotated, 1)?,
        ),
    };
    let mut product = |part: &str, a, b| node.zip(part, Binary::Mul, a, b);
    let parts = [
        product("first.cos", a, cos)?,
        product("second.sin", b, sin)?,
        product("first.sin", a, sin)?,
        product("second.cos", b, cos)?,
    ];
    let first = node.zip("first.rotated", Binary::Sub, parts[0], parts[1])?;
    let second = node.zip("second.rotated", Binary::Add, parts[2], parts[3])?;
    if !neighbours {
        return node.step("rotated", Op::Concat { axis: 3 }, &[first, second]);
    }
    let mut shape = node.dims(first);
    shape.push(1);
    let first = node.view("first.column", first, &shape)?;
    let second = node.view("second.column", second, &shape)?;
    let pairs = node.step("pairs", Op::Concat { axis: 4 }, &[first, second])?;
    shape.pop();
    shape[3] = rotated;
    node.view("rotated", pairs, &shape)
}

/// Cosines or sines, which are never trained, as `[batch, 1, rows, half]`: input `i`, or its rows at the places that
/// input 3 names.
fn angles(
    node: &mut Node<'_, '_>,
    i: usize,
    part: &str,
    x: TensorId,
    half: usize,
) -> Outcome<TensorId> {
    let table = node.untrained_weight(i)?;
    let picked = match node.has(3) {
        true if node.dims(table).len() == 2 => {
            let places = node.x(3)?;
            node.step(part, Op::Gather { axis: 0 }, &[table, places])?
        }
        true => {
            return invalid!(
                "its input {i} has shape {:?}, not two axes",
                node.dims(table)
            );
        }
        false => table,
    };
    let (shape, x) = (node.dims(picked), node.dims(x));
    let fits = |&[batch, rows, width]: &[usize; 3]| {
        (batch == 1 || batch == x[0]) && rows == x[2] && width == half
    };
    match <[usize; 3]>::try_from(shape.as_slice()).ok().filter(fits) {
        Some([batch, rows, _]) => {
            node.view(&format!("{part}.rows"), picked, &[batch, 1, rows, half])
        }
        None => invalid!(
            "its angles have shape {shape:?}, its input {x:?}, of which {half} pairs are rotated"
        ),
    }
}
