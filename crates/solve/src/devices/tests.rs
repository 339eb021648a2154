//! Plans of random problems are right, and what the decoder counts is what the checker and the simulator say.

use scrimp_plan::testing::{Shape, random_problem};
use scrimp_plan::{
    Device, Keep, Link, Mode, Origin, Overwrite, Phase, ProblemParts, Task, Value,
    problem_from_json,
};

use super::roomy::Roomy;
use super::*;
use crate::testing::several::{least_cost, several};

/// A search that no clock cuts off.
fn search<'a>(
    problem: &'a Problem,
    capacities: &'a Capacities,
    options: &'a Options,
    system: &'a System,
) -> Search<'a> {
    Search {
        problem,
        capacities,
        options,
        system,
        cutoff: Cutoff::NEVER,
    }
}

/// Capacities between what the largest task needs and what keeps everything, and sometimes none.
fn capacities(problem: &Problem, random: &mut Random) -> Capacities {
    let mut capacities = Capacities::unlimited();
    for (id, device) in problem.devices().iter() {
        let all: u64 = problem.values().values().map(|value| value.bytes).sum();
        if random.below(4) > 0 {
            let bytes = device.resident + (all as f64 * (0.2 + random.unit())) as u64;
            capacities = capacities.with_bytes(id, Some(bytes));
        }
    }
    capacities
}

#[test]
fn the_decoder_agrees_with_the_checker_and_the_simulator() {
    let (mut made, mut fit, mut copies, mut again) = (0, 0, 0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed, 7);
        let problem = random_problem(seed, &Shape::everything(9));
        let capacities = capacities(&problem, &mut random);
        let options = Options {
            order: if seed % 2 == 0 {
                Order::Free
            } else {
                Order::Fixed
            },
            laid_out: seed % 3 == 0,
            ..Options::default()
        };
        let system = System::new(&problem, &capacities, &options);
        let search = search(&problem, &capacities, &options, &system);
        let mut walk = Walk::new(&system, search.is_fixed(), random);
        let Some(list) = starts::earliest(&system, search.is_fixed()) else {
            continue;
        };
        if !walk.start(&list) {
            continue;
        }
        for _ in 0..5 {
            walk.anneal(1000, 1.0, 0.0, Cutoff::NEVER);
            let found = walk.best.clone().unwrap();
            made += 1;
            if found.over > 0.0 {
                let refusal = search.refusal(&found);
                assert!(matches!(refusal, SolveError::Short(short) if !short.is_empty()));
                continue;
            }
            let (cost, plan) = search
                .checked(&found)
                .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert!(
                (cost - found.cost).abs() < 1e-9 * cost.max(1.0),
                "seed {seed}: {cost} {}",
                found.cost
            );
            assert!(options.order == Order::Free || plan.keeps_order());
            assert_eq!(search.lacks_places(&plan), [], "seed {seed}");
            fit += 1;
            copies += usize::from(plan.serial_seconds() > plan.cost());
            again += plan.recomputed();
        }
    }
    assert!(
        fit > 300 && copies > 100 && again > 10,
        "{made} {fit} {copies} {again}"
    );
}

/// The search for one device takes the others as memories, also where no order of tasks is known.
#[test]
fn plans_of_one_device_beside_others_are_within_all_capacities() {
    let mut found = 0;
    for seed in 0..150 {
        let mut random = Random::new(seed, 8);
        let problem = random_problem(seed, &Shape::everything(9));
        let capacities = capacities(&problem, &mut random);
        let options = Options {
            laid_out: true,
            ..Options::default()
        };
        let system = System::new(&problem, &capacities, &options);
        let search = search(&problem, &capacities, &options, &system);
        for device in 0..system.devices {
            let plan = search.alone(device, Duration::from_millis(20)).unwrap();
            if let Some((_, plan)) = plan {
                assert_eq!(search.lacks_places(&plan), [], "seed {seed}");
                assert!(plan.within(&capacities).is_ok(), "seed {seed}");
                found += 1;
            }
        }
    }
    assert!(found > 50, "{found}");
}

