//! A bound on the makespan from the bytes that tasks take from start to end: a run that must end soon can't wait for
//! copies, so it ties runs of other tasks to its device, and these fit there together.
//!
//! Say that a run of task `j` on device `d` ends no later than `D`. Its inputs are there by `D − c(j, d)`, with `c` the
//! seconds of runs. An input whose maker `i` can't run elsewhere early enough, as
//!
//! ```text
//! E(i, e) + w(i, e, d) > D − c(j, d) for all devices e ≠ d
//! ```
//!
//! with `w` the seconds of the quickest route and `E(i, e)` when a run of `i` on `e` can end at the earliest, is made by a run on
//! `d`, which ends by `D − c(j, d)`; that run ties others in turn. `E(j, d)` is the least `D` for which all that `j` ties
//! can end in time, one after another, and fits on `d`. No plan within the capacities is shorter than the least `E(j, d)` of any task. Tasks that
//! run more than once change nothing: only that there is such a run is used. Tasks of a group, which are
//! to be on one device, tie each other, and one brings the bytes of all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::{Capacities, DeviceId, Keep, Origin, Problem, TaskId, ValueId};

/// Halvings of the interval in which an earliest end lies.
const HALVINGS: usize = 40;
/// The share of all times that rounding may take.
const ROUNDING: f64 = 1e-12;
/// The most inputs of tied tasks to look at; what comes after that work isn't tied.
const WORK: usize = 200_000_000;

/// The bound; 0 if no task has resident bytes. `route` is the least seconds of bringing a value from one device to
/// another.
pub(super) fn makespan(
    problem: &Problem,
    capacities: &Capacities,
    route: &dyn Fn(ValueId, DeviceId, DeviceId) -> f64,
) -> f64 {
    let modes = problem.tasks().values().flat_map(|task| &task.modes);
    if modes.clone().all(|mode| mode.resident == 0) {
        return 0.0;
    }
    let mut tied = Tied::new(problem, capacities, route);
    for (value, what) in problem.values().iter() {
        if let Origin::Given(_) = what.origin {
            tied.arrive(value);
        }
    }
    let mut bound = 0.0f64;
    for task in problem.tasks().keys() {
        for device in problem.devices().keys() {
            let end = match tied.like(device) {
                Some(other) => tied.ends[task][other.index()],
                None => tied.earliest(task, device),
            };
            tied.ends[task][device.index()] = end;
        }
        let outputs = problem.task(task).outputs.iter();
        outputs.for_each(|&value| tied.arrive(value));
        let least = tied.ends[task].iter().copied();
        let least = least.fold(f64::INFINITY, f64::min);
        // If a task can't be placed, other errors say so.
        if least.is_finite() {
            bound = bound.max(least);
        }
    }
    bound
}

struct Tied<'a> {
    problem: &'a Problem,
    route: &'a dyn Fn(ValueId, DeviceId, DeviceId) -> f64,
    rooms: PrimaryMap<DeviceId, f64>,
    /// For each device the first one that is like it in all that counts here.
    kinds: PrimaryMap<DeviceId, DeviceId>,
    /// By task and device, when a run can end at the earliest. So far only for tasks before the one in question.
    ends: PrimaryMap<TaskId, Vec<f64>>,
    /// By value and device, when a value that was made or given elsewhere can be there. So far only for values of these tasks.
    arrivals: PrimaryMap<ValueId, Vec<f64>>,
    /// Later than any end that is to be found: by then everything has run and been copied twice, one after another.
    horizon: f64,
    /// Seconds by which a time may be late, for rounding.
    slack: f64,
    /// When a run of a task that is tied must end at the latest; infinite for all others.
    latest: PrimaryMap<TaskId, f64>,
    work: usize,
}

