//! Softmax and its logarithm along one axis, and their gradients. All can overwrite an input.

use super::reduce;
use crate::arena::{Args, Source};
use crate::error::RunError;
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::wide;

/// Neighbouring lines that are handled together where the axis isn't the last.
const COLUMNS: usize = 64;

/// `x -> y`
pub fn softmax<T: Real>(slots: usize, axis: usize, log: bool, args: &Args) -> Result<(), RunError> {
    let x = args.source::<T>(0)?;
    let y = args.output::<T>(0);
    let (length, inner) = line(args.output_shape(0), axis);
    if inner == 1 {
        par::rows(slots, y, length, 4 * length, |index, y| {
            if let Source::From(x) = x {
                y.copy_from_slice(&x[index * length..(index + 1) * length]);
            }
            wide(
                #[inline(always)]
                || {
                    if log {
                        log_softmax_row(y)
                    } else {
                        softmax_row(y)
                    }
                },
            );
        });
        return Ok(());
    }
    if let Source::From(x) = x {
        par::pieces(slots, y, 16 * 1024, |at, y| {
            y.copy_from_slice(&x[at..at + y.len()])
        });
    }
    columns(slots, y, length, inner, |mut lines| {
        let mut largest = [T::NEG_INFINITY; COLUMNS];
        lines.each(|_, row| {
            for (largest, &x) in largest.iter_mut().zip(row.iter()) {
                *largest = x.or_more(*largest);
            }
        });
        let mut total = [T::ZERO; COLUMNS];
        lines.each(|_, row| {
            for ((x, largest), total) in row.iter_mut().zip(largest).zip(&mut total) {
                let shifted = *x - largest;
                let power = shifted.exp();
                *total += power;
                *x = if log { shifted } else { power };
            }
        });
        lines.each(|_, row| {
            for (x, total) in row.iter_mut().zip(total) {
                *x = if log { *x - total.ln() } else { *x / total };
            }
        });
    });
    Ok(())
}

/// (length of the axis, elements between neighbours along it)
fn line(shape: &[usize], axis: usize) -> (usize, usize) {
    (shape[axis], shape[axis + 1..].iter().product())
}

#[inline(always)]
pub(super) fn largest<T: Real>(x: &[T]) -> T {
    const LANES: usize = 16;
    let mut lanes = [T::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = chunk[lane].or_more(lanes[lane]);
        }
    }
    let all = lanes.iter().chain(rest);
    all.fold(T::NEG_INFINITY, |largest, &x| x.or_more(largest))
}

#[inline(always)]
fn softmax_row<T: Real>(y: &mut [T]) {
    let largest = largest(y);
    for y in y.iter_mut() {
        *y = (*y - largest).exp();
    }
    let factor = T::of(1.0 / reduce::sum(y));
    for y in y.iter_mut() {
        *y = *y * factor;
    }
}

#[inline(always)]
fn log_softmax_row<T: Real>(y: &mut [T]) {
    let largest = largest(y);
    let total = reduce::fold(y, y, |y, _| (y - largest).exp());
    let shift = largest + T::of(total.ln());
    for y in y.iter_mut() {
        *y = *y - shift;
    }
}

/// Up to [`COLUMNS`] neighbouring lines along an axis that isn't the last.
struct Lines<'a, 's, T> {
    slab: &'a Shared<'s, T>,
    at: usize,
    length: usize,
    inner: usize,
    width: usize,
}

impl<T> Lines<'_, '_, T> {
    /// Calls `f(offset, row)` for each position along the axis.
    fn each(&mut self, mut f: impl FnMut(usize, &mut [T])) {
        for i in 0..self.length {
            let at = self.at + i * self.inner;
            // SAFETY: these columns belong to this task alone, and one row is alive at a time.
            #[allow(unsafe_code, reason = "disjoint columns of one slice")]
            let row = unsafe { self.slab.piece(at, self.width) };
            f(at, row);
        }
    }
}

