//! How many bytes a plan's runs move between memory and the processor's last-level cache.
//!
//! A plan that uses fewer bytes comes back to the same addresses sooner, and a value that is recomputed just
//! before its use is read while it is in the cache. So a task takes less time than in a step that keeps
//! everything. What counts is the *distance* of a byte: how many other bytes were touched since it was
//! touched last. Three models turn distances into moved bytes:
//!
//! * An operator goes through all of its arguments at the same pace. So the distance between two operators'
//!   uses of a byte is, on average, half of what else the first one touches, all that is touched in between,
//!   and half of what the second one touches.
//! * A cache of `ways` lines per set, whose sets are chosen by hashing, holds a byte until `ways` other lines
//!   have fallen into its set. After a distance of d bytes the number of such lines is Poisson distributed
//!   with mean `ways · d / bytes`.
//! * A line from memory goes to a core's own cache first, and to the last-level cache when it leaves the
//!   core's. There it evicts another line, which is written back if it was changed. So a byte that was
//!   fetched costs again when it is touched for the second time (`SECOND`); from the third time on it is in
//!   the cache. A byte that is written has to be fetched too, and is written back some time later
//!   (`WRITTEN`).
//!
//! Copies are ignored: another engine makes them.
//!
//! Memory is a map of disjoint stretches, each with the operator that touched it last. A Fenwick tree over
//! operators adds up the bytes touched between two of them. So one operator's time grows with its arguments
//! and the stretches that they cover, and only with the logarithm of everything else.

use scrimp_plan::{BufferId, CheckedLayout, DeviceId, Step};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// A set-associative cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Capacity.
    pub bytes: u64,
    /// Lines per set; at least one.
    pub ways: u32,
}

impl Cache {
    /// The share of bytes that have left the cache after this many other bytes were touched.
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

    /// The distance after which every byte counts as gone.
    fn horizon(&self) -> f64 {
        4.0 * self.bytes as f64
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// Addresses in the arena.
    pub range: Range<u64>,
    /// Whether the stretch is written; it may be read too.
    pub written: bool,
}

/// Cost of a byte that is written and not in the cache, relative to one that is read. A server processor of
/// 2023 measured 1.6.
const WRITTEN: f64 = 1.5;
/// Cost of a byte that is touched for the second time after it was fetched. The same processor measured 0.6
/// after a write and 0.85 after a read.
const SECOND: f64 = 0.75;

/// A stretch of memory that no operator has touched since this one.
#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    toucher: usize,
    /// The share of the stretch that this operator fetched.
    fetched: f64,
}

/// A stretch that the current operator touches.
#[derive(Debug)]
struct Claim {
    range: Range<u64>,
    written: bool,
    /// The operator that touched the stretch before; `None` if none did.
    toucher: Option<usize>,
    fetched: f64,
}

/// What a sequence of operators touched, and how recently.
#[derive(Debug)]
pub(super) struct Recency {
    cache: Cache,
    /// Disjoint stretches, by start.
    pieces: BTreeMap<u64, Piece>,
    /// For each operator, the bytes that no later one has touched.
    bytes: Sums,
}

impl Recency {
    /// The state before any operator ran.
    #[must_use]
    pub fn new(cache: Cache) -> Recency {
        Recency {
            cache,
            pieces: BTreeMap::new(),
            bytes: Sums::default(),
        }
    }

    /// Touches an operator's arguments and returns the bytes that move for it, in units of one byte that is
    /// read. Where arguments overlap, the written one counts.
    pub fn touch(&mut self, accesses: &[Access]) -> f64 {
        let toucher = self.bytes.push();
        let mut claims = Vec::new();
        for access in written_first(accesses) {
            self.claim(access, toucher, &mut claims);
        }
        let own: u64 = claims.iter().map(|claim| length(&claim.range)).sum();
        claims.sort_by_key(|claim| Reverse(claim.toucher));
        let mut moved = 0.0;
        for group in claims.chunk_by_mut(|a, b| a.toucher == b.toucher) {
            let gone = group[0].toucher.map_or(1.0, |other| self.gone(other, own));
            for claim in group {
                let bytes = length(&claim.range);
                let second = (1.0 - gone) * claim.fetched;
                moved += (gone * fetch(claim.written) + second * SECOND) * bytes as f64;
                claim.fetched = gone;
                if let Some(other) = claim.toucher {
                    self.bytes.take(other, bytes);
                }
            }
        }
        self.bytes.add(toucher, own);
        self.settle(claims, toucher);
        moved
    }

