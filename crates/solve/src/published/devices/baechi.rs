//! Baechi's planners (Jeon et al., SoCC 2020), which place under limits on memory.
//!
//! A task takes memory for good on its device: what stays resident there, and those of its outputs that are kept
//! or read in another phase. Its workspace and other outputs are taken only while it runs. A device has memory
//! for a task if both fit beside what was taken for good before. Baechi's devices run one task at a time, so its
//! planners leave a concurrent device out wherever another one can run the task.
//!
//! * `m-topo` fills one device after another in the given order, each up to the smaller of its capacity and
//!   `all bytes / devices + largest task`.
//! * `m-etf` repeatedly takes the ready task and the device with memory that can start first; of equal starts,
//!   the task with the longest path before it (`rank_u`).
//! * `m-sct` solves the linear program of Hanen and Munier (1995) for each task's favourite child, which should
//!   follow on the same device, and then proceeds like `m-etf`, except that for the time of the transfer to its
//!   favourite child a device waits for that child alone.

use std::sync::Arc;

use cranelift_entity::EntityRef;
use scrimp_plan::{DeviceId, Keep, TaskId};
use scrimp_solvers::Highs;
use scrimp_solvers::highs::{Column, Kind, Model, Start};

use super::list::{Schedule, mean_transfer, rank_u};
use super::system::{Run, System};
use crate::error::SolveError;
use crate::options::Options;
use crate::published::checkmate::solver_options;

/// Bytes that a task takes for good, and those that it takes while it runs.
#[derive(Clone, Copy)]
struct Need {
    lasting: u64,
    passing: u64,
}

/// The bytes of the devices while tasks are placed.
struct Memory<'s, 'a> {
    system: &'s System<'a>,
    /// By device.
    taken: Vec<u64>,
    limits: Vec<u64>,
    /// By group, the bytes for good of all its tasks were taken here.
    groups: Vec<bool>,
}

impl<'s, 'a> Memory<'s, 'a> {
    fn new(system: &'s System<'a>) -> Self {
        let (problem, capacities) = (system.problem, system.capacities);
        let devices = || problem.devices().keys();
        let limit = |device| capacities.bytes(device).unwrap_or(u64::MAX);
        let fixed = |device| {
            let only_here = problem.resident_bytes(device) - problem.devices()[device].resident;
            problem.fixed_bytes(device) - only_here
        };
        Memory {
            system,
            taken: devices().map(fixed).collect(),
            limits: devices().map(limit).collect(),
            groups: vec![false; problem.together().len()],
        }
    }

    fn of_one(&self, task: TaskId, device: DeviceId) -> Need {
        let (problem, what) = (self.system.problem, self.system.problem.task(task));
        let mode = what.mode(device);
        let mut need = Need {
            lasting: mode.map_or(0, |mode| mode.resident),
            passing: mode.map_or(0, |mode| mode.workspace),
        };
        for &value in &what.outputs {
            let readers = problem.consumers(value).iter();
            let mut phases = readers.map(|&reader| problem.task(reader).phase);
            let kept = problem.value(value).keep != Keep::No;
            let bytes = match what.takes_over(value) {
                Some(_) => 0,
                None => problem.value(value).bytes,
            };
            match kept || phases.any(|phase| phase != what.phase) {
                true => need.lasting += bytes,
                false => need.passing += bytes,
            }
        }
        need
    }

    /// The first task of a group takes the bytes for good of all.
    fn need(&self, task: TaskId, device: DeviceId) -> Need {
        let mut need = self.of_one(task, device);
        if let Some(group) = self.system.problem.group(task) {
            let tasks = self.system.problem.together()[group].iter();
            let all = tasks.map(|&task| self.of_one(task, device).lasting).sum();
            need.lasting = if self.groups[group] { 0 } else { all };
        }
        need
    }

    fn fits(&self, task: TaskId, device: DeviceId) -> bool {
        let Need { lasting, passing } = self.need(task, device);
        let i = device.index();
        self.taken[i].saturating_add(lasting + passing) <= self.limits[i]
    }

    fn take(&mut self, task: TaskId, device: DeviceId) {
        self.taken[device.index()] += self.need(task, device).lasting;
        if let Some(group) = self.system.problem.group(task) {
            self.groups[group] = true;
        }
    }

