//! Placement: byte offsets for the buffers of a plan, aiming at the bytes that are live at the worst
//! moment, below which nothing fits.
//!
//! In order: greedy packing in several orders, repeated with the offenders first; then, if bytes are
//! still lost, an exact search for a packing at the live-bytes bound, cut off by a count of nodes.
//! Everything is deterministic.

mod exact;
mod greedy;

use cranelift_entity::PrimaryMap;
use scrimp_plan::{
    BufferId, CheckedLayout, CheckedPlan, Interval, Layout, LayoutViolation, check_layout,
};
use thiserror::Error;

/// Offsets of bare intervals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// One per interval, in their order.
    pub offsets: Vec<u64>,
    /// End of the highest interval.
    pub arena_bytes: u64,
    /// Bytes held at the worst moment: no placement has a smaller arena.
    pub live_bytes: u64,
}

/// Why a plan has no layout.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The best packing found is larger than the device.
    #[error(
        "the buffers were packed into {arena} bytes at best, but the device has {available}: tighten the budget to {} bytes or less and plan again",
        available.saturating_sub(arena - available)
    )]
    OverCapacity {
        /// End of the highest buffer.
        arena: u64,
        /// Capacity less resident bytes.
        available: u64,
    },
    /// A packing that isn't one. A defect of this crate.
    #[error("internal error, please report: the placement is wrong: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Defect(Vec<LayoutViolation>),
}

/// Places all buffers of a plan.
///
/// # Errors
/// [`PlaceError::OverCapacity`] if fragmentation costs more than the budget allows.
pub fn place(plan: &CheckedPlan) -> Result<CheckedLayout, PlaceError> {
    let mut offsets: PrimaryMap<BufferId, u64> = plan.buffers().values().map(|_| 0).collect();
    for (device, what) in plan.problem().devices().iter() {
        let ids: Vec<BufferId> = plan
            .buffers()
            .iter()
            .filter(|(_, b)| b.device == device)
            .map(|(id, _)| id)
            .collect();
        let intervals: Vec<Interval> = ids
            .iter()
            .map(|&id| Interval::from(&plan.buffers()[id]))
            .collect();
        let placed = place_intervals(
            &intervals,
            what.capacity.map(|c| c.saturating_sub(what.resident)),
        );
        if let Some(capacity) = what.capacity {
            let available = capacity.saturating_sub(what.resident);
            if placed.arena_bytes > available {
                return Err(PlaceError::OverCapacity {
                    arena: placed.arena_bytes,
                    available,
                });
            }
        }
        for (&id, offset) in ids.iter().zip(placed.offsets) {
            offsets[id] = offset;
        }
    }
    check_layout(plan, Layout { offsets }).map_err(PlaceError::Defect)
}

/// Offsets for intervals such that none that are held at the same moment share a byte. Aims at the
/// live bytes; with a capacity, at the capacity if the live bytes are out of reach.
#[must_use]
pub fn place_intervals(intervals: &[Interval], capacity: Option<u64>) -> Placement {
    let items = Items::new(intervals);
    let live_bytes = items.live_bytes();
    let mut best = greedy::pack(&items, live_bytes);
    // The live bytes first, briefly where the capacity leaves more room.
    let goals = match capacity {
        Some(capacity) if capacity > live_bytes => vec![(live_bytes, 12), (capacity, 400)],
        _ => vec![
            (live_bytes, 400),
            (live_bytes + (best.arena - live_bytes) / 8, 12),
        ],
    };
    for (goal, attempts) in goals {
        if best.arena > goal
            && let Some(exact) = exact::pack(&items, goal, attempts)
        {
            best = exact;
        }
    }
    let mut offsets = vec![0; intervals.len()];
    for (k, &offset) in best.offsets.iter().enumerate() {
        offsets[items.origin[k]] = offset;
    }
    Placement {
        offsets,
        arena_bytes: best.arena,
        live_bytes,
    }
}

/// A packing of [`Items`].
#[derive(Clone, Debug)]
pub(crate) struct Packing {
    pub offsets: Vec<u64>,
    pub arena: u64,
}

/// Intervals that take room, by ascending start, with times counted in sections.
pub(crate) struct Items {
    /// Sections `[from, to)` during which the item is held.
    pub from: Vec<u32>,
    pub to: Vec<u32>,
    pub bytes: Vec<u64>,
    /// Index of the interval.
    pub origin: Vec<usize>,
    /// Per item, the items it meets in time.
    pub neighbours: Vec<Vec<u32>>,
    /// Bytes held per section.
    pub load: Vec<u64>,
}

impl Items {
    fn new(intervals: &[Interval]) -> Items {
        let mut origin: Vec<usize> = (0..intervals.len())
            .filter(|&k| intervals[k].bytes > 0 && intervals[k].start < intervals[k].end)
            .collect();
        origin.sort_by_key(|&k| (intervals[k].start, intervals[k].end, k));
        // Only starts begin a section: what is held can't grow anywhere else.
        let mut starts: Vec<u64> = origin.iter().map(|&k| intervals[k].start).collect();
        starts.dedup();
        let from: Vec<u32> = origin
            .iter()
            .map(|&k| starts.partition_point(|&s| s < intervals[k].start) as u32)
            .collect();
        let to: Vec<u32> = origin
            .iter()
            .map(|&k| starts.partition_point(|&s| s < intervals[k].end) as u32)
            .collect();
        let bytes: Vec<u64> = origin.iter().map(|&k| intervals[k].bytes).collect();
        let mut neighbours = vec![Vec::new(); origin.len()];
        let mut open: Vec<u32> = Vec::new();
        for k in 0..origin.len() {
            open.retain(|&o| to[o as usize] > from[k]);
            for &o in &open {
                neighbours[o as usize].push(k as u32);
            }
            neighbours[k].extend_from_slice(&open);
            open.push(k as u32);
        }
        let mut load = vec![0u64; starts.len()];
        for k in 0..origin.len() {
            for section in &mut load[from[k] as usize..to[k] as usize] {
                *section = section.saturating_add(bytes[k]);
            }
        }
        Items {
            from,
            to,
            bytes,
            origin,
            neighbours,
            load,
        }
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn live_bytes(&self) -> u64 {
        self.load.iter().copied().max().unwrap_or(0)
    }

    /// Sections during which the item is held.
    fn width(&self, k: usize) -> u64 {
        u64::from(self.to[k] - self.from[k])
    }

    /// The largest load of any section of the item.
    fn crowd(&self, k: usize) -> u64 {
        self.load[self.from[k] as usize..self.to[k] as usize]
            .iter()
            .copied()
            .max()
            .unwrap_or(0)
    }
}
