//! Largest batches: against trying every size, and against checkmate's figure 6 (16 GB, at most one
//! extra forward pass, FLOP costs) where the instances are.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(clippy::print_stderr, reason = "tells which tests were skipped")]

use std::path::PathBuf;
use std::time::Duration;

use scrimp::plan::file::read_instance;
use scrimp::plan::{Capacities, Problem};
use scrimp::solve::{Options, Order, solve};
use scrimp::{Error, LargestBatch, Limit, largest_scaled};
use scrimp_plan::testing::{Shape, random_problem};

fn options(order: Order) -> Options {
    Options {
        order,
        ..Options::default()
    }
}

fn find(problem: &Problem, room: u64, limit: Limit, order: Order) -> Result<LargestBatch, Error> {
    largest_scaled(
        problem,
        8,
        room,
        &Capacities::unlimited(),
        limit,
        &options(order),
        &mut |_| {},
    )
}

#[test]
fn no_other_size_would_have_fitted() {
    let shape = Shape::plain(9);
    let mut compared = 0;
    for seed in 0..60 {
        let problem = random_problem(seed, &shape);
        let peak = scrimp::budget(&problem, scrimp::plan::Budget::Percent(100.0))
            .unwrap()
            .base_peak();
        let order = [Order::Fixed, Order::Free][seed as usize % 2];
        // At 24 the base plan fits a batch of 3 times 8.
        let room = peak * 3;
        let percent = [0.0, 10.0, 40.0][seed as usize % 3];
        let Ok(found) = find(&problem, room, Limit::Percent(percent), order) else {
            continue;
        };
        let device = problem.sole_device().unwrap();
        let most = problem.base_cost() * (1.0 + percent / 100.0) * (1.0 + 1e-9);
        let fits = |batch: u64| {
            let capacity = room * 8 / batch;
            let capacities = Capacities::bytes_of(device, capacity);
            solve(&problem, &capacities, &options(order), &mut |_| {})
                .is_ok_and(|solved| solved.cost <= most)
        };
        assert!(
            found.keep_all >= 24 && found.batch >= found.keep_all,
            "{seed}"
        );
        assert!(found.batch <= found.bound, "{seed}");
        assert!(found.plan.cost() <= most, "{seed}");
        assert!(found.plan.peak(device) <= room * 8 / found.batch, "{seed}");
        for batch in found.batch + 1..(found.batch + 30).min(found.bound + 3) {
            assert!(
                !fits(batch),
                "{seed}: {batch} fits, {} was found",
                found.batch
            );
        }
        compared += 1;
    }
    assert!(compared > 40, "{compared}");
}

#[test]
fn no_room_is_said() {
    let problem = random_problem(1, &Shape::plain(9));
    let error = find(&problem, 0, Limit::Percent(10.0), Order::Free).unwrap_err();
    assert!(matches!(error, Error::NoBatch { .. }), "{error}");
}

#[test]
fn the_largest_batches_of_figure_6() {
    let Some(folder) = std::env::var_os("SCRIMP_INSTANCES").map(PathBuf::from) else {
        eprintln!("skipped: set SCRIMP_INSTANCES to the folder of published instances");
        return;
    };
    for (file, published) in [
        ("keras/VGG19_b1_224x224.json", 289),
        ("keras/vgg_unet_b32_416x608.json", 61),
        ("keras/MobileNet_tf20_b512_224x224_flops.json", 1105),
    ] {
        let instance = read_instance(&std::fs::read_to_string(folder.join(file)).unwrap()).unwrap();
        let (at, room) = (
            instance.batch_size.unwrap(),
            16_000_000_000 - instance.fixed_memory.unwrap(),
        );
        let options = Options {
            time_limit: Duration::from_secs(4),
            ..options(Order::Fixed)
        };
        let found = largest_scaled(
            &instance.problem,
            at,
            room,
            &Capacities::unlimited(),
            Limit::OneForward,
            &options,
            &mut |_| {},
        )
        .unwrap();
        assert!(found.batch >= published, "{file}: {}", found.batch);
        assert!(
            found.plan.cost() <= found.cost_limit * (1.0 + 1e-9),
            "{file}"
        );
    }
}
