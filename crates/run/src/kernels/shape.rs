//! Kernels that move elements without computing: concatenation, slices, padding, transposition,
//! nearest-neighbour resizing. Elements are handled as words of their size, so every type works.

use bytemuck::Pod;
use scrimp_graph::data::Stream;

use super::strides::{Strided, contiguous};
use crate::args::{Args, Inputs, Source};
use crate::error::RunError;
use crate::par;
use crate::real::Real;
use crate::simd::wide;

/// `inputs -> y`, joined along the axis.
pub fn concat<W: Pod + Send + Sync>(
    slots: usize,
    axis: usize,
    args: Args<'_>,
) -> Result<(), RunError> {
    let shape = args.outputs.shape(0);
    let [y] = args.outputs.take::<W, _>()?;
    let inner: usize = shape[axis + 1..].iter().product();
    let row = shape[axis] * inner;
    let mut first = 0;
    for input in 0..args.inputs.count() {
        let x = args.inputs.get::<W>(input)?;
        let length = args.inputs.shape(input)[axis] * inner;
        // A row of y is longer than what this input writes, and par::rows would hand out whole rows. So the
        // inputs take turns, and each turn is parallel over the rows.
        par::rows(slots, y, row, length, |index, y| {
            y[first..first + length].copy_from_slice(&x[index * length..(index + 1) * length]);
        });
        first += length;
    }
    Ok(())
}

/// Describes a box of a larger tensor: where it starts and its steps, in elements.
pub fn region(shape: &[usize], start: &[usize], step: &[usize]) -> (usize, [usize; 8]) {
    let steps = contiguous(shape);
    let mut base = 0;
    let mut out = [0; 8];
    for axis in 0..shape.len() {
        base += start[axis] * steps[axis];
        out[axis] = step[axis] * steps[axis];
    }
    (base, out)
}

/// `x -> y`: `x[start : … : step]`.
pub fn slice<W: Pod + Send + Sync>(
    slots: usize,
    start: &[usize],
    step: &[usize],
    args: Args<'_>,
) -> Result<(), RunError> {
    let shape = args.outputs.shape(0);
    let (x, [y]) = (args.inputs.get::<W>(0)?, args.outputs.take::<W, _>()?);
    let (base, steps) = region(args.inputs.shape(0), start, step);
    gather_rows(
        slots,
        &Strided::new(shape, [&steps[..shape.len()]]),
        base,
        x,
        y,
    );
    Ok(())
}

/// `-> y`: a box of an array in a file. Reading isn't done in parallel: it is bound by the file.
pub fn read<T: Real>(from: &Stream, start: &[usize], args: Args<'_>) -> Result<(), RunError> {
    let shape = args.outputs.shape(0);
    let [y] = args.outputs.take::<T, _>()?;
    from.read(start, shape, y, |x| T::of(f64::from(x)))
        .map_err(|error| RunError::Data {
            reason: error.to_string(),
        })
}

/// Fills y, row by row, from strided x.
fn gather_rows<W: Pod + Send + Sync>(
    slots: usize,
    axes: &Strided<1>,
    base: usize,
    x: &[W],
    y: &mut [W],
) {
    let row = axes.row();
    let [step] = axes.inner();
    par::rows(slots, y, row, row, |index, y| {
        let at = base + axes.offsets(index)[0];
        if step == 1 {
            y.copy_from_slice(&x[at..at + row]);
        } else {
            for (y, x) in y.iter_mut().zip(x[at..].iter().step_by(step.max(1))) {
                *y = *x;
            }
        }
    });
}

/// Makes `out`, output 0, start as a copy of the optional input `sum`, or as zero without it.
pub(super) fn start_from<T: Real>(
    slots: usize,
    sum: usize,
    inputs: Inputs<'_>,
    out: &mut [T],
) -> Result<(), RunError> {
    const PIECE: usize = 64 * 1024;
    if inputs.count() <= sum {
        par::pieces(slots, out, PIECE, |_, out| out.fill(T::ZERO));
    } else if let Source::From(sum) = inputs.source::<T>(sum)? {
        par::pieces(slots, out, PIECE, |start, out| {
            out.copy_from_slice(&sum[start..start + out.len()])
        });
    }
    Ok(())
}

