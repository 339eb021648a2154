//! A plan: one list of steps for all devices and links.
//!
//! # Semantics
//!
//! The list is a total order of *issue*. Each device issues the steps that concern it in list order: its
//! runs, its frees, and the copies **into** it; that is their *turn*. Each queue of links works through its
//! copies in list order: a link has its own, or shares that of another link (half duplex). Different
//! devices and queues run beside each other.
//!
//! * `Run(task, device)`: the device waits until every input is on it (the copies that bring them
//!   are done) and until no copy still reads a value that the task overwrites. While the task runs,
//!   its inputs, outputs and workspace are all in memory; an overwritten input and its output count
//!   once. Afterwards the overwritten input is gone and the outputs are there. No output may be on
//!   that device already: free it first.
//! * `Free(value, device)`: gives the value's bytes back when no copy reads or writes it any more. A device
//!   that computes waits for that. A memory that doesn't goes on at once; the bytes come back when they do.
//! * `Copy(value, from, to)`: the bytes at the destination are taken at the destination's turn, even if the
//!   queue or the source is not ready then; the device goes on at once. A memory that doesn't compute waits
//!   with its turn until the bytes fit: until what it has taken and not got back, this copy included, is at
//!   most its peak in list order, a number that follows from the plan alone. The value must be present at
//!   the source and absent at the destination.
//!
//! A given value is in memory from the start until it is freed or overwritten. A kept value is in
//! memory at the end. Every task runs at least once, one that isn't rerunnable exactly once, and one that
//! runs more than once runs on devices of one arithmetic, so that its bits are the same.
//!
//! # Bytes don't depend on timing
//!
//! *In list order* means: as if each step were done before the next begins. Let the peak of a device be
//! the most bytes in use during any step in that order: resident bytes, what is allocated and not freed,
//! and the workspace of the running task.
//!
//! A device that computes takes and gives back bytes at its turns only, and has its turns in list order: it
//! passes through the same numbers of bytes as in list order. A memory that doesn't compute never exceeds
//! its peak, because the only step that takes bytes there waits until they fit under it. So a plan that
//! stays within a capacity in list order stays within it in every execution.
//!
//! # Nothing deadlocks
//!
//! Every wait is for earlier steps of the list, which all end if they can begin. For runs, frees and queues
//! that is plain. For a copy that waits for bytes, suppose that all earlier steps are done: then everything
//! freed before it has come back, what is in use is what is in use in list order, and this copy fits, for it
//! does in list order. So the first step of the list that isn't done can always go on.
//!
//! # Addresses
//!
//! With a [layout](crate::layout), a copy into a memory that doesn't compute also waits until the buffers
//! whose addresses it takes have really been given back. In list order they were freed before it, so these
//! waits too are for earlier steps, and both arguments hold.

use serde::{Deserialize, Serialize};

use crate::ids::{DeviceId, TaskId, ValueId};

/// One step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Run a task.
    Run {
        /// What runs.
        task: TaskId,
        /// Where.
        device: DeviceId,
    },
    /// Give a value's bytes back.
    Free {
        /// Which value.
        value: ValueId,
        /// Where.
        device: DeviceId,
    },
    /// Copy a value over the link between two devices.
    Copy {
        /// Which value.
        value: ValueId,
        /// The source device.
        from: DeviceId,
        /// The destination device.
        to: DeviceId,
    },
}

/// A list of steps. Says nothing about whether it is right: see [`check`](fn@crate::check).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In order of issue.
    pub steps: Vec<Step>,
}
