//! Kernels that move elements without computing: concatenation, slices, padding, transposition,
//! nearest-neighbour resizing. Elements are handled as words of their size, so every type works.

use bytemuck::Pod;

use super::strides::{Strided, contiguous};
use crate::arena::{Args, Source};
use crate::error::RunError;
use crate::par;
use crate::real::Real;
use crate::simd::wide;

/// `inputs -> y`, joined along the axis.
pub fn concat<W: Pod + Send + Sync>(
    slots: usize,
    axis: usize,
    args: &Args,
) -> Result<(), RunError> {
    let y = args.output::<W>(0);
    let shape = args.output_shape(0);
    let inner: usize = shape[axis + 1..].iter().product();
    let row = shape[axis] * inner;
    let mut first = 0;
    for input in 0..args.inputs() {
        let x = args.input::<W>(input)?;
        let length = args.input_shape(input)[axis] * inner;
        // Rows of y are longer than what this input writes; par::rows would hand out whole rows, so
        // the inputs take turns and each turn is parallel over the rows.
        par::rows(slots, y, row, length, |index, y| {
            y[first..first + length].copy_from_slice(&x[index * length..(index + 1) * length]);
        });
        first += length;
    }
    Ok(())
}

/// A box of a larger tensor: where it starts and its steps in elements.
fn region(shape: &[usize], start: &[usize], step: &[usize]) -> (usize, [usize; 8]) {
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
    args: &Args,
) -> Result<(), RunError> {
    let (x, y) = (args.input::<W>(0)?, args.output::<W>(0));
    let shape = args.output_shape(0);
    let (base, steps) = region(args.input_shape(0), start, step);
    gather_rows(
        slots,
        &Strided::new(shape, [&steps[..shape.len()]]),
        base,
        x,
        y,
    );
    Ok(())
}

/// y, row by row, from strided x.
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

/// Output 0 as a copy of the optional input `sum`, or zero without it.
pub(super) fn start_from<T: Real>(
    slots: usize,
    sum: usize,
    args: &Args,
) -> Result<&mut [T], RunError> {
    const PIECE: usize = 64 * 1024;
    let out = args.output::<T>(0);
    if args.inputs() <= sum {
        par::pieces(slots, out, PIECE, |_, out| out.fill(T::ZERO));
    } else if let Source::From(sum) = args.source::<T>(sum)? {
        par::pieces(slots, out, PIECE, |start, out| {
            out.copy_from_slice(&sum[start..start + out.len()])
        });
    }
    Ok(out)
}

/// `dy[, sum] -> dx`: sum or 0, with dy added where the slice read.
pub fn slice_grad<T: Real>(
    slots: usize,
    start: &[usize],
    step: &[usize],
    args: &Args,
) -> Result<(), RunError> {
    let dx = start_from::<T>(slots, 1, args)?;
    place(slots, start, step, args, dx, |cell, dy| *cell += dy)
}

/// `x -> y`: x with a border of `value`.
pub fn pad<T: Real>(
    slots: usize,
    begin: &[usize],
    value: f64,
    args: &Args,
) -> Result<(), RunError> {
    let (y, value) = (args.output::<T>(0), T::of(value));
    par::pieces(slots, y, 64 * 1024, |_, y| y.fill(value));
    place(slots, begin, &[1; 8][..begin.len()], args, y, |cell, x| {
        *cell = x
    })
}

/// Writes the elements of input 0 into a box of `large`, which has output 0's shape.
fn place<T: Real>(
    slots: usize,
    start: &[usize],
    step: &[usize],
    args: &Args,
    large: &mut [T],
    write: impl Fn(&mut T, T) + Sync,
) -> Result<(), RunError> {
    let small = args.input::<T>(0)?;
    let shape = args.input_shape(0);
    let (base, steps) = region(args.output_shape(0), start, step);
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

/// Side of the squares in which a transposition of the last axis works.
const TILE: usize = 16;

/// `x -> y`: y's axis i is x's axis perm[i].
pub fn transpose<W: Pod + Send + Sync>(
    slots: usize,
    perm: &[usize],
    args: &Args,
) -> Result<(), RunError> {
    let (x, y) = (args.input::<W>(0)?, args.output::<W>(0));
    let x_steps = contiguous(args.input_shape(0));
    let mut steps = [0; 8];
    for (axis, &from) in perm.iter().enumerate() {
        steps[axis] = x_steps[from];
    }
    let axes = Strided::new(args.output_shape(0), [&steps[..perm.len()]]);
    let last = axes.rank() - 1;
    // The axis along which x's neighbours lie, if it isn't y's last one: work in squares of the two.
    let contiguous_axis = (0..last).find(|&axis| axes.step(0, axis) == 1);
    match contiguous_axis {
        Some(axis) if axis + 1 == last => transpose_squares(slots, &axes, x, y),
        _ => gather_rows(slots, &axes, 0, x, y),
    }
    Ok(())
}

/// The last two axes of y are swapped in x: `y[.., i, j] = x[.. + i + j·step]`.
fn transpose_squares<W: Pod + Send + Sync>(slots: usize, axes: &Strided<1>, x: &[W], y: &mut [W]) {
    let last = axes.rank() - 1;
    let (rows, columns, step) = (axes.length(last - 1), axes.length(last), axes.step(0, last));
    // One piece is a band of TILE rows of one matrix (the last band of a matrix may be lower).
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
    args: &Args,
) -> Result<(), RunError> {
    let (x, y) = (args.input::<T>(0)?, args.output::<T>(0));
    let width = args.input_shape(0)[3];
    let [_, _, height, wide_width] = dims(args.output_shape(0));
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
    args: &Args,
) -> Result<(), RunError> {
    let (dy, dx) = (args.input::<T>(0)?, args.output::<T>(0));
    let wide_width = args.input_shape(0)[3];
    let [_, _, _, width] = dims(args.output_shape(0));
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
pub(super) fn dims(shape: &[usize]) -> [usize; 4] {
    [shape[0], shape[1], shape[2], shape[3]]
}

/// `x -> y`: the same elements (where the two aren't one storage).
pub fn copy<W: Pod + Send + Sync>(slots: usize, args: &Args) -> Result<(), RunError> {
    let x = match args.source::<W>(0)? {
        Source::InPlace => return Ok(()),
        Source::From(x) => x,
    };
    par::pieces(slots, args.output::<W>(0), 64 * 1024, |start, y| {
        y.copy_from_slice(&x[start..start + y.len()]);
    });
    Ok(())
}
