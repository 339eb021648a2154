//! Max and average pooling and their gradients. A task computes whole planes (one sample, one channel).

use scrimp_graph::Window;

use super::flat::{Bands, Flat, PlaneView, copy};
use super::scratch::{self, PerSlot, Scratch};
use super::windows::Windows;
use crate::args::{Args, Source};
use crate::error::RunError;
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::wide;

pub fn max_workspace<T: Real>(slots: usize, window: &Window, x: &[usize], y: &[usize]) -> usize {
    let bands = Windows::new(window, x, y).bands();
    PerSlot::<T>::bytes(slots, bands.source(window.stride).elements())
        + PerSlot::<T>::bytes(slots, bands.sweep(bands.rows))
}

/// `x -> y`
pub fn max<T: Real>(slots: usize, window: &Window, args: Args<'_>) -> Result<(), RunError> {
    let p = Windows::new(window, args.inputs.shape(0), args.outputs.shape(0));
    let (x, [y]) = (args.inputs.get::<T>(0)?, args.outputs.take::<T, _>()?);
    let bands = p.bands();
    let source = bands.source(window.stride);
    let mut scratch = Scratch::new(args.workspace);
    let sources = PerSlot::<T>::take(&mut scratch, slots, source.elements())?;
    let sweeps = PerSlot::<T>::take(&mut scratch, slots, bands.sweep(bands.rows))?;
    let count = y.len() / p.pixels().max(1);
    let y = Shared::new(y);
    par::ranges(slots, count, p.work(), &|slot, planes| {
        // SAFETY: each slot has its own scratch, each task its own planes.
        #[allow(unsafe_code, reason = "disjoint pieces of slices")]
        let (from, best, y) = unsafe {
            let (first, pixels) = (planes.start, p.pixels());
            (
                sources.of(slot),
                sweeps.of(slot),
                y.piece(first * pixels, planes.len() * pixels),
            )
        };
        from.fill(T::NEG_INFINITY);
        for (plane, y) in planes.zip(y.chunks_exact_mut(p.pixels())) {
            let x = &x[plane * p.plane()..(plane + 1) * p.plane()];
            for (o, y) in (0..p.oh)
                .step_by(bands.rows)
                .zip(y.chunks_mut(bands.rows * p.ow))
            {
                if bands.rows < p.oh {
                    from.fill(T::NEG_INFINITY);
                }
                let best = &mut best[..bands.sweep(bands.rows.min(p.oh - o))];
                wide(
                    #[inline(always)]
                    || {
                        source.read(x, p.inputs(o), from);
                        best.fill(T::NEG_INFINITY);
                        for tap in source.taps(window) {
                            for (best, &x) in best.iter_mut().zip(&from[tap..]) {
                                *best = larger(*best, x);
                            }
                        }
                        let lines = best.chunks_exact(bands.line);
                        for (y, best) in y.chunks_exact_mut(p.ow).zip(lines) {
                            copy(y, best);
                        }
                    },
                );
            }
        }
    });
    Ok(())
}

/// The larger of two numbers; NaN if either is NaN.
#[inline(always)]
fn larger<T: Real>(y: T, x: T) -> T {
    #[allow(clippy::eq_op, reason = "x != x says that x is NaN")]
    if x > y || x != x { x } else { y }
}

/// The bands of the maximum's gradient, and the layout of what they read and write. A line holds all elements
/// of an input row.
fn grad_bands(p: &Windows) -> (Bands, Flat) {
    let mut bands = p.bands();
    let columns = (p.window.pad_begin[1] + p.w).div_ceil(p.window.stride[1]);
    bands.line = bands.line.max(columns);
    (bands, bands.source(p.window.stride))
}

pub fn max_grad_workspace<T: Real>(
    slots: usize,
    window: &Window,
    x: &[usize],
    y: &[usize],
) -> usize {
    let (bands, flat) = grad_bands(&Windows::new(window, x, y));
    let sweep = bands.sweep(bands.rows);
    2 * PerSlot::<T>::bytes(slots, flat.elements()) + 3 * PerSlot::<T>::bytes(slots, sweep)
}

