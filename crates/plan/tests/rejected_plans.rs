//! Plans that are wrong in one way each, and exactly the violations that must be reported.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::*;
use scrimp_plan::Violation as V;
use scrimp_plan::*;

/// Forward, backward, update; the image and the gradient go when they are done with.
fn good() -> Vec<Step> {
    vec![run(0), run(1), free(1), free(2), run(2), free(3)]
}

fn violations(steps: Vec<Step>) -> Vec<V> {
    check(&problem(), Plan { steps })
        .map(|_| ())
        .expect_err("the plan was spoiled")
}

#[test]
fn the_good_plan_passes_and_its_bytes_are_counted() {
    let checked = check(&problem(), Plan { steps: good() }).unwrap();
    // Resident 10, weight 8 and image 4; activation 6 with 5 of workspace; gradient 8.
    assert_eq!(checked.profile(d(0)), [33, 36, 36, 32, 26, 26]);
    assert_eq!(checked.profile(d(1)), [0; 6]);
    assert_eq!((checked.peak(d(0)), checked.cost()), (36, 6.0));
    assert_eq!(checked.given_buffer(v(0)), checked.final_buffer(v(4), d(0)));
    assert_eq!(checked.final_buffer(v(1), d(0)), None);
    let binding = checked.binding(0);
    let workspace = checked.buffers()[binding.workspace.unwrap()];
    assert_eq!((workspace.start, workspace.end, workspace.bytes), (0, 1, 5));
    assert_eq!(checked.binding(4).inputs[0], checked.binding(4).outputs[0]);
}

#[test]
fn unknown_ids() {
    let mut steps = good();
    steps.push(run(7));
    steps.push(free(7));
    steps.push(copy(3, 0, 7));
    assert_eq!(
        violations(steps),
        [
            V::UnknownTask {
                step: 6,
                task: t(7)
            },
            V::UnknownValue {
                step: 7,
                value: v(7)
            },
            V::UnknownDevice {
                step: 8,
                device: d(7)
            },
        ]
    );
}

#[test]
fn a_run_where_the_task_has_no_mode() {
    let mut steps = good();
    steps.insert(
        1,
        Step::Run {
            task: t(0),
            device: d(2),
        },
    );
    let expected = [
        V::NoMode {
            step: 1,
            task: t(0),
            device: d(2),
        },
        V::InputAbsent {
            step: 1,
            task: t(0),
            device: d(2),
            value: v(0),
        },
        V::InputAbsent {
            step: 1,
            task: t(0),
            device: d(2),
            value: v(1),
        },
    ];
    assert_eq!(violations(steps), expected);
}

#[test]
fn a_run_without_its_input() {
    let mut steps = good();
    steps.swap(1, 2);
    let found = violations(steps);
    assert_eq!(
        found,
        [V::InputAbsent {
            step: 2,
            task: t(1),
            device: d(0),
            value: v(1)
        }]
    );
}

#[test]
fn a_run_after_its_input_was_overwritten() {
    let steps = vec![
        run(0),
        run(1),
        free(2),
        run(2),
        run(0),
        free(1),
        free(2),
        free(3),
    ];
    assert_eq!(
        violations(steps),
        [V::InputAbsent {
            step: 4,
            task: t(0),
            device: d(0),
            value: v(0)
        }]
    );
}

#[test]
fn a_run_whose_output_is_there() {
    let mut steps = good();
    steps.insert(1, run(0));
    assert_eq!(
        violations(steps),
        [V::OutputPresent {
            step: 1,
            task: t(0),
            device: d(0),
            value: v(2)
        }]
    );
}

#[test]
fn a_second_run_of_a_task_that_runs_once() {
    let mut parts = parts();
    parts.tasks[t(0)].rerunnable = false;
    let mut steps = good();
    steps.splice(1..1, [free(2), run(0)]);
    let found = check(&Problem::new(parts).unwrap(), Plan { steps })
        .map(|_| ())
        .unwrap_err();
    assert_eq!(
        found,
        [V::NotRerunnable {
            step: 2,
            task: t(0),
            first: 0
        }]
    );
}

