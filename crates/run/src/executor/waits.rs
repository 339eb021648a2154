//! What waits for what: worked out once from the plan and its addresses, so that a step only compares
//! counters.
//!
//! Each device that computes goes through its steps in the plan's order and counts how far it is in the plan;
//! each queue goes through its copies in order and counts those. A [`Clock`] has a number for some of these
//! counters, and an event may happen once each of them has reached its number. By the semantics of
//! [`scrimp_plan::plan`]:
//!
//! * a run waits for the copies that brought its inputs, and for those that read what it overwrites;
//! * a free on a device that computes waits for all copies of the buffer;
//! * a copy waits for whoever wrote its source, for its turn if it goes to a device that computes, and
//!   otherwise until all copies of buffers that were at its addresses before are done.

use std::collections::BTreeMap;

use cranelift_entity::SecondaryMap;
use scrimp_plan::{BufferId, CheckedLayout, DeviceId, LinkId, Step};

use super::schedule::Transfer;
use crate::span::Span;

/// Counters and the numbers that they must have reached. The first counters are those of the devices that
/// compute, whose numbers are indices of steps plus one; those of the queues follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock(Vec<(usize, usize)>);

impl Clock {
    fn at(counter: usize, count: usize) -> Clock {
        Clock(vec![(counter, count)])
    }

    fn join(&mut self, other: &Clock) {
        for &(counter, count) in &other.0 {
            match self.0.iter_mut().find(|entry| entry.0 == counter) {
                Some(entry) => entry.1 = entry.1.max(count),
                None => self.0.push((counter, count)),
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The counters and their numbers.
    pub fn marks(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.iter().copied()
    }

    /// Whether the counters are as far as this.
    pub fn reached(&self, counters: &[usize]) -> bool {
        let mut each = self.0.iter();
        each.all(|&(counter, count)| counters[counter] >= count)
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
    /// For each step of a device that computes, the copies for which it waits.
    pub before: Vec<Clock>,
    /// For each step, whether a copy waits until its device has done it.
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
    /// `computing` has the devices that compute, `transfers` the copies of the plan, in its order.
    pub fn new(layout: &CheckedLayout, computing: &[DeviceId], transfers: &[Transfer]) -> Waits {
        let plan = layout.plan();
        let steps = plan.steps().len();
        let mut waits = Waits {
            before: vec![Clock::default(); steps],
            awaited: vec![false; steps],
            queues: Vec::new(),
        };
        let counter = |device| computing.iter().position(|&other| other == device);
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
                Step::Run { device, .. } => {
                    let Some(own) = counter(device) else {
                        continue;
                    };
                    for &input in &binding.inputs {
                        after.join(&uses[input].written);
                    }
                    let done = Clock::at(own, step + 1);
                    for &output in &binding.outputs {
                        after.join(&uses[output].all);
                        uses[output] = Uses {
                            written: done.clone(),
                            all: done.clone(),
                        };
                    }
                    // Its own earlier steps are done.
                    after.0.retain(|&(counter, _)| counter != own);
                    waits.before[step] = after;
                }
                Step::Free { device, .. } => {
                    let buffer = binding.inputs[0];
                    let mut all = std::mem::take(&mut uses[buffer].all);
                    match counter(device) {
                        Some(own) => {
                            all.0.retain(|&(counter, _)| counter != own);
                            waits.before[step] = all;
                        }
                        None => ended.push((device, span(buffer), all)),
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
                    let count = waits.queues[queue].len() + 1;
                    let done = Clock::at(computing.len() + queue, count);
                    after.join(&uses[source].written);
                    if let Some(turn) = counter(to) {
                        after.join(&Clock::at(turn, step + 1));
                    }
                    let here = span(destination);
                    ended.retain(|(device, there, all)| {
                        if *device == to && there.overlaps(here) {
                            after.join(all);
                        }
                        !(*device == to && here.covers(*there))
                    });
                    for &(counter, count) in &after.0 {
                        if counter < computing.len() {
                            waits.awaited[count - 1] = true;
                        }
                    }
                    uses[source].all.join(&done);
                    uses[destination] = Uses {
                        written: done.clone(),
                        all: done,
                    };
                    waits.queues[queue].push(Errand {
                        step,
                        transfer: transfer.clone(),
                        after,
                    });
                }
            }
        }
        waits
    }
}
