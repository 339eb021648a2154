//! Bytes and timing: whatever runs and copies take, no device ever uses more than its peak in list order
//! and every step comes to its end. Played by a clock that knows the rules of `plan` and nothing else.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::*;
use cranelift_entity::EntityRef;
use proptest::prelude::*;
use scrimp_plan::testing::{Shape, Unstructured, plan as random_plan, problem as drawn_problem};
use scrimp_plan::*;
use std::collections::{BTreeMap, VecDeque};

/// For each step, the earlier ones that must be done before it can begin (a run, a copy) or give bytes
/// back (a free).
fn awaited(problem: &Problem, steps: &[Step]) -> Vec<Vec<usize>> {
    let mut written: BTreeMap<(DeviceId, ValueId), usize> = BTreeMap::new();
    let mut read: BTreeMap<(DeviceId, ValueId), Vec<usize>> = BTreeMap::new();
    let mut all = Vec::new();
    for (i, &step) in steps.iter().enumerate() {
        let mut awaited = Vec::new();
        match step {
            Step::Run { task, device } => {
                let what = problem.task(task);
                for &input in &what.inputs {
                    awaited.extend(written.get(&(device, input)));
                }
                for pair in &what.overwrites {
                    awaited.extend(read.remove(&(device, pair.input)).unwrap_or_default());
                }
                for &output in &what.outputs {
                    written.insert((device, output), i);
                    read.remove(&(device, output));
                }
            }
            Step::Free { value, device } => {
                awaited.extend(written.remove(&(device, value)));
                awaited.extend(read.remove(&(device, value)).unwrap_or_default());
            }
            Step::Copy { value, from, to } => {
                awaited.extend(written.get(&(from, value)));
                read.entry((from, value)).or_default().push(i);
                written.insert((to, value), i);
                read.remove(&(to, value));
            }
        }
        all.push(awaited);
    }
    all
}

struct Clock<'a> {
    plan: &'a CheckedPlan,
    awaited: Vec<Vec<usize>>,
    seconds: &'a [f64],
    now: f64,
    turns: Vec<VecDeque<usize>>,
    queues: BTreeMap<LinkId, VecDeque<usize>>,
    /// Frees that have had their turn and copies that have taken their bytes.
    issued: Vec<bool>,
    starts: Vec<Option<f64>>,
    ends: Vec<Option<f64>>,
    in_use: Vec<u64>,
}

impl<'a> Clock<'a> {
    fn new(plan: &'a CheckedPlan, seconds: &'a [f64]) -> Self {
        let (problem, steps) = (plan.problem(), plan.steps());
        let mut turns = vec![VecDeque::new(); problem.devices().len()];
        let mut queues: BTreeMap<LinkId, VecDeque<usize>> = BTreeMap::new();
        for (i, &step) in steps.iter().enumerate() {
            let device = match step {
                Step::Run { device, .. } | Step::Free { device, .. } => device,
                Step::Copy { from, to, .. } => {
                    let link = problem.link_between(from, to).unwrap();
                    queues.entry(problem.queue(link)).or_default().push_back(i);
                    to
                }
            };
            turns[device.index()].push_back(i);
        }
        let given = |device: DeviceId| -> u64 {
            let here = problem.values().values();
            let here = here.filter(|value| value.origin == Origin::Given(device));
            here.map(|value| value.bytes).sum()
        };
        let devices = problem.devices().iter();
        Clock {
            plan,
            awaited: awaited(problem, steps),
            seconds,
            now: 0.0,
            turns,
            queues,
            issued: vec![false; steps.len()],
            starts: vec![None; steps.len()],
            ends: vec![None; steps.len()],
            in_use: devices
                .map(|(id, device)| device.resident + given(id))
                .collect(),
        }
    }

    fn done(&self, step: usize) -> bool {
        self.ends[step].is_some_and(|end| end <= self.now)
    }

    fn can_go_on(&self, step: usize) -> bool {
        self.awaited[step].iter().all(|&earlier| self.done(earlier))
    }

    fn takes(&mut self, device: DeviceId, bytes: u64) {
        self.in_use[device.index()] += bytes;
        assert!(self.in_use[device.index()] <= self.plan.peak(device));
    }

    fn workspace(&self, task: TaskId, device: DeviceId) -> u64 {
        self.plan
            .problem()
            .task(task)
            .mode(device)
            .unwrap()
            .workspace
    }

