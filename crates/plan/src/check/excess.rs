//! What a checked plan needs beyond some capacities. Comparing numbers finds it; no new proof is needed.

use thiserror::Error;

use crate::ids::DeviceId;

/// One way in which a plan or its layout needs more than a device has.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[allow(
    missing_docs,
    reason = "the fields are named after what they hold; the message says the rest"
)]
pub enum Excess {
    /// More bytes are in use than the capacity allows; `step` is the first such step.
    #[error(
        "during step {step}, {bytes} bytes are in use on {device}, whose capacity is {capacity}"
    )]
    Bytes {
        step: usize,
        device: DeviceId,
        bytes: u64,
        capacity: u64,
    },
    /// Buffers whose sizes fit but whose placement doesn't.
    #[error(
        "the buffers of {device} are placed in {arena} bytes, but its capacity leaves only {available} after resident bytes"
    )]
    Arena {
        device: DeviceId,
        arena: u64,
        available: u64,
    },
    /// The runs take more energy than the cap allows.
    #[error("the runs on {device} take {joules} joules, but its cap is {cap}")]
    Joules {
        device: DeviceId,
        joules: f64,
        cap: f64,
    },
}
