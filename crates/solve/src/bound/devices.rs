//! Bounds for problems whose tasks run on several devices. No plan within the capacities costs less; only bound 4
//! is higher where there is less memory.
//!
//! *Serial.* Each device against all others, as a minimum cut: see [`crate::cut`].
//!
//! *Makespan*, the largest of:
//!
//! 1. The longest path of tasks, where a value that another device reads takes at least its quickest route
//!    there. `L(i, d) = c(i, d) + max over inputs min over d' (L(source, d') + route(d', d))` is when a run of
//!    `i` on `d` can end at the earliest.
//! 2. Busy time. For any shares that sum to one, the makespan is at least the sum, over devices and queues of
//!    links, of share times busy time; and this sum is at least a minimum cut with the shares as prices. Shares
//!    follow the busy times of earlier cuts (multiplicative weights).
//! 3. Head, load and tail: for the tasks that start no sooner than `h` and have at least `q` of path behind
//!    them, `h + load + q`, where the load is bound 2 without copies for these tasks.
//! 4. Tasks that would have to be on one device to end in time, but don't fit there: see [`super::tied`].

use cranelift_entity::EntityRef;
use scrimp_plan::{Capacities, DeviceId, Keep, LinkId, Origin, Problem, TaskId, ValueId};

use super::tied;
use crate::cut::{self, Prices, divide};
use crate::method::Objective;
use crate::options::Options;

/// Cuts and steps by which shares are found.
const CUTS: usize = 24;
const STEPS: usize = 60;
/// Heads and tails that are tried.
const LEVELS: usize = 8;

/// A bound for problems whose tasks may run on several devices: no plan within the capacities costs less, by the
/// options' objective and price of a joule, in the objective's unit.
pub fn cost(problem: &Problem, capacities: &Capacities, options: &Options) -> f64 {
    let alpha = options.alpha;
    let seconds = |task: TaskId, device: DeviceId| {
        let mode = problem.task(task).mode(device);
        mode.map_or(0.0, |mode| mode.seconds)
    };
    let joules = |task: TaskId, device: DeviceId| {
        let mode = problem.task(task).mode(device);
        mode.map_or(0.0, |mode| mode.joules)
    };
    match options.objective {
        Objective::Serial => cheapest_cut(
            problem,
            &|task, device| seconds(task, device) + alpha * joules(task, device),
            &|link, value| {
                problem.copy_seconds(link, value) + alpha * problem.copy_joules(link, value)
            },
        ),
        Objective::Makespan => {
            let energy = match alpha > 0.0 {
                true => cheapest_cut(problem, &joules, &|link, value| {
                    problem.copy_joules(link, value)
                }),
                false => 0.0,
            };
            makespan(problem, capacities) + alpha * energy
        }
    }
}

/// The dearest of the cuts of each device from the others.
fn cheapest_cut(
    problem: &Problem,
    run: &dyn Fn(TaskId, DeviceId) -> f64,
    copy: &dyn Fn(LinkId, ValueId) -> f64,
) -> f64 {
    let computing = problem.devices().iter().filter(|(_, what)| what.computes);
    let bounds = computing.filter_map(|(inside, _)| {
        let crossing = Crossing { problem, inside };
        let into = |value| crossing.cheapest(&|link| link.to, value, copy).0;
        let out = |value| crossing.cheapest(&|link| link.from, value, copy).0;
        let prices = Prices {
            run,
            into: &into,
            out: &out,
        };
        divide(problem, inside, &prices).map(|division| division.cost)
    });
    bounds.fold(0.0, f64::max)
}

/// The links that lead to or from one device.
#[derive(Clone, Copy)]
struct Crossing<'a> {
    problem: &'a Problem,
    inside: DeviceId,
}

impl Crossing<'_> {
    /// The cheapest link whose end is inside, with what it costs; infinite without links.
    fn cheapest(
        &self,
        end: &dyn Fn(&scrimp_plan::Link) -> DeviceId,
        value: ValueId,
        price: &dyn Fn(LinkId, ValueId) -> f64,
    ) -> (f64, Option<LinkId>) {
        let links = self.problem.links().iter();
        let crossing = links.filter(|(_, link)| end(link) == self.inside);
        let priced = crossing.map(|(id, _)| (price(id, value), Some(id)));
        priced
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or((f64::INFINITY, None))
    }
}

fn makespan(problem: &Problem, capacities: &Capacities) -> f64 {
    let paths = Paths::new(problem);
    let route = |value, from, to| paths.route(value, from, to);
    let bounds = [
        paths.longest(problem),
        busy(problem),
        paths.loads(problem),
        tied::makespan(problem, capacities, &route),
    ];
    bounds.into_iter().fold(0.0, f64::max)
}

