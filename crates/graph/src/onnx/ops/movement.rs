//! Operators that move elements.

use super::one;
use crate::graph::TensorId;
use crate::onnx::context::{Node, Value, Weight, axes, axis, check_table, count};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::onnx::shapes::{
    Range, flattened, permutation, reshaped, slices, squeezed, tiled, unsqueezed,
};
use crate::op::Op;
use crate::shape::broadcast;

/// A copy of the same tensor. Of a weight it is another weight that starts the same: exporters store
/// equal initial weights once and refer to them by Identity.
pub(super) fn identity(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    Ok(vec![match node.value(0)?.clone() {
        Value::Weight(weight) => Value::Weight(Weight {
            name: node.proto.output[0].clone(),
            ..weight
        }),
        value => value,
    }])
}

pub(super) fn concat(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let mut inputs = Vec::new();
    for i in 0..node.variadic()? {
        // Empty tensors have no counterpart in the graph and add nothing.
        if !node.shape(i)?.contains(&0) {
            inputs.push(node.x(i)?);
        }
    }
    let Some(&first) = inputs.first() else {
        return unsupported!("of empty tensors");
    };
    let axis = axis(
        node.attributes.required_int("axis")?,
        node.dims(first).len(),
    )?;
    match inputs.len() {
        1 => one(first),
        _ => one(node.last(Op::Concat { axis }, &inputs)?),
    }
}

pub(super) fn split(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let x = node.x(0)?;
    let shape = node.dims(x);
    let axis = axis(node.attributes.int("axis", 0)?, shape.len())?;
    let outputs = node.proto.output.len();
    let length = shape[axis];
    let requested = node.attributes.int("num_outputs", outputs as i64)?;
    let sizes: Vec<usize> = match node.ints_of("split", 1)? {
        Some(sizes) => sizes
            .iter()
            .map(|&n| count(n, "a part's length"))
            .collect::<Outcome<_>>()?,
        None if requested != outputs as i64 || outputs == 0 => {
            return invalid!("num_outputs is {requested}, but it has {outputs} outputs");
        }
        None => {
            let part = length.div_ceil(outputs);
            let start = |i: usize| (i * part).min(length);
            (0..outputs).map(|i| start(i + 1) - start(i)).collect()
        }
    };
    if sizes.len() != outputs {
        return invalid!("it has {} parts for {outputs} outputs", sizes.len());
    }
    Ok(cut(node, x, axis, &sizes)?
        .into_iter()
        .map(Value::Tensor)
        .collect())
}

/// Parts of these lengths along an axis, which must be all of it.
pub(super) fn cut(
    node: &mut Node<'_, '_>,
    x: TensorId,
    axis: usize,
    sizes: &[usize],
) -> Outcome<Vec<TensorId>> {
    let shape = node.dims(x);
    let total = sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
    if total != Some(shape[axis]) {
        return invalid!("it splits {} elements into {sizes:?}", shape[axis]);
    }
    let mut parts = Vec::new();
    let mut begin = 0;
    for (i, size) in sizes.iter().enumerate() {
        let mut start = vec![0; shape.len()];
        let mut end = shape.clone();
        (start[axis], end[axis]) = (begin, begin + size);
        begin += size;
        let op = Op::Slice {
            start,
            end,
            step: vec![1; shape.len()],
        };
        parts.push(node.step(&i.to_string(), op, &[x])?);
    }
    Ok(parts)
}

pub(super) fn slice(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let shape = node.shape(0)?;
    let ranges = slices(node, &shape)?;
    let x = node.x(0)?;
    if ranges.iter().any(|r| r.count == 0) {
        return unsupported!("with an empty result");
    }
    // Backwards slices are taken by index; then the rest is an ordinary slice.
    let mut y = x;
    for (axis, range) in ranges.iter().enumerate().filter(|(_, r)| r.step < 0) {
        let indices = (0..range.count).map(|i| range.at(i) as i64).collect();
        y = node.take(&format!("axis{axis}"), y, axis, indices)?;
    }
    let forward = |r: &&Range| r.step > 0;
    if ranges.iter().filter(forward).count() == 0 {
        return one(y);
    }
    let bounds = |r: &Range| match r.step {
        1.. => (r.at(0), r.at(r.count - 1) + 1, r.step as usize),
        _ => (0, r.count, 1),
    };
    let op = Op::Slice {
        start: ranges.iter().map(|r| bounds(r).0).collect(),
        end: ranges.iter().map(|r| bounds(r).1).collect(),
        step: ranges.iter().map(|r| bounds(r).2).collect(),
    };
    one(node.last(op, &[y])?)
}