    /// Has the next turn of a device, if it can.
    fn turn(&mut self, device: DeviceId) -> bool {
        let Some(&step) = self.turns[device.index()].front() else {
            return false;
        };
        let problem = self.plan.problem();
        let computes = problem.devices()[device].computes;
        match self.plan.steps()[step] {
            Step::Run { task, .. } => {
                if self.starts[step].is_none() && self.can_go_on(step) {
                    let what = problem.task(task);
                    let fresh = what
                        .outputs
                        .iter()
                        .filter(|&&v| what.takes_over(v).is_none());
                    let bytes: u64 = fresh.map(|&v| problem.value(v).bytes).sum();
                    self.takes(device, bytes + self.workspace(task, device));
                    self.begin(step);
                }
                if !self.done(step) {
                    return false;
                }
                self.in_use[device.index()] -= self.workspace(task, device);
            }
            Step::Free { .. } if computes && !self.can_go_on(step) => return false,
            Step::Free { .. } => self.issued[step] = true,
            Step::Copy { value, to, .. } => {
                let bytes = problem.value(value).bytes;
                if !computes && self.in_use[to.index()] + bytes > self.plan.peak(to) {
                    return false;
                }
                self.takes(to, bytes);
                self.issued[step] = true;
            }
        }
        self.turns[device.index()].pop_front();
        true
    }

    fn begin(&mut self, step: usize) {
        self.starts[step] = Some(self.now);
        self.ends[step] = Some(self.now + self.seconds[step]);
    }

    /// Gives back what frees have had their turn for.
    fn give_back(&mut self) -> bool {
        let mut any = false;
        for step in 0..self.issued.len() {
            if let Step::Free { value, device } = self.plan.steps()[step]
                && self.issued[step]
                && self.ends[step].is_none()
                && self.can_go_on(step)
            {
                self.in_use[device.index()] -= self.plan.problem().value(value).bytes;
                self.ends[step] = Some(self.now);
                any = true;
            }
        }
        any
    }

    /// Begins the next copy of a queue, or ends it.
    fn queue(&mut self, queue: LinkId) -> bool {
        let Some(&step) = self.queues[&queue].front() else {
            return false;
        };
        if self.done(step) {
            self.queues.get_mut(&queue).unwrap().pop_front();
            return true;
        }
        let begins = self.starts[step].is_none() && self.issued[step] && self.can_go_on(step);
        if begins {
            self.begin(step);
        }
        begins
    }

    /// The start of each run and copy.
    fn play(mut self) -> Vec<Option<f64>> {
        let devices: Vec<DeviceId> = self.plan.problem().devices().keys().collect();
        let queues: Vec<LinkId> = self.queues.keys().copied().collect();
        loop {
            let mut any = self.give_back();
            for &device in &devices {
                any |= self.turn(device);
            }
            for &queue in &queues {
                any |= self.queue(queue);
            }
            if any {
                continue;
            }
            let later = self.ends.iter().flatten().filter(|&&end| end > self.now);
            let next = later.copied().fold(f64::INFINITY, f64::min);
            if next == f64::INFINITY {
                break;
            }
            self.now = next;
        }
        let stuck = self.ends.iter().position(Option::is_none);
        assert_eq!(stuck, None, "a step that never comes to its end");
        self.starts
    }
}

/// What each step takes if nothing disturbs it.
fn stated(plan: &CheckedPlan) -> Vec<f64> {
    let problem = plan.problem();
    let seconds = |step: &Step| match *step {
        Step::Run { task, device } => problem.task(task).mode(device).unwrap().seconds,
        Step::Free { .. } => 0.0,
        Step::Copy { value, from, to } => {
            problem.copy_seconds(problem.link_between(from, to).unwrap(), value)
        }
    };
    plan.steps().iter().map(seconds).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn no_timing_exceeds_the_peak_or_deadlocks(
        data in prop::collection::vec(any::<u8>(), 1500),
        drawn in prop::collection::vec(0u8..8, 400),
    ) {
        let u = &mut Unstructured::new(&data);
        let problem = drawn_problem(u, &Shape::everything(20)).unwrap();
        let checked = check(&problem, random_plan(u, &problem).unwrap()).unwrap();
        let seconds: Vec<f64> = (0..checked.steps().len())
            .map(|i| f64::from(drawn[i % drawn.len()] * drawn[i / 3 % drawn.len()]))
            .collect();
        Clock::new(&checked, &seconds).play();
        let seconds = stated(&checked);
        let timeline = simulate(&checked);
        for (span, start) in timeline.spans().iter().zip(Clock::new(&checked, &seconds).play()) {
            prop_assert!(start.is_none_or(|start| start == span.start));
        }
    }
}

fn free_on_host(value: usize) -> Step {
    Step::Free {
        value: v(value),
        device: d(1),
    }
}