/// Shares of resources, which sum to one.
struct Shares(Vec<f64>);

impl Shares {
    fn new(resources: impl Iterator<Item = bool>) -> Shares {
        let counted: Vec<f64> = resources.map(|used| f64::from(u8::from(used))).collect();
        let mut shares = Shares(counted);
        shares.normalize();
        shares
    }

    fn normalize(&mut self) {
        let sum: f64 = self.0.iter().sum();
        if sum > 0.0 {
            self.0.iter_mut().for_each(|share| *share /= sum);
        }
    }

    /// Raises the shares of the busiest.
    fn follow(&mut self, busy: &[f64], step: usize) {
        let most = busy.iter().copied().fold(0.0, f64::max);
        if most > 0.0 {
            let rate = 1.0 / ((step + 1) as f64).sqrt();
            let shares = self.0.iter_mut().zip(busy);
            shares.for_each(|(share, &busy)| *share *= (rate * busy / most).exp());
            self.normalize();
        }
    }
}

/// Bound 2, with each device in turn as one side.
fn busy(problem: &Problem) -> f64 {
    let devices = problem.devices();
    if devices.values().any(|device| device.concurrent) {
        // Whatever runs there keeps nothing busy.
        return 0.0;
    }
    let computing: Vec<DeviceId> = devices.keys().filter(|&d| devices[d].computes).collect();
    let queued = |link: LinkId| devices.len() + problem.queue(link).index();
    let mut best = 0.0f64;
    for &inside in &computing {
        let resources = devices.values().map(|device| device.computes);
        let links = problem.links().iter();
        let queues = links.map(|(id, link)| problem.queue(id) == id && !link.concurrent);
        let mut shares = Shares::new(resources.chain(queues));
        for step in 0..(CUTS / computing.len()).max(1) {
            let share = |resource: usize| shares.0[resource];
            let run = |task: TaskId, device: DeviceId| {
                let mode = problem.task(task).mode(device);
                share(device.index()) * mode.map_or(0.0, |mode| mode.seconds)
            };
            let copy = |link, value| share(queued(link)) * problem.copy_seconds(link, value);
            let crossing = Crossing { problem, inside };
            let into = |value| crossing.cheapest(&|link| link.to, value, &copy);
            let out = |value| crossing.cheapest(&|link| link.from, value, &copy);
            let prices = Prices {
                run: &run,
                into: &|value| into(value).0,
                out: &|value| out(value).0,
            };
            let Some(division) = divide(problem, inside, &prices) else {
                break;
            };
            best = best.max(division.cost);
            let mut busy = vec![0.0; shares.0.len()];
            for (task, what) in problem.tasks().iter() {
                let outside = what.modes.iter().filter(|mode| mode.device != inside);
                let priced = |mode: &&scrimp_plan::Mode| run(task, mode.device);
                let cheapest = outside.min_by(|a, b| priced(a).total_cmp(&priced(b)));
                let i = task.index();
                let outside = cheapest.filter(|_| division.runs_outside[i]);
                let here = what.mode(inside).filter(|_| division.runs_inside[i]);
                for mode in outside.into_iter().chain(here) {
                    busy[mode.device.index()] += mode.seconds;
                }
            }
            for value in problem.values().keys() {
                let i = value.index();
                let into = into(value).1.filter(|_| division.copied_in[i]);
                let out = out(value).1.filter(|_| division.copied_out[i]);
                for link in into.into_iter().chain(out) {
                    busy[queued(link)] += problem.copy_seconds(link, value);
                }
            }
            shares.follow(&busy, step);
        }
    }
    best
}

/// The least seconds before and after each task.
struct Paths {
    /// By task and device, when a run can end at the earliest.
    ends: Vec<Vec<f64>>,
    /// By value and pair of devices, seconds of the quickest route.
    routes: Vec<Vec<f64>>,
    heads: Vec<f64>,
    tails: Vec<f64>,
    devices: usize,
}

impl Paths {
    fn new(problem: &Problem) -> Paths {
        let devices = problem.devices().len();
        let n = problem.tasks().len();
        let routes = problem
            .values()
            .keys()
            .map(|v| routes(problem, v))
            .collect();
        let mut paths = Paths {
            ends: vec![vec![f64::INFINITY; devices]; n],
            routes,
            heads: vec![0.0; n],
            tails: vec![0.0; n],
            devices,
        };
        for (task, what) in problem.tasks().iter() {
            let i = task.index();
            paths.heads[i] = f64::INFINITY;
            for mode in &what.modes {
                let arrivals = what.inputs.iter();
                let arrivals = arrivals.map(|&v| paths.arrival(problem, v, mode.device));
                let start = arrivals.fold(0.0, f64::max);
                paths.ends[i][mode.device.index()] = start + mode.seconds;
                paths.heads[i] = paths.heads[i].min(start);
            }
        }
        paths.after(problem);
        paths
    }

