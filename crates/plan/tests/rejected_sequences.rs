//! Sequences of runs that are no plans, and where the others free their values.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::*;
use scrimp_plan::SequenceError as E;
use scrimp_plan::*;

fn sequence(runs: &[usize]) -> Result<Vec<Step>, E> {
    let runs: Vec<TaskId> = runs.iter().map(|&task| t(task)).collect();
    Plan::from_runs(&problem(), d(0), &runs).map(|plan| plan.steps)
}

#[test]
fn values_are_freed_after_the_last_use_that_a_run_serves() {
    assert_eq!(
        sequence(&[0, 1, 2]),
        Ok(vec![run(0), run(1), free(1), free(2), run(2), free(3)])
    );
    // The first run of task 0 serves nothing, so its output goes at once.
    assert_eq!(
        sequence(&[0, 0, 1, 2]).unwrap()[..4],
        [run(0), free(2), run(0), run(1)]
    );
}

#[test]
fn given_values_that_nothing_reads_are_freed_first() {
    let mut parts = parts();
    parts.values.push(Value {
        name: "unused".into(),
        ..parts.values[v(1)].clone()
    });
    let problem = Problem::new(parts).unwrap();
    assert_eq!(Plan::keep_all(&problem, d(0)).unwrap().steps[0], free(5));
}

#[test]
fn sequences_that_cannot_run() {
    assert!(matches!(
        sequence(&[0, 9]),
        Err(E::UnknownTask { position: 1, .. })
    ));
    assert!(matches!(
        sequence(&[1, 0, 2]),
        Err(E::NotMade { position: 0, .. })
    ));
    assert!(matches!(sequence(&[0, 1]), Err(E::NeverRun { task, .. }) if task == t(2)));
    assert!(matches!(
        sequence(&[0, 1, 2, 2]),
        Err(E::NotRerunnable {
            position: 3,
            first: 2,
            ..
        })
    ));
    assert!(matches!(
        sequence(&[0, 1, 2, 0]),
        Err(E::Overwritten {
            position: 3,
            overwriter: 2,
            ..
        })
    ));
    let nowhere = Plan::keep_all(&problem(), d(9));
    assert!(matches!(nowhere, Err(E::UnknownDevice { .. })));
    let on_host = Plan::keep_all(&problem(), d(1)).unwrap_err();
    assert!(
        matches!(on_host, E::NoMode { position: 0, .. }),
        "{on_host}"
    );
    let mut parts = parts();
    parts.values[v(4)].keep = Keep::On(d(1));
    let on_gpu = Plan::keep_all(&Problem::new(parts).unwrap(), d(0)).unwrap_err();
    assert!(matches!(on_gpu, E::KeptElsewhere { .. }), "{on_gpu}");
}

#[test]
fn copies_that_cannot_happen() {
    let wrong = |made: Move| {
        let run = |task| Move::Run {
            task: t(task),
            device: d(0),
        };
        let moves = vec![run(0), made, run(1), run(2)];
        Sequence { moves }.plan(&problem()).unwrap_err()
    };
    let store = |value, to| Move::Copy {
        value: v(value),
        from: d(0),
        to: d(to),
    };
    let bring = |value, from| Move::Copy {
        value: v(value),
        from: d(from),
        to: d(0),
    };
    let not_made = wrong(store(3, 1));
    assert!(
        matches!(not_made, E::NotAtSource { position: 1, .. }),
        "{not_made}"
    );
    let never_stored = wrong(bring(2, 1));
    assert!(
        matches!(never_stored, E::NotAtSource { from, .. } if from == d(1)),
        "{never_stored}"
    );
    for unlinked in [store(2, 2), store(2, 0), store(2, 9), bring(2, 2)] {
        let error = wrong(unlinked);
        assert!(matches!(error, E::NoLink { position: 1, .. }), "{error}");
    }
    let unknown = wrong(store(9, 1));
    assert!(matches!(unknown, E::UnknownValue { .. }), "{unknown}");
}
