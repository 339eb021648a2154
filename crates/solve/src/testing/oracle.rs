//! Problems with a memory beside the device, and the least makespan of their plans, by search over states with
//! the clocks of the device and of the queues.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use scrimp_plan::{DeviceId, Keep, LinkSpeed, Origin, Plan, Problem, Step, TaskId, ValueId};

use super::device;
use crate::method::Order;
use crate::random::Random;

/// The memory of a problem from [`beside`].
pub(crate) fn memory() -> DeviceId {
    DeviceId::from_u32(1)
}

/// The problem with a memory beside its device. Some links are slow, some have a latency or share a queue, and
/// some values begin or end in the memory.
pub(crate) fn beside(problem: &Problem, rng: &mut Random) -> Problem {
    let speed = |rng: &mut Random| [0.5, 1.0, 2.0, 4.0][rng.below(4)];
    let speed = LinkSpeed {
        out: speed(rng),
        back: speed(rng),
        latency: [0.0, 0.0, 1.0][rng.below(3)],
        half: rng.below(3) == 0,
        drag: 0.0,
    };
    let (problem, memory) = problem.with_memory("ram", &speed).expect("valid speeds");
    let mut parts = problem.parts();
    for (v, value) in parts.values.iter_mut() {
        if matches!(value.origin, Origin::Given(_)) && rng.below(2) == 0 {
            value.origin = Origin::Given(memory);
        }
        let overwritten = problem.overwriter(v).is_some();
        if !overwritten && rng.below(8) == 0 {
            value.keep = [Keep::Anywhere, Keep::On(memory), Keep::On(device())][rng.below(3)];
        }
    }
    Problem::new(parts).expect("moved values are valid")
}

/// What happened so far, and when.
#[derive(Clone)]
struct State {
    done: u32,
    /// Bits of the values on the device, and of those in the memory.
    here: u32,
    there: u32,
    clocks: Clocks,
    /// The state before, and the steps since then.
    before: usize,
    steps: Vec<Step>,
}

/// Times, such that later ones are never better.
#[derive(Clone)]
struct Clocks {
    device: f64,
    /// Of the queue of copies out, and of copies back.
    queues: [f64; 2],
    /// By value: when it was written on the device and in the memory, and when the last copy out ends.
    here: Vec<f64>,
    there: Vec<f64>,
    read: Vec<f64>,
}

impl State {
    /// Replaces times that can't matter by others that are the same for all such states.
    fn settle(&mut self) {
        let Clocks {
            device,
            queues,
            here,
            there,
            read,
        } = &mut self.clocks;
        for v in 0..here.len() {
            let (on, off) = (self.here >> v & 1 == 1, self.there >> v & 1 == 1);
            let free = if off { *device } else { device.min(queues[0]) };
            here[v] = if on { here[v].max(free) } else { 0.0 };
            read[v] = if on { read[v].max(*device) } else { 0.0 };
            let back = device.max(queues[1]);
            there[v] = if off { there[v].max(back) } else { 0.0 };
        }
    }
}

impl Clocks {
    fn all(&self) -> impl Iterator<Item = f64> {
        let one = [self.device, self.queues[0], self.queues[1]];
        let values = self.here.iter().chain(&self.there).chain(&self.read);
        one.into_iter().chain(values.copied())
    }

    fn end(&self) -> f64 {
        self.device.max(self.queues[0]).max(self.queues[1])
    }
}

/// The problem, as the oracle reads it.
struct Oracle<'a> {
    problem: &'a Problem,
    order: Order,
    /// The capacity of the device for values, and the one of the memory.
    room: [u64; 2],
    bytes: Vec<u64>,
    /// Seconds of copies out and back.
    copies: [Vec<f64>; 2],
    half: bool,
}

/// The least makespan of the plans that need at most `capacity` bytes on the device and `elsewhere` in the
/// memory, and one of these plans; `None` if there is none. Bytes that are freed in the memory come back at
/// once, so with a small memory the makespan may be too small, and the plan another. For a handful of values
/// and tasks; gives up with `Err` after `most` states.
pub(crate) fn least_makespan(
    problem: &Problem,
    [capacity, elsewhere]: [u64; 2],
    order: Order,
    most: usize,
) -> Result<Option<(f64, Plan)>, ()> {
    let link = |from, to| problem.link_between(from, to).expect("linked");
    let links = [link(device(), memory()), link(memory(), device())];
    let seconds = |k: usize| {
        let values = problem.values().keys();
        values.map(|v| problem.copy_seconds(links[k], v)).collect()
    };
    let resident = problem.devices()[device()].resident;
    let Some(room) = capacity.checked_sub(resident) else {
        return Ok(None);
    };
    Oracle {
        problem,
        order,
        room: [room, elsewhere],
        bytes: problem.values().values().map(|v| v.bytes).collect(),
        copies: [seconds(0), seconds(1)],
        half: problem.queue(links[0]) == problem.queue(links[1]),
    }
    .solve(most)
}