/// How the elements outside a padded tensor are found.
fn reflected(mode: &str, i: i64, length: i64) -> Option<i64> {
    match mode {
        "edge" => Some(i.clamp(0, length - 1)),
        "wrap" => Some(i.rem_euclid(length)),
        "reflect" if length == 1 => Some(0),
        "reflect" => {
            let period = 2 * (length - 1);
            let i = i.rem_euclid(period);
            Some(if i < length { i } else { period - i })
        }
        _ => None,
    }
}

pub(super) fn pad(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let shape = node.shape(0)?;
    let mode = node.attributes.text("mode", "constant")?;
    let Some(listed) = node.ints_of("pads", 1)? else {
        return invalid!("pads is missing");
    };
    let value = match node.has(2) {
        true => node.scalar(2, "a padding value")?,
        false => node.attributes.float("value", 0.0)?,
    };
    let named = if node.has(3) {
        Some(node.ints(3, "axes")?)
    } else {
        None
    };
    let named = named.unwrap_or_else(|| (0..shape.len() as i64).collect());
    if listed.len() != 2 * named.len() {
        return invalid!("pads has {} numbers for {} axes", listed.len(), named.len());
    }
    axes(&named, shape.len())?;
    let mut pads = vec![(0i64, 0i64); shape.len()];
    for (i, &name) in named.iter().enumerate() {
        pads[axis(name, shape.len())?] = (listed[i], listed[named.len() + i]);
    }
    let limit = 1 << 40;
    if pads.iter().any(|(a, b)| a.abs() > limit || b.abs() > limit) {
        return invalid!("its padding {pads:?} is too large");
    }
    let x = node.x(0)?;
    match mode {
        "constant" => pad_constant(node, x, &shape, &pads, value),
        "edge" | "reflect" | "wrap" => pad_by_index(node, x, &shape, &pads, mode),
        other => unsupported!("mode {other:?}"),
    }
}

/// Negative padding is a slice first.
fn pad_constant(
    node: &mut Node<'_, '_>,
    mut x: TensorId,
    shape: &[usize],
    pads: &[(i64, i64)],
    value: f64,
) -> Outcome<Vec<Value>> {
    let part = |n: i64| n.max(0) as usize;
    if pads.iter().any(|&(a, b)| a < 0 || b < 0) {
        let start: Vec<usize> = pads.iter().map(|p| part(-p.0)).collect();
        let cut = shape
            .iter()
            .zip(pads)
            .map(|(&n, p)| n.checked_sub(part(-p.1)));
        let end = cut.collect::<Option<Vec<usize>>>();
        let Some(end) = end.filter(|end| start.iter().zip(end).all(|(s, e)| s < e)) else {
            return unsupported!("with an empty result");
        };
        let step = vec![1; shape.len()];
        x = node.step("cut", Op::Slice { start, end, step }, &[x])?;
    }
    if pads.iter().all(|&(a, b)| a <= 0 && b <= 0) {
        return one(x);
    }
    let op = Op::Pad {
        begin: pads.iter().map(|p| part(p.0)).collect(),
        end: pads.iter().map(|p| part(p.1)).collect(),
        value,
    };
    one(node.last(op, &[x])?)
}

fn pad_by_index(
    node: &mut Node<'_, '_>,
    mut x: TensorId,
    shape: &[usize],
    pads: &[(i64, i64)],
    mode: &str,
) -> Outcome<Vec<Value>> {
    for (axis, (&length, &(before, after))) in shape.iter().zip(pads).enumerate() {
        let length = length as i64;
        let total = usize::try_from(before + length + after).unwrap_or(0);
        if total == 0 {
            return unsupported!("with an empty result");
        }
        check_table(&[total])?;
        let indices = (-before..length + after).map(|i| reflected(mode, i, length));
        let Some(indices) = indices.collect::<Option<Vec<i64>>>() else {
            return unsupported!("mode {mode:?}");
        };
        x = node.take(&format!("axis{axis}"), x, axis, indices)?;
    }
    one(x)
}

