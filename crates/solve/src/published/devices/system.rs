//! Tasks, devices and routes as the placement methods see them, and the plans of their placements.
//!
//! A copy between two devices takes the route of links whose seconds over all values are least, so a value
//! passes through the host where accelerators aren't linked. The methods assume that copies don't wait for one
//! another; the plan's makespan is the simulator's, where they queue.

use std::time::Instant;

use cranelift_entity::{EntityRef, SecondaryMap};
use scrimp_plan::{
    Capacities, CheckedPlan, DeviceId, Excess, Keep, Move, Origin, Problem, Sequence, TaskId,
    ValueId,
};

use crate::bound;
use crate::checked::checked;
use crate::error::SolveError;
use crate::method::Method;
use crate::options::{Options, Others, Solved};
use crate::routes::Routes;

/// When values are copied, and until when their sources are held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copies {
    /// To all devices that read a value right after it is made. The source is held to the end of the plan, so
    /// that no device waits for a copy to end before it can free what was copied.
    EarlyHeld,
    /// The same, and the source is freed after its last use.
    Early,
    /// To each device right before the first reader there.
    Late,
}

/// Where and when a task runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub task: TaskId,
    pub device: DeviceId,
    pub start: f64,
    pub end: f64,
}

pub(super) struct System<'a> {
    pub problem: &'a Problem,
    pub capacities: &'a Capacities,
    pub method: Method,
    /// The devices that compute.
    pub devices: Vec<DeviceId>,
    routes: Routes,
    /// By task, the tasks that write what it reads, with these values.
    /// Those that must come first because it overwrites what they read have no values.
    pub sources: Vec<Vec<(TaskId, Vec<ValueId>)>>,
    /// By task, the tasks that read what it writes.
    pub readers: Vec<Vec<TaskId>>,
}

