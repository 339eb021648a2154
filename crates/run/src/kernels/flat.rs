//! Planes laid out for windows: padded, and cut into phases so that, whatever the stride, the elements that
//! neighbouring outputs read for one window element are neighbours in memory.
//!
//! Position (y, x) of a padded plane is element x / stride of line y / stride of phase (y mod stride, x mod
//! stride). For output (o, p), window element (i, j) then reads `at(i, j) + o·line + p`, so one loop sweeps
//! over all outputs of a band of rows. Between the outputs' rows such a loop computes a few elements that
//! nobody reads.

#![allow(unsafe_code, reason = "vectors are loaded through pointers")]

use scrimp_graph::Window;

use crate::real::Real;
use crate::simd::Work;
use crate::vector::Vector;

/// Loops over outputs advance by this many elements; slices that they read have room for it.
pub const STEP: usize = 64;

/// Outputs of a band, or of a row if a row has more, so that what a band reads and writes fits the
/// first-level cache.
const BAND: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub struct Flat {
    /// Distance between neighbours of a phase.
    pub stride: [usize; 2],
    pub lines: usize,
    pub line: usize,
}

/// A plane's height and width, and the element that is at position (0, 0) of a band.
#[derive(Clone, Copy, Debug)]
pub struct PlaneView {
    pub size: [usize; 2],
    pub origin: [isize; 2],
}

/// Rows per band, and elements per line of what the windows of a band read.
#[derive(Clone, Copy, Debug)]
pub struct Bands {
    /// Rows of a band; the last may have fewer.
    pub rows: usize,
    pub line: usize,
    /// Lines of a phase that a band reads in addition to its own number of rows.
    pub more: usize,
}

/// Distance along `axis` between a window's first and last element, in elements of a phase.
fn reach(window: &Window, axis: usize) -> usize {
    (window.kernel[axis] - 1) * window.dilation[axis] / window.stride[axis]
}

impl Bands {
    pub fn new(window: &Window, rows: usize, columns: usize) -> Bands {
        let (rows, columns) = (rows.max(1), columns.max(1));
        let line = columns + reach(window, 1);
        let bands = rows.div_ceil((BAND / line).clamp(1, rows));
        Bands {
            rows: rows.div_ceil(bands),
            line,
            more: reach(window, 0),
        }
    }

    /// The layout of what a band of outputs reads.
    pub fn source(&self, stride: [usize; 2]) -> Flat {
        Flat {
            stride,
            lines: self.rows + self.more,
            line: self.line,
        }
    }

    /// Number of elements that a loop over `rows` rows of outputs visits.
    pub fn sweep(&self, rows: usize) -> usize {
        (rows * self.line).next_multiple_of(STEP)
    }
}

impl Flat {
    fn phase(&self) -> usize {
        self.lines * self.line
    }

    pub fn elements(&self) -> usize {
        (self.stride[0] * self.stride[1] * self.phase() + self.line + STEP).next_multiple_of(STEP)
    }

    pub fn at(&self, y: usize, x: usize) -> usize {
        let [down, right] = self.stride;
        (y % down * right + x % right) * self.phase() + y / down * self.line + x / right
    }

    /// Indices of a window's elements for output (0, 0), in row-major order.
    pub fn taps(&self, window: &Window) -> impl Iterator<Item = usize> {
        let (flat, [height, width], [down, right]) = (*self, window.kernel, window.dilation);
        (0..height).flat_map(move |i| (0..width).map(move |j| flat.at(i * down, j * right)))
    }

    /// Copies the part of the plane that lies in the band; the other elements stay.
    #[inline(always)]
    pub fn read<T: Real>(&self, x: &[T], place: PlaneView, out: &mut [T]) {
        let [down, right] = self.stride;
        for phase in 0..right {
            // Element e of the line is column e·right + phase + origin of the plane.
            let shift = phase as isize + place.origin[1];
            let first = if shift < 0 {
                ((-shift) as usize).div_ceil(right)
            } else {
                0
            };
            let end = (place.size[1] as isize - shift).max(0) as usize;
            let end = end.div_ceil(right).min(self.line);
            if first >= end {
                continue;
            }
            let column = ((first * right) as isize + shift) as usize;
            for part in 0..down {
                let part_at = (part * right + phase) * self.phase();
                for line in 0..self.lines {
                    let row = (line * down + part) as isize + place.origin[0];
                    if row < 0 || row as usize >= place.size[0] {
                        continue;
                    }
                    let x = &x[row as usize * place.size[1] + column..];
                    let at = part_at + line * self.line;
                    pick(right, x, &mut out[at + first..at + end]);
                }
            }
        }
    }

