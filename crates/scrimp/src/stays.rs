//! What a plan sends to other memories: which values are away when, what their copies make wait, and what
//! making the values again would have cost instead.

use std::collections::{BTreeMap, BTreeSet};

use scrimp_plan::{CheckedPlan, DeviceId, Origin, Problem, Step, Timeline, ValueId};

/// A time in which a value is in another memory and not on the device that computes. Times are seconds from
/// the start of the plan, as simulated, or the problem's unit of cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Stay {
    /// The value.
    pub value: ValueId,
    /// The other memory.
    pub memory: DeviceId,
    /// When the copy to the other memory began and ended; `None` if the value was there already.
    pub sent: Option<(f64, f64)>,
    /// When the value's bytes on the device were given back.
    pub left: f64,
    /// When the copy back began and ended; `None` if the value doesn't come back.
    pub back: Option<(f64, f64)>,
    /// Seconds that the device waited for these two copies.
    pub waited: f64,
    /// Seconds of the runs that would have made the value again when it came back; `None` if it can't be made
    /// again, or doesn't come back.
    pub again: Option<f64>,
}

impl Stay {
    /// When the device had the value again, or the end of the plan.
    #[must_use]
    pub fn end(&self, makespan: f64) -> f64 {
        self.back.map_or(makespan, |(_, end)| end)
    }
}

/// All stays of a plan in other memories than `device`'s, by the time at which the value left.
#[must_use]
pub fn stays(plan: &CheckedPlan, timeline: &Timeline, device: DeviceId) -> Vec<Stay> {
    let mut walk = Walk::new(plan.problem(), device);
    let computes = |device: DeviceId| plan.problem().devices()[device].computes;
    for (&step, span) in plan.steps().iter().zip(timeline.spans()) {
        let waited = span.start - span.ready;
        match step {
            Step::Run { task, device: at } if at == device => {
                let what = plan.problem().task(task);
                walk.blame_latest(&what.inputs, waited);
                walk.present.extend(&what.outputs);
                for pair in &what.overwrites {
                    walk.present.remove(&pair.input);
                    walk.elsewhere.remove(&pair.input);
                }
            }
            Step::Copy { value, from, to } if from == device && !computes(to) => {
                let copy = (to, Some((span.start, span.end)));
                walk.elsewhere.insert(value, copy);
            }
            // From another device that computes, too: the value is there again.
            Step::Copy { value, to, .. } if to == device => {
                walk.come_back(value, (span.start, span.end));
            }
            Step::Free { value, device: at } if at == device => {
                walk.present.remove(&value);
                walk.leave(value, span.start, waited);
            }
            Step::Free { value, device: at } => walk.forget(value, at),
            Step::Run { .. } | Step::Copy { .. } => {}
        }
    }
    walk.all()
}

/// One pass over the steps.
struct Walk<'a> {
    problem: &'a Problem,
    device: DeviceId,
    present: BTreeSet<ValueId>,
    /// The other memory that has a value, and when the copy there began and ended.
    elsewhere: BTreeMap<ValueId, (DeviceId, Option<(f64, f64)>)>,
    stays: Vec<Stay>,
    /// The latest stay of each value.
    latest: BTreeMap<ValueId, usize>,
}

impl<'a> Walk<'a> {
    fn new(problem: &'a Problem, device: DeviceId) -> Walk<'a> {
        let mut walk = Walk {
            problem,
            device,
            present: BTreeSet::new(),
            elsewhere: BTreeMap::new(),
            stays: Vec::new(),
            latest: BTreeMap::new(),
        };
        for (value, what) in problem.values().iter() {
            match what.origin {
                Origin::Given(at) if at == device => drop(walk.present.insert(value)),
                Origin::Given(other) if problem.devices()[other].computes => {}
                Origin::Given(memory) => {
                    walk.elsewhere.insert(value, (memory, None));
                    walk.leave(value, 0.0, 0.0);
                }
                Origin::Task(_) => {}
            }
        }
        walk
    }

    /// The stays that ended, and those that last until the end. A value that was made again instead of brought
    /// back wasn't away.
    fn all(mut self) -> Vec<Stay> {
        let lasts = |stay: &Stay| {
            !self.present.contains(&stay.value) && self.elsewhere.contains_key(&stay.value)
        };
        self.stays.retain(|stay| stay.back.is_some() || lasts(stay));
        let order = |a: &Stay, b: &Stay| a.left.total_cmp(&b.left).then(a.value.cmp(&b.value));
        self.stays.sort_by(order);
        self.stays
    }

    /// The value's bytes on the device are given back; a stay begins if another memory has the value.
    fn leave(&mut self, value: ValueId, left: f64, waited: f64) {
        let Some((memory, sent)) = self.elsewhere.get_mut(&value) else {
            return;
        };
        self.latest.insert(value, self.stays.len());
        self.stays.push(Stay {
            value,
            memory: *memory,
            // A later stay of the same value needs no copy out.
            sent: sent.take(),
            left,
            back: None,
            waited,
            again: None,
        });
    }

    fn come_back(&mut self, value: ValueId, copy: (f64, f64)) {
        let again = self.seconds_again(value);
        self.present.insert(value);
        if let Some(&stay) = self.latest.get(&value) {
            let stay = &mut self.stays[stay];
            (stay.back, stay.again) = (Some(copy), again);
        }
    }

    /// Another memory gives a value's bytes back. A stay there that hasn't ended was for nothing.
    fn forget(&mut self, value: ValueId, memory: DeviceId) {
        if self.elsewhere.get(&value).is_some_and(|at| at.0 == memory) {
            self.elsewhere.remove(&value);
        }
    }

    /// Adds a wait to the stay whose copy back ended last among these values.
    fn blame_latest(&mut self, values: &[ValueId], waited: f64) {
        if waited <= 0.0 {
            return;
        }
        let back = |&stay: &usize| self.stays[stay].back.map_or(0.0, |(_, end)| end);
        let stays = values.iter().filter_map(|value| self.latest.get(value));
        if let Some(&stay) = stays.max_by(|a, b| back(a).total_cmp(&back(b))) {
            self.stays[stay].waited += waited;
        }
    }

    /// Seconds of making a value and those of its inputs that aren't on the device; each task counts once.
    fn seconds_again(&self, value: ValueId) -> Option<f64> {
        let mut counted = BTreeSet::new();
        let mut seconds = 0.0;
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            let task = self.problem.producer(value)?;
            let what = self.problem.task(task);
            if !what.rerunnable {
                return None;
            }
            if !counted.insert(task) {
                continue;
            }
            seconds += what.mode(self.device)?.seconds;
            open.extend(
                what.inputs
                    .iter()
                    .filter(|input| !self.present.contains(input)),
            );
        }
        Some(seconds)
    }
}
