//! A plan: one list of steps for all devices and links.
//!
//! # Semantics
//!
//! The list is a total order of *issue*. Each device works through the steps that concern it in list
//! order: its runs, its frees, and the copies **into** it. Each link works through its copies in list
//! order. Different devices and links run beside each other; every wait is on an earlier step of the
//! list, so nothing can deadlock.
//!
//! * `Run(task, device)`: the device waits until every input is on it (the copies that bring them
//!   are done) and until no copy still reads a value that the task overwrites. While the task runs,
//!   its inputs, outputs and workspace are all in memory; an overwritten input and its output count
//!   once. Afterwards the overwritten input is gone and the outputs are there. No output may be on
//!   that device already: free it first.
//! * `Free(value, device)`: gives the value's bytes back. It waits for the copies that still read it
//!   or write it.
//! * `Copy(value, from, to)`: the bytes at the destination are taken when the destination's turn
//!   comes (list order), even if the link or the source is not ready then; the device goes on at
//!   once. The value must be present at the source and absent at the destination.
//!
//! So the bytes in use on a device after its k-th step depend on the list alone, never on timing:
//! resident bytes + what is allocated and not freed + the workspace of the running task. A plan that
//! stays within a capacity in list order stays within it in every execution.
//!
//! A given value is in memory from the start until it is freed or overwritten. A kept value is in
//! memory at the end. Every task runs at least once, one that isn't rerunnable exactly once.

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
