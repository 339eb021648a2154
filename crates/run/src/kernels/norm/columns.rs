//! Batch and instance normalization of images with channels last: statistics of columns.
//!
//! A tensor [N,H,W,C] is blocks of rows of C elements: one block for batch normalization, one per sample for
//! instance normalization. Sums over rows are made in the workspace chunk by chunk. The chunks depend on the
//! shape alone and are added in order.

use scrimp_graph::Norm;
use std::ops::Range;

use super::passes::{add_columns, map, zip};
use super::{Apply, Gradients, Line, elsewhere};
use crate::error::RunError;
use crate::kernels::activation::Activation;
use crate::kernels::scratch::{self, Scratch};
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::wide;

const WIDTH: usize = 64;

/// Rows that are summed in the type itself before the sums are added in 64 bits.
const ROWS: usize = 64;

/// Elements per chunk, unless a block would then have more than [`MOST`] chunks.
const CHUNK: usize = 32 * 1024;

const MOST: usize = 32;

#[derive(Clone, Copy)]
struct Columns {
    blocks: usize,
    rows: usize,
    columns: usize,
    chunks: usize,
}

impl Columns {
    fn new(norm: Norm, shape: &[usize]) -> Columns {
        let (rows, columns) = (shape[..3].iter().product::<usize>(), shape[3]);
        let blocks = match norm {
            Norm::Instance => shape[0],
            _ => 1,
        };
        let rows = rows / blocks;
        Columns {
            blocks,
            rows,
            columns,
            chunks: (rows * columns / CHUNK).clamp(1, MOST).min(rows),
        }
    }

    /// Number of statistics: one per block and column.
    fn statistics(&self) -> usize {
        self.blocks * self.columns
    }

    /// Number of pairs of sums: one per chunk and column.
    fn sums(&self) -> usize {
        2 * self.chunks * self.statistics()
    }

    fn chunk(&self, chunk: usize) -> Range<usize> {
        let height = self.rows.div_ceil(self.chunks);
        (chunk * height).min(self.rows)..((chunk + 1) * height).min(self.rows)
    }

    /// Fills two numbers for each chunk and column: `f(rows, a, b)`.
    fn fold(
        &self,
        slots: usize,
        sums: &mut [f64],
        f: impl Fn(Range<usize>, &mut [f64], &mut [f64]) + Sync,
    ) {
        let slots = match self.blocks * self.rows * self.columns < par::SMALL {
            true => 1,
            false => slots,
        };
        let shared = Shared::new(sums);
        par::tasks(slots, self.blocks * self.chunks, &|_, task| {
            let block = task / self.chunks * self.rows;
            let rows = self.chunk(task % self.chunks);
            // SAFETY: each task has its own sums.
            #[allow(unsafe_code, reason = "disjoint pieces of one slice")]
            let sums = unsafe { shared.piece(task * 2 * self.columns, 2 * self.columns) };
            let (a, b) = sums.split_at_mut(self.columns);
            f(block + rows.start..block + rows.end, a, b);
        });
    }

    fn pair(&self, sums: &[f64], block: usize, chunk: usize, column: usize) -> (f64, f64) {
        let at = (block * self.chunks + chunk) * 2 * self.columns + column;
        (sums[at], sums[at + self.columns])
    }

    fn total(&self, sums: &[f64], block: usize, column: usize) -> (f64, f64) {
        (0..self.chunks).fold((0.0, 0.0), |(a, b), chunk| {
            let (more_a, more_b) = self.pair(sums, block, chunk, column);
            (a + more_a, b + more_b)
        })
    }
}

/// Bytes of scratch for the statistics of a tensor of physical shape [N,H,W,C].
pub fn stats_workspace(norm: Norm, shape: &[usize]) -> usize {
    scratch::bytes::<f64>(Columns::new(norm, shape).sums())
}

pub fn apply_workspace<T>(norm: Norm, shape: &[usize]) -> usize {
    scratch::bytes::<T>(2 * Columns::new(norm, shape).statistics())
}

pub fn gradients_workspace<T>(norm: Norm, shape: &[usize], dx: bool) -> usize {
    let shape = Columns::new(norm, shape);
    let slopes = if dx { shape.statistics() } else { 0 };
    let numbers = scratch::bytes::<T>(2 * shape.statistics()) + scratch::bytes::<T>(2 * slopes);
    scratch::bytes::<f64>(shape.sums()) + numbers
}

