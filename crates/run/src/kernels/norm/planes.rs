//! Batch, instance and group normalization of tensors in rows, where the elements of one channel of one
//! sample lie together in a plane; and the statistics of layer norms, whose rows are planes, too.
//!
//! Statistics are combined from blocks. Within a block the mean and the squared deviations are computed in
//! two passes over the first-level cache, and blocks are merged in 64 bits. So one pass over memory is as
//! accurate as two.

use scrimp_graph::Norm;

use super::passes::{Sums, map, zip};
use super::{Apply, Gradients, Line, elsewhere};
use crate::error::RunError;
use crate::kernels::activation::Activation;
use crate::kernels::reduce;
use crate::kernels::scratch::{self, Scratch};
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::wide;

const BLOCK: usize = 1024;

/// How a tensor is divided into planes. Statistics k belong to `planes` planes, each `apart` planes after the
/// one before.
#[derive(Clone, Copy)]
struct Geometry {
    norm: Norm,
    statistics: usize,
    planes: usize,
    apart: usize,
    /// Distance in planes between the first plane of k and that of k + 1.
    next: usize,
    plane: usize,
    /// Number of channels; 1 for a layer norm.
    channels: usize,
    samples: usize,
}

impl Geometry {
    fn new(norm: Norm, shape: &[usize]) -> Geometry {
        if let Norm::Layer { axis } = norm {
            let rows = shape[..axis].iter().product();
            return Geometry {
                norm,
                statistics: rows,
                planes: 1,
                apart: 0,
                next: 1,
                plane: shape[axis..].iter().product(),
                channels: 1,
                samples: rows,
            };
        }
        let (samples, channels) = (shape[0], shape[1]);
        let (statistics, planes, apart, next) = match norm {
            Norm::Group { groups } => (samples * groups, channels / groups, 1, channels / groups),
            Norm::Batch => (channels, samples, channels, 1),
            Norm::Instance | Norm::Layer { .. } => (samples * channels, 1, 0, 1),
        };
        Geometry {
            norm,
            statistics,
            planes,
            apart,
            next,
            plane: shape[2..].iter().product(),
            channels,
            samples,
        }
    }

    #[inline(always)]
    fn planes_of(&self, k: usize) -> impl Iterator<Item = usize> {
        let (first, apart) = (k * self.next, self.apart);
        (0..self.planes).map(move |i| first + i * apart)
    }

    /// Calls `f(k)` for each of the statistics, in parallel; `work` is the number of elements read for each.
    fn each(&self, slots: usize, f: impl Fn(usize) + Sync) {
        let work = (self.planes * self.plane).max(1);
        let slots = match self.statistics * work < par::SMALL {
            true => 1,
            false => slots,
        };
        let per_task = (4 * BLOCK / work).clamp(1, self.statistics);
        par::tasks(slots, self.statistics.div_ceil(per_task), &|_, task| {
            for k in task * per_task..((task + 1) * per_task).min(self.statistics) {
                f(k);
            }
        });
    }

    /// The statistics that plane n·C + c belongs to.
    fn statistics_of(&self, plane: usize) -> usize {
        match self.norm {
            Norm::Batch => plane % self.channels,
            Norm::Instance | Norm::Layer { .. } => plane,
            Norm::Group { .. } => plane / self.planes,
        }
    }

