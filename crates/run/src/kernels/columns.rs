//! Batch and instance normalization of images whose channels lie together: statistics of columns.
//!
//! A tensor [N,H,W,C] is blocks of rows of C elements: one block for batch normalization, one per sample
//! for instance normalization. Sums over rows are made chunk by chunk into the workspace, and the chunks,
//! which depend on the shape alone, are added in order.

use scrimp_graph::{Norm, Op};

use super::scratch::{self, Scratch};
use crate::arena::{Args, Source};
use crate::error::RunError;
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::wide;

/// Columns that are summed together.
const WIDTH: usize = 64;

/// Rows that are summed in the type itself, before the sums go into 64 bits.
const ROWS: usize = 64;

/// Elements per chunk, if that makes at most [`MOST`] chunks of a block.
const CHUNK: usize = 32 * 1024;

/// Chunks of a block.
const MOST: usize = 32;

#[derive(Clone, Copy)]
struct Columns {
    blocks: usize,
    rows: usize,
    columns: usize,
    chunks: usize,
}

impl Columns {
    /// Of a tensor of physical shape [N,H,W,C].
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

    /// Statistics: one per block and column.
    fn statistics(&self) -> usize {
        self.blocks * self.columns
    }

    /// Pairs of sums per chunk and column.
    fn sums(&self) -> usize {
        2 * self.chunks * self.statistics()
    }

    /// Rows of a chunk.
    fn chunk(&self, chunk: usize) -> std::ops::Range<usize> {
        let height = self.rows.div_ceil(self.chunks);
        (chunk * height).min(self.rows)..((chunk + 1) * height).min(self.rows)
    }

    /// Fills two numbers for each chunk and column: `f(rows as elements from first to end, first
    /// column, a, b)` for up to [`WIDTH`] columns.
    fn fold(
        &self,
        slots: usize,
        sums: &mut [f64],
        f: impl Fn(std::ops::Range<usize>, usize, &mut [f64], &mut [f64]) + Sync,
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
            let pieces = a.chunks_mut(WIDTH).zip(b.chunks_mut(WIDTH));
            for (first, (a, b)) in (0..self.columns).step_by(WIDTH).zip(pieces) {
                f(block + rows.start..block + rows.end, first, a, b);
            }
        });
    }

    /// The pair of a chunk's sums of a column.
    fn pair(&self, sums: &[f64], block: usize, chunk: usize, column: usize) -> (f64, f64) {
        let at = (block * self.chunks + chunk) * 2 * self.columns + column;
        (sums[at], sums[at + self.columns])
    }

    /// Sums of a column over a block's chunks.
    fn total(&self, sums: &[f64], block: usize, column: usize) -> (f64, f64) {
        (0..self.chunks).fold((0.0, 0.0), |(a, b), chunk| {
            let (more_a, more_b) = self.pair(sums, block, chunk, column);
            (a + more_a, b + more_b)
        })
    }
}

/// Bytes of scratch for a tensor of physical shape [N,H,W,C].
pub fn workspace<T: Real>(op: &Op, shape: &[usize]) -> usize {
    match op {
        Op::NormStats { norm } | Op::NormParamGrad { norm, .. } => {
            scratch::bytes::<f64>(Columns::new(*norm, shape).sums())
        }
        Op::NormApply { norm, .. } => {
            scratch::bytes::<T>(2 * Columns::new(*norm, shape).statistics())
        }
        Op::NormInputGrad { norm, .. } => {
            let columns = Columns::new(*norm, shape);
            let sums = match norm {
                Norm::Batch => 0,
                _ => columns.sums(),
            };
            scratch::bytes::<f64>(sums) + scratch::bytes::<T>(3 * columns.statistics())
        }
        _ => 0,
    }
}

/// Runs one of the four operators of a normalization.
pub fn run<T: Real>(slots: usize, op: &Op, args: &Args) -> Result<(), RunError> {
    match op {
        Op::NormStats { norm } => stats::<T>(slots, *norm, args),
        Op::NormApply { norm, epsilon } => apply::<T>(slots, *norm, *epsilon, args),
        Op::NormParamGrad { norm, epsilon } => param_grad::<T>(slots, *norm, *epsilon, args),
        Op::NormInputGrad { norm, epsilon } => input_grad::<T>(slots, *norm, *epsilon, args),
        _ => Err(super::unsupported(op, "it isn't a normalization")),
    }
}

