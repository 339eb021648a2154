//! Sequences that store values in another memory and bring them back, as plans that the checker accepts.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::*;
use scrimp_plan::*;

fn store(value: usize) -> Move {
    Move::Store {
        value: v(value),
        to: d(1),
    }
}

fn bring(value: usize) -> Move {
    Move::Bring {
        value: v(value),
        from: d(1),
    }
}

fn sequence(moves: Vec<Move>) -> Sequence {
    let device = d(0);
    Sequence { device, moves }
}

#[test]
fn stored_values_give_their_bytes_back_until_they_are_brought() {
    let problem = problem();
    let moves = vec![
        Move::Run(t(0)),
        store(2),
        store(1),
        bring(1),
        bring(2),
        Move::Run(t(1)),
        Move::Run(t(2)),
    ];
    let plan = sequence(moves).plan(&problem).unwrap();
    let gone_on_host = |value: usize| Step::Free {
        value: v(value),
        device: d(1),
    };
    assert_eq!(
        plan.steps,
        vec![
            run(0),
            copy(2, 0, 1),
            free(2),
            copy(1, 0, 1),
            free(1),
            copy(1, 1, 0),
            gone_on_host(1),
            copy(2, 1, 0),
            gone_on_host(2),
            run(1),
            free(1),
            free(2),
            run(2),
            free(3),
        ]
    );
    let checked = check(&problem, plan).unwrap();
    // While the image is stored, the activation's bytes are free.
    assert_eq!(checked.profile(d(0))[3], 10 + 8 + 4);
    assert_eq!(checked.peak(d(1)), 6 + 4);
}

#[test]
fn values_that_are_kept_elsewhere_are_stored_there() {
    let mut parts = parts();
    parts.values[v(4)].keep = Keep::On(d(1));
    let problem = Problem::new(parts).unwrap();
    let runs = (0..3).map(|task| Move::Run(t(task)));
    let plan = sequence(runs.chain([store(4)]).collect()).plan(&problem);
    let steps = plan.as_ref().unwrap().steps.clone();
    assert_eq!(steps[steps.len() - 2..], [copy(4, 0, 1), free(4)]);
    check(&problem, plan.unwrap()).unwrap();
}

#[test]
fn whatever_sequence_has_a_plan_has_one_that_is_right() {
    let problem = problem();
    let (mut plans, mut copies) = (0, 0);
    for seed in 0..20_000 {
        let mut bytes = testing::random_bytes(seed, 24).into_iter();
        let mut draw = |n: u8| usize::from(bytes.next().unwrap() % n);
        let mut moves = Vec::new();
        let mut next = 0;
        for _ in 0..3 + draw(7) {
            moves.push(match draw(4) {
                0 => store(draw(5)),
                1 => bring(draw(5)),
                2 => Move::Run(t(draw(3))),
                _ => {
                    next += 1;
                    Move::Run(t((next - 1).min(2)))
                }
            });
        }
        let copied = moves.iter().any(|made| !matches!(made, Move::Run(_)));
        if let Ok(plan) = sequence(moves.clone()).plan(&problem) {
            let checked = check(&problem, plan);
            assert!(checked.is_ok(), "{moves:?}: {checked:?}");
            plans += 1;
            copies += usize::from(copied);
        }
    }
    assert!(
        plans > 200 && copies > 100,
        "{plans} plans, {copies} with copies"
    );
}
