//! Problems with several devices that compute, and the least cost of their plans by search over states.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use cranelift_entity::EntityRef;
use scrimp_plan::{Capacities, Device, DeviceId, Keep, Link, Mode, Origin, Problem, Task, Value};

use super::{Shape, problem};
use crate::method::{Objective, Order};
use crate::random::Random;

/// A random problem on several devices that compute, all linked. Some tasks can't run everywhere, some links
/// share a queue, and the devices may or may not be of one arithmetic. `rich` as for one device.
pub(crate) fn several(tasks: usize, devices: usize, rich: bool, rng: &mut Random) -> Problem {
    let mut parts = problem(Shape { tasks, rich }, rng).parts();
    let alike = rng.below(2) == 0;
    for i in 1..devices {
        let name = format!("gpu{i}");
        let arithmetic = if alike { "cpu".into() } else { name.clone() };
        let computing = Device::computing(name);
        parts.devices.push(Device {
            arithmetic,
            ..computing
        });
    }
    let all: Vec<DeviceId> = parts.devices.keys().collect();
    let mut first = None;
    for &from in &all {
        for &to in all.iter().filter(|&&to| to != from) {
            let bandwidth = [1.0, 2.0, 4.0][rng.below(3)];
            let queue = first.filter(|_| rng.below(4) == 0);
            let link = parts.links.push(Link {
                queue,
                ..Link::new(from, to, bandwidth, rng.below(2) as f64)
            });
            first = first.or(Some(link));
        }
    }
    for task in parts.tasks.values_mut() {
        for &device in &all[1..] {
            let mode = task.modes[0].clone();
            let seconds = (1 + rng.below(9)) as f64;
            task.modes.push(Mode {
                device,
                seconds,
                ..mode
            });
        }
        if rng.below(5) == 0 {
            let lost = rng.below(devices);
            task.modes.remove(lost);
        }
    }
    for value in parts.values.values_mut() {
        let anywhere = all[rng.below(devices)];
        if matches!(value.origin, Origin::Given(_)) {
            value.origin = Origin::Given(anywhere);
        }
        if matches!(value.keep, Keep::On(_)) {
            value.keep = Keep::On(anywhere);
        }
    }
    Problem::new(parts).expect("the changes are valid")
}

/// When things happened; later is never better. By the serial objective only `total` counts.
#[derive(Clone)]
struct Clocks {
    total: f64,
    devices: Vec<f64>,
    queues: Vec<f64>,
    written: Vec<Vec<f64>>,
    read: Vec<Vec<f64>>,
}

#[derive(Clone)]
struct State {
    /// By task, one more than the device of the first run; 0 before.
    first: Vec<u8>,
    /// By device, bits of the values there.
    there: Vec<u32>,
    clocks: Clocks,
}

struct Oracle<'a> {
    problem: &'a Problem,
    objective: Objective,
    order: Order,
    /// For values, by device.
    room: Vec<u64>,
}

/// The least cost of all plans within the capacities in bytes; `None` if there is no plan. For a handful of
/// values and tasks; gives up with `Err` after `most` states.
pub(crate) fn least_cost(
    problem: &Problem,
    capacities: &Capacities,
    (objective, order): (Objective, Order),
    most: usize,
) -> Result<Option<f64>, ()> {
    let devices = problem.devices();
    let room = devices.keys().map(|device| {
        let capacity = capacities.bytes(device).unwrap_or(u64::MAX);
        capacity.checked_sub(problem.resident_bytes(device))
    });
    let Some(room) = room.collect::<Option<Vec<u64>>>() else {
        return Ok(None);
    };
    let oracle = Oracle {
        problem,
        objective,
        order,
        room,
    };
    oracle.solve(most)
}

fn bits<'a>(values: impl IntoIterator<Item = &'a scrimp_plan::ValueId>) -> u32 {
    values.into_iter().fold(0, |set, v| set | 1 << v.index())
}

