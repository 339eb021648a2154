//! The shapes that operators which move elements give, and which elements they take: for the
//! operators of the graph and for folding alike.

use super::context::{Node, axes, axis, check_size, count};
use super::error::{Outcome, invalid, unsupported};
use super::literal::{Literal, element_count};
use crate::dtype::DType;

/// What a slice takes of one axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    start: i64,
    /// Not 0; negative backwards.
    pub(super) step: i64,
    /// How many elements.
    pub(super) count: usize,
}

impl Range {
    /// The index in the sliced tensor of element `i` of the result.
    pub(super) fn at(&self, i: usize) -> usize {
        (self.start + i as i64 * self.step) as usize
    }
}

/// What a Slice node takes of each axis of a tensor of this shape.
pub(super) fn slices(node: &Node<'_, '_>, shape: &[usize]) -> Outcome<Vec<Range>> {
    let required = |list: Option<Vec<i64>>, what: &str| match list {
        Some(list) => Ok(list),
        None => invalid!("{what} is missing"),
    };
    let starts = required(node.ints_of("starts", 1)?, "starts")?;
    let ends = required(node.ints_of("ends", 2)?, "ends")?;
    let named = node.ints_of("axes", 3)?;
    let named = named.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = if node.has(4) {
        Some(node.ints(4, "steps")?)
    } else {
        None
    };
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    let lengths = [ends.len(), named.len(), steps.len()];
    if lengths.iter().any(|&n| n != starts.len()) {
        return invalid!("starts, ends, axes and steps differ in length");
    }
    let whole = |&n: &usize| Range {
        start: 0,
        step: 1,
        count: n,
    };
    let mut ranges: Vec<Range> = shape.iter().map(whole).collect();
    axes(&named, shape.len())?;
    for (i, &name) in named.iter().enumerate() {
        let axis = axis(name, shape.len())?;
        ranges[axis] = range(starts[i], ends[i], steps[i], shape[axis])?;
    }
    Ok(ranges)
}

/// numpy's `start:end:step` of an axis of this length.
fn range(start: i64, end: i64, step: i64, length: usize) -> Outcome<Range> {
    let n = length as i64;
    let from_end = |i: i64| if i < 0 { i.saturating_add(n) } else { i };
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    if step == 0 {
        return invalid!("a step is 0");
    }
    let start = from_end(start).clamp(low.max(0), high.max(0));
    let end = from_end(end).clamp(low, high);
    let distance = if step > 0 { end - start } else { start - end };
    let count = distance.max(0) as u64;
    let count = count.div_ceil(step.unsigned_abs()) as usize;
    Ok(Range {
        start,
        step,
        count: if n == 0 { 0 } else { count },
    })
}

/// The shape that a Reshape node gives. Where the batch size was changed at import and the node
/// repeats the old one, the new one takes its place.
pub(super) fn reshaped(node: &Node<'_, '_>) -> Outcome<Vec<usize>> {
    let from = node.shape(0)?;
    let mut target = node.ints(1, "a shape")?;
    let keep_zero = node.attributes.flag("allowzero", false)?;
    let shape = resolve(&from, &target, keep_zero)?;
    if element_count(&shape) == element_count(&from) {
        return Ok(shape);
    }
    let repeated = node
        .state
        .rebatch
        .filter(|&(old, _)| target.first() == Some(&(old as i64)));
    if let Some((_, new)) = repeated {
        target[0] = new as i64;
        let shape = resolve(&from, &target, keep_zero)?;
        if element_count(&shape) == element_count(&from) {
            return Ok(shape);
        }
    }
    invalid!("a tensor of shape {from:?} can't be reshaped to {target:?}")
}

/// Replace 0 by the old length and −1 by what is left; `usize::MAX` where nothing fits.
fn resolve(from: &[usize], target: &[i64], keep_zero: bool) -> Outcome<Vec<usize>> {
    let mut shape = Vec::new();
    let mut open = None;
    for (i, &length) in target.iter().enumerate() {
        shape.push(match length {
            0 if !keep_zero => match from.get(i) {
                Some(&n) => n,
                None => return invalid!("its shape {target:?} copies an axis that isn't there"),
            },
            -1 if open.is_none() => {
                open = Some(i);
                1
            }
            n => count(n, "a dimension")?,
        });
    }
    if let Some(open) = open {
        let rest = element_count(&shape).filter(|&n| n > 0);
        let all = element_count(from);
        shape[open] = match (all, rest) {
            (Some(all), Some(rest)) if all % rest == 0 => all / rest,
            _ => usize::MAX,
        };
    }
    Ok(shape)
}

pub(super) fn flattened(node: &Node<'_, '_>) -> Outcome<Vec<usize>> {
    let shape = node.shape(0)?;
    let rank = shape.len() as i64;
    let axis = node.attributes.int("axis", 1)?;
    let counted = if axis < 0 {
        axis.saturating_add(rank)
    } else {
        axis
    };
    if !(0..=rank).contains(&counted) {
        return invalid!("axis {axis} of a tensor with {rank} axes");
    }
    let (rows, columns) = shape.split_at(counted as usize);
    Ok(vec![rows.iter().product(), columns.iter().product()])
}

