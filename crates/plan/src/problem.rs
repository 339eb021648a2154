//! The planning problem: devices, links, tasks and values. No operators and no tensor contents.
//!
//! # Vocabulary and units
//!
//! * Memory is in **bytes** (`u64`). Instances may use another unit; the arithmetic is the same and
//!   [`Units`] says which it is.
//! * Time is in **seconds** (`f64`, finite, not negative), energy in **joules**; again, instances
//!   may use another unit of cost.
//! * Intervals are half-open, `[start, end)`, and counted in steps of a plan.
//!
//! # Invariants, checked by [`Problem::new`]
//!
//! * Ids are in range; every output names its task as origin, every value has one origin.
//! * The index order of tasks is executable as it stands on one device with enough memory: a task
//!   reads only values that are given or produced by a task of smaller index, and an overwritten
//!   value has no reader of larger index than the task that overwrites it. Hence the graph is acyclic.
//! * Costs are finite, not negative and at most [`MAX_COST`](crate::validate::MAX_COST); what could be
//!   on a device at once is at most [`MAX_BYTES`](crate::validate::MAX_BYTES), so that sums of bytes
//!   and signed differences of them don't overflow.
//! * There is at least one task and one device that computes; device names are distinct; a link joins
//!   two different devices, and at most one link joins them in that direction.
//! * An overwriting task reads the overwritten value, writes the overwriting one, and both have the
//!   same size. A value is overwritten by at most one task.
//! * A value that is overwritten isn't kept: it is gone when that task has run, and every task runs.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{DeviceId, LinkId, TaskId, ValueId};
use crate::units::{format_bytes, format_seconds};
use crate::validate::{ProblemError, validate};

/// A memory space. The host that swapped values go to is a device that doesn't compute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Unique among the devices of a problem.
    pub name: String,
    /// The budget: bytes in use never exceed it. `None` is unlimited.
    pub capacity: Option<u64>,
    /// Whether tasks can run here.
    pub computes: bool,
    /// Bytes in use at all times that no value of the problem accounts for.
    #[serde(default)]
    pub resident: u64,
}

/// A directed connection. Its copies run one after another, beside compute.
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
    /// Seconds of particular values, where they don't follow from bandwidth and latency.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub seconds: BTreeMap<ValueId, f64>,
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
    /// Energy; zero where unknown.
    #[serde(default)]
    pub joules: f64,
    /// Scratch bytes in use only while the task runs.
    #[serde(default)]
    pub workspace: u64,
}

/// `output` takes the buffer of `input`, which is gone afterwards.
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
    /// For people; need not be unique.
    pub name: String,
    /// The part of the step it belongs to.
    pub phase: Phase,
    /// Values it reads, each at most once.
    pub inputs: Vec<ValueId>,
    /// Values it writes, all of them at every run.
    pub outputs: Vec<ValueId>,
    /// In-place pairs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overwrites: Vec<Overwrite>,
    /// One entry per device that can run it, by ascending device.
    pub modes: Vec<Mode>,
    /// Whether it may run more than once. Updates may not; a random operator may, with the random
    /// state of its first run.
    pub rerunnable: bool,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// In memory of this device when the plan starts. It can't be made again.
    Given(DeviceId),
    /// Written by this task.
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

/// One storage. Views of it share it; lowering has merged them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// For people; need not be unique.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// Who writes it.
    pub origin: Origin,
    /// Whether it must be there at the end.
    #[serde(default)]
    pub keep: Keep,
}

/// What the numbers of a problem mean, for people. Ours are seconds and bytes.
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
    /// Bytes in one unit of memory; none if it isn't a number of bytes.
    #[must_use]
    pub fn bytes_per_unit(&self) -> Option<u64> {
        match self.memory.as_str() {
            "B" => Some(1),
            "KiB" => Some(1 << 10),
            "MiB" => Some(1 << 20),
            _ => None,
        }
    }

    /// Whether costs are in seconds.
    #[must_use]
    pub fn in_seconds(&self) -> bool {
        self.cost == "s"
    }

    /// An amount of memory for people: `1.50 GiB`, or `1500 abstract units`.
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

    /// An amount of cost for people: `12.3 ms`, or `47769 abstract units`.
    #[must_use]
    pub fn format_cost(&self, amount: f64) -> String {
        if self.in_seconds() {
            format_seconds(amount)
        } else {
            format!("{amount} {}", self.cost)
        }
    }
}

