//! Sums under a window that sweeps over each plane of a tensor separately, and the gradients of such sums:
//! depthwise convolutions and average poolings.

#![allow(unsafe_code, reason = "threads write disjoint planes of one slice")]

use scrimp_graph::Window;

use super::flat::{Bands, Flat, LANES, PlaneView, Products, Stencil};
use super::scratch::{self, PerSlot, Scratch};
use super::shape::dims;
use crate::error::RunError;
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::{vectors, wide};

/// A window on planes of one size: `h`×`w` inputs, `oh`×`ow` outputs.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    pub window: Window,
    pub h: usize,
    pub w: usize,
    pub oh: usize,
    pub ow: usize,
}

impl Windows {
    pub fn new(window: &Window, input: &[usize], output: &[usize]) -> Windows {
        let ([_, _, h, w], [_, _, oh, ow]) = (dims(input), dims(output));
        Windows {
            window: *window,
            h,
            w,
            oh,
            ow,
        }
    }

    pub fn plane(&self) -> usize {
        self.h * self.w
    }

    pub fn pixels(&self) -> usize {
        self.oh * self.ow
    }

    pub fn taps(&self) -> usize {
        self.window.kernel[0] * self.window.kernel[1]
    }

    /// Elements that a plane's computation touches, which decides how planes are shared among threads.
    pub fn work(&self) -> usize {
        self.plane() + self.pixels()
    }

    /// The part of the input that a band starting with output row `o` reads.
    pub fn inputs(&self, o: usize) -> PlaneView {
        let pad = self.window.pad_begin;
        PlaneView {
            size: [self.h, self.w],
            origin: [
                (o * self.window.stride[0]) as isize - pad[0] as isize,
                -(pad[1] as isize),
            ],
        }
    }

    pub fn bands(&self) -> Bands {
        Bands::new(&self.window, self.oh, self.ow)
    }

    pub fn sums_workspace<T: Real>(&self, slots: usize) -> usize {
        let bands = self.bands();
        let source = bands.source(self.window.stride);
        scratch::bytes::<u32>(self.taps())
            + PerSlot::<T>::bytes(slots, source.elements())
            + PerSlot::<T>::bytes(slots, bands.sweep(bands.rows))
    }

    /// y ← start + Σ weight·x under the window, with (weights, start) of each plane; then calls
    /// `finish(output row, elements)`.
    pub fn sums<'w, T: Real>(
        &self,
        slots: usize,
        scratch: &mut Scratch<'_>,
        x: &[T],
        weights: impl Fn(usize) -> (&'w [T], T) + Sync,
        finish: impl Fn(usize, &mut [T]) + Sync,
        y: &mut [T],
    ) -> Result<(), RunError> {
        let bands = self.bands();
        let source = bands.source(self.window.stride);
        let taps = self.list_taps(&source, scratch)?;
        let sources = PerSlot::<T>::take(scratch, slots, source.elements())?;
        let sweeps = PerSlot::<T>::take(scratch, slots, bands.sweep(bands.rows))?;
        let count = y.len() / self.pixels().max(1);
        let y = Shared::new(y);
        par::ranges(slots, count, self.work(), &|slot, planes| {
            // SAFETY: each slot has its own scratch, each task its own planes.
            let (from, out, y) = unsafe {
                let (first, pixels) = (planes.start, self.pixels());
                (
                    sources.of(slot),
                    sweeps.of(slot),
                    y.piece(first * pixels, planes.len() * pixels),
                )
            };
            from.fill(T::ZERO);
            for (plane, y) in planes.zip(y.chunks_exact_mut(self.pixels())) {
                let (weights, start) = weights(plane);
                let x = &x[plane * self.plane()..(plane + 1) * self.plane()];
                for (o, y) in (0..self.oh)
                    .step_by(bands.rows)
                    .zip(y.chunks_mut(bands.rows * self.ow))
                {
                    if bands.rows < self.oh {
                        from.fill(T::ZERO);
                    }
                    let rows = bands.rows.min(self.oh - o);
                    let out = &mut out[..bands.sweep(rows)];
                    wide(
                        #[inline(always)]
                        || source.read(x, self.inputs(o), from),
                    );
                    vectors(Stencil {
                        source: from,
                        taps,
                        weights,
                        start,
                        out,
                    });
                    wide(
                        #[inline(always)]
                        || {
                            let lines = out.chunks_exact(bands.line);
                            for (row, (y, sums)) in
                                y.chunks_exact_mut(self.ow).zip(lines).enumerate()
                            {
                                super::flat::copy(y, sums);
                                finish(o + row, y);
                            }
                        },
                    );
                }
            }
        });
        Ok(())
    }

