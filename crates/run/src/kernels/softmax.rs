//! Softmax and its logarithm along one axis, and their gradients. All of them can overwrite an input.

use super::reduce;
use crate::args::{Args, Source};
use crate::error::RunError;
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::{Isa, wide_for};

/// Neighbouring lines that are handled together if the axis isn't the last.
const COLUMNS: usize = 64;

/// `x -> y`
pub fn softmax<T: Real>(
    slots: usize,
    axis: usize,
    log: bool,
    args: Args<'_>,
) -> Result<(), RunError> {
    let x = args.inputs.source::<T>(0)?;
    let (length, inner) = line(args.outputs.shape(0), axis);
    let [y] = args.outputs.take::<T, _>()?;
    if inner == 1 {
        par::rows(slots, y, length, 4 * length, |index, y| {
            let x = x.part(index * length..(index + 1) * length);
            wide_for(
                #[inline(always)]
                |isa| match log {
                    true => log_softmax_row(isa, x, y),
                    false => softmax_row(isa, x, y),
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
    columns(
        slots,
        y,
        length,
        inner,
        #[inline(always)]
        |isa, mut lines| {
            let mut largest = [T::NEG_INFINITY; COLUMNS];
            lines.each(
                #[inline(always)]
                |_, row| {
                    for (largest, &x) in largest.iter_mut().zip(row.iter()) {
                        *largest = x.or_more(*largest);
                    }
                },
            );
            let mut total = [T::ZERO; COLUMNS];
            lines.each(
                #[inline(always)]
                |_, row| {
                    for ((x, largest), total) in row.iter_mut().zip(largest).zip(&mut total) {
                        let shifted = *x - largest;
                        let power = shifted.exp(isa);
                        *total += power;
                        *x = if log { shifted } else { power };
                    }
                },
            );
            lines.each(
                #[inline(always)]
                |_, row| {
                    for (x, total) in row.iter_mut().zip(total) {
                        *x = if log { *x - total.ln() } else { *x / total };
                    }
                },
            );
        },
    );
    Ok(())
}

/// The length of the axis and the distance in elements between neighbours along it.
fn line(shape: &[usize], axis: usize) -> (usize, usize) {
    (shape[axis], shape[axis + 1..].iter().product())
}

/// Computes one row. If `x` is `None`, `y` holds it.
#[inline(always)]
fn softmax_row<T: Real>(isa: Isa, x: Option<&[T]>, y: &mut [T]) {
    let largest = reduce::largest(x.unwrap_or(y));
    match x {
        Some(x) => {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = (x - largest).exp(isa);
            }
        }
        None => {
            for y in y.iter_mut() {
                *y = (*y - largest).exp(isa);
            }
        }
    }
    let factor = T::of(1.0 / reduce::sum(y));
    for y in y.iter_mut() {
        *y = *y * factor;
    }
}

/// Computes one row. If `x` is `None`, `y` holds it.
#[inline(always)]
fn log_softmax_row<T: Real>(isa: Isa, x: Option<&[T]>, y: &mut [T]) {
    if let Some(x) = x {
        y.copy_from_slice(x);
    }
    let largest = reduce::largest(y);
    let total = reduce::fold(
        y,
        y,
        #[inline(always)]
        |y, _| (y - largest).exp(isa),
    );
    let shift = largest + T::of(total.ln());
    for y in y.iter_mut() {
        *y = *y - shift;
    }
}

struct Lines<'a, 's, T> {
    slab: &'a Shared<'s, T>,
    at: usize,
    length: usize,
    inner: usize,
    width: usize,
}

impl<T> Lines<'_, '_, T> {
    #[inline(always)]
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
    f: impl Fn(Isa, Lines<'_, '_, T>) + Sync,
) {
    let outer = y.len() / (length * inner);
    let blocks = inner.div_ceil(COLUMNS);
    let slots = if y.len() < par::SMALL { 1 } else { slots };
    let slab = Shared::new(y);
    par::tasks(slots, outer * blocks, &|_, task| {
        let (outer, first) = (task / blocks, task % blocks * COLUMNS);
        let at = outer * length * inner + first;
        let lines = Lines {
            slab: &slab,
            at,
            length,
            inner,
            width: COLUMNS.min(inner - first),
        };
        wide_for(
            #[inline(always)]
            |isa| f(isa, lines),
        );
    });
}

/// `y, dy -> dx`: dx = y·(dy − Σ y·dy), or dx = dy − e^y·Σ dy for the logarithm.
pub fn softmax_grad<T: Real>(
    slots: usize,
    axis: usize,
    log: bool,
    args: Args<'_>,
) -> Result<(), RunError> {
    let (y, dy) = (args.inputs.source::<T>(0)?, args.inputs.source::<T>(1)?);
    let (length, inner) = line(args.outputs.shape(0), axis);
    let [dx] = args.outputs.take::<T, _>()?;
    let pick = |source: &Source<'_, T>, at: usize, own: T| match source {
        Source::From(x) => x[at],
        Source::InPlace => own,
    };
    if inner == 1 {
        par::rows(slots, dx, length, 4 * length, |index, dx| {
            let range = index * length..(index + 1) * length;
            let (y, dy) = (y.part(range.clone()), dy.part(range));
            wide_for(
                #[inline(always)]
                |isa| match log {
                    true => gradient_row(
                        y,
                        dy,
                        dx,
                        |_, dy| reduce::sum(dy),
                        #[inline(always)]
                        |y, dy, sum| dy - y.exp(isa) * sum,
                    ),
                    false => gradient_row(y, dy, dx, reduce::dot, |y, dy, sum| y * (dy - sum)),
                },
            );
        });
        return Ok(());
    }
    columns(
        slots,
        dx,
        length,
        inner,
        #[inline(always)]
        |isa, mut lines| {
            let mut total = [0.0; COLUMNS];
            lines.each(
                #[inline(always)]
                |at, row| {
                    for (i, (&own, total)) in row.iter().zip(&mut total).enumerate() {
                        let dy = pick(&dy, at + i, own);
                        let y = pick(&y, at + i, own);
                        *total += if log { dy } else { y * dy }.f64();
                    }
                },
            );
            lines.each(
                #[inline(always)]
                |at, row| {
                    for (i, (own, total)) in row.iter_mut().zip(total).enumerate() {
                        let (y, dy) = (pick(&y, at + i, *own), pick(&dy, at + i, *own));
                        *own = match log {
                            true => dy - y.exp(isa) * T::of(total),
                            false => y * (dy - T::of(total)),
                        };
                    }
                },
            );
        },
    );
    Ok(())
}

/// dx ← f(y, dy, sum(y, dy)). An input that isn't given is in dx.
#[inline(always)]
fn gradient_row<T: Real>(
    y: Option<&[T]>,
    dy: Option<&[T]>,
    dx: &mut [T],
    sum: impl Fn(&[T], &[T]) -> f64,
    f: impl Fn(T, T, T) -> T,
) {
    let sum = T::of(sum(y.unwrap_or(dx), dy.unwrap_or(dx)));
    match (y, dy) {
        (Some(y), Some(dy)) => {
            for ((dx, &y), &dy) in dx.iter_mut().zip(y).zip(dy) {
                *dx = f(y, dy, sum);
            }
        }
        (Some(y), None) => {
            for (dx, &y) in dx.iter_mut().zip(y) {
                *dx = f(y, *dx, sum);
            }
        }
        (None, Some(dy)) => {
            for (dx, &dy) in dx.iter_mut().zip(dy) {
                *dx = f(*dx, dy, sum);
            }
        }
        (None, None) => {
            for dx in dx {
                *dx = f(*dx, *dx, sum);
            }
        }
    }
}