impl<'a> Tied<'a> {
    fn new(
        problem: &'a Problem,
        capacities: &Capacities,
        route: &'a dyn Fn(ValueId, DeviceId, DeviceId) -> f64,
    ) -> Tied<'a> {
        let devices = problem.devices();
        let room = |(id, what): (DeviceId, &scrimp_plan::Device)| {
            let bytes = capacities.bytes(id);
            bytes.map_or(f64::INFINITY, |bytes| {
                bytes.saturating_sub(what.resident) as f64
            })
        };
        let rooms: PrimaryMap<DeviceId, f64> = devices.iter().map(room).collect();
        let slowest = problem.tasks().values().map(|task| {
            let seconds = task.modes.iter().map(|mode| mode.seconds);
            seconds.fold(0.0, f64::max)
        });
        let pairs: Vec<(DeviceId, DeviceId)> = devices
            .keys()
            .flat_map(|from| devices.keys().map(move |to| (from, to)))
            .collect();
        let longest = problem.values().keys().map(|value| {
            let routes = pairs.iter().map(|&(from, to)| route(value, from, to));
            routes
                .filter(|seconds| seconds.is_finite())
                .fold(0.0, f64::max)
        });
        let horizon = 2.0 * (slowest.sum::<f64>() + longest.sum::<f64>());
        Tied {
            kinds: kinds(problem, &rooms, route),
            horizon,
            slack: ROUNDING * horizon,
            ends: problem
                .tasks()
                .values()
                .map(|_| vec![f64::INFINITY; devices.len()])
                .collect(),
            arrivals: problem.values().values().map(|_| Vec::new()).collect(),
            latest: problem.tasks().values().map(|_| f64::INFINITY).collect(),
            problem,
            route,
            rooms,
            work: 0,
        }
    }

    /// An earlier device that is like this one.
    fn like(&self, device: DeviceId) -> Option<DeviceId> {
        Some(self.kinds[device]).filter(|&other| other != device)
    }

    /// Finds when a value that was made or given elsewhere can be on each device.
    fn arrive(&mut self, value: ValueId) {
        let origin = self.problem.value(value).origin;
        let devices = || self.problem.devices().keys();
        let there = |device: DeviceId| {
            let arrivals = devices().map(|other| {
                let from = match origin {
                    Origin::Given(home) if home == other => 0.0,
                    Origin::Task(maker) if other != device => self.ends[maker][other.index()],
                    Origin::Given(_) | Origin::Task(_) => f64::INFINITY,
                };
                from + (self.route)(value, other, device)
            });
            arrivals.fold(f64::INFINITY, f64::min)
        };
        self.arrivals[value] = devices().map(there).collect();
    }

    /// When a run of a task on a device can end at the earliest; infinite if it can't be there.
    fn earliest(&mut self, task: TaskId, device: DeviceId) -> f64 {
        let what = self.problem.task(task);
        let Some(mode) = what.mode(device) else {
            return f64::INFINITY;
        };
        // With each input from wherever it is soonest, and with all from elsewhere.
        let (mut soonest, mut apart) = (0.0f64, 0.0f64);
        for &value in &what.inputs {
            let elsewhere = self.arrivals[value][device.index()];
            let here = match self.problem.value(value).origin {
                Origin::Task(maker) => self.ends[maker][device.index()],
                Origin::Given(_) => f64::INFINITY,
            };
            soonest = soonest.max(here.min(elsewhere));
            apart = apart.max(elsewhere);
        }
        let (mut low, mut high) = (soonest + mode.seconds, apart + mode.seconds);
        if !low.is_finite() || self.work >= WORK || self.fits(task, device, low) {
            return low;
        }
        high = high.min(self.horizon);
        if !self.fits(task, device, high) {
            // Tasks of a group are tied even then.
            (low, high) = (low.max(high), self.horizon);
            if !self.fits(task, device, high) {
                return f64::INFINITY;
            }
        }
        for _ in 0..HALVINGS {
            let middle = low.midpoint(high);
            match self.fits(task, device, middle) {
                true => high = middle,
                false => low = middle,
            }
        }
        low
    }

    /// Whether all tasks that a run ties that ends no later than `end` can end in time and fit on its device.
    fn fits(&mut self, task: TaskId, device: DeviceId, end: f64) -> bool {
        let mut tied = BinaryHeap::from([task]);
        let mut seen = vec![task];
        self.latest[task] = end;
        let mut groups: Vec<usize> = Vec::new();
        let mut bytes = 0.0;
        let mut fits = true;
        // A task's inputs come from tasks before it, so all that tie a task come first.
        while let Some(next) = tied.pop() {
            let what = self.problem.task(next);
            let Some(mode) = what.mode(device) else {
                fits = false;
                break;
            };
            let latest = self.latest[next];
            bytes += match self.problem.group(next) {
                None => mode.resident as f64,
                Some(group) if groups.contains(&group) => 0.0,
                Some(group) => {
                    groups.push(group);
                    let members = self.problem.together()[group].iter();
                    let modes = members.filter_map(|&task| self.problem.task(task).mode(device));
                    modes.map(|mode| mode.resident as f64).sum()
                }
            };
            let in_time = next == task || self.ends[next][device.index()] <= latest + self.slack;
            if !in_time || bytes > self.rooms[device] {
                fits = false;
                break;
            }
            let by = latest - mode.seconds;
            self.work += what.inputs.len();
            for &value in &what.inputs {
                let Origin::Task(maker) = self.problem.value(value).origin else {
                    continue;
                };
                let together = self.problem.group(maker).is_some()
                    && self.problem.group(maker) == self.problem.group(next);
                if together || self.arrivals[value][device.index()] > by + self.slack {
                    if self.latest[maker].is_infinite() {
                        tied.push(maker);
                        seen.push(maker);
                    }
                    self.latest[maker] = self.latest[maker].min(by);
                }
            }
        }
        let fits = fits && self.in_turn(&seen, device);
        seen.iter()
            .for_each(|&task| self.latest[task] = f64::INFINITY);
        fits
    }

    /// Whether runs of all tied tasks can follow one another on a device, from their earliest starts to their latest ends, if each may
    /// be interrupted: then the one that must end first goes first (Jackson's rule).
    fn in_turn(&mut self, tied: &[TaskId], device: DeviceId) -> bool {
        if self.problem.devices()[device].concurrent {
            return true;
        }
        let seconds = |task: TaskId| {
            let mode = self.problem.task(task).mode(device);
            mode.map_or(0.0, |mode| mode.seconds)
        };
        let mut runs: Vec<Run> = tied
            .iter()
            .map(|&task| Run {
                start: self.ends[task][device.index()].min(self.latest[task]) - seconds(task),
                latest: self.latest[task],
                seconds: seconds(task),
            })
            .filter(|run| run.seconds > 0.0)
            .collect();
        self.work += runs.len();
        // Urgent runs have small indices.
        runs.sort_by(|a, b| a.latest.total_cmp(&b.latest));
        let mut by_start: Vec<usize> = (0..runs.len()).collect();
        by_start.sort_by(|&a, &b| runs[a].start.total_cmp(&runs[b].start));
        let mut ready = BinaryHeap::new();
        let mut now = 0.0f64;
        for (k, &new) in by_start.iter().enumerate() {
            ready.push(Reverse(new));
            now = now.max(runs[new].start);
            let until = by_start.get(k + 1);
            let until = until.map_or(f64::INFINITY, |&next| runs[next].start);
            while let Some(&Reverse(first)) = ready.peek() {
                if now >= until {
                    break;
                }
                let run = &mut runs[first];
                let spent = run.seconds.min(until - now);
                (now, run.seconds) = (now + spent, run.seconds - spent);
                if run.seconds > 0.0 {
                    break;
                }
                if now > run.latest + self.slack {
                    return false;
                }
                ready.pop();
            }
        }
        true
    }
}