#[test]
fn a_free_of_nothing() {
    let mut steps = good();
    steps.push(free(3));
    assert_eq!(
        violations(steps),
        [V::FreeAbsent {
            step: 6,
            value: v(3),
            device: d(0)
        }]
    );
}

#[test]
fn copies_that_cannot_happen() {
    let mut steps = good();
    steps.push(copy(4, 0, 2));
    assert_eq!(
        violations(steps),
        [V::NoLink {
            step: 6,
            from: d(0),
            to: d(2)
        }]
    );
    let mut steps = good();
    steps.push(copy(3, 0, 1));
    assert_eq!(
        violations(steps),
        [V::SourceAbsent {
            step: 6,
            value: v(3),
            from: d(0)
        }]
    );
    let mut steps = good();
    steps.extend([copy(4, 0, 1), copy(4, 0, 1)]);
    assert_eq!(
        violations(steps),
        [V::DestinationPresent {
            step: 7,
            value: v(4),
            to: d(1)
        }]
    );
}

#[test]
fn too_many_bytes_on_either_device() {
    let within = |device, capacity, steps| {
        let plan = check(&problem(), Plan { steps }).unwrap();
        plan.within(&Capacities::bytes_of(device, capacity))
    };
    assert_eq!(within(d(0), 36, good()), Ok(()));
    let over = |step, device, bytes, capacity| {
        Err(vec![Excess::Bytes {
            step,
            device,
            bytes,
            capacity,
        }])
    };
    assert_eq!(within(d(0), 35, good()), over(1, d(0), 36, 35));
    let mut steps = good();
    steps.push(copy(4, 0, 1));
    assert_eq!(within(d(1), 7, steps), over(6, d(1), 8, 7));
    // Given bytes count even if they are freed at once.
    let mut steps = good();
    steps.insert(0, free(5));
    let mut parts = parts();
    parts.values.push(Value {
        name: "unused".into(),
        bytes: 50,
        origin: Origin::Given(d(0)),
        keep: Keep::No,
    });
    let plan = check(&Problem::new(parts).unwrap(), Plan { steps }).unwrap();
    let capacities = Capacities::bytes_of(d(0), 71);
    assert_eq!(plan.within(&capacities), over(0, d(0), 72, 71));
}

#[test]
fn a_task_that_never_runs() {
    let steps = vec![run(1), free(3)];
    let found = violations(steps);
    assert!(
        found.contains(&V::NeverRun { task: t(0) }) && found.contains(&V::NeverRun { task: t(2) })
    );
    assert!(!found.contains(&V::NeverRun { task: t(1) }));
}

#[test]
fn a_kept_value_that_is_gone() {
    let mut steps = good();
    steps.push(free(4));
    assert_eq!(
        violations(steps),
        [V::NotKept {
            value: v(4),
            device: Some(d(0))
        }]
    );
    let mut parts = parts();
    parts.values[v(3)].keep = Keep::Anywhere;
    let found = check(&Problem::new(parts).unwrap(), Plan { steps: good() })
        .map(|_| ())
        .unwrap_err();
    assert_eq!(
        found,
        [V::NotKept {
            value: v(3),
            device: None
        }]
    );
}

#[test]
fn swapping_out_and_back_is_valid_and_takes_its_time() {
    // The activation leaves while nothing runs, and comes back for the backward task.
    let steps = vec![
        run(0),
        copy(2, 0, 1),
        free(2),
        copy(2, 1, 0),
        run(1),
        free(1),
        free(2),
        Step::Free {
            value: v(2),
            device: d(1),
        },
        run(2),
        free(3),
    ];
    let checked = check(&problem(), Plan { steps }).unwrap();
    assert_eq!(checked.profile(d(1)), [0, 6, 6, 6, 6, 6, 6, 6, 0, 0]);
    let timeline = simulate(&checked);
    let times: Vec<(f64, f64)> = timeline
        .spans()
        .iter()
        .map(|span| (span.start, span.end))
        .collect();
    // A copy of 6 bytes at 2 bytes per second takes 3.5 s with its latency.
    assert_eq!(
        times[..5],
        [(0.0, 2.0), (2.0, 5.5), (5.5, 5.5), (5.5, 9.0), (9.0, 12.0)]
    );
    assert_eq!(timeline.makespan(), 13.0);
    assert_eq!(timeline.waiting(Lane::Device(d(0))), 7.0);
    assert_eq!(timeline.busy(Lane::Device(d(0))), 6.0);
}

