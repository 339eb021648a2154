//! Max and average pooling and their gradients. A task has whole planes (one sample, one channel).

use scrimp_graph::Window;

use super::shape::dims;
use crate::arena::{Args, Source};
use crate::error::RunError;
use crate::par;
use crate::real::Real;
use crate::simd::wide;

/// Positions of a window along one axis: for kernel element `k`, output `o` reads `o·stride + shift`.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    stride: usize,
    /// k·dilation − padding
    shift: isize,
    /// The outputs whose input position lies inside: `[first, end)`.
    pub first: usize,
    pub end: usize,
}

impl Axis {
    /// Kernel element `k` along `axis`; lengths of input and output there.
    pub fn new(window: &Window, axis: usize, k: usize, input: usize, output: usize) -> Axis {
        let stride = window.stride[axis];
        let shift = (k * window.dilation[axis]) as isize - window.pad_begin[axis] as isize;
        let first = if shift < 0 {
            ((-shift) as usize).div_ceil(stride)
        } else {
            0
        };
        // o·stride + shift < input
        let room = input as isize - shift;
        let end = if room <= 0 {
            0
        } else {
            (room as usize).div_ceil(stride)
        };
        let end = end.min(output);
        Axis {
            stride,
            shift,
            first: first.min(end),
            end,
        }
    }

    /// The input position of output `o`, which must be in `[first, end)`.
    #[inline(always)]
    pub fn at(self, o: usize) -> usize {
        ((o * self.stride) as isize + self.shift) as usize
    }

    /// Whether output `o` reads inside.
    #[inline(always)]
    pub fn holds(self, o: usize) -> bool {
        (self.first..self.end).contains(&o)
    }
}

/// Sizes of one pooling.
#[derive(Clone, Copy)]
struct Planes {
    window: Window,
    h: usize,
    w: usize,
    oh: usize,
    ow: usize,
}

impl Planes {
    fn new(window: &Window, input: &[usize], output: &[usize]) -> Planes {
        let ([_, _, h, w], [_, _, oh, ow]) = (dims(input), dims(output));
        Planes {
            window: *window,
            h,
            w,
            oh,
            ow,
        }
    }

    fn row(&self, k: usize) -> Axis {
        Axis::new(&self.window, 0, k, self.h, self.oh)
    }

    fn column(&self, k: usize) -> Axis {
        Axis::new(&self.window, 1, k, self.w, self.ow)
    }

    fn work(&self) -> usize {
        self.oh * self.ow * self.window.kernel[0] * self.window.kernel[1]
    }

    /// Calls `f(input row, column axis)` for each kernel element that output row `o` reads.
    #[inline(always)]
    fn each(&self, o: usize, mut f: impl FnMut(usize, Axis)) {
        for kh in 0..self.window.kernel[0] {
            let row = self.row(kh);
            if row.holds(o) {
                for kw in 0..self.window.kernel[1] {
                    f(row.at(o), self.column(kw));
                }
            }
        }
    }
}

/// y[o] ← f(y[o], x[o·stride + shift]) over the outputs that read inside.
#[inline(always)]
pub(super) fn along<T: Real>(axis: Axis, y: &mut [T], x: &[T], f: impl Fn(T, T) -> T) {
    if axis.first >= axis.end {
        return;
    }
    let y = &mut y[axis.first..axis.end];
    let x = &x[axis.at(axis.first)..];
    match axis.stride {
        1 => {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = f(*y, x);
            }
        }
        2 => {
            // Constant step: the compiler turns it into shuffles.
            let (pairs, rest) = x.as_chunks::<2>();
            let whole = pairs.len().min(y.len());
            for (y, x) in y[..whole].iter_mut().zip(pairs) {
                *y = f(*y, x[0]);
            }
            for (y, &x) in y[whole..].iter_mut().zip(rest) {
                *y = f(*y, x);
            }
        }
        stride => {
            for (y, &x) in y.iter_mut().zip(x.iter().step_by(stride)) {
                *y = f(*y, x);
            }
        }
    }
}

/// dx[i·stride] += y[i]
#[inline(always)]
pub(super) fn spread<T: Real>(stride: usize, dx: &mut [T], y: &[T]) {
    spread_scaled(stride, dx, y, T::ONE);
}

