//! When each step of a checked plan happens and what it takes, by the semantics of [`crate::plan`]. This
//! module shares no code with the checker.

use cranelift_entity::{PrimaryMap, SecondaryMap};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Add;

use crate::check::CheckedPlan;
use crate::ids::{DeviceId, LinkId, TaskId, ValueId};
use crate::plan::Step;
use crate::problem::{Origin, Problem};

/// The queue that a step occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Runs and frees.
    Device(DeviceId),
    /// Copies.
    Link(LinkId),
}

/// When a step happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The queue that it occupies.
    pub lane: Lane,
    /// When its lane could have begun it: the end of the previous step of the lane, and of what copies take from
    /// the device, or of its queue. A copy is also not ready before its destination has taken the bytes.
    pub ready: f64,
    /// When it begins, after waiting for its inputs, in seconds from the start of the plan.
    pub start: f64,
    /// When it is done. A free ends when it starts.
    pub end: f64,
    /// The energy that it takes.
    pub joules: f64,
}

/// The times of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    spans: Vec<Span>,
    makespan: f64,
}

impl Timeline {
    /// One span per step.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Seconds until the last run and the last copy have ended, and what copies take from computing is made up for.
    #[must_use]
    pub fn makespan(&self) -> f64 {
        self.makespan
    }

    // An empty sum of floats is -0.0, which people would see.

    /// Seconds that a lane spends running or copying.
    #[must_use]
    pub fn busy(&self, lane: Lane) -> f64 {
        self.spans
            .iter()
            .filter(|span| span.lane == lane)
            .map(|span| span.end - span.start)
            .fold(0.0, f64::add)
    }

    /// Energy of all runs or copies of a lane.
    #[must_use]
    pub fn joules(&self, lane: Lane) -> f64 {
        let spans = self.spans.iter().filter(|span| span.lane == lane);
        spans.map(|span| span.joules).fold(0.0, f64::add)
    }

    /// Seconds between two steps of a lane in which it waits for something other than its own previous step.
    #[must_use]
    pub fn waiting(&self, lane: Lane) -> f64 {
        self.spans
            .iter()
            .filter(|span| span.lane == lane)
            .map(|span| span.start - span.ready)
            .fold(0.0, f64::add)
    }
}

/// When a value on one device was written and read.
#[derive(Clone, Copy, Default)]
struct Presence {
    /// When its writing ends.
    written: f64,
    /// When the last copy or run that reads it ends.
    read: f64,
}

/// The state of all devices and queues after some steps.
struct State<'a> {
    problem: &'a Problem,
    devices: PrimaryMap<DeviceId, Turns>,
    /// When each queue has finished its copies so far, by the link that names the queue.
    queues: PrimaryMap<LinkId, f64>,
    values: PrimaryMap<DeviceId, SecondaryMap<ValueId, Presence>>,
}

/// A device and its turns.
struct Turns {
    /// When the device has finished its turns so far.
    last: f64,
    /// For a memory that doesn't compute, what bounds the copies into it.
    memory: Option<Memory>,
}

