//! Layer normalization: statistics per row, scale and shift per column.
//!
//! The gradients go over a few rows at a time: first for the sums of each row and then, while these rows are
//! in the first-level cache, for dx and the sums of columns. Sums of columns are made in the type itself over
//! the few rows and then in 64 bits, chunk by chunk. Chunks depend on the shape alone and are added in order.

use super::passes::{Sums, WIDE, block, map};
use super::{Apply, Gradients, Statistics, elsewhere};
use crate::error::RunError;
use crate::kernels::activation::Activation;
use crate::kernels::scratch::{self, Scratch};
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::wide;
use std::ops::Range;

const ROWS: usize = 8;

/// The most chunks of rows, each of which has its own sums of columns.
const CHUNKS: usize = 32;

/// A longer row is split into strips of columns for several tasks.
const STRIP: usize = 8 * 1024;

/// `x, stats, scale, shift -> y`
pub fn apply<T: Real>(
    slots: usize,
    axis: usize,
    apply: Apply<'_, T>,
    f: impl Activation<T>,
) -> Result<(), RunError> {
    let length = apply.shape[axis..].iter().product();
    let (x, statistics) = (elsewhere(&apply.x), apply.statistics);
    let (scale, shift) = (apply.scale, apply.shift);
    par::rows(slots, apply.y, length, length, |row, y| {
        let (mean, inverse) = (statistics.means[row], T::of(statistics.inverse(row)));
        let x = x.map(|x| &x[row * length..][..length]);
        wide(
            #[inline(always)]
            || {
                map(
                    y,
                    x,
                    scale.iter().zip(shift),
                    #[inline(always)]
                    |x, (&scale, &shift)| f.value((x - mean) * inverse * scale + shift),
                );
            },
        );
    });
    Ok(())
}

/// Rows and columns, and how tasks share them.
#[derive(Clone, Copy)]
struct Geometry {
    rows: usize,
    length: usize,
    height: usize,
    chunks: usize,
    width: usize,
    strips: usize,
}

impl Geometry {
    fn new(axis: usize, shape: &[usize]) -> Geometry {
        let rows: usize = shape[..axis].iter().product();
        let length: usize = shape[axis..].iter().product();
        // A chunk's sums, in 64 bits, take at most a quarter of the memory of its elements.
        let chunks = (rows / (2 * ROWS)).clamp(1, CHUNKS);
        let height = rows.div_ceil(chunks).next_multiple_of(ROWS);
        let width = STRIP.min(length);
        Geometry {
            rows,
            length,
            height,
            chunks: rows.div_ceil(height),
            width,
            strips: length.div_ceil(width),
        }
    }
}

pub fn gradients_workspace<T>(axis: usize, shape: &[usize]) -> usize {
    let g = Geometry::new(axis, shape);
    scratch::bytes::<f64>(2 * g.chunks * g.length) + scratch::bytes::<T>(2 * g.rows)
}

pub fn gradients<T: Real>(
    slots: usize,
    axis: usize,
    gradients: Gradients<'_, T>,
    f: impl Activation<T>,
) -> Result<(), RunError> {
    let g = Geometry::new(axis, gradients.shape);
    let mut scratch = Scratch::new(gradients.workspace);
    let sums = scratch.take::<f64>(2 * g.chunks * g.length)?;
    let numbers = scratch.take::<T>(2 * g.rows)?;
    let layer = Layer {
        g,
        x: elsewhere(&gradients.x),
        dy: elsewhere(&gradients.dy),
        statistics: gradients.statistics,
        scale: gradients.scale,
        shift: gradients.shift,
        dx: gradients.dx.map(Shared::new),
        f,
    };
    let slots = match g.rows * g.length < par::SMALL {
        true => 1,
        false => slots,
    };
    let (shared, numbers) = (Shared::new(sums), Shared::new(numbers));
    // SAFETY: each row and each chunk belongs to one task, or to tasks for different columns of it.
    #[allow(unsafe_code, reason = "disjoint pieces of two slices")]
    let number = |row: usize| unsafe { numbers.piece(2 * row, 2) };
    #[allow(unsafe_code, reason = "as above")]
    // SAFETY: as above.
    let sums_of = |chunk: usize, i: usize, strip: &Range<usize>| unsafe {
        shared.piece((2 * chunk + i) * g.length + strip.start, strip.len())
    };
    if g.strips > 1 && layer.dx.is_some() {
        par::tasks(slots, g.rows, &|_, row| {
            number(row).copy_from_slice(&layer.row(row));
        });
    }
    par::tasks(slots, g.chunks * g.strips, &|_, task| {
        let (chunk, strip) = (task / g.strips, task % g.strips);
        let strip = strip * g.width..g.length.min((strip + 1) * g.width);
        let mut sums = [sums_of(chunk, 0, &strip), sums_of(chunk, 1, &strip)];
        sums.iter_mut().for_each(|sums| sums.fill(0.0));
        let end = g.rows.min((chunk + 1) * g.height);
        for first in (chunk * g.height..end).step_by(ROWS) {
            let rows = first..end.min(first + ROWS);
            let mut means = [[T::ZERO; 2]; ROWS];
            for (row, means) in rows.clone().zip(&mut means) {
                match (&layer.dx, g.strips) {
                    (None, _) => {}
                    (Some(_), 1) => *means = layer.row(row),
                    (Some(_), _) => means.copy_from_slice(number(row)),
                }
            }
            wide(
                #[inline(always)]
                || layer.columns(rows, strip.clone(), &means, &mut sums),
            );
        }
    });
    let (first, rest) = sums.split_at_mut(2 * g.length);
    for chunk in rest.chunks(2 * g.length) {
        for (sum, more) in first.iter_mut().zip(chunk) {
            *sum += more;
        }
    }
    let (scales, shifts) = first.split_at(g.length);
    let pairs = gradients.dscale.iter_mut().zip(gradients.dshift);
    for ((dscale, dshift), (&scale, &shift)) in pairs.zip(scales.iter().zip(shifts)) {
        (*dscale, *dshift) = (T::of(scale), T::of(shift));
    }
    Ok(())
}

