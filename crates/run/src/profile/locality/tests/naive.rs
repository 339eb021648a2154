//! The same model by going through everything that was touched, group by group: short and slow.

use super::super::{Access, Cache, SECOND, fetch, length, written_first};
use std::collections::VecDeque;
use std::ops::Range;

/// A stretch of memory that no operator has touched since this one.
#[derive(Clone, Debug)]
struct Piece {
    range: Range<u64>,
    /// The share of the stretch that this operator fetched.
    fetched: f64,
}

/// What one operator touched and no later one has.
#[derive(Debug, Default)]
struct Touched {
    pieces: Vec<Piece>,
    bytes: u64,
}

/// A part of an access that hasn't been found yet.
struct Wanted {
    range: Range<u64>,
    written: bool,
}

/// What a sequence of operators touched, the most recent operator first.
#[derive(Debug)]
pub struct Recency {
    cache: Cache,
    groups: VecDeque<Touched>,
}

impl Recency {
    /// The state before any operator ran.
    pub fn new(cache: Cache) -> Recency {
        Recency {
            cache,
            groups: VecDeque::new(),
        }
    }

    /// Touches an operator's arguments and returns the bytes that move for it, in units of one byte that is
    /// read. Where arguments overlap, the written one counts.
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

    /// Drops groups that are empty or too far away to count.
    fn forget(&mut self) {
        let (mut since, horizon) = (0.0, self.cache.horizon());
        self.groups.retain(|group| {
            since += group.bytes as f64;
            group.bytes > 0 && since - group.bytes as f64 <= horizon
        });
    }
}

impl Touched {
    /// Moves what it has of the wanted parts to `taken` and returns the bytes that move for them; a share
    /// `gone` of them has left the cache.
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

fn all_without(ranges: &[Range<u64>], other: &Range<u64>) -> Vec<Range<u64>> {
    let parts = ranges.iter().flat_map(|range| without(range, other));
    parts.collect()
}

/// The parts of a range before and after another.
fn without(range: &Range<u64>, other: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let before = range.start..range.end.min(other.start.max(range.start));
    let after = range.start.max(other.end.min(range.end))..range.end;
    let both = match other.start < range.end && range.start < other.end {
        true => [before, after],
        false => [range.clone(), 0..0],
    };
    both.into_iter().filter(|part| !part.is_empty())
}