/// Reshape, Flatten, Squeeze and Unsqueeze.
pub(super) fn reshape(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let shape = match node.proto.op_type.as_str() {
        "Reshape" => reshaped(node)?,
        "Flatten" => flattened(node)?,
        "Squeeze" => squeezed(node)?,
        _ => unsqueezed(node)?,
    };
    let x = node.x(0)?;
    if node.dims(x) == shape {
        return one(x);
    }
    one(node.last(Op::Reshape { shape }, &[x])?)
}

pub(super) fn transpose(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let x = node.x(0)?;
    let perm = permutation(node, node.dims(x).len())?;
    if perm.iter().copied().eq(0..perm.len()) {
        return one(x);
    }
    one(node.last(Op::Transpose { perm }, &[x])?)
}

pub(super) fn expand(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let x = node.x(0)?;
    let mut target = Vec::new();
    for length in node.ints(1, "a shape")? {
        target.push(count(length, "a dimension")?);
    }
    let from = node.dims(x);
    let Ok(shape) = broadcast(&from, &target) else {
        return invalid!("{from:?} does not broadcast to {target:?}");
    };
    if shape == from {
        return one(x);
    }
    one(node.last(Op::Expand { shape, scale: 1.0 }, &[x])?)
}

pub(super) fn tile(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let mut x = node.x(0)?;
    let shape = node.dims(x);
    let tiled = tiled(node, &shape)?;
    for (axis, (length, total)) in shape.into_iter().zip(tiled).enumerate() {
        check_table(&[total])?;
        let indices = (0..total).map(|i| (i % length) as i64).collect();
        x = node.take(&format!("axis{axis}"), x, axis, indices)?;
    }
    one(x)
}

fn block(node: &Node<'_, '_>, x: TensorId) -> Outcome<([usize; 4], usize)> {
    let size = count(node.attributes.required_int("blocksize")?, "blocksize")?;
    match node.dims(x)[..] {
        [n, c, h, w] if (1..=1 << 16).contains(&size) => Ok(([n, c, h, w], size)),
        _ => invalid!("it needs an image with four axes and a blocksize of at least 1"),
    }
}

pub(super) fn depth_to_space(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let x = node.x(0)?;
    let ([n, c, h, w], s) = block(node, x)?;
    if c % (s * s) != 0 {
        return invalid!("{c} channels are no multiple of {}", s * s);
    }
    let rest = c / (s * s);
    let (split, perm) = match node.attributes.text("mode", "DCR")? {
        "DCR" => ([n, s, s, rest, h, w], [0, 3, 4, 1, 5, 2]),
        "CRD" => ([n, rest, s, s, h, w], [0, 1, 4, 2, 5, 3]),
        other => return unsupported!("mode {other:?}"),
    };
    rearrange(node, x, &split, &perm, &[n, rest, h * s, w * s])
}

pub(super) fn space_to_depth(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let x = node.x(0)?;
    let ([n, c, h, w], s) = block(node, x)?;
    if h % s != 0 || w % s != 0 {
        return invalid!("height {h} and width {w} must be multiples of {s}");
    }
    let split = [n, c, h / s, s, w / s, s];
    rearrange(
        node,
        x,
        &split,
        &[0, 3, 5, 1, 2, 4],
        &[n, c * s * s, h / s, w / s],
    )
}

fn rearrange(
    node: &mut Node<'_, '_>,
    x: TensorId,
    split: &[usize],
    perm: &[usize],
    joined: &[usize],
) -> Outcome<Vec<Value>> {
    let x = node.view("split", x, split)?;
    let perm = perm.to_vec();
    let x = node.step("permute", Op::Transpose { perm }, &[x])?;
    let shape = joined.to_vec();
    one(node.last(Op::Reshape { shape }, &[x])?)
}