/// Means and sums of squared deviations of up to [`WIDTH`] columns. Groups of [`ROWS`] rows take two passes
/// over the first-level cache and are merged in 64 bits.
#[inline(always)]
fn moments<T: Real>(
    x: &[T],
    columns: usize,
    rows: Range<usize>,
    first: usize,
    means: &mut [f64],
    deviations: &mut [f64],
) {
    means.fill(0.0);
    deviations.fill(0.0);
    let width = means.len();
    let mut before = 0.0;
    for start in rows.clone().step_by(ROWS) {
        let rows = start..(start + ROWS).min(rows.end);
        let count = rows.len() as f64;
        let mut sums = [T::ZERO; WIDTH];
        for row in rows.clone() {
            let x = &x[row * columns + first..][..width];
            for (sum, &x) in sums.iter_mut().zip(x) {
                *sum += x;
            }
        }
        let mut middles = [T::ZERO; WIDTH];
        for (middle, sum) in middles.iter_mut().zip(sums) {
            *middle = T::of(sum.f64() / count);
        }
        // Sum what rounding the middle left over, and the squared deviations from the middle.
        let (mut rests, mut squares) = ([T::ZERO; WIDTH], [T::ZERO; WIDTH]);
        for row in rows {
            let x = &x[row * columns + first..][..width];
            for (((rest, square), &middle), &x) in
                rests.iter_mut().zip(&mut squares).zip(&middles).zip(x)
            {
                let apart = x - middle;
                *rest += apart;
                *square += apart * apart;
            }
        }
        let (share, product) = (count / (before + count), before * count / (before + count));
        for i in 0..width {
            let rest = rests[i].f64();
            let mean = middles[i].f64() + rest / count;
            let apart = mean - means[i];
            means[i] += apart * share;
            deviations[i] += squares[i].f64() - rest * rest / count + apart * apart * product;
        }
        before += count;
    }
}

/// `x -> stats[2,K]`
pub fn stats<T: Real>(
    slots: usize,
    norm: Norm,
    shape: &[usize],
    x: &[T],
    stats: &mut [T],
    workspace: &mut [u8],
) -> Result<(), RunError> {
    let shape = Columns::new(norm, shape);
    let sums = Scratch::new(workspace).take::<f64>(shape.sums())?;
    shape.fold(slots, sums, |rows, means, deviations| {
        let pieces = means.chunks_mut(WIDTH).zip(deviations.chunks_mut(WIDTH));
        for (first, (means, deviations)) in (0..shape.columns).step_by(WIDTH).zip(pieces) {
            wide(
                #[inline(always)]
                || moments(x, shape.columns, rows.clone(), first, means, deviations),
            );
        }
    });
    let (means, variances) = stats.split_at_mut(shape.statistics());
    for (k, (mean, variance)) in means.iter_mut().zip(variances).enumerate() {
        let (block, column) = (k / shape.columns, k % shape.columns);
        let (mut count, mut middle, mut deviations) = (0.0, 0.0, 0.0);
        for chunk in 0..shape.chunks {
            let rows = shape.chunk(chunk).len() as f64;
            if rows > 0.0 {
                let (mean, more) = shape.pair(sums, block, chunk, column);
                let apart = mean - middle;
                middle += apart * rows / (count + rows);
                deviations += more + apart * apart * count * rows / (count + rows);
                count += rows;
            }
        }
        *mean = T::of(middle);
        *variance = T::of(deviations.max(0.0) / count);
    }
    Ok(())
}

/// Calls `f(row, its block, where it starts)` for each row of the output.
fn each_row<T: Real>(
    slots: usize,
    shape: Columns,
    out: &mut [T],
    f: impl Fn(&mut [T], usize, usize) + Sync,
) {
    let rows = (CHUNK / 4 / shape.columns).max(1);
    par::pieces(slots, out, rows * shape.columns, |start, piece| {
        for (i, row) in piece.chunks_mut(shape.columns).enumerate() {
            let at = start + i * shape.columns;
            f(row, at / (shape.rows * shape.columns), at);
        }
    });
}

/// The numbers that belong to a block, out of those of all statistics.
#[inline(always)]
fn of_block<T>(shape: Columns, numbers: &[T], block: usize) -> &[T] {
    &numbers[block * shape.columns..][..shape.columns]
}

/// `x, stats, scale, shift -> y`
pub fn apply<T: Real>(
    slots: usize,
    apply: Apply<'_, T>,
    f: impl Activation<T>,
) -> Result<(), RunError> {
    let shape = Columns::new(apply.norm, apply.shape);
    let numbers = Scratch::new(apply.workspace).take::<T>(2 * shape.statistics())?;
    let (factors, offsets) = numbers.split_at_mut(shape.statistics());
    for (k, (factor, offset)) in factors.iter_mut().zip(offsets.iter_mut()).enumerate() {
        let channel = k % shape.columns;
        let line = Line::new(
            apply.statistics,
            k,
            apply.scale[channel],
            apply.shift[channel],
        );
        (*factor, *offset) = (line.factor, line.offset);
    }
    let x = elsewhere(&apply.x);
    each_row(slots, shape, apply.y, |y, block, at| {
        let x = x.map(|x| &x[at..at + y.len()]);
        let factors = of_block(shape, factors, block).iter();
        let numbers = factors.zip(of_block(shape, offsets, block));
        wide(
            #[inline(always)]
            || {
                map(
                    y,
                    x,
                    numbers,
                    #[inline(always)]
                    |x, (&factor, &offset)| f.value(x * factor + offset),
                );
            },
        );
    });
    Ok(())
}