/// While the weight is updated elsewhere, the first task's output is in its place at home. A layout needs other bytes for it.
#[test]
fn a_plan_that_takes_the_place_of_what_is_given_is_no_start() {
    let problem = problem_from_json(
        r#"{
        "format": "scrimp-problem", "version": 1, "name": "places", "units": {"cost": "s", "memory": "B"},
        "devices": [{"name": "home", "capacity": 8, "computes": true, "resident": 0},
            {"name": "away", "capacity": 20, "computes": true, "resident": 0}],
        "links": [{"from": 0, "to": 1, "bandwidth": 1.0, "latency": 0.0},
            {"from": 1, "to": 0, "bandwidth": 1.0, "latency": 0.0}],
        "tasks": [
            {"name": "first", "phase": "forward", "inputs": [0], "outputs": [1, 4], "rerunnable": false,
             "modes": [{"device": 1, "seconds": 1.0, "joules": 0.0, "workspace": 0}]},
            {"name": "update", "phase": "forward", "inputs": [0, 4], "outputs": [2, 5], "rerunnable": false,
             "overwrites": [{"input": 0, "output": 2}],
             "modes": [{"device": 1, "seconds": 1.0, "joules": 0.0, "workspace": 12}]},
            {"name": "third", "phase": "forward", "inputs": [1, 5], "outputs": [3], "rerunnable": false,
             "modes": [{"device": 1, "seconds": 1.0, "joules": 0.0, "workspace": 0}]}
        ],
        "values": [
            {"name": "weight", "bytes": 8, "origin": {"given": 0}, "keep": "no"},
            {"name": "made", "bytes": 8, "origin": {"task": 0}, "keep": "no"},
            {"name": "weight'", "bytes": 8, "origin": {"task": 1}, "keep": {"on": 0}},
            {"name": "end", "bytes": 0, "origin": {"task": 2}, "keep": "anywhere"},
            {"name": "before", "bytes": 0, "origin": {"task": 0}, "keep": "no"},
            {"name": "after", "bytes": 0, "origin": {"task": 1}, "keep": "no"}
        ]
    }"#,
    );
    let (problem, capacities) = problem.unwrap();
    let [home, away] = [0, 1].map(DeviceId::new);
    let run = |task| Move::Run {
        task: TaskId::new(task),
        device: away,
    };
    let copy = |value, from, to| Move::Copy {
        value: ValueId::new(value),
        from,
        to,
    };
    let release = |value, device| Move::Release {
        value: ValueId::new(value),
        device,
    };
    let moves = vec![
        copy(0, home, away),
        release(0, home),
        run(0),
        copy(1, away, home),
        release(1, away),
        run(1),
        copy(1, home, away),
        release(1, home),
        copy(2, away, home),
        run(2),
    ];
    let is_given = |laid_out| {
        let options = Options {
            laid_out,
            start: Some(Sequence {
                moves: moves.clone(),
            }),
            ..Options::default()
        };
        let system = System::new(&problem, &capacities, &options);
        let search = search(&problem, &capacities, &options, &system);
        search.given().is_some()
    };
    assert!(is_given(false));
    assert!(!is_given(true));
}

