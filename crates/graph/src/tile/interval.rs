//! Which interval of an input axis an interval of an output axis is computed from.

use std::ops::Range;

/// How an input axis follows from an output axis. Positions count from the start of the whole axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Output o reads the inputs from o·stride + first to o·stride + first + span, of which those before
    /// the input's start and after its end are padding. Copies have stride 1, span 1 and first 0.
    Window {
        /// Step of the input for a step of the output.
        stride: usize,
        /// From the first input that an output reads to one past the last.
        span: usize,
        /// Where output 0 begins to read.
        first: isize,
    },
    /// Input i is spread over the outputs from i·stride − pad to i·stride − pad + span: a window the other
    /// way round, as in a transposed convolution.
    Spread {
        /// Step of the output for a step of the input.
        stride: usize,
        /// From the first output that an input is spread to to one past the last.
        span: usize,
        /// How many of them lie before output 0.
        pad: usize,
    },
    /// Input i makes the outputs from i·count to (i+1)·count, and no others.
    Repeat(
        /// Outputs per input.
        usize,
    ),
}

impl Reach {
    /// Output o reads input o.
    pub const SAME: Reach = Reach::Window {
        stride: 1,
        span: 1,
        first: 0,
    };

    /// The inputs that the outputs [a, b) read, before those outside of the input are cut off. SFT's σ
    /// and δ (section 4.1.1 of Xu et al., CC 2022) are the slope and the offset of its length; positions
    /// need the interval.
    pub fn unclipped(self, wanted: &Range<usize>) -> Range<isize> {
        let (a, last) = (wanted.start as isize, wanted.end as isize - 1);
        match self {
            Reach::Window {
                stride,
                span,
                first,
            } => a * stride as isize + first..last * stride as isize + first + span as isize,
            Reach::Spread { stride, span, pad } => {
                let (stride, pad) = (stride as isize, pad as isize);
                // ⌈(a + pad − span + 1) / stride⌉
                let from = (a + pad - span as isize + stride).div_euclid(stride);
                from..(last + pad).div_euclid(stride) + 1
            }
            Reach::Repeat(count) => {
                let count = count as isize;
                a / count..last / count + 1
            }
        }
    }

    /// The inputs that the outputs [a, b) read, of an axis with this length; none if they lie wholly in the
    /// padding.
    pub fn interval(self, wanted: &Range<usize>, length: usize) -> Range<usize> {
        let Range { start, end } = self.unclipped(wanted);
        let clip = |at: isize| at.clamp(0, length as isize) as usize;
        clip(start)..clip(end).max(clip(start))
    }

    /// How many inputs so many outputs read, wherever they are: SFT's σ·T + δ.
    pub(super) fn inputs(self, outputs: usize) -> usize {
        match self {
            Reach::Window { stride, span, .. } => (outputs * stride + span).saturating_sub(stride),
            Reach::Spread { stride, span, .. } => {
                (outputs + span).saturating_sub(stride).div_ceil(stride)
            }
            Reach::Repeat(count) => outputs.div_ceil(count),
        }
    }

    /// How many outputs so many inputs reach: the same for the gradient.
    pub(super) fn outputs(self, inputs: usize) -> usize {
        match self {
            Reach::Window { stride, span, .. } => {
                (inputs + span).saturating_sub(stride).div_ceil(stride)
            }
            Reach::Spread { stride, span, .. } => (inputs * stride + span).saturating_sub(stride),
            Reach::Repeat(count) => inputs * count,
        }
    }

    /// What [`Reach::interval`] says, but for a spread at least one input: where nothing is spread to an
    /// output, the input before it stands in, whose window then lies wholly before the outputs.
    pub(super) fn slice(self, wanted: &Range<usize>, length: usize) -> Range<usize> {
        let Range { mut start, mut end } = self.interval(wanted, length);
        if let Reach::Spread { stride, pad, .. } = self {
            start = start.min((wanted.start + pad) / stride).min(length - 1);
            end = end.max(start + 1);
        }
        start..end
    }
}

#[cfg(test)]
mod tests {
    use super::Reach;

    /// The smallest interval with all inputs that an output in [a, b) reads, one pair at a time.
    fn searched(
        reads: impl Fn(usize, usize) -> bool,
        wanted: std::ops::Range<usize>,
        length: usize,
    ) -> Option<std::ops::Range<usize>> {
        let read = |i: &usize| wanted.clone().any(|o| reads(o, *i));
        let first = (0..length).find(read)?;
        let last = (0..length).rfind(read)?;
        Some(first..last + 1)
    }

    #[test]
    fn windows_and_spreads_reach_what_a_search_finds() {
        let length = 11;
        for (k, s, d, p) in
            (0..7 * 3 * 3 * 4).map(|n| (n % 7 + 1, n / 7 % 3 + 1, n / 21 % 3 + 1, n / 63))
        {
            let span = d * (k - 1) + 1;
            if length + 2 * p < span {
                continue;
            }
            let count = (length + 2 * p - span) / s + 1;
            let touches = |o: usize, i: usize| (0..k).any(|tap| o * s + tap * d == i + p);
            let window = Reach::Window {
                stride: s,
                span,
                first: -(p as isize),
            };
            let spread = Reach::Spread {
                stride: s,
                span,
                pad: p,
            };
            for (a, b) in (0..count).flat_map(|a| (a + 1..=count).map(move |b| (a, b))) {
                let found = searched(touches, a..b, length);
                let reach = window.interval(&(a..b), length);
                assert!(
                    found
                        .clone()
                        .is_none_or(|found| reach.start <= found.start && found.end <= reach.end)
                );
                // Where windows leave gaps, padding may be what bounds the interval.
                if d == 1 && s <= k || s == 1 && b - a >= d {
                    assert_eq!(
                        found.unwrap_or(reach.start..reach.start),
                        reach,
                        "{k} {s} {d} {p}: {a}..{b}"
                    );
                }
            }
            for (a, b) in (0..length).flat_map(|a| (a + 1..=length).map(move |b| (a, b))) {
                let found = searched(|o, i| touches(i, o), a..b, count);
                let reach = spread.interval(&(a..b), count);
                assert!(
                    found
                        .clone()
                        .is_none_or(|found| reach.start <= found.start && found.end <= reach.end)
                );
                if d == 1 {
                    let none = found.is_none() && reach.is_empty();
                    assert!(
                        none || found == Some(reach.clone()),
                        "{k} {s} {d} {p}: {a}..{b} {reach:?}"
                    );
                }
                assert!(!spread.slice(&(a..b), count).is_empty());
            }
        }
    }

    #[test]
    fn repeats_reach_what_a_search_finds() {
        for count in 1..=4 {
            for (a, b) in (0..7 * count).flat_map(|a| (a + 1..=7 * count).map(move |b| (a, b))) {
                let found = searched(|o, i| o / count == i, a..b, 7);
                assert_eq!(Some(Reach::Repeat(count).interval(&(a..b), 7)), found);
            }
        }
    }
}
