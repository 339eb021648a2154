//! Tests of placement: nothing overlaps, nothing is below the live bytes, sets that are known to fit
//! without loss do.

use scrimp_plan::{Interval, check_offsets};

use super::items::{Items, take_apart};
use super::place_intervals;
use crate::search::rng::Random;

/// Pieces of a rectangle of `time` by `bytes` that was cut in two again and again: they fit into
/// `bytes`, and at no moment is a byte to spare.
fn pieces(rng: &mut Random, count: usize, time: u64, bytes: u64) -> Vec<Interval> {
    let mut pieces = vec![(0, time, bytes)];
    while pieces.len() < count {
        let k = rng.below(pieces.len());
        let (start, end, bytes) = pieces[k];
        if rng.unit() < 0.5 && end - start > 1 {
            let middle = start + 1 + rng.below((end - start - 1) as usize) as u64;
            pieces[k] = (start, middle, bytes);
            pieces.push((middle, end, bytes));
        } else if bytes > 1 {
            let lower = 1 + rng.below((bytes - 1) as usize) as u64;
            pieces[k] = (start, end, lower);
            pieces.push((start, end, bytes - lower));
        }
    }
    pieces
        .into_iter()
        .map(|(start, end, bytes)| Interval { start, end, bytes })
        .collect()
}

fn random(rng: &mut Random, count: usize, longest: usize, largest: usize) -> Vec<Interval> {
    (0..count)
        .map(|_| {
            let start = rng.below(count) as u64;
            Interval {
                start,
                end: start + rng.below(longest) as u64,
                bytes: rng.below(largest) as u64,
            }
        })
        .collect()
}

/// The bytes held at the worst moment, counted at every start.
fn live_bytes(intervals: &[Interval]) -> u64 {
    let at = |moment: u64| {
        let held = intervals
            .iter()
            .filter(|i| i.start <= moment && moment < i.end);
        held.map(|i| i.bytes).sum()
    };
    intervals.iter().map(|i| at(i.start)).max().unwrap_or(0)
}

/// Places, checks, and returns the bytes lost.
fn lost(intervals: &[Interval], capacity: Option<u64>) -> u64 {
    let placed = place_intervals(intervals, capacity);
    let arena = check_offsets(intervals, &placed.offsets, None).unwrap();
    assert_eq!(arena, placed.arena_bytes);
    arena.checked_sub(placed.live_bytes).unwrap()
}

#[test]
fn offsets_never_overlap_and_the_bound_is_the_bytes_held() {
    let mut rng = Random::new(20, 0);
    for round in 0..60 {
        let (longest, largest) = (2 + rng.below(40), 2 + rng.below(1000));
        let intervals = random(&mut rng, round, longest, largest);
        lost(&intervals, None);
        let placed = place_intervals(&intervals, None);
        assert_eq!(placed.live_bytes, live_bytes(&intervals));
        assert_eq!(placed, place_intervals(&intervals, None));
    }
}

#[test]
fn pieces_of_a_rectangle_are_put_together_again() {
    let mut rng = Random::new(21, 0);
    for count in [5, 10, 20, 40, 60, 80] {
        for _ in 0..4 {
            let intervals = pieces(&mut rng, count, 500, 100_000);
            assert_eq!(lost(&intervals, None), 0, "{count} pieces");
        }
    }
}

#[test]
fn thousands_of_short_intervals_lose_nothing() {
    let mut rng = Random::new(22, 0);
    let intervals = random(&mut rng, 20_000, 60, 5_000);
    assert_eq!(lost(&intervals, None), 0);
}

#[test]
fn nested_intervals_lose_nothing_however_deep() {
    let nested = |n: u64| -> Vec<Interval> {
        let one = |k| Interval {
            start: k,
            end: 2 * n - k,
            bytes: 1 + k % 7,
        };
        (0..n).map(one).collect()
    };
    assert_eq!(lost(&nested(3_000), None), 0);
}

#[test]
fn a_capacity_is_met_where_the_live_bytes_are_out_of_reach() {
    // Of three items two of which always meet, the middle one lies above one and below the other.
    let item = |start, end, bytes| Interval { start, end, bytes };
    let intervals = [
        item(0, 2, 3),
        item(1, 4, 2),
        item(3, 6, 3),
        item(2, 3, 3),
        item(0, 1, 2),
        item(4, 6, 2),
    ];
    assert_eq!(live_bytes(&intervals), 5);
    for capacity in 5..9 {
        let placed = place_intervals(&intervals, Some(capacity));
        assert!(placed.arena_bytes <= capacity, "{capacity}: {placed:?}");
    }
}

#[test]
fn sizes_beyond_what_can_be_counted_do_not_panic() {
    let huge = Interval {
        start: 0,
        end: 2,
        bytes: u64::MAX / 2,
    };
    let late = Interval {
        start: 1,
        end: 3,
        ..huge
    };
    for intervals in [vec![huge; 3], vec![huge, late, huge, late]] {
        let placed = place_intervals(&intervals, Some(1));
        assert_eq!(placed.live_bytes, u64::MAX);
        assert!(check_offsets(&intervals, &placed.offsets, None).is_err());
    }
}

#[test]
fn parts_and_what_is_placed_are_all_items() {
    let mut rng = Random::new(23, 0);
    for _ in 0..30 {
        let mut intervals = random(&mut rng, 40, 8, 100);
        intervals.push(Interval {
            start: 0,
            end: 100,
            bytes: 5,
        });
        let items = Items::new(&intervals);
        let count = items.len();
        let (parts, placed) = take_apart(items);
        let mut seen: Vec<u32> = placed.iter().map(|&(interval, _)| interval).collect();
        seen.extend(parts.iter().flat_map(|part| &part.items.origin));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
        for part in &parts {
            let spans = (0..part.items.len()).map(|k| (part.items.from[k], part.items.to[k]));
            let throughout = (0, part.items.sections() as u32);
            assert!(spans.into_iter().all(|span| span != throughout));
        }
    }
}