impl Oracle<'_> {
    fn used(&self, set: u32) -> u64 {
        let values = self.problem.values().iter();
        let there = values.filter(|(v, _)| set >> v.index() & 1 == 1);
        there.map(|(_, value)| value.bytes).sum()
    }

    fn solve(&self, most: usize) -> Result<Option<f64>, ()> {
        let problem = self.problem;
        let (devices, values) = (problem.devices().len(), problem.values().len());
        let given = |device: DeviceId| {
            let there = |value: &Value| value.origin == Origin::Given(device);
            let values = problem.values().iter().filter(|(_, value)| there(value));
            values.fold(0u32, |set, (v, _)| set | 1 << v.index())
        };
        let start = State {
            first: vec![0; problem.tasks().len()],
            there: problem.devices().keys().map(given).collect(),
            clocks: Clocks {
                total: 0.0,
                devices: vec![0.0; devices],
                queues: vec![0.0; problem.links().len()],
                written: vec![vec![0.0; values]; devices],
                read: vec![vec![0.0; values]; devices],
            },
        };
        if (0..devices).any(|d| self.used(start.there[d]) > self.room[d]) {
            return Ok(None);
        }
        let mut states = vec![start];
        let mut dead = vec![false];
        let mut known: HashMap<(Vec<u8>, Vec<u32>), Vec<usize>> = HashMap::new();
        let mut queue = BinaryHeap::from([Reverse((0u64, 0usize))]);
        while let Some(Reverse((least, at))) = queue.pop() {
            if dead[at] {
                continue;
            }
            if self.is_goal(&states[at]) {
                return Ok(Some(f64::from_bits(least)));
            }
            for mut state in self.expand(&states[at]) {
                self.settle(&mut state);
                let key = (state.first.clone(), state.there.clone());
                let rivals = known.entry(key).or_default();
                if rivals.iter().any(|&r| self.not_later(&states[r], &state)) {
                    continue;
                }
                rivals.retain(|&r| {
                    dead[r] |= self.not_later(&state, &states[r]);
                    !dead[r]
                });
                rivals.push(states.len());
                queue.push(Reverse((self.cost(&state).to_bits(), states.len())));
                states.push(state);
                dead.push(false);
                if states.len() > most {
                    return Err(());
                }
            }
        }
        Ok(None)
    }

    fn cost(&self, state: &State) -> f64 {
        match self.objective {
            Objective::Serial => state.clocks.total,
            Objective::Makespan => {
                let clocks = state.clocks.devices.iter().chain(&state.clocks.queues);
                clocks.copied().fold(0.0, f64::max)
            }
        }
    }

    fn not_later(&self, one: &State, other: &State) -> bool {
        let (a, b) = (&one.clocks, &other.clocks);
        if self.objective == Objective::Serial {
            return a.total <= b.total;
        }
        let flat = |clocks: &Clocks| {
            let lists = clocks.written.iter().chain(&clocks.read).flatten();
            let all = clocks.devices.iter().chain(&clocks.queues).chain(lists);
            all.copied().collect::<Vec<f64>>()
        };
        flat(a).iter().zip(flat(b)).all(|(a, b)| *a <= b)
    }

    /// Replaces times that can't matter by others that are the same for all such states.
    fn settle(&self, state: &mut State) {
        let clocks = &mut state.clocks;
        for (device, _) in self.problem.devices().iter() {
            let d = device.index();
            let links = self
                .problem
                .links()
                .iter()
                .filter(|(_, l)| l.from == device);
            let queues = links.map(|(id, _)| clocks.queues[self.problem.queue(id).index()]);
            let soonest = queues.fold(clocks.devices[d], f64::min);
            for v in 0..clocks.written[d].len() {
                let there = state.there[d] >> v & 1 == 1;
                let at_least = |time: f64, bound: f64| if there { time.max(bound) } else { 0.0 };
                clocks.written[d][v] = at_least(clocks.written[d][v], soonest);
                clocks.read[d][v] = at_least(clocks.read[d][v], clocks.devices[d]);
            }
        }
    }

    fn is_goal(&self, state: &State) -> bool {
        let kept = self.problem.values().iter().all(|(v, value)| {
            let there = |d: usize| state.there[d] >> v.index() & 1 == 1;
            match value.keep {
                Keep::No => true,
                Keep::Anywhere => (0..state.there.len()).any(there),
                Keep::On(device) => there(device.index()),
            }
        });
        kept && state.first.iter().all(|&first| first > 0)
    }

    fn expand(&self, from: &State) -> Vec<State> {
        let problem = self.problem;
        let mut next = Vec::new();
        for (t, task) in problem.tasks().iter() {
            for mode in &task.modes {
                next.extend(self.run(from, (t.index(), task), mode));
            }
        }
        for (link, what) in problem.links().iter() {
            let (d, e) = (what.from.index(), what.to.index());
            for v in problem.values().keys() {
                let bit = 1 << v.index();
                let fits = self.used(from.there[e] | bit) <= self.room[e];
                if from.there[d] & bit == 0 || from.there[e] & bit != 0 || !fits {
                    continue;
                }
                let mut state = from.clone();
                let clocks = &mut state.clocks;
                let queue = &mut clocks.queues[problem.queue(link).index()];
                let start = queue
                    .max(clocks.devices[e])
                    .max(clocks.written[d][v.index()]);
                let end = start + problem.copy_seconds(link, v);
                *queue = end;
                clocks.total += problem.copy_seconds(link, v);
                clocks.read[d][v.index()] = clocks.read[d][v.index()].max(end);
                (clocks.written[e][v.index()], clocks.read[e][v.index()]) = (end, end);
                state.there[e] |= bit;
                next.push(state);
            }
        }
        for d in 0..from.there.len() {
            for v in 0..problem.values().len() {
                if from.there[d] >> v & 1 == 1 {
                    let mut state = from.clone();
                    let clocks = &mut state.clocks;
                    let (written, read) = (clocks.written[d][v], clocks.read[d][v]);
                    clocks.devices[d] = clocks.devices[d].max(written).max(read);
                    state.there[d] &= !(1 << v);
                    next.push(state);
                }
            }
        }
        next
    }

    fn run(&self, from: &State, (t, task): (usize, &Task), mode: &Mode) -> Option<State> {
        let (problem, d) = (self.problem, mode.device.index());
        let arithmetic = |d: usize| &problem.devices()[DeviceId::new(d)].arithmetic;
        let first = from.first[t];
        let again =
            first > 0 && (!task.rerunnable || arithmetic(usize::from(first) - 1) != arithmetic(d));
        let early = first == 0 && self.order == Order::Fixed && from.first[..t].contains(&0);
        let (inputs, outputs) = (bits(&task.inputs), bits(&task.outputs));
        let there = from.there[d];
        if again || early || there & inputs != inputs || there & outputs != 0 {
            return None;
        }
        let gone = bits(task.overwrites.iter().map(|pair| &pair.input));
        let after = (there & !gone) | outputs;
        let during = self.used(after) + mode.workspace;
        if during > self.room[d] {
            return None;
        }
        let mut state = from.clone();
        let clocks = &mut state.clocks;
        let mut start = clocks.devices[d];
        for v in &task.inputs {
            start = start.max(clocks.written[d][v.index()]);
        }
        for pair in &task.overwrites {
            start = start.max(clocks.read[d][pair.input.index()]);
        }
        let end = start + mode.seconds;
        clocks.devices[d] = end;
        clocks.total += mode.seconds;
        for v in &task.outputs {
            (clocks.written[d][v.index()], clocks.read[d][v.index()]) = (end, end);
        }
        state.there[d] = after;
        if first == 0 {
            state.first[t] = d as u8 + 1;
        }
        Some(state)
    }
}