    fn route(&self, value: ValueId, from: DeviceId, to: DeviceId) -> f64 {
        self.routes[value.index()][from.index() * self.devices + to.index()]
    }

    /// When a value can be on a device at the earliest.
    fn arrival(&self, problem: &Problem, value: ValueId, to: DeviceId) -> f64 {
        match problem.value(value).origin {
            Origin::Given(home) => self.route(value, home, to),
            Origin::Task(task) => {
                let from = problem.task(task).modes.iter().map(|mode| mode.device);
                let ends = &self.ends[task.index()];
                let arrivals = from.map(|from| ends[from.index()] + self.route(value, from, to));
                arrivals.fold(f64::INFINITY, f64::min)
            }
        }
    }

    /// Seconds of path after each task's first run. A copy counts only if the reader can't be served by another
    /// run of the task on its own device.
    fn after(&mut self, problem: &Problem) {
        let n = problem.tasks().len();
        let mut after = vec![vec![f64::INFINITY; self.devices]; n];
        for (task, what) in problem.tasks().iter().collect::<Vec<_>>().into_iter().rev() {
            let moves = |value: ValueId, from: DeviceId, to: DeviceId| {
                let again = cut::may_run_on_both(problem, task, from);
                if again {
                    0.0
                } else {
                    self.route(value, from, to)
                }
            };
            let i = task.index();
            for mode in &what.modes {
                let from = mode.device;
                let mut longest = 0.0f64;
                for &value in &what.outputs {
                    if let Keep::On(to) = problem.value(value).keep {
                        longest = longest.max(moves(value, from, to));
                    }
                    for &reader in problem.consumers(value) {
                        let to = problem.task(reader).modes.iter().map(|mode| {
                            let to = mode.device;
                            moves(value, from, to)
                                + mode.seconds
                                + after[reader.index()][to.index()]
                        });
                        longest = longest.max(to.fold(f64::INFINITY, f64::min));
                    }
                }
                after[i][from.index()] = longest;
            }
            self.tails[i] = after[i].iter().copied().fold(f64::INFINITY, f64::min);
        }
    }

    /// Bound 1.
    fn longest(&self, problem: &Problem) -> f64 {
        let least = |ends: &Vec<f64>| ends.iter().copied().fold(f64::INFINITY, f64::min);
        let ends = self.ends.iter().map(least);
        let kept = problem
            .values()
            .iter()
            .map(|(value, what)| match what.keep {
                Keep::On(device) => self.arrival(problem, value, device),
                Keep::No | Keep::Anywhere => 0.0,
            });
        let times = ends.chain(kept).filter(|time| time.is_finite());
        times.fold(0.0, f64::max)
    }

    /// Bound 3.
    fn loads(&self, problem: &Problem) -> f64 {
        let levels = |times: &[f64]| {
            let finite = times.iter().copied().filter(|time| time.is_finite());
            let mut sorted: Vec<f64> = finite.collect();
            sorted.sort_by(f64::total_cmp);
            sorted.dedup();
            let last = sorted.len().saturating_sub(1);
            let levels = (0..LEVELS).filter_map(|k| sorted.get(k * last / LEVELS).copied());
            let mut levels: Vec<f64> = levels.collect();
            levels.dedup();
            levels
        };
        let mut best = 0.0f64;
        for head in levels(&self.heads) {
            for tail in levels(&self.tails) {
                let tasks = problem.tasks().keys().filter(|task| {
                    self.heads[task.index()] >= head && self.tails[task.index()] >= tail
                });
                let tasks: Vec<TaskId> = tasks.collect();
                if !tasks.is_empty() {
                    best = best.max(head + load(problem, &tasks) + tail);
                }
            }
        }
        best
    }
}

/// Seconds of the quickest route between any two devices, by `[from][to]`.
fn routes(problem: &Problem, value: ValueId) -> Vec<f64> {
    let devices = problem.devices().len();
    let mut seconds = vec![f64::INFINITY; devices * devices];
    (0..devices).for_each(|device| seconds[device * devices + device] = 0.0);
    for (id, link) in problem.links().iter() {
        let pair = link.from.index() * devices + link.to.index();
        seconds[pair] = problem.copy_seconds(id, value);
    }
    for via in 0..devices {
        for from in 0..devices {
            for to in 0..devices {
                let through = seconds[from * devices + via] + seconds[via * devices + to];
                let pair = from * devices + to;
                seconds[pair] = seconds[pair].min(through);
            }
        }
    }
    seconds
}