/// Means and sums of squared deviations of up to [`WIDTH`] columns: within [`ROWS`] rows in two passes
/// over the first-level cache, merged in 64 bits.
#[inline(always)]
fn moments<T: Real>(
    x: &[T],
    columns: usize,
    rows: std::ops::Range<usize>,
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
        // What rounding the middle left over, and the squares about it.
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
fn stats<T: Real>(slots: usize, norm: Norm, args: &Args) -> Result<(), RunError> {
    let (x, stats) = (args.input::<T>(0)?, args.output::<T>(0));
    let shape = Columns::new(norm, args.input_shape(0));
    let sums = Scratch::new(args.workspace()).take::<f64>(shape.sums())?;
    shape.fold(slots, sums, |rows, first, means, deviations| {
        wide(
            #[inline(always)]
            || moments(x, shape.columns, rows, first, means, deviations),
        );
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

/// 1/√(variance + ε) of statistics k.
fn inverse<T: Real>(stats: &[T], k: usize, epsilon: f64) -> f64 {
    1.0 / (stats[stats.len() / 2 + k].f64() + epsilon).sqrt()
}

/// Calls `f(row, its block, where it starts)` for the rows of the output.
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

/// `x, stats, scale, shift -> y`
fn apply<T: Real>(slots: usize, norm: Norm, epsilon: f64, args: &Args) -> Result<(), RunError> {
    let (x, stats) = (args.source::<T>(0)?, args.input::<T>(1)?);
    let (scale, shift) = (args.input::<T>(2)?, args.input::<T>(3)?);
    let shape = Columns::new(norm, args.input_shape(0));
    let mut scratch = Scratch::new(args.workspace());
    let factors = scratch.take::<T>(2 * shape.statistics())?;
    let (factors, offsets) = factors.split_at_mut(shape.statistics());
    for (k, (factor, offset)) in factors.iter_mut().zip(offsets.iter_mut()).enumerate() {
        let column = k % shape.columns;
        *factor = scale[column] * T::of(inverse(stats, k, epsilon));
        *offset = shift[column] - stats[k] * *factor;
    }
    each_row(slots, shape, args.output::<T>(0), |y, block, at| {
        let range = block * shape.columns..(block + 1) * shape.columns;
        let (factors, offsets) = (&factors[range.clone()], &offsets[range]);
        wide(
            #[inline(always)]
            || match x {
                Source::From(x) => {
                    let x = &x[at..at + shape.columns];
                    for (((y, &x), &factor), &offset) in
                        y.iter_mut().zip(x).zip(factors).zip(offsets)
                    {
                        *y = x * factor + offset;
                    }
                }
                Source::InPlace => {
                    for ((y, &factor), &offset) in y.iter_mut().zip(factors).zip(offsets) {
                        *y = *y * factor + offset;
                    }
                }
            },
        );
    });
    Ok(())
}

/// Σ dy and Σ dy·(x − mean) of columns, into the sums.
fn gradient_sums<T: Real>(
    slots: usize,
    shape: Columns,
    [x, dy, stats]: [&[T]; 3],
    sums: &mut [f64],
) {
    shape.fold(slots, sums, |rows, first, shifts, scales| {
        shifts.fill(0.0);
        scales.fill(0.0);
        if rows.is_empty() {
            return;
        }
        let width = shifts.len();
        let means = &stats[rows.start / shape.rows * shape.columns + first..][..width];
        wide(
            #[inline(always)]
            || {
                for start in rows.clone().step_by(ROWS) {
                    let (mut shift, mut scale) = ([T::ZERO; WIDTH], [T::ZERO; WIDTH]);
                    for row in start..(start + ROWS).min(rows.end) {
                        let at = row * shape.columns + first;
                        let (x, dy) = (&x[at..][..width], &dy[at..][..width]);
                        for ((((shift, scale), &mean), &x), &dy) in
                            shift.iter_mut().zip(&mut scale).zip(means).zip(x).zip(dy)
                        {
                            *shift += dy;
                            *scale += (x - mean) * dy;
                        }
                    }
                    for i in 0..width {
                        shifts[i] += shift[i].f64();
                        scales[i] += scale[i].f64();
                    }
                }
            },
        );
    });
}

/// `x, stats, dy -> dscale, dshift`
fn param_grad<T: Real>(
    slots: usize,
    norm: Norm,
    epsilon: f64,
    args: &Args,
) -> Result<(), RunError> {
    let (x, stats, dy) = (
        args.input::<T>(0)?,
        args.input::<T>(1)?,
        args.input::<T>(2)?,
    );
    let shape = Columns::new(norm, args.input_shape(0));
    let sums = Scratch::new(args.workspace()).take::<f64>(shape.sums())?;
    gradient_sums(slots, shape, [x, dy, stats], sums);
    let (dscale, dshift) = (args.output::<T>(0), args.output::<T>(1));
    for (column, (dscale, dshift)) in dscale.iter_mut().zip(dshift).enumerate() {
        let (mut scale, mut shift) = (0.0, 0.0);
        for block in 0..shape.blocks {
            let (sum, product) = shape.total(sums, block, column);
            shift += sum;
            scale += product * inverse(stats, block * shape.columns + column, epsilon);
        }
        (*dscale, *dshift) = (T::of(scale), T::of(shift));
    }
    Ok(())
}

/// What `x, dy -> dx` needs of each statistic: dx = factor·(dy − middle − (x − mean)·slope).
struct Slopes<'a, T> {
    means: &'a [T],
    factors: &'a mut [T],
    middles: &'a mut [T],
    slopes: &'a mut [T],
}

/// An input's elements; `own` is what the output holds now.
fn elements<'a, T>(source: &Source<'a, T>, own: &'a [T]) -> &'a [T] {
    match source {
        Source::From(x) => x,
        Source::InPlace => own,
    }
}

/// `x, stats, scale, dy[, dscale, dshift] -> dx`
fn input_grad<T: Real>(
    slots: usize,
    norm: Norm,
    epsilon: f64,
    args: &Args,
) -> Result<(), RunError> {
    let (x, dy) = (args.source::<T>(0)?, args.source::<T>(3)?);
    let (stats, scale) = (args.input::<T>(1)?, args.input::<T>(2)?);
    let dx = args.output::<T>(0);
    let shape = Columns::new(norm, args.input_shape(0));
    let mut scratch = Scratch::new(args.workspace());
    let sums = match norm {
        Norm::Batch => None,
        _ => {
            let sums = scratch.take::<f64>(shape.sums())?;
            let inputs = [elements(&x, dx), elements(&dy, dx), stats];
            gradient_sums(slots, shape, inputs, sums);
            Some(sums)
        }
    };
    let count = shape.rows as f64;
    let of_batch = match norm {
        Norm::Batch => Some((args.input::<T>(4)?, args.input::<T>(5)?)),
        _ => None,
    };
    let numbers = scratch.take::<T>(3 * shape.statistics())?;
    let mut parts = numbers.chunks_mut(shape.statistics());
    let mut part = || parts.next().unwrap_or_default();
    let s = Slopes {
        means: &stats[..shape.statistics()],
        factors: part(),
        middles: part(),
        slopes: part(),
    };
    for k in 0..shape.statistics() {
        let (block, column) = (k / shape.columns, k % shape.columns);
        let inverse = inverse(stats, k, epsilon);
        // Mean of dy, and of dy times the normalized input.
        let (shift, product) = match (&of_batch, &sums) {
            (Some((dscale, dshift)), _) => (dshift[column].f64(), dscale[column].f64()),
            (None, Some(sums)) => {
                let (sum, product) = shape.total(sums, block, column);
                (sum, product * inverse)
            }
            (None, None) => (0.0, 0.0),
        };
        s.factors[k] = scale[column] * T::of(inverse);
        s.middles[k] = T::of(shift / count);
        s.slopes[k] = T::of(product * inverse / count);
    }
    each_row(slots, shape, dx, |dx, block, at| {
        wide(
            #[inline(always)]
            || s.row(dx, &x, &dy, block * shape.columns, at),
        );
    });
    Ok(())
}

impl<T: Real> Slopes<'_, T> {
    /// One row; its statistics begin at `first`, its elements at `at`.
    #[inline(always)]
    fn row(&self, dx: &mut [T], x: &Source<'_, T>, dy: &Source<'_, T>, first: usize, at: usize) {
        let width = dx.len();
        let numbers = self.means[first..][..width]
            .iter()
            .zip(&self.factors[first..][..width])
            .zip(&self.middles[first..][..width])
            .zip(&self.slopes[first..][..width]);
        let f = |x: T, dy: T, (((&mean, &factor), &middle), &slope): (((&T, &T), &T), &T)| {
            factor * (dy - middle - (x - mean) * slope)
        };
        let range = at..at + width;
        match (x, dy) {
            (Source::From(x), Source::From(dy)) => {
                let (x, dy) = (&x[range.clone()], &dy[range]);
                for (((dx, &x), &dy), n) in dx.iter_mut().zip(x).zip(dy).zip(numbers) {
                    *dx = f(x, dy, n);
                }
            }
            (Source::From(x), Source::InPlace) => {
                for ((dx, &x), n) in dx.iter_mut().zip(&x[range]).zip(numbers) {
                    *dx = f(x, *dx, n);
                }
            }
            (Source::InPlace, Source::From(dy)) => {
                for ((dx, &dy), n) in dx.iter_mut().zip(&dy[range]).zip(numbers) {
                    *dx = f(*dx, dy, n);
                }
            }
            (Source::InPlace, Source::InPlace) => {
                for (dx, n) in dx.iter_mut().zip(numbers) {
                    *dx = f(*dx, *dx, n);
                }
            }
        }
    }
}