impl Oracle<'_> {
    fn solve(&self, most: usize) -> Result<Option<(f64, Plan)>, ()> {
        let given = |at: DeviceId| {
            let values = self.problem.values().iter();
            let given = values.filter(|(_, value)| value.origin == Origin::Given(at));
            given.fold(0u32, |set, (v, _)| set | 1 << v.as_u32())
        };
        let zeros = vec![0.0; self.bytes.len()];
        let start = State {
            done: 0,
            here: given(device()),
            there: given(memory()),
            clocks: Clocks {
                device: 0.0,
                queues: [0.0; 2],
                here: zeros.clone(),
                there: zeros.clone(),
                read: zeros,
            },
            before: 0,
            steps: Vec::new(),
        };
        if self.used(start.here) > self.room[0] || self.used(start.there) > self.room[1] {
            return Ok(None);
        }
        let mut states = vec![start];
        let mut known: HashMap<(u32, u32, u32), Vec<usize>> = HashMap::new();
        let mut queue = BinaryHeap::from([Reverse((0u64, 0usize))]);
        let mut dead = vec![false];
        while let Some(Reverse((least, at))) = queue.pop() {
            if dead[at] {
                continue;
            }
            if self.is_goal(&states[at]) {
                return Ok(Some((f64::from_bits(least), self.plan(&states, at))));
            }
            let mut next = Vec::new();
            self.expand(&states[at], at, &mut next);
            for mut state in next {
                state.settle();
                let rivals = known
                    .entry((state.done, state.here, state.there))
                    .or_default();
                let not_later = |a: &State, b: &State| {
                    let mut pairs = a.clocks.all().zip(b.clocks.all());
                    pairs.all(|(a, b)| a <= b)
                };
                if rivals.iter().any(|&r| not_later(&states[r], &state)) {
                    continue;
                }
                rivals.retain(|&r| {
                    dead[r] = not_later(&state, &states[r]);
                    !dead[r]
                });
                rivals.push(states.len());
                queue.push(Reverse((self.least_end(&state).to_bits(), states.len())));
                states.push(state);
                dead.push(false);
                if states.len() > most {
                    return Err(());
                }
            }
        }
        Ok(None)
    }

    fn used(&self, set: u32) -> u64 {
        let values = (0..self.bytes.len()).filter(|v| set >> v & 1 == 1);
        values.map(|v| self.bytes[v]).sum()
    }

    fn is_goal(&self, state: &State) -> bool {
        let kept = |(v, value): (ValueId, &scrimp_plan::Value)| {
            let [here, there] = [state.here, state.there].map(|set| set >> v.as_u32() & 1 == 1);
            match value.keep {
                Keep::No => true,
                Keep::Anywhere => here || there,
                Keep::On(at) if at == device() => here,
                Keep::On(_) => there,
            }
        };
        state.done == (1 << self.problem.tasks().len()) - 1
            && self.problem.values().iter().all(kept)
    }

    /// A makespan that no plan through the state is below.
    fn least_end(&self, state: &State) -> f64 {
        let tasks = self.problem.tasks().iter();
        let left = tasks.filter(|(t, _)| state.done >> t.as_u32() & 1 == 0);
        let seconds: f64 = left.map(|(_, task)| task.modes[0].seconds).sum();
        state.clocks.end().max(state.clocks.device + seconds)
    }

    fn expand(&self, from: &State, at: usize, next: &mut Vec<State>) {
        for t in self.problem.tasks().keys() {
            self.run(from, at, t, next);
        }
        for v in 0..self.bytes.len() {
            let bit = 1u32 << v;
            let [here, there] = [from.here & bit != 0, from.there & bit != 0];
            if here && !there {
                self.copy_out(from, at, v, next);
            }
            if there && !here {
                let room = self.room[0].checked_sub(self.bytes[v]);
                self.freeing(from, room, 0, 0, &mut |mut state| {
                    let clocks = &mut state.clocks;
                    let start = clocks.queues[1].max(clocks.device).max(clocks.there[v]);
                    self.queue(clocks, 1, start + self.copies[1][v]);
                    let end = clocks.queues[1];
                    (clocks.here[v], clocks.read[v]) = (end, end);
                    state.here |= bit;
                    self.push(state, at, self.copy(v, 1), next);
                });
            }
            if there && self.room[1] < u64::MAX {
                let mut state = from.clone();
                state.there &= !bit;
                state.steps = Vec::new();
                let value = ValueId::from_u32(v as u32);
                let device = memory();
                self.push(state, at, Step::Free { value, device }, next);
            }
        }
    }

    fn run(&self, from: &State, at: usize, t: TaskId, next: &mut Vec<State>) {
        let task = self.problem.task(t);
        let bits = |list: &[ValueId]| list.iter().fold(0u32, |s, v| s | 1 << v.as_u32());
        let (inputs, outputs) = (bits(&task.inputs), bits(&task.outputs));
        let bit = 1u32 << t.as_u32();
        let first = from.done & bit == 0;
        let in_order = self.order == Order::Free || !first || from.done == bit - 1;
        if !in_order || (!first && !task.rerunnable) || from.here & inputs != inputs {
            return;
        }
        let gone: Vec<ValueId> = task.overwrites.iter().map(|pair| pair.input).collect();
        let made = self.used(outputs) + task.modes[0].workspace - self.used(bits(&gone));
        let room = self.room[0].checked_sub(made);
        self.freeing(from, room, inputs, outputs, &mut |mut state| {
            let clocks = &mut state.clocks;
            let written = task.inputs.iter().map(|v| clocks.here[v.as_u32() as usize]);
            let read = gone.iter().map(|v| clocks.read[v.as_u32() as usize]);
            let start = written.chain(read).fold(clocks.device, f64::max);
            clocks.device = start + task.modes[0].seconds;
            for v in &task.outputs {
                let v = v.as_u32() as usize;
                (clocks.here[v], clocks.read[v]) = (clocks.device, clocks.device);
            }
            state.here = (state.here & !bits(&gone)) | outputs;
            state.done |= bit;
            let device = device();
            self.push(state, at, Step::Run { task: t, device }, next);
        });
    }

    fn copy_out(&self, from: &State, at: usize, v: usize, next: &mut Vec<State>) {
        if self.used(from.there) + self.bytes[v] > self.room[1] {
            return;
        }
        let mut state = from.clone();
        state.steps = Vec::new();
        let clocks = &mut state.clocks;
        let start = clocks.queues[0].max(clocks.here[v]);
        self.queue(clocks, 0, start + self.copies[0][v]);
        let end = clocks.queues[0];
        clocks.there[v] = end;
        clocks.read[v] = clocks.read[v].max(end);
        state.there |= 1 << v;
        self.push(state, at, self.copy(v, 0), next);
    }

    fn queue(&self, clocks: &mut Clocks, way: usize, end: f64) {
        clocks.queues[way] = end;
        if self.half {
            clocks.queues[1 - way] = end;
        }
    }

    fn copy(&self, v: usize, way: usize) -> Step {
        let [from, to] = [[device(), memory()], [memory(), device()]][way];
        let value = ValueId::from_u32(v as u32);
        Step::Copy { value, from, to }
    }

    fn push(&self, mut state: State, at: usize, step: Step, next: &mut Vec<State>) {
        state.before = at;
        state.steps.push(step);
        next.push(state);
    }

    /// The states after just so many frees on the device that `room` suffices and nothing in `absent` is there.
    /// A free never has to come earlier than that.
    fn freeing(
        &self,
        from: &State,
        room: Option<u64>,
        inputs: u32,
        absent: u32,
        visit: &mut dyn FnMut(State),
    ) {
        let Some(room) = room else { return };
        let forced = from.here & absent;
        let may = from.here & !inputs & !absent;
        let fits = |freed: u32| self.used(from.here & !freed) <= room;
        let mut more = may;
        loop {
            let freed = forced | more;
            let needed = (0..self.bytes.len()).filter(|v| more >> v & 1 == 1);
            if fits(freed) && needed.clone().all(|v| !fits(freed & !(1 << v))) {
                let mut state = from.clone();
                state.steps = Vec::new();
                let values = (0..self.bytes.len()).filter(|v| freed >> v & 1 == 1);
                for v in values {
                    let clocks = &mut state.clocks;
                    clocks.device = clocks.device.max(clocks.here[v]).max(clocks.read[v]);
                    let (value, device) = (ValueId::from_u32(v as u32), device());
                    state.steps.push(Step::Free { value, device });
                }
                state.here &= !freed;
                visit(state);
            }
            if more == 0 {
                break;
            }
            more = (more - 1) & may;
        }
    }

    fn plan(&self, states: &[State], mut at: usize) -> Plan {
        let mut parts = Vec::new();
        while at != 0 {
            parts.push(states[at].steps.as_slice());
            at = states[at].before;
        }
        let steps = parts.into_iter().rev().flatten().copied().collect();
        Plan { steps }
    }
}