/// A weight comes home after the last copy of what it replaces there, which a second run elsewhere reads after the
/// update.
#[test]
fn a_value_comes_home_when_nothing_needs_what_it_replaces() {
    let mut parts = ProblemParts::default();
    let home = parts.devices.push(Device::computing("home"));
    let away = parts.devices.push(Device::computing("away"));
    parts.links.push(Link::new(home, away, 1.0, 0.0));
    parts.links.push(Link::new(away, home, 1.0, 0.0));
    let task = |parts: &mut ProblemParts, inputs: &[ValueId], bytes: u64, workspace: u64| {
        let id = parts.tasks.next_key();
        let output = parts.values.push(Value {
            name: String::new(),
            bytes,
            origin: Origin::Task(id),
            keep: Keep::No,
        });
        parts.tasks.push(Task {
            name: String::new(),
            phase: Phase::Forward,
            inputs: inputs.to_vec(),
            outputs: vec![output],
            overwrites: Vec::new(),
            modes: vec![Mode {
                device: away,
                seconds: 1.0,
                joules: 0.0,
                workspace,
                resident: 0,
            }],
            rerunnable: true,
        });
        output
    };
    let weight = parts.values.push(Value {
        name: "weight".into(),
        bytes: 8,
        origin: Origin::Given(home),
        keep: Keep::No,
    });
    let made = task(&mut parts, &[weight], 4, 0);
    let read = task(&mut parts, &[made], 1, 0);
    let updated = task(&mut parts, &[weight], 8, 0);
    let large = task(&mut parts, &[read], 0, 8);
    let last = task(&mut parts, &[made, large], 0, 0);
    parts.values[updated].keep = Keep::On(home);
    parts.values[last].keep = Keep::Anywhere;
    let update = &mut parts.tasks[TaskId::new(2)];
    update.rerunnable = false;
    update.overwrites.push(Overwrite {
        input: weight,
        output: updated,
    });
    let problem = Problem::new(parts).unwrap();
    let capacities = Capacities::unlimited()
        .with_bytes(home, Some(8))
        .with_bytes(away, Some(20));
    let options = Options {
        laid_out: true,
        ..Options::default()
    };
    let system = System::new(&problem, &capacities, &options);
    let search = search(&problem, &capacities, &options, &system);
    let list = [0, 1, 2, 3, 0, 4].map(|task| Run { task, device: 1 });
    let mut walk = Walk::new(&system, false, Random::new(0, 0));
    assert!(walk.start(&list));
    let found = walk.best.take().unwrap();
    assert_eq!(found.over, 0.0);
    let (_, plan) = search.checked(&found).unwrap();
    assert_eq!((plan.recomputed(), plan.peak(home)), (1, 8));
}

/// A weight that was copied away can't come back once its update has its bytes at home.
#[test]
fn a_value_does_not_come_home_once_it_is_replaced() {
    let problem = problem_from_json(
        r#"{
        "format": "scrimp-problem", "version": 1, "name": "replaced", "units": {"cost": "s", "memory": "B"},
        "devices": [{"name": "home", "capacity": 20, "computes": true, "resident": 0, "arithmetic": "same"},
            {"name": "away", "capacity": 20, "computes": true, "resident": 0, "arithmetic": "same"}],
        "links": [{"from": 0, "to": 1, "bandwidth": 1.0, "latency": 0.0},
            {"from": 1, "to": 0, "bandwidth": 1.0, "latency": 0.0}],
        "tasks": [
            {"name": "maker", "phase": "forward", "inputs": [0], "outputs": [1], "rerunnable": true,
             "modes": [{"device": 0, "seconds": 1.0, "joules": 0.0, "workspace": 0},
                {"device": 1, "seconds": 1.0, "joules": 0.0, "workspace": 0}]},
            {"name": "update", "phase": "forward", "inputs": [0], "outputs": [2], "rerunnable": false,
             "overwrites": [{"input": 0, "output": 2}],
             "modes": [{"device": 0, "seconds": 1.0, "joules": 0.0, "workspace": 0}]},
            {"name": "reader", "phase": "forward", "inputs": [1], "outputs": [3], "rerunnable": true,
             "modes": [{"device": 0, "seconds": 1.0, "joules": 0.0, "workspace": 0}]}
        ],
        "values": [
            {"name": "weight", "bytes": 8, "origin": {"given": 0}, "keep": "no"},
            {"name": "made", "bytes": 4, "origin": {"task": 0}, "keep": "no"},
            {"name": "weight'", "bytes": 8, "origin": {"task": 1}, "keep": {"on": 0}},
            {"name": "read", "bytes": 1, "origin": {"task": 2}, "keep": "anywhere"}
        ]
    }"#,
    );
    let (problem, capacities) = problem.unwrap();
    let decodes = |laid_out, list: &[(usize, usize)]| {
        let options = Options {
            laid_out,
            ..Options::default()
        };
        let system = System::new(&problem, &capacities, &options);
        let list: Vec<Run> = list
            .iter()
            .map(|&(task, device)| Run { task, device })
            .collect();
        Decoder::new(&system).decode(&list)
    };
    // The first run makes `made` away, the second at home, where the weight must come from away.
    let back = [(0, 1), (1, 0), (0, 0), (2, 0)];
    assert!(decodes(true, &[(0, 1), (1, 0), (2, 0)]));
    assert!(decodes(false, &back));
    assert!(!decodes(true, &back));
}