fn columns<T: Real>(
    slots: usize,
    y: &mut [T],
    length: usize,
    inner: usize,
    f: impl Fn(Lines<'_, '_, T>) + Sync,
) {
    let outer = y.len() / (length * inner);
    let blocks = inner.div_ceil(COLUMNS);
    let slots = if y.len() < par::SMALL { 1 } else { slots };
    let slab = Shared::new(y);
    par::tasks(slots, outer * blocks, &|_, task| {
        let (outer, first) = (task / blocks, task % blocks * COLUMNS);
        let at = outer * length * inner + first;
        f(Lines {
            slab: &slab,
            at,
            length,
            inner,
            width: COLUMNS.min(inner - first),
        });
    });
}

/// `y, dy -> dx`: dx = y·(dy − Σ y·dy), or dx = dy − e^y·Σ dy for the logarithm.
pub fn softmax_grad<T: Real>(
    slots: usize,
    axis: usize,
    log: bool,
    args: &Args,
) -> Result<(), RunError> {
    let (y, dy) = (args.source::<T>(0)?, args.source::<T>(1)?);
    let dx = args.output::<T>(0);
    let (length, inner) = line(args.output_shape(0), axis);
    let pick = |source: &Source<'_, T>, at: usize, own: T| match source {
        Source::From(x) => x[at],
        Source::InPlace => own,
    };
    if inner == 1 {
        par::rows(slots, dx, length, 4 * length, |index, dx| {
            let range = index * length..(index + 1) * length;
            wide(
                #[inline(always)]
                || match (&y, &dy) {
                    (Source::From(y), Source::From(dy)) => {
                        let (y, dy) = (&y[range.clone()], &dy[range]);
                        let sum = T::of(row_sum(log, y, dy));
                        for ((dx, &y), &dy) in dx.iter_mut().zip(y).zip(dy) {
                            *dx = gradient(log, y, dy, sum);
                        }
                    }
                    (Source::From(y), Source::InPlace) => {
                        let y = &y[range];
                        let sum = T::of(row_sum(log, y, dx));
                        for (dx, &y) in dx.iter_mut().zip(y) {
                            *dx = gradient(log, y, *dx, sum);
                        }
                    }
                    (Source::InPlace, Source::From(dy)) => {
                        let dy = &dy[range];
                        let sum = T::of(row_sum(log, dx, dy));
                        for (dx, &dy) in dx.iter_mut().zip(dy) {
                            *dx = gradient(log, *dx, dy, sum);
                        }
                    }
                    (Source::InPlace, Source::InPlace) => {
                        let sum = T::of(row_sum(log, dx, dx));
                        for dx in dx.iter_mut() {
                            *dx = gradient(log, *dx, *dx, sum);
                        }
                    }
                },
            );
        });
        return Ok(());
    }
    columns(slots, dx, length, inner, |mut lines| {
        let mut total = [0.0; COLUMNS];
        lines.each(|at, row| {
            for (i, (&own, total)) in row.iter().zip(&mut total).enumerate() {
                let dy = pick(&dy, at + i, own);
                let y = pick(&y, at + i, own);
                *total += if log { dy } else { y * dy }.f64();
            }
        });
        lines.each(|at, row| {
            for (i, (own, total)) in row.iter_mut().zip(total).enumerate() {
                *own = gradient(
                    log,
                    pick(&y, at + i, *own),
                    pick(&dy, at + i, *own),
                    T::of(total),
                );
            }
        });
    });
    Ok(())
}

#[inline(always)]
fn row_sum<T: Real>(log: bool, y: &[T], dy: &[T]) -> f64 {
    if log {
        reduce::sum(dy)
    } else {
        reduce::dot(y, dy)
    }
}

#[inline(always)]
fn gradient<T: Real>(log: bool, y: T, dy: T, sum: T) -> T {
    if log {
        dy - y.exp() * sum
    } else {
        y * (dy - sum)
    }
}
