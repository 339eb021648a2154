//! Placement: byte offsets for the buffers of a plan. It aims at the most bytes that are live at one moment,
//! because no placement can take fewer.
//!
//! Greedy packing comes first. If it loses bytes, items that are held throughout go to the bottom, and the
//! rest is split into parts ([`items`]). Three methods take turns to pack each part ([`pack`]): a skyline
//! with keys that learn, a search that ejects items, and an exact search. Everything is deterministic,
//! because work is counted, not timed.

mod attempts;
mod eject;
mod exact;
mod greedy;
mod items;
mod others;
mod pack;
mod packing;
mod skyline;
mod stir;
#[cfg(test)]
mod tests;
mod thin;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Instant;

use cranelift_entity::PrimaryMap;
use scrimp_plan::{
    BufferId, Capacities, CheckedLayout, CheckedPlan, DeviceId, Interval, Keep, Layout,
    LayoutViolation, Origin, check_layout,
};
use thiserror::Error;

use crate::checked::sequence_of;
use crate::cutoff::Cutoff;
use crate::method::Order;
use items::{Items, Part};
pub use others::PlaceAny;
use pack::{Effort, Goals};
use stir::reordered;
pub use thin::{place_thinned, smallest_thinned};

/// Work on a part that can't be packed without loss, in units of about a nanosecond: for bare intervals, and
/// for plans, which may be planned again if they don't fit.
const WORK: u64 = 3_000_000_000;
const PLAN_WORK: u64 = 600_000_000;
/// The number of other orders of a plan's runs that are tried, and the limit for trying them: at most one
/// byte in this many is lost.
const VARIANTS: u64 = 4;
const FEW: u64 = 200;
/// Offsets of bare intervals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// One per interval, in their order.
    pub offsets: Vec<u64>,
    /// The end of the highest interval.
    pub arena_bytes: u64,
    /// The most bytes held at one moment.
    pub live_bytes: u64,
    /// A proven floor, no less than the live bytes: no placement has a smaller arena.
    pub floor_bytes: u64,
}

/// Why a plan has no layout.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The best packings that were found are larger than these devices.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    OverCapacity(Vec<Overflow>),
    /// The packing isn't valid, which is a defect of this crate.
    #[error("internal error, please report: the placement is wrong: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Defect(Vec<LayoutViolation>),
}

/// A device for which the best packing that was found is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the buffers were packed into {arena} bytes at best, but the device has {available}: tighten the budget to {} bytes or less and plan again",
    available.saturating_sub(self.excess())
)]
pub struct Overflow {
    /// The device.
    pub device: DeviceId,
    /// The end of the highest buffer.
    pub arena: u64,
    /// The capacity less resident bytes.
    pub available: u64,
}

impl Overflow {
    /// The bytes that are missing.
    #[must_use]
    pub fn excess(&self) -> u64 {
        self.arena - self.available
    }
}

/// Places all buffers of a plan within the capacities.
///
/// # Errors
/// [`PlaceError::OverCapacity`] if fragmentation takes more than the budget leaves.
pub fn place(plan: &CheckedPlan, capacities: &Capacities) -> Result<CheckedLayout, PlaceError> {
    place_by(plan, capacities, Cutoff::NEVER)
}

/// [`place`] with what it has found by the cutoff.
///
/// # Errors
/// The errors of [`place`].
pub fn place_by(
    plan: &CheckedPlan,
    capacities: &Capacities,
    cutoff: Cutoff<'_>,
) -> Result<CheckedLayout, PlaceError> {
    placed(plan, capacities, Effort::Work(PLAN_WORK), cutoff)
}

