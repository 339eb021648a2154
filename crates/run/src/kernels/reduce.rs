//! Sums and means over axes, with 64-bit accumulation and a fixed order of additions.

#![allow(unsafe_code, reason = "vectors are loaded through pointers")]

use scrimp_graph::shape::MAX_RANK;

use super::strides::contiguous;
use crate::args::Args;
use crate::error::RunError;
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::{Work, vectors, wide};
use crate::vector::Vector;

/// Columns that one task sums at a time.
const COLUMNS: usize = 512;

/// Rows that are added in the type itself before their sums are added in 64 bits.
const ROWS: usize = 64;

/// Elements that are summed in the type itself, lane by lane, before the sums are added in 64 bits.
const BLOCK: usize = 2048;

/// Sums that are made side by side: enough that additions needn't wait for one another.
const LANES: usize = 64;

/// Σ x. The lanes of a block are added by halves, the blocks in 64 bits.
#[inline(always)]
pub fn sum<T: Real>(x: &[T]) -> f64 {
    vectors(Sum::<T, false> { x, y: x })
}

/// Σ x·y over two slices of the same length.
#[inline(always)]
pub fn dot<T: Real>(x: &[T], y: &[T]) -> f64 {
    vectors(Sum::<T, true> {
        x,
        y: &y[..x.len()],
    })
}

/// Σ x, or Σ x·y.
struct Sum<'a, T, const PRODUCTS: bool> {
    x: &'a [T],
    /// Elements to multiply with, as many as x has.
    y: &'a [T],
}

impl<T: Real, const PRODUCTS: bool> Work<T> for Sum<'_, T, PRODUCTS> {
    type Output = f64;

    #[inline(always)]
    unsafe fn run<V: Vector<Element = T>>(self) -> f64 {
        const CHAINS: usize = 4;
        let mut total = 0.0;
        for (x, y) in self.x.chunks(BLOCK).zip(self.y.chunks(BLOCK)) {
            // SAFETY: the vectors lie in the block; the caller promises that the machine has the instruction
            // set.
            unsafe {
                let mut sums = [V::splat(T::ZERO); CHAINS];
                let add = |sum: &mut V, x: *const T, y: *const T| {
                    *sum = match PRODUCTS {
                        true => V::load(x).multiply_add(V::load(y), *sum),
                        false => V::load(x).add(*sum),
                    };
                };
                let (from, by) = (x.as_ptr(), y.as_ptr());
                let mut at = 0;
                while at + CHAINS * V::LANES <= x.len() {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        add(sum, from.add(at + v * V::LANES), by.add(at + v * V::LANES));
                    }
                    at += CHAINS * V::LANES;
                }
                while at + V::LANES <= x.len() {
                    add(&mut sums[0], from.add(at), by.add(at));
                    at += V::LANES;
                }
                if at < x.len() {
                    let mut rest = [[T::ZERO; WIDEST]; 2];
                    for (i, (&x, &y)) in x[at..].iter().zip(&y[at..]).enumerate() {
                        (rest[0][i], rest[1][i]) = (x, y);
                    }
                    add(&mut sums[1], rest[0].as_ptr(), rest[1].as_ptr());
                }
                total += lanes(sums[0].add(sums[1]).add(sums[2].add(sums[3])));
            }
        }
        total
    }
}

const WIDEST: usize = 16;

/// Σ of a vector's lanes.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn lanes<V: Vector<Element: Real>>(sums: V) -> f64 {
    let mut lanes = [V::Element::ZERO; WIDEST];
    // SAFETY: there is room for the widest vector; the caller promises that the machine has the instruction
    // set.
    unsafe { sums.store(lanes.as_mut_ptr()) };
    let mut width = V::LANES;
    while width > 4 {
        width /= 2;
        for i in 0..width {
            let high = lanes[i + width];
            lanes[i] += high;
        }
    }
    lanes[..width].iter().map(|lane| lane.f64()).sum()
}

/// The largest element, or −∞ if there are none. If an element is NaN, the result is NaN or another element.
#[inline(always)]
pub fn largest<T: Real>(x: &[T]) -> T {
    vectors(Largest(x))
}

struct Largest<'a, T>(&'a [T]);

