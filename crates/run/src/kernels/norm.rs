//! Normalization: statistics, application, gradients of scale and shift, gradient of the input.
//!
//! Statistics are combined from blocks: within a block the mean and the squared deviations are
//! computed in two passes over the first-level cache, and blocks are merged in 64 bits, so one pass
//! over memory is as accurate as two.

use scrimp_graph::Norm;

use super::reduce;
use crate::arena::{Args, Source};
use crate::error::RunError;
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::wide;

/// Elements per block of statistics.
const BLOCK: usize = 1024;

/// Columns that one task sums for the parameters of a layer norm.
const COLUMNS: usize = 64;

/// Rows that it sums in the type itself before the sums go into 64 bits.
const ROWS: usize = 64;

/// How a tensor falls into segments of neighbouring elements. Statistics k belong to `segments`
/// segments, `apart` elements from one to the next.
#[derive(Clone, Copy)]
struct Geometry {
    /// K
    statistics: usize,
    segments: usize,
    length: usize,
    apart: usize,
    /// Elements from the first segment of k to that of k + 1.
    next: usize,
    /// Elements of one channel within a segment.
    plane: usize,
    /// Channels; for a layer norm, 1.
    channels: usize,
}

fn geometry(norm: Norm, shape: &[usize]) -> Geometry {
    if let Norm::Layer { axis } = norm {
        let length = shape[axis..].iter().product();
        let rows = shape[..axis].iter().product();
        return Geometry {
            statistics: rows,
            segments: 1,
            length,
            apart: 0,
            next: length,
            plane: 1,
            channels: 1,
        };
    }
    let (n, c) = (shape[0], shape[1]);
    let plane: usize = shape[2..].iter().product();
    let contiguous = |statistics: usize, length| Geometry {
        statistics,
        segments: 1,
        length,
        apart: 0,
        next: length,
        plane,
        channels: c,
    };
    match norm {
        Norm::Instance => contiguous(n * c, plane),
        Norm::Group { groups } => contiguous(n * groups, c / groups * plane),
        Norm::Batch | Norm::Layer { .. } => Geometry {
            statistics: c,
            segments: n,
            length: plane,
            apart: c * plane,
            next: plane,
            plane,
            channels: c,
        },
    }
}

/// Count, mean and sum of squared deviations of a set of elements.
#[derive(Clone, Copy, Default)]
struct Moments {
    count: f64,
    mean: f64,
    deviations: f64,
}

impl Moments {
    /// Of the union of two disjoint sets.
    fn merge(self, other: Moments) -> Moments {
        let count = self.count + other.count;
        let apart = other.mean - self.mean;
        Moments {
            count,
            mean: self.mean + apart * other.count / count,
            deviations: self.deviations
                + other.deviations
                + apart * apart * self.count * other.count / count,
        }
    }
}

#[inline(always)]
fn moments<T: Real>(x: &[T], start: Moments) -> Moments {
    x.chunks(BLOCK).fold(start, |all, block| {
        let count = block.len() as f64;
        let mean = reduce::sum(block) / count;
        let middle = T::of(mean);
        let deviations = reduce::fold(block, block, |x, _| (x - middle) * (x - middle));
        // `middle` is the rounded mean: the deviations are about it, not about `mean`.
        let rounding = mean - middle.f64();
        let deviations = (deviations - count * rounding * rounding).max(0.0);
        all.merge(Moments {
            count,
            mean,
            deviations,
        })
    })
}

/// `x -> stats[2,K]`
pub fn stats<T: Real>(slots: usize, norm: Norm, args: &Args) -> Result<(), RunError> {
    let (x, stats) = (args.input::<T>(0)?, args.output::<T>(0));
    let g = geometry(norm, args.input_shape(0));
    let (means, variances) = stats.split_at_mut(g.statistics);
    let (means, variances) = (Shared::new(means), Shared::new(variances));
    let slots = if x.len() < par::SMALL { 1 } else { slots };
    let per_task = (4 * BLOCK / (g.segments * g.length)).clamp(1, g.statistics);
    par::tasks(slots, g.statistics.div_ceil(per_task), &|_, task| {
        for k in task * per_task..((task + 1) * per_task).min(g.statistics) {
            let all = wide(|| {
                let mut all = Moments::default();
                for segment in 0..g.segments {
                    let at = k * g.next + segment * g.apart;
                    all = moments(&x[at..at + g.length], all);
                }
                all
            });
            // SAFETY: each task has its own statistics.
            #[allow(unsafe_code, reason = "disjoint elements of two slices")]
            let (mean, variance) = unsafe { (means.piece(k, 1), variances.piece(k, 1)) };
            mean[0] = T::of(all.mean);
            variance[0] = T::of(all.deviations / all.count);
        }
    });
    Ok(())
}