    /// Claims the parts of an access that this operator hasn't claimed yet.
    fn claim(&mut self, access: &Access, toucher: usize, claims: &mut Vec<Claim>) {
        let Range { start, end } = access.range;
        if start >= end {
            return;
        }
        self.cut(start, toucher);
        self.cut(end, toucher);
        let found = self.pieces.range(start..end);
        let found: Vec<(u64, Piece)> = found.map(|(&start, &piece)| (start, piece)).collect();
        let first = claims.len();
        let mut claim = |range: Range<u64>, toucher, fetched| {
            if !range.is_empty() {
                claims.push(Claim {
                    range,
                    written: access.written,
                    toucher,
                    fetched,
                });
            }
        };
        // A stretch that this operator has claimed before isn't cut and may begin earlier.
        let before = self.pieces.range(..start).next_back();
        let mut at = before.map_or(start, |(_, piece)| piece.end.max(start));
        for (start, piece) in found {
            claim(at..start, None, 0.0);
            at = piece.end;
            if piece.toucher != toucher {
                claim(start..piece.end, Some(piece.toucher), piece.fetched);
            }
        }
        claim(at..end, None, 0.0);
        for claim in &claims[first..] {
            let piece = Piece {
                end: claim.range.end,
                toucher,
                fetched: 0.0,
            };
            self.pieces.insert(claim.range.start, piece);
        }
    }

    /// Splits the stretch at an address, unless this operator has claimed it already.
    fn cut(&mut self, at: u64, toucher: usize) {
        if let Some((_, piece)) = self.pieces.range_mut(..at).next_back()
            && piece.end > at
            && piece.toucher != toucher
        {
            let rest = *piece;
            piece.end = at;
            self.pieces.insert(at, rest);
        }
    }

    /// The share of the bytes last touched by operator `other` that have left the cache, for an operator that
    /// itself touches `own` bytes.
    fn gone(&self, other: usize, own: u64) -> f64 {
        let (since, there) = (self.bytes.after(other), self.bytes.of(other));
        self.cache
            .missing(since as f64 + (there + own) as f64 / 2.0)
    }

    /// Notes how much of each stretch was fetched, and joins neighbours that are alike.
    fn settle(&mut self, mut claims: Vec<Claim>, toucher: usize) {
        claims.sort_by_key(|claim| claim.range.start);
        let alike = |a: &Claim, b: &Claim| a.range.end == b.range.start && a.fetched == b.fetched;
        for run in claims.chunk_by(alike) {
            for claim in &run[1..] {
                self.pieces.remove(&claim.range.start);
            }
            let piece = Piece {
                end: run[run.len() - 1].range.end,
                toucher,
                fetched: run[0].fetched,
            };
            self.pieces.insert(run[0].range.start, piece);
        }
    }
}

/// A growing list of numbers with fast sums from any index to the end: a Fenwick tree.
#[derive(Debug, Default)]
struct Sums {
    /// With indices from 1, node i is the sum of the k numbers up to the i-th, where k is the lowest set bit
    /// of i.
    nodes: Vec<u64>,
    total: u64,
}

impl Sums {
    fn push(&mut self) -> usize {
        let index = self.nodes.len();
        let node = index + 1;
        let covered = self.up_to(index) - self.up_to(node - lowest_bit(node));
        self.nodes.push(covered);
        index
    }

    fn add(&mut self, index: usize, bytes: u64) {
        self.total += bytes;
        self.change(index, |sum| *sum += bytes);
    }

    fn take(&mut self, index: usize, bytes: u64) {
        self.total -= bytes;
        self.change(index, |sum| *sum -= bytes);
    }

