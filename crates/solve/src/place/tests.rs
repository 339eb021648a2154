//! Tests of placement: nothing overlaps, nothing is below the live bytes, and sets that are known to fit
//! without loss do fit.

use cranelift_entity::EntityRef;
use scrimp_plan::{Capacities, Interval, Sequence, check_offsets};

use super::items::{Items, take_apart};
use super::{PlaceAny, Placement, place, place_intervals, place_thinned, smallest_thinned};
use crate::checked::checked;
use crate::cutoff::Cutoff;
use crate::ids::Position;
use crate::model::Model;
use crate::options::{Options, Others};
use crate::random::Random;
use crate::search::anneal::Walk;
use crate::search::state::State;
use crate::testing::{Shape, problem};

/// Pieces of a rectangle of `time` by `bytes` that was cut in two again and again. They fit into `bytes`, and
/// no byte is free at any moment.
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

/// The most bytes held at one moment, counted at every start.
fn live_bytes(intervals: &[Interval]) -> u64 {
    let at = |moment: u64| {
        let held = intervals
            .iter()
            .filter(|i| i.start <= moment && moment < i.end);
        held.map(|i| i.bytes).sum()
    };
    intervals.iter().map(|i| at(i.start)).max().unwrap_or(0)
}

/// Places intervals, checks the placement, and returns the bytes lost.
fn lost(intervals: &[Interval], capacity: Option<u64>) -> u64 {
    let placed = place_intervals(intervals, capacity, Cutoff::NEVER);
    let arena = check_offsets(intervals, &placed.offsets).unwrap();
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
        let placed = place_intervals(&intervals, None, Cutoff::NEVER);
        assert_eq!(placed.live_bytes, live_bytes(&intervals));
        assert_eq!(placed, place_intervals(&intervals, None, Cutoff::NEVER));
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
fn hundreds_of_pieces_with_some_room_between_them_fit_again() {
    let mut rng = Random::new(25, 0);
    for count in [150, 200, 250, 300] {
        let mut intervals = pieces(&mut rng, count, 1_000, 1_000_000);
        for piece in intervals.iter_mut().step_by(4) {
            piece.start += (piece.end - piece.start) / 8;
            piece.bytes -= piece.bytes / 32;
        }
        let placed = place_intervals(&intervals, Some(1_000_000), Cutoff::NEVER);
        let arena = check_offsets(&intervals, &placed.offsets).unwrap();
        assert!(arena <= 1_000_000, "{count} pieces take {arena} bytes");
    }
}

#[test]
fn offsets_are_multiples_of_what_divides_all_sizes() {
    let mut rng = Random::new(8, 0);
    for count in [150, 200, 250] {
        let mut intervals = pieces(&mut rng, count, 100, 1000);
        intervals.iter_mut().for_each(|i| i.bytes *= 64);
        let capacity = 64_000 * 108 / 100 + 1 + rng.below(60) as u64;
        let placed = place_intervals(&intervals, Some(capacity), Cutoff::NEVER);
        let aligned = placed.offsets.iter().all(|at| at.is_multiple_of(64));
        assert!(aligned, "{count} pieces, capacity {capacity}");
    }
}

#[test]
fn thousands_of_intervals_lose_little() {
    let mut rng = Random::new(22, 0);
    let intervals = random(&mut rng, 20_000, 60, 5_000);
    assert!(lost(&intervals, None) < live_bytes(&intervals) / 100);
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

/// Whether the intervals from `offsets.len()` on fit below a height, by trying all offsets.
fn fit(intervals: &[Interval], height: u64, offsets: &mut Vec<u64>) -> bool {
    let Some(next) = intervals.get(offsets.len()) else {
        return true;
    };
    for at in 0..=height.saturating_sub(next.bytes) {
        let clear = intervals.iter().zip(&*offsets).all(|(other, &low)| {
            let apart = other.end <= next.start || next.end <= other.start;
            apart || low + other.bytes <= at || at + next.bytes <= low
        });
        offsets.push(at);
        if clear && fit(intervals, height, offsets) {
            return true;
        }
        offsets.pop();
    }
    false
}

/// Asserts that placement finds and proves the least arena, and meets a capacity of that size.
fn is_optimal(intervals: &[Interval]) -> Placement {
    let placed = place_intervals(intervals, None, Cutoff::NEVER);
    let live = live_bytes(intervals);
    let least = (live..).find(|&height| fit(intervals, height, &mut Vec::new()));
    assert_eq!(Some(placed.arena_bytes), least);
    assert_eq!(placed.floor_bytes, placed.arena_bytes);
    assert!(lost(intervals, least) <= placed.arena_bytes - live);
    placed
}

#[test]
fn small_sets_are_packed_as_well_as_can_be() {
    let mut rng = Random::new(24, 0);
    for _ in 0..200 {
        let intervals: Vec<Interval> = (0..8)
            .map(|_| {
                let start = rng.below(7) as u64;
                Interval {
                    start,
                    end: start + 1 + rng.below(6) as u64,
                    bytes: 1 + rng.below(4) as u64,
                }
            })
            .collect();
        is_optimal(&intervals);
    }
}

#[test]
fn a_set_that_has_to_lose_a_byte_is_recognized() {
    let spans = [
        (2, 4, 2),
        (2, 5, 2),
        (3, 5, 2),
        (1, 2, 4),
        (1, 6, 3),
        (7, 9, 3),
        (1, 5, 1),
        (5, 9, 4),
        (4, 9, 3),
        (0, 3, 3),
    ];
    let intervals = spans.map(|(start, end, bytes)| Interval { start, end, bytes });
    let placed = is_optimal(&intervals);
    assert_eq!((placed.live_bytes, placed.floor_bytes), (11, 12));
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
        let placed = place_intervals(&intervals, Some(1), Cutoff::NEVER);
        assert_eq!(placed.live_bytes, u64::MAX);
        assert!(check_offsets(&intervals, &placed.offsets).is_err());
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

#[test]
fn a_placement_that_is_told_to_stop_is_valid_and_was_not_searched_for() {
    let mut random = Random::new(21, 0);
    let intervals: Vec<Interval> = (0..60)
        .map(|_| {
            let start = random.below(40) as u64;
            Interval {
                start,
                end: start + 1 + random.below(20) as u64,
                bytes: 1 + random.below(1000) as u64,
            }
        })
        .collect();
    let stop = std::sync::atomic::AtomicBool::new(true);
    let stopped = place_intervals(&intervals, None, Cutoff::on(&stop));
    let arena = check_offsets(&intervals, &stopped.offsets).unwrap();
    assert_eq!(arena, stopped.arena_bytes);
    let searched = place_intervals(&intervals, None, Cutoff::NEVER);
    assert!(searched.arena_bytes < stopped.arena_bytes);
}

#[test]
fn of_several_plans_one_that_fits_is_placed() {
    let mut rng = Random::new(21, 0);
    let (mut placed, mut second, mut spares) = (0, 0, 0);
    for round in 0..60 {
        let shape = Shape {
            tasks: 6 + round % 20,
            rich: false,
        };
        let p = problem(shape, &mut rng);
        let (model, device) = Model::new(&p).unwrap();
        let given: Vec<_> = model.task_ids().collect();
        let mut state = State::new(&model, &given);
        for _ in 0..20 {
            let task = given[rng.below(given.len())];
            let at = Position::new(1 + rng.below(state.len() - 1));
            if model.rerunnable[task] && state.can_insert(task, at) {
                state.insert(task, at);
            }
        }
        let longer = state.order();
        let sequences = [longer, given].map(|runs| Sequence::of_runs(device, runs));
        let peaks = [0, 1].map(|k| {
            let plan = checked(&p, &sequences[k], "test").unwrap();
            plan.peak(device)
        });
        let placed_within = |bytes, plans: &Others<Sequence>| {
            let capacities = Capacities::unlimited().with_bytes(device, Some(bytes));
            let (options, mut spare) = (Options::default(), None);
            let never = [Cutoff::NEVER; 2];
            let mut any = PlaceAny::new(&p, plans, &capacities, &options);
            let tie = any.tie(&mut spare, never).unwrap();
            for layout in [&tie, &spare].into_iter().flatten() {
                assert!(layout.within(&capacities).is_ok());
            }
            (tie, spare)
        };
        let ties = Others {
            ties: sequences.to_vec(),
            dearer: Vec::new(),
        };
        let one_each = Others {
            ties: vec![sequences[0].clone()],
            dearer: vec![sequences[1].clone()],
        };
        let within = |bytes| placed_within(bytes, &ties).0;
        if peaks[1] < peaks[0] {
            let (tie, spare) = placed_within(peaks[1], &one_each);
            let fits = within(peaks[1]).is_some();
            assert_eq!(tie.is_some() || spare.is_some(), fits);
            spares += usize::from(tie.is_none() && spare.is_some());
        }
        assert!(within(peaks[0].min(peaks[1]) / 2).is_none());
        placed += usize::from(within(peaks[0].max(peaks[1])).is_some());
        second += usize::from(peaks[1] < peaks[0] && within(peaks[1]).is_some());
    }
    assert!(
        placed > 40 && second > 0 && spares > 0,
        "{placed}, {second} by the second, {spares} spares"
    );
}

#[test]
fn a_thinned_plan_of_a_lean_one_packs_more_often() {
    let mut rng = Random::new(26, 0);
    let [mut smaller, mut saved, mut lost] = [0; 3];
    for round in 0..20 {
        let shape = Shape {
            tasks: 20 + round,
            rich: false,
        };
        let p = problem(shape, &mut rng);
        let (model, device) = Model::new(&p).unwrap();
        let given = model.given_order();
        let all = State::new(&model, &given).peak();
        let mut walk = Walk::new(&model, &given, all, true, Cutoff::NEVER, rng.clone());
        walk.squeeze(0.0, 0.0, 2_000_000);
        let plan = checked(&p, &Sequence::of_runs(device, walk.leanest.1), "test").unwrap();
        let peak = plan.peak(device);
        let unlimited = Capacities::unlimited();
        let needed = place(&plan, &unlimited).unwrap().needed_bytes(device);
        let options = Options::default();
        let thin = smallest_thinned(&plan, &options, Cutoff::NEVER).unwrap();
        let thin = thin.unwrap();
        assert!(thin.plan().peak(device) <= peak);
        smaller += usize::from(thin.needed_bytes(device) < needed);
        lost += usize::from(peak < needed);
        let tight = unlimited.with_bytes(device, Some(peak));
        let thin = place_thinned(&plan, &tight, &options, Cutoff::NEVER).unwrap();
        if let Some(thin) = &thin {
            assert!(thin.needed_bytes(device) <= peak);
        }
        saved += usize::from(place(&plan, &tight).is_err() && thin.is_some());
    }
    assert!(smaller > 0 && saved > 0, "{smaller}, {saved} of {lost}");
}