/// Mean and 1/√(variance + ε) of statistics k.
#[inline(always)]
fn statistic<T: Real>(stats: &[T], k: usize, epsilon: f64) -> (T, T) {
    let variance = stats[stats.len() / 2 + k].f64();
    (stats[k], T::of(1.0 / (variance + epsilon).sqrt()))
}

/// y ← x·factor + offset over one plane.
#[inline(always)]
fn scale_plane<T: Real>(y: &mut [T], x: Option<&[T]>, factor: T, offset: T) {
    match x {
        Some(x) => {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = x * factor + offset;
            }
        }
        None => {
            for y in y {
                *y = *y * factor + offset;
            }
        }
    }
}

/// `x, stats, scale, shift -> y`
pub fn apply<T: Real>(slots: usize, norm: Norm, epsilon: f64, args: &Args) -> Result<(), RunError> {
    let x = args.source::<T>(0)?;
    let (stats, scale, shift) = (
        args.input::<T>(1)?,
        args.input::<T>(2)?,
        args.input::<T>(3)?,
    );
    let y = args.output::<T>(0);
    let shape = args.output_shape(0);
    let g = geometry(norm, shape);
    if let Norm::Layer { .. } = norm {
        par::rows(slots, y, g.length, g.length, |k, y| {
            let (mean, inverse) = statistic(stats, k, epsilon);
            if let Source::From(x) = x {
                y.copy_from_slice(&x[k * g.length..(k + 1) * g.length]);
            }
            wide(|| {
                for ((y, &scale), &shift) in y.iter_mut().zip(scale).zip(shift) {
                    *y = (*y - mean) * inverse * scale + shift;
                }
            });
        });
        return Ok(());
    }
    par::rows(slots, y, g.plane, g.plane, |plane, y| {
        let channel = plane % g.channels;
        let (mean, inverse) = statistic(stats, statistics_of(norm, g, plane), epsilon);
        let factor = scale[channel] * inverse;
        let offset = shift[channel] - mean * factor;
        let x = match x {
            Source::From(x) => Some(&x[plane * g.plane..(plane + 1) * g.plane]),
            Source::InPlace => None,
        };
        wide(
            #[inline(always)]
            || scale_plane(y, x, factor, offset),
        );
    });
    Ok(())
}

/// Which statistics plane n·C + c belongs to.
fn statistics_of(norm: Norm, g: Geometry, plane: usize) -> usize {
    match norm {
        Norm::Batch => plane % g.channels,
        Norm::Instance => plane,
        Norm::Group { groups } => plane / (g.channels / groups),
        Norm::Layer { .. } => plane,
    }
}

/// Σ dy and Σ dy·x over a plane; Σ dy·x̂ follows from the two and the statistics.
#[inline(always)]
fn plane_sums<T: Real>(x: &[T], dy: &[T], mean: T) -> (f64, f64) {
    (
        reduce::sum(dy),
        reduce::fold(x, dy, |x, dy| (x - mean) * dy),
    )
}

