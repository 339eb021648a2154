//! The fields of a problem before validation.

use cranelift_entity::PrimaryMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::ids::{DeviceId, LinkId, TaskId, ValueId};
use crate::units::{format_bytes, format_seconds};

/// A memory space. A host to which values are swapped is a device that doesn't compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Unique among the devices of a problem.
    pub name: String,
    /// Devices of equal arithmetic promise equal bits: a task that ran on one of them may run again on
    /// another. If nothing more is known, the arithmetic is the device's own name.
    pub arithmetic: String,
    /// Whether tasks can run on the device.
    pub computes: bool,
    /// Whether any number of tasks can run at once. Such a device gives no bytes back before the plan ends.
    pub concurrent: bool,
    /// Bytes in use at all times that belong to no value of the problem.
    pub resident: u64,
}

impl Device {
    /// A device that computes and has no resident bytes.
    #[must_use]
    pub fn computing(name: impl Into<String>) -> Device {
        let name = name.into();
        Device {
            arithmetic: name.clone(),
            name,
            computes: true,
            concurrent: false,
            resident: 0,
        }
    }

    /// A memory that doesn't compute and has no resident bytes.
    #[must_use]
    pub fn memory(name: impl Into<String>) -> Device {
        Device {
            computes: false,
            ..Device::computing(name)
        }
    }
}

/// A directed connection. Its copies run one after another, unless it is `concurrent`, while devices compute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The device that copies read.
    pub from: DeviceId,
    /// The device that copies write.
    pub to: DeviceId,
    /// Bytes per second; positive.
    pub bandwidth: f64,
    /// Seconds before the first byte arrives.
    pub latency: f64,
    /// Seconds of particular values, if they don't follow from bandwidth and latency.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub seconds: BTreeMap<ValueId, f64>,
    /// Seconds of computing that a second of copying takes from the devices at its ends that compute.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drag: f64,
    /// Energy per copy, whatever its size; zero if unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub joules: f64,
    /// Additional energy per byte; zero if unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub joules_per_byte: f64,
    /// The link of smaller index whose queue this link's copies join, as in half duplex; none if the link has
    /// its own queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<LinkId>,
    /// Whether any number of copies can be made at once: they don't queue.
    #[serde(default, skip_serializing_if = "is_false")]
    pub concurrent: bool,
}

impl Link {
    /// A link with its own queue, without drag and with no known energy.
    #[must_use]
    pub fn new(from: DeviceId, to: DeviceId, bandwidth: f64, latency: f64) -> Link {
        Link {
            from,
            to,
            bandwidth,
            latency,
            seconds: BTreeMap::new(),
            drag: 0.0,
            joules: 0.0,
            joules_per_byte: 0.0,
            queue: None,
            concurrent: false,
        }
    }
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_false(flag: &bool) -> bool {
    !flag
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn no_bytes(bytes: &u64) -> bool {
    *bytes == 0
}

/// Where a task belongs in a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Computes activations or the loss.
    Forward,
    /// Computes gradients.
    Backward,
    /// Writes parameters, optimizer state or running statistics.
    Update,
}

/// How a task runs on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mode {
    /// The device, which must compute.
    pub device: DeviceId,
    /// Duration.
    pub seconds: f64,
    /// Energy; zero if unknown.
    #[serde(default)]
    pub joules: f64,
    /// Scratch bytes that are in use only while the task runs.
    #[serde(default)]
    pub workspace: u64,
    /// Bytes that belong to no value and are in use on the device from start to end if the task ever runs
    /// there, such as those of its weights.
    #[serde(default, skip_serializing_if = "no_bytes")]
    pub resident: u64,
}

/// `output` takes over the buffer of `input`, which is gone afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overwrite {
    /// One of the task's inputs.
    pub input: ValueId,
    /// One of the task's outputs, of the same size.
    pub output: ValueId,
}

/// One execution of one operator. Every task of a problem runs at least once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// A name for people to read; need not be unique.
    pub name: String,
    /// The part of the training step to which the task belongs.
    pub phase: Phase,
    /// Values that the task reads, each at most once.
    pub inputs: Vec<ValueId>,
    /// Values that the task writes, all of them in every run.
    pub outputs: Vec<ValueId>,
    /// In-place pairs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overwrites: Vec<Overwrite>,
    /// One entry per device that can run the task, by ascending device.
    pub modes: Vec<Mode>,
    /// Whether the task may run more than once. Updates may not; a random operator may, because it reuses the
    /// random state of its first run.
    pub rerunnable: bool,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The value is in the memory of this device when the plan starts. It can't be made again.
    Given(DeviceId),
    /// This task writes the value.
    Task(TaskId),
}

