//! Random problems and plans: what the checker says is what a replayer of sets says.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use cranelift_entity::EntityRef;
use proptest::prelude::*;
use scrimp_plan::testing::{
    Shape, Unstructured, generate_and_check, mutate, plan, problem, random_bytes,
};
use scrimp_plan::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Plays a plan with nothing but a set of (device, value). None if some step is wrong; else the bytes
/// in use on each device during each step.
fn replay(problem: &Problem, plan: &Plan) -> Option<Vec<Vec<u64>>> {
    let sum = |held: &BTreeSet<(DeviceId, ValueId)>, device: DeviceId| -> u64 {
        let here = held.iter().filter(|(at, _)| *at == device);
        problem.devices()[device].resident
            + here
                .map(|&(_, value)| problem.value(value).bytes)
                .sum::<u64>()
    };
    let mut held = BTreeSet::new();
    for (id, value) in problem.values().iter() {
        if let Origin::Given(device) = value.origin {
            held.insert((device, id));
        }
    }
    let mut runs: BTreeMap<TaskId, (usize, &str)> = BTreeMap::new();
    let mut bytes = Vec::new();
    for &step in &plan.steps {
        let mut during = held.clone();
        let mut workspace = None;
        let mut after = held.clone();
        match step {
            Step::Run { task, device } => {
                let what = problem.tasks().get(task)?;
                problem.devices().get(device)?;
                let mode = what.modes.iter().find(|mode| mode.device == device)?;
                let all_there = what
                    .inputs
                    .iter()
                    .all(|&input| held.contains(&(device, input)));
                let none_there = !what
                    .outputs
                    .iter()
                    .any(|&output| held.contains(&(device, output)));
                let arithmetic = problem.devices()[device].arithmetic.as_str();
                let (count, first) = runs.entry(task).or_insert((0, arithmetic));
                *count += 1;
                let again = *count == 1 || (what.rerunnable && *first == arithmetic);
                if !all_there || !none_there || !again {
                    return None;
                }
                workspace = Some((device, mode.workspace));
                for &output in &what.outputs {
                    after.insert((device, output));
                    if !what.overwrites.iter().any(|pair| pair.output == output) {
                        during.insert((device, output));
                    }
                }
                for pair in &what.overwrites {
                    after.remove(&(device, pair.input));
                }
            }
            Step::Free { value, device } => {
                problem.values().get(value)?;
                if !after.remove(&(device, value)) {
                    return None;
                }
            }
            Step::Copy { value, from, to } => {
                problem.values().get(value)?;
                problem
                    .links()
                    .values()
                    .find(|link| (link.from, link.to) == (from, to))?;
                if !held.contains(&(from, value)) || !after.insert((to, value)) {
                    return None;
                }
                during = after.clone();
            }
        }
        let in_use = |device| {
            sum(&during, device)
                + workspace
                    .filter(|(at, _)| *at == device)
                    .map_or(0, |(_, b)| b)
        };
        bytes.push(problem.devices().keys().map(in_use).collect());
        held = after;
    }
    let kept = |(id, value): (ValueId, &Value)| match value.keep {
        Keep::No => true,
        Keep::Anywhere => held.iter().any(|&(_, other)| other == id),
        Keep::On(device) => held.contains(&(device, id)),
    };
    let complete = problem.tasks().keys().all(|task| runs.contains_key(&task))
        && problem.values().iter().all(kept);
    let ran: BTreeSet<(TaskId, DeviceId)> = plan
        .steps
        .iter()
        .filter_map(|step| match *step {
            Step::Run { task, device } => Some((task, device)),
            _ => None,
        })
        .collect();
    for (task, device) in ran {
        let resident = problem.task(task).mode(device)?.resident;
        let here = bytes
            .iter_mut()
            .map(|step: &mut Vec<u64>| &mut step[device.index()]);
        here.for_each(|bytes| *bytes += resident);
    }
    complete.then_some(bytes)
}

fn agree(problem: &Problem, plan: &Plan) -> Result<(), TestCaseError> {
    match (check(problem, plan.clone()), replay(problem, plan)) {
        (Err(_), None) => {}
        (Ok(checked), Some(bytes)) => {
            for (index, device) in problem.devices().keys().enumerate() {
                let expected: Vec<u64> = bytes.iter().map(|step| step[index]).collect();
                prop_assert_eq!(checked.profile(device), expected);
                buffers_add_up(&checked, device)?;
            }
        }
        (Ok(_), None) => return Err(TestCaseError::fail("the checker passes a wrong plan")),
        (Err(violations), Some(_)) => {
            return Err(TestCaseError::fail(format!(
                "the checker refuses a right plan: {violations:?}"
            )));
        }
    }
    Ok(())
}