impl<'a> System<'a> {
    pub fn new(problem: &'a Problem, capacities: &'a Capacities, method: Method) -> System<'a> {
        let computing = problem.devices().iter().filter(|(_, what)| what.computes);
        let mut readers = vec![Vec::new(); problem.tasks().len()];
        let mut sources = Vec::new();
        for (task, what) in problem.tasks().iter() {
            let mut from: Vec<(TaskId, Vec<ValueId>)> = Vec::new();
            for &value in &what.inputs {
                let Some(producer) = problem.producer(value) else {
                    continue;
                };
                match from.iter_mut().find(|(known, _)| *known == producer) {
                    Some((_, values)) => values.push(value),
                    None => {
                        readers[producer.index()].push(task);
                        from.push((producer, vec![value]));
                    }
                }
            }
            sources.push(from);
        }
        // Whatever overwrites a value comes after all others that read it.
        for value in problem.values().keys() {
            let Some(overwriter) = problem.overwriter(value) else {
                continue;
            };
            for &reader in problem.consumers(value) {
                let before: &mut Vec<(TaskId, Vec<ValueId>)> = &mut sources[overwriter.index()];
                if reader != overwriter && before.iter().all(|(task, _)| *task != reader) {
                    before.push((reader, Vec::new()));
                    readers[reader.index()].push(overwriter);
                }
            }
        }
        System {
            problem,
            capacities,
            method,
            devices: computing.map(|(id, _)| id).collect(),
            routes: Routes::new(problem),
            sources,
            readers,
        }
    }

    /// The devices on which a task may run: where it and its whole group can.
    pub fn allowed(&self, task: TaskId) -> Vec<DeviceId> {
        let alone = [task];
        let group = match self.problem.group(task) {
            Some(group) => self.problem.together()[group].as_slice(),
            None => &alone,
        };
        let can = |device: DeviceId| {
            let mut tasks = group.iter().map(|&task| self.problem.task(task));
            tasks.all(|task| task.mode(device).is_some())
        };
        let devices = self.devices.iter().copied();
        devices.filter(|&device| can(device)).collect()
    }

    /// Infinite where the task can't run.
    pub fn seconds(&self, task: TaskId, device: DeviceId) -> f64 {
        let mode = self.problem.task(task).mode(device);
        mode.map_or(f64::INFINITY, |mode| mode.seconds)
    }

    /// The mean over the devices on which the task may run.
    pub fn mean_seconds(&self, task: TaskId) -> f64 {
        let devices = self.allowed(task);
        let total: f64 = devices.iter().map(|&d| self.seconds(task, d)).sum();
        total / devices.len() as f64
    }

    /// Seconds of bringing values from one device to another.
    pub fn transfer(&self, values: &[ValueId], from: DeviceId, to: DeviceId) -> f64 {
        let seconds = |&value| self.routes.seconds(self.problem, value, from, to);
        values.iter().map(seconds).sum()
    }

    /// Joules of bringing a value from one device to another.
    pub fn transfer_joules(&self, value: ValueId, from: DeviceId, to: DeviceId) -> f64 {
        let links = self.routes.between(from, to).iter();
        links
            .map(|&link| self.problem.copy_joules(link, value))
            .sum()
    }

    /// The mean over all pairs of different devices with a route.
    pub fn mean_transfer(&self, values: &[ValueId]) -> f64 {
        let pairs = self
            .devices
            .iter()
            .flat_map(|&from| self.devices.iter().map(move |&to| (from, to)));
        let (mut sum, mut count) = (0.0, 0usize);
        for (from, to) in pairs.filter(|(from, to)| from != to) {
            let seconds = self.transfer(values, from, to);
            if seconds.is_finite() {
                sum += seconds;
                count += 1;
            }
        }
        sum / count.max(1) as f64
    }

    /// When what a task reads can be on a device, given where and when the tasks before it ran.
    pub fn ready(&self, task: TaskId, device: DeviceId, runs: &[Option<Run>]) -> f64 {
        let mut ready = 0.0f64;
        for (source, values) in &self.sources[task.index()] {
            let Some(run) = runs[source.index()] else {
                return f64::INFINITY;
            };
            ready = ready.max(run.end + self.transfer(values, run.device, device));
        }
        for &value in &self.problem.task(task).inputs {
            if let Origin::Given(home) = self.problem.value(value).origin {
                ready = ready.max(self.transfer(&[value], home, device));
            }
        }
        ready
    }

    /// The sequence of runs in a given order.
    fn sequence(
        &self,
        runs: &[(TaskId, DeviceId)],
        copies: Copies,
    ) -> Result<Sequence, SolveError> {
        let early = copies != Copies::Late;
        let mut wanted: SecondaryMap<ValueId, Vec<DeviceId>> = SecondaryMap::new();
        let mut made_on: SecondaryMap<TaskId, Vec<DeviceId>> = SecondaryMap::new();
        runs.iter()
            .for_each(|&(task, device)| made_on[task].push(device));
        for &(task, device) in runs {
            for &value in &self.problem.task(task).inputs {
                let made = self.problem.producer(value);
                if !made.is_some_and(|producer| made_on[producer].contains(&device)) {
                    wanted[value].push(device);
                }
            }
        }
        for (value, what) in self.problem.values().iter() {
            if let Keep::On(device) = what.keep {
                let made = self.problem.producer(value);
                if !made.is_some_and(|producer| made_on[producer].contains(&device)) {
                    wanted[value].push(device);
                }
            }
        }
        let mut copying = Copying {
            system: self,
            there: SecondaryMap::new(),
            moves: Vec::new(),
        };
        for (value, what) in self.problem.values().iter() {
            if let Origin::Given(home) = what.origin {
                copying.there[value].push(home);
                let at_once = |to: &&DeviceId| early || Keep::On(**to) == what.keep;
                for &to in wanted[value].iter().filter(at_once) {
                    copying.bring(value, to)?;
                }
            }
        }
        for &(task, device) in runs {
            let what = self.problem.task(task);
            for &value in &what.inputs {
                copying.bring(value, device)?;
            }
            copying.moves.push(Move::Run { task, device });
            for &value in &what.outputs {
                copying.there[value].push(device);
                let kept = self.problem.value(value).keep;
                let at_once = |to: &&DeviceId| early || Keep::On(**to) == kept;
                for &to in wanted[value].iter().filter(at_once) {
                    copying.bring(value, to)?;
                }
            }
        }
        let mut moves = copying.moves;
        if copies == Copies::EarlyHeld {
            let releases = moves.iter().filter_map(|made| match *made {
                Move::Copy { value, from, .. } if self.problem.overwriter(value).is_none() => {
                    Some(Move::Release {
                        value,
                        device: from,
                    })
                }
                _ => None,
            });
            moves.extend(releases.collect::<Vec<_>>());
        }
        Ok(Sequence { moves })
    }

    /// The outcome of a method that places each task once and knows when it runs: runs are issued in the order
    /// in which they end, so that no copy waits for the turn of a run that ends after it could begin.
    pub fn finish_schedule(
        &self,
        runs: &[Option<Run>],
        options: &Options,
        began: Instant,
    ) -> Result<Solved, SolveError> {
        let mut runs: Vec<Run> = runs.iter().copied().flatten().collect();
        let key = |run: &Run| (run.end, run.start);
        runs.sort_by(|a, b| {
            let (a, b, tasks) = (key(a), key(b), a.task.cmp(&b.task));
            a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(tasks)
        });
        let order: Vec<(TaskId, DeviceId)> = runs.iter().map(|r| (r.task, r.device)).collect();
        self.finish(&order, options, began)
    }

    /// The outcome of a method that places runs in a given order.
    pub fn finish(
        &self,
        runs: &[(TaskId, DeviceId)],
        options: &Options,
        began: Instant,
    ) -> Result<Solved, SolveError> {
        let mut best: Option<(f64, CheckedPlan)> = None;
        let mut refused = None;
        for copies in [Copies::EarlyHeld, Copies::Early, Copies::Late] {
            let sequence = self.sequence(runs, copies)?;
            let plan = checked(self.problem, &sequence, self.method.name())?;
            if let Err(excesses) = plan.within(self.capacities) {
                refused = Some(self.exceeded(&plan, excesses[0]));
                continue;
            }
            let cost = options.objective.cost(&plan, options.alpha);
            if best.as_ref().is_none_or(|best| cost < best.0) {
                best = Some((cost, plan));
            }
        }
        match (best, refused) {
            (Some((_, plan)), _) => Ok(self.solved(plan, options, began)),
            (None, Some(refusal)) => Err(refusal),
            (None, None) => unreachable!("each plan fits or is refused"),
        }
    }

    pub fn solved(&self, plan: CheckedPlan, options: &Options, began: Instant) -> Solved {
        let cost = options.objective.cost(&plan, options.alpha);
        let bound = bound::devices::cost(self.problem, self.capacities, options);
        Solved {
            others: Others::default(),
            optimal: cost <= bound * (1.0 + 1e-9),
            lower_bound: bound.min(cost),
            cost,
            plan,
            method: self.method,
            elapsed: began.elapsed(),
            note: None,
        }
    }

    /// The error of a plan that exceeds a capacity.
    pub fn exceeded(&self, plan: &CheckedPlan, excess: Excess) -> SolveError {
        match excess {
            Excess::Bytes {
                device, capacity, ..
            }
            | Excess::Arena {
                device,
                available: capacity,
                ..
            } => SolveError::NoRoom {
                method: self.method.name(),
                device: self.problem.devices()[device].name.clone(),
                budget: capacity,
                least: plan.peak(device),
                floor: bound::devices::floor(self.problem, device),
            },
            Excess::Joules {
                device,
                joules,
                cap,
            } => SolveError::EnergyCap {
                cap,
                least_found: Some(joules),
                floor: bound::devices::least_joules(self.problem, device),
            },
        }
    }

    /// A method that doesn't know what the problem has.
    pub fn unsupported(&self, what: &str) -> SolveError {
        SolveError::unsupported(self.method.name(), what)
    }
}

/// Copies under way.
struct Copying<'s, 'a> {
    system: &'s System<'a>,
    there: SecondaryMap<ValueId, Vec<DeviceId>>,
    moves: Vec<Move>,
}

impl Copying<'_, '_> {
    /// Copies a value to a device, from wherever that is quickest, unless it is there.
    fn bring(&mut self, value: ValueId, to: DeviceId) -> Result<(), SolveError> {
        if self.there[value].contains(&to) {
            return Ok(());
        }
        let (system, problem) = (self.system, self.system.problem);
        let seconds = |from: &DeviceId| system.routes.seconds(problem, value, *from, to);
        let sources = self.there[value].iter().copied();
        let nearest = sources.min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        let Some(from) = nearest.filter(|from| seconds(from).is_finite()) else {
            let name = &problem.devices()[to].name;
            return Err(system.unsupported(&format!(
                "no links lead to {name} from where value {} is",
                problem.value(value).name
            )));
        };
        for &link in system.routes.between(from, to) {
            let link = &problem.links()[link];
            if !self.there[value].contains(&link.to) {
                let (from, to) = (link.from, link.to);
                self.moves.push(Move::Copy { value, from, to });
                self.there[value].push(to);
            }
        }
        Ok(())
    }
}