struct Numbers<'a, T> {
    means: &'a [T],
    /// z = x·factor + offset
    factors: &'a [T],
    offsets: &'a [T],
}

fn gradient_sums<T: Real>(
    slots: usize,
    shape: Columns,
    [x, dy]: [&[T]; 2],
    numbers: &Numbers<'_, T>,
    sums: &mut [f64],
    f: impl Activation<T>,
) {
    shape.fold(slots, sums, |rows, shifts, scales| {
        shifts.fill(0.0);
        scales.fill(0.0);
        if rows.is_empty() {
            return;
        }
        let mut totals = [shifts, scales];
        let block = rows.start / shape.rows;
        let numbers = [numbers.means, numbers.factors, numbers.offsets];
        let numbers = numbers.map(|numbers| of_block(shape, numbers, block));
        for start in rows.clone().step_by(ROWS) {
            let end = rows.end.min(start + ROWS);
            let inputs = [x, dy].map(|x| &x[start * shape.columns..end * shape.columns]);
            wide(
                #[inline(always)]
                || {
                    add_columns(
                        &mut totals,
                        inputs,
                        numbers,
                        #[inline(always)]
                        |[x, dy], [mean, factor, offset]| {
                            let dz = f.gradient(f.value(x * factor + offset), dy);
                            [dz, (x - mean) * dz]
                        },
                    );
                },
            );
        }
    });
}

pub fn gradients<T: Real>(
    slots: usize,
    gradients: Gradients<'_, T>,
    f: impl Activation<T>,
) -> Result<(), RunError> {
    let shape = Columns::new(gradients.norm, gradients.shape);
    let statistics = gradients.statistics;
    let mut scratch = Scratch::new(gradients.workspace);
    let sums = scratch.take::<f64>(shape.sums())?;
    let (factors, offsets) = scratch
        .take::<T>(2 * shape.statistics())?
        .split_at_mut(shape.statistics());
    let affine = [gradients.scale, gradients.shift];
    for (k, (factor, offset)) in factors.iter_mut().zip(offsets.iter_mut()).enumerate() {
        let line = Gradients::line(statistics, affine, k, k % shape.columns);
        (*factor, *offset) = (line.factor, line.offset);
    }
    let numbers = Numbers {
        means: statistics.means,
        factors,
        offsets,
    };
    let (x, dy) = (elsewhere(&gradients.x), elsewhere(&gradients.dy));
    let own: &[T] = gradients.dx.as_deref().unwrap_or_default();
    let inputs = [x.unwrap_or(own), dy.unwrap_or(own)];
    gradient_sums(slots, shape, inputs, &numbers, sums, f);
    let params = gradients.dscale.iter_mut().zip(gradients.dshift);
    for (column, (dscale, dshift)) in params.enumerate() {
        let (mut scale, mut shift) = (0.0, 0.0);
        for block in 0..shape.blocks {
            let (sum, product) = shape.total(sums, block, column);
            shift += sum;
            scale += product * statistics.inverse(block * shape.columns + column);
        }
        (*dscale, *dshift) = (T::of(scale), T::of(shift));
    }
    let Some(dx) = gradients.dx else {
        return Ok(());
    };
    let (middles, slopes) = scratch
        .take::<T>(2 * shape.statistics())?
        .split_at_mut(shape.statistics());
    let count = shape.rows as f64;
    for (k, (middle, slope)) in middles.iter_mut().zip(slopes.iter_mut()).enumerate() {
        let (sum, product) = shape.total(sums, k / shape.columns, k % shape.columns);
        let (factor, inverse) = (numbers.factors[k].f64(), statistics.inverse(k));
        *middle = T::of(factor * sum / count);
        *slope = T::of(factor * product * inverse * inverse / count);
    }
    each_row(slots, shape, dx, |dx, block, at| {
        let range = at..at + dx.len();
        let [x, dy] = [x, dy].map(|x| x.map(|x| &x[range.clone()]));
        let of_block = |numbers| of_block(shape, numbers, block).iter();
        let lines = of_block(numbers.factors).zip(of_block(numbers.offsets));
        let slopes = of_block(middles).zip(of_block(slopes));
        let numbers = of_block(numbers.means).zip(lines).zip(slopes);
        wide(
            #[inline(always)]
            || {
                zip(
                    dx,
                    x,
                    dy,
                    numbers,
                    #[inline(always)]
                    |x, dy, ((&mean, (&factor, &offset)), (&middle, &slope))| {
                        let dz = f.gradient(f.value(x * factor + offset), dy);
                        factor * dz - middle - (x - mean) * slope
                    },
                );
            },
        );
    });
    Ok(())
}
