//! Copying rows and columns into the panels that the kernels read.

#![allow(unsafe_code, reason = "four rows are interleaved through pointers")]

use crate::kernels::flat::copy;
use crate::real::Real;

/// Packs rows whose elements along k are contiguous, at least in stretches. `row(r, p)` is the contiguous
/// stretch of row r of the block from step p on; it is equally long for all rows. Panels are `width` wide.
/// The last one is as narrow as its rows if `narrow` is set, otherwise padded with zeros.
pub fn pack_along_k<'a, T: Real>(
    count: usize,
    depth: usize,
    width: usize,
    narrow: bool,
    out: &mut [T],
    row: impl Fn(usize, usize) -> &'a [T],
) {
    for first in (0..count).step_by(width) {
        let rows = width.min(count - first);
        let step = if narrow { rows } else { width };
        let panel = &mut out[first * depth..first * depth + step * depth];
        if rows < step {
            panel.fill(T::ZERO);
        }
        let mut p = 0;
        while p < depth {
            let run = row(first, p).len().min(depth - p);
            let to = &mut panel[p * step..(p + run) * step];
            let mut r = 0;
            while r + 4 <= rows {
                let four: [&[T]; 4] = std::array::from_fn(|i| &row(first + r + i, p)[..run]);
                // SAFETY: the rows hold `run` elements, the panel `run` steps of at least r + 4.
                unsafe {
                    T::interleave4(four.map(<[T]>::as_ptr), run, to.as_mut_ptr().add(r), step)
                };
                r += 4;
            }
            for r in r..rows {
                for (to, &x) in to[r..]
                    .iter_mut()
                    .step_by(step)
                    .zip(&row(first + r, p)[..run])
                {
                    *to = x;
                }
            }
            p += run;
        }
    }
}

/// Packs rows that are neighbours in memory: step p of k of the block's rows starts at `step(p)`. Panels are
/// as for [`pack_along_k`].
pub fn pack_across<'a, T: Real>(
    count: usize,
    depth: usize,
    width: usize,
    narrow: bool,
    out: &mut [T],
    step: impl Fn(usize) -> &'a [T],
) {
    for first in (0..count).step_by(width) {
        let rows = width.min(count - first);
        let apart = if narrow { rows } else { width };
        let panel = &mut out[first * depth..first * depth + apart * depth];
        if rows < apart {
            panel.fill(T::ZERO);
        }
        for (p, to) in panel.chunks_exact_mut(apart).enumerate() {
            copy(&mut to[..rows], &step(p)[first..first + rows]);
        }
    }
}