/// Lists that have all tasks once, in a right order and on devices that can run them.
fn random_list(system: &System, random: &mut Random) -> Vec<Run> {
    let mut list: Vec<Run> = Vec::new();
    let mut placed: Vec<Option<usize>> = vec![None; system.tasks];
    while list.len() < system.tasks {
        let task = random.below(system.tasks);
        let device = random.below(system.devices);
        let ready = system.before[task].iter().all(|&u| placed[u].is_some());
        let together = |&other: &usize| placed[other].is_none_or(|there| there == device);
        let can = |&task: &usize| system.way(task, device).is_some();
        let group = &system.group[task];
        let allowed = group.iter().all(together) && group.iter().chain([&task]).all(can);
        if placed[task].is_none() && ready && allowed {
            placed[task] = Some(device);
            list.push(Run { task, device });
        }
    }
    list
}

#[test]
fn the_quick_pass_agrees_with_the_decoder() {
    let (mut judged, mut copied) = (0, 0);
    for seed in 0..400 {
        let mut random = Random::new(seed, 9);
        let mut parts = random_problem(seed, &Shape::everything(9)).parts();
        for link in parts.links.values_mut() {
            link.drag = [0.0, 0.3][random.below(2)];
        }
        let problem = Problem::new(parts).unwrap();
        let capacities = match seed % 2 {
            0 => Capacities::unlimited(),
            _ => capacities(&problem, &mut random),
        };
        let objective = Objective::ALL[random.below(Objective::ALL.len())];
        let options = Options {
            objective,
            alpha: 0.5,
            laid_out: random.below(2) == 0,
            ..Options::default()
        };
        let system = System::new(&problem, &capacities, &options);
        let (mut quick, mut walk) = (Roomy::new(&system), Decoder::new(&system));
        let mut timing = timing::Timing::new(&system);
        for _ in 0..10 {
            let list = random_list(&system, &mut random);
            let Some(found) = quick.judge(&list) else {
                continue;
            };
            assert!(walk.decode(&list), "seed {seed}");
            assert_eq!(walk.runs, list, "seed {seed}");
            let cost = timing.cost(&walk.acts);
            assert!(
                (found.cost - cost).abs() < 1e-9 * cost,
                "seed {seed}: {} {cost}",
                found.cost
            );
            assert!((found.over - walk.over).abs() < 1e-9, "seed {seed}");
            judged += 1;
            copied += usize::from(walk.acts.len() > list.len());
        }
    }
    assert!(judged > 600 && copied > 400, "{judged} {copied}");
}

/// Options under which the search ends by its work, not by the clock.
fn patient(objective: Objective) -> Options {
    Options {
        objective,
        time_limit: Duration::from_secs(600),
        ..Options::default()
    }
}

#[test]
fn small_plans_are_almost_always_the_best() {
    let mut random = Random::new(5, 3);
    let (mut best, mut compared) = (0, 0);
    for round in 0..60 {
        let (tasks, devices) = (2 + round % 3, 2 + round % 2);
        let problem = several(tasks, devices, round % 3 == 0, &mut random);
        let capacities = match round % 2 {
            0 => Capacities::unlimited(),
            _ => capacities(&problem, &mut random),
        };
        for objective in Objective::ALL {
            let least = least_cost(&problem, &capacities, (objective, Order::Free), 4_000);
            let Ok(Some(least)) = least else {
                continue;
            };
            let options = Options {
                enough: Some(least * (1.0 + 1e-9)),
                ..patient(objective)
            };
            let Ok(solved) = solve(&problem, &capacities, &options, &mut |_| {}) else {
                compared += 1;
                continue;
            };
            assert!(solved.cost >= least * (1.0 - 1e-9), "round {round}");
            assert!(solved.lower_bound <= least * (1.0 + 1e-9), "round {round}");
            compared += 1;
            best += usize::from(solved.cost <= least * (1.0 + 1e-9));
        }
    }
    assert!(
        compared >= 60 && 20 * best >= 19 * compared,
        "{best} of {compared}"
    );
}