/// `dy[, sum] -> dx`: sum or 0, plus dy where the slice read.
pub fn slice_grad<T: Real>(
    slots: usize,
    start: &[usize],
    step: &[usize],
    args: Args<'_>,
) -> Result<(), RunError> {
    let shape = args.outputs.shape(0);
    let [dx] = args.outputs.take::<T, _>()?;
    start_from(slots, 1, args.inputs, dx)?;
    place(slots, start, step, args.inputs, (shape, dx), |cell, dy| {
        *cell += dy
    })
}

/// `x -> y`: x with a border of `value`.
pub fn pad<T: Real>(
    slots: usize,
    begin: &[usize],
    value: f64,
    args: Args<'_>,
) -> Result<(), RunError> {
    let (shape, value) = (args.outputs.shape(0), T::of(value));
    let [y] = args.outputs.take::<T, _>()?;
    par::pieces(slots, y, 64 * 1024, |_, y| y.fill(value));
    let step = &[1; 8][..begin.len()];
    place(slots, begin, step, args.inputs, (shape, y), |cell, x| {
        *cell = x
    })
}

/// Writes the elements of input 0 into a box of `large` that has the shape of that input.
fn place<T: Real>(
    slots: usize,
    start: &[usize],
    step: &[usize],
    inputs: Inputs<'_>,
    (large_shape, large): (&[usize], &mut [T]),
    write: impl Fn(&mut T, T) + Sync,
) -> Result<(), RunError> {
    let small = inputs.get::<T>(0)?;
    let shape = inputs.shape(0);
    let (base, steps) = region(large_shape, start, step);
    let axes = Strided::new(shape, [&steps[..shape.len()]]);
    let row = axes.row();
    let [step] = axes.inner();
    let large = par::Shared::new(large);
    let slots = if small.len() < par::SMALL { 1 } else { slots };
    let per_task = (8 * 1024 / row).max(1);
    par::tasks(slots, axes.count().div_ceil(per_task), &|_, task| {
        for index in task * per_task..((task + 1) * per_task).min(axes.count()) {
            let at = base + axes.offsets(index)[0];
            // SAFETY: rows of the box are disjoint, and this task has these.
            #[allow(unsafe_code, reason = "disjoint rows of one slice")]
            let cells = unsafe { large.piece(at, (row - 1) * step + 1) };
            let small = &small[index * row..(index + 1) * row];
            for (cell, &x) in cells.iter_mut().step_by(step.max(1)).zip(small) {
                write(cell, x);
            }
        }
    });
    Ok(())
}

/// Side of the squares in which the last two axes are transposed.
const TILE: usize = 16;

/// `x -> y`: y's axis i is x's axis perm[i].
pub fn transpose<W: Pod + Send + Sync>(
    slots: usize,
    perm: &[usize],
    args: Args<'_>,
) -> Result<(), RunError> {
    let x_steps = contiguous(args.inputs.shape(0));
    let mut steps = [0; 8];
    for (axis, &from) in perm.iter().enumerate() {
        steps[axis] = x_steps[from];
    }
    let axes = Strided::new(args.outputs.shape(0), [&steps[..perm.len()]]);
    let (x, [y]) = (args.inputs.get::<W>(0)?, args.outputs.take::<W, _>()?);
    let last = axes.rank() - 1;
    // If the axis along which x's neighbours lie isn't y's last axis, work in squares of the two axes.
    let contiguous_axis = (0..last).find(|&axis| axes.step(0, axis) == 1);
    match contiguous_axis {
        Some(axis) if axis + 1 == last => transpose_squares(slots, &axes, x, y),
        _ => gather_rows(slots, &axes, 0, x, y),
    }
    Ok(())
}