/// dx[i·stride] += y[i]·w
#[inline(always)]
pub(super) fn spread_scaled<T: Real>(stride: usize, dx: &mut [T], y: &[T], w: T) {
    if stride == 1 {
        for (dx, &y) in dx.iter_mut().zip(y) {
            *dx += y * w;
        }
    } else {
        for (dx, &y) in dx.iter_mut().step_by(stride).zip(y) {
            *dx += y * w;
        }
    }
}

/// The larger of two, NaN if there is one.
#[inline(always)]
fn larger<T: Real>(y: T, x: T) -> T {
    #[allow(clippy::eq_op, reason = "x != x says that x is NaN")]
    if x > y || x != x { x } else { y }
}

#[inline(always)]
fn max_row<T: Real>(p: &Planes, o: usize, x: &[T], y: &mut [T]) {
    y.fill(T::NEG_INFINITY);
    p.each(o, |row, axis| {
        along(axis, y, &x[row * p.w..(row + 1) * p.w], larger)
    });
}

/// `x -> y`
pub fn max<T: Real>(slots: usize, window: &Window, args: &Args) -> Result<(), RunError> {
    let (x, y) = (args.input::<T>(0)?, args.output::<T>(0));
    let p = Planes::new(window, args.input_shape(0), args.output_shape(0));
    par::rows(slots, y, p.oh * p.ow, p.work(), |plane, y| {
        let x = &x[plane * p.h * p.w..(plane + 1) * p.h * p.w];
        wide(|| {
            for (o, y) in y.chunks_mut(p.ow).enumerate() {
                max_row(&p, o, x, y);
            }
        });
    });
    Ok(())
}

/// `x, dy -> dx`: dy goes to the first largest element of its window. Where windows tile the plane, dx
/// may overwrite x.
pub fn max_grad<T: Real>(slots: usize, window: &Window, args: &Args) -> Result<(), RunError> {
    let (x, dy, dx) = (
        args.source::<T>(0)?,
        args.input::<T>(1)?,
        args.output::<T>(0),
    );
    if matches!(x, Source::InPlace) && !window.tiles() {
        args.input::<T>(0)?;
    }
    let p = Planes::new(window, args.output_shape(0), args.input_shape(1));
    par::rows(slots, dx, p.h * p.w, p.work(), |plane, dx| {
        let dy = &dy[plane * p.oh * p.ow..(plane + 1) * p.oh * p.ow];
        if let Source::From(_) = x {
            dx.fill(T::ZERO);
        }
        for (o, dy) in dy.chunks(p.ow).enumerate() {
            for (left, dy) in (0..p.ow).step_by(BAND).zip(dy.chunks(BAND)) {
                let places = match x {
                    Source::From(x) => {
                        let x = &x[plane * p.h * p.w..(plane + 1) * p.h * p.w];
                        largest(&p, o, left, dy.len(), x)
                    }
                    Source::InPlace => {
                        let places = largest(&p, o, left, dy.len(), dx);
                        clear(&p, o, left, dy.len(), dx);
                        places
                    }
                };
                for (&place, &dy) in places.iter().zip(dy) {
                    dx[place as usize] += dy;
                }
            }
        }
        if let Source::InPlace = x {
            clear_rest(&p, dx);
        }
    });
    Ok(())
}

/// Outputs of a row whose maxima are found together.
const BAND: usize = 64;

/// Where the first largest elements of the windows of `count` outputs of row `o` are, from output
/// `left` on.
fn largest<T: Real>(p: &Planes, o: usize, left: usize, count: usize, x: &[T]) -> [u32; BAND] {
    let mut best = [T::NEG_INFINITY; BAND];
    // u32::MAX until an element inside has been seen.
    let mut place = [u32::MAX; BAND];
    wide(|| {
        p.each(o, |row, axis| {
            let first = axis.first.max(left);
            let end = axis.end.min(left + count);
            if first >= end {
                return;
            }
            let at = row * p.w + axis.at(first);
            let best = &mut best[first - left..end - left];
            let place = &mut place[first - left..end - left];
            for (i, (best, place)) in best.iter_mut().zip(place).enumerate() {
                let from = at + i * axis.stride;
                let x = x[from];
                #[allow(clippy::eq_op, reason = "x != x says that x is NaN")]
                let take = x > *best || x != x || *place == u32::MAX;
                *best = if take { x } else { *best };
                *place = if take { from as u32 } else { *place };
            }
        });
    });
    place
}

