//! Elements of known tensors picked or replaced by known indices.

use std::sync::Arc;

use super::select::{flat, select, strides};
use crate::onnx::context::{Node, axis};
use crate::onnx::error::{Outcome, invalid, unsupported};
use crate::onnx::literal::{Data, Literal};
use crate::onnx::shapes::{checked_indices, element_positions, positions};

pub(super) fn gather(node: &Node<'_, '_>, inputs: &[Literal]) -> Outcome<Literal> {
    let [x, indices] = inputs else {
        return invalid!("it needs two inputs");
    };
    let axis = axis(node.attributes.int("axis", 0)?, x.shape.len())?;
    let length = x.shape[axis];
    let Some(ints) = indices.as_ints() else {
        return invalid!("the indices are not integers");
    };
    let picks = checked_indices(ints, length)?;
    let mut shape = x.shape[..axis].to_vec();
    shape.extend(&indices.shape);
    shape.extend(&x.shape[axis + 1..]);
    let (steps, pick_steps) = (strides(&x.shape), strides(&indices.shape));
    let rank = indices.shape.len();
    select(x, shape, |index| {
        let pick = picks[flat(&index[axis..axis + rank], &pick_steps)] as usize;
        let before = flat(&index[..axis], &steps[..axis]);
        before + pick * steps[axis] + flat(&index[axis + rank..], &steps[axis + 1..])
    })
}

/// `y[i][j] = x[indices[i][j]][j]` for axis 0, and so on.
pub(super) fn gather_elements(node: &Node<'_, '_>, inputs: &[Literal]) -> Outcome<Literal> {
    let [x, indices] = inputs else {
        return invalid!("it needs two inputs");
    };
    let at = element_positions(node, &x.shape, indices)?;
    let steps = strides(&indices.shape);
    select(x, indices.shape.clone(), |index| at[flat(index, &steps)])
}

/// Rows of `x` named by their first indices.
pub(super) fn gather_nd(node: &Node<'_, '_>, inputs: &[Literal]) -> Outcome<Literal> {
    let [x, indices] = inputs else {
        return invalid!("it needs two inputs");
    };
    if node.attributes.int("batch_dims", 0)? != 0 {
        return unsupported!("attribute batch_dims");
    }
    let (rows, depth) = positions(indices, &x.shape)?;
    let outer = &indices.shape[..indices.shape.len() - 1];
    let inner: usize = x.shape[depth..].iter().product();
    let shape = [outer, &x.shape[depth..]].concat();
    let (own, rank) = (strides(outer), outer.len());
    let steps = strides(&x.shape[depth..]);
    select(x, shape, |index| {
        rows[flat(&index[..rank], &own)] * inner + flat(&index[rank..], &steps)
    })
}

/// `x` with rows replaced.
pub(super) fn scatter_nd(node: &Node<'_, '_>, inputs: &[Literal]) -> Outcome<Literal> {
    let [x, indices, updates] = inputs else {
        return invalid!("it needs three inputs");
    };
    let (rows, depth) = positions(indices, &x.shape)?;
    let inner: usize = x.shape[depth..].iter().product();
    if rows.len().checked_mul(inner) != Some(updates.len()) {
        return invalid!("{} updates of {} rows", updates.len(), rows.len());
    }
    let places = rows.iter().flat_map(|row| row * inner..(row + 1) * inner);
    replaced(node, x, &places.collect::<Vec<_>>(), updates)
}

/// `x` with elements replaced, as [`gather_elements`] names them.
pub(super) fn scatter_elements(node: &Node<'_, '_>, inputs: &[Literal]) -> Outcome<Literal> {
    let [x, indices, updates] = inputs else {
        return invalid!("it needs three inputs");
    };
    replaced(
        node,
        x,
        &element_positions(node, &x.shape, indices)?,
        updates,
    )
}

fn replaced(
    node: &Node<'_, '_>,
    x: &Literal,
    places: &[usize],
    updates: &Literal,
) -> Outcome<Literal> {
    if updates.len() != places.len() {
        return invalid!("{} updates of {} elements", updates.len(), places.len());
    }
    let reduction = node.attributes.text("reduction", "none")?;
    let data = match (&x.data, &updates.data) {
        (Data::Floats(x), Data::Floats(new)) => {
            let f: fn(f32, f32) -> f32 = match reduction {
                "none" => |_, new| new,
                "add" => |old, new| old + new,
                "mul" => |old, new| old * new,
                "max" => f32::max,
                "min" => f32::min,
                other => return unsupported!("reduction {other:?}"),
            };
            Data::Floats(put(x, places, new, f))
        }
        (Data::Ints(x), Data::Ints(new)) => {
            let f: fn(i64, i64) -> i64 = match reduction {
                "none" => |_, new| new,
                "max" => i64::max,
                "min" => i64::min,
                "add" => i64::wrapping_add,
                "mul" => i64::wrapping_mul,
                other => return unsupported!("reduction {other:?}"),
            };
            Data::Ints(put(x, places, new, f))
        }
        _ => return invalid!("one input is integer, the other floating point"),
    };
    Ok(Literal {
        shape: x.shape.clone(),
        data,
    })
}

fn put<T: Copy>(x: &[T], places: &[usize], new: &[T], f: fn(T, T) -> T) -> Arc<[T]> {
    let mut values = x.to_vec();
    for (&place, &new) in places.iter().zip(new) {
        values[place] = f(values[place], new);
    }
    values.into()
}
