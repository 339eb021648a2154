//! What a proven plan needs beyond some capacities: a comparison, not another proof.

use thiserror::Error;

use crate::capacities::Capacities;
use crate::check::checked::CheckedPlan;
use crate::ids::DeviceId;

/// One way in which a plan or its layout needs more than there is of a device.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[allow(
    missing_docs,
    reason = "the fields are named after what they hold; the message says the rest"
)]
pub enum Excess {
    /// More bytes in use than there are; `step` is the first one during which that is so.
    #[error(
        "during step {step}, {bytes} bytes are in use on {device}, whose capacity is {capacity}"
    )]
    Bytes {
        step: usize,
        device: DeviceId,
        bytes: u64,
        capacity: u64,
    },
    /// Buffers that fit by their sizes but not where they are placed.
    #[error(
        "the buffers of {device} are placed in {arena} bytes, but {available} are left of its capacity after the resident ones"
    )]
    Arena {
        device: DeviceId,
        arena: u64,
        available: u64,
    },
}

/// Where the plan exceeds the capacities: of each device, the first step that does.
pub(super) fn of_plan(plan: &CheckedPlan, capacities: &Capacities) -> Vec<Excess> {
    let of_device = |device| {
        let capacity = capacities.bytes(device)?;
        let mut profile = plan.profile(device).iter().enumerate();
        let (step, &bytes) = profile.find(|&(_, &bytes)| bytes > capacity)?;
        Some(Excess::Bytes {
            step,
            device,
            bytes,
            capacity,
        })
    };
    plan.problem()
        .devices()
        .keys()
        .filter_map(of_device)
        .collect()
}