#[test]
fn no_plan_is_worse_than_that_of_the_best_single_device() {
    let mut compared = 0;
    for seed in 0..40 {
        let problem = random_problem(seed, &Shape::everything(7));
        if problem.sole_device().is_some() {
            continue;
        }
        let capacities = capacities(&problem, &mut Random::new(seed, 4));
        for objective in Objective::ALL {
            let options = Options {
                time_limit: Duration::from_millis(10),
                ..patient(objective)
            };
            let single = Options {
                method: "single-device".parse().unwrap(),
                ..options.clone()
            };
            let Ok(single) = solve(&problem, &capacities, &single, &mut |_| {}) else {
                continue;
            };
            let ours = solve(&problem, &capacities, &options, &mut |_| {}).unwrap();
            assert!(ours.cost <= single.cost * (1.0 + 1e-9), "seed {seed}");
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn the_same_seed_gives_the_same_plan_with_any_number_of_threads() {
    for seed in 0..4 {
        let problem = several(4, 2, true, &mut Random::new(seed, 6));
        let options = |threads| Options {
            seed,
            threads,
            ..patient(Objective::Makespan)
        };
        let plan = |threads| {
            let unlimited = Capacities::unlimited();
            let solved = solve(&problem, &unlimited, &options(threads), &mut |_| {});
            solved.unwrap().plan.steps().to_vec()
        };
        assert_eq!(plan(2), plan(1), "seed {seed}");
    }
}

#[test]
fn a_cap_on_energy_that_cannot_be_met_is_named() {
    let problem = several(4, 2, false, &mut Random::new(2, 2));
    let mut parts = problem.parts();
    for mode in parts.tasks.values_mut().flat_map(|task| &mut task.modes) {
        mode.joules = 3.0;
    }
    let problem = Problem::new(parts).unwrap();
    let devices = problem.devices().keys();
    let capped = devices.fold(Capacities::unlimited(), |all, device| {
        all.with_joules(device, Some(1.0))
    });
    let refusal = solve(
        &problem,
        &capped,
        &patient(Objective::Makespan),
        &mut |_| {},
    );
    let refusal = refusal.unwrap_err();
    assert!(
        matches!(refusal, SolveError::EnergyCap { cap: 1.0, .. }),
        "{refusal}"
    );
}

/// A file of the folder that `SCRIMP_INSTANCES` names; none if it isn't set.
fn instance(name: &str) -> Option<scrimp_plan::Instance> {
    let folder = std::env::var_os("SCRIMP_INSTANCES")?;
    let text = std::fs::read_to_string(std::path::Path::new(&folder).join(name)).unwrap();
    Some(scrimp_plan::read_instance(&text).unwrap())
}

#[test]
fn the_example_of_heft_takes_73() {
    let Some(read) = instance("partitioning/heft_topcuoglu2002.json") else {
        return;
    };
    let options = Options::default();
    let solved = solve(&read.problem, &read.capacities, &options, &mut |_| {}).unwrap();
    assert!((solved.cost - 73.0).abs() < 1e-9, "{}", solved.cost);
}

#[test]
fn tasks_that_fit_on_no_device_together_prove_plans_best() {
    // Networks that are nearly chains: what the search finds for them can't be improved.
    for (name, cost) in [("bert24", 100.2185), ("gnmt", 219.05609375)] {
        let Some(read) = instance(&format!("partitioning/latency_layer_{name}.json")) else {
            return;
        };
        let options = Options::default();
        let bound = bound::devices::cost(&read.problem, &read.capacities, &options);
        assert!((bound - cost).abs() < 1e-9 * cost, "{name}: {bound}");
        let unlimited = bound::devices::cost(&read.problem, &Capacities::unlimited(), &options);
        assert!(unlimited < bound, "{name}: {unlimited}");
    }
    // Where branches meet, all of their tasks count that are on one device, and not only those of one path.
    for (name, cost) in [("layer_resnet50", 882.216), ("operator_bert_l-6", 427.854)] {
        let Some(read) = instance(&format!("partitioning/latency_{name}.json")) else {
            return;
        };
        let bound = bound::devices::cost(&read.problem, &read.capacities, &Options::default());
        assert!((bound - cost).abs() < 0.001, "{name}: {bound}");
    }
}

#[test]
fn the_toys_of_xengine_reach_their_optima() {
    let optima = [
        ("simple_costs_very_tiny_linear", 11.0),
        ("simple_costs_tiny_linear", 16.0),
        ("simple_costs_linear", 24.0),
        ("simple_costs_skip", 24.0),
        ("multi_costs_very_tiny_linear", 2.0),
        ("multi_costs_very_tiny_linear_copy_costs", 5.0),
        ("multi_costs_tiny_linear", 7.0),
        ("multi_costs_linear", 12.0),
        ("multi_costs_skip", 11.5),
    ];
    let options = Options {
        objective: Objective::Serial,
        time_limit: Duration::from_millis(300),
        ..Options::default()
    };
    let path = |name: &str| format!("xengine/xengine_test_ilp_{name}.json");
    for (name, optimum) in optima {
        let Some(read) = instance(&path(name)) else {
            return;
        };
        let solved = solve(&read.problem, &read.capacities, &options, &mut |_| {}).unwrap();
        assert!(
            (solved.cost - optimum).abs() < 1e-9,
            "{name}: {}",
            solved.cost
        );
    }
    let Some(read) = instance(&path("multi_costs_skip_copy_costs")) else {
        return;
    };
    let none = solve(&read.problem, &read.capacities, &options, &mut |_| {}).unwrap_err();
    assert!(none.to_string().contains("6000000"), "{none}");
}

/// A host, and two equal accelerators with a link each way, for tasks that take bytes for good there and read what
/// these earlier tasks make; those of the pair are on one device.
fn on_accelerators(
    reads: &[Vec<usize>],
    pair: [usize; 2],
    random: &mut Random,
) -> (Problem, Capacities) {
    let mut parts = ProblemParts::default();
    let host = parts.devices.push(Device {
        concurrent: true,
        ..Device::computing("host")
    });
    let mut capacities = Capacities::unlimited();
    for name in ["one", "two"] {
        let device = parts.devices.push(Device::computing(name));
        capacities = capacities.with_bytes(device, Some(4));
        parts.links.push(Link::new(host, device, 1.0, 0.0));
        parts.links.push(Link::new(device, host, 1.0, 0.0));
    }
    for inputs in reads {
        let id = parts.tasks.next_key();
        let output = parts.values.push(Value {
            name: String::new(),
            bytes: 0,
            origin: Origin::Task(id),
            keep: Keep::No,
        });
        let seconds = 1.0 + random.unit();
        let mode = |device: DeviceId| Mode {
            device,
            seconds: if device == host {
                8.0 * seconds
            } else {
                seconds
            },
            joules: 0.0,
            workspace: 0,
            resident: u64::from(device != host) * (1 + id.index() as u64 % 2),
        };
        parts.tasks.push(Task {
            name: String::new(),
            phase: Phase::Forward,
            inputs: inputs.iter().map(|&task| ValueId::new(task)).collect(),
            outputs: vec![output],
            overwrites: Vec::new(),
            modes: parts.devices.keys().map(mode).collect(),
            rerunnable: false,
        });
    }
    for link in parts.links.values_mut() {
        let seconds = parts.values.keys().map(|v| (v, 4.0 * random.unit()));
        link.seconds = seconds.collect();
    }
    parts.together.push(pair.map(TaskId::new).to_vec());
    (Problem::new(parts).unwrap(), capacities)
}

#[test]
fn a_wide_beam_finds_the_best_placement_of_a_chain() {
    let tasks = 7;
    let chain: Vec<Vec<usize>> = (0..tasks)
        .map(|t| (0..t).last().into_iter().collect())
        .collect();
    for seed in 0..20 {
        let mut random = Random::new(seed, 8);
        let (problem, capacities) = on_accelerators(&chain, [1, tasks - 1], &mut random);
        let system = System::new(&problem, &capacities, &Options::default());
        let mut roomy = Roomy::new(&system);
        let mut cost = |list: &[Run]| {
            let judged = roomy.judge(list).unwrap();
            (judged.over == 0.0).then_some(judged.cost)
        };
        let mut least = f64::INFINITY;
        let place = |code: usize| {
            let device = |task: usize| code / 3usize.pow(task as u32) % 3;
            let runs = (0..tasks).map(|task| Run {
                task,
                device: device(task),
            });
            runs.collect::<Vec<Run>>()
        };
        for list in (0..3usize.pow(tasks as u32)).map(place) {
            if list[1].device == list[tasks - 1].device {
                least = least.min(cost(&list).unwrap_or(f64::INFINITY));
            }
        }
        let bound = bound::devices::cost(&problem, &capacities, &Options::default());
        assert!(
            bound <= least * (1.0 + 1e-9),
            "seed {seed}: {bound} {least}"
        );
        let mut beam = Beam::new(&system);
        let taste = Taste {
            width: 5000,
            blur: 0.0,
            caution: 1.0,
        };
        let found = beam.all(taste, &mut random).unwrap();
        let found_cost = cost(&found).unwrap();
        assert!(
            (found_cost - least).abs() < 1e-9,
            "seed {seed}: {found_cost} {least}"
        );
        // A window changes what is in it, and nothing gets slower.
        let host = place(0);
        let better = beam.window(&host, 2..5, taste, &mut random).unwrap();
        assert!(
            [0, 1, 5, 6].iter().all(|&t| better[t] == host[t]),
            "seed {seed}"
        );
        assert!(cost(&better) <= cost(&host), "seed {seed}");
    }
}

/// All orders in which tasks come after what they read.
fn orders(reads: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in reads {
        let longer = all.iter().flat_map(|order: &Vec<usize>| {
            let ready = (0..reads.len()).filter(|t| {
                !order.contains(t) && reads[*t].iter().all(|read| order.contains(read))
            });
            let with = |t: usize| order.iter().copied().chain([t]).collect();
            ready.map(with).collect::<Vec<Vec<usize>>>()
        });
        all = longer.collect();
    }
    all
}

#[test]
fn no_placement_in_any_order_is_below_the_bound_of_the_makespan() {
    const PROBLEMS: u32 = 300;
    let tasks = 6;
    let mut shares = 0.0;
    for seed in 0..PROBLEMS {
        let mut random = Random::new(seed.into(), 9);
        let mut reads: Vec<Vec<usize>> = Vec::new();
        for t in 0..tasks {
            let near = |u: &usize| random.unit() < if u + 1 == t { 0.8 } else { 0.3 };
            reads.push((0..t).filter(near).collect());
        }
        let first = (random.unit() * (tasks - 1) as f64) as usize;
        let pair = [
            first,
            first + 1 + (random.unit() * (tasks - 1 - first) as f64) as usize,
        ];
        let (problem, capacities) = on_accelerators(&reads, pair, &mut random);
        let system = System::new(&problem, &capacities, &Options::default());
        let mut roomy = Roomy::new(&system);
        let mut least = f64::INFINITY;
        for order in orders(&reads) {
            for code in 0..3usize.pow(tasks as u32) {
                let device = |task: usize| code / 3usize.pow(task as u32) % 3;
                if device(pair[0]) != device(pair[1]) {
                    continue;
                }
                let run = |&task: &usize| Run {
                    task,
                    device: device(task),
                };
                let list: Vec<Run> = order.iter().map(run).collect();
                let judged = roomy.judge(&list).unwrap();
                if judged.over == 0.0 {
                    least = least.min(judged.cost);
                }
            }
        }
        let bound = bound::devices::cost(&problem, &capacities, &Options::default());
        assert!(
            bound <= least * (1.0 + 1e-9),
            "seed {seed}: {bound} {least}"
        );
        shares += bound / least / f64::from(PROBLEMS);
    }
    // A bound of zero would pass, too.
    assert!(shares > 0.6, "{shares}");
}
