//! Byte offsets for the buffers of a checked plan, and the check that they are right.
//!
//! Offsets count from the start of a device's arena, which begins after its resident bytes. Two
//! buffers of one device that are held during a common step share no byte, and every buffer ends
//! within the capacity. Buffers of no bytes may be anywhere. Alignment is a matter of sizes: where
//! all sizes are multiples of it, a placement that stacks buffers has aligned offsets.

use cranelift_entity::{EntityRef, PrimaryMap};
use thiserror::Error;

use crate::check::CheckedPlan;
use crate::ids::{BufferId, DeviceId};

/// An offset for each buffer of a plan. Says nothing about whether they are right.
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
    /// An end beyond what 64 bits count.
    #[error("{buffer} of {bytes} bytes at offset {offset} ends beyond the largest address")]
    Overflow {
        buffer: BufferId,
        offset: u64,
        bytes: u64,
    },
    /// A buffer that ends beyond the capacity.
    #[error(
        "{buffer} ends at byte {end} of {device}'s arena, which has {available} bytes after the resident ones"
    )]
    OverCapacity {
        buffer: BufferId,
        device: DeviceId,
        end: u64,
        available: u64,
    },
    /// Two buffers that share bytes at a common step.
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
    /// If the buffer isn't of this plan.
    #[must_use]
    pub fn offset(&self, buffer: BufferId) -> u64 {
        self.layout.offsets[buffer]
    }

    /// Bytes from the start of a device's arena to the end of its highest buffer. Resident bytes
    /// aren't in the arena.
    ///
    /// # Panics
    /// If the device isn't of this problem.
    #[must_use]
    pub fn arena_bytes(&self, device: DeviceId) -> u64 {
        self.arenas[device]
    }
}

/// Checks a layout for a plan: capacity, and overlap in time and space at once. The only constructor
/// of [`CheckedLayout`]. Takes time proportional to buffers × buffers held at a time.
///
/// # Errors
/// Every violation; of each pair of buffers in each other's way, one.
pub fn check_layout(
    plan: &CheckedPlan,
    layout: Layout,
) -> Result<CheckedLayout, Vec<LayoutViolation>> {
    let (offsets, buffers) = (layout.offsets.len(), plan.buffers().len());
    if offsets != buffers {
        return Err(vec![LayoutViolation::WrongCount { offsets, buffers }]);
    }
    let (arenas, mut violations) = extents(plan, &layout);
    overlaps(plan, &layout, &mut violations);
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

/// The bytes each device's arena needs, and the buffers that end too high.
fn extents(
    plan: &CheckedPlan,
    layout: &Layout,
) -> (PrimaryMap<DeviceId, u64>, Vec<LayoutViolation>) {
    let devices = plan.problem().devices();
    let mut arenas: PrimaryMap<DeviceId, u64> = devices.keys().map(|_| 0).collect();
    let mut violations = Vec::new();
    for (id, buffer) in plan.buffers().iter().filter(|(_, buffer)| buffer.bytes > 0) {
        let (offset, bytes) = (layout.offsets[id], buffer.bytes);
        let Some(end) = offset.checked_add(bytes) else {
            violations.push(LayoutViolation::Overflow {
                buffer: id,
                offset,
                bytes,
            });
            continue;
        };
        let device = &devices[buffer.device];
        let available = device
            .capacity
            .map(|capacity| capacity.saturating_sub(device.resident));
        if let Some(available) = available.filter(|&available| end > available) {
            violations.push(LayoutViolation::OverCapacity {
                buffer: id,
                device: buffer.device,
                end,
                available,
            });
        }
        arenas[buffer.device] = arenas[buffer.device].max(end);
    }
    (arenas, violations)
}

/// Goes through the buffers by start and compares each with those still held on its device.
fn overlaps(plan: &CheckedPlan, layout: &Layout, violations: &mut Vec<LayoutViolation>) {
    let buffers = plan.buffers();
    let mut order: Vec<BufferId> = buffers.keys().filter(|&id| buffers[id].bytes > 0).collect();
    order.sort_by_key(|&id| buffers[id].start);
    let mut held: PrimaryMap<DeviceId, Vec<BufferId>> = plan
        .problem()
        .devices()
        .keys()
        .map(|_| Vec::new())
        .collect();
    let span = |id: BufferId| {
        (
            layout.offsets[id],
            layout.offsets[id].saturating_add(buffers[id].bytes),
        )
    };
    for second in order {
        let buffer = &buffers[second];
        let (low, high) = span(second);
        let held = &mut held[buffer.device];
        held.retain(|&first| buffers[first].end > buffer.start);
        for &first in held.iter() {
            let (first_low, first_high) = span(first);
            if first_low < high && low < first_high {
                let (device, step) = (buffer.device, buffer.start);
                violations.push(LayoutViolation::Overlap {
                    first,
                    second,
                    device,
                    step,
                });
            }
        }
        held.push(second);
    }
    violations.sort_by_key(|violation| match *violation {
        LayoutViolation::WrongCount { .. } => (0, 0),
        LayoutViolation::Overflow { buffer, .. } | LayoutViolation::OverCapacity { buffer, .. } => {
            (1, buffer.index())
        }
        LayoutViolation::Overlap { first, .. } => (2, first.index()),
    });
}