/// `x, dy -> dx`: each element of dy goes to the first largest element of its window. Where windows tile the
/// plane, dx may overwrite x.
pub fn max_grad<T: Real>(slots: usize, window: &Window, args: Args<'_>) -> Result<(), RunError> {
    let p = Windows::new(window, args.outputs.shape(0), args.inputs.shape(1));
    let (x, dy) = (args.inputs.source::<T>(0)?, args.inputs.get::<T>(1)?);
    let [dx] = args.outputs.take::<T, _>()?;
    if matches!(x, Source::InPlace) && !window.tiles() {
        args.inputs.get::<T>(0)?;
    }
    let (bands, flat) = grad_bands(&p);
    let sweep = bands.sweep(bands.rows);
    let mut scratch = Scratch::new(args.workspace);
    let sources = PerSlot::<T>::take(&mut scratch, slots, flat.elements())?;
    let grads = PerSlot::<T>::take(&mut scratch, slots, flat.elements())?;
    let sweeps = [(); 3].map(|()| PerSlot::<T>::take(&mut scratch, slots, sweep));
    let [bests, places, dys] = sweeps;
    let (bests, places, dys) = (bests?, places?, dys?);
    let count = dx.len() / p.plane().max(1);
    let dx = Shared::new(dx);
    par::ranges(slots, count, p.work(), &|slot, planes| {
        // SAFETY: each slot has its own scratch, each task its own planes.
        #[allow(unsafe_code, reason = "disjoint pieces of slices")]
        let (mut band, dx) = unsafe {
            let (first, plane) = (planes.start, p.plane());
            let band = Gradient {
                windows: &p,
                bands,
                flat,
                x: sources.of(slot),
                dx: grads.of(slot),
                best: bests.of(slot),
                place: places.of(slot),
                dy: dys.of(slot),
            };
            (band, dx.piece(first * plane, planes.len() * plane))
        };
        band.x.fill(T::NEG_INFINITY);
        band.dy.fill(T::ZERO);
        for (plane, dx) in planes.zip(dx.chunks_exact_mut(p.plane())) {
            let x = x.part(plane * p.plane()..(plane + 1) * p.plane());
            let dy = &dy[plane * p.pixels()..(plane + 1) * p.pixels()];
            wide(
                #[inline(always)]
                || band.plane(x, dy, dx),
            );
        }
    });
    Ok(())
}

struct Gradient<'a, T> {
    windows: &'a Windows,
    bands: Bands,
    flat: Flat,
    /// The band of x, with −∞ outside of the plane.
    x: &'a mut [T],
    /// The band of dx. Its last lines are the first lines of the next band.
    dx: &'a mut [T],
    /// Each output's largest element so far; `place` is its position in the window.
    best: &'a mut [T],
    place: &'a mut [T],
    dy: &'a mut [T],
}

/// The position that stands for no element of the window.
const NONE: f64 = -1.0;

impl<T: Real> Gradient<'_, T> {
    /// Computes one plane. If `x` is `None`, `dx` holds it.
    #[inline(always)]
    fn plane(&mut self, x: Option<&[T]>, dy: &[T], dx: &mut [T]) {
        let p = self.windows;
        let stride = p.window.stride[0];
        self.dx.fill(T::ZERO);
        let outputs = Flat {
            stride: [1, 1],
            ..self.flat
        };
        for o in (0..p.oh).step_by(self.bands.rows) {
            let rows = self.bands.rows.min(p.oh - o);
            if self.bands.rows < p.oh {
                self.x.fill(T::NEG_INFINITY);
                self.dy.fill(T::ZERO);
            }
            self.flat.read(x.unwrap_or(dx), p.inputs(o), self.x);
            let origin = [o as isize, 0];
            let size = [p.oh, p.ow];
            let outputs = Flat {
                lines: rows,
                ..outputs
            };
            outputs.read(dy, PlaneView { size, origin }, self.dy);
            let sweep = self.bands.sweep(rows);
            self.find(o, rows, sweep);
            for (number, tap) in self.flat.taps(&p.window).enumerate() {
                let number = T::of(number as f64);
                let from = self.place[..sweep].iter().zip(&self.dy[..sweep]);
                for (dx, (&place, &dy)) in self.dx[tap..tap + sweep].iter_mut().zip(from) {
                    *dx += if place == number { dy } else { T::ZERO };
                }
            }
            let last = o + rows == p.oh;
            let lines = if last {
                self.flat.lines.min(rows + self.bands.more)
            } else {
                rows
            };
            self.flat.write(self.dx, lines, p.inputs(o), dx);
            if last {
                let end = ((o + lines) * stride).saturating_sub(p.window.pad_begin[0]);
                dx[end.min(p.h) * p.w..].fill(T::ZERO);
            } else {
                self.flat.advance(self.dx, rows);
            }
        }
    }

    /// Finds the first largest element of each window in `rows` rows of outputs, from row `o` on.
    #[inline(always)]
    fn find(&mut self, o: usize, rows: usize, sweep: usize) {
        self.best[..sweep].fill(T::NEG_INFINITY);
        self.place[..sweep].fill(T::of(NONE));
        for (number, tap) in self.flat.taps(&self.windows.window).enumerate() {
            let number = T::of(number as f64);
            let outputs = self.best[..sweep].iter_mut().zip(&mut self.place[..sweep]);
            for ((best, place), &x) in outputs.zip(&self.x[tap..tap + sweep]) {
                #[allow(clippy::eq_op, reason = "x != x says that x is NaN")]
                let take = x > *best || x != x;
                *best = if take { x } else { *best };
                *place = if take { number } else { *place };
            }
        }
        // In a window with nothing above −∞, the first element that isn't padding counts.
        if self.place[..sweep]
            .iter()
            .fold(false, |any, &place| any | (place < T::ZERO))
        {
            self.find_infinite(o, rows);
        }
    }

    #[cold]
    fn find_infinite(&mut self, o: usize, rows: usize) {
        let p = self.windows;
        let width = p.window.kernel[1];
        let inside = |axis: usize, output: usize, length: usize| {
            let w = &p.window;
            (0..w.kernel[axis]).find(|k| {
                let at = output * w.stride[axis] + k * w.dilation[axis];
                at >= w.pad_begin[axis] && at < length + w.pad_begin[axis]
            })
        };
        for row in 0..rows {
            for column in 0..p.ow {
                let place = &mut self.place[row * self.bands.line + column];
                if *place < T::ZERO {
                    let first = (inside(0, o + row, p.h), inside(1, column, p.w));
                    if let (Some(y), Some(x)) = first {
                        *place = T::of((y * width + x) as f64);
                    }
                }
            }
        }
    }
}