/// The fields of a problem before validation.
#[derive(Clone, Debug, Default)]
pub struct ProblemParts {
    /// For people.
    pub name: String,
    /// What the numbers mean.
    pub units: Units,
    /// At least one that computes.
    pub devices: PrimaryMap<DeviceId, Device>,
    /// At most one per directed pair.
    pub links: PrimaryMap<LinkId, Link>,
    /// In the given order.
    pub tasks: PrimaryMap<TaskId, Task>,
    /// In any order.
    pub values: PrimaryMap<ValueId, Value>,
}

/// A valid planning problem; see the module's documentation for what valid means. Cloning is cheap:
/// everything but the devices is shared.
#[derive(Clone, Debug)]
pub struct Problem {
    devices: PrimaryMap<DeviceId, Device>,
    shared: Arc<Shared>,
}

/// What does not depend on capacities.
#[derive(Debug)]
struct Shared {
    name: String,
    units: Units,
    links: PrimaryMap<LinkId, Link>,
    tasks: PrimaryMap<TaskId, Task>,
    values: PrimaryMap<ValueId, Value>,
    consumers: SecondaryMap<ValueId, Vec<TaskId>>,
    overwriter: SecondaryMap<ValueId, PackedOption<TaskId>>,
    /// `[from][to]`, for all pairs of devices.
    link_between: Vec<PackedOption<LinkId>>,
}

impl Problem {
    /// Validates every invariant of this module and derives the reverse edges.
    ///
    /// # Errors
    /// The first invariant that doesn't hold, with the task, value, device or link at fault.
    pub fn new(parts: ProblemParts) -> Result<Problem, ProblemError> {
        validate(&parts)?;
        let ProblemParts {
            name,
            units,
            devices,
            links,
            tasks,
            values,
        } = parts;
        let mut consumers: SecondaryMap<ValueId, Vec<TaskId>> = SecondaryMap::new();
        let mut overwriter = SecondaryMap::new();
        for (id, task) in tasks.iter() {
            for &input in &task.inputs {
                consumers[input].push(id);
            }
            for pair in &task.overwrites {
                overwriter[pair.input] = PackedOption::from(id);
            }
        }
        let mut link_between = vec![PackedOption::default(); devices.len() * devices.len()];
        for (id, link) in links.iter() {
            link_between[link.from.index() * devices.len() + link.to.index()] = id.into();
        }
        let shared = Shared {
            name,
            units,
            links,
            tasks,
            values,
            consumers,
            overwriter,
            link_between,
        };
        Ok(Problem {
            devices,
            shared: Arc::new(shared),
        })
    }

    /// For people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// What the numbers mean.
    #[must_use]
    pub fn units(&self) -> &Units {
        &self.shared.units
    }

    /// All devices.
    #[must_use]
    pub fn devices(&self) -> &PrimaryMap<DeviceId, Device> {
        &self.devices
    }

    /// All links.
    #[must_use]
    pub fn links(&self) -> &PrimaryMap<LinkId, Link> {
        &self.shared.links
    }

    /// All tasks, in the given order.
    #[must_use]
    pub fn tasks(&self) -> &PrimaryMap<TaskId, Task> {
        &self.shared.tasks
    }

    /// All values.
    #[must_use]
    pub fn values(&self) -> &PrimaryMap<ValueId, Value> {
        &self.shared.values
    }

    /// One task.
    ///
    /// # Panics
    /// If the id isn't of this problem.
    #[must_use]
    pub fn task(&self, task: TaskId) -> &Task {
        &self.shared.tasks[task]
    }

    /// One value.
    ///
    /// # Panics
    /// If the id isn't of this problem.
    #[must_use]
    pub fn value(&self, value: ValueId) -> &Value {
        &self.shared.values[value]
    }

    /// The tasks that read a value, ascending; the task that overwrites it is one of them.
    #[must_use]
    pub fn consumers(&self, value: ValueId) -> &[TaskId] {
        &self.shared.consumers[value]
    }

    /// The task that overwrites a value, if there is one.
    #[must_use]
    pub fn overwriter(&self, value: ValueId) -> Option<TaskId> {
        self.shared.overwriter[value].expand()
    }

