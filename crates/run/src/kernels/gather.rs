//! Gather (embedding) and its gradient.

use bytemuck::Pod;

use super::shape;
use crate::args::Args;
use crate::error::RunError;
use crate::par;
use crate::real::Real;

/// The position that an index means; negative indices count from the end.
fn position(op: &'static str, index: i64, length: usize) -> Result<usize, RunError> {
    let from_start = if index < 0 {
        index.checked_add(length as i64)
    } else {
        Some(index)
    };
    from_start
        .and_then(|i| usize::try_from(i).ok())
        .filter(|&i| i < length)
        .ok_or(RunError::IndexOutOfRange { op, index, length })
}

/// The position of an index that `check` has accepted.
fn checked(index: i64, length: usize) -> usize {
    if index < 0 {
        (index + length as i64) as usize
    } else {
        index as usize
    }
}

fn check(op: &'static str, indices: &[i64], length: usize) -> Result<(), RunError> {
    indices
        .iter()
        .try_for_each(|&index| position(op, index, length).map(|_| ()))
}

/// `data, indices -> y`: the elements of data at the indices along the axis.
pub fn gather<W: Pod + Send + Sync>(
    slots: usize,
    axis: usize,
    args: Args<'_>,
) -> Result<(), RunError> {
    let (data, indices, [y]) = (
        args.inputs.get::<W>(0)?,
        args.inputs.get::<i64>(1)?,
        args.outputs.take::<W, _>()?,
    );
    let shape = args.inputs.shape(0);
    let length = shape[axis];
    check("Gather", indices, length)?;
    let inner: usize = shape[axis + 1..].iter().product();
    par::rows(slots, y, inner, inner, |row, y| {
        let (outer, i) = (row / indices.len(), row % indices.len());
        let at = (outer * length + checked(indices[i], length)) * inner;
        y.copy_from_slice(&data[at..at + inner]);
    });
    Ok(())
}

/// `indices, dy[, sum] -> ddata`: starts from sum or 0; then each row of dy is added to the row of ddata from
/// which it was taken, in the order of the indices. Tasks own columns, so that no two tasks add to the same
/// element.
pub fn gather_grad<T: Real>(slots: usize, axis: usize, args: Args<'_>) -> Result<(), RunError> {
    const COLUMNS: usize = 64;
    let (indices, dy) = (args.inputs.get::<i64>(0)?, args.inputs.get::<T>(1)?);
    let to = args.outputs.shape(0);
    let [ddata] = args.outputs.take::<T, _>()?;
    shape::start_from(slots, 2, args.inputs, ddata)?;
    let length = to[axis];
    check("GatherGrad", indices, length)?;
    let inner: usize = to[axis + 1..].iter().product();
    let outer: usize = to[..axis].iter().product();
    let blocks = inner.div_ceil(COLUMNS);
    let slots = if dy.len() < par::SMALL { 1 } else { slots };
    let ddata = par::Shared::new(ddata);
    par::tasks(slots, outer * blocks, &|_, task| {
        let (outer, block) = (task / blocks, task % blocks);
        let first = block * COLUMNS;
        let width = COLUMNS.min(inner - first);
        for (i, &index) in indices.iter().enumerate() {
            let to = (outer * length + checked(index, length)) * inner + first;
            let from = (outer * indices.len() + i) * inner + first;
            // SAFETY: each task has its own columns of its own slab.
            #[allow(unsafe_code, reason = "disjoint columns of one slice")]
            let row = unsafe { ddata.piece(to, width) };
            for (sum, &dy) in row.iter_mut().zip(&dy[from..from + width]) {
                *sum += dy;
            }
        }
    });
    Ok(())
}
