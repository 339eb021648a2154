//! Elements picked by indices.

use super::{count, one};
use crate::graph::{Init, TensorId};
use crate::onnx::context::{Node, Value, axis, check_table};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::onnx::shapes::{checked_indices, element_positions, positions};
use crate::op::Op;

pub(super) fn gather(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let data = node.weight(0)?;
    let shape = node.dims(data);
    let axis = axis(node.attributes.int("axis", 0)?, shape.len())?;
    let Some(indices) = node.known(1) else {
        if let Value::Whole(whole) = *node.value(1)? {
            return match axis {
                0 => one(count::gather(node, data, whole)?),
                _ => unsupported!("by computed indices along axis {axis}"),
            };
        }
        let indices = node.x(1)?;
        return one(node.last(Op::Gather { axis }, &[data, indices])?);
    };
    let Some(ints) = indices.as_ints() else {
        return invalid!("the indices are not integers");
    };
    let ints = checked_indices(ints, shape[axis])?;
    let (Some(&first), Some(&last)) = (ints.first(), ints.last()) else {
        return unsupported!("with an empty result");
    };
    if ints.iter().copied().eq(first..=last) {
        // Neighbours: a slice, which needs no table of indices.
        let mut start = vec![0; shape.len()];
        let mut end = shape.clone();
        (start[axis], end[axis]) = (first as usize, last as usize + 1);
        let step = vec![1; shape.len()];
        let y = node.step("slice", Op::Slice { start, end, step }, &[data])?;
        let mut target = shape[..axis].to_vec();
        target.extend(&indices.shape);
        target.extend(&shape[axis + 1..]);
        return one(node.view("shape", y, &target)?);
    }
    let table = table(node, &indices.shape, ints)?;
    one(node.last(Op::Gather { axis }, &[data, table])?)
}

fn table(node: &mut Node<'_, '_>, shape: &[usize], indices: Vec<i64>) -> Outcome<TensorId> {
    let name = node.part("indices");
    let init = Init::Ints(indices.into());
    Ok(node.state.b.constant(&name, shape, init)?)
}

/// With known indices: the axes that they index are joined, and rows are picked.
pub(super) fn gather_nd(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    if node.attributes.int("batch_dims", 0)? != 0 {
        return unsupported!("attribute batch_dims");
    }
    let indices = node.literal(1, "indices")?;
    let data = node.weight(0)?;
    let shape = node.dims(data);
    let (rows, depth) = positions(&indices, &shape)?;
    if rows.is_empty() {
        return unsupported!("with an empty result");
    }
    check_table(&[rows.len()])?;
    let mut joined = vec![shape[..depth].iter().product()];
    joined.extend(&shape[depth..]);
    let flat = node.view("flat", data, &joined)?;
    let rows = rows.iter().map(|&row| row as i64).collect();
    let table = table(node, &indices.shape[..indices.shape.len() - 1], rows)?;
    one(node.last(Op::Gather { axis: 0 }, &[flat, table])?)
}

/// With known indices, elements picked of all in one row.
pub(super) fn gather_elements(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    if let Some(same) = count::gather_same(node)? {
        return Ok(vec![same]);
    }
    let indices = node.literal(1, "indices")?;
    let data = node.x(0)?;
    let shape = node.dims(data);
    let positions = element_positions(node, &shape, &indices)?;
    if positions.is_empty() {
        return unsupported!("with an empty result");
    }
    check_table(&[positions.len()])?;
    let flat = node.view("flat", data, &[shape.iter().product()])?;
    let positions = positions.iter().map(|&at| at as i64).collect();
    let table = table(node, &indices.shape, positions)?;
    one(node.last(Op::Gather { axis: 0 }, &[flat, table])?)
}

/// With known indices: rows are replaced.
pub(super) fn scatter_nd(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let indices = node.literal(1, "indices")?;
    let (data, updates) = (node.x(0)?, node.x(2)?);
    let shape = node.dims(data);
    let (places, depth) = positions(&indices, &shape)?;
    let expected = [&indices.shape[..indices.shape.len() - 1], &shape[depth..]].concat();
    replaced(node, data, (updates, &expected), &places, depth)
}

/// With known indices: elements are replaced.
pub(super) fn scatter_elements(node: &mut Node<'_, '_>) -> Outcome<Vec<Value>> {
    let indices = node.literal(1, "indices")?;
    let (data, updates) = (node.x(0)?, node.x(2)?);
    let shape = node.dims(data);
    let places = element_positions(node, &shape, &indices)?;
    if node.state.rebatch.is_some() && indices.shape[0] != shape[0] {
        return unsupported!("for another batch size than the file's");
    }
    replaced(node, data, (updates, &indices.shape), &places, shape.len())
}

/// The data with its first axes joined to one and updates in some places there: rows of both are in one table, from which each
/// row is picked.
fn replaced(
    node: &mut Node<'_, '_>,
    data: TensorId,
    (updates, expected): (TensorId, &[usize]),
    places: &[usize],
    depth: usize,
) -> Outcome<Vec<Value>> {
    match node.attributes.text("reduction", "none")? {
        "none" => {}
        other => return unsupported!("reduction {other:?}"),
    }
    if node.dims(updates) != expected {
        return invalid!(
            "its updates have shape {:?}, not {expected:?}",
            node.dims(updates)
        );
    }
    if places.is_empty() {
        return one(data);
    }
    let shape = node.dims(data);
    let count: usize = shape[..depth].iter().product();
    check_table(&[count])?;
    let inner = shape[depth..].iter().product();
    let rows = node.view("rows", data, &[count, inner])?;
    let new = node.view("new", updates, &[places.len(), inner])?;
    let both = node.step("both", Op::Concat { axis: 0 }, &[rows, new])?;
    let mut picked: Vec<i64> = (0..count as i64).collect();
    for (i, &place) in places.iter().enumerate() {
        picked[place] = (count + i) as i64;
    }
    let table = table(node, &[count], picked)?;
    let y = node.last(Op::Gather { axis: 0 }, &[both, table])?;
    one(node.view("shape", y, &shape)?)
}
