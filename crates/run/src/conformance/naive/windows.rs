//! Sums under windows: convolutions and poolings.

use scrimp_graph::Window;

use super::{offset, positions};

/// Calls `f(index in x, index in w, index in y)` for every product of a convolution.
pub(super) fn terms(
    window: &Window,
    groups: usize,
    x: &[usize],
    y: &[usize],
    mut f: impl FnMut(usize, usize, usize),
) {
    let (c_group, o_group) = (x[1] / groups, y[1] / groups);
    let w = [y[1], c_group, window.kernel[0], window.kernel[1]];
    for at in positions(y) {
        let [n, o, i, j] = at[..] else { return };
        for tap in positions(&w[1..]) {
            let [c, kh, kw] = tap[..] else { return };
            if let (Some(h), Some(v)) =
                (reads(window, 0, i, kh, x[2]), reads(window, 1, j, kw, x[3]))
            {
                let channel = o / o_group * c_group + c;
                f(
                    offset(x, &[n, channel, h, v]),
                    offset(&w, &[o, c, kh, kw]),
                    offset(y, &at),
                );
            }
        }
    }
}

/// The input position that output position `o` reads with kernel element `k`, if it isn't padding.
pub(super) fn reads(
    window: &Window,
    axis: usize,
    o: usize,
    k: usize,
    length: usize,
) -> Option<usize> {
    (o * window.stride[axis] + k * window.dilation[axis])
        .checked_sub(window.pad_begin[axis])
        .filter(|&at| at < length)
}

/// Calls `f(index in x, index in y)` for every element of every pooling window, in row-major order.
pub(super) fn taps(window: &Window, x: &[usize], y: &[usize], mut f: impl FnMut(usize, usize)) {
    for at in positions(y) {
        for tap in positions(&window.kernel) {
            let place = (
                reads(window, 0, at[2], tap[0], x[2]),
                reads(window, 1, at[3], tap[1], x[3]),
            );
            if let (Some(h), Some(v)) = place {
                f(offset(x, &[at[0], at[1], h, v]), offset(y, &at));
            }
        }
    }
}

/// The number by which each output of an average pooling divides.
pub(super) fn counts(window: &Window, count_pad: bool, x: &[usize], y: &[usize]) -> Vec<f64> {
    let mut counts = vec![0.0; y.iter().product()];
    if !count_pad {
        taps(window, x, y, |_, iy| counts[iy] += 1.0);
        return counts;
    }
    let inside = |axis: usize, o: usize, k: usize| {
        let end = x[2 + axis] + window.pad_begin[axis] + window.pad_end[axis];
        o * window.stride[axis] + k * window.dilation[axis] < end
    };
    for at in positions(y) {
        let count = positions(&window.kernel)
            .filter(|tap| inside(0, at[2], tap[0]) && inside(1, at[3], tap[1]));
        counts[offset(y, &at)] = count.count() as f64;
    }
    counts
}
