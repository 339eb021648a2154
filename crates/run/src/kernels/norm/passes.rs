//! Loops over elements of several slices, and sums of two functions of them. The loops work in blocks of
//! constant width, so that they become vector instructions.

use std::array::from_fn;

use crate::real::Real;

pub const WIDE: usize = 32;

const BROAD: usize = 64;

/// Elements of a block in what remains after the wide ones.
const NARROW: usize = 8;

/// Elements that are summed in the type itself, lane by lane, before the sums are added in 64 bits.
const BLOCK: usize = 1024;

/// The elements from `at` to `at + W`, which must be inside the slice.
#[inline(always)]
pub fn block<T, const W: usize>(x: &[T], at: usize) -> &[T; W] {
    x[at..]
        .first_chunk()
        .expect("a block lies inside of its slice")
}

// Arrays are made by `from_fn`, whose closures are inlined; those of `map` aren't always.
#[inline(always)]
fn blocks<T, const N: usize, const W: usize>(inputs: [&[T]; N], at: usize) -> [&[T; W]; N] {
    from_fn(
        #[inline(always)]
        |i| block(inputs[i], at),
    )
}

/// Calls `f` with the elements of a block, lane by lane.
#[inline(always)]
fn lanes<T: Real, const N: usize, const W: usize>(
    inputs: [&[T; W]; N],
    mut f: impl FnMut(usize, [T; N]),
) {
    #[allow(clippy::needless_range_loop, reason = "the inner index is the loop's")]
    for lane in 0..W {
        f(lane, from_fn(|i| inputs[i][lane]));
    }
}

/// out ← f(x, n), where `None` stands for out itself and each element has its own n.
#[inline(always)]
pub fn map<T: Real, N>(
    out: &mut [T],
    x: Option<&[T]>,
    numbers: impl Iterator<Item = N>,
    f: impl Fn(T, N) -> T,
) {
    match x {
        Some(x) => {
            for ((out, &x), n) in out.iter_mut().zip(x).zip(numbers) {
                *out = f(x, n);
            }
        }
        None => {
            for (out, n) in out.iter_mut().zip(numbers) {
                *out = f(*out, n);
            }
        }
    }
}

/// out ← f(x, y, n), where `None` stands for out itself and each element has its own n.
#[inline(always)]
pub fn zip<T: Real, N>(
    out: &mut [T],
    x: Option<&[T]>,
    y: Option<&[T]>,
    numbers: impl Iterator<Item = N>,
    f: impl Fn(T, T, N) -> T,
) {
    match (x, y) {
        (Some(x), Some(y)) => {
            for (((out, &x), &y), n) in out.iter_mut().zip(x).zip(y).zip(numbers) {
                *out = f(x, y, n);
            }
        }
        (Some(x), None) => {
            for ((out, &x), n) in out.iter_mut().zip(x).zip(numbers) {
                *out = f(x, *out, n);
            }
        }
        (None, Some(y)) => {
            for ((out, &y), n) in out.iter_mut().zip(y).zip(numbers) {
                *out = f(*out, y, n);
            }
        }
        (None, None) => {
            for (out, n) in out.iter_mut().zip(numbers) {
                *out = f(*out, *out, n);
            }
        }
    }
}

/// Sums f(inputs, numbers) over rows and adds the sums to each column's totals. Each column has its own
/// numbers.
#[inline(always)]
pub fn add_columns<T: Real, const N: usize, const M: usize>(
    totals: &mut [&mut [f64]; 2],
    inputs: [&[T]; N],
    numbers: [&[T]; M],
    f: impl Fn([T; N], [T; M]) -> [T; 2] + Copy,
) {
    let columns = numbers[0].len();
    let (broad, wide) = (columns / BROAD * BROAD, columns / WIDE * WIDE);
    let narrow = columns / NARROW * NARROW;
    for column in (0..broad).step_by(BROAD) {
        add_strip::<T, N, M, BROAD>(totals, inputs, numbers, column, f);
    }
    for column in (broad..wide).step_by(WIDE) {
        add_strip::<T, N, M, WIDE>(totals, inputs, numbers, column, f);
    }
    for column in (wide..narrow).step_by(NARROW) {
        add_strip::<T, N, M, NARROW>(totals, inputs, numbers, column, f);
    }
    for column in narrow..columns {
        add_strip::<T, N, M, 1>(totals, inputs, numbers, column, f);
    }
}

