//! A validated problem, and what follows from its fields.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};
use std::sync::Arc;

use super::parts::{Device, Keep, Link, Origin, ProblemParts, Task, Units, Value};
use super::validate::{ProblemError, validate};
use crate::ids::{DeviceId, LinkId, TaskId, ValueId};
use crate::plan::{Plan, Step};

/// A valid planning problem; [`crate::problem`] lists the invariants. Clones share their contents.
#[derive(Clone, Debug)]
pub struct Problem {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    units: Units,
    devices: PrimaryMap<DeviceId, Device>,
    links: PrimaryMap<LinkId, Link>,
    tasks: PrimaryMap<TaskId, Task>,
    values: PrimaryMap<ValueId, Value>,
    consumers: SecondaryMap<ValueId, Vec<TaskId>>,
    overwriter: SecondaryMap<ValueId, PackedOption<TaskId>>,
    together: Vec<Vec<TaskId>>,
    group: SecondaryMap<TaskId, Option<usize>>,
    /// By `[from][to]`, for all pairs of devices.
    link_between: Vec<PackedOption<LinkId>>,
}

impl Problem {
    /// Validates every invariant of [`crate::problem`] and derives the reverse edges.
    ///
    /// # Errors
    /// The first invariant that doesn't hold, with the offending task, value, device or link.
    pub fn new(parts: ProblemParts) -> Result<Problem, ProblemError> {
        validate(&parts)?;
        let ProblemParts {
            name,
            units,
            devices,
            links,
            tasks,
            values,
            together,
        } = parts;
        let mut group = SecondaryMap::new();
        for (i, tasks) in together.iter().enumerate() {
            tasks.iter().for_each(|&task| group[task] = Some(i));
        }
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
            devices,
            links,
            tasks,
            values,
            consumers,
            overwriter,
            together,
            group,
            link_between,
        };
        Ok(Problem {
            shared: Arc::new(shared),
        })
    }

    /// The name, for people to read.
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
        &self.shared.devices
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
    /// If the problem has no such task.
    #[must_use]
    pub fn task(&self, task: TaskId) -> &Task {
        &self.shared.tasks[task]
    }

    /// One value.
    ///
    /// # Panics
    /// If the problem has no such value.
    #[must_use]
    pub fn value(&self, value: ValueId) -> &Value {
        &self.shared.values[value]
    }

    /// The tasks that read a value, ascending, including the task that overwrites it.
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
    /// If the problem has no such value.
    #[must_use]
    pub fn producer(&self, value: ValueId) -> Option<TaskId> {
        match self.value(value).origin {
            Origin::Given(_) => None,
            Origin::Task(task) => Some(task),
        }
    }

    /// Groups of tasks whose runs are all on the same device.
    #[must_use]
    pub fn together(&self) -> &[Vec<TaskId>] {
        &self.shared.together
    }

    /// The index of a task's group in [`together`](Problem::together), if it is in one.
    #[must_use]
    pub fn group(&self, task: TaskId) -> Option<usize> {
        self.shared.group[task]
    }

    /// The link from one device to another, if there is one.
    #[must_use]
    pub fn link_between(&self, from: DeviceId, to: DeviceId) -> Option<LinkId> {
        let count = self.devices().len();
        if from.index() >= count || to.index() >= count {
            return None;
        }
        self.shared.link_between[from.index() * count + to.index()].expand()
    }

    /// Seconds that a copy of a value over a link takes, not counting waits.
    ///
    /// # Panics
    /// If the problem has no such link or value.
    #[must_use]
    pub fn copy_seconds(&self, link: LinkId, value: ValueId) -> f64 {
        let link = &self.shared.links[link];
        match link.seconds.get(&value) {
            Some(&seconds) => seconds,
            None => link.latency + self.value(value).bytes as f64 / link.bandwidth,
        }
    }

    /// Joules that a copy of a value over a link takes.
    ///
    /// # Panics
    /// If the problem has no such link or value.
    #[must_use]
    pub fn copy_joules(&self, link: LinkId, value: ValueId) -> f64 {
        let link = &self.shared.links[link];
        link.joules + self.value(value).bytes as f64 * link.joules_per_byte
    }

    /// The link in whose queue the copies of a link wait: the link itself, or the one whose queue it shares.
    ///
    /// # Panics
    /// If the problem has no such link.
    #[must_use]
    pub fn queue(&self, link: LinkId) -> LinkId {
        self.shared.links[link].queue.unwrap_or(link)
    }

    /// The values that one buffer holds in turn: this value, then each value that overwrites its predecessor.
    ///
    /// # Panics
    /// If the problem has no such value.
    pub fn chain(&self, value: ValueId) -> impl Iterator<Item = ValueId> + '_ {
        std::iter::successors(Some(value), |&value| {
            self.task(self.overwriter(value)?).overwritten_by(value)
        })
    }

    /// The given values of a device whose buffers are in use from start to end, whatever runs there. Each is
    /// kept, or is the head of a [`chain`](Problem::chain) that ends in a kept value. Only a copy to another
    /// memory could make room for a while.
    pub fn fixed(&self, device: DeviceId) -> impl Iterator<Item = ValueId> + '_ {
        let stays = move |value: ValueId| match self.chain(value).last() {
            Some(last) => match self.value(last).keep {
                Keep::No => false,
                Keep::Anywhere => true,
                Keep::On(at) => at == device,
            },
            None => false,
        };
        let values = self.values().iter();
        let given = values.filter(move |(_, value)| value.origin == Origin::Given(device));
        given.map(|(id, _)| id).filter(move |&id| stays(id))
    }

    /// Bytes that are in use on a device at all times, whatever runs there: resident bytes and those of
    /// [`fixed`](Problem::fixed) values. Other devices and links don't change this number.
    ///
    /// # Panics
    /// If the problem has no such device.
    #[must_use]
    pub fn fixed_bytes(&self, device: DeviceId) -> u64 {
        let values: u64 = self.fixed(device).map(|id| self.value(id).bytes).sum();
        self.resident_bytes(device) + values
    }

    /// Bytes that belong to no value and are in use on a device at all times, whatever the plan: those of the
    /// device, and those of tasks that can run nowhere else.
    ///
    /// # Panics
    /// If the problem has no such device.
    #[must_use]
    pub fn resident_bytes(&self, device: DeviceId) -> u64 {
        let only_here = |task: &Task| match task.modes.as_slice() {
            [mode] if mode.device == device => mode.resident,
            _ => 0,
        };
        let tasks: u64 = self.tasks().values().map(only_here).sum();
        self.devices()[device].resident + tasks
    }

    /// Cost of running every task once, each on the first device that can run it, as a sum of seconds.
    #[must_use]
    pub fn base_cost(&self) -> f64 {
        let seconds = |task: &Task| task.modes.first().map_or(0.0, |mode| mode.seconds);
        self.tasks().values().map(seconds).sum()
    }

    /// The only device that computes, if there is just one. A plan for one device, its budget and its report
    /// are about this device.
    #[must_use]
    pub fn sole_device(&self) -> Option<DeviceId> {
        let mut computing = self.devices().iter().filter(|(_, device)| device.computes);
        match (computing.next(), computing.next()) {
            (Some((id, _)), None) => Some(id),
            _ => None,
        }
    }

    /// This problem with chains of values that live elsewhere: each of these values is given on its device, and
    /// the last value of its [`chain`](Problem::chain) must end there if it is kept.
    ///
    /// # Errors
    /// If one of the values isn't given, or there is no such device.
    ///
    /// # Panics
    /// If the problem has no such value.
    pub fn with_homes(&self, homes: &[(ValueId, DeviceId)]) -> Result<Problem, ProblemError> {
        let mut parts = self.parts();
        for &(value, device) in homes {
            parts.values[value].origin = Origin::Given(device);
            let last = self.chain(value).last().unwrap_or(value);
            if parts.values[last].keep != Keep::No {
                parts.values[last].keep = Keep::On(device);
            }
        }
        Problem::new(parts)
    }

    /// The given values that live elsewhere under a plan: it first reads them or copies them from there, or frees
    /// them there.
    #[must_use]
    pub fn homes_under(&self, plan: &Plan) -> Vec<(ValueId, DeviceId)> {
        let mut given: SecondaryMap<ValueId, Option<DeviceId>> = SecondaryMap::new();
        for (value, what) in self.values().iter() {
            if let Origin::Given(device) = what.origin {
                given[value] = Some(device);
            }
        }
        let mut homes = Vec::new();
        let mut first = |value: ValueId, device: DeviceId| {
            if given
                .get(value)
                .is_some_and(|home| home.is_some_and(|home| home != device))
            {
                homes.push((value, device));
            }
            given[value] = None;
        };
        for step in &plan.steps {
            match *step {
                Step::Run { task, device } => {
                    let inputs = self.tasks().get(task).map(|task| &task.inputs);
                    inputs
                        .into_iter()
                        .flatten()
                        .for_each(|&value| first(value, device));
                }
                Step::Free { value, device } if self.values().is_valid(value) => {
                    first(value, device)
                }
                Step::Copy { value, from, .. } if self.values().is_valid(value) => {
                    first(value, from)
                }
                Step::Free { .. } | Step::Copy { .. } => {}
            }
        }
        homes
    }

    /// This problem with the bytes of every value and every workspace rounded up to a multiple, to which a
    /// placement that stacks buffers then aligns all offsets. A file that is read and written directly needs
    /// that.
    ///
    /// # Errors
    /// If a sum of sizes overflows.
    ///
    /// # Panics
    /// If `multiple` is 0.
    pub fn rounded_up(&self, multiple: u64) -> Result<Problem, ProblemError> {
        let round = |bytes: &mut u64| *bytes = bytes.div_ceil(multiple).saturating_mul(multiple);
        let mut parts = self.parts();
        for value in parts.values.values_mut() {
            round(&mut value.bytes);
        }
        for mode in parts.tasks.values_mut().flat_map(|task| &mut task.modes) {
            round(&mut mode.workspace);
        }
        Problem::new(parts)
    }

    /// A copy of the fields, from which a changed problem can be built.
    #[must_use]
    pub fn parts(&self) -> ProblemParts {
        let Shared {
            name,
            units,
            devices,
            links,
            tasks,
            values,
            together,
            ..
        } = &*self.shared;
        ProblemParts {
            name: name.clone(),
            units: units.clone(),
            devices: devices.clone(),
            links: links.clone(),
            tasks: tasks.clone(),
            values: values.clone(),
            together: together.clone(),
        }
    }
}