    /// The devices with memory for a task; concurrent ones only if no other has.
    fn devices(&self, schedule: &Schedule<'_, '_>, task: TaskId) -> Vec<DeviceId> {
        let concurrent = |device: &DeviceId| self.system.problem.devices()[*device].concurrent;
        let mut devices = schedule.devices(task);
        devices.retain(|&device| self.fits(task, device));
        if !devices.iter().all(concurrent) {
            devices.retain(|device| !concurrent(device));
        }
        devices
    }

    /// The error where no device has memory for a task.
    fn full(&self, schedule: &Schedule<'_, '_>, task: TaskId) -> SolveError {
        let device = schedule.devices(task).into_iter().min_by_key(|&device| {
            let Need { lasting, passing } = self.need(task, device);
            (self.taken[device.index()] + lasting + passing)
                .saturating_sub(self.limits[device.index()])
        });
        let Some(device) = device else {
            return self
                .system
                .unsupported("no device can run all tasks of a group");
        };
        let Need { lasting, passing } = self.need(task, device);
        let problem = self.system.problem;
        SolveError::NoRoom {
            method: self.system.method.name(),
            device: problem.devices()[device].name.clone(),
            budget: self.limits[device.index()],
            least: self.taken[device.index()] + lasting + passing,
            floor: crate::bound::devices::floor(problem, device),
        }
    }
}

pub(super) fn m_topo(system: &System<'_>) -> Result<Vec<Option<Run>>, SolveError> {
    let mut memory = Memory::new(system);
    let mut schedule = Schedule::new(system);
    let tasks = system.problem.tasks();
    let bytes = |task: TaskId| {
        let needs = system.allowed(task).into_iter();
        let needs = needs.map(|device| memory.of_one(task, device));
        needs
            .map(|need| need.lasting + need.passing)
            .max()
            .unwrap_or(0)
    };
    let all: Vec<u64> = tasks.keys().map(bytes).collect();
    let concurrent = |device: DeviceId| system.problem.devices()[device].concurrent;
    let devices = system.devices.iter().filter(|&&device| !concurrent(device));
    let count = devices.count().max(1) as u64;
    let share = all.iter().sum::<u64>() / count + all.iter().max().unwrap_or(&0);
    let mut filled = vec![0u64; system.problem.devices().len()];
    let mut current = 0;
    for task in tasks.keys() {
        let bytes = all[task.index()];
        let devices = memory.devices(&schedule, task);
        let later = devices.iter().copied().find(|device| {
            let i = device.index();
            i >= current && (concurrent(*device) || filled[i] + bytes <= share)
        });
        let Some(device) = later.or(devices.first().copied()) else {
            return Err(memory.full(&schedule, task));
        };
        filled[device.index()] += bytes;
        if !concurrent(device) && system.problem.group(task).is_none() {
            current = current.max(device.index());
        }
        memory.take(task, device);
        let mut run = schedule.fitted(task, device);
        run.start = run.start.max(schedule.free(device));
        run.end = run.start + system.seconds(task, device);
        schedule.place(run);
    }
    Ok(schedule.runs)
}

pub(super) fn m_etf(system: &System<'_>) -> Result<Vec<Option<Run>>, SolveError> {
    earliest_first(system, &vec![None; system.problem.tasks().len()])
}

pub(super) fn m_sct(
    system: &System<'_>,
    options: &Options,
) -> Result<Vec<Option<Run>>, SolveError> {
    earliest_first(system, &favourites(system, options)?)
}

/// `m-etf`, with the favourite child of each task, if it has one.
fn earliest_first(
    system: &System<'_>,
    favourites: &[Option<TaskId>],
) -> Result<Vec<Option<Run>>, SolveError> {
    let ranks = rank_u(system);
    let mut memory = Memory::new(system);
    let mut schedule = Schedule::new(system);
    // By device, the child that it waits for, and until when.
    let mut awaited: Vec<Option<(TaskId, f64)>> = vec![None; system.problem.devices().len()];
    loop {
        let mut best: Option<Run> = None;
        let ready: Vec<TaskId> = schedule.ready().collect();
        for &task in &ready {
            let devices = memory.devices(&schedule, task);
            if devices.is_empty() {
                return Err(memory.full(&schedule, task));
            }
            for device in devices {
                let data = system.ready(task, device, &schedule.runs);
                let mut start = data.max(schedule.free(device));
                if let Some((child, until)) = awaited[device.index()]
                    && child != task
                {
                    start = start.max(until);
                }
                let run = Run {
                    task,
                    device,
                    start,
                    end: start + system.seconds(task, device),
                };
                let better = |best: &Run| {
                    let ranks = ranks[task.index()].total_cmp(&ranks[best.task.index()]);
                    start.total_cmp(&best.start).then(ranks.reverse()).is_lt()
                };
                if best.as_ref().is_none_or(better) {
                    best = Some(run);
                }
            }
        }
        let Some(run) = best else {
            return Ok(schedule.runs);
        };
        if !run.end.is_finite() {
            let name = &system.problem.task(run.task).name;
            let what = format!("no device with memory for task {name} can get all its inputs");
            return Err(system.unsupported(&what));
        }
        memory.take(run.task, run.device);
        schedule.place(run);
        for waiting in &mut awaited {
            *waiting = waiting.filter(|(child, _)| *child != run.task);
        }
        awaited[run.device.index()] = favourites[run.task.index()]
            .map(|child| (child, run.end + mean_transfer(system, run.task, child)));
    }
}