/// Where a value must be when the plan ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Nowhere.
    #[default]
    No,
    /// On at least one device.
    Anywhere,
    /// On this device.
    On(DeviceId),
}

/// One storage. Views of a storage share one value; lowering has merged them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// A name for people to read; need not be unique.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// What writes it.
    pub origin: Origin,
    /// Whether and where it must be present at the end.
    #[serde(default)]
    pub keep: Keep,
}

/// What the numbers of a problem mean, for people to read. Our own problems use seconds and bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Units {
    /// Unit of `seconds` fields, e.g. `s`.
    pub cost: String,
    /// Unit of `bytes` fields, e.g. `B`.
    pub memory: String,
}

impl Default for Units {
    fn default() -> Self {
        Units {
            cost: "s".into(),
            memory: "B".into(),
        }
    }
}

impl Units {
    /// Bytes in one unit of memory; none if the unit isn't a number of bytes.
    #[must_use]
    pub fn bytes_per_unit(&self) -> Option<u64> {
        match self.memory.as_str() {
            "B" => Some(1),
            "KiB" => Some(1 << 10),
            "MiB" => Some(1 << 20),
            _ => None,
        }
    }

    /// Seconds in one unit of cost; none if the unit isn't a time.
    #[must_use]
    pub fn seconds_per_unit(&self) -> Option<f64> {
        // Published costs also come in units like `1/100 ms`.
        let fraction = self
            .cost
            .strip_prefix("1/")
            .and_then(|rest| rest.split_once(' '));
        let (divisor, unit) = match fraction {
            Some((divisor, unit)) => (divisor.parse::<u32>().ok()?, unit),
            None => (1, self.cost.as_str()),
        };
        let seconds = match unit {
            "s" => 1.0,
            "ms" => 1e-3,
            "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        (divisor > 0).then(|| seconds / f64::from(divisor))
    }

    /// Formats an amount of memory: `1.50 GiB`, or `1500 abstract units`.
    #[must_use]
    pub fn format_memory(&self, amount: u64) -> String {
        match self
            .bytes_per_unit()
            .and_then(|unit| amount.checked_mul(unit))
        {
            Some(bytes) => format_bytes(bytes),
            None => format!("{amount} {}", self.memory),
        }
    }

    /// Formats an amount of cost: `12.3 ms`, or `47769 abstract time units`.
    #[must_use]
    pub fn format_cost(&self, amount: f64) -> String {
        match self.seconds_per_unit() {
            Some(unit) => format_seconds(amount * unit),
            None => format!("{amount} {}", self.cost),
        }
    }
}

/// The fields of a problem before validation.
#[derive(Clone, Debug, Default)]
pub struct ProblemParts {
    /// A name for people to read.
    pub name: String,
    /// What the numbers mean.
    pub units: Units,
    /// All devices; at least one computes.
    pub devices: PrimaryMap<DeviceId, Device>,
    /// All links; at most one per directed pair of devices.
    pub links: PrimaryMap<LinkId, Link>,
    /// All tasks, in the given order.
    pub tasks: PrimaryMap<TaskId, Task>,
    /// All values, in any order.
    pub values: PrimaryMap<ValueId, Value>,
    /// Groups of tasks. All runs of the tasks of one group are on the same device.
    pub together: Vec<Vec<TaskId>>,
}

impl Task {
    /// How the task runs on a device, if it can run there.
    #[must_use]
    pub fn mode(&self, device: DeviceId) -> Option<&Mode> {
        self.modes.iter().find(|mode| mode.device == device)
    }

    /// The output that takes over the buffer of this input, if there is one.
    #[must_use]
    pub fn overwritten_by(&self, input: ValueId) -> Option<ValueId> {
        self.overwrites
            .iter()
            .find(|pair| pair.input == input)
            .map(|pair| pair.output)
    }

    /// The input whose buffer this output takes over, if there is one.
    #[must_use]
    pub fn takes_over(&self, output: ValueId) -> Option<ValueId> {
        self.overwrites
            .iter()
            .find(|pair| pair.output == output)
            .map(|pair| pair.input)
    }
}