fn placed(
    plan: &CheckedPlan,
    capacities: &Capacities,
    effort: Effort,
    cutoff: Cutoff<'_>,
) -> Result<CheckedLayout, PlaceError> {
    let mut offsets: PrimaryMap<BufferId, u64> = plan.buffers().values().map(|_| 0).collect();
    let places = Places::new(plan);
    let mut over = Vec::new();
    let devices = plan.problem().devices();
    let mut left = devices.values().filter(|device| device.computes).count() as u32;
    for (device, what) in devices {
        let (ids, intervals) = places.on(device);
        let capacity = capacities.bytes(device);
        let available = capacity.map(|bytes| bytes.saturating_sub(plan.resident(device)));
        // Memories have room, so the devices that compute share the time.
        let share = cutoff.left() / left.max(1);
        left -= u32::from(what.computes);
        let cutoff = cutoff.by(Instant::now().checked_add(share));
        let placed = place_with(&intervals, available, effort, cutoff);
        if let Some(available) = available.filter(|&bytes| placed.arena_bytes > bytes) {
            over.push(Overflow {
                device,
                arena: placed.arena_bytes,
                available,
            });
        }
        for (&id, offset) in ids.iter().zip(placed.offsets) {
            offsets[id] = offset;
        }
    }
    if !over.is_empty() {
        return Err(PlaceError::OverCapacity(over));
    }
    for (last, first) in places.joined {
        offsets[last] = offsets[first];
    }
    check_layout(plan, Layout { offsets }).map_err(PlaceError::Defect)
}

/// The bytes that any layout of a plan takes on a device: those in use at one moment, and the places of given values
/// that are away then.
pub(crate) fn held_bytes(plan: &CheckedPlan, device: DeviceId) -> u64 {
    let (_, intervals) = Places::new(plan).on(device);
    plan.resident(device) + Items::new(&intervals).live_bytes()
}

/// The buffers of a plan that need a place.
struct Places<'a> {
    plan: &'a CheckedPlan,
    homes: BTreeMap<BufferId, BufferId>,
    /// Buffers that have the place of another one.
    joined: BTreeMap<BufferId, BufferId>,
}

impl Places<'_> {
    fn new(plan: &CheckedPlan) -> Places<'_> {
        let homes = homes(plan);
        let one = |first: BufferId, last: BufferId| {
            let buffers = plan.buffers();
            buffers[first].end <= buffers[last].start
        };
        let joined = homes.iter().filter(|&(&first, &last)| one(first, last));
        Places {
            plan,
            joined: joined.map(|(&first, &last)| (last, first)).collect(),
            homes,
        }
    }

    /// Those on a device, and when their bytes are held.
    fn on(&self, device: DeviceId) -> (Vec<BufferId>, Vec<Interval>) {
        let buffers = self.plan.buffers();
        let here = buffers.iter();
        let here = here.filter(|&(id, b)| b.device == device && !self.joined.contains_key(&id));
        let each = here.map(|(id, buffer)| {
            let interval = Interval::from(buffer);
            let last = self.homes.get(&id).map(|&last| &buffers[last]);
            let end = last.map_or(interval.end, |last| last.end as u64);
            (id, Interval { end, ..interval })
        });
        each.unzip()
    }
}

/// A given value's buffer and, if it is another one, that in which the value or what overwrites it is kept on the
/// same device. They are placed as one, so the next step finds the value where this one left it. Where a device
/// holds both at once, the first keeps its place until the end, and the value can be moved there between steps.
fn homes(plan: &CheckedPlan) -> BTreeMap<BufferId, BufferId> {
    let problem = plan.problem();
    let values = problem.values().iter();
    let pairs = values.filter_map(|(value, what)| {
        let Origin::Given(device) = what.origin else {
            return None;
        };
        let kept = problem.chain(value).last()?;
        let stays = problem.value(kept).keep != Keep::No;
        let [first, last] = [
            plan.given_buffer(value)?,
            plan.final_buffer(kept, device).filter(|_| stays)?,
        ];
        (first != last).then_some((first, last))
    });
    pairs.collect()
}