/// `x, stats, dy -> dscale, dshift`
pub fn param_grad<T: Real>(
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
    let (dscale, dshift) = (args.output::<T>(0), args.output::<T>(1));
    let g = geometry(norm, args.input_shape(0));
    let slots = if x.len() < par::SMALL { 1 } else { slots };
    let (dscale, dshift) = (Shared::new(dscale), Shared::new(dshift));
    if let Norm::Layer { .. } = norm {
        par::tasks(slots, g.length.div_ceil(COLUMNS), &|_, task| {
            let first = task * COLUMNS;
            let width = COLUMNS.min(g.length - first);
            let (mut scales, mut shifts) = ([0.0; COLUMNS], [0.0; COLUMNS]);
            wide(|| {
                for start in (0..g.statistics).step_by(ROWS) {
                    let (mut part, mut sums) = ([T::ZERO; COLUMNS], [T::ZERO; COLUMNS]);
                    for k in start..(start + ROWS).min(g.statistics) {
                        let (mean, inverse) = statistic(stats, k, epsilon);
                        let at = k * g.length + first;
                        let (x, dy) = (&x[at..at + width], &dy[at..at + width]);
                        for (((part, sum), &x), &dy) in
                            part.iter_mut().zip(&mut sums).zip(x).zip(dy)
                        {
                            *part += (x - mean) * inverse * dy;
                            *sum += dy;
                        }
                    }
                    for column in 0..width {
                        scales[column] += part[column].f64();
                        shifts[column] += sums[column].f64();
                    }
                }
            });
            // SAFETY: each task has its own columns.
            #[allow(unsafe_code, reason = "disjoint pieces of two slices")]
            let (dscale, dshift) =
                unsafe { (dscale.piece(first, width), dshift.piece(first, width)) };
            for column in 0..width {
                dscale[column] = T::of(scales[column]);
                dshift[column] = T::of(shifts[column]);
            }
        });
        return Ok(());
    }
    let batch = x.len() / (g.channels * g.plane);
    let per_task = (4 * BLOCK / (batch * g.plane)).clamp(1, g.channels);
    par::tasks(slots, g.channels.div_ceil(per_task), &|_, task| {
        for channel in task * per_task..((task + 1) * per_task).min(g.channels) {
            let (mut scale, mut shift) = (0.0, 0.0);
            for n in 0..batch {
                let plane = n * g.channels + channel;
                let (mean, inverse) = statistic(stats, statistics_of(norm, g, plane), epsilon);
                let range = plane * g.plane..(plane + 1) * g.plane;
                let (x, dy) = (&x[range.clone()], &dy[range]);
                let (sum, product) = wide(
                    #[inline(always)]
                    || plane_sums(x, dy, mean),
                );
                scale += product * inverse.f64();
                shift += sum;
            }
            // SAFETY: each task has its own channels.
            #[allow(unsafe_code, reason = "disjoint elements of two slices")]
            let (dscale, dshift) = unsafe { (dscale.piece(channel, 1), dshift.piece(channel, 1)) };
            dscale[0] = T::of(scale);
            dshift[0] = T::of(shift);
        }
    });
    Ok(())
}

/// Inputs of the input gradient that are the same for every variant.
struct InputGrad<'a, T> {
    x: Source<'a, T>,
    dy: Source<'a, T>,
    stats: &'a [T],
    scale: &'a [T],
    epsilon: f64,
}

/// `x, stats, scale, dy[, dscale, dshift] -> dx`: with g = dy·scale and x̂ the normalized input,
/// dx = (g − mean g − x̂·mean(g·x̂))/√(variance + ε), means over the elements that share statistics.
pub fn input_grad<T: Real>(
    slots: usize,
    norm: Norm,
    epsilon: f64,
    args: &Args,
) -> Result<(), RunError> {
    let input = InputGrad {
        x: args.source::<T>(0)?,
        dy: args.source::<T>(3)?,
        stats: args.input::<T>(1)?,
        scale: args.input::<T>(2)?,
        epsilon,
    };
    let dx = args.output::<T>(0);
    let g = geometry(norm, args.input_shape(0));
    match norm {
        Norm::Batch => {
            let (dscale, dshift) = (args.input::<T>(4)?, args.input::<T>(5)?);
            let count = (g.segments * g.length) as f64;
            par::rows(slots, dx, g.plane, g.plane, |plane, dx| {
                let c = plane % g.channels;
                let means = (dshift[c].f64() / count, dscale[c].f64() / count);
                let (mean, inverse) = statistic(input.stats, c, epsilon);
                input.plane(plane * g.plane, dx, (mean, inverse), input.scale[c], means);
            });
        }
        Norm::Layer { .. } => par::rows(slots, dx, g.length, 4 * g.length, |k, dx| {
            input.layer(g, k, dx)
        }),
        Norm::Instance | Norm::Group { .. } => {
            let per_statistic = g.length / g.plane;
            par::rows(slots, dx, g.length, 4 * g.length, |k, dx| {
                let (mean, inverse) = statistic(input.stats, k, epsilon);
                let channel = |i| (k * per_statistic + i) % g.channels;
                let (mut sum, mut product) = (0.0, 0.0);
                for (i, own) in dx.chunks(g.plane).enumerate() {
                    let at = k * g.length + i * g.plane;
                    let scale = input.scale[channel(i)].f64();
                    let (x, dy) = input.slices(at, own);
                    let (s, p) = wide(|| plane_sums(x, dy, mean));
                    sum += s * scale;
                    product += p * scale;
                }
                let count = g.length as f64;
                for (i, dx) in dx.chunks_mut(g.plane).enumerate() {
                    let scale = input.scale[channel(i)];
                    // `plane` multiplies the means by the plane's scale; these have it already.
                    let factor = inverse;
                    let slope = T::of(product * inverse.f64() * inverse.f64() / count);
                    let middle = T::of(sum / count);
                    input.combine(k * g.length + i * g.plane, dx, |x, dy| {
                        factor * (dy * scale - middle - (x - mean) * slope)
                    });
                }
            });
        }
    }
    Ok(())
}