    /// Number of pairs of sums for the gradients of scale and shift: one per channel if its planes share
    /// statistics, otherwise one per plane.
    fn pairs(&self) -> usize {
        match self.norm {
            Norm::Batch => self.channels,
            _ => self.samples * self.channels,
        }
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
    /// The moments of the union of two disjoint sets.
    #[inline(always)]
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
    let mut all = start;
    for block in x.chunks(BLOCK) {
        let count = block.len() as f64;
        let mean = reduce::sum(block) / count;
        let middle = T::of(mean);
        let deviations = reduce::fold(
            block,
            block,
            #[inline(always)]
            |x, _| (x - middle) * (x - middle),
        );
        // The deviations are from `middle`, the rounded mean, not from `mean`.
        let rounding = mean - middle.f64();
        let deviations = (deviations - count * rounding * rounding).max(0.0);
        all = all.merge(Moments {
            count,
            mean,
            deviations,
        });
    }
    all
}

/// `x -> stats[2,K]`
pub fn stats<T: Real>(slots: usize, norm: Norm, shape: &[usize], x: &[T], stats: &mut [T]) {
    let g = Geometry::new(norm, shape);
    // The planes of a group are neighbours.
    let (planes, length) = match g.apart {
        1 => (1, g.planes * g.plane),
        _ => (g.planes, g.plane),
    };
    let (means, variances) = stats.split_at_mut(g.statistics);
    let (means, variances) = (Shared::new(means), Shared::new(variances));
    g.each(slots, |k| {
        let all = wide(
            #[inline(always)]
            || {
                let mut all = Moments::default();
                for plane in g.planes_of(k).take(planes) {
                    all = moments(&x[plane * g.plane..][..length], all);
                }
                all
            },
        );
        // SAFETY: each task has its own statistics.
        #[allow(unsafe_code, reason = "disjoint elements of two slices")]
        let (mean, variance) = unsafe { (means.piece(k, 1), variances.piece(k, 1)) };
        mean[0] = T::of(all.mean);
        variance[0] = T::of(all.deviations / all.count);
    });
}

/// `x, stats, scale, shift -> y`
pub fn apply<T: Real>(
    slots: usize,
    apply: Apply<'_, T>,
    f: impl Activation<T>,
) -> Result<(), RunError> {
    let g = Geometry::new(apply.norm, apply.shape);
    let (x, statistics) = (elsewhere(&apply.x), apply.statistics);
    par::rows(slots, apply.y, g.plane, g.plane, |plane, y| {
        let channel = plane % g.channels;
        let (scale, shift) = (apply.scale[channel], apply.shift[channel]);
        let line = Line::new(statistics, g.statistics_of(plane), scale, shift);
        let x = x.map(|x| &x[plane * g.plane..][..g.plane]);
        wide(
            #[inline(always)]
            || {
                map(
                    y,
                    x,
                    0..g.plane,
                    #[inline(always)]
                    |x, _| f.value(x * line.factor + line.offset),
                );
            },
        );
    });
    Ok(())
}

pub fn gradients_workspace(norm: Norm, shape: &[usize]) -> usize {
    scratch::bytes::<f64>(2 * Geometry::new(norm, shape).pairs())
}

/// Computes all gradients. One task has the planes of one statistic and goes over them twice.
pub fn gradients<T: Real>(
    slots: usize,
    gradients: Gradients<'_, T>,
    f: impl Activation<T>,
) -> Result<(), RunError> {
    let Gradients {
        norm,
        shape,
        x,
        dy,
        statistics,
        scale,
        shift,
        dx,
        dscale,
        dshift,
        workspace,
    } = gradients;
    let g = Geometry::new(norm, shape);
    let pairs = Scratch::new(workspace).take::<f64>(2 * g.pairs())?;
    let line = |k, channel| Gradients::line(statistics, [scale, shift], k, channel);
    let task = Planes {
        g,
        x: elsewhere(&x),
        dy: elsewhere(&dy),
        line,
        dx: dx.map(Shared::new),
        pairs: Shared::new(pairs),
        f,
    };
    g.each(slots, |k| {
        let inverse = statistics.inverse(k);
        wide(
            #[inline(always)]
            || task.run(k, inverse),
        );
    });
    for (channel, (dscale, dshift)) in dscale.iter_mut().zip(dshift).enumerate() {
        let (mut scale, mut shift) = (0.0, 0.0);
        for plane in (channel..g.pairs()).step_by(g.channels) {
            shift += pairs[2 * plane];
            scale += pairs[2 * plane + 1] * statistics.inverse(g.statistics_of(plane));
        }
        (*dscale, *dshift) = (T::of(scale), T::of(shift));
    }
    Ok(())
}

struct Planes<'a, T, L, F> {
    g: Geometry,
    /// `None` where x is in dx's memory.
    x: Option<&'a [T]>,
    dy: Option<&'a [T]>,
    /// The line for statistics k and a channel.
    line: L,
    dx: Option<Shared<'a, T>>,
    /// Pairs of Σ dz and Σ dz·(x − mean).
    pairs: Shared<'a, f64>,
    f: F,
}

