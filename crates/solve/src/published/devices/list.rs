//! HEFT and CPOP (Topcuoglu, Hariri and Wu, TPDS 2002): list scheduling on devices of different speeds.
//!
//! Both rank tasks by `rank_u(i) = mean seconds(i) + max over readers j (mean transfer(i, j) + rank_u(j))`, the
//! length of the path that a task begins. HEFT takes tasks by decreasing rank, and puts each where it ends first,
//! in an idle gap if it fits. CPOP takes the ready task with the largest sum of `rank_u` and `rank_d`, the
//! length of the longest path before it; tasks with the largest sum of all, a critical path, all go to the one
//! device that runs them fastest.
//!
//! Beyond the papers: tasks of one group follow the first of them, a concurrent device has no gaps to look for,
//! and what a task overwrites must have been read.

use cranelift_entity::EntityRef;
use scrimp_plan::{DeviceId, TaskId};

use super::system::{Run, System};
use crate::error::SolveError;

/// A schedule under construction.
pub(super) struct Schedule<'s, 'a> {
    pub system: &'s System<'a>,
    /// By task.
    pub runs: Vec<Option<Run>>,
    /// By device, when it is busy, in order of time.
    busy: Vec<Vec<(f64, f64)>>,
    /// By group, where its first task went.
    groups: Vec<Option<DeviceId>>,
}

impl<'s, 'a> Schedule<'s, 'a> {
    pub fn new(system: &'s System<'a>) -> Self {
        let problem = system.problem;
        Schedule {
            system,
            runs: vec![None; problem.tasks().len()],
            busy: vec![Vec::new(); problem.devices().len()],
            groups: vec![None; problem.together().len()],
        }
    }

    /// The devices on which a task can still go.
    pub fn devices(&self, task: TaskId) -> Vec<DeviceId> {
        let group = self.system.problem.group(task);
        match group.and_then(|group| self.groups[group]) {
            Some(device) => vec![device],
            None => self.system.allowed(task),
        }
    }

    /// The run of a task on a device in the first idle gap.
    pub fn fitted(&self, task: TaskId, device: DeviceId) -> Run {
        let seconds = self.system.seconds(task, device);
        let mut start = self.system.ready(task, device, &self.runs);
        if !self.system.problem.devices()[device].concurrent {
            for &(from, to) in &self.busy[device.index()] {
                if start + seconds <= from {
                    break;
                }
                start = start.max(to);
            }
        }
        Run {
            task,
            device,
            start,
            end: start + seconds,
        }
    }

    /// When a device has done all that it was given.
    pub fn free(&self, device: DeviceId) -> f64 {
        match self.system.problem.devices()[device].concurrent {
            true => 0.0,
            false => self.busy[device.index()].last().map_or(0.0, |busy| busy.1),
        }
    }

    pub fn place(&mut self, run: Run) {
        let busy = &mut self.busy[run.device.index()];
        let at = busy.partition_point(|&(from, to)| (from, to) <= (run.start, run.end));
        busy.insert(at, (run.start, run.end));
        self.runs[run.task.index()] = Some(run);
        if let Some(group) = self.system.problem.group(run.task) {
            self.groups[group] = Some(run.device);
        }
    }

    /// The run with which a task ends first.
    pub fn earliest(&self, task: TaskId) -> Result<Run, SolveError> {
        let runs = self.devices(task).into_iter();
        let runs = runs.map(|device| self.fitted(task, device));
        let first = runs.min_by(|a, b| a.end.total_cmp(&b.end));
        first.filter(|run| run.end.is_finite()).ok_or_else(|| {
            let name = &self.system.problem.task(task).name;
            let what = format!("no device that can run task {name} can get all its inputs");
            self.system.unsupported(&what)
        })
    }

    /// The tasks whose sources have all been placed.
    pub fn ready(&self) -> impl Iterator<Item = TaskId> + '_ {
        let placed = |task: TaskId| self.runs[task.index()].is_some();
        self.system.problem.tasks().keys().filter(move |&task| {
            let mut sources = self.system.sources[task.index()].iter();
            !placed(task) && sources.all(|&(source, _)| placed(source))
        })
    }
}