#[inline(always)]
fn add_strip<T: Real, const N: usize, const M: usize, const W: usize>(
    totals: &mut [&mut [f64]; 2],
    inputs: [&[T]; N],
    numbers: [&[T]; M],
    column: usize,
    f: impl Fn([T; N], [T; M]) -> [T; 2],
) {
    let columns = numbers[0].len();
    let numbers: [[T; W]; M] = from_fn(|i| *block(numbers[i], column));
    let mut sums = [[T::ZERO; W]; 2];
    for row in (0..inputs[0].len()).step_by(columns) {
        lanes(blocks::<T, N, W>(inputs, row + column), |lane, x| {
            let [a, b] = f(x, from_fn(|i| numbers[i][lane]));
            sums[0][lane] += a;
            sums[1][lane] += b;
        });
    }
    for (totals, sums) in totals.iter_mut().zip(sums) {
        for (total, sum) in totals[column..].iter_mut().zip(sums) {
            *total += sum.f64();
        }
    }
}

/// Two sums, carried from call to call.
pub struct Sums<T> {
    wide: [[T; WIDE]; 2],
    narrow: [[T; NARROW]; 2],
    rest: [T; 2],
    /// Number of elements summed since the sums were last added to the totals.
    count: usize,
    totals: [f64; 2],
}

impl<T: Real> Sums<T> {
    #[inline(always)]
    pub fn new() -> Sums<T> {
        Sums {
            wide: [[T::ZERO; WIDE]; 2],
            narrow: [[T::ZERO; NARROW]; 2],
            rest: [T::ZERO; 2],
            count: 0,
            totals: [0.0; 2],
        }
    }

    /// Adds f(inputs); the inputs are slices of one length.
    #[inline(always)]
    pub fn add<const N: usize>(&mut self, inputs: [&[T]; N], f: impl Fn([T; N]) -> [T; 2] + Copy) {
        let length = inputs[0].len();
        for start in (0..length).step_by(BLOCK) {
            let end = length.min(start + BLOCK);
            let inputs = inputs.map(|x| &x[start..end]);
            let length = end - start;
            let (wide, narrow) = (length / WIDE * WIDE, length / NARROW * NARROW);
            let mut sums = self.wide;
            for at in (0..wide).step_by(WIDE) {
                lanes(inputs.map(|x| block::<T, WIDE>(x, at)), |lane, x| {
                    let [a, b] = f(x);
                    sums[0][lane] += a;
                    sums[1][lane] += b;
                });
            }
            self.wide = sums;
            for at in (wide..narrow).step_by(NARROW) {
                lanes(inputs.map(|x| block::<T, NARROW>(x, at)), |lane, x| {
                    let [a, b] = f(x);
                    self.narrow[0][lane] += a;
                    self.narrow[1][lane] += b;
                });
            }
            for at in narrow..length {
                let [a, b] = f(inputs.map(|x| x[at]));
                self.rest[0] += a;
                self.rest[1] += b;
            }
            self.count += length;
            if self.count >= BLOCK {
                self.flush();
            }
        }
    }

    #[inline(always)]
    fn flush(&mut self) {
        for i in 0..2 {
            let narrow = &mut self.narrow[i];
            for lanes in self.wide[i].as_chunks::<NARROW>().0 {
                for (sum, &lane) in narrow.iter_mut().zip(lanes) {
                    *sum += lane;
                }
            }
            let lanes: f64 = narrow.iter().map(|lane| lane.f64()).sum();
            self.totals[i] += lanes + self.rest[i].f64();
        }
        *self = Sums {
            totals: self.totals,
            ..Sums::new()
        };
    }

    /// Returns both sums and starts them anew.
    #[inline(always)]
    pub fn take(&mut self) -> [f64; 2] {
        self.flush();
        std::mem::take(&mut self.totals)
    }
}
