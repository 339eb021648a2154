//! Byte offsets for the buffers of a checked plan, and the check that they don't collide.
//!
//! Offsets count from the start of a device's arena, which begins after its resident bytes. Two buffers of
//! one device that are held during a common step share no byte. Buffers of zero bytes may be anywhere.
//! [`CheckedLayout::within`] compares the arenas with given capacities. Sizes alone decide alignment: where
//! all sizes are multiples of it, a placement that stacks buffers has aligned offsets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use cranelift_entity::PrimaryMap;
use thiserror::Error;

use crate::capacities::Capacities;
use crate::check::{Buffer, CheckedPlan, Excess};
use crate::ids::{BufferId, DeviceId};

/// An offset for each buffer of a plan, not yet checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Bytes from the start of the arena of the buffer's device.
    pub offsets: PrimaryMap<BufferId, u64>,
}

/// One way in which a layout is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[allow(
    missing_docs,
    reason = "the fields are named after what they hold; the message says the rest"
)]
pub enum LayoutViolation {
    /// Too few or too many offsets.
    #[error("the layout has {offsets} offsets for {buffers} buffers")]
    WrongCount { offsets: usize, buffers: usize },
    /// A buffer that ends beyond the largest 64-bit address.
    #[error("{buffer} of {bytes} bytes at offset {offset} ends beyond the largest address")]
    Overflow {
        buffer: BufferId,
        offset: u64,
        bytes: u64,
    },
    /// Two buffers that share bytes during a common step.
    #[error("{first} and {second} share bytes of {device} from step {step}")]
    Overlap {
        first: BufferId,
        second: BufferId,
        device: DeviceId,
        step: usize,
    },
}

/// A layout in which no two buffers share a byte at the same time, with its plan.
#[derive(Clone, Debug)]
pub struct CheckedLayout {
    plan: CheckedPlan,
    layout: Layout,
    arenas: PrimaryMap<DeviceId, u64>,
}

impl CheckedLayout {
    /// The plan whose buffers are placed.
    #[must_use]
    pub fn plan(&self) -> &CheckedPlan {
        &self.plan
    }

    /// The offsets.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where a buffer begins in its device's arena.
    ///
    /// # Panics
    /// If the plan has no such buffer.
    #[must_use]
    pub fn offset(&self, buffer: BufferId) -> u64 {
        self.layout.offsets[buffer]
    }

    /// Bytes from the start of a device's arena to the end of its highest buffer. Resident bytes
    /// aren't in the arena.
    ///
    /// # Panics
    /// If the problem has no such device.
    #[must_use]
    pub fn arena_bytes(&self, device: DeviceId) -> u64 {
        self.arenas[device]
    }

    /// The bytes of a device's arena and its resident bytes together.
    ///
    /// # Panics
    /// If the problem has no such device.
    #[must_use]
    pub fn needed_bytes(&self, device: DeviceId) -> u64 {
        let resident = self.plan.resident(device);
        resident.saturating_add(self.arenas[device])
    }

    /// Whether plan and layout stay within these capacities.
    ///
    /// # Errors
    /// The capacities that the plan exceeds, and each device where the plan fits but its placement doesn't.
    pub fn within(&self, capacities: &Capacities) -> Result<(), Vec<Excess>> {
        let mut excesses = self.plan.within(capacities).err().unwrap_or_default();
        for device in self.plan.problem().devices().keys() {
            let (arena, resident) = (self.arenas[device], self.plan.resident(device));
            if let Some(capacity) = capacities.bytes(device)
                && self.plan.peak(device) <= capacity
                && arena > capacity.saturating_sub(resident)
            {
                let available = capacity.saturating_sub(resident);
                excesses.push(Excess::Arena {
                    device,
                    arena,
                    available,
                });
            }
        }
        if excesses.is_empty() {
            Ok(())
        } else {
            Err(excesses)
        }
    }
}

/// Checks that no two buffers of a plan overlap in both time and space. This is the only constructor of
/// [`CheckedLayout`]. Takes time proportional to buffers × buffers held at a time.
///
/// # Errors
/// Every violation, device by device.
pub fn check_layout(
    plan: &CheckedPlan,
    layout: Layout,
) -> Result<CheckedLayout, Vec<LayoutViolation>> {
    let (offsets, buffers) = (layout.offsets.len(), plan.buffers().len());
    if offsets != buffers {
        return Err(vec![LayoutViolation::WrongCount { offsets, buffers }]);
    }
    let mut arenas = PrimaryMap::new();
    let mut violations = Vec::new();
    for device in plan.problem().devices().keys() {
        let here = plan
            .buffers()
            .iter()
            .filter(|(_, buffer)| buffer.device == device);
        let ids: Vec<BufferId> = here.map(|(id, _)| id).collect();
        let intervals: Vec<Interval> = ids
            .iter()
            .map(|&id| Interval::from(&plan.buffers()[id]))
            .collect();
        let offsets: Vec<u64> = ids.iter().map(|&id| layout.offsets[id]).collect();
        match check_offsets(&intervals, &offsets) {
            Ok(arena) => drop(arenas.push(arena)),
            Err(wrong) => violations.extend(
                wrong
                    .into_iter()
                    .map(|violation| violation.of_plan(device, &ids)),
            ),
        }
    }
    if violations.is_empty() {
        Ok(CheckedLayout {
            plan: plan.clone(),
            layout,
            arenas,
        })
    } else {
        Err(violations)
    }
}