    fn list_taps<'s>(
        &self,
        source: &Flat,
        scratch: &mut Scratch<'s>,
    ) -> Result<&'s [u32], RunError> {
        let taps = scratch.take::<u32>(self.taps())?;
        for (to, tap) in taps.iter_mut().zip(source.taps(&self.window)) {
            *to = tap as u32;
        }
        Ok(taps)
    }

    /// The bands of the gradient, what they read and what they write. A band covers padded rows of dx,
    /// `stride` of them at a time, and reads the outputs whose windows contain these rows.
    fn turned(&self) -> (Bands, Flat, Flat) {
        let [down, right] = self.window.stride;
        let [top, left] = self.window.pad_begin;
        let bands = Bands::new(
            &self.window,
            (top + self.h).div_ceil(down),
            (left + self.w).div_ceil(right),
        );
        let written = Flat {
            stride: [down, right],
            lines: bands.rows,
            line: bands.line,
        };
        (bands, bands.source([1, 1]), written)
    }

    pub fn spread_workspace<T: Real>(&self, slots: usize) -> usize {
        let (_, source, written) = self.turned();
        2 * scratch::bytes::<u32>(self.taps())
            + PerSlot::<T>::bytes(slots, source.elements())
            + PerSlot::<T>::bytes(slots, written.elements())
            + PerSlot::<T>::bytes(slots, self.taps())
    }

    /// dx ← Σ weight·dy over the windows that contain an element, with the weights of each plane. Before
    /// that, calls `prepare(output row, elements)` on a copy of dy's rows.
    pub fn spread<'w, T: Real>(
        &self,
        slots: usize,
        scratch: &mut Scratch<'_>,
        dy: &[T],
        weights: impl Fn(usize) -> &'w [T] + Sync,
        prepare: impl Fn(usize, &mut [T]) + Sync,
        dx: &mut [T],
    ) -> Result<(), RunError> {
        let (bands, source, written) = self.turned();
        let [down, right] = self.window.stride;
        // The window's elements, sorted by the phase that they touch, and where their outputs are.
        let order = scratch.take::<u32>(self.taps())?;
        let taps = scratch.take::<u32>(self.taps())?;
        self.list_turned(&source, order, taps);
        let (order, taps) = (&*order, &*taps);
        let sources = PerSlot::<T>::take(scratch, slots, source.elements())?;
        let outs = PerSlot::<T>::take(scratch, slots, written.elements())?;
        let ordered = PerSlot::<T>::take(scratch, slots, self.taps())?;
        let [top, left] = self.window.pad_begin;
        let padded = (top + self.h).div_ceil(down);
        let back = bands.line - (left + self.w).div_ceil(right);
        let count = dx.len() / self.plane().max(1);
        let dx = Shared::new(dx);
        par::ranges(slots, count, self.work(), &|slot, planes| {
            // SAFETY: each slot has its own scratch, each task its own planes.
            let (from, out, weight, dx) = unsafe {
                let (first, plane) = (planes.start, self.plane());
                (
                    sources.of(slot),
                    outs.of(slot),
                    ordered.of(slot),
                    dx.piece(first * plane, planes.len() * plane),
                )
            };
            from.fill(T::ZERO);
            for (plane, dx) in planes.zip(dx.chunks_exact_mut(self.plane())) {
                let weights = weights(plane);
                for (to, &tap) in weight.iter_mut().zip(order) {
                    *to = weights[tap as usize];
                }
                let dy = &dy[plane * self.pixels()..(plane + 1) * self.pixels()];
                for first in (0..padded).step_by(bands.rows) {
                    if bands.rows < padded {
                        from.fill(T::ZERO);
                    }
                    let rows = bands.rows.min(padded - first);
                    let place = PlaneView {
                        size: [self.oh, self.ow],
                        origin: [first as isize - bands.more as isize, -(back as isize)],
                    };
                    wide(
                        #[inline(always)]
                        || {
                            source.read(dy, place, from);
                            let end = (back + self.ow).min(source.line);
                            let lines = from.chunks_exact_mut(source.line).take(source.lines);
                            for (o, line) in (place.origin[0]..).zip(lines) {
                                if o >= 0 && (o as usize) < self.oh {
                                    prepare(o as usize, &mut line[back..end]);
                                }
                            }
                        },
                    );
                    let mut done = 0;
                    for phase in 0..down * right {
                        let count =
                            self.in_phase(0, phase / right) * self.in_phase(1, phase % right);
                        let at = written.at(phase / right, phase % right);
                        vectors(Stencil {
                            source: from,
                            taps: &taps[done..done + count],
                            weights: &weight[done..done + count],
                            start: T::ZERO,
                            out: &mut out[at..at + bands.sweep(rows)],
                        });
                        done += count;
                    }
                    wide(
                        #[inline(always)]
                        || written.write(out, rows, self.inputs(first), dx),
                    );
                }
            }
        });
        Ok(())
    }

    /// Number of the window's elements along `axis` that touch a phase.
    fn in_phase(&self, axis: usize, phase: usize) -> usize {
        let (stride, dilation) = (self.window.stride[axis], self.window.dilation[axis]);
        (0..self.window.kernel[axis])
            .filter(|k| k * dilation % stride == phase)
            .count()
    }

    fn list_turned(&self, source: &Flat, order: &mut [u32], taps: &mut [u32]) {
        let [down, right] = self.window.stride;
        let [height, width] = self.window.kernel;
        let [dh, dw] = self.window.dilation;
        let (last, farthest) = ((height - 1) * dh / down, (width - 1) * dw / right);
        let mut lists = order.iter_mut().zip(taps);
        for phase in 0..down * right {
            for tap in 0..height * width {
                let (y, x) = (tap / width * dh, tap % width * dw);
                if (y % down, x % right) != (phase / right, phase % right) {
                    continue;
                }
                if let Some((order, to)) = lists.next() {
                    *order = tap as u32;
                    *to = ((last - y / down) * source.line + farthest - x / right) as u32;
                }
            }
        }
    }

    pub fn products_workspace<T: Real>(&self, slots: usize) -> usize {
        let bands = self.bands();
        scratch::bytes::<u32>(self.taps())
            + PerSlot::<T>::bytes(slots, bands.source(self.window.stride).elements())
            + PerSlot::<T>::bytes(slots, bands.sweep(bands.rows))
            + PerSlot::<T>::bytes(slots, self.taps() * LANES)
            + PerSlot::<f64>::bytes(slots, self.taps())
    }

    /// The gradient of [`Windows::sums`] with respect to weights that are shared by all planes whose distance
    /// is a multiple of `channels`: dw[channel, tap] ← dw[channel, tap] + Σ x·dy.
    pub fn products<T: Real>(
        &self,
        slots: usize,
        scratch: &mut Scratch<'_>,
        channels: usize,
        (x, dy): (&[T], &[T]),
        dw: &mut [T],
    ) -> Result<(), RunError> {
        /// The most numbers that a lane adds before its sum is added in 64 bits.
        const MOST: usize = 256;
        let bands = self.bands();
        let source = bands.source(self.window.stride);
        let taps = self.list_taps(&source, scratch)?;
        let sources = PerSlot::<T>::take(scratch, slots, source.elements())?;
        let grads = PerSlot::<T>::take(scratch, slots, bands.sweep(bands.rows))?;
        let lanes = PerSlot::<T>::take(scratch, slots, self.taps() * LANES)?;
        let totals = PerSlot::<f64>::take(scratch, slots, self.taps())?;
        let outputs = Flat {
            stride: [1, 1],
            lines: bands.rows,
            line: bands.line,
        };
        let samples = dy.len() / (channels * self.pixels()).max(1);
        let dw = Shared::new(dw);
        par::ranges(slots, channels, samples * self.work(), &|slot, range| {
            // SAFETY: each slot has its own scratch, each task its own channels.
            let (from, grad, lanes, totals, dw) = unsafe {
                let (first, taps) = (range.start, self.taps());
                (
                    sources.of(slot),
                    grads.of(slot),
                    lanes.of(slot),
                    totals.of(slot),
                    dw.piece(first * taps, range.len() * taps),
                )
            };
            from.fill(T::ZERO);
            grad.fill(T::ZERO);
            for (channel, dw) in range.zip(dw.chunks_exact_mut(self.taps())) {
                totals.fill(0.0);
                lanes.fill(T::ZERO);
                let mut added = 0;
                for sample in 0..samples {
                    let plane = sample * channels + channel;
                    let x = &x[plane * self.plane()..(plane + 1) * self.plane()];
                    let dy = &dy[plane * self.pixels()..(plane + 1) * self.pixels()];
                    for o in (0..self.oh).step_by(bands.rows) {
                        if bands.rows < self.oh {
                            from.fill(T::ZERO);
                            grad.fill(T::ZERO);
                        }
                        let rows = bands.rows.min(self.oh - o);
                        let place = PlaneView {
                            size: [self.oh, self.ow],
                            origin: [o as isize, 0],
                        };
                        wide(
                            #[inline(always)]
                            || {
                                source.read(x, self.inputs(o), from);
                                outputs.read(dy, place, grad);
                            },
                        );
                        let length = bands.sweep(rows);
                        vectors(Products {
                            source: from,
                            taps,
                            y: &grad[..length],
                            sums: lanes,
                        });
                        added += length / 8;
                        if added + bands.sweep(bands.rows) / 8 > MOST {
                            added = 0;
                            empty(lanes, totals);
                        }
                    }
                }
                empty(lanes, totals);
                for (dw, &total) in dw.iter_mut().zip(&*totals) {
                    *dw += T::of(total);
                }
            }
        });
        Ok(())
    }
}

fn empty<T: Real>(lanes: &mut [T], totals: &mut [f64]) {
    for (lanes, total) in lanes.chunks_exact_mut(LANES).zip(totals) {
        *total += lanes.iter().map(|lane| lane.f64()).sum::<f64>();
        lanes.fill(T::ZERO);
    }
}