/// The activation leaves for the other memory, which gives it back at `lost`.
fn swapping() -> Vec<Step> {
    let lost = Step::Free {
        value: v(2),
        device: d(1),
    };
    let start = [run(0), copy(2, 0, 1), free(2), copy(2, 1, 0), lost];
    [&start[..], &[run(1), free(1), free(2), run(2), free(3)]].concat()
}

#[test]
fn bytes_given_back_before_they_were_sent_away_or_brought_back() {
    assert!(check(&problem(), Plan { steps: swapping() }).is_ok());
    for (early, from) in [([1, 2], d(0)), ([3, 4], d(1))] {
        let mut steps = swapping();
        steps.swap(early[0], early[1]);
        let found = violations(steps);
        let expected = V::SourceAbsent {
            step: early[1],
            value: v(2),
            from,
        };
        assert_eq!(found[0], expected);
    }
}

#[test]
fn a_copy_that_is_missing() {
    for (missing, expected) in [
        (
            1,
            V::SourceAbsent {
                step: 2,
                value: v(2),
                from: d(1),
            },
        ),
        (
            3,
            V::InputAbsent {
                step: 4,
                task: t(1),
                device: d(0),
                value: v(2),
            },
        ),
    ] {
        let mut steps = swapping();
        steps.remove(missing);
        assert_eq!(violations(steps)[0], expected);
    }
}

#[test]
fn a_task_runs_again_where_the_arithmetic_is_the_same() {
    let again = |arithmetic: &str| {
        let mut parts = parts();
        parts.devices[d(1)].computes = true;
        parts.devices[d(1)].arithmetic = arithmetic.into();
        let mode = parts.tasks[t(0)].modes[0].clone();
        parts.tasks[t(0)].modes.push(Mode {
            device: d(1),
            ..mode
        });
        let mut steps = good();
        let there = Step::Run {
            task: t(0),
            device: d(1),
        };
        let copies = [copy(0, 0, 1), copy(1, 0, 1)];
        steps.splice(1..1, copies.into_iter().chain([there]));
        check(&Problem::new(parts).unwrap(), Plan { steps }).map(|_| ())
    };
    assert_eq!(again("gpu"), Ok(()));
    let refused = V::OtherArithmetic {
        step: 3,
        task: t(0),
        device: d(1),
        first: 0,
    };
    assert_eq!(again("host"), Err(vec![refused]));
}

#[test]
fn copies_run_beside_compute() {
    let steps = vec![
        run(0),
        copy(1, 0, 1),
        run(1),
        free(1),
        free(2),
        run(2),
        free(3),
    ];
    let timeline = simulate(&check(&problem(), Plan { steps }).unwrap());
    // The copy of the image (2.5 s) can begin at once: it is issued in the host's queue.
    assert_eq!(
        (timeline.spans()[1].start, timeline.spans()[1].end),
        (0.0, 2.5)
    );
    assert_eq!(timeline.makespan(), 6.0);
}

#[test]
fn an_overwriting_run_waits_for_copies_of_what_it_overwrites() {
    let mut parts = parts();
    for link in parts.links.values_mut() {
        link.seconds.insert(v(0), 100.0);
    }
    let steps = vec![
        run(0),
        copy(0, 0, 1),
        run(1),
        free(1),
        free(2),
        run(2),
        free(3),
    ];
    let timeline = simulate(&check(&Problem::new(parts).unwrap(), Plan { steps }).unwrap());
    assert_eq!(timeline.spans()[5].start, 100.0);
}
