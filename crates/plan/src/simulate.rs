//! When each step of a checked plan happens: one queue per device and one per link, as the semantics
//! of [`crate::plan`] say. Shares no code with the checker.

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::check::CheckedPlan;
use crate::ids::{DeviceId, LinkId, ValueId};
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
    /// Where it takes its time.
    pub lane: Lane,
    /// When its lane could have begun it: the end of the lane's previous step. For a copy also not
    /// before the destination took the bytes.
    pub ready: f64,
    /// When it begins, after waiting for its inputs; in seconds from the start of the plan.
    pub start: f64,
    /// When it is done. The same as `start` for a free.
    pub end: f64,
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

    /// Seconds until the last run and the last copy are done.
    #[must_use]
    pub fn makespan(&self) -> f64 {
        self.makespan
    }

    /// Seconds that a lane spends running or copying.
    #[must_use]
    pub fn busy(&self, lane: Lane) -> f64 {
        self.spans
            .iter()
            .filter(|span| span.lane == lane)
            .map(|span| span.end - span.start)
            .sum()
    }

    /// Seconds that a lane waits for something other than its own previous step, between two steps.
    #[must_use]
    pub fn waiting(&self, lane: Lane) -> f64 {
        self.spans
            .iter()
            .filter(|span| span.lane == lane)
            .map(|span| span.start - span.ready)
            .sum()
    }
}

/// A value on one device, in time.
#[derive(Clone, Copy, Default)]
struct Presence {
    /// When it has been written.
    written: f64,
    /// When the last copy that reads it is done.
    read: f64,
}

/// The state of all queues after some steps.
struct Queues<'a> {
    problem: &'a Problem,
    devices: PrimaryMap<DeviceId, f64>,
    links: PrimaryMap<LinkId, f64>,
    values: PrimaryMap<DeviceId, SecondaryMap<ValueId, Presence>>,
}

/// Plays a plan in time. On one device without copies the makespan is the plan's cost.
#[must_use]
pub fn simulate(plan: &CheckedPlan) -> Timeline {
    let problem = plan.problem();
    let mut queues = Queues {
        problem,
        devices: problem.devices().keys().map(|_| 0.0).collect(),
        links: problem.links().keys().map(|_| 0.0).collect(),
        values: problem
            .devices()
            .keys()
            .map(|_| SecondaryMap::new())
            .collect(),
    };
    for (value, what) in problem.values().iter() {
        if let Origin::Given(device) = what.origin {
            queues.values[device][value] = Presence::default();
        }
    }
    let spans: Vec<Span> = plan.steps().iter().map(|&step| queues.play(step)).collect();
    let makespan = spans
        .iter()
        .fold(0.0, |latest: f64, span| latest.max(span.end));
    Timeline { spans, makespan }
}

impl Queues<'_> {
    fn play(&mut self, step: Step) -> Span {
        match step {
            Step::Run { task, device } => {
                let what = self.problem.task(task);
                let ready = self.devices[device];
                let on_device = &mut self.values[device];
                let mut start = ready;
                for &input in &what.inputs {
                    start = start.max(on_device[input].written);
                }
                for pair in &what.overwrites {
                    start = start.max(on_device[pair.input].read);
                }
                let end = start + what.mode(device).map_or(0.0, |mode| mode.seconds);
                for &output in &what.outputs {
                    on_device[output] = Presence {
                        written: end,
                        read: end,
                    };
                }
                self.devices[device] = end;
                Span {
                    lane: Lane::Device(device),
                    ready,
                    start,
                    end,
                }
            }
            Step::Free { value, device } => {
                let ready = self.devices[device];
                let Presence { written, read } = self.values[device][value];
                let start = ready.max(written).max(read);
                self.devices[device] = start;
                Span {
                    lane: Lane::Device(device),
                    ready,
                    start,
                    end: start,
                }
            }
            Step::Copy { value, from, to } => self.copy(value, from, to),
        }
    }

    fn copy(&mut self, value: ValueId, from: DeviceId, to: DeviceId) -> Span {
        let link = self
            .problem
            .link_between(from, to)
            .expect("a checked plan copies over links only");
        let ready = self.links[link].max(self.devices[to]);
        let source = &mut self.values[from][value];
        let start = ready.max(source.written);
        let end = start + self.problem.copy_seconds(link, value);
        source.read = source.read.max(end);
        self.values[to][value] = Presence {
            written: end,
            read: end,
        };
        self.links[link] = end;
        Span {
            lane: Lane::Link(link),
            ready,
            start,
            end,
        }
    }
}