/// Seconds for which some device must be busy with these tasks.
fn load(problem: &Problem, tasks: &[TaskId]) -> f64 {
    let devices = problem.devices();
    let mut shares = Shares::new(devices.values().map(|d| d.computes && !d.concurrent));
    let mut best = 0.0f64;
    for step in 0..STEPS {
        let mut busy = vec![0.0; devices.len()];
        let mut total = 0.0;
        for &task in tasks {
            let priced = |mode: &scrimp_plan::Mode| shares.0[mode.device.index()] * mode.seconds;
            let modes = problem.task(task).modes.iter();
            if let Some(mode) = modes.min_by(|a, b| priced(a).total_cmp(&priced(b))) {
                total += priced(mode);
                busy[mode.device.index()] += mode.seconds;
            }
        }
        best = best.max(total);
        shares.follow(&busy, step);
    }
    best
}

/// Bytes that a task needs on a device while it runs, with those that are always in use there.
fn working_set(problem: &Problem, task: TaskId, device: DeviceId) -> Option<u64> {
    let what = problem.task(task);
    let mode = what.mode(device)?;
    let taken_over = |value: &&ValueId| what.takes_over(**value).is_some();
    let values = what.inputs.iter();
    let values = values.chain(what.outputs.iter().filter(|value| !taken_over(value)));
    let bytes: u64 = values.map(|&value| problem.value(value).bytes).sum();
    let only_here = what.modes.len() == 1;
    let resident = if only_here { 0 } else { mode.resident };
    Some(problem.resident_bytes(device) + resident + bytes + mode.workspace)
}

/// Bytes of a device without which no plan exists: those of the largest task that can run nowhere else, and of
/// what is given or must end there.
pub(crate) fn floor(problem: &Problem, device: DeviceId) -> u64 {
    let only_here = problem
        .tasks()
        .iter()
        .filter(|(_, what)| what.modes.len() == 1);
    let sets = only_here.filter_map(|(task, _)| working_set(problem, task, device));
    let sum = |there: &dyn Fn(&scrimp_plan::Value) -> bool| -> u64 {
        let values = problem.values().values().filter(|value| there(value));
        values.map(|value| value.bytes).sum()
    };
    let given = sum(&|value| value.origin == Origin::Given(device));
    let kept = sum(&|value| value.keep == Keep::On(device));
    let always = problem.resident_bytes(device) + given.max(kept);
    sets.fold(always, u64::max)
}

/// The task that fits on none of its devices, with the device that lacks the fewest bytes and what the task
/// needs there; `None` if every task fits somewhere.
pub(crate) fn without_room(
    problem: &Problem,
    capacities: &Capacities,
) -> Option<(TaskId, DeviceId, u64)> {
    problem.tasks().iter().find_map(|(task, what)| {
        let mut needs = Vec::new();
        for mode in &what.modes {
            let need = working_set(problem, task, mode.device)?;
            let capacity = capacities.bytes(mode.device).unwrap_or(u64::MAX);
            if need <= capacity {
                return None;
            }
            needs.push((need - capacity, mode.device, need));
        }
        let least = needs.into_iter().min()?;
        Some((task, least.1, least.2))
    })
}

/// The largest share, over the tasks, that one takes of the capacity of the device where that is least.
pub(crate) fn share_needed(problem: &Problem, capacities: &Capacities) -> f64 {
    let tasks = problem.tasks().iter().map(|(task, what)| {
        let shares = what.modes.iter().map(|mode| {
            let need = working_set(problem, task, mode.device).unwrap_or(0);
            let capacity = capacities.bytes(mode.device);
            capacity.map_or(0.0, |bytes| need as f64 / bytes.max(1) as f64)
        });
        shares.fold(f64::INFINITY, f64::min)
    });
    tasks.fold(0.0, f64::max)
}

/// Joules without which no plan exists on a device: those of the tasks that can run nowhere else.
pub(crate) fn least_joules(problem: &Problem, device: DeviceId) -> f64 {
    let tasks = problem.tasks().values();
    let only_here = tasks.filter_map(|task| match task.modes.as_slice() {
        [mode] if mode.device == device => Some(mode.joules),
        _ => None,
    });
    only_here.sum()
}