#[test]
fn a_free_that_waits_for_a_copy_back_does_not_hold_up_the_next_copy() {
    let steps = vec![
        run(0),
        copy(2, 0, 1),
        copy(1, 0, 1),
        free_on_host(1),
        free(2),
        copy(2, 1, 0),
        free_on_host(2),
        copy(1, 0, 1),
        run(1),
        free(1),
        free(2),
        run(2),
        free(3),
    ];
    let checked = check(&problem(), Plan { steps }).unwrap();
    assert_eq!(checked.peak(d(1)), 10);
    let timeline = simulate(&checked);
    let at = |step: usize| (timeline.spans()[step].start, timeline.spans()[step].end);
    // The activation goes and comes back from 2 to 9 s, the image goes from 5.5 to 8 s.
    assert_eq!((at(1), at(2), at(5)), ((2.0, 5.5), (5.5, 8.0), (5.5, 9.0)));
    assert_eq!((at(3), at(6)), ((8.0, 8.0), (9.0, 9.0)));
    // It goes again as soon as its first copy is given back, though the free before it waits until 9 s.
    assert_eq!(at(7), (8.0, 10.5));
}

#[test]
fn a_copy_waits_until_its_bytes_fit_under_the_peak() {
    let steps = vec![
        run(0),
        copy(2, 0, 1),
        free(2),
        copy(2, 1, 0),
        free_on_host(2),
        copy(1, 0, 1),
        run(1),
        free(1),
        free(2),
        run(2),
        free(3),
    ];
    let checked = check(&problem(), Plan { steps }).unwrap();
    assert_eq!(checked.peak(d(1)), 6);
    // The image's 4 bytes don't fit beside the activation's 6, which come back at 9 s.
    assert_eq!(simulate(&checked).spans()[5].start, 9.0);
}

#[test]
fn links_that_share_a_queue_copy_one_after_the_other() {
    let steps = vec![
        copy(0, 0, 1),
        copy(1, 0, 1),
        free(1),
        copy(1, 1, 0),
        copy(1, 0, 2),
        run(0),
        run(1),
        free(1),
        free(2),
        run(2),
        free(3),
    ];
    let mut parts = parts();
    parts.links.push(Link::new(d(0), d(2), 2.0, 0.5));
    let starts = |parts: ProblemParts| {
        let plan = Plan {
            steps: steps.clone(),
        };
        let timeline = simulate(&check(&Problem::new(parts).unwrap(), plan).unwrap());
        [0, 1, 3, 4].map(|step: usize| timeline.spans()[step].start)
    };
    // Copies of the weight take 4.5 s, those of the image 2.5 s.
    assert_eq!(starts(parts.clone()), [0.0, 4.5, 7.0, 9.5]);
    parts.links[LinkId::from_u32(0)].seconds.insert(v(1), 0.0);
    assert_eq!(starts(parts.clone()), [0.0, 4.5, 4.5, 7.0]);
    let beside = Plan {
        steps: vec![
            copy(1, 0, 2),
            copy(0, 0, 1),
            run(0),
            run(1),
            free(1),
            free(2),
            run(2),
            free(3),
        ],
    };
    let start = |parts: ProblemParts| {
        let checked = check(&Problem::new(parts).unwrap(), beside.clone()).unwrap();
        simulate(&checked).spans()[1].start
    };
    assert_eq!(start(parts.clone()), 0.0);
    parts.links[LinkId::from_u32(2)].queue = Some(LinkId::from_u32(0));
    assert_eq!(start(parts), 2.5);
}

#[test]
fn energy_is_counted_per_device_and_link_and_compared() {
    let mut parts = parts();
    for (i, joules) in [(0, 7.0), (1, 5.0), (2, 1.0)] {
        parts.tasks[t(i)].modes[0].joules = joules;
    }
    let out = LinkId::from_u32(0);
    (parts.links[out].joules, parts.links[out].joules_per_byte) = (0.5, 0.25);
    let problem = Problem::new(parts).unwrap();
    let steps = vec![
        run(0),
        copy(2, 0, 1),
        run(1),
        free(1),
        free(2),
        run(2),
        free(3),
    ];
    let checked = check(&problem, Plan { steps }).unwrap();
    let timeline = simulate(&checked);
    assert_eq!((checked.joules(d(0)), checked.joules(d(1))), (13.0, 0.0));
    assert_eq!(timeline.joules(Lane::Device(d(0))), 13.0);
    let seconds = problem.copy_seconds(out, v(2));
    assert_eq!(checked.serial_seconds(), checked.cost() + seconds);
    let copied = Copied {
        bytes: 6,
        seconds,
        joules: 2.0,
    };
    assert_eq!(checked.copied(out), copied);
    assert_eq!(timeline.joules(Lane::Link(out)), 2.0);
    assert_eq!(checked.total_joules(), 15.0);
    let within = |cap| checked.within(&Capacities::unlimited().with_joules(d(0), Some(cap)));
    assert_eq!(within(13.0), Ok(()));
    assert_eq!(
        within(12.5),
        Err(vec![Excess::Joules {
            device: d(0),
            joules: 13.0,
            cap: 12.5
        }])
    );
}