/// A task, one of its readers, and the edge's `x`.
type Edge = (usize, usize, Column);

/// What counts as zero in the relaxed solution: Baechi's threshold.
const FAVOURITE: f64 = 0.1;

/// Each task's favourite child, by the relaxation of: minimize `w`, where `x` of an edge is 0 if the edge leads
/// to a favourite child,
///
/// ```text
/// start(i) + seconds(i) + transfer(i, j) · x(i, j) ≤ start(j)
/// start(i) + seconds(i) ≤ w
/// Σ over readers j of x(i, j) ≥ readers − 1,  Σ over sources i of x(i, j) ≥ sources − 1
/// ```
fn favourites(system: &System<'_>, options: &Options) -> Result<Vec<Option<TaskId>>, SolveError> {
    let highs = Highs::load(options.highs.as_deref())?;
    let n = system.problem.tasks().len();
    let seconds: Vec<f64> = (0..n)
        .map(|i| system.mean_seconds(TaskId::new(i)))
        .collect();
    // So that rows are about as large as one.
    let unit = (seconds.iter().sum::<f64>() / n as f64).max(f64::MIN_POSITIVE);
    let mut model = Model::new();
    let free = (0.0, f64::INFINITY);
    let end = model.column(1.0, free.0, free.1, Kind::Continuous);
    let starts: Vec<Column> = (0..n)
        .map(|_| model.column(0.0, free.0, free.1, Kind::Continuous))
        .collect();
    let mut edges: Vec<Edge> = Vec::new();
    for (reader, sources) in system.sources.iter().enumerate() {
        for (source, values) in sources.iter().filter(|(_, values)| !values.is_empty()) {
            let x = model.column(0.0, 0.0, 1.0, Kind::Continuous);
            let transfer = system.mean_transfer(values) / unit;
            let i = source.index();
            let terms = [(starts[i], 1.0), (x, transfer), (starts[reader], -1.0)];
            model.row(f64::NEG_INFINITY, -seconds[i] / unit, &terms);
            edges.push((i, reader, x));
        }
    }
    for (i, &start) in starts.iter().enumerate() {
        let terms = [(start, 1.0), (end, -1.0)];
        model.row(f64::NEG_INFINITY, -seconds[i] / unit, &terms);
        let ends: [fn(&Edge) -> usize; 2] = [|edge| edge.0, |edge| edge.1];
        for of in ends {
            let own = edges.iter().filter(|edge| of(edge) == i);
            let terms: Vec<(Column, f64)> = own.map(|edge| (edge.2, 1.0)).collect();
            if terms.len() > 1 {
                model.row(terms.len() as f64 - 1.0, f64::INFINITY, &terms);
            }
        }
    }
    let solver = solver_options(options, options.time_limit);
    let start = Start::default();
    let solution = highs.solve(&Arc::new(model), &solver, start, &mut |_| {
        !options.stopped()
    })?;
    let mut favourites = vec![None; n];
    let mut chosen = vec![false; n];
    if solution.values.is_empty() {
        return Err(SolveError::unsupported(
            system.method.name(),
            "its linear program wasn't solved within the time limit",
        ));
    }
    for (i, reader, x) in edges {
        if solution.values[x.index()] < FAVOURITE && favourites[i].is_none() && !chosen[reader] {
            favourites[i] = Some(TaskId::new(reader));
            chosen[reader] = true;
        }
    }
    Ok(favourites)
}
