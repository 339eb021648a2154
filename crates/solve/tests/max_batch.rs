//! Checkmate's largest batches (figure 6): at 16 GB, with at most one extra forward pass, FLOP costs.
#![allow(clippy::print_stderr, reason = "tells which tests were skipped")]

use std::path::PathBuf;
use std::time::Duration;

use scrimp_plan::{Phase, file::read_instance};
use scrimp_solve::published::{
    Formulation, MaxBatch, MaxBatchOptions, PublishedError, PublishedOptions, max_batch,
};
use scrimp_solvers::SolverError;

/// The largest batch of a graph whose values are `per` items large; nothing where it can't be tested.
fn largest(file: &str, per: u64, seconds: u64) -> Option<MaxBatch> {
    let Some(folder) = std::env::var_os("SCRIMP_INSTANCES").map(PathBuf::from) else {
        eprintln!("skipped: set SCRIMP_INSTANCES to the folder of published instances");
        return None;
    };
    let text = std::fs::read_to_string(folder.join(file)).expect("the instance");
    let instance = read_instance(&text).expect("an instance");
    let device = instance.problem.sole_device().expect("one device");
    let seconds_of = |phase: Phase| -> f64 {
        let tasks = instance
            .problem
            .tasks()
            .values()
            .filter(|task| task.phase == phase);
        tasks
            .filter_map(|task| task.mode(device))
            .map(|mode| mode.seconds)
            .sum()
    };
    let wanted = MaxBatchOptions {
        memory: 16_000_000_000,
        fixed: instance.fixed_memory.expect("twice the parameters"),
        cost: 2.0 * seconds_of(Phase::Forward) + seconds_of(Phase::Backward),
    };
    let options = PublishedOptions {
        time_limit: Duration::from_secs(seconds),
        formulation: Formulation::Disaggregated,
        gap: 1e-3,
        ..PublishedOptions::default()
    };
    match max_batch(&instance.problem, per, wanted, &options) {
        Ok(found) => Some(found),
        Err(PublishedError::Solver(error @ SolverError::NotFound { .. })) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn vgg19_fits_289_images() {
    if let Some(found) = largest("keras/VGG19_b1_224x224.json", 1, 20) {
        assert_eq!(
            (found.batch, found.bound),
            (289, 289),
            "{:?}",
            found.elapsed
        );
    }
}