/// Transposes two axes: `y[.., i, j] = x[.. + i + j·step]`.
fn transpose_squares<W: Pod + Send + Sync>(slots: usize, axes: &Strided<1>, x: &[W], y: &mut [W]) {
    let last = axes.rank() - 1;
    let (rows, columns, step) = (axes.length(last - 1), axes.length(last), axes.step(0, last));
    // A piece is a band of TILE rows of one matrix; the last band of a matrix may have fewer.
    let bands = rows.div_ceil(TILE);
    let matrices = y.len() / (rows * columns);
    let slots = if y.len() < par::SMALL { 1 } else { slots };
    let y = par::Shared::new(y);
    par::tasks(slots, matrices * bands, &|_, task| {
        let (matrix, band) = (task / bands, task % bands);
        let first = band * TILE;
        let height = TILE.min(rows - first);
        let at = axes.offsets(matrix * rows + first)[0];
        // SAFETY: each task has its own rows of y.
        #[allow(unsafe_code, reason = "disjoint bands of one slice")]
        let y = unsafe { y.piece((matrix * rows + first) * columns, height * columns) };
        wide(|| {
            for left in (0..columns).step_by(TILE) {
                for j in left..(left + TILE).min(columns) {
                    let x = &x[at + j * step..at + j * step + height];
                    for (i, &x) in x.iter().enumerate() {
                        y[i * columns + j] = x;
                    }
                }
            }
        });
    });
}

/// `x[N,C,H,W] -> y`: every element repeated `factor` times.
pub fn resize_nearest<T: Real>(
    slots: usize,
    factor: [usize; 2],
    args: Args<'_>,
) -> Result<(), RunError> {
    let width = args.inputs.shape(0)[3];
    let [_, _, height, wide_width] = dims(args.outputs.shape(0));
    let (x, [y]) = (args.inputs.get::<T>(0)?, args.outputs.take::<T, _>()?);
    par::rows(slots, y, wide_width, wide_width, |index, y| {
        let (plane, row) = (index / height, index % height);
        let source = (plane * (height / factor[0]) + row / factor[0]) * width;
        for (y, &x) in y.chunks_mut(factor[1]).zip(&x[source..source + width]) {
            y.fill(x);
        }
    });
    Ok(())
}

/// `dy -> dx`: sums over the copies.
pub fn resize_nearest_grad<T: Real>(
    slots: usize,
    factor: [usize; 2],
    args: Args<'_>,
) -> Result<(), RunError> {
    let wide_width = args.inputs.shape(0)[3];
    let [_, _, _, width] = dims(args.outputs.shape(0));
    let (dy, [dx]) = (args.inputs.get::<T>(0)?, args.outputs.take::<T, _>()?);
    par::rows(
        slots,
        dx,
        width,
        width * factor[0] * factor[1],
        |index, dx| {
            dx.fill(T::ZERO);
            for copy in 0..factor[0] {
                let row = (index * factor[0] + copy) * wide_width;
                let dy = &dy[row..row + wide_width];
                for (dx, dy) in dx.iter_mut().zip(dy.chunks(factor[1])) {
                    for &dy in dy {
                        *dx += dy;
                    }
                }
            }
        },
    );
    Ok(())
}

/// The four lengths of an [N,C,H,W] shape, whose rank shape inference has checked.
pub fn dims(shape: &[usize]) -> [usize; 4] {
    [shape[0], shape[1], shape[2], shape[3]]
}

/// `x -> y`: the same elements. It runs only where the two aren't one storage.
pub fn copy<W: Pod + Send + Sync>(slots: usize, args: Args<'_>) -> Result<(), RunError> {
    let x = match args.inputs.source::<W>(0)? {
        Source::InPlace => return Ok(()),
        Source::From(x) => x,
    };
    let [y] = args.outputs.take::<W, _>()?;
    par::pieces(slots, y, 64 * 1024, |start, y| {
        y.copy_from_slice(&x[start..start + y.len()]);
    });
    Ok(())
}
