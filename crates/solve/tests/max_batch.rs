//! Checkmate's largest batch (figure 6) by its own program: at 16 GB, with at most one extra forward
//! pass, FLOP costs. Those by the search are in the tests of `scrimp`.
#![allow(clippy::print_stderr, reason = "tells which tests were skipped")]

use std::path::PathBuf;
use std::time::Duration;

use scrimp_plan::file::{Instance, read_instance};
use scrimp_plan::{Phase, Problem};
use scrimp_solve::published::{MaxBatchOptions, max_batch};
use scrimp_solve::{Formulation, Options, SolveError};
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

#[test]
fn vgg19_fits_289_images_by_the_program() {
    let Some((problem, wanted)) = wanted("keras/VGG19_b1_224x224.json") else {
        return;
    };
    let options = Options {
        time_limit: Duration::from_secs(20),
        formulation: Formulation::Disaggregated,
        ..Options::default()
    };
    match max_batch(&problem, 1, wanted, &options) {
        Ok(found) => assert_eq!(
            (found.batch, found.bound),
            (289, 289),
            "{:?}",
            found.elapsed
        ),
        Err(SolveError::Solver(error @ SolverError::NotFound { .. })) => {
            eprintln!("skipped: {error}");
        }
        Err(error) => panic!("{error}"),
    }
}
