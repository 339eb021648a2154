//! Plans of random problems are right, and what the decoder counts is what the checker and the simulator say.

use scrimp_plan::testing::{Shape, random_problem};

use super::roomy::Roomy;
use super::*;

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
            ..Options::default()
        };
        let system = System::new(&problem, &capacities, options.objective, 0.0);
        let search = Search {
            problem: &problem,
            capacities: &capacities,
            options: &options,
            system: &system,
            cutoff: Cutoff::NEVER,
        };
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
                assert!(
                    matches!(search.short(&found), SolveError::Short(short) if !short.is_empty())
                );
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
        let problem = random_problem(seed, &Shape::everything(9));
        let capacities = match seed % 2 {
            0 => Capacities::unlimited(),
            _ => capacities(&problem, &mut random),
        };
        let objective = Objective::ALL[random.below(Objective::ALL.len())];
        let system = System::new(&problem, &capacities, objective, 0.5);
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
    assert!(judged > 800 && copied > 500, "{judged} {copied}");
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
