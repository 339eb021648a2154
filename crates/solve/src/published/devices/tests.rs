#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests say what they skip, and fail by panicking"
)]

use std::path::Path;

use scrimp_plan::file::{Instance, read_instance, read_text};
use scrimp_plan::{Capacities, DeviceId, Problem, Step, check};

use crate::bound;
use crate::error::SolveError;
use crate::method::{Method, Objective, Order, Placing, Published, Wording};
use crate::options::{Options, Solved};
use crate::random::Random;
use crate::solve::solve;
use crate::testing::several::{least_cost, several};

fn instance(name: &str) -> Option<Instance> {
    let Some(folder) = std::env::var_os("SCRIMP_INSTANCES") else {
        println!("skipped: SCRIMP_INSTANCES isn't set");
        return None;
    };
    Some(read_instance(&read_text(&Path::new(&folder).join(name)).unwrap()).unwrap())
}

fn planned(
    instance: &Instance,
    placing: Placing,
    objective: Objective,
) -> Result<Solved, SolveError> {
    let options = Options {
        method: Method::Published(Published::Devices(placing)),
        objective,
        ..Options::default()
    };
    solve(
        &instance.problem,
        &instance.capacities,
        &options,
        &mut |_| {},
    )
}

#[test]
fn list_schedulers_reach_the_published_makespans() {
    let Some(instance) = instance("partitioning/heft_topcuoglu2002.json") else {
        return;
    };
    for (placing, makespan, key) in [
        (Placing::Heft, 80.0, "heft_placement"),
        (Placing::Cpop, 86.0, "cpop_placement"),
    ] {
        let solved = planned(&instance, placing, Objective::Makespan).unwrap();
        assert_eq!(solved.cost, makespan);
        assert!(solved.lower_bound >= 41.0 && solved.lower_bound <= 73.0);
        let mut placement = vec![usize::MAX; 10];
        for step in solved.plan.steps() {
            if let Step::Run { task, device } = step {
                placement[task.as_u32() as usize] = device.as_u32() as usize;
            }
        }
        let stated = instance.published[key].as_array().unwrap();
        let stated: Vec<usize> = stated
            .iter()
            .map(|d| d.as_u64().unwrap() as usize)
            .collect();
        assert_eq!(placement, stated);
    }
}

/// The toys whose names say which costs they have, with the optimum without limits on memory.
const TOYS: [(&str, f64); 6] = [
    ("multi_costs_linear", 12.0),
    ("multi_costs_skip", 11.5),
    ("multi_costs_skip_copy_costs", 16.0),
    ("multi_costs_tiny_linear", 7.0),
    ("multi_costs_very_tiny_linear", 2.0),
    ("multi_costs_very_tiny_linear_copy_costs", 5.0),
];

#[test]
fn the_cut_of_two_devices_is_the_serial_optimum_without_limits() {
    for (name, optimum) in TOYS {
        let Some(mut toy) = instance(&format!("xengine/xengine_test_ilp_{name}.json")) else {
            return;
        };
        toy.capacities = Default::default();
        let solved = planned(&toy, Placing::MinCut, Objective::Serial).unwrap();
        assert_eq!(solved.cost, optimum, "{name}");
        assert!(solved.optimal, "{name}: {}", solved.lower_bound);
    }
}