impl<'a, T: Real, L: Fn(usize, usize) -> Line<T>, F: Activation<T>> Planes<'a, T, L, F> {
    /// The memory of dx in a plane; empty without dx.
    ///
    /// # Safety
    /// Each plane belongs to the task of its statistics, which takes one plane at a time.
    #[inline(always)]
    #[allow(unsafe_code, reason = "disjoint pieces of one slice")]
    unsafe fn own(&self, plane: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        self.dx.as_ref().map_or(&mut [], |dx| unsafe {
            dx.piece(plane * self.g.plane, self.g.plane)
        })
    }

    #[inline(always)]
    fn run(&self, k: usize, inverse: f64) {
        let (g, f) = (self.g, self.f);
        let range = |plane: usize| plane * g.plane..(plane + 1) * g.plane;
        let mut sums = Sums::new();
        // Sums of dz·scale and dz·scale·(x − mean); a batch norm leaves the scale out.
        let (mut sum, mut product) = (0.0, 0.0);
        let batch = g.norm == Norm::Batch;
        for plane in g.planes_of(k) {
            let line = (self.line)(k, plane % g.channels);
            // SAFETY: the plane belongs to this task, which holds no other slice of it here.
            #[allow(unsafe_code, reason = "disjoint pieces of one slice")]
            let own: &[T] = unsafe { self.own(plane) };
            let x = self.x.map_or(own, |x| &x[range(plane)]);
            let dy = self.dy.map_or(own, |dy| &dy[range(plane)]);
            sums.add(
                [x, dy],
                #[inline(always)]
                |[x, dy]| {
                    let dz = f.gradient(f.value(x * line.factor + line.offset), dy);
                    [dz, dz * (x - line.mean)]
                },
            );
            if !batch {
                let pair = self.keep(plane, &mut sums);
                let scale = line.scale.f64();
                sum += pair[0] * scale;
                product += pair[1] * scale;
            }
        }
        if batch {
            [sum, product] = self.keep(k, &mut sums);
        }
        if self.dx.is_none() {
            return;
        }
        let count = (g.planes * g.plane) as f64;
        for plane in g.planes_of(k) {
            let line = (self.line)(k, plane % g.channels);
            let outer = if batch { line.factor.f64() } else { inverse };
            let middle = T::of(outer * sum / count);
            let slope = T::of(outer * product * inverse * inverse / count);
            let x = self.x.map(|x| &x[range(plane)]);
            let dy = self.dy.map(|dy| &dy[range(plane)]);
            // SAFETY: as above.
            #[allow(unsafe_code, reason = "disjoint pieces of one slice")]
            let own = unsafe { self.own(plane) };
            zip(
                own,
                x,
                dy,
                0..g.plane,
                #[inline(always)]
                |x, dy, _| {
                    let dz = f.gradient(f.value(x * line.factor + line.offset), dy);
                    line.factor * dz - middle - (x - line.mean) * slope
                },
            );
        }
    }

    /// Stores the sums as a pair, and returns them.
    #[inline(always)]
    fn keep(&self, index: usize, sums: &mut Sums<T>) -> [f64; 2] {
        let pair = sums.take();
        // SAFETY: each pair belongs to one task.
        #[allow(unsafe_code, reason = "disjoint pieces of one slice")]
        unsafe { self.pairs.piece(2 * index, 2) }.copy_from_slice(&pair);
        pair
    }
}