    /// The task that writes a value; none for a given value.
    ///
    /// # Panics
    /// If the id isn't of this problem.
    #[must_use]
    pub fn producer(&self, value: ValueId) -> Option<TaskId> {
        match self.value(value).origin {
            Origin::Given(_) => None,
            Origin::Task(task) => Some(task),
        }
    }

    /// The link from one device to another, if there is one.
    #[must_use]
    pub fn link_between(&self, from: DeviceId, to: DeviceId) -> Option<LinkId> {
        let count = self.devices.len();
        if from.index() >= count || to.index() >= count {
            return None;
        }
        self.shared.link_between[from.index() * count + to.index()].expand()
    }

    /// Seconds that a copy of a value over a link takes, waiting not included.
    ///
    /// # Panics
    /// If an id isn't of this problem.
    #[must_use]
    pub fn copy_seconds(&self, link: LinkId, value: ValueId) -> f64 {
        let link = &self.shared.links[link];
        match link.seconds.get(&value) {
            Some(&seconds) => seconds,
            None => link.latency + self.value(value).bytes as f64 / link.bandwidth,
        }
    }

    /// The same problem with another budget on one device. Any capacity is valid, though not every
    /// one can be met.
    ///
    /// # Panics
    /// If the device isn't of this problem.
    #[must_use]
    pub fn with_capacity(&self, device: DeviceId, capacity: Option<u64>) -> Problem {
        let mut changed = self.clone();
        changed.devices[device].capacity = capacity;
        changed
    }

    /// Bytes in use on a device whatever the plan: resident bytes, and the given values that can
    /// never leave. A given value can't leave when no link leads out of the device and it is kept, or
    /// heads a chain of overwriting tasks that ends in a kept value.
    ///
    /// # Panics
    /// If the device isn't of this problem.
    #[must_use]
    pub fn fixed_bytes(&self, device: DeviceId) -> u64 {
        let mut bytes = self.devices[device].resident;
        if self.shared.links.values().any(|link| link.from == device) {
            return bytes;
        }
        for (id, value) in self.values().iter() {
            if value.origin == Origin::Given(device) && self.ends_kept(id) {
                bytes += value.bytes;
            }
        }
        bytes
    }

    /// Whether the value, or the last one of the overwriting chain it heads, is kept.
    fn ends_kept(&self, mut value: ValueId) -> bool {
        while let Some(task) = self.overwriter(value) {
            let pair = self
                .task(task)
                .overwrites
                .iter()
                .find(|pair| pair.input == value);
            match pair {
                Some(pair) => value = pair.output,
                None => break,
            }
        }
        self.value(value).keep != Keep::No
    }

    /// Cost of running every task once: the sum of its seconds on the first computing device, or on
    /// the first device it can run on where it can't run there.
    #[must_use]
    pub fn base_cost(&self) -> f64 {
        let first = self
            .devices
            .iter()
            .find(|(_, device)| device.computes)
            .map(|(id, _)| id);
        let seconds = |task: &Task| {
            let mode = first
                .and_then(|device| task.mode(device))
                .or(task.modes.first());
            mode.map_or(0.0, |mode| mode.seconds)
        };
        self.tasks().values().map(seconds).sum()
    }

    /// The computing device, if there is just one.
    #[must_use]
    pub fn sole_device(&self) -> Option<DeviceId> {
        let mut computing = self.devices.iter().filter(|(_, device)| device.computes);
        match (computing.next(), computing.next()) {
            (Some((id, _)), None) => Some(id),
            _ => None,
        }
    }

    /// A copy of the fields, to build a changed problem from.
    #[must_use]
    pub fn parts(&self) -> ProblemParts {
        self.clone().into_parts()
    }

    /// The fields.
    #[must_use]
    pub fn into_parts(self) -> ProblemParts {
        let Shared {
            name,
            units,
            links,
            tasks,
            values,
            ..
        } = &*self.shared;
        ProblemParts {
            name: name.clone(),
            units: units.clone(),
            devices: self.devices,
            links: links.clone(),
            tasks: tasks.clone(),
            values: values.clone(),
        }
    }
}

impl Task {
    /// How the task runs on a device, if it can.
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
