//! Training on several devices under plans made by hand: the placement decides where, never what.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use scrimp::graph::data::Feed;
use scrimp::graph::networks::NetworkOptions;
use scrimp::graph::{Loss, Optimizer, Tiles, TrainingGraph};
use scrimp::plan::{
    Budget, Capacities, DeviceId, PerDevice, Problem, SavedPlan, Sequence, Step, TaskId, check,
    simulate,
};
use scrimp::run::Library;
use scrimp::solve::{Objective, Options, place};
use scrimp::{
    Budgeted, Crossing, Devices, Error, Fit, Homes, Job, ModelSource, PlanSummary, Recipe, Slowed,
    Start, Swap, Within, adopt, pipeline, training,
};

const OPTIMIZER: Optimizer = Optimizer::Sgd {
    momentum: 0.9,
    weight_decay: 0.0,
};

fn budgets(text: &str) -> PerDevice<Budget> {
    text.parse().unwrap()
}

/// The tasks in order, each on a device by its index.
fn placed(problem: &Problem, device: impl Fn(usize) -> u32) -> Sequence {
    let order = problem.tasks().keys().enumerate();
    let order = order.map(|(index, task)| (task, DeviceId::from_u32(device(index))));
    Sequence::placed(problem, order.collect::<Vec<(TaskId, DeviceId)>>())
}

/// A training step of the digits' network.
fn digits(batch: usize) -> TrainingGraph {
    let options = NetworkOptions {
        batch,
        ..NetworkOptions::default()
    };
    let graph = pipeline::import(&ModelSource::find("digits").unwrap(), &options, None).unwrap();
    let recipe = Recipe {
        loss: Loss::CrossEntropy,
        optimizer: OPTIMIZER,
        tiles: Tiles::Off,
    };
    pipeline::differentiate(&graph, recipe).unwrap()
}

#[test]
fn losses_do_not_depend_on_the_placement() {
    let step = digits(4);
    let feed = Feed::synthetic(&step.graph, 0);
    let start = Start::new(0);
    let mut losses = Vec::new();
    for (list, asked, stride) in [
        ("a/1", "a=100%", 1),
        ("a/1,b/1", "a=100%,b=100%", 3),
        ("a/1,b/1,c/1", "a=100%,b=100%,c=100%", 2),
    ] {
        let specs: Vec<_> = list.split(',').map(|text| text.parse().unwrap()).collect();
        let devices = Devices::start(&specs, 1, Library::Native).unwrap();
        let compiled = devices.compiled(&step.graph);
        let costs: Vec<_> = compiled.iter().map(pipeline::estimate).collect();
        let crossing = Crossing::estimate(&compiled);
        let lowered = devices
            .lower(&step.graph, &step.phases, &costs, &crossing)
            .unwrap();
        let none = Capacities::unlimited();
        let asked = budgets(asked);
        let budgeted = scrimp::budgets(&lowered.problem, Some(&asked), &none, Homes::Free).unwrap();
        let budgeted = Budgeted {
            budget_bytes: Some(u64::MAX),
            beside: none,
            ..budgeted
        };
        let problem = &budgeted.problem;
        let sequence = placed(problem, |index| (index / stride % specs.len()) as u32);
        let plan = sequence.plan(problem).unwrap();
        let saved = SavedPlan {
            plan,
            device: None,
            exact: true,
            homes: Vec::new(),
        };
        let planned = adopt(&budgeted, saved, "none").unwrap();
        let again = check(problem, planned.compared().unwrap().plan().clone());
        assert!(specs.len() == 1 || again.unwrap().steps() == planned.plan().steps());
        let job = Job {
            training: &step,
            lowered: &lowered,
            compiled: &compiled,
            feed: &feed,
            optimizer: OPTIMIZER,
            learning_rate: 0.01,
            start: &start,
            swap: &Swap::default(),
        };
        let never = AtomicBool::new(false);
        let done =
            training::run::<Error>(job, &planned, None, 3, &never, &mut |_, _| {}, &mut |_| {
                Ok(())
            });
        let done = done.unwrap().planned;
        losses.push(done.losses());
        assert!(done.trace.in_use.len() == specs.len());
    }
    assert!(losses[0].iter().all(|loss| loss.is_finite()));
    assert!(losses.iter().all(|other| *other == losses[0]), "{losses:?}");
}