/// The mean seconds of bringing what a reader reads from one of its sources.
pub(super) fn mean_transfer(system: &System<'_>, source: TaskId, reader: TaskId) -> f64 {
    let mut sources = system.sources[reader.index()].iter();
    let values = sources.find(|(task, _)| *task == source);
    values.map_or(0.0, |(_, values)| system.mean_transfer(values))
}

/// By task.
pub(super) fn rank_u(system: &System<'_>) -> Vec<f64> {
    let n = system.problem.tasks().len();
    let mut ranks = vec![0.0; n];
    // Ids are in executable order.
    for task in (0..n).rev().map(TaskId::new) {
        let readers = system.readers[task.index()].iter();
        let paths = readers.map(|&r| mean_transfer(system, task, r) + ranks[r.index()]);
        ranks[task.index()] = system.mean_seconds(task) + paths.fold(0.0, f64::max);
    }
    ranks
}

fn rank_d(system: &System<'_>) -> Vec<f64> {
    let mut ranks = vec![0.0; system.problem.tasks().len()];
    for task in system.problem.tasks().keys() {
        let sources = system.sources[task.index()].iter();
        let paths = sources.map(|(source, values)| {
            ranks[source.index()] + system.mean_seconds(*source) + system.mean_transfer(values)
        });
        ranks[task.index()] = paths.fold(0.0, f64::max);
    }
    ranks
}

pub(super) fn heft(system: &System<'_>) -> Result<Vec<Option<Run>>, SolveError> {
    let ranks = rank_u(system);
    let mut order: Vec<TaskId> = system.problem.tasks().keys().collect();
    // The sort is stable, so tasks without seconds come after their sources.
    order.sort_by(|a, b| ranks[b.index()].total_cmp(&ranks[a.index()]));
    let mut schedule = Schedule::new(system);
    for task in order {
        schedule.place(schedule.earliest(task)?);
    }
    Ok(schedule.runs)
}

/// The part of a priority by which sums of the same numbers may differ.
const ROUNDING: f64 = 1e-9;

pub(super) fn cpop(system: &System<'_>) -> Result<Vec<Option<Run>>, SolveError> {
    let (up, down) = (rank_u(system), rank_d(system));
    let priority: Vec<f64> = up.iter().zip(down).map(|(up, down)| up + down).collect();
    let most = priority.iter().copied().fold(0.0, f64::max);
    let critical = |task: &TaskId| priority[task.index()] >= most * (1.0 - ROUNDING);
    let tasks = system.problem.tasks();
    let entry = tasks
        .keys()
        .find(|task| system.sources[task.index()].is_empty() && critical(task));
    let next = |task: &TaskId| system.readers[task.index()].iter().copied().find(critical);
    let path: Vec<TaskId> = std::iter::successors(entry, next).collect();
    let total =
        |device: &DeviceId| -> f64 { path.iter().map(|&task| system.seconds(task, *device)).sum() };
    let devices = system.devices.iter().copied();
    let best = devices.min_by(|a, b| total(a).total_cmp(&total(b)));
    // If no device can run the whole path, its tasks go where they end first, like the others.
    let best = best.filter(|device| total(device).is_finite());
    let mut schedule = Schedule::new(system);
    while let Some(task) = {
        let ready = schedule.ready();
        ready.max_by(|a, b| {
            let first = b.cmp(a);
            priority[a.index()]
                .total_cmp(&priority[b.index()])
                .then(first)
        })
    } {
        let there =
            best.filter(|device| path.contains(&task) && schedule.devices(task).contains(device));
        let run = there.map(|device| schedule.fitted(task, device));
        schedule.place(match run.filter(|run| run.end.is_finite()) {
            Some(run) => run,
            None => schedule.earliest(task)?,
        });
    }
    Ok(schedule.runs)
}
