//! Sums and means over axes, with 64-bit accumulation and a fixed order of additions.

use scrimp_graph::shape::MAX_RANK;

use super::strides::contiguous;
use crate::arena::Args;
use crate::error::RunError;
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::wide;

/// Columns that one task sums at a time.
const COLUMNS: usize = 64;

/// Rows added in the type itself before the sums go into 64 bits.
const ROWS: usize = 64;

/// Elements summed in the type itself, lane by lane, before the sums go into 64 bits.
const BLOCK: usize = 2048;

/// Sums that are made side by side: enough that additions needn't wait for each other.
const LANES: usize = 64;

/// Σ x. A block's lanes are added by halves, blocks in 64 bits.
#[inline(always)]
pub fn sum<T: Real>(x: &[T]) -> f64 {
    fold(x, x, |x, _| x)
}

/// Σ x·y
#[inline(always)]
pub fn dot<T: Real>(x: &[T], y: &[T]) -> f64 {
    fold(x, y, |x, y| x * y)
}

/// Σ f(x, y) over two slices of the same length.
#[inline(always)]
pub fn fold<T: Real>(x: &[T], y: &[T], f: impl Fn(T, T) -> T) -> f64 {
    let mut total = 0.0;
    for (x, y) in x.chunks(BLOCK).zip(y.chunks(BLOCK)) {
        let mut lanes = [T::ZERO; LANES];
        let (x, x_rest) = x.as_chunks::<LANES>();
        let (y, y_rest) = y.as_chunks::<LANES>();
        for (x, y) in x.iter().zip(y) {
            for lane in 0..LANES {
                lanes[lane] += f(x[lane], y[lane]);
            }
        }
        for (lane, (&x, &y)) in lanes.iter_mut().zip(x_rest.iter().zip(y_rest)) {
            *lane += f(x, y);
        }
        total += add_lanes(lanes);
    }
    total
}

#[inline(always)]
fn add_lanes<T: Real>(mut lanes: [T; LANES]) -> f64 {
    // Constant lengths, so that the loops become single instructions.
    macro_rules! halve {
        ($($width:literal)*) => {
            $(for i in 0..$width {
                let high = lanes[i + $width];
                lanes[i] += high;
            })*
        };
    }
    halve!(32 16 8 4);
    lanes[..4].iter().map(|lane| lane.f64()).sum()
}

/// Σ y·s and Σ (x − mean)·y·s over slices of the same length.
#[inline(always)]
pub fn scaled_sums<T: Real>(x: &[T], y: &[T], s: &[T], mean: T) -> (f64, f64) {
    let (mut sum, mut product) = (0.0, 0.0);
    for ((x, y), s) in x.chunks(BLOCK).zip(y.chunks(BLOCK)).zip(s.chunks(BLOCK)) {
        let (mut sums, mut products) = ([T::ZERO; LANES], [T::ZERO; LANES]);
        let chunks = x.chunks(LANES).zip(y.chunks(LANES)).zip(s.chunks(LANES));
        for ((x, y), s) in chunks {
            let lanes = sums.iter_mut().zip(&mut products);
            for ((((sum, product), &x), &y), &s) in lanes.zip(x).zip(y).zip(s) {
                let scaled = y * s;
                *sum += scaled;
                *product += (x - mean) * scaled;
            }
        }
        sum += add_lanes(sums);
        product += add_lanes(products);
    }
    (sum, product)
}

/// The axes of x split into those that stay and those that are summed, neighbours of a kind merged.
struct Axes {
    kept: Walk,
    summed: Walk,
}

/// A nest of loops: lengths and steps, outermost first.
#[derive(Clone, Copy)]
struct Walk {
    rank: usize,
    lengths: [usize; MAX_RANK],
    steps: [usize; MAX_RANK],
}

impl Walk {
    const NONE: Walk = Walk {
        rank: 0,
        lengths: [1; MAX_RANK],
        steps: [0; MAX_RANK],
    };

    fn push(&mut self, length: usize, step: usize) {
        if self.rank > 0 && self.steps[self.rank - 1] == step * length {
            self.lengths[self.rank - 1] *= length;
            self.steps[self.rank - 1] = step;
        } else {
            self.lengths[self.rank] = length;
            self.steps[self.rank] = step;
            self.rank += 1;
        }
    }