#[test]
fn a_task_that_fits_nowhere_is_named_with_its_bytes() {
    let Some(toy) = instance("xengine/xengine_test_ilp_multi_costs_skip_copy_costs.json") else {
        return;
    };
    let refused = planned(&toy, Placing::MinCut, Objective::Serial).unwrap_err();
    let SolveError::NoRoom { floor, budget, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!((floor, budget), (6_000_000, 5_000_000));
    assert_eq!(
        bound::devices::floor(&toy.problem, DeviceId::from_u32(0)),
        0
    );
}

/// Nine of the ten toys, with what is asserted of them.
const OPTIMA: [(&str, f64); 9] = [
    ("multi_costs_linear", 12.0),
    ("multi_costs_skip", 11.5),
    ("multi_costs_tiny_linear", 7.0),
    ("multi_costs_very_tiny_linear", 2.0),
    ("multi_costs_very_tiny_linear_copy_costs", 5.0),
    ("simple_costs_linear", 24.0),
    ("simple_costs_skip", 24.0),
    ("simple_costs_tiny_linear", 16.0),
    ("simple_costs_very_tiny_linear", 11.0),
];

#[test]
fn xengines_program_proves_the_published_optima() {
    for (name, optimum) in OPTIMA {
        let Some(toy) = instance(&format!("xengine/xengine_test_ilp_{name}.json")) else {
            return;
        };
        let mended = Placing::XEngine(Wording::Mended);
        match planned(&toy, mended, Objective::Serial) {
            Err(SolveError::Solver(_)) => return println!("skipped: HiGHS isn't installed"),
            outcome => {
                let solved = outcome.unwrap();
                assert!(
                    (solved.cost - optimum).abs() < 1e-6,
                    "{name}: {}",
                    solved.cost
                );
                assert!(solved.optimal, "{name}");
            }
        }
        let printed = Placing::XEngine(Wording::Printed);
        match planned(&toy, printed, Objective::Serial) {
            Ok(solved) => assert!(solved.cost >= optimum - 1e-6, "{name}: {}", solved.cost),
            Err(SolveError::Unsupported(why)) => println!("{name}: {why}"),
            Err(other) => panic!("{name}: {other}"),
        }
    }
}

/// Capacities between what the largest task needs and what keeping everything takes.
fn tight(problem: &Problem, rng: &mut Random) -> Capacities {
    let mut capacities = Capacities::unlimited();
    for device in problem.devices().keys() {
        let all: u64 = problem.values().values().map(|value| value.bytes).sum();
        let least = problem.tasks().values().map(|task| {
            let values = task.inputs.iter().chain(&task.outputs);
            values.map(|&v| problem.value(v).bytes).sum::<u64>()
        });
        let least = least.max().unwrap_or(0);
        let more = rng.below((all - least + 1) as usize) as u64 / 2;
        let bytes = problem.resident_bytes(device) + least + more;
        capacities = capacities.with_bytes(device, Some(bytes));
    }
    capacities
}

/// States of the oracle.
const MOST: usize = 4_000;

#[test]
fn bounds_are_below_the_least_cost() {
    let mut rng = Random::new(11, 0);
    let (mut met, mut compared) = ([0; 2], [0; 2]);
    for round in 0..100 {
        let (tasks, devices) = (2 + round % 3, 2 + round % 2);
        let problem = several(tasks, devices, round % 3 == 0, &mut rng);
        for (k, objective) in Objective::ALL.into_iter().enumerate() {
            let unlimited = Capacities::unlimited();
            let asked = (objective, Order::Free);
            let Ok(least) = least_cost(&problem, &unlimited, asked, MOST) else {
                continue;
            };
            let options = Options {
                objective,
                ..Options::default()
            };
            let bound = bound::devices::cost(&problem, &unlimited, &options);
            let Some(least) = least else { continue };
            assert!(
                bound <= least * (1.0 + 1e-9),
                "{round}, {}: {bound} > {least}: {problem:?}",
                objective.name()
            );
            compared[k] += 1;
            met[k] += usize::from(bound >= least * (1.0 - 1e-9));
        }
    }
    println!("bound is the optimum: {met:?} of {compared:?}");
    assert!(compared.iter().all(|&compared| compared > 50));
}

#[test]
fn bounds_are_below_random_plans() {
    use scrimp_plan::testing::{Shape, Unstructured, plan, problem, random_bytes};
    let mut several = 0;
    for seed in 0..600 {
        let data = random_bytes(seed, 3000);
        let u = &mut Unstructured::new(&data);
        let problem = problem(u, &Shape::everything(15)).unwrap();
        let plan = check(&problem, plan(u, &problem).unwrap()).unwrap();
        several += usize::from(problem.sole_device().is_none());
        let peaks = problem.devices().keys();
        let peaks = peaks.fold(Capacities::unlimited(), |peaks, device| {
            peaks.with_bytes(device, Some(plan.peak(device)))
        });
        for objective in Objective::ALL {
            for alpha in [0.0, 0.5] {
                let options = Options {
                    objective,
                    alpha,
                    ..Options::default()
                };
                let bound = bound::devices::cost(&problem, &peaks, &options);
                let cost = objective.cost(&plan, alpha);
                assert!(bound <= cost * (1.0 + 1e-9), "{seed}: {bound} > {cost}");
            }
        }
        for device in problem.devices().keys() {
            let floor = bound::devices::floor(&problem, device);
            assert!(floor <= plan.peak(device), "{seed}: {device}");
            assert!(bound::devices::least_joules(&problem, device) <= plan.joules(device));
        }
        let mut room = Capacities::unlimited();
        for device in problem.devices().keys() {
            room = room.with_bytes(device, Some(plan.peak(device)));
        }
        assert_eq!(
            bound::devices::without_room(&problem, &room),
            None,
            "{seed}"
        );
    }
    assert!(several > 200, "{several}");
}

#[test]
fn the_cut_of_two_devices_is_the_least_serial_cost() {
    let mut rng = Random::new(7, 0);
    let mut compared = 0;
    for round in 0..100 {
        let problem = several(2 + round % 3, 2, round % 2 == 0, &mut rng);
        let asked = (Objective::Serial, Order::Free);
        let Ok(Some(least)) = least_cost(&problem, &Capacities::unlimited(), asked, MOST) else {
            continue;
        };
        let options = Options {
            method: Method::Published(Published::Devices(Placing::MinCut)),
            objective: Objective::Serial,
            ..Options::default()
        };
        let solved = solve(&problem, &Capacities::unlimited(), &options, &mut |_| {}).unwrap();
        assert!(
            (solved.cost - least).abs() < 1e-6,
            "{round}: {} {least}",
            solved.cost
        );
        compared += 1;
    }
    assert!(compared > 50, "{compared}");
}

#[test]
fn xengines_program_is_the_least_serial_cost_in_its_order() {
    let mut rng = Random::new(3, 0);
    let (mut compared, mut above, mut refused) = (0, 0, 0);
    for round in 0..30 {
        let problem = several(2 + round % 4, 2 + round % 2, false, &mut rng);
        let capacities = tight(&problem, &mut rng);
        let asked = (Objective::Serial, Order::Fixed);
        let Ok(least) = least_cost(&problem, &capacities, asked, MOST) else {
            continue;
        };
        let options = Options {
            method: Method::Published(Published::Devices(Placing::XEngine(Wording::Mended))),
            objective: Objective::Serial,
            threads: 1,
            ..Options::default()
        };
        match (solve(&problem, &capacities, &options, &mut |_| {}), least) {
            (Err(SolveError::Solver(_)), _) => return println!("skipped: HiGHS isn't installed"),
            (Ok(solved), Some(least)) => {
                assert!(
                    solved.cost >= least - 1e-6,
                    "{round}: {} {least}",
                    solved.cost
                );
                above += usize::from(solved.cost > least + 1e-6);
                compared += 1;
            }
            (Ok(solved), None) => panic!("{round}: {} where nothing fits", solved.cost),
            (Err(_), least) => refused += usize::from(least.is_some()),
        }
    }
    println!("{above} of {compared} above the optimum, {refused} more refused");
    assert!(compared > 10 && above + refused <= compared / 10);
}
