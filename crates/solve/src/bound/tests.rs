//! Bounds of problems with other memories against exact optima.

use scrimp_plan::{LinkSpeed, Problem, check, read_instance, simulate};

use super::order::Chain;
use super::{floor_with, seconds, step};
use crate::cutoff::Cutoff;
use crate::method::Order;
use crate::model::Model;
use crate::random::Random;
use crate::testing::oracle::{beside, least_makespan, memory};
use crate::testing::{Shape, base_peak, device, problem};

/// States of the oracle, per problem.
const STATES: usize = 60_000;

/// Problems with a memory, budgets from the floor to the peak, and the makespans of their best plans.
fn each(seed: u64, rounds: usize, order: Order, visit: &mut dyn FnMut(&Problem, u64, f64)) {
    let mut rng = Random::new(seed, 0);
    let (mut solved, mut tried) = (0, 0);
    for round in 0..rounds {
        let shape = Shape {
            tasks: 3 + round % 4,
            rich: round % 3 > 0,
        };
        let alone = problem(shape, &mut rng);
        let p = beside(&alone, &mut rng);
        let (model, _) = Model::with_outside(&p).unwrap();
        let (low, high) = (floor_with(&model, f64::INFINITY) as u64, base_peak(&alone));
        for budget in [low.saturating_sub(1), low, (low + high) / 2] {
            tried += 1;
            let found = least_makespan(&p, [budget, u64::MAX], order, STATES);
            if let Ok(Some((makespan, plan))) = found {
                solved += 1;
                assert!(budget >= low, "the floor {low} is above {budget}: {p:?}");
                let plan = check(&p, plan).unwrap();
                assert!(plan.peak(device()) <= budget);
                assert_eq!(simulate(&plan).makespan(), makespan);
                visit(&p, budget, makespan);
            }
        }
    }
    assert!(solved * 3 > tried, "{solved} of {tried} solved");
}

/// Asserts that no bound is above the optimum. Returns the mean share of the makespan beyond compute that is
/// proven.
fn share(order: Order, seed: u64, rounds: usize) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    each(seed, rounds, order, &mut |p, budget, makespan| {
        let (model, _) = Model::with_outside(p).unwrap();
        let base = model.base_cost();
        let bytes = budget as f64 - model.resident;
        let known = makespan - base;
        // More seconds than the optimum, so that a bound above it isn't cut off.
        let more = 1.2 * known + 0.5;
        let mut bound = seconds(&model, bytes, order, more, Cutoff::NEVER);
        bound.advance(30_000, more, &|| false);
        let proven = bound.proven();
        assert!(
            proven <= makespan * (1.0 + 1e-9),
            "{proven} is above the optimum {makespan} at {budget}, {order:?}: {p:?}"
        );
        if known > 1e-9 {
            sum += ((proven - base) / known).max(0.0);
            count += 1;
        }
    });
    sum / f64::from(count)
}

#[test]
fn bounds_with_a_memory_are_below_the_optimum_in_fixed_order() {
    let share = share(Order::Fixed, 71, 20);
    assert!(share > 0.25, "{share}");
}

#[test]
fn bounds_with_a_memory_are_below_the_optimum_in_free_order() {
    let share = share(Order::Free, 72, 20);
    assert!(share > 0.08, "{share}");
}

#[test]
fn the_floor_counts_what_the_memory_holds() {
    let mut rng = Random::new(73, 0);
    let mut binding = 0;
    for round in 0..150 {
        let shape = Shape {
            tasks: 3 + round % 3,
            rich: true,
        };
        let p = beside(&problem(shape, &mut rng), &mut rng);
        let (model, _) = Model::with_outside(&p).unwrap();
        let elsewhere = rng.below(12) as u64;
        let floor = floor_with(&model, elsewhere as f64) as u64;
        binding += usize::from(floor > floor_with(&model, f64::INFINITY) as u64);
        let room = [floor.saturating_sub(1), elsewhere];
        if let Ok(found) = least_makespan(&p, room, Order::Free, STATES) {
            assert!(found.is_none() || floor == 0, "{floor}, {elsewhere}: {p:?}");
        }
        assert_eq!(p.devices()[memory()].resident, 0);
    }
    assert!(binding > 2, "{binding}");
}

/// Added percent at budgets in units of memory and links of some bytes per second, without latency. The figures
/// were computed apart from this crate. Runs where `SCRIMP_INSTANCES` names a folder.
#[test]
fn one_step_of_published_graphs() {
    let Some(folder) = std::env::var_os("SCRIMP_INSTANCES") else {
        return;
    };
    let resnet = |gib: u64| (gib << 20) - 308_064;
    let cases = [
        ("monet_resnet50_b184_p100", resnet(5), 12e9, 6.30),
        ("monet_resnet50_b184_p100", resnet(6), 6e9, 6.91),
        ("monet_resnet50_b184_p100", resnet(8), 25e9, 2.42),
        ("monet_resnet50_b184_p100", resnet(10), 55e9, 0.0),
    ];
    for (name, budget, bandwidth, percent) in cases {
        let file = std::path::Path::new(&folder).join(format!("monet/{name}.json"));
        let alone = read_instance(&std::fs::read_to_string(file).unwrap()).unwrap();
        let units = alone.problem.units().clone();
        let (byte, second) = (units.bytes_per_unit(), units.seconds_per_unit());
        let rate = bandwidth / byte.unwrap() as f64 * second.unwrap();
        let speed = LinkSpeed {
            out: rate,
            back: rate,
            latency: 0.0,
            half: false,
            drag: 0.0,
        };
        let (p, _) = alone.problem.with_memory("host", &speed).unwrap();
        let (model, _) = Model::with_outside(&p).unwrap();
        let outside = model.outside.as_ref().unwrap();
        let base = model.base_cost();
        let chain = Chain::fixed(&model);
        let found = step::best(&model, outside, &chain, budget as f64, Cutoff::NEVER).unwrap();
        let added = 100.0 * (found.seconds / base - 1.0);
        assert!(
            (added - percent).abs() < 0.006,
            "{name}: {added}, not {percent}"
        );
        let known = 0.1 * base;
        let mut bound = seconds(&model, budget as f64, Order::Fixed, known, Cutoff::NEVER);
        bound.advance(1_000_000, known, &|| false);
        assert!(bound.proven() >= found.seconds * (1.0 - 1e-9));
    }
}