    /// Removes the innermost loop and returns its length if it walks neighbouring elements.
    fn take_row(&mut self) -> usize {
        if self.rank == 0 || self.steps[self.rank - 1] != 1 {
            return 1;
        }
        self.rank -= 1;
        self.lengths[self.rank]
    }

    fn count(&self) -> usize {
        self.lengths[..self.rank].iter().product()
    }

    fn offset(&self, mut index: usize) -> usize {
        let mut at = 0;
        for axis in (0..self.rank).rev() {
            at += index % self.lengths[axis] * self.steps[axis];
            index /= self.lengths[axis];
        }
        at
    }
}

impl Axes {
    fn new(shape: &[usize], is_summed: impl Fn(usize) -> bool) -> Axes {
        let steps = contiguous(shape);
        let mut axes = Axes {
            kept: Walk::NONE,
            summed: Walk::NONE,
        };
        for (axis, &length) in shape.iter().enumerate() {
            if length > 1 {
                let walk = if is_summed(axis) {
                    &mut axes.summed
                } else {
                    &mut axes.kept
                };
                walk.push(length, steps[axis]);
            }
        }
        axes
    }
}

/// `x -> y`: sums over `axes`, times 1/count for a mean.
pub fn reduce<T: Real>(
    slots: usize,
    axes: &[usize],
    mean: bool,
    args: &Args,
) -> Result<(), RunError> {
    let shape = args.input_shape(0);
    let count: usize = axes.iter().map(|&axis| shape[axis]).product();
    let scale = if mean { 1.0 / count as f64 } else { 1.0 };
    let axes = Axes::new(shape, |axis| axes.contains(&axis));
    sum_axes(slots, &axes, scale, args.input::<T>(0)?, args.output(0));
    Ok(())
}

/// `x -> y`: sums what broadcasting y's shape to x's had copied.
pub fn sum_to<T: Real>(slots: usize, args: &Args) -> Result<(), RunError> {
    let (from, to) = (args.input_shape(0), args.output_shape(0));
    let missing = from.len() - to.len();
    let axes = Axes::new(from, |axis| axis < missing || to[axis - missing] == 1);
    sum_axes(slots, &axes, 1.0, args.input::<T>(0)?, args.output(0));
    Ok(())
}

fn sum_axes<T: Real>(slots: usize, axes: &Axes, scale: f64, x: &[T], y: &mut [T]) {
    let (mut kept, mut summed) = (axes.kept, axes.summed);
    let columns = kept.take_row();
    let row = if columns == 1 { summed.take_row() } else { 1 };
    let work = x.len() / y.len();
    if columns == 1 {
        // Each output is a sum of rows.
        par::rows(slots, y, 1, work, |index, y| {
            let base = kept.offset(index);
            let mut total = 0.0;
            for i in 0..summed.count() {
                let at = base + summed.offset(i);
                total += if row == 1 {
                    x[at].f64()
                } else {
                    wide(|| sum(&x[at..at + row]))
                };
            }
            y[0] = T::of(total * scale);
        });
        return;
    }
    // Rows are added to each other, a few columns at a time.
    let blocks = columns.div_ceil(COLUMNS);
    let slots = if x.len() < par::SMALL { 1 } else { slots };
    let y = Shared::new(y);
    par::tasks(slots, kept.count() * blocks, &|_, task| {
        let (outer, block) = (task / blocks, task % blocks);
        let base = kept.offset(outer);
        let first = block * COLUMNS;
        let width = COLUMNS.min(columns - first);
        let mut totals = [0.0; COLUMNS];
        wide(|| {
            let count = summed.count();
            for start in (0..count).step_by(ROWS) {
                let mut part = [T::ZERO; COLUMNS];
                for i in start..(start + ROWS).min(count) {
                    let at = base + first + summed.offset(i);
                    for (part, &x) in part.iter_mut().zip(&x[at..at + width]) {
                        *part += x;
                    }
                }
                for (total, part) in totals.iter_mut().zip(part) {
                    *total += part.f64();
                }
            }
        });
        // SAFETY: each task has its own block of columns.
        #[allow(unsafe_code, reason = "disjoint blocks of one slice")]
        let y = unsafe { y.piece(outer * columns + first, width) };
        for (y, total) in y.iter_mut().zip(totals) {
            *y = T::of(total * scale);
        }
    });
}