impl<T: Real> InputGrad<'_, T> {
    /// x and dy from `at` on; `own` is what dx holds now.
    #[inline(always)]
    fn slices<'s>(&'s self, at: usize, own: &'s [T]) -> (&'s [T], &'s [T]) {
        let pick = |source: &'s Source<'_, T>| match source {
            Source::From(x) => &x[at..at + own.len()],
            Source::InPlace => own,
        };
        (pick(&self.x), pick(&self.dy))
    }

    /// dx ← f(x, dy) for the elements from `at` on.
    #[inline(always)]
    fn combine(&self, at: usize, dx: &mut [T], f: impl Fn(T, T) -> T) {
        let range = at..at + dx.len();
        wide(
            #[inline(always)]
            || match (&self.x, &self.dy) {
                (Source::From(x), Source::From(dy)) => {
                    let (x, dy) = (&x[range.clone()], &dy[range]);
                    for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
                        *dx = f(x, dy);
                    }
                }
                (Source::From(x), Source::InPlace) => {
                    for (dx, &x) in dx.iter_mut().zip(&x[range]) {
                        *dx = f(x, *dx);
                    }
                }
                (Source::InPlace, Source::From(dy)) => {
                    for (dx, &dy) in dx.iter_mut().zip(&dy[range]) {
                        *dx = f(*dx, dy);
                    }
                }
                (Source::InPlace, Source::InPlace) => {
                    for dx in dx {
                        *dx = f(*dx, *dx);
                    }
                }
            },
        );
    }

    /// A plane with one scale; `means` are those of dy and dy·x̂.
    #[inline(always)]
    fn plane(&self, at: usize, dx: &mut [T], (mean, inverse): (T, T), scale: T, means: (f64, f64)) {
        let factor = scale * inverse;
        let middle = T::of(means.0);
        let slope = T::of(means.1 * inverse.f64());
        self.combine(at, dx, |x, dy| factor * (dy - middle - (x - mean) * slope));
    }

    /// One row of a layer norm, whose scale differs from element to element.
    fn layer(&self, g: Geometry, k: usize, dx: &mut [T]) {
        let (mean, inverse) = statistic(self.stats, k, self.epsilon);
        let at = k * g.length;
        let (x, dy) = self.slices(at, dx);
        let scale = self.scale;
        let (sum, product) = wide(
            #[inline(always)]
            || reduce::scaled_sums(x, dy, scale, mean),
        );
        let count = g.length as f64;
        let middle = T::of(sum / count);
        let slope = T::of(product * inverse.f64() * inverse.f64() / count);
        // In place, x or dy is dx itself: reading and writing the same index is all that happens.
        let gradient = |x: T, dy: T, scale: T| inverse * (dy * scale - middle - (x - mean) * slope);
        let range = at..at + dx.len();
        wide(
            #[inline(always)]
            || match (&self.x, &self.dy) {
                (Source::From(x), Source::From(dy)) => {
                    let (x, dy) = (&x[range.clone()], &dy[range]);
                    for (((dx, &x), &dy), &scale) in dx.iter_mut().zip(x).zip(dy).zip(scale) {
                        *dx = gradient(x, dy, scale);
                    }
                }
                (Source::From(x), Source::InPlace) => {
                    for ((dx, &x), &scale) in dx.iter_mut().zip(&x[range]).zip(scale) {
                        *dx = gradient(x, *dx, scale);
                    }
                }
                (Source::InPlace, Source::From(dy)) => {
                    for ((dx, &dy), &scale) in dx.iter_mut().zip(&dy[range]).zip(scale) {
                        *dx = gradient(*dx, dy, scale);
                    }
                }
                (Source::InPlace, Source::InPlace) => {
                    for (dx, &scale) in dx.iter_mut().zip(scale) {
                        *dx = gradient(*dx, *dx, scale);
                    }
                }
            },
        );
    }
}