/// The number by which an output's average divides, along one axis.
fn divisor(p: &Windows, axis: usize, count_pad: bool, o: usize) -> usize {
    let w = &p.window;
    let length = [p.h, p.w][axis];
    let within = |k: &usize| {
        let at = o * w.stride[axis] + k * w.dilation[axis];
        if count_pad {
            at < length + w.pad_begin[axis] + w.pad_end[axis]
        } else {
            at >= w.pad_begin[axis] && at < length + w.pad_begin[axis]
        }
    };
    (0..w.kernel[axis]).filter(within).count()
}

/// Scratch for the average's weights, which are 1, and for the number of elements of each column.
fn average_scratch<T: Real>(p: &Windows) -> usize {
    scratch::bytes::<T>(p.taps()) + scratch::bytes::<T>(p.ow)
}

pub fn average_workspace<T: Real>(
    slots: usize,
    window: &Window,
    x: &[usize],
    y: &[usize],
) -> usize {
    let p = Windows::new(window, x, y);
    average_scratch::<T>(&p) + p.sums_workspace::<T>(slots)
}

pub fn average_grad_workspace<T: Real>(
    slots: usize,
    window: &Window,
    x: &[usize],
    y: &[usize],
) -> usize {
    let p = Windows::new(window, x, y);
    average_scratch::<T>(&p) + p.spread_workspace::<T>(slots)
}

/// Weights of 1, and for each column the number of elements that an output averages.
fn average_parts<'s, T: Real>(
    p: &Windows,
    count_pad: bool,
    scratch: &mut Scratch<'s>,
) -> Result<(&'s [T], &'s [T]), RunError> {
    let (ones, columns) = (scratch.take::<T>(p.taps())?, scratch.take::<T>(p.ow)?);
    ones.fill(T::ONE);
    for (o, column) in columns.iter_mut().enumerate() {
        *column = T::of(divisor(p, 1, count_pad, o) as f64);
    }
    Ok((ones, columns))
}

/// `x -> y`
pub fn average<T: Real>(
    slots: usize,
    window: &Window,
    count_pad: bool,
    args: Args<'_>,
) -> Result<(), RunError> {
    let p = Windows::new(window, args.inputs.shape(0), args.outputs.shape(0));
    let [y] = args.outputs.take()?;
    let mut scratch = Scratch::new(args.workspace);
    let (ones, columns) = average_parts::<T>(&p, count_pad, &mut scratch)?;
    p.sums(
        slots,
        &mut scratch,
        args.inputs.get::<T>(0)?,
        |_| (ones, T::ZERO),
        |o, y| divide(&p, count_pad, o, columns, y),
        y,
    )
}

/// `dy -> dx`
pub fn average_grad<T: Real>(
    slots: usize,
    window: &Window,
    count_pad: bool,
    args: Args<'_>,
) -> Result<(), RunError> {
    let p = Windows::new(window, args.outputs.shape(0), args.inputs.shape(0));
    let [dx] = args.outputs.take()?;
    let mut scratch = Scratch::new(args.workspace);
    let (ones, columns) = average_parts::<T>(&p, count_pad, &mut scratch)?;
    p.spread(
        slots,
        &mut scratch,
        args.inputs.get::<T>(0)?,
        |_| ones,
        |o, dy| divide(&p, count_pad, o, columns, dy),
        dx,
    )
}

#[inline(always)]
fn divide<T: Real>(p: &Windows, count_pad: bool, o: usize, columns: &[T], row: &mut [T]) {
    let rows = T::of(divisor(p, 0, count_pad, o) as f64);
    for (y, &columns) in row.iter_mut().zip(columns) {
        *y = *y / (rows * columns);
    }
}
