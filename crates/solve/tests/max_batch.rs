//! Checkmate's largest batches (figure 6): at 16 GB, with at most one extra forward pass, FLOP costs.
#![allow(clippy::print_stderr, reason = "tells which tests were skipped")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scrimp_plan::file::{Instance, read_instance};
use scrimp_plan::{CheckedPlan, Phase, Problem};
use scrimp_solve::published::{
    Formulation, MaxBatchOptions, PublishedError, PublishedOptions, max_batch, max_batch_by,
};
use scrimp_solve::{Options, Order, solve};
use scrimp_solvers::SolverError;

/// A training graph and what is asked of it; nothing where the instances aren't there.
fn wanted(file: &str) -> Option<(Problem, MaxBatchOptions)> {
    let Some(folder) = std::env::var_os("SCRIMP_INSTANCES").map(PathBuf::from) else {
        eprintln!("skipped: set SCRIMP_INSTANCES to the folder of published instances");
        return None;
    };
    let text = std::fs::read_to_string(folder.join(file)).expect("the instance");
    let Instance {
        problem,
        fixed_memory,
        ..
    } = read_instance(&text).expect("an instance");
    let device = problem.sole_device().expect("one device");
    let seconds = |phase: Phase| -> f64 {
        let tasks = problem.tasks().values().filter(|task| task.phase == phase);
        tasks
            .filter_map(|task| task.mode(device))
            .map(|mode| mode.seconds)
            .sum()
    };
    let wanted = MaxBatchOptions {
        memory: 16_000_000_000,
        fixed: fixed_memory.expect("twice the parameters"),
        cost: 2.0 * seconds(Phase::Forward) + seconds(Phase::Backward),
    };
    Some((problem, wanted))
}

/// A plan of the default search within the cost, if it finds one in some seconds.
fn search(problem: &Problem, cost: f64) -> Option<CheckedPlan> {
    let stop = Arc::new(AtomicBool::new(false));
    let options = Options {
        order: Order::Fixed,
        time_limit: Duration::from_secs(8),
        stop: Some(Arc::clone(&stop)),
        ..Options::default()
    };
    let found = solve(problem, &options, &mut |news| {
        if news.cost.is_some_and(|found| found <= cost) {
            stop.store(true, Ordering::Relaxed);
        }
    });
    found.ok().map(|solved| solved.plan)
}

#[test]
fn vgg19_fits_289_images_by_the_program() {
    let Some((problem, wanted)) = wanted("keras/VGG19_b1_224x224.json") else {
        return;
    };
    let options = PublishedOptions {
        time_limit: Duration::from_secs(20),
        formulation: Formulation::Disaggregated,
        ..PublishedOptions::default()
    };
    match max_batch(&problem, 1, wanted, &options) {
        Ok(found) => assert_eq!(
            (found.batch, found.bound),
            (289, 289),
            "{:?}",
            found.elapsed
        ),
        Err(PublishedError::Solver(error @ SolverError::NotFound { .. })) => {
            eprintln!("skipped: {error}");
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_search_finds_the_largest_batches_that_can_be() {
    for (file, at, published) in [
        ("keras/VGG19_b1_224x224.json", 1, 289),
        ("keras/vgg_unet_b32_416x608.json", 32, 61),
    ] {
        let Some((problem, wanted)) = wanted(file) else {
            return;
        };
        let found = max_batch_by(&problem, at, wanted, &mut |p| search(p, wanted.cost));
        let found = found.expect("some batch fits");
        assert_eq!((found.batch, found.bound), (published, published), "{file}");
        assert!(found.plan.cost() <= wanted.cost * (1.0 + 1e-9));
    }
}
