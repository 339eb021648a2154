//! What waits for what: worked out once from the plan and its addresses, so that a step only compares
//! counters.
//!
//! The device that computes goes through the plan in order and counts the steps that it has done; each queue
//! goes through its copies in order and counts those. A [`Clock`] has a number for each of these counters, and
//! an event may happen once every counter has reached the clock's number. By the semantics of
//! [`scrimp_plan::plan`]:
//!
//! * a run waits for the copies that brought its inputs, and for those that read what it overwrites;
//! * a free on the device that computes waits for all copies of the buffer;
//! * a copy waits for whoever wrote its source, for its turn if it goes to the device that computes, and
//!   otherwise until all copies of buffers that were at its addresses before are done.

use std::collections::BTreeMap;

use cranelift_entity::SecondaryMap;
use scrimp_plan::{BufferId, CheckedLayout, DeviceId, LinkId, Step};

use super::schedule::Transfer;
use crate::span::Span;

/// How far everybody must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock {
    /// Steps that the device that computes has done.
    pub steps: usize,
    /// Copies that queues have done.
    pub copies: Vec<(usize, usize)>,
}

impl Clock {
    fn copy(queue: usize, count: usize) -> Clock {
        Clock {
            steps: 0,
            copies: vec![(queue, count)],
        }
    }

    fn join(&mut self, other: &Clock) {
        self.steps = self.steps.max(other.steps);
        for &(queue, count) in &other.copies {
            match self.copies.iter_mut().find(|entry| entry.0 == queue) {
                Some(entry) => entry.1 = entry.1.max(count),
                None => self.copies.push((queue, count)),
            }
        }
    }
}

/// One copy of a queue.
#[derive(Clone, Debug)]
pub(super) struct Errand {
    /// Index of the plan's step.
    pub step: usize,
    pub transfer: Transfer,
    pub after: Clock,
}

#[derive(Debug, Default)]
pub(super) struct Waits {
    /// For each step, what the device that computes waits for.
    pub before: Vec<Clock>,
    /// For each step, whether a copy waits until the device has done it.
    pub awaited: Vec<bool>,
    /// The copies of each queue, in the plan's order.
    pub queues: Vec<Vec<Errand>>,
}

/// When a buffer's contents were written, and when the last of those who read or write it is done.
#[derive(Clone, Debug, Default)]
struct Uses {
    written: Clock,
    all: Clock,
}

impl Waits {
    /// `transfers` has the copies of the plan, in its order.
    pub fn new(layout: &CheckedLayout, home: DeviceId, transfers: &[Transfer]) -> Waits {
        let plan = layout.plan();
        let steps = plan.steps().len();
        let mut waits = Waits {
            before: vec![Clock::default(); steps],
            awaited: vec![false; steps],
            queues: Vec::new(),
        };
        let mut queues: BTreeMap<LinkId, usize> = BTreeMap::new();
        let mut uses: SecondaryMap<BufferId, Uses> = SecondaryMap::new();
        // What lay in memories that don't compute and was freed, as far as nothing has covered it since.
        let mut ended: Vec<(DeviceId, Span, Clock)> = Vec::new();
        let span = |buffer: BufferId| Span {
            offset: layout.offset(buffer),
            bytes: plan.buffers()[buffer].bytes,
        };
        let mut transfers = transfers.iter();
        for (step, what) in plan.steps().iter().enumerate() {
            let binding = plan.binding(step);
            let mut after = Clock::default();
            match *what {
                Step::Run { .. } => {
                    for &input in &binding.inputs {
                        after.join(&uses[input].written);
                    }
                    let done = Clock {
                        steps: step + 1,
                        copies: Vec::new(),
                    };
                    for &output in &binding.outputs {
                        after.join(&uses[output].all);
                        uses[output] = Uses {
                            written: done.clone(),
                            all: done.clone(),
                        };
                    }
                    waits.before[step] = after;
                }
                Step::Free { device, .. } => {
                    let buffer = binding.inputs[0];
                    let all = std::mem::take(&mut uses[buffer].all);
                    if device == home {
                        waits.before[step] = all;
                    } else {
                        ended.push((device, span(buffer), all));
                    }
                }
                Step::Copy { to, .. } => {
                    let Some(transfer) = transfers.next() else {
                        continue;
                    };
                    let (source, destination) = (binding.inputs[0], binding.outputs[0]);
                    let next = queues.len();
                    let queue = plan.problem().queue(transfer.link);
                    let queue = *queues.entry(queue).or_insert(next);
                    waits.queues.resize(queues.len(), Vec::new());
                    let done = Clock::copy(queue, waits.queues[queue].len() + 1);
                    after.join(&uses[source].written);
                    if to == home {
                        after.steps = after.steps.max(step + 1);
                    }
                    let here = span(destination);
                    ended.retain(|(device, there, all)| {
                        if *device == to && there.overlaps(here) {
                            after.join(all);
                        }
                        !(*device == to && here.covers(*there))
                    });
                    if let Some(last) = after.steps.checked_sub(1) {
                        waits.awaited[last] = true;
                    }
                    uses[source].all.join(&done);
                    uses[destination] = Uses {
                        written: done.clone(),
                        all: done,
                    };
                    waits.queues[queue].push(Errand {
                        step,
                        transfer: *transfer,
                        after,
                    });
                }
            }
        }
        waits
    }
}