/// A run of a tied task.
struct Run {
    start: f64,
    latest: f64,
    seconds: f64,
}

/// For each device the first one that is like it: tasks take the same there, and so do routes.
fn kinds(
    problem: &Problem,
    rooms: &PrimaryMap<DeviceId, f64>,
    route: &dyn Fn(ValueId, DeviceId, DeviceId) -> f64,
) -> PrimaryMap<DeviceId, DeviceId> {
    let devices = || problem.devices().keys();
    let named = |device: DeviceId| {
        let mut values = problem.values().values();
        values.any(|value| value.origin == Origin::Given(device) || value.keep == Keep::On(device))
    };
    let named: PrimaryMap<DeviceId, bool> = devices().map(named).collect();
    let alike = |a: DeviceId, b: DeviceId| {
        let cost = |task: &scrimp_plan::Task, device| {
            let mode = task.mode(device);
            mode.map(|mode| (mode.seconds, mode.resident))
        };
        let same_routes = |value: ValueId| {
            let others = devices().filter(|&other| other != a && other != b);
            let mut pairs = others.map(|other| {
                route(value, a, other) == route(value, b, other)
                    && route(value, other, a) == route(value, other, b)
            });
            route(value, a, b) == route(value, b, a) && pairs.all(|same| same)
        };
        rooms[a] == rooms[b]
            && problem.devices()[a].concurrent == problem.devices()[b].concurrent
            && problem
                .tasks()
                .values()
                .all(|task| cost(task, a) == cost(task, b))
            && problem.values().keys().all(same_routes)
    };
    devices()
        .map(|device| {
            let mut before = devices().take_while(|&other| other != device);
            let free = |other: DeviceId| !named[device] && !named[other];
            before
                .find(|&other| free(other) && alike(other, device))
                .unwrap_or(device)
        })
        .collect()
}