/// Zeroes the windows of `count` outputs of row `o` from output `left` on.
fn clear<T: Real>(p: &Planes, o: usize, left: usize, count: usize, dx: &mut [T]) {
    p.each(o, |row, axis| {
        for output in axis.first.max(left)..axis.end.min(left + count) {
            dx[row * p.w + axis.at(output)] = T::ZERO;
        }
    });
}

/// Zeroes what lies behind the last windows of tiles.
fn clear_rest<T: Real>(p: &Planes, dx: &mut [T]) {
    let behind = |axis: usize, outputs: usize, length: usize| {
        (outputs * p.window.stride[axis])
            .saturating_sub(p.window.pad_begin[axis])
            .min(length)
    };
    let (rows, columns) = (behind(0, p.oh, p.h), behind(1, p.ow, p.w));
    for row in dx[..rows * p.w].chunks_mut(p.w) {
        row[columns..].fill(T::ZERO);
    }
    dx[rows * p.w..].fill(T::ZERO);
}

/// Number of elements that average-pooling output (o, column) divides by.
fn divisor(p: &Planes, count_pad: bool, o: usize, column: usize) -> usize {
    let within = |axis: usize, o: usize, length: usize| {
        let w = &p.window;
        (0..w.kernel[axis])
            .filter(|k| {
                let at = o * w.stride[axis] + k * w.dilation[axis];
                if count_pad {
                    at < length + w.pad_begin[axis] + w.pad_end[axis]
                } else {
                    at >= w.pad_begin[axis] && at < length + w.pad_begin[axis]
                }
            })
            .count()
    };
    within(0, o, p.h) * within(1, column, p.w)
}

/// `x -> y`
pub fn average<T: Real>(
    slots: usize,
    window: &Window,
    count_pad: bool,
    args: &Args,
) -> Result<(), RunError> {
    let (x, y) = (args.input::<T>(0)?, args.output::<T>(0));
    let p = Planes::new(window, args.input_shape(0), args.output_shape(0));
    par::rows(slots, y, p.oh * p.ow, p.work(), |plane, y| {
        let x = &x[plane * p.h * p.w..(plane + 1) * p.h * p.w];
        for (o, y) in y.chunks_mut(p.ow).enumerate() {
            y.fill(T::ZERO);
            wide(|| {
                p.each(o, |row, axis| {
                    along(axis, y, &x[row * p.w..(row + 1) * p.w], |y, x| y + x)
                });
            });
            for (column, y) in y.iter_mut().enumerate() {
                *y = *y / T::of(divisor(&p, count_pad, o, column) as f64);
            }
        }
    });
    Ok(())
}

/// `dy -> dx`
pub fn average_grad<T: Real>(
    slots: usize,
    window: &Window,
    count_pad: bool,
    args: &Args,
) -> Result<(), RunError> {
    let (dy, dx) = (args.input::<T>(0)?, args.output::<T>(0));
    let p = Planes::new(window, args.output_shape(0), args.input_shape(0));
    par::rows(slots, dx, p.h * p.w, p.work(), |plane, dx| {
        let dy = &dy[plane * p.oh * p.ow..(plane + 1) * p.oh * p.ow];
        dx.fill(T::ZERO);
        for (o, dy) in dy.chunks(p.ow).enumerate() {
            for (left, dy) in (0..p.ow).step_by(BAND).zip(dy.chunks(BAND)) {
                let mut shares = [T::ZERO; BAND];
                for (i, (share, &dy)) in shares.iter_mut().zip(dy).enumerate() {
                    *share = dy / T::of(divisor(&p, count_pad, o, left + i) as f64);
                }
                p.each(o, |row, axis| {
                    let dx = &mut dx[row * p.w..(row + 1) * p.w];
                    for o in axis.first.max(left)..axis.end.min(left + dy.len()) {
                        dx[axis.at(o)] += shares[o - left];
                    }
                });
            }
        }
    });
    Ok(())
}
