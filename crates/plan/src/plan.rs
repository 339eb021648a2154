//! A plan: one list of steps for all devices and links.
//!
//! # Semantics
//!
//! The list is a total order of *issue*. Each device issues the steps that concern it in list order: its
//! runs, its frees, and the copies **into** it. The moment at which a device issues a step is that step's
//! *turn*. Each queue of links works through its copies in list order: a link has its own queue or shares
//! that of another link (half duplex). Different devices and queues run side by side.
//!
//! * `Run(task, device)`: the device waits until every input is on it (the copies that bring them are done)
//!   and until no copy still reads a value that the task overwrites. While the task runs, its inputs, outputs
//!   and workspace are all in memory; an overwritten input and its output count once. Afterwards the
//!   overwritten input is gone and the outputs are present. No output may already be on that device before
//!   the run.
//! * `Free(value, device)`: the value's bytes come back as soon as no copy reads or writes it any more. A
//!   device that computes waits for that. A memory that doesn't compute goes on at once, even before the
//!   bytes are back.
//! * `Copy(value, from, to)`: the bytes at the destination are taken at the destination's turn, even if the
//!   queue or the source is not ready then; the device goes on at once. A memory that doesn't compute delays
//!   its turn until the bytes fit: until the bytes it has taken and not got back, this copy included, are at
//!   most its peak in list order, a number that follows from the plan alone. The value must be present at the
//!   source and absent at the destination. A device at its ends that computes goes on later by the link's `drag` times the
//!   copy's seconds, which stand for what the copy takes from computing.
//!
//! A given value is in memory from the start until it is freed or overwritten. A kept value is in memory at
//! the end. Every task runs at least once; a task that isn't rerunnable runs exactly once. All runs of one
//! task are on devices of one arithmetic, so that their bits are the same.
//!
//! A *concurrent* device runs any number of tasks at once: none of its turns waits for an earlier one. A run
//! there waits only until its inputs are there and nothing reads what it overwrites. A free gives no bytes
//! back: until the plan ends, everything that was ever taken there is in use. Copies over a concurrent link
//! don't wait for one another.
//!
//! All runs of the tasks of one group are on the same device. A task's resident bytes on a device are in use
//! from start to end if it ever runs there.
//!
//! # Bytes don't depend on timing
//!
//! *In list order* means as if each step were done before the next begins. Let the peak of a device be the
//! most bytes in use during any step in that order: resident bytes, what is allocated and not freed, and the
//! workspace of the running task.
//!
//! A device that computes takes and gives back bytes only at its turns, and has its turns in list order. So
//! it passes through the same numbers of bytes as in list order. A memory that doesn't compute never exceeds
//! its peak, because only copies take bytes there, and each waits until its bytes fit under the peak. A
//! concurrent device never exceeds the sum of all that it takes, which is its peak in list order. So a
//! plan that stays within a capacity in list order stays within it in every execution.
//!
//! # Nothing deadlocks
//!
//! Every wait is for earlier steps of the list, and every step ends once it begins. Runs, frees and queues
//! clearly wait for earlier steps only. For a copy that waits for bytes, suppose that all earlier steps are
//! done. Then everything freed before the copy has come back, the bytes in use are those in use in list
//! order, and the copy fits, because it does so in list order. So the first step of the list that isn't done
//! can always go on.
//!
//! # Addresses
//!
//! With a [layout](crate::layout), a copy into a memory that doesn't compute also waits until the buffers at
//! the addresses it takes have really been given back. In list order they were freed before the copy, so
//! these waits are for earlier steps too, and both arguments hold.

use serde::{Deserialize, Serialize};

use crate::ids::{DeviceId, TaskId, ValueId};

/// One step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Run a task.
    Run {
        /// The task that runs.
        task: TaskId,
        /// The device on which it runs.
        device: DeviceId,
    },
    /// Give a value's bytes back.
    Free {
        /// The value.
        value: ValueId,
        /// The device that gives the bytes back.
        device: DeviceId,
    },
    /// Copy a value over the link between two devices.
    Copy {
        /// The value.
        value: ValueId,
        /// The source device.
        from: DeviceId,
        /// The destination device.
        to: DeviceId,
    },
}

/// A list of steps, not yet checked: see [`check`](fn@crate::check).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In order of issue.
    pub steps: Vec<Step>,
}
