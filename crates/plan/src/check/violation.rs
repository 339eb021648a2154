//! Everything that can be wrong with a plan.

use thiserror::Error;

use crate::ids::{DeviceId, TaskId, ValueId};

/// One way in which a plan breaks the semantics, with the offending step (counted from 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[allow(
    missing_docs,
    reason = "the fields are named after what they hold; the message says the rest"
)]
pub enum Violation {
    /// A task id out of range.
    #[error("step {step} runs {task}, which isn't a task of the problem")]
    UnknownTask { step: usize, task: TaskId },
    /// A value id out of range.
    #[error("step {step} names {value}, which isn't a value of the problem")]
    UnknownValue { step: usize, value: ValueId },
    /// A device id out of range.
    #[error("step {step} names {device}, which isn't a device of the problem")]
    UnknownDevice { step: usize, device: DeviceId },
    /// A run on a device where the task has no mode.
    #[error("step {step} runs {task} on {device}, where it can't run")]
    NoMode {
        step: usize,
        task: TaskId,
        device: DeviceId,
    },
    /// A run while one of its inputs is absent.
    #[error("step {step} runs {task} on {device}, where its input {value} isn't in memory")]
    InputAbsent {
        step: usize,
        task: TaskId,
        device: DeviceId,
        value: ValueId,
    },
    /// A run while one of its outputs is already present.
    #[error(
        "step {step} runs {task} on {device}, where its output {value} is in memory already; free it first"
    )]
    OutputPresent {
        step: usize,
        task: TaskId,
        device: DeviceId,
        value: ValueId,
    },
    /// A second run of a task that may run only once.
    #[error(
        "step {step} runs {task} again, but it may run only once and already ran in step {first}"
    )]
    NotRerunnable {
        step: usize,
        task: TaskId,
        first: usize,
    },
    /// A second run on a device with another arithmetic, where the bits may differ.
    #[error(
        "step {step} runs {task} again on {device}, whose arithmetic differs from that of the device on which it first ran, in step {first}"
    )]
    OtherArithmetic {
        step: usize,
        task: TaskId,
        device: DeviceId,
        first: usize,
    },
    /// A run on another device than an earlier run of the same group.
    #[error(
        "step {step} runs {task} on {device}, but step {first} ran its group on another device; all runs of a group are on one device"
    )]
    Apart {
        step: usize,
        task: TaskId,
        device: DeviceId,
        first: usize,
    },
    /// A free of an absent value.
    #[error("step {step} frees {value} on {device}, where it isn't in memory")]
    FreeAbsent {
        step: usize,
        value: ValueId,
        device: DeviceId,
    },
    /// A copy between devices without a link.
    #[error("step {step} copies from {from} to {to}, between which there is no link")]
    NoLink {
        step: usize,
        from: DeviceId,
        to: DeviceId,
    },
    /// A copy of an absent value.
    #[error("step {step} copies {value} from {from}, where it isn't in memory")]
    SourceAbsent {
        step: usize,
        value: ValueId,
        from: DeviceId,
    },
    /// A copy to a device that already holds the value.
    #[error("step {step} copies {value} to {to}, where it is in memory already")]
    DestinationPresent {
        step: usize,
        value: ValueId,
        to: DeviceId,
    },
    /// A task that never runs.
    #[error("{task} never runs; every task runs at least once")]
    NeverRun { task: TaskId },
    /// A kept value that is absent at the end.
    #[error("{value} isn't in memory at the end{}, where it must be kept", match device { Some(d) => format!(" on {d}"), None => String::new() })]
    NotKept {
        value: ValueId,
        device: Option<DeviceId>,
    },
}
