//! Layouts that are wrong in one way each, one that is right, and random ones against a byte map.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::*;
use cranelift_entity::PrimaryMap;
use proptest::prelude::*;
use scrimp_plan::*;

/// The checked plan and its six buffers: weight, image, workspace, activation, gradient.
fn checked() -> CheckedPlan {
    let problem = problem();
    check(&problem, Plan::keep_all(&problem, d(0)).unwrap()).unwrap()
}

fn placed(offsets: &[u64]) -> Result<CheckedLayout, Vec<LayoutViolation>> {
    let layout = Layout {
        offsets: offsets
            .iter()
            .copied()
            .collect::<PrimaryMap<BufferId, u64>>(),
    };
    check_layout(&checked(), layout)
}

fn verdict(offsets: &[u64]) -> Result<u64, Vec<LayoutViolation>> {
    placed(offsets).map(|layout| layout.arena_bytes(d(0)))
}

fn b(index: u32) -> BufferId {
    BufferId::from_u32(index)
}

#[test]
fn a_right_layout_reuses_the_workspace() {
    let kinds: Vec<BufferKind> = checked()
        .buffers()
        .values()
        .map(|buffer| buffer.kind)
        .collect();
    assert_eq!(kinds[2], BufferKind::Workspace(t(0)));
    assert_eq!(verdict(&[0, 8, 18, 12, 18]), Ok(26));
}

#[test]
fn wrong_layouts() {
    use LayoutViolation as L;
    assert_eq!(
        verdict(&[0]),
        Err(vec![L::WrongCount {
            offsets: 1,
            buffers: 5
        }])
    );
    let overlap = |first, second, step| L::Overlap {
        first: b(first),
        second: b(second),
        device: d(0),
        step,
    };
    // The gradient begins while the image and the activation are held.
    assert_eq!(
        verdict(&[0, 8, 18, 12, 11]),
        Err(vec![overlap(1, 4, 1), overlap(3, 4, 1)])
    );
    assert_eq!(verdict(&[0, 7, 18, 12, 18]), Err(vec![overlap(0, 1, 0)]));
    let overflow = L::Overflow {
        buffer: b(4),
        offset: u64::MAX,
        bytes: 8,
    };
    assert_eq!(verdict(&[0, 8, 18, 12, u64::MAX]), Err(vec![overflow]));
}

#[test]
fn a_layout_is_compared_with_any_capacities() {
    let loose = placed(&[0, 8, 18, 12, 19]).unwrap();
    assert_eq!(
        (loose.arena_bytes(d(0)), loose.needed_bytes(d(0))),
        (27, 37)
    );
    let within = |bytes| loose.within(&Capacities::bytes_of(d(0), bytes));
    assert_eq!(within(37), Ok(()));
    assert_eq!(loose.within(&Capacities::unlimited()), Ok(()));
    // The plan itself has a peak of 36.
    let arena = |available| Excess::Arena {
        device: d(0),
        arena: 27,
        available,
    };
    assert_eq!(within(36), Err(vec![arena(26)]));
    let in_use = Excess::Bytes {
        step: 1,
        device: d(0),
        bytes: 36,
        capacity: 35,
    };
    assert_eq!(within(35), Err(vec![in_use]));
}

#[test]
fn wrong_offsets() {
    use OffsetViolation as O;
    let interval = |start, end, bytes| Interval { start, end, bytes };
    let two = [interval(0, 2, 4), interval(1, 3, 4)];
    assert_eq!(check_offsets(&two, &[0, 4]), Ok(8));
    assert_eq!(
        check_offsets(&two, &[0]),
        Err(vec![O::WrongCount {
            offsets: 1,
            intervals: 2
        }])
    );
    let overlap = O::Overlap {
        first: 0,
        second: 1,
        moment: 1,
    };
    assert_eq!(check_offsets(&two, &[0, 3]), Err(vec![overlap]));
    let overflow = O::Overflow {
        interval: 0,
        offset: u64::MAX,
        bytes: 4,
    };
    assert_eq!(check_offsets(&two, &[u64::MAX, 0]), Err(vec![overflow]));
}

proptest! {
    #[test]
    fn offsets_are_right_exactly_if_no_byte_is_held_twice(
        drawn in prop::collection::vec((0u64..12, 0u64..6, 0u64..5, 0u64..24), 0..10)
    ) {
        let intervals: Vec<Interval> =
            drawn.iter().map(|&(start, length, bytes, _)| Interval { start, end: start + length, bytes }).collect();
        let offsets: Vec<u64> = drawn.iter().map(|&(.., offset)| offset).collect();
        let twice = (0..18).any(|moment| {
            let held = intervals.iter().zip(&offsets).filter(|(i, _)| i.start <= moment && moment < i.end);
            let mut bytes: Vec<u64> = held.flat_map(|(i, &offset)| offset..offset + i.bytes).collect();
            let count = bytes.len();
            bytes.sort_unstable();
            bytes.dedup();
            bytes.len() < count
        });
        prop_assert_eq!(check_offsets(&intervals, &offsets).is_err(), twice);
    }
}
