//! What can be wrong with a problem, and the limits on its size.

use thiserror::Error;

use crate::ids::{DeviceId, LinkId, TaskId, ValueId};
use crate::problem::parts::Origin;

/// The most seconds or joules of one task or one copy.
pub const MAX_COST: f64 = 1e30;

/// The most bytes that a device could ever be asked for: everything on it at once.
pub const MAX_BYTES: u64 = i64::MAX as u64;

/// The most devices. Plans keep profiles and states for each of them.
pub const MAX_DEVICES: usize = 64;

/// Why the fields don't make a problem.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named after what they hold; the message says the rest"
)]
pub enum ProblemError {
    /// A problem without tasks.
    #[error("the problem has no tasks; give it at least one")]
    NoTasks,
    /// A problem without a device that computes.
    #[error("none of the problem's devices computes; set `computes` on at least one")]
    NoComputingDevice,
    /// More devices than a plan keeps profiles for.
    #[error("the problem has {count} devices; at most {MAX_DEVICES} are supported")]
    TooManyDevices { count: usize },
    /// Two devices with one name.
    #[error("two devices are named `{name}` ({first} and {second}); give each its own name")]
    DuplicateDevice {
        name: String,
        first: DeviceId,
        second: DeviceId,
    },
    /// A device id out of range.
    #[error("{at} names {device}, but there are only {count} devices, counted from 0")]
    UnknownDevice {
        at: String,
        device: DeviceId,
        count: usize,
    },
    /// A task id out of range.
    #[error("{at} names {task}, but there are only {count} tasks, counted from 0")]
    UnknownTask {
        at: String,
        task: TaskId,
        count: usize,
    },
    /// A value id out of range.
    #[error("{at} names {value}, but there are only {count} values, counted from 0")]
    UnknownValue {
        at: String,
        value: ValueId,
        count: usize,
    },
    /// A link from a device to itself.
    #[error("{link} leads from {device} to itself; remove it")]
    LinkLoop { link: LinkId, device: DeviceId },
    /// Two links for one directed pair.
    #[error("{first} and {second} both lead from {from} to {to}; merge them into one")]
    DuplicateLink {
        first: LinkId,
        second: LinkId,
        from: DeviceId,
        to: DeviceId,
    },
    /// A bandwidth that isn't a positive finite number.
    #[error(
        "{link} has a bandwidth of {bandwidth}; it must be positive and finite, in bytes per second"
    )]
    BadBandwidth { link: LinkId, bandwidth: f64 },
    /// A link that joins a queue other than the own queue of an earlier link.
    #[error(
        "{link} joins the queue of {queue}, which must be an earlier link with its own queue; name the first of the links that share it"
    )]
    BadQueue { link: LinkId, queue: LinkId },
    /// A cost that is negative, not finite or larger than [`MAX_COST`].
    #[error(
        "{at} has `{field}` = {number}; it must be finite, not negative and at most {MAX_COST:e}"
    )]
    BadCost {
        at: String,
        field: &'static str,
        number: f64,
    },
    /// A task that can't run anywhere.
    #[error("{task} ({name}) has no mode; give it one entry per device that can run it")]
    NoModes { task: TaskId, name: String },
    /// Modes out of order, or two for one device.
    #[error(
        "the modes of {task} ({name}) aren't in ascending order of devices at {device}; sort them, with one per device"
    )]
    ModeOrder {
        task: TaskId,
        name: String,
        device: DeviceId,
    },
    /// A mode on a device that can't compute.
    #[error(
        "{task} ({name}) has a mode on {device}, which doesn't compute; remove the mode or let the device compute"
    )]
    ModeOnMemory {
        task: TaskId,
        name: String,
        device: DeviceId,
    },
    /// An input or output listed twice, or a value that is both.
    #[error("{task} ({name}) lists {value} twice among its inputs and outputs; list it once")]
    Repeated {
        task: TaskId,
        name: String,
        value: ValueId,
    },
    /// An output whose origin isn't the task that lists it.
    #[error(
        "{task} ({name}) writes {value}, whose origin is {origin:?}; a value has one origin, the task that writes it"
    )]
    WrongOrigin {
        task: TaskId,
        name: String,
        value: ValueId,
        origin: Origin,
    },
    /// A value whose origin doesn't write it.
    #[error(
        "{value} ({name}) has {task} as its origin, which doesn't list it among its outputs; add it there"
    )]
    NotWritten {
        value: ValueId,
        name: String,
        task: TaskId,
    },
    /// A read of a later task's output.
    #[error(
        "{task} ({name}) reads {value}, which the later {producer} writes; the graph has a cycle or its tasks aren't in an executable order"
    )]
    ReadBeforeWritten {
        task: TaskId,
        name: String,
        value: ValueId,
        producer: TaskId,
    },
    /// An in-place pair whose members aren't an input and an output of the task.
    #[error(
        "{task} ({name}) overwrites {input} with {output}, which must be one of its inputs and one of its outputs"
    )]
    OverwriteNotOwn {
        task: TaskId,
        name: String,
        input: ValueId,
        output: ValueId,
    },
    /// A value in two in-place pairs of one task.
    #[error(
        "{task} ({name}) has {value} in two of its overwriting pairs; a buffer has one successor"
    )]
    OverwriteRepeated {
        task: TaskId,
        name: String,
        value: ValueId,
    },
    /// An in-place pair of different sizes.
    #[error(
        "{task} ({name}) overwrites {input} ({input_bytes} bytes) with {output} ({output_bytes} bytes); they must have the same size"
    )]
    OverwriteSize {
        task: TaskId,
        name: String,
        input: ValueId,
        output: ValueId,
        input_bytes: u64,
        output_bytes: u64,
    },
    /// A value that two tasks overwrite.
    #[error("{value} ({name}) is overwritten by {first} and by {second}; only one may")]
    OverwrittenTwice {
        value: ValueId,
        name: String,
        first: TaskId,
        second: TaskId,
    },
    /// A read after the overwriting task, in the given order.
    #[error(
        "{value} ({name}) is overwritten by {overwriter} and read by the later {reader}; let the reader come first"
    )]
    ReadAfterOverwritten {
        value: ValueId,
        name: String,
        overwriter: TaskId,
        reader: TaskId,
    },
    /// A kept value that some task overwrites.
    #[error(
        "{value} ({name}) must be there at the end, but {overwriter} overwrites it; keep that task's output instead"
    )]
    OverwrittenKept {
        value: ValueId,
        name: String,
        overwriter: TaskId,
    },
    /// A memory with concurrent runs.
    #[error("{device} ({name}) doesn't compute, so it can't be concurrent; leave `concurrent` out")]
    ConcurrentMemory { device: DeviceId, name: String },
    /// A concurrent link in a shared queue.
    #[error(
        "{link} is concurrent, so its copies can't wait in the queue of {queue}; leave one out"
    )]
    ConcurrentQueue { link: LinkId, queue: LinkId },
    /// A group with a task that doesn't exist, or that is in a group already.
    #[error("group {group} in `together` names {task}, which {why}; name each task once")]
    BadGroup {
        group: usize,
        task: TaskId,
        why: &'static str,
    },
    /// A group that no device can run.
    #[error("no device can run all tasks of group {group} in `together`; split the group")]
    GroupWithoutDevice { group: usize },
    /// More bytes than the arithmetic allows.
    #[error(
        "all values, resident bytes and workspace of {device} ({name}) together exceed {MAX_BYTES} bytes; check the sizes"
    )]
    TooManyBytes { device: DeviceId, name: String },
}