#[test]
fn percentages_are_of_each_device_alone() {
    let step = digits(4);
    let specs = ["a/1", "b/1"].map(|text| text.parse().unwrap());
    let devices = Devices::start(&specs, 1, Library::Native).unwrap();
    let compiled = devices.compiled(&step.graph);
    let mut costs: Vec<_> = compiled.iter().map(pipeline::estimate).collect();
    // The second device is the faster one.
    for cost in costs[1].nodes.values_mut() {
        cost.seconds *= 0.5;
    }
    let lowered = devices.lower(
        &step.graph,
        &step.phases,
        &costs,
        &Crossing::estimate(&compiled),
    );
    let problem = lowered.unwrap().problem;
    let none = Capacities::unlimited();
    let [a, b] = [0, 1].map(DeviceId::from_u32);
    let all = scrimp::budgets(
        &problem,
        Some(&budgets("a=100%,b=100%")),
        &none,
        Homes::Free,
    );
    let all = all.unwrap();
    assert_eq!(all.device, b);
    assert_eq!(all.budget_bytes, Some(all.base_peak()));
    assert_eq!(all.beside.bytes(a), Some(all.base_peak()));
    let half = scrimp::budgets(&problem, Some(&budgets("a=0%,b=50%")), &none, Homes::Free);
    let half = half.unwrap();
    assert_eq!(half.beside.bytes(a), Some(half.fixed_bytes));
    let middle = half.fixed_bytes + (half.base_peak() - half.fixed_bytes) / 2;
    assert_eq!(half.budget_bytes, Some(middle));
}

/// Devices that take twice as long when both compute are not used together, others are, and the costs of plans are those
/// of devices alone or together, as the plan is.
#[test]
fn devices_that_slow_each_other_down_take_turns() {
    let step = digits(4);
    let specs = ["a/1", "b/1"].map(|text| text.parse().unwrap());
    let devices = Devices::start(&specs, 1, Library::Native).unwrap();
    let compiled = devices.compiled(&step.graph);
    let mut costs: Vec<_> = compiled.iter().map(pipeline::estimate).collect();
    for cost in costs.iter_mut().flat_map(|costs| costs.nodes.values_mut()) {
        // Beside such runs copies take next to nothing.
        cost.seconds *= 1e3;
    }
    let crossing = Crossing::estimate(&compiled);
    let lowered = devices.lower(&step.graph, &step.phases, &costs, &crossing);
    let lowered = lowered.unwrap();
    let none = Capacities::unlimited();
    let asked = budgets("a=100%,b=100%");
    let budgeted = scrimp::budgets(&lowered.problem, Some(&asked), &none, Homes::Free).unwrap();
    let base = simulate(&budgeted.base).makespan();
    let options = Options {
        time_limit: Duration::from_millis(600),
        ..Options::default()
    };
    let planned = |factor: Option<f64>| {
        let budgeted = Budgeted {
            slowed: Slowed::from_factors(&lowered, |_, _| factor),
            ..budgeted.clone()
        };
        pipeline::find_plan(&budgeted, Fit::Layout, &options, &mut |_| {}).unwrap()
    };
    for (factor, together) in [(None, true), (Some(1.1), true), (Some(2.0), false)] {
        let planned = planned(factor);
        let (problem, steps) = (&planned.budgeted.problem, planned.plan().steps());
        let runs = steps.iter().filter_map(|step| match *step {
            Step::Run { device, .. } => Some(device),
            _ => None,
        });
        let used: HashSet<DeviceId> = runs.collect();
        assert_eq!(used.len(), if together { 2 } else { 1 }, "{factor:?}");
        let summary = PlanSummary::new(&planned);
        let (alone, slowed) = (summary.alone_cost.unwrap(), summary.devices["b"].slowed);
        assert!((alone / base - 1.0).abs() < 1e-6);
        assert!(summary.makespan <= alone && summary.lower_bound <= summary.objective);
        assert_eq!(slowed.is_some(), factor.is_some());
        assert!(slowed.is_none_or(|slowed| (slowed / factor.unwrap() - 1.0).abs() < 1e-6));
        // What a task costs in the plan's problem.
        let counted = if together { factor.unwrap_or(1.0) } else { 1.0 };
        for (task, what) in problem.tasks().iter() {
            let before = lowered.problem.task(task).modes[0].seconds;
            let off = what.modes[0].seconds - counted * before;
            assert!(off.abs() <= 1e-9 * before, "{factor:?}");
        }
    }
    // Where each run and copy waits for the one before, nothing is slowed down.
    let serial = Options {
        objective: Objective::Serial,
        ..options.clone()
    };
    let budgeted = Budgeted {
        slowed: Slowed::from_factors(&lowered, |_, _| Some(2.0)),
        ..budgeted.clone()
    };
    let planned = pipeline::find_plan(&budgeted, Fit::Layout, &serial, &mut |_| {}).unwrap();
    assert!(planned.plan().serial_seconds() <= base * (1.0 + 1e-9));
}

