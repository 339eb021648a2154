//! A record of one step: when each run and each copy took place, and how much memory was in use.

use cranelift_entity::PrimaryMap;
use scrimp_plan::{CheckedPlan, DeviceId, LinkId, Step, TaskId, ValueId};

use super::memories::Location;
use super::schedule::{Action, Launch, Schedule, Transfer};

/// A record of one step.
#[derive(Clone, Debug, Default)]
pub struct StepTrace {
    /// Wall-clock time of the whole step.
    pub seconds: f64,
    /// Time that each device that computes waited for copies between runs.
    pub waiting: PrimaryMap<DeviceId, f64>,
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
        let devices = || plan.problem().devices().keys();
        let steps = plan.steps().len();
        StepTrace {
            seconds: 0.0,
            waiting: devices().map(|_| 0.0).collect(),
            runs: Vec::with_capacity(count(|step| matches!(step, Step::Run { .. }))),
            copies: Vec::with_capacity(count(|step| matches!(step, Step::Copy { .. }))),
            in_use: devices().map(|_| Vec::with_capacity(steps)).collect(),
        }
    }

    /// Forgets the last step but for what [`StepTrace::add`] overwrites.
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.copies.clear();
    }

    /// Adds what one device did, in a plan of this many steps. The runs are then out of order.
    pub(super) fn add(&mut self, record: &Record, steps: usize) {
        self.waiting[record.device] = record.waiting;
        self.runs.extend_from_slice(&record.runs);
        let in_use = &mut self.in_use[record.device];
        in_use.clear();
        let mut now = record.given;
        for (&step, &[during, after]) in record.steps.iter().zip(&record.noted) {
            in_use.resize(step, now);
            in_use.push(during);
            now = after;
        }
        in_use.resize(steps, now);
    }

    pub(super) fn sort(&mut self) {
        self.runs.sort_unstable_by_key(|run| run.step);
        self.copies.sort_unstable_by_key(|copy| copy.step);
    }
}

/// What one device has done in this step so far: the steps that concern it are its runs, its frees and the
/// copies into it.
#[derive(Debug)]
pub(super) struct Record {
    pub device: DeviceId,
    /// The steps that concern it, in order.
    pub steps: Vec<usize>,
    /// Bytes in use at the start.
    given: u64,
    now: u64,
    /// Bytes in use during and after each of its steps.
    noted: Vec<[u64; 2]>,
    pub runs: Vec<RunTrace>,
    pub waiting: f64,
}

impl Record {
    pub fn new(device: DeviceId, schedule: &Schedule) -> Record {
        let actions = schedule.actions.iter().enumerate();
        let own = actions.filter(|(_, action)| action.device() == device);
        let steps: Vec<usize> = own.map(|(step, _)| step).collect();
        let given = schedule.given.iter().filter(|at| at.device == device);
        Record {
            device,
            given: given.map(|at| at.span.bytes).sum(),
            now: 0,
            noted: Vec::with_capacity(steps.len()),
            runs: Vec::with_capacity(steps.len()),
            waiting: 0.0,
            steps,
        }
    }

    pub fn begin(&mut self) {
        self.now = self.given;
        self.noted.clear();
        self.runs.clear();
        self.waiting = 0.0;
    }

    pub fn run(&mut self, launch: &Launch) {
        self.now += launch.fresh.iter().map(|at| at.span.bytes).sum::<u64>();
        let workspace = launch.workspace.map_or(0, |at| at.span.bytes);
        self.noted.push([self.now + workspace, self.now]);
    }

    pub fn free(&mut self, at: Location) {
        let during = self.now;
        self.now -= at.span.bytes;
        self.noted.push([during, self.now]);
    }

    pub fn copy(&mut self, transfer: &Transfer) {
        self.now += transfer.to.span.bytes;
        self.noted.push([self.now, self.now]);
    }

    /// The steps of a memory that doesn't compute, as if they were done one after the other.
    pub fn count(&mut self, schedule: &Schedule) {
        self.begin();
        for index in 0..self.steps.len() {
            match &schedule.actions[self.steps[index]] {
                Action::Run(launch) => self.run(launch),
                Action::Free(at) => self.free(*at),
                Action::Copy(transfer) => self.copy(transfer),
            }
        }
    }
}