/// The buffers say the same as the profile, and what steps touch is held.
fn buffers_add_up(checked: &CheckedPlan, device: DeviceId) -> Result<(), TestCaseError> {
    let resident = checked.resident(device);
    for (step, &bytes) in checked.profile(device).iter().enumerate() {
        let held = checked
            .buffers()
            .values()
            .filter(|b| b.device == device && b.start <= step && step < b.end);
        prop_assert_eq!(
            resident + held.map(|buffer| buffer.bytes).sum::<u64>(),
            bytes
        );
        let binding = checked.binding(step);
        for &buffer in binding
            .inputs
            .iter()
            .chain(&binding.outputs)
            .chain(&binding.workspace)
        {
            let buffer = checked.buffers()[buffer];
            prop_assert!(buffer.start <= step && step < buffer.end);
        }
    }
    Ok(())
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 1500)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn keeping_everything_is_valid(data in bytes()) {
        let problem = problem(&mut Unstructured::new(&data), &Shape::one_device(40)).unwrap();
        let device = problem.sole_device().unwrap();
        let plan = Plan::keep_all(&problem, device).unwrap();
        agree(&problem, &plan)?;
        let checked = check(&problem, plan).unwrap();
        prop_assert_eq!(checked.cost(), problem.base_cost());
        prop_assert_eq!(simulate(&checked).makespan(), checked.cost());
        // The peak is the least capacity that the plan passes with.
        let peak = checked.peak(device);
        prop_assert!(checked.within(&Capacities::bytes_of(device, peak)).is_ok());
        if peak > 0 {
            prop_assert!(checked.within(&Capacities::bytes_of(device, peak - 1)).is_err());
        }
    }

    #[test]
    fn the_checker_agrees_with_a_replay(data in bytes()) {
        let u = &mut Unstructured::new(&data);
        let problem = problem(u, &Shape::everything(20)).unwrap();
        let mut plan = plan(u, &problem).unwrap();
        prop_assert!(check(&problem, plan.clone()).is_ok());
        agree(&problem, &plan)?;
        for _ in 0..6 {
            let spoiled = mutate(u, &problem, &plan).unwrap();
            agree(&problem, &spoiled)?;
            if check(&problem, spoiled.clone()).is_ok() {
                plan = spoiled;
            }
        }
    }

    #[test]
    fn random_sequences_are_valid_or_refused(data in bytes()) {
        let u = &mut Unstructured::new(&data);
        let problem = problem(u, &Shape::one_device(12)).unwrap();
        let mut runs: Vec<TaskId> = problem.tasks().keys().collect();
        for _ in 0..u.int_in_range(0..=6).unwrap() {
            let at = u.choose_index(runs.len() + 1).unwrap();
            runs.insert(at, runs[u.choose_index(runs.len()).unwrap()]);
        }
        if let Ok(plan) = Plan::from_runs(&problem, problem.sole_device().unwrap(), &runs) {
            agree(&problem, &plan)?;
            let checked = check(&problem, plan).unwrap();
            prop_assert_eq!(checked.recomputed(), runs.len() - problem.tasks().len());
            prop_assert_eq!(simulate(&checked).makespan(), checked.cost());
        }
    }

    #[test]
    fn lanes_do_not_overlap_and_never_run_before_their_inputs(data in bytes()) {
        let u = &mut Unstructured::new(&data);
        let problem = problem(u, &Shape::everything(20)).unwrap();
        let checked = check(&problem, plan(u, &problem).unwrap()).unwrap();
        let timeline = simulate(&checked);
        let mut ends: BTreeMap<Lane, f64> = BTreeMap::new();
        for span in timeline.spans() {
            let last = ends.entry(span.lane).or_insert(0.0);
            prop_assert!(span.ready <= span.start && span.start <= span.end);
            // A memory that doesn't compute gives bytes back in no order.
            prop_assert!(*last <= span.ready || span.start == span.end);
            *last = last.max(span.end);
        }
        let latest = ends.values().copied().fold(0.0, f64::max);
        prop_assert_eq!(timeline.makespan(), latest);
        for lane in ends.keys() {
            prop_assert!(timeline.busy(*lane) <= timeline.makespan() + 1e-9);
        }
    }
}

#[test]
fn generated_problems_and_plans_for_a_second() {
    let end = Instant::now() + Duration::from_secs(1);
    let mut seed = 0;
    while Instant::now() < end {
        generate_and_check(&random_bytes(seed, 2000)).unwrap();
        seed += 1;
    }
    assert!(seed > 100, "only {seed} in a second");
}

#[test]
fn checking_is_fast() {
    // A chain of 10,000 tasks, each reading its three predecessors, each run three times in a row.
    let mut runs = Vec::new();
    let problem = chain_with_skips(10_000);
    for task in problem.tasks().keys() {
        runs.extend([task; 3]);
    }
    let device = problem.sole_device().unwrap();
    let plan = Plan::from_runs(&problem, device, &runs).unwrap();
    assert!(plan.steps.len() > 50_000);
    let best = (0..5).map(|_| {
        let plan = plan.clone();
        let start = Instant::now();
        assert!(check(&problem, plan).is_ok());
        start.elapsed()
    });
    let best = best.min().unwrap();
    // Several times what it takes, so that a busy machine passes and a quadratic checker doesn't.
    assert!(best < Duration::from_millis(150), "{best:?}");
}

fn chain_with_skips(tasks: usize) -> Problem {
    use cranelift_entity::EntityRef;
    let device = DeviceId::new(0);
    let mut parts = ProblemParts::default();
    parts.devices.push(Device::computing("cpu"));
    for i in 0..tasks {
        let origin = Origin::Task(TaskId::new(i));
        let output = parts.values.push(Value {
            name: format!("v{i}"),
            bytes: 100,
            origin,
            keep: Keep::No,
        });
        parts.tasks.push(Task {
            name: format!("t{i}"),
            phase: Phase::Forward,
            inputs: (i.saturating_sub(3)..i).map(ValueId::new).collect(),
            outputs: vec![output],
            overwrites: vec![],
            modes: vec![Mode {
                device,
                seconds: 1.0,
                joules: 0.0,
                workspace: 10,
                resident: 0,
            }],
            rerunnable: true,
        });
    }
    Problem::new(parts).unwrap()
}