/// Losses under budgets are those of the same placement without budgets, and of one device alone.
#[test]
fn budgets_change_no_bits() {
    let unet = NetworkOptions {
        batch: 1,
        image: Some([32, 32]),
        width: Some(8),
        ..NetworkOptions::default()
    };
    let transformer = NetworkOptions {
        batch: 2,
        layers: Some(2),
        width: Some(16),
        heads: Some(2),
        sequence: Some(8),
        vocabulary: Some(32),
        ..NetworkOptions::default()
    };
    let mut copies = 0;
    for (name, options) in [("unet", unet), ("transformer", transformer)] {
        let graph = pipeline::import(&ModelSource::find(name).unwrap(), &options, None).unwrap();
        let recipe = Recipe {
            loss: Loss::CrossEntropy,
            optimizer: OPTIMIZER,
            tiles: Tiles::Off,
        };
        let step = pipeline::differentiate(&graph, recipe).unwrap();
        let feed = Feed::synthetic(&step.graph, 0);
        let start = Start::new(0);
        let mut losses = Vec::new();
        for (list, asked) in [
            ("a/1", "a=100%"),
            ("a/1,b/1", "a=50%,b=40%"),
            ("a/1,b/1,c/1", "a=40%,b=30%,c=30%"),
        ] {
            let specs: Vec<_> = list.split(',').map(|text| text.parse().unwrap()).collect();
            let devices = Devices::start(&specs, 1, Library::Native).unwrap();
            let compiled = devices.compiled(&step.graph);
            let costs: Vec<_> = compiled.iter().map(pipeline::estimate).collect();
            let crossing = Crossing::estimate(&compiled);
            let lowered = devices
                .lower(&step.graph, &step.phases, &costs, &crossing)
                .unwrap();
            let none = Capacities::unlimited();
            let asked = budgets(asked);
            let budgeted = scrimp::budgets(&lowered.problem, Some(&asked), &none, Homes::Free);
            let options = Options {
                time_limit: Duration::from_millis(600),
                ..Options::default()
            };
            let planned =
                pipeline::find_plan(&budgeted.unwrap(), Fit::Layout, &options, &mut |_| {});
            let planned = planned.unwrap();
            let capacities = planned.budgeted.within(planned.budget_bytes);
            for device in planned.plan().problem().devices().keys() {
                let needed = planned.layout.needed_bytes(device);
                assert!(Some(needed) <= capacities.bytes(device), "{name} {list}");
            }
            copies += planned
                .plan()
                .steps()
                .iter()
                .filter(|step| matches!(step, Step::Copy { .. }))
                .count();
            let job = Job {
                training: &step,
                lowered: &lowered,
                compiled: &compiled,
                feed: &feed,
                optimizer: OPTIMIZER,
                learning_rate: 0.01,
                start: &start,
                swap: &Swap::default(),
            };
            let base = place(&planned.compared().unwrap(), &none).unwrap();
            let never = AtomicBool::new(false);
            let done = training::run::<Error>(
                job,
                &planned,
                Some(&base),
                2,
                &never,
                &mut |_, _| {},
                &mut |_| Ok(()),
            );
            let done = done.unwrap();
            let without = done.base.unwrap();
            assert_eq!(done.planned.hashes, without.hashes, "{name} {list}");
            losses.push(done.planned.losses());
        }
        assert!(losses[0].iter().all(|loss| loss.is_finite()));
        assert!(
            losses.iter().all(|other| *other == losses[0]),
            "{name}: {losses:?}"
        );
    }
    assert!(copies > 0);
}

#[test]
fn a_device_with_too_little_memory_for_a_step_is_measured_while_it_swaps() {
    let step = digits(16);
    let specs = ["cpu/1".parse().unwrap()];
    let devices = Devices::start(&specs, 1, Library::Native).unwrap();
    let compiled = &devices.compiled(&step.graph)[0];
    let costs = pipeline::estimate(compiled);
    let lowered = scrimp::graph::lower(&step.graph, &step.phases, &costs, "cpu").unwrap();
    let fixed = pipeline::budget(&lowered.problem, Budget::Percent(100.0))
        .unwrap()
        .fixed_bytes;
    let measured = |beside| {
        let within = Within {
            // What must stay without swapping has no room.
            budget: Budget::Bytes(fixed / 10 * 9),
            beside,
        };
        let options = Options {
            time_limit: Duration::from_millis(500),
            ..Options::default()
        };
        let go = AtomicBool::new(false);
        let swap = Swap::default();
        scrimp::profile(
            &step.phases,
            compiled,
            within,
            &swap,
            &options,
            &go,
            &mut |_| {},
        )
    };
    let none = measured(0).map(|_| ()).unwrap_err();
    assert!(none.to_string().contains("no plan"), "{none}");
    let profile = measured(1 << 30).unwrap();
    let nodes = lowered.nodes.values();
    let seconds: Vec<f64> = nodes
        .map(|&node| profile.costs.nodes[node].seconds)
        .collect();
    assert!(
        seconds
            .iter()
            .all(|seconds| seconds.is_finite() && *seconds > 0.0),
        "{seconds:?}"
    );
}
