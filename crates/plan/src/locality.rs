//! How many bytes a plan's runs move between memory and the processor's last cache.
//!
//! A plan with fewer bytes comes back to the same addresses sooner, and what runs again just before its use is read
//! while it is in the cache: the same task takes less time than in a step that keeps everything. What counts is the
//! *distance* of a byte: how many other bytes were touched since it was. Three models make moved bytes of it:
//!
//! * An operator goes through all of its arguments at the same pace. So between two operators' uses of a byte lie, on
//!   average, half of what else the first one touches, all of what is touched in between, and half of what the second
//!   one touches.
//! * A cache of `ways` lines per set, whose sets are chosen by hashing, holds a byte until `ways` other lines fell
//!   into its set. After a distance of d bytes their number is Poisson distributed with mean `ways · d / bytes`.
//! * What comes from memory goes to a core's own cache first, and to the last cache when it leaves that: then it drives
//!   out something else, which is written back if it was changed. So a byte that was fetched costs again when it is
//!   touched for the second time (`SECOND`); from the third time on it is there. A byte that is written has to be
//!   fetched too, and some time later goes back (`WRITTEN`).
//!
//! Copies aren't looked at: they are another engine's work.

use std::collections::VecDeque;
use std::ops::Range;

use crate::check::Binding;
use crate::ids::{BufferId, DeviceId};
use crate::layout::CheckedLayout;
use crate::plan::Step;

/// A set-associative cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Capacity.
    pub bytes: u64,
    /// Lines per set; at least one.
    pub ways: u32,
}

impl Cache {
    /// The share of bytes that are gone after so many others were touched.
    #[must_use]
    pub fn missing(&self, distance: f64) -> f64 {
        let mean = f64::from(self.ways) * distance / self.bytes as f64;
        if distance >= self.horizon() {
            return 1.0;
        }
        let mut term = (-mean).exp();
        let mut kept = 0.0;
        for lines in 0..self.ways.max(1) {
            kept += term;
            term *= mean / f64::from(lines + 1);
        }
        (1.0 - kept).clamp(0.0, 1.0)
    }

    /// The distance after which nothing counts as there.
    fn horizon(&self) -> f64 {
        4.0 * self.bytes as f64
    }
}

/// A stretch of memory that an operator touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Addresses in the arena.
    pub range: Range<u64>,
    /// Whether it is written, whether or not it is read too.
    pub written: bool,
}

/// What a byte costs that is written and not there, where one that is read costs 1. Measured on a server processor of
/// 2023, as the next: 1.6.
const WRITTEN: f64 = 1.5;
/// What a byte costs that is touched for the second time after it was fetched. Measured: 0.6 after a write, 0.85 after
/// a read.
const SECOND: f64 = 0.75;

/// A stretch of memory that one operator touched and none since.
#[derive(Clone, Debug)]
struct Piece {
    range: Range<u64>,
    /// The share of it that this operator fetched.
    fetched: f64,
}

/// What one operator touched and none since.
#[derive(Debug, Default)]
struct Touched {
    pieces: Vec<Piece>,
    bytes: u64,
}

/// What an operator touches and hasn't been found yet.
struct Wanted {
    range: Range<u64>,
    written: bool,
}

/// What a sequence of operators touched, the last one first.
#[derive(Debug)]
pub struct Recency {
    cache: Cache,
    groups: VecDeque<Touched>,
}

impl Recency {
    /// Nothing was touched yet.
    #[must_use]
    pub fn new(cache: Cache) -> Recency {
        Recency {
            cache,
            groups: VecDeque::new(),
        }
    }

    /// An operator touches its arguments; returned are the bytes that move for it, in units of a byte that is read. Of
    /// arguments that overlap, the one that is written counts.
    pub fn touch(&mut self, accesses: &[Access]) -> f64 {
        let mut wanted: Vec<Wanted> = Vec::new();
        for access in written_first(accesses) {
            let mut rest = vec![access.range.clone()];
            for other in &wanted {
                rest = all_without(&rest, &other.range);
            }
            wanted.extend(rest.into_iter().map(|range| Wanted {
                range,
                written: access.written,
            }));
        }
        let bytes = wanted.iter().map(|one| length(&one.range)).sum();
        let mut own = Touched {
            pieces: Vec::new(),
            bytes,
        };
        let (mut moved, mut since) = (0.0, 0.0);
        for group in &mut self.groups {
            if since > self.cache.horizon() || wanted.is_empty() {
                break;
            }
            let gone = self
                .cache
                .missing(since + (group.bytes + bytes) as f64 / 2.0);
            moved += group.give(&mut wanted, gone, &mut own.pieces);
            since += group.bytes as f64;
        }
        for Wanted { range, written } in wanted {
            moved += fetch(written) * length(&range) as f64;
            own.pieces.push(Piece {
                range,
                fetched: 1.0,
            });
        }
        self.groups.push_front(own);
        self.forget();
        moved
    }

    /// Drops what is empty or too far away to count.
    fn forget(&mut self) {
        let (mut since, horizon) = (0.0, self.cache.horizon());
        self.groups.retain(|group| {
            since += group.bytes as f64;
            group.bytes > 0 && since - group.bytes as f64 <= horizon
        });
    }
}

/// What each byte costs that isn't there.
fn fetch(written: bool) -> f64 {
    if written { WRITTEN } else { 1.0 }
}