/// Some bytes that are held from `start` until before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interval {
    /// The first moment at which they are held.
    pub start: u64,
    /// The first moment at which they are no longer held.
    pub end: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl From<&Buffer> for Interval {
    fn from(buffer: &Buffer) -> Interval {
        Interval {
            start: buffer.start as u64,
            end: buffer.end as u64,
            bytes: buffer.bytes,
        }
    }
}

/// One way in which offsets of intervals are wrong. `first`, `second` and `interval` count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[allow(
    missing_docs,
    reason = "the fields are named after what they hold; the message says the rest"
)]
pub enum OffsetViolation {
    /// Too few or too many offsets.
    #[error("there are {offsets} offsets for {intervals} intervals")]
    WrongCount { offsets: usize, intervals: usize },
    /// An interval that ends beyond the largest 64-bit address.
    #[error(
        "interval {interval} of {bytes} bytes at offset {offset} ends beyond the largest address"
    )]
    Overflow {
        interval: usize,
        offset: u64,
        bytes: u64,
    },
    /// Two intervals that share bytes at a common moment.
    #[error("intervals {first} and {second} share bytes from moment {moment}")]
    Overlap {
        first: usize,
        second: usize,
        moment: u64,
    },
}

impl OffsetViolation {
    /// The same violation, expressed by the plan's buffers instead of intervals.
    fn of_plan(self, device: DeviceId, ids: &[BufferId]) -> LayoutViolation {
        match self {
            OffsetViolation::WrongCount { offsets, intervals } => LayoutViolation::WrongCount {
                offsets,
                buffers: intervals,
            },
            OffsetViolation::Overflow {
                interval,
                offset,
                bytes,
            } => LayoutViolation::Overflow {
                buffer: ids[interval],
                offset,
                bytes,
            },
            OffsetViolation::Overlap {
                first,
                second,
                moment,
            } => LayoutViolation::Overlap {
                first: ids[first],
                second: ids[second],
                device,
                step: moment as usize,
            },
        }
    }
}

/// Checks offsets of intervals in one memory. Intervals of zero bytes or zero duration never collide.
///
/// # Errors
/// Every violation; one per colliding pair of intervals.
///
/// # Returns
/// The end of the highest interval.
pub fn check_offsets(intervals: &[Interval], offsets: &[u64]) -> Result<u64, Vec<OffsetViolation>> {
    if offsets.len() != intervals.len() {
        let (offsets, intervals) = (offsets.len(), intervals.len());
        return Err(vec![OffsetViolation::WrongCount { offsets, intervals }]);
    }
    let matters = |i: usize| intervals[i].bytes > 0 && intervals[i].start < intervals[i].end;
    let mut order: Vec<usize> = (0..intervals.len()).filter(|&i| matters(i)).collect();
    let mut violations = Vec::new();
    let mut highest = 0;
    for &interval in &order {
        let (offset, bytes) = (offsets[interval], intervals[interval].bytes);
        match offset.checked_add(bytes) {
            None => violations.push(OffsetViolation::Overflow {
                interval,
                offset,
                bytes,
            }),
            Some(end) => highest = highest.max(end),
        }
    }
    order.sort_by_key(|&i| intervals[i].start);
    if violations.is_empty() && disjoint(intervals, offsets, &order) {
        return Ok(highest);
    }
    // Each interval, in order of start, is compared with those that are still held.
    let mut held: Vec<usize> = Vec::new();
    for second in order {
        let moment = intervals[second].start;
        held.retain(|&first| intervals[first].end > moment);
        for &first in &held {
            let (low, high) = if offsets[first] <= offsets[second] {
                (first, second)
            } else {
                (second, first)
            };
            if offsets[high] - offsets[low] < intervals[low].bytes {
                violations.push(OffsetViolation::Overlap {
                    first,
                    second,
                    moment,
                });
            }
        }
        held.push(second);
    }
    Err(violations)
}

/// Whether no two intervals share bytes at a common moment. `order` has the intervals that take room, by
/// ascending start. Those held at a moment are kept by offset. As long as they are disjoint, another interval
/// can only collide with its neighbours among them.
fn disjoint(intervals: &[Interval], offsets: &[u64], order: &[usize]) -> bool {
    let mut held: BTreeMap<u64, usize> = BTreeMap::new();
    let mut ends: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    for &new in order {
        while let Some(&Reverse((end, offset))) = ends.peek()
            && end <= intervals[new].start
        {
            ends.pop();
            held.remove(&offset);
        }
        let (from, bytes) = (offsets[new], intervals[new].bytes);
        let above = held.range(from..).next();
        let below = held.range(..from).next_back();
        if above.is_some_and(|(&above, _)| above - from < bytes)
            || below.is_some_and(|(&below, &other)| from - below < intervals[other].bytes)
        {
            return false;
        }
        held.insert(from, new);
        ends.push(Reverse((intervals[new].end, from)));
    }
    true
}