    /// Moves the lines after the first `rows` lines of each phase to the front, and zeroes what follows them.
    pub fn advance<T: Real>(&self, flat: &mut [T], rows: usize) {
        for phase in flat
            .chunks_exact_mut(self.phase())
            .take(self.stride[0] * self.stride[1])
        {
            phase.copy_within(rows * self.line.., 0);
            let kept = phase.len() - rows * self.line;
            phase[kept..].fill(T::ZERO);
        }
    }

    /// Writes `lines` lines of all phases to their rows of the plane, as far as they lie in the plane.
    #[inline(always)]
    pub fn write<T: Real>(&self, flat: &[T], lines: usize, place: PlaneView, to: &mut [T]) {
        let [down, right] = self.stride;
        let left = (-place.origin[1]).max(0) as usize;
        for number in 0..lines * down {
            let row = number as isize + place.origin[0];
            if row < 0 || row as usize >= place.size[0] {
                continue;
            }
            let row = row as usize * place.size[1];
            let to = &mut to[row..row + place.size[1]];
            let line = |phase: usize| {
                let at = (number % down * right + phase) * self.phase();
                &flat[at + number / down * self.line..]
            };
            weave(right, left, line, to);
        }
    }
}

/// to[i] = x[i·stride]
#[inline(always)]
pub fn pick<T: Copy>(stride: usize, x: &[T], to: &mut [T]) {
    match stride {
        1 => copy(to, &x[..to.len()]),
        2 => {
            // The step is constant, so the compiler makes shuffles of it.
            let (pairs, rest) = x.as_chunks::<2>();
            let whole = pairs.len().min(to.len());
            for (to, pair) in to[..whole].iter_mut().zip(pairs) {
                *to = pair[0];
            }
            if let (Some(to), Some(&x)) = (to.get_mut(whole), rest.first()) {
                *to = x;
            }
        }
        _ => {
            for (to, &x) in to.iter_mut().zip(x.iter().step_by(stride)) {
                *to = x;
            }
        }
    }
}

/// to[i] = element (i + left) / stride of line (i + left) mod stride.
#[inline(always)]
fn weave<'a, T: Copy + 'a>(
    stride: usize,
    left: usize,
    line: impl Fn(usize) -> &'a [T],
    to: &mut [T],
) {
    match stride {
        1 => copy(to, &line(0)[left..left + to.len()]),
        2 => {
            let (even, odd) = (left % 2, (left + 1) % 2);
            let even = &line(even)[left / 2..];
            let odd = &line(odd)[left.div_ceil(2)..];
            let (pairs, rest) = to.as_chunks_mut::<2>();
            if let Some(to) = rest.first_mut() {
                *to = even[pairs.len()];
            }
            for ((to, &even), &odd) in pairs.iter_mut().zip(even).zip(odd) {
                *to = [even, odd];
            }
        }
        _ => {
            for phase in 0..stride.min(to.len()) {
                let from = &line((left + phase) % stride)[(left + phase) / stride..];
                for (to, &x) in to[phase..].iter_mut().step_by(stride).zip(from) {
                    *to = x;
                }
            }
        }
    }
}

/// Copies rows, which are often too short for a call.
#[inline(always)]
pub fn copy<T: Copy>(to: &mut [T], from: &[T]) {
    let length = to.len();
    let from = &from[..length];
    // Copies pieces of lengths that the compiler knows; the last piece overlaps the one before.
    macro_rules! piece {
        ($width:literal, $at:expr) => {
            to[$at..$at + $width].copy_from_slice(&from[$at..$at + $width])
        };
    }
    macro_rules! two {
        ($width:literal) => {{
            piece!($width, 0);
            piece!($width, length - $width)
        }};
    }
    match length {
        // The width of panels of matrix products.
        32 => two!(16),
        16 => piece!(16, 0),
        33.. => {
            for at in (0..length - 16).step_by(16) {
                piece!(16, at);
            }
            piece!(16, length - 16);
        }
        17.. => two!(16),
        8.. => two!(8),
        4.. => two!(4),
        _ => {
            for (to, &x) in to.iter_mut().zip(from) {
                *to = x;
            }
        }
    }
}