    fn change(&mut self, index: usize, change: impl Fn(&mut u64)) {
        let mut node = index + 1;
        while let Some(sum) = self.nodes.get_mut(node - 1) {
            change(sum);
            node += lowest_bit(node);
        }
    }

    fn up_to(&self, count: usize) -> u64 {
        let (mut node, mut sum) = (count, 0);
        while node > 0 {
            sum += self.nodes[node - 1];
            node -= lowest_bit(node);
        }
        sum
    }

    fn of(&self, index: usize) -> u64 {
        self.up_to(index + 1) - self.up_to(index)
    }

    fn after(&self, index: usize) -> u64 {
        self.total - self.up_to(index + 1)
    }
}

fn lowest_bit(number: usize) -> usize {
    number & number.wrapping_neg()
}

/// Cost of a byte that isn't in the cache.
fn fetch(written: bool) -> f64 {
    if written { WRITTEN } else { 1.0 }
}

fn written_first(accesses: &[Access]) -> impl Iterator<Item = &Access> {
    let written = accesses.iter().filter(|access| access.written);
    written.chain(accesses.iter().filter(|access| !access.written))
}

fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

/// The bytes that each of a plan's steps moves between memory and the cache when the plan is run again and
/// again in its layout; 0 for steps that aren't runs on this device.
pub(super) fn moved_bytes(layout: &CheckedLayout, device: DeviceId, cache: Cache) -> Vec<f64> {
    let plan = layout.plan();
    let mut recency = Recency::new(cache);
    let mut pass = || -> Vec<f64> {
        let steps = plan.steps().iter().enumerate();
        steps
            .map(|(index, step)| match step {
                Step::Run { device: on, .. } if *on == device => {
                    recency.touch(&accesses(layout, index))
                }
                _ => 0.0,
            })
            .collect()
    };
    // The second pass meets what the first one left behind.
    pass();
    pass()
}

pub(super) fn accesses(layout: &CheckedLayout, step: usize) -> Vec<Access> {
    let binding = layout.plan().binding(step);
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

    mod naive;

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
        // One line per set: the next line that falls into a set replaces the one there.
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
        // The first operator's input is gone, and so is the start of an output that is larger than the cache.
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
        // 10 of the 100 bytes are in the cache.
        let moved = recency.touch(&[read(0..100)]);
        assert!((moved - 90.0).abs() < 1e-3, "{moved}");
    }

    #[test]
    fn overlapping_arguments_count_once() {
        let mut recency = Recency::new(CACHE);
        let moved = recency.touch(&[read(0..100), read(0..100), write(50..150)]);
        assert_eq!(moved, 50.0 + WRITTEN * 100.0);
        assert_eq!(recency.bytes.total, 150);
    }

    /// Random operators in few places, so that their arguments overlap in every way.
    #[test]
    fn the_same_as_by_going_through_everything() {
        let mut state = 1_u64;
        let mut random = |most: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        for reach in [300, 2_000, 30_000] {
            let (mut recency, mut naive) = (Recency::new(CACHE), naive::Recency::new(CACHE));
            for touch in 0..400 {
                let accesses = (0..random(5)).map(|_| {
                    let start = random(reach);
                    Access {
                        range: start..start + random(reach / 4),
                        written: random(2) == 0,
                    }
                });
                let accesses: Vec<Access> = accesses.collect();
                let (found, expected) = (recency.touch(&accesses), naive.touch(&accesses));
                let off = (found - expected).abs();
                assert!(
                    off <= 1e-9 * expected.max(1.0),
                    "touch {touch} within {reach}: {found}, not {expected}"
                );
            }
        }
    }

    /// Very many small tensors lie within the reach of the cache.
    #[test]
    fn a_long_chain_takes_little_time() {
        let cache = Cache {
            bytes: 1 << 30,
            ways: 16,
        };
        let mut recency = Recency::new(cache);
        let start = std::time::Instant::now();
        for _ in 0..2 {
            for i in 0..50_000 {
                let (from, to) = (i * 64, (i + 1) * 64);
                recency.touch(&[read(from..to), write(to..to + 64)]);
            }
        }
        assert!(recency.pieces.len() <= 50_001);
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
