//! Sequences that store values in another memory and bring them back, as plans that the checker accepts.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::*;
use scrimp_plan::*;

fn store(value: usize) -> Move {
    Move::Copy {
        value: v(value),
        from: d(0),
        to: d(1),
    }
}

fn bring(value: usize) -> Move {
    Move::Copy {
        value: v(value),
        from: d(1),
        to: d(0),
    }
}

fn made(task: usize) -> Move {
    Move::Run {
        task: t(task),
        device: d(0),
    }
}

fn sequence(moves: Vec<Move>) -> Sequence {
    Sequence { moves }
}

#[test]
fn stored_values_give_their_bytes_back_until_they_are_brought() {
    let problem = problem();
    let moves = vec![
        made(0),
        store(2),
        store(1),
        bring(1),
        bring(2),
        made(1),
        made(2),
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
    let runs = (0..3).map(made);
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
                2 => made(draw(3)),
                _ => {
                    next += 1;
                    made((next - 1).min(2))
                }
            });
        }
        let copied = moves.iter().any(|made| !matches!(made, Move::Run { .. }));
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

#[test]
fn plans_of_several_devices_are_what_their_moves_make_and_no_larger() {
    let (mut smaller, mut copies) = (0, 0);
    for seed in 0..2000 {
        let problem = testing::random_problem(seed, &testing::Shape::everything(8));
        let bytes = testing::random_bytes(seed, 400);
        let steps = testing::plan(&mut testing::Unstructured::new(&bytes), &problem).unwrap();
        let drawn = check(&problem, steps).unwrap();
        let moves = drawn.steps().iter().filter_map(|&step| match step {
            Step::Run { task, device } => Some(Move::Run { task, device }),
            Step::Copy { value, from, to } => Some(Move::Copy { value, from, to }),
            Step::Free { .. } => None,
        });
        let plan = sequence(moves.collect()).plan(&problem).unwrap();
        let made = check(&problem, plan).unwrap();
        assert_eq!(made.serial_seconds(), drawn.serial_seconds());
        copies += usize::from(made.serial_seconds() > made.cost());
        // Which of several instances stays is a choice.
        let anywhere = |value: &Value| value.keep == Keep::Anywhere;
        if !problem.values().values().any(anywhere) {
            for device in problem.devices().keys() {
                assert!(made.peak(device) <= drawn.peak(device), "seed {seed}");
                smaller += usize::from(made.peak(device) < drawn.peak(device));
            }
        }
    }
    assert!(smaller > 100 && copies > 500, "{smaller} {copies}");
}