/// `out[i] = start + Σ weights[t]·source[taps[t] + i]`, in the order of the taps.
pub struct Stencil<'a, T> {
    pub source: &'a [T],
    pub taps: &'a [u32],
    pub weights: &'a [T],
    pub start: T,
    /// Length: a multiple of [`STEP`] elements.
    pub out: &'a mut [T],
}

impl<T: Real> Work<T> for Stencil<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector<Element = T>>(self) {
        const VECTORS: usize = 4;
        let count = self.taps.len().min(self.weights.len());
        assert_inside(self.source, &self.taps[..count], self.out.len());
        let out = self.out.as_mut_ptr();
        for at in (0..self.out.len()).step_by(VECTORS * V::LANES) {
            // SAFETY: the taps and the output have room for a multiple of STEP elements, and so for whole
            // vectors; the caller has the instruction set.
            unsafe {
                let mut sums = [V::splat(self.start); VECTORS];
                for t in 0..count {
                    let from = (*self.taps.get_unchecked(t)) as usize + at;
                    let from = self.source.as_ptr().add(from);
                    let weight = V::splat(*self.weights.get_unchecked(t));
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = V::load(from.add(v * V::LANES)).multiply_add(weight, *sum);
                    }
                }
                for (v, sum) in sums.into_iter().enumerate() {
                    sum.store(out.add(at + v * V::LANES));
                }
            }
        }
    }
}

/// Number of lanes in which each tap's sum is kept.
pub const LANES: usize = 16;

/// `sums[t] += source[taps[t] + i]·y[i]`, lane by lane.
pub struct Products<'a, T> {
    pub source: &'a [T],
    pub taps: &'a [u32],
    /// Length: a multiple of [`STEP`] elements.
    pub y: &'a [T],
    /// [`LANES`] sums for each tap.
    pub sums: &'a mut [T],
}

impl<T: Real> Work<T> for Products<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector<Element = T>>(self) {
        assert_inside(self.source, self.taps, self.y.len());
        let (groups, rest) = self.taps.as_chunks::<9>();
        let (sums, rest_sums) = self.sums.split_at_mut(groups.len() * 9 * LANES);
        for (taps, sums) in groups.iter().zip(sums.chunks_exact_mut(9 * LANES)) {
            // SAFETY: the taps are inside, as was just checked; the caller promises the rest.
            unsafe { products::<V, 9>(self.source, taps, self.y, sums) };
        }
        for (&tap, sums) in rest.iter().zip(rest_sums.chunks_exact_mut(LANES)) {
            // SAFETY: as above.
            unsafe { products::<V, 1>(self.source, &[tap], self.y, sums) };
        }
    }
}

fn assert_inside<T>(source: &[T], taps: &[u32], length: usize) {
    let last = taps.iter().fold(0, |last, &tap| last.max(tap)) as usize;
    assert!(
        length.is_multiple_of(STEP) && last + length <= source.len(),
        "a window's element outside its plane"
    );
}

/// # Safety
/// The taps are inside for a multiple of [`STEP`] elements, and the machine has the instruction set.
#[inline(always)]
unsafe fn products<V: Vector<Element: Real>, const N: usize>(
    source: &[V::Element],
    taps: &[u32; N],
    y: &[V::Element],
    sums: &mut [V::Element],
) {
    assert!(sums.len() == N * LANES, "lanes for each tap");
    let sums = sums.as_mut_ptr();
    // SAFETY: `sums` holds LANES numbers per tap, at least as many as a vector has; the caller promises the
    // rest.
    unsafe {
        let mut totals = [V::splat(V::Element::ZERO); N];
        for (t, total) in totals.iter_mut().enumerate() {
            *total = V::load(sums.add(t * LANES));
        }
        for at in (0..y.len()).step_by(V::LANES) {
            let y = V::load(y.as_ptr().add(at));
            for (&tap, total) in taps.iter().zip(&mut totals) {
                *total = V::load(source.as_ptr().add(tap as usize + at)).multiply_add(y, *total);
            }
        }
        for (t, total) in totals.into_iter().enumerate() {
            total.store(sums.add(t * LANES));
        }
    }
}