struct Layer<'a, T, F> {
    g: Geometry,
    /// `None` where x is in dx's memory.
    x: Option<&'a [T]>,
    dy: Option<&'a [T]>,
    statistics: Statistics<'a, T>,
    scale: Option<&'a [T]>,
    shift: Option<&'a [T]>,
    dx: Option<Shared<'a, T>>,
    f: F,
}

impl<'a, T: Real, F: Activation<T>> Layer<'a, T, F> {
    /// These elements of dx's memory; empty without dx.
    ///
    /// # Safety
    /// Each row, or strip of a row, belongs to one task at a time, which takes its pieces one by one.
    #[inline(always)]
    #[allow(unsafe_code, reason = "disjoint pieces of one slice")]
    unsafe fn own(&self, at: usize, length: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        self.dx
            .as_ref()
            .map_or(&mut [], |dx| unsafe { dx.piece(at, length) })
    }

    /// Means of dz·scale and dz·scale·x̂ over a row.
    fn row(&self, row: usize) -> [T; 2] {
        let (length, f) = (self.g.length, self.f);
        let (mean, inverse) = self.statistic(row);
        let at = row * length;
        // SAFETY: the row belongs to this task, which takes no other piece of it here.
        #[allow(unsafe_code, reason = "a piece of the task's own row")]
        let own: &[T] = unsafe { self.own(at, length) };
        let x = self.x.map_or(own, |x| &x[at..at + length]);
        let dy = self.dy.map_or(own, |dy| &dy[at..at + length]);
        // Without an activation nothing reads the shift.
        let scale = self.scale.unwrap_or_default();
        let shift = self.shift.unwrap_or(scale);
        let sums = wide(
            #[inline(always)]
            || {
                let mut sums = Sums::new();
                sums.add(
                    [x, dy, scale, shift],
                    #[inline(always)]
                    |[x, dy, scale, shift]| {
                        let normalized = (x - mean) * inverse;
                        let z = normalized * scale + shift;
                        let scaled = f.gradient(f.value(z), dy) * scale;
                        [scaled, scaled * normalized]
                    },
                );
                sums.take()
            },
        );
        sums.map(|sum| T::of(sum / length as f64))
    }

    #[inline(always)]
    fn statistic(&self, row: usize) -> (T, T) {
        let inverse = T::of(self.statistics.inverse(row));
        (self.statistics.means[row], inverse)
    }

    /// Computes dx of a few rows in a strip of columns, given the rows' means from [`Layer::row`], and adds
    /// these rows to the strip's sums for scale and shift.
    #[inline(always)]
    fn columns(
        &self,
        rows: Range<usize>,
        strip: Range<usize>,
        means: &[[T; 2]; ROWS],
        sums: &mut [&mut [f64]; 2],
    ) {
        let mut few = [(T::ZERO, T::ZERO, [T::ZERO; 2]); ROWS];
        for ((row, means), few) in rows.clone().zip(means).zip(&mut few) {
            let (mean, inverse) = self.statistic(row);
            *few = (mean, inverse, *means);
        }
        let few = &few[..rows.len()];
        let wide = strip.start..strip.start + strip.len() / WIDE * WIDE;
        for at in wide.clone().step_by(WIDE) {
            self.block::<WIDE>(rows.start, few, at, strip.start, sums);
        }
        for at in wide.end..strip.end {
            self.block::<1>(rows.start, few, at, strip.start, sums);
        }
    }

    #[inline(always)]
    fn block<const W: usize>(
        &self,
        first: usize,
        rows: &[(T, T, [T; 2])],
        column: usize,
        strip: usize,
        sums: &mut [&mut [f64]; 2],
    ) {
        let f = self.f;
        let one = [T::ONE; W];
        let scale = self.scale.map_or(&one, |scale| block(scale, column));
        let shift = self.shift.map_or(&one, |shift| block(shift, column));
        let mut parts = [[T::ZERO; W]; 2];
        for (i, &(mean, inverse, [middle, slope])) in rows.iter().enumerate() {
            let at = (first + i) * self.g.length + column;
            // SAFETY: the strip of these rows belongs to this task, which takes each of its blocks once.
            #[allow(unsafe_code, reason = "a piece of the task's own strip")]
            let own = unsafe { self.own(at, W) }.first_chunk_mut::<W>();
            let mut results = [T::ZERO; W];
            {
                let x = match (self.x, &own) {
                    (Some(x), _) => block(x, at),
                    (None, Some(own)) => &**own,
                    (None, None) => &one,
                };
                let dy = match (self.dy, &own) {
                    (Some(dy), _) => block(dy, at),
                    (None, Some(own)) => &**own,
                    (None, None) => &one,
                };
                for lane in 0..W {
                    let normalized = (x[lane] - mean) * inverse;
                    let z = normalized * scale[lane] + shift[lane];
                    let dz = f.gradient(f.value(z), dy[lane]);
                    parts[0][lane] += dz * normalized;
                    parts[1][lane] += dz;
                    results[lane] = inverse * (dz * scale[lane] - middle - normalized * slope);
                }
            }
            if let Some(own) = own {
                *own = results;
            }
        }
        for (sums, part) in sums.iter_mut().zip(parts) {
            let sums = &mut sums[column - strip..][..W];
            for (sum, part) in sums.iter_mut().zip(part) {
                *sum += part.f64();
            }
        }
    }
}