impl Touched {
    /// Hands over what it has of what is wanted, of which a share is `gone`; returned are the bytes that move for it.
    fn give(&mut self, wanted: &mut Vec<Wanted>, gone: f64, taken: &mut Vec<Piece>) -> f64 {
        let mut moved = 0.0;
        let mut left = Vec::new();
        for Wanted { range, written } in wanted.drain(..) {
            let mut rest = vec![range.clone()];
            let mut mine = Vec::new();
            for piece in self.pieces.drain(..) {
                let common = range.start.max(piece.range.start)..range.end.min(piece.range.end);
                if common.is_empty() {
                    mine.push(piece);
                    continue;
                }
                let second = (1.0 - gone) * piece.fetched;
                moved += (gone * fetch(written) + second * SECOND) * length(&common) as f64;
                rest = all_without(&rest, &common);
                mine.extend(without(&piece.range, &common).map(|range| Piece { range, ..piece }));
                self.bytes -= length(&common);
                taken.push(Piece {
                    range: common,
                    fetched: gone,
                });
            }
            self.pieces = mine;
            left.extend(rest.into_iter().map(|range| Wanted { range, written }));
        }
        *wanted = left;
        moved
    }
}

fn written_first(accesses: &[Access]) -> impl Iterator<Item = &Access> {
    let written = accesses.iter().filter(|access| access.written);
    written.chain(accesses.iter().filter(|access| !access.written))
}

fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

fn all_without(ranges: &[Range<u64>], other: &Range<u64>) -> Vec<Range<u64>> {
    let parts = ranges.iter().flat_map(|range| without(range, other));
    parts.collect()
}

/// What of a range lies before and after another.
fn without(range: &Range<u64>, other: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let before = range.start..range.end.min(other.start.max(range.start));
    let after = range.start.max(other.end.min(range.end))..range.end;
    let both = match other.start < range.end && range.start < other.end {
        true => [before, after],
        false => [range.clone(), 0..0],
    };
    both.into_iter().filter(|part| !part.is_empty())
}

/// The bytes that each of a plan's steps moves between memory and the cache where the plan is run again and again in
/// its layout; 0 for steps that aren't runs on this device.
#[must_use]
pub fn moved_bytes(layout: &CheckedLayout, device: DeviceId, cache: Cache) -> Vec<f64> {
    let plan = layout.plan();
    let mut recency = Recency::new(cache);
    let mut pass = || -> Vec<f64> {
        let steps = plan.steps().iter().enumerate();
        steps
            .map(|(index, step)| match step {
                Step::Run { device: on, .. } if *on == device => {
                    recency.touch(&accesses(layout, plan.binding(index)))
                }
                _ => 0.0,
            })
            .collect()
    };
    // The first pass leaves behind what the next one meets.
    pass();
    pass()
}

fn accesses(layout: &CheckedLayout, binding: &Binding) -> Vec<Access> {
    let access = |&buffer: &BufferId, written| {
        let start = layout.offset(buffer);
        Access {
            range: start..start + layout.plan().buffers()[buffer].bytes,
            written,
        }
    };
    let read = binding.inputs.iter().map(|buffer| access(buffer, false));
    let written = binding.outputs.iter().chain(&binding.workspace);
    read.chain(written.map(|buffer| access(buffer, true)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHE: Cache = Cache {
        bytes: 1000,
        ways: 16,
    };

    fn read(range: Range<u64>) -> Access {
        Access {
            range,
            written: false,
        }
    }

    fn write(range: Range<u64>) -> Access {
        Access {
            range,
            written: true,
        }
    }

    #[test]
    fn what_lies_far_back_is_gone() {
        let shares: Vec<f64> = (0..50)
            .map(|i| CACHE.missing(f64::from(i) * 100.0))
            .collect();
        assert_eq!((shares[0], shares[49]), (0.0, 1.0));
        assert!(
            shares.windows(2).all(|pair| pair[0] <= pair[1]),
            "{shares:?}"
        );
        assert!(shares[5] < 0.02 && shares[20] > 0.98, "{shares:?}");
        // One line per set: the next one that falls into it takes its place.
        let direct = Cache {
            bytes: 1000,
            ways: 1,
        };
        assert!((direct.missing(1000.0) - (1.0 - (-1.0_f64).exp())).abs() < 1e-12);
    }

    #[test]
    fn bytes_move_when_they_are_not_there() {
        let mut recency = Recency::new(CACHE);
        let first = recency.touch(&[read(0..10), write(20..30)]);
        assert_eq!(first, 10.0 + WRITTEN * 10.0);
        let near = |moved: f64, expected: f64| assert!((moved - expected).abs() < 1e-3, "{moved}");
        near(recency.touch(&[read(20..30)]), SECOND * 10.0);
        near(recency.touch(&[read(20..30)]), 0.0);
        near(recency.touch(&[write(20..30)]), 0.0);
        near(recency.touch(&[write(5000..9000)]), WRITTEN * 4000.0);
        // The first operator's input is gone, and so is the start of an output larger than the cache.
        near(recency.touch(&[read(0..10)]), 10.0);
        assert!(recency.touch(&[read(5000..9000)]) > 3900.0);
    }

    #[test]
    fn parts_have_distances_of_their_own() {
        let mut recency = Recency::new(CACHE);
        recency.touch(&[write(0..100)]);
        recency.touch(&[write(1000..6000)]);
        recency.touch(&[write(50..60)]);
        recency.touch(&[write(50..60)]);
        // 10 of the 100 bytes are there.
        let moved = recency.touch(&[read(0..100)]);
        assert!((moved - 90.0).abs() < 1e-3, "{moved}");
    }

    #[test]
    fn overlapping_arguments_count_once() {
        let mut recency = Recency::new(CACHE);
        let moved = recency.touch(&[read(0..100), read(0..100), write(50..150)]);
        assert_eq!(moved, 50.0 + WRITTEN * 100.0);
        let bytes: u64 = recency.groups.iter().map(|group| group.bytes).sum();
        assert_eq!(bytes, 150);
    }
}
