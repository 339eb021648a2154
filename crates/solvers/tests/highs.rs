//! HiGHS through the safe layer. Skipped, with a line that says so, where HiGHS isn't installed.
#![allow(clippy::print_stderr, reason = "tells which tests were skipped")]

use scrimp_solvers::highs::{Column, Kind, LpMethod, Model, Options, Start, Status};
use scrimp_solvers::{Highs, SolverError};
use std::sync::Arc;
use std::time::Duration;

fn highs() -> Option<Highs> {
    match Highs::load(None) {
        Ok(highs) => Some(highs),
        Err(error @ SolverError::NotFound { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A knapsack: maximize value under a weight, so minimize the value left behind.
fn knapsack(values: &[f64], weights: &[f64], capacity: f64) -> (Arc<Model>, Vec<Column>) {
    let mut model = Model::new();
    let columns: Vec<Column> = values.iter().map(|&value| model.binary(-value)).collect();
    model.add_offset(values.iter().sum());
    let terms: Vec<(Column, f64)> = columns
        .iter()
        .copied()
        .zip(weights.iter().copied())
        .collect();
    model.row(f64::NEG_INFINITY, capacity, &terms);
    (Arc::new(model), columns)
}

fn by_enumeration(values: &[f64], weights: &[f64], capacity: f64) -> f64 {
    let total: f64 = values.iter().sum();
    let subsets = (0..1u32 << values.len()).filter_map(|set| {
        let sum = |numbers: &[f64]| -> f64 {
            numbers
                .iter()
                .enumerate()
                .filter(|(i, _)| set >> i & 1 == 1)
                .map(|(_, x)| x)
                .sum()
        };
        (sum(weights) <= capacity).then(|| total - sum(values))
    });
    subsets.fold(f64::INFINITY, f64::min)
}

#[test]
fn knapsacks_are_solved_to_the_optimum() {
    let Some(highs) = highs() else { return };
    let values: Vec<f64> = (0..12).map(|i| f64::from(7 + i * 5 % 11)).collect();
    let weights: Vec<f64> = (0..12).map(|i| f64::from(3 + i * 7 % 13)).collect();
    for capacity in [0.0, 10.0, 25.0, 60.0] {
        let (model, columns) = knapsack(&values, &weights, capacity);
        let start = Start {
            values: vec![(columns[0], 0.0)],
            basis: None,
        };
        let mut told = 0;
        let solution = highs
            .solve(&model, &Options::default(), start, &mut |news| {
                told += usize::from(news.values.is_some());
                true
            })
            .unwrap();
        assert_eq!(solution.status, Status::Optimal);
        let expected = by_enumeration(&values, &weights, capacity);
        assert!(
            (solution.objective - expected).abs() < 1e-6,
            "{solution:?}, not {expected}"
        );
        assert!((solution.bound - expected).abs() < 1e-6);
        assert_eq!(solution.values.len(), values.len());
        assert!(!solution.abandoned);
        let _ = told;
    }
}

#[test]
fn a_relaxation_bounds_and_its_basis_starts_the_next() {
    let Some(highs) = highs() else { return };
    let (values, weights) = ([6.0, 5.0, 4.0], [5.0, 4.0, 3.0]);
    let options = Options {
        relax: true,
        lp: LpMethod::Simplex,
        ..Options::default()
    };
    let (model, _) = knapsack(&values, &weights, 7.5);
    let first = highs
        .solve(&model, &options, Start::default(), &mut |_| true)
        .unwrap();
    // 4/3 per weight first, then 5/4, then 6/5: all of the last two and a tenth of the first.
    assert!(
        (first.objective - (15.0 - 9.0 - 0.6)).abs() < 1e-6,
        "{first:?}"
    );
    assert!(first.basis.is_some());
    let (tighter, _) = knapsack(&values, &weights, 3.0);
    let start = Start {
        values: Vec::new(),
        basis: first.basis,
    };
    let second = highs
        .solve(&tighter, &options, start, &mut |_| true)
        .unwrap();
    assert!((second.objective - 11.0).abs() < 1e-6, "{second:?}");
}

#[test]
fn infeasible_and_unbounded_programs_are_told_apart() {
    let Some(highs) = highs() else { return };
    let mut model = Model::new();
    let x = model.binary(1.0);
    model.row(2.0, f64::INFINITY, &[(x, 1.0)]);
    let solve = |model: Model| {
        highs
            .solve(
                &Arc::new(model),
                &Options::default(),
                Start::default(),
                &mut |_| true,
            )
            .unwrap()
    };
    let solution = solve(model);
    assert_eq!(solution.status, Status::Infeasible);
    assert!(solution.values.is_empty());
    let mut model = Model::new();
    model.column(-1.0, 0.0, f64::INFINITY, Kind::Continuous);
    assert_eq!(solve(model).status, Status::Unbounded);
}

/// Market split: equality knapsacks over Booleans, hopeless for branch and bound at this size.
fn hopeless() -> Arc<Model> {
    let mut model = Model::new();
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % 100
    };
    let columns: Vec<Column> = (0..60).map(|_| model.binary(0.0)).collect();
    for _ in 0..6 {
        let mut terms: Vec<(Column, f64)> = columns
            .iter()
            .map(|&column| (column, next() as f64))
            .collect();
        let half = (terms.iter().map(|term| term.1).sum::<f64>() / 2.0).floor();
        terms.push((model.column(1.0, 0.0, f64::INFINITY, Kind::Continuous), 1.0));
        terms.push((
            model.column(1.0, 0.0, f64::INFINITY, Kind::Continuous),
            -1.0,
        ));
        model.row(half, half, &terms);
    }
    Arc::new(model)
}

#[test]
fn a_solve_stops_at_its_limit_and_when_told() {
    let Some(highs) = highs() else { return };
    let model = hopeless();
    let options = Options {
        time_limit: Duration::from_millis(500),
        ..Options::default()
    };
    let limited = highs
        .solve(&model, &options, Start::default(), &mut |_| true)
        .unwrap();
    assert_eq!(limited.status, Status::Feasible, "{limited:?}");
    assert!(limited.elapsed < Duration::from_secs(4), "{limited:?}");
    assert!(limited.bound <= limited.objective);
    let mut incumbents = 0;
    let told = highs
        .solve(&model, &Options::default(), Start::default(), &mut |news| {
            incumbents += usize::from(news.values.is_some());
            news.elapsed < Duration::from_millis(400)
        })
        .unwrap();
    assert!(told.elapsed < Duration::from_secs(4), "{told:?}");
    assert!(incumbents > 0);
}

#[test]
fn two_threads_solve_at_once() {
    let Some(highs) = highs() else { return };
    let (values, weights) = ([3.0, 8.0, 6.0, 2.0], [2.0, 5.0, 4.0, 1.0]);
    std::thread::scope(|scope| {
        for capacity in [4.0, 7.0] {
            scope.spawn(move || {
                for _ in 0..5 {
                    let (model, _) = knapsack(&values, &weights, capacity);
                    let solution = highs
                        .solve(&model, &Options::default(), Start::default(), &mut |_| true)
                        .unwrap();
                    let expected = by_enumeration(&values, &weights, capacity);
                    assert!((solution.objective - expected).abs() < 1e-6);
                }
            });
        }
    });
}
