//! Shapes of operators that copy elements without computing: any element type will do.

use super::error::ShapeError;
use super::signature::{
    Inferred, Signature, attribute, check_axis, exactly, expect_shape, floating, integer,
    with_optional,
};
use super::size::{checked_bytes, elements, too_large};

fn per_axis(field: &'static str, list: &[usize], rank: usize) -> Result<(), ShapeError> {
    if list.len() == rank {
        return Ok(());
    }
    Err(attribute(
        field,
        list,
        format!("it needs {rank} entries, one per axis"),
    ))
}

pub(super) fn concat(inputs: &[Signature<'_>], axis: usize) -> Result<Inferred, ShapeError> {
    let Some((&(first, dtype), rest)) = inputs.split_first() else {
        return Err(ShapeError::InputCount {
            expected: "at least 1",
            found: 0,
        });
    };
    check_axis(axis, first.len())?;
    let mut shape = first.to_vec();
    for (index, &(other, found)) in rest.iter().enumerate() {
        let input = index + 1;
        if found != dtype {
            return Err(ShapeError::ElementType {
                input,
                expected: "that of input 0",
                found,
            });
        }
        let mut expected = first.to_vec();
        expected[axis] = other.get(axis).copied().unwrap_or(1);
        expect_shape(input, other, &expected)?;
        shape[axis] = shape[axis]
            .checked_add(other[axis])
            .ok_or_else(|| too_large(other))?;
    }
    Ok((shape, dtype))
}

pub(super) fn slice(
    inputs: &[Signature<'_>],
    start: &[usize],
    end: &[usize],
    step: &[usize],
) -> Result<Inferred, ShapeError> {
    let [(x, dtype)] = exactly(inputs, "1")?;
    for (field, list) in [("start", start), ("end", end), ("step", step)] {
        per_axis(field, list, x.len())?;
    }
    if step.contains(&0) {
        return Err(attribute("step", step, "every entry must be at least 1"));
    }
    let shape = x.iter().enumerate().map(|(axis, &len)| {
        if start[axis] < end[axis] && end[axis] <= len {
            return Ok((end[axis] - start[axis]).div_ceil(step[axis]));
        }
        Err(attribute(
            "start, end",
            (start, end),
            format!("on axis {axis}, start must be below end and end at most {len}"),
        ))
    });
    Ok((shape.collect::<Result<_, _>>()?, dtype))
}

pub(super) fn slice_grad(
    inputs: &[Signature<'_>],
    start: &[usize],
    step: &[usize],
    shape: &[usize],
) -> Result<Inferred, ShapeError> {
    let ([(dy, dtype)], sum) = with_optional::<1>(inputs, "1 or 2")?;
    if let Some((sum, _)) = sum {
        floating(inputs)?;
        expect_shape(1, sum, shape)?;
    }
    for (field, list) in [("start", start), ("step", step), ("shape", shape)] {
        per_axis(field, list, dy.len())?;
    }
    if step.contains(&0) {
        return Err(attribute("step", step, "every entry must be at least 1"));
    }
    for (axis, &len) in dy.iter().enumerate() {
        let last = (len - 1)
            .checked_mul(step[axis])
            .and_then(|l| l.checked_add(start[axis]));
        if last.is_none_or(|last| last >= shape[axis]) {
            return Err(attribute(
                "shape",
                shape,
                format!("on axis {axis} the slice reaches past the end; make it longer"),
            ));
        }
    }
    Ok((shape.to_vec(), dtype))
}

pub(super) fn pad(
    inputs: &[Signature<'_>],
    begin: &[usize],
    end: &[usize],
) -> Result<Inferred, ShapeError> {
    let [(x, dtype)] = exactly(inputs, "1")?;
    per_axis("begin", begin, x.len())?;
    per_axis("end", end, x.len())?;
    let shape = x
        .iter()
        .zip(begin.iter().zip(end))
        .map(|(&len, (&begin, &end))| {
            len.checked_add(begin)
                .and_then(|len| len.checked_add(end))
                .ok_or_else(|| too_large(x))
        });
    Ok((shape.collect::<Result<_, _>>()?, dtype))
}

pub(super) fn reshape(inputs: &[Signature<'_>], shape: &[usize]) -> Result<Inferred, ShapeError> {
    let [(x, dtype)] = exactly(inputs, "1")?;
    checked_bytes(shape, dtype)?;
    if elements(x) != elements(shape) {
        return Err(attribute(
            "shape",
            shape,
            format!(
                "it must have {} elements like the input's shape {x:?}",
                elements(x)
            ),
        ));
    }
    Ok((shape.to_vec(), dtype))
}

pub(super) fn transpose(inputs: &[Signature<'_>], perm: &[usize]) -> Result<Inferred, ShapeError> {
    let [(x, dtype)] = exactly(inputs, "1")?;
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..x.len()) {
        return Err(attribute(
            "perm",
            perm,
            format!("it must be a permutation of the {} axes", x.len()),
        ));
    }
    Ok((perm.iter().map(|&axis| x[axis]).collect(), dtype))
}

pub(super) fn gather(inputs: &[Signature<'_>], axis: usize) -> Result<Inferred, ShapeError> {
    let [data, indices] = exactly(inputs, "2")?;
    integer(1, indices)?;
    check_axis(axis, data.0.len())?;
    let shape = [&data.0[..axis], indices.0, &data.0[axis + 1..]].concat();
    Ok((shape, data.1))
}

pub(super) fn gather_grad(
    inputs: &[Signature<'_>],
    axis: usize,
    shape: &[usize],
) -> Result<Inferred, ShapeError> {
    let ([indices, dy], sum) = with_optional::<2>(inputs, "2 or 3")?;
    integer(0, indices)?;
    let dtype = floating(&inputs[1..])?;
    if let Some((sum, _)) = sum {
        expect_shape(2, sum, shape)?;
    }
    check_axis(axis, shape.len())?;
    let expected = [&shape[..axis], indices.0, &shape[axis + 1..]].concat();
    expect_shape(1, dy.0, &expected)?;
    Ok((shape.to_vec(), dtype))
}