impl<T: Real> Work<T> for Largest<'_, T> {
    type Output = T;

    #[inline(always)]
    unsafe fn run<V: Vector<Element = T>>(self) -> T {
        const CHAINS: usize = 4;
        let x = self.0;
        let mut lanes = [T::NEG_INFINITY; WIDEST];
        let mut at = 0;
        // SAFETY: the vectors lie in the slice; the caller promises that the machine has the instruction set.
        unsafe {
            let mut most = [V::splat(T::NEG_INFINITY); CHAINS];
            while at + CHAINS * V::LANES <= x.len() {
                for (v, most) in most.iter_mut().enumerate() {
                    *most = most.max(V::load(x.as_ptr().add(at + v * V::LANES)));
                }
                at += CHAINS * V::LANES;
            }
            while at + V::LANES <= x.len() {
                most[0] = most[0].max(V::load(x.as_ptr().add(at)));
                at += V::LANES;
            }
            let most = most[0].max(most[1]).max(most[2].max(most[3]));
            most.store(lanes.as_mut_ptr());
        }
        let all = lanes[..V::LANES].iter().chain(&x[at..]);
        all.fold(T::NEG_INFINITY, |largest, &x| x.or_more(largest))
    }
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
    // The lengths are constant, so that the loops become single instructions.
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

/// The axes of x, split into those that stay and those that are summed. Neighbours of the same kind are
/// merged.
struct Axes {
    kept: LoopNest,
    summed: LoopNest,
}

#[derive(Clone, Copy)]
struct LoopNest {
    rank: usize,
    lengths: [usize; MAX_RANK],
    steps: [usize; MAX_RANK],
}

impl LoopNest {
    const NONE: LoopNest = LoopNest {
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
            kept: LoopNest::NONE,
            summed: LoopNest::NONE,
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
    args: Args<'_>,
) -> Result<(), RunError> {
    let shape = args.inputs.shape(0);
    let count: usize = axes.iter().map(|&axis| shape[axis]).product();
    let scale = if mean { 1.0 / count as f64 } else { 1.0 };
    let axes = Axes::new(shape, |axis| axes.contains(&axis));
    let [y] = args.outputs.take()?;
    sum_axes(slots, &axes, scale, args.inputs.get::<T>(0)?, y);
    Ok(())
}

/// `x -> y`: sums over the copies that broadcasting y's shape to x's shape would make.
pub fn sum_to<T: Real>(slots: usize, args: Args<'_>) -> Result<(), RunError> {
    let (from, to) = (args.inputs.shape(0), args.outputs.shape(0));
    let missing = from.len() - to.len();
    let axes = Axes::new(from, |axis| axis < missing || to[axis - missing] == 1);
    let [y] = args.outputs.take()?;
    sum_axes(slots, &axes, 1.0, args.inputs.get::<T>(0)?, y);
    Ok(())
}

fn sum_axes<T: Real>(slots: usize, axes: &Axes, scale: f64, x: &[T], y: &mut [T]) {
    let (mut kept, mut summed) = (axes.kept, axes.summed);
    let columns = kept.take_row();
    let row = if columns == 1 { summed.take_row() } else { 1 };
    let work = x.len() / y.len();
    if columns == 1 {
        // Each output is a sum of rows.
        par::pieces(slots, y, (par::SMALL / work.max(1)).max(1), |start, y| {
            wide(
                #[inline(always)]
                || {
                    for (index, y) in (start..).zip(y) {
                        let base = kept.offset(index);
                        let mut total = 0.0;
                        for i in 0..summed.count() {
                            let at = base + summed.offset(i);
                            total += match row {
                                1 => x[at].f64(),
                                _ => sum(&x[at..at + row]),
                            };
                        }
                        *y = T::of(total * scale);
                    }
                },
            );
        });
        return;
    }
    // Rows are added to one another, a few columns at a time.
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
                let end = (start + ROWS).min(count);
                let row = |i: usize| {
                    let at = base + first + summed.offset(i);
                    &x[at..at + width]
                };
                let mut i = start;
                // Four rows at a time, so that their sums are loaded and stored less often.
                while i + 4 <= end {
                    let rows =
                        (row(i).iter().zip(row(i + 1))).zip(row(i + 2).iter().zip(row(i + 3)));
                    for (part, ((&a, &b), (&c, &d))) in part.iter_mut().zip(rows) {
                        *part += (a + b) + (c + d);
                    }
                    i += 4;
                }
                for i in i..end {
                    for (part, &x) in part.iter_mut().zip(row(i)) {
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