pub(super) fn squeezed(node: &Node<'_, '_>) -> Outcome<Vec<usize>> {
    let mut shape = node.shape(0)?;
    let dropped = match node.ints_of("axes", 1)? {
        Some(list) => axes(&list, shape.len())?,
        None => (0..shape.len()).filter(|&i| shape[i] == 1).collect(),
    };
    if let Some(&wrong) = dropped.iter().find(|&&i| shape[i] != 1) {
        return invalid!("axis {wrong} has length {}, not 1", shape[wrong]);
    }
    for &axis in dropped.iter().rev() {
        shape.remove(axis);
    }
    Ok(shape)
}

pub(super) fn unsqueezed(node: &Node<'_, '_>) -> Outcome<Vec<usize>> {
    let mut shape = node.shape(0)?;
    let Some(list) = node.ints_of("axes", 1)? else {
        return invalid!("axes is missing");
    };
    let rank = shape.len() + list.len();
    if rank > 64 {
        return unsupported!("to {rank} axes");
    }
    for axis in axes(&list, rank)? {
        shape.insert(axis, 1);
    }
    Ok(shape)
}

/// The axes of a Transpose node for a tensor of this rank.
pub(super) fn permutation(node: &Node<'_, '_>, rank: usize) -> Outcome<Vec<usize>> {
    let Some(perm) = node.attributes.ints("perm")? else {
        return Ok((0..rank).rev().collect());
    };
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..rank as i64) {
        return invalid!("perm {perm:?} is not a permutation of {rank} axes");
    }
    Ok(perm.iter().map(|&p| p as usize).collect())
}

/// The shape that a Tile node gives.
pub(super) fn tiled(node: &Node<'_, '_>, shape: &[usize]) -> Outcome<Vec<usize>> {
    let repeats = node.ints(1, "repeats")?;
    if repeats.len() != shape.len() {
        return invalid!("{} repeats for {} axes", repeats.len(), shape.len());
    }
    let mut tiled = Vec::new();
    for (&length, &times) in shape.iter().zip(&repeats) {
        match length.checked_mul(count(times, "a repeat")?) {
            Some(n) => tiled.push(n),
            None => return invalid!("{times} repeats of {length} overflow"),
        }
    }
    check_size(&tiled, DType::I64)?;
    Ok(tiled)
}

/// What GatherND's and ScatterND's indices mean in a tensor of this shape: for each of them a position among
/// the axes that they index, joined to one; and how many axes that are.
pub(super) fn positions(indices: &Literal, shape: &[usize]) -> Outcome<(Vec<usize>, usize)> {
    let (Some(ints), Some(&depth)) = (indices.as_ints(), indices.shape.last()) else {
        return invalid!("the indices are not integers in rows");
    };
    if depth == 0 || depth > shape.len() {
        return invalid!("{depth} indices for {} axes", shape.len());
    }
    let position = |row: &[i64]| {
        let mut at = 0;
        for (&index, &length) in row.iter().zip(shape) {
            at = at * length + checked_indices(&[index], length)?[0] as usize;
        }
        Ok(at)
    };
    let positions = ints.chunks(depth).map(position);
    Ok((positions.collect::<Outcome<_>>()?, depth))
}

/// The positions in a tensor of this shape that indices along one axis name, one for each index, as GatherElements
/// and ScatterElements have them.
pub(super) fn element_positions(
    node: &Node<'_, '_>,
    shape: &[usize],
    indices: &Literal,
) -> Outcome<Vec<usize>> {
    let axis = axis(node.attributes.int("axis", 0)?, shape.len())?;
    let Some(ints) = indices.as_ints() else {
        return invalid!("the indices are not integers");
    };
    let pairs = indices.shape.iter().zip(shape).enumerate();
    let within = |(i, (a, b)): (usize, (&usize, &usize))| i == axis || a <= b;
    if indices.shape.len() != shape.len() || !pairs.clone().all(within) {
        return invalid!("indices of shape {:?} for {shape:?}", indices.shape);
    }
    let picks = checked_indices(ints, shape[axis])?;
    let (steps, own) = (strides(shape), strides(&indices.shape));
    let positions = picks.iter().enumerate().map(|(position, &pick)| {
        let index = |i: usize| position / own[i] % indices.shape[i];
        let parts = steps.iter().enumerate();
        let parts = parts.map(|(i, step)| step * if i == axis { pick as usize } else { index(i) });
        parts.sum()
    });
    Ok(positions.collect())
}

/// Row-major strides.
pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Indices counted from the front, all within the length.
pub(super) fn checked_indices(list: &[i64], length: usize) -> Outcome<Vec<i64>> {
    let n = length as i64;
    let counted = list
        .iter()
        .map(|&i| if i < 0 { i.saturating_add(n) } else { i });
    let counted: Vec<i64> = counted.collect();
    match counted.iter().position(|i| !(0..n).contains(i)) {
        None => Ok(counted),
        Some(at) => invalid!("index {} of {length} elements", list[at]),
    }
}