/// The bytes of a memory that doesn't compute.
struct Memory {
    /// The most bytes that may be in use.
    peak: u64,
    /// Bytes taken and not yet counted as returned.
    taken: u64,
    /// Freed bytes and when they come back. Times are stored as bits, which sort like the times because none
    /// is negative.
    returns: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Memory {
    /// The earliest time, from `turn` on, at which this many bytes can be taken.
    fn take(&mut self, bytes: u64, mut turn: f64) -> f64 {
        self.taken += bytes;
        while self.taken > self.peak {
            let Reverse((time, returned)) =
                self.returns.pop().expect("the bytes fit in list order");
            self.taken -= returned;
            turn = turn.max(f64::from_bits(time));
        }
        turn
    }
}

/// Plays a plan through time. On one device without copies, the makespan is the plan's cost.
#[must_use]
pub fn simulate(plan: &CheckedPlan) -> Timeline {
    simulate_with(plan, &|_| None, &|_| 1.0)
}

/// Plays a plan through time as [`simulate`] does, with other seconds for some of its steps, each by its index:
/// `None` leaves a step as the problem has it. `drag` says which part of what each copy takes from computing by its link
/// is really taken.
#[must_use]
pub fn simulate_with(
    plan: &CheckedPlan,
    seconds: &dyn Fn(usize) -> Option<f64>,
    drag: &dyn Fn(usize) -> f64,
) -> Timeline {
    let problem = plan.problem();
    let devices = problem.devices();
    let mut state = State {
        problem,
        devices: devices.keys().map(|id| Turns::new(plan, id)).collect(),
        queues: problem.links().keys().map(|_| 0.0).collect(),
        values: devices.keys().map(|_| SecondaryMap::new()).collect(),
    };
    let steps = plan.steps().iter().enumerate();
    let spans: Vec<Span> = steps
        .map(|(index, &step)| state.play(step, seconds(index), drag(index)))
        .collect();
    let ends = spans.iter().map(|span| span.end);
    let turns = state.devices.values().map(|turns| turns.last);
    let makespan = ends.chain(turns).fold(0.0, f64::max);
    Timeline { spans, makespan }
}

impl Turns {
    fn new(plan: &CheckedPlan, device: DeviceId) -> Turns {
        let what = &plan.problem().devices()[device];
        let given = plan.problem().values().values();
        let given = given.filter(|value| value.origin == Origin::Given(device));
        let memory = (!what.computes).then(|| Memory {
            peak: plan.peak(device),
            taken: what.resident + given.map(|value| value.bytes).sum::<u64>(),
            returns: BinaryHeap::new(),
        });
        Turns { last: 0.0, memory }
    }
}

impl State<'_> {
    fn play(&mut self, step: Step, seconds: Option<f64>, drag: f64) -> Span {
        match step {
            Step::Run { task, device } => self.run(task, device, seconds),
            Step::Free { value, device } => self.free(value, device),
            Step::Copy { value, from, to } => self.copy(value, [from, to], seconds, drag),
        }
    }

    fn run(&mut self, task: TaskId, device: DeviceId, seconds: Option<f64>) -> Span {
        let what = self.problem.task(task);
        let concurrent = self.problem.devices()[device].concurrent;
        let mode = what
            .mode(device)
            .expect("a checked plan runs tasks where they can");
        let ready = self.devices[device].last;
        let on_device = &mut self.values[device];
        let mut start = ready;
        for &input in &what.inputs {
            start = start.max(on_device[input].written);
        }
        for pair in &what.overwrites {
            start = start.max(on_device[pair.input].read);
        }
        let end = start + seconds.unwrap_or(mode.seconds);
        for &input in &what.inputs {
            on_device[input].read = on_device[input].read.max(end);
        }
        for &output in &what.outputs {
            on_device[output] = Presence {
                written: end,
                read: end,
            };
        }
        if !concurrent {
            self.devices[device].last = end;
        }
        Span {
            lane: Lane::Device(device),
            ready,
            start,
            end,
            joules: mode.joules,
        }
    }

    fn free(&mut self, value: ValueId, device: DeviceId) -> Span {
        let Presence { written, read } = self.values[device][value];
        let turns = &mut self.devices[device];
        let start = turns.last.max(written).max(read);
        let ready = match &mut turns.memory {
            Some(memory) => {
                let bytes = self.problem.value(value).bytes;
                memory.returns.push(Reverse((start.to_bits(), bytes)));
                start
            }
            None if self.problem.devices()[device].concurrent => start,
            None => std::mem::replace(&mut turns.last, start),
        };
        Span {
            lane: Lane::Device(device),
            ready,
            start,
            end: start,
            joules: 0.0,
        }
    }

    fn copy(
        &mut self,
        value: ValueId,
        [from, to]: [DeviceId; 2],
        seconds: Option<f64>,
        drag: f64,
    ) -> Span {
        let problem = self.problem;
        let link = problem
            .link_between(from, to)
            .expect("a checked plan copies over links only");
        let turns = &mut self.devices[to];
        if let Some(memory) = &mut turns.memory {
            turns.last = memory.take(problem.value(value).bytes, turns.last);
        }
        let queue = &mut self.queues[problem.queue(link)];
        let ready = queue.max(turns.last);
        let source = &mut self.values[from][value];
        let start = ready.max(source.written);
        let end = start + seconds.unwrap_or_else(|| problem.copy_seconds(link, value));
        source.read = source.read.max(end);
        self.values[to][value] = Presence {
            written: end,
            read: end,
        };
        if !problem.links()[link].concurrent {
            *queue = end;
        }
        for device in [from, to] {
            let what = &problem.devices()[device];
            if what.computes && !what.concurrent {
                let drag = drag * problem.links()[link].drag;
                self.devices[device].last += drag * (end - start);
            }
        }
        Span {
            lane: Lane::Link(link),
            ready,
            start,
            end,
            joules: problem.copy_joules(link, value),
        }
    }
}
