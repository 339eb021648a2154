//! A record of one step: when each run and each copy took place, and how much memory was in use.

use cranelift_entity::PrimaryMap;
use scrimp_plan::{CheckedPlan, DeviceId, LinkId, Step, TaskId, ValueId};

use super::memories::{InUse, Location};

/// A record of one step.
#[derive(Clone, Debug, Default)]
pub struct StepTrace {
    /// Wall-clock time of the whole step.
    pub seconds: f64,
    /// Time that the device that computes waited for copies between runs.
    pub waiting: f64,
    /// The runs, in the plan's order.
    pub runs: Vec<RunTrace>,
    /// The copies, in the plan's order.
    pub copies: Vec<CopyTrace>,
    /// Bytes in use on each device during each step of the plan: the buffers that were taken and not given
    /// back, and the workspace of the run. For a memory that doesn't compute they are in the plan's order: its
    /// copies may run ahead or behind, within its arena.
    pub in_use: PrimaryMap<DeviceId, Vec<u64>>,
}

/// A record of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunTrace {
    /// Index of the plan's step.
    pub step: usize,
    /// The task that ran.
    pub task: TaskId,
    /// Wall-clock time from the step's start.
    pub start: f64,
    /// Wall-clock time.
    pub seconds: f64,
}

/// A record of one copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyTrace {
    /// Index of the plan's step.
    pub step: usize,
    /// The value that was copied.
    pub value: ValueId,
    /// The link that the copy took.
    pub link: LinkId,
    /// Wall-clock time from the step's start.
    pub start: f64,
    /// Wall-clock time.
    pub seconds: f64,
}

impl StepTrace {
    pub(super) fn with_room_for(plan: &CheckedPlan) -> StepTrace {
        let count = |wanted: fn(&Step) -> bool| {
            let steps = plan.steps().iter();
            steps.filter(|step| wanted(step)).count()
        };
        let devices = plan.problem().devices().keys();
        let steps = plan.steps().len();
        StepTrace {
            seconds: 0.0,
            waiting: 0.0,
            runs: Vec::with_capacity(count(|step| matches!(step, Step::Run { .. }))),
            copies: Vec::with_capacity(count(|step| matches!(step, Step::Copy { .. }))),
            in_use: devices.map(|_| Vec::with_capacity(steps)).collect(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.waiting = 0.0;
        self.runs.clear();
        self.copies.clear();
        self.in_use.values_mut().for_each(Vec::clear);
    }

    /// Notes the bytes in use during a step, including the workspace of its run.
    pub(super) fn count(&mut self, now: &InUse, workspace: Option<Location>) {
        for (device, in_use) in self.in_use.iter_mut() {
            let besides = workspace.filter(|at| at.device == device);
            in_use.push(now.0[device] + besides.map_or(0, |at| at.span.bytes));
        }
    }
}
