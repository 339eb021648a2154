//! What the checker proved: the plan, when each buffer is held, and how many bytes are in use.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::capacities::Capacities;
use crate::check::excess::Excess;
use crate::ids::{BufferId, DeviceId, LinkId, TaskId, ValueId};
use crate::plan::{Plan, Step};
use crate::problem::Problem;
use crate::simulate::simulate;

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferKind {
    /// The buffer holds this value from its start, and then in turn each value that overwrites it.
    Value(ValueId),
    /// The buffer is scratch memory of one run of this task.
    Workspace(TaskId),
}

/// One allocation on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The device whose memory it takes.
    pub device: DeviceId,
    /// Its size.
    pub bytes: u64,
    /// The first step during which it is held; 0 if it exists when the plan starts.
    pub start: usize,
    /// The end of the half-open interval of steps during which it is held: one past the step that frees it,
    /// or the number of steps. Always greater than `start`.
    pub end: usize,
    /// What it is for.
    pub kind: BufferKind,
}

/// The buffers that one step touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// For a run, the task's inputs in order; for a copy, the source; for a free, the freed buffer.
    pub inputs: Vec<BufferId>,
    /// For a run, the task's outputs in order; for a copy, the destination. An overwritten input and its
    /// output share one buffer.
    pub outputs: Vec<BufferId>,
    /// Scratch memory of a run whose mode has workspace bytes.
    pub workspace: Option<BufferId>,
}

/// Totals over all copies of one link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Copied {
    /// Bytes copied.
    pub bytes: u64,
    /// Seconds, not counting waits.
    pub seconds: f64,
    /// Energy taken.
    pub joules: f64,
}

/// A plan that keeps every rule of [`check`](fn@crate::check) for its problem.
#[derive(Clone, Debug)]
pub struct CheckedPlan {
    pub(super) problem: Problem,
    pub(super) plan: Plan,
    pub(super) resident: PrimaryMap<DeviceId, u64>,
    pub(super) profiles: PrimaryMap<DeviceId, Vec<u64>>,
    pub(super) held_at_end: PrimaryMap<DeviceId, SecondaryMap<ValueId, PackedOption<BufferId>>>,
    pub(super) cost: f64,
    pub(super) joules: PrimaryMap<DeviceId, f64>,
    pub(super) copied: PrimaryMap<LinkId, Copied>,
    pub(super) keeps_order: bool,
    pub(super) recomputed: usize,
    pub(super) buffers: PrimaryMap<BufferId, Buffer>,
    pub(super) bindings: Vec<Binding>,
    pub(super) given: SecondaryMap<ValueId, PackedOption<BufferId>>,
}

impl CheckedPlan {
    /// The problem that was planned.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan's steps.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.plan.steps
    }

    /// The tasks in the order they run.
    pub fn runs(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.steps().iter().filter_map(|step| match step {
            Step::Run { task, .. } => Some(*task),
            _ => None,
        })
    }

    /// The most bytes in use on a device, including resident bytes.
    ///
    /// # Panics
    /// If the problem has no such device. The methods below panic likewise for ids of another problem.
    #[must_use]
    pub fn peak(&self, device: DeviceId) -> u64 {
        self.profiles[device].iter().copied().max().unwrap_or(0)
    }

    /// Bytes in use on a device during all steps that belong to no value: those of the device, and those of the
    /// tasks that run there.
    #[must_use]
    pub fn resident(&self, device: DeviceId) -> u64 {
        self.resident[device]
    }

    /// Bytes in use on a device during each step, including resident bytes.
    #[must_use]
    pub fn profile(&self, device: DeviceId) -> &[u64] {
        &self.profiles[device]
    }

    /// Whether the plan stays within these capacities.
    ///
    /// # Errors
    /// For each device whose bytes the plan exceeds, the first step that exceeds them; and each device whose
    /// joules it exceeds.
    pub fn within(&self, capacities: &Capacities) -> Result<(), Vec<Excess>> {
        let devices = self.problem.devices().keys();
        let excesses: Vec<Excess> = devices
            .flat_map(|device| {
                let bytes = self.bytes_over(device, capacities);
                bytes
                    .into_iter()
                    .chain(self.joules_over(device, capacities))
            })
            .collect();
        if excesses.is_empty() {
            Ok(())
        } else {
            Err(excesses)
        }
    }

    fn bytes_over(&self, device: DeviceId, capacities: &Capacities) -> Option<Excess> {
        let capacity = capacities.bytes(device)?;
        let mut profile = self.profiles[device].iter().enumerate();
        let (step, &bytes) = profile.find(|&(_, &bytes)| bytes > capacity)?;
        Some(Excess::Bytes {
            step,
            device,
            bytes,
            capacity,
        })
    }

    fn joules_over(&self, device: DeviceId, capacities: &Capacities) -> Option<Excess> {
        let cap = capacities.joules(device)?;
        let joules = self.joules(device);
        (joules > cap).then_some(Excess::Joules {
            device,
            joules,
            cap,
        })
    }

    /// Sum of the joules of all runs on a device.
    #[must_use]
    pub fn joules(&self, device: DeviceId) -> f64 {
        self.joules[device]
    }

    /// What all copies over a link moved and took.
    #[must_use]
    pub fn copied(&self, link: LinkId) -> Copied {
        self.copied[link]
    }

    /// Sum of the joules of all runs and copies.
    #[must_use]
    pub fn total_joules(&self) -> f64 {
        let copies = self.copied.values().map(|copied| copied.joules);
        self.joules.values().sum::<f64>() + copies.sum::<f64>()
    }

    /// The makespan plus `alpha` times the joules of all runs and copies. A planner that is given a price of a
    /// joule minimizes this.
    #[must_use]
    pub fn objective(&self, alpha: f64) -> f64 {
        simulate(self).makespan() + alpha * self.total_joules()
    }

    /// Sum of the seconds of all runs. On one device without copies nothing waits, so this is the makespan;
    /// for several devices and links see [`simulate`](crate::simulate()).
    #[must_use]
    pub fn cost(&self) -> f64 {
        self.cost
    }

    /// Sum of the seconds of all runs and copies, as if each waited for the one before.
    #[must_use]
    pub fn serial_seconds(&self) -> f64 {
        let copies = self.copied.values().map(|copied| copied.seconds);
        self.cost + copies.sum::<f64>()
    }

    /// Whether first runs follow the given order of the tasks.
    #[must_use]
    pub fn keeps_order(&self) -> bool {
        self.keeps_order
    }

    /// The number of runs beyond the first of each task.
    #[must_use]
    pub fn recomputed(&self) -> usize {
        self.recomputed
    }

    /// All buffers, in the order in which they start.
    #[must_use]
    pub fn buffers(&self) -> &PrimaryMap<BufferId, Buffer> {
        &self.buffers
    }

    /// The buffers that a step touches.
    #[must_use]
    pub fn binding(&self, step: usize) -> &Binding {
        &self.bindings[step]
    }

    /// The buffer that a given value has at the start.
    #[must_use]
    pub fn given_buffer(&self, value: ValueId) -> Option<BufferId> {
        self.given[value].expand()
    }

    /// The buffer that holds a value on a device at the end.
    #[must_use]
    pub fn final_buffer(&self, value: ValueId, device: DeviceId) -> Option<BufferId> {
        self.held_at_end[device][value].expand()
    }
}
