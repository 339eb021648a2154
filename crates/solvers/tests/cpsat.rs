//! CP-SAT through the safe layer. Skipped, with a line that says so, where OR-tools isn't installed.
#![allow(clippy::print_stderr, reason = "tells which tests were skipped")]

use scrimp_solvers::cpsat::{Expr, Model, Options, Status};
use scrimp_solvers::{CpSat, Highs, SolverError};
use std::time::Duration;

fn cpsat() -> Option<CpSat> {
    match CpSat::load(None) {
        Ok(cpsat) => Some(cpsat),
        Err(error @ SolverError::NotFound { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Three tasks of different length and demand on a resource of capacity 3: the latest end is 6.
#[test]
fn a_cumulative_resource_schedules_tasks() {
    let Some(cpsat) = cpsat() else { return };
    let mut model = Model::new();
    let end = model.integer(0, 20);
    let present = model.truth();
    let mut intervals = Vec::new();
    for (length, demand) in [(3, 2), (3, 2), (6, 1)] {
        let start = model.integer(0, 20);
        let finish = Expr::from(start).plus(length);
        model.at_most(finish.clone(), end, &[]);
        intervals.push((
            model.interval(&start.into(), &length.into(), &finish, present),
            demand,
        ));
    }
    model.cumulative(&intervals, 3);
    model.minimize(&end.into());
    let solution = cpsat
        .solve(&model, &Options::default(), &mut |_| true)
        .unwrap();
    assert_eq!(solution.status, Status::Optimal);
    assert_eq!(solution.objective, 6.0);
    assert_eq!(solution.bound, 6.0);
    assert_eq!(solution.value(end), 6);
}

/// A taker must come while a giver's unit is there.
#[test]
fn a_reservoir_orders_givers_and_takers() {
    let Some(cpsat) = cpsat() else { return };
    let mut model = Model::new();
    let (give, take) = (model.integer(3, 9), model.integer(0, 9));
    let always = model.truth();
    let maybe = model.boolean();
    model.reservoir(&[(give.into(), 1, always), (take.into(), -1, maybe)], 0);
    model.any(&[maybe], &[]);
    model.minimize(&take.into());
    let solution = cpsat
        .solve(&model, &Options::default(), &mut |_| true)
        .unwrap();
    assert_eq!(solution.value(take), 3);
    assert!(solution.holds(maybe) && !solution.holds(!maybe));
}

#[test]
fn hints_domains_and_implications_reach_the_solver() {
    let Some(cpsat) = cpsat() else { return };
    let mut model = Model::new();
    let x = model.one_of(&[2, 3, 7, 9]);
    let y = model.one_of(&[3, 4]);
    let (a, b) = (model.boolean(), model.boolean());
    model.exactly_one(&[a, b]);
    model.all_different(&[x.into(), y.into()]);
    model.between(&x.into(), 7, i64::MAX, &[a]);
    model.between(&Expr::from(x).plus(1), 3, 4, &[b]);
    model.at_most(y, x, &[]);
    model.minimize(&Expr::sum([(x, 1)]).plus(100));
    model.hint(&[9, 3, 1, 0]);
    let solution = cpsat
        .solve(&model, &Options::default(), &mut |_| true)
        .unwrap();
    assert_eq!(
        solution.value(x),
        7,
        "x = 3 would need y < 3 or y = 3, which is x"
    );
    assert_eq!(solution.objective, 107.0);
    assert!(solution.holds(a) && !solution.holds(b));
}

#[test]
fn a_model_without_solutions_is_infeasible_and_a_malformed_one_an_error() {
    let Some(cpsat) = cpsat() else { return };
    let mut model = Model::new();
    let x = model.integer(0, 3);
    model.between(&x.into(), 5, 9, &[]);
    let solution = cpsat
        .solve(&model, &Options::default(), &mut |_| true)
        .unwrap();
    assert_eq!(solution.status, Status::Infeasible);
    let mut model = Model::new();
    model.integer(3, 0);
    let error = cpsat
        .solve(&model, &Options::default(), &mut |_| true)
        .unwrap_err();
    assert!(matches!(error, SolverError::Failed { .. }), "{error}");
}

#[test]
fn a_solve_stops_when_told() {
    let Some(cpsat) = cpsat() else { return };
    // Pigeons in holes, written so that counting doesn't help.
    let mut model = Model::new();
    let rows: Vec<Vec<_>> = (0..14)
        .map(|_| (0..13).map(|_| model.boolean()).collect())
        .collect();
    for row in &rows {
        model.any(row, &[]);
    }
    for (i, one) in rows.iter().enumerate() {
        for other in &rows[..i] {
            for (&a, &b) in one.iter().zip(other) {
                model.any(&[!a, !b], &[]);
            }
        }
    }
    let mut go_on = |elapsed: Duration| elapsed < Duration::from_millis(300);
    let solution = cpsat
        .solve(&model, &Options::default(), &mut go_on)
        .unwrap();
    assert!(solution.elapsed < Duration::from_secs(4));
    assert!(matches!(
        solution.status,
        Status::Unknown | Status::Infeasible
    ));
}

#[test]
fn highs_from_the_same_wheel_shares_the_process() {
    let Some(_cpsat) = cpsat() else { return };
    match Highs::load(None) {
        Ok(highs) => assert!(highs.version().starts_with(|c: char| c.is_ascii_digit())),
        Err(SolverError::NotFound { .. } | SolverError::Conflict { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}
