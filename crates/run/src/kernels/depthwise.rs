//! Depthwise convolutions by direct loops over rows: too little arithmetic for a matrix product.

use super::conv::Conv;
use super::pool::{self, Axis};
use super::reduce;
use crate::par;
use crate::real::Real;
use crate::simd::wide;

impl Conv {
    fn row_axis(&self, tap: usize) -> Axis {
        Axis::new(
            &self.window,
            0,
            tap / self.window.kernel[1],
            self.h,
            self.oh,
        )
    }

    fn column_axis(&self, tap: usize) -> Axis {
        Axis::new(
            &self.window,
            1,
            tap % self.window.kernel[1],
            self.w,
            self.ow,
        )
    }
}

pub(super) fn forward<T: Real>(
    slots: usize,
    conv: &Conv,
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
    y: &mut [T],
) {
    let taps = conv.taps();
    par::rows(slots, y, conv.pixels(), conv.pixels() * taps, |plane, y| {
        let c = plane % conv.c;
        let x = &x[plane * conv.h * conv.w..(plane + 1) * conv.h * conv.w];
        let w = &w[c * taps..(c + 1) * taps];
        y.fill(bias.map_or(T::ZERO, |bias| bias[c]));
        wide(|| {
            for (o, y) in y.chunks_mut(conv.ow).enumerate() {
                for (tap, &w) in w.iter().enumerate() {
                    let rows = conv.row_axis(tap);
                    if rows.holds(o) {
                        let x = &x[rows.at(o) * conv.w..(rows.at(o) + 1) * conv.w];
                        pool::along(conv.column_axis(tap), y, x, |y, x| y + w * x);
                    }
                }
            }
        });
    });
}

pub(super) fn input_grad<T: Real>(slots: usize, conv: &Conv, dy: &[T], w: &[T], dx: &mut [T]) {
    let taps = conv.taps();
    par::rows(
        slots,
        dx,
        conv.h * conv.w,
        conv.pixels() * taps,
        |plane, dx| {
            let c = plane % conv.c;
            let dy = &dy[plane * conv.pixels()..(plane + 1) * conv.pixels()];
            let w = &w[c * taps..(c + 1) * taps];
            dx.fill(T::ZERO);
            wide(|| {
                for (o, dy) in dy.chunks(conv.ow).enumerate() {
                    for (tap, &w) in w.iter().enumerate() {
                        let (rows, cells) = (conv.row_axis(tap), conv.column_axis(tap));
                        if rows.holds(o) && cells.first < cells.end {
                            let at = rows.at(o) * conv.w;
                            let dx = &mut dx[at + cells.at(cells.first)..at + conv.w];
                            pool::spread_scaled(
                                conv.window.stride[1],
                                dx,
                                &dy[cells.first..cells.end],
                                w,
                            );
                        }
                    }
                }
            });
        },
    );
}

pub(super) fn weight_grad<T: Real>(slots: usize, conv: &Conv, x: &[T], dy: &[T], dw: &mut [T]) {
    let taps = conv.taps();
    par::rows(slots, dw, taps, conv.n * conv.pixels() * taps, |c, dw| {
        for (tap, dw) in dw.iter_mut().enumerate() {
            let (rows, cells) = (conv.row_axis(tap), conv.column_axis(tap));
            let mut total = 0.0;
            if cells.first >= cells.end {
                *dw = T::ZERO;
                continue;
            }
            wide(|| {
                for n in 0..conv.n {
                    let plane = n * conv.c + c;
                    for o in rows.first..rows.end {
                        let at = (plane * conv.h + rows.at(o)) * conv.w;
                        let x = &x[at + cells.at(cells.first)..at + conv.w];
                        let at = (plane * conv.oh + o) * conv.ow;
                        let dy = &dy[at + cells.first..at + cells.end];
                        total += products(x, conv.window.stride[1], dy);
                    }
                }
            });
            *dw = T::of(total);
        }
    });
}

/// Σ x[i·stride]·dy[i]
#[inline(always)]
fn products<T: Real>(x: &[T], stride: usize, dy: &[T]) -> f64 {
    if stride == 1 {
        return reduce::dot(&x[..dy.len()], dy);
    }
    let mut lanes = [T::ZERO; 8];
    for (i, (&x, &dy)) in x.iter().step_by(stride).zip(dy).enumerate() {
        lanes[i % 8] += x * dy;
    }
    lanes.iter().map(|lane| lane.f64()).sum()
}