/// Places all buffers of a plan. If that loses a few bytes, also tries plans with the same runs in other
/// orders; first runs keep the given order unless it is free. Returns the packing with the smallest arena
/// found before the cutoff.
///
/// # Errors
/// The errors of [`place`].
pub fn place_reordered(
    plan: &CheckedPlan,
    capacities: &Capacities,
    order: Order,
    cutoff: Cutoff<'_>,
) -> Result<CheckedLayout, PlaceError> {
    let mut best = placed(plan, capacities, Effort::Work(PLAN_WORK), cutoff);
    let Some(device) = plan.problem().sole_device() else {
        return best;
    };
    let resident = plan.resident(device);
    let live = plan.peak(device) - resident;
    let few = live / FEW;
    let sequence = sequence_of(plan);
    for seed in 0..VARIANTS {
        let least = arena_of(&best, device);
        if least <= live || least - live > few || cutoff.reached() {
            break;
        }
        let other = reordered(plan.problem(), &sequence, order, seed, cutoff);
        let Some(other) = other else {
            break;
        };
        let layout = placed(&other, capacities, Effort::Work(PLAN_WORK / 4), cutoff);
        if arena_of(&layout, device) < least {
            best = layout;
        }
    }
    best
}

/// The bytes of the best packing on a device, whether it fits or not.
fn arena_of(layout: &Result<CheckedLayout, PlaceError>, device: DeviceId) -> u64 {
    match layout {
        Ok(layout) => layout.arena_bytes(device),
        Err(PlaceError::OverCapacity(over)) => {
            let here = over.iter().find(|over| over.device == device);
            here.map_or(0, |over| over.arena)
        }
        Err(PlaceError::Defect(_)) => u64::MAX,
    }
}

/// Offsets for intervals such that no two intervals that are held at the same moment share a byte. Placement
/// aims at the live bytes, or at the capacity, if there is one and the live bytes are out of reach. A cutoff
/// ends it with the best placement so far.
#[must_use]
pub fn place_intervals(
    intervals: &[Interval],
    capacity: Option<u64>,
    cutoff: Cutoff<'_>,
) -> Placement {
    place_with(intervals, capacity, Effort::Work(WORK), cutoff)
}

fn place_with(
    intervals: &[Interval],
    capacity: Option<u64>,
    effort: Effort,
    cutoff: Cutoff<'_>,
) -> Placement {
    let items = Items::new(intervals);
    let live_bytes = items.live_bytes();
    let mut offsets = vec![0; intervals.len()];
    let whole = skyline::Wheel::new(&items).plain(live_bytes);
    if whole.arena == live_bytes {
        for (&interval, offset) in items.origin.iter().zip(whole.offsets) {
            offsets[interval as usize] = offset;
        }
        return Placement {
            offsets,
            arena_bytes: live_bytes,
            live_bytes,
            floor_bytes: live_bytes,
        };
    }
    let (mut parts, placed) = items::take_apart(items);
    let (mut arena_bytes, mut floor_bytes) = (0, live_bytes);
    for (interval, offset) in placed {
        offsets[interval as usize] = offset;
        arena_bytes = arena_bytes.max(offset.saturating_add(intervals[interval as usize].bytes));
    }
    // Space that one part needs anyway is free for the others.
    parts.sort_by_key(|part| Reverse(part.base.saturating_add(part.items.live_bytes())));
    for Part { items, base } in parts {
        let enough = arena_bytes.max(live_bytes.max(capacity.unwrap_or(0))) - base;
        let goals = Goals {
            least: match effort {
                Effort::Brief(_) => enough,
                Effort::Work(_) => arena_bytes.max(live_bytes) - base,
            },
            enough,
            effort,
        };
        let (packing, floor) = pack::pack(&items, goals, cutoff);
        floor_bytes = floor_bytes.max(base.saturating_add(floor));
        arena_bytes = arena_bytes.max(base.saturating_add(packing.arena));
        for (&interval, offset) in items.origin.iter().zip(packing.offsets) {
            offsets[interval as usize] = base.saturating_add(offset);
        }
    }
    Placement {
        offsets,
        arena_bytes,
        live_bytes,
        floor_bytes,
    }
}
