//! Plans of random problems are right, and what the decoder counts is what the checker and the simulator say.

mod accelerators;
mod homes;
mod published;

use scrimp_plan::testing::{Shape, random_problem};

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
