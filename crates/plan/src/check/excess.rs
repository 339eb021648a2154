//! What a proven plan needs beyond some capacities: a comparison, not another proof.

use thiserror::Error;

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
    /// More energy than there is.
    #[error("the runs on {device} take {joules} joules, of which there are {cap}")]
    Joules {
        device: DeviceId,
        joules: f64,
        cap: f64,
    },
}
