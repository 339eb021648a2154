//! Concurrent devices and links, groups of tasks, and the resident bytes of tasks.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::*;
use scrimp_plan::Violation as V;
use scrimp_plan::file::Fingerprint;
use scrimp_plan::*;

/// The small problem with two more readers of the image on the GPU, of 5 s each.
fn wide() -> ProblemParts {
    let mut parts = parts();
    for name in ["first", "second"] {
        let mut task = parts.tasks[t(0)].clone();
        let output = parts.values.push(Value {
            name: name.into(),
            bytes: 7,
            origin: Origin::Task(parts.tasks.next_key()),
            keep: Keep::No,
        });
        task.name = name.into();
        task.inputs = vec![v(1)];
        task.outputs = vec![output];
        task.modes[0].seconds = 5.0;
        parts.tasks.push(task);
    }
    parts
}

fn steps() -> Vec<Step> {
    let mut steps = vec![run(0), run(3), free(5), run(4), free(6)];
    steps.extend([run(1), free(1), free(2), run(2), free(3)]);
    steps
}

#[test]
fn a_concurrent_device_runs_all_that_is_ready_and_gives_nothing_back() {
    let mut parts = wide();
    let plan = Plan { steps: steps() };
    let serial = check(&Problem::new(parts.clone()).unwrap(), plan.clone()).unwrap();
    assert_eq!(simulate(&serial).makespan(), 2.0 + 3.0 + 1.0 + 5.0 + 5.0);
    parts.devices[d(0)].concurrent = true;
    let problem = Problem::new(parts).unwrap();
    let checked = check(&problem, plan).unwrap();
    let timeline = simulate(&checked);
    let started: Vec<f64> = [0, 1, 3, 5, 8]
        .map(|step: usize| timeline.spans()[step].start)
        .into();
    assert_eq!(started, [0.0, 0.0, 0.0, 2.0, 5.0]);
    assert_eq!(timeline.makespan(), 6.0);
    // 10 resident bytes, what was given, all that was made, and the workspaces of all runs; the new weight
    // takes the weight's place.
    assert_eq!(checked.peak(d(0)), 10 + 8 + 4 + 6 + 8 + 7 + 7 + 3 * 5);
    assert!(checked.buffers().values().all(|buffer| buffer.end == 10));
    // Whatever overwrites the weight waits for the longest reader.
    let mut slow = problem.parts();
    slow.tasks[t(0)].modes[0].seconds = 20.0;
    slow.tasks[t(1)].inputs = vec![v(1)];
    let problem = Problem::new(slow).unwrap();
    let steps = vec![run(0), run(3), run(4), run(1), run(2)];
    let timeline = simulate(&check(&problem, Plan { steps }).unwrap());
    assert_eq!(
        (timeline.spans()[4].start, timeline.makespan()),
        (20.0, 21.0)
    );
}

#[test]
fn copies_over_a_concurrent_link_do_not_queue() {
    let mut parts = parts();
    let steps = vec![copy(0, 0, 1), copy(1, 0, 1), run(0), run(1), run(2)];
    let plan = Plan { steps };
    let ends = |parts: &ProblemParts| {
        let problem = Problem::new(parts.clone()).unwrap();
        let timeline = simulate(&check(&problem, plan.clone()).unwrap());
        [0, 1].map(|step: usize| timeline.spans()[step].end)
    };
    assert_eq!(ends(&parts), [4.5, 7.0]);
    parts.links[LinkId::from_u32(0)].concurrent = true;
    assert_eq!(ends(&parts), [4.5, 2.5]);
}

#[test]
fn resident_bytes_of_a_task_count_from_start_to_end_once() {
    let mut parts = parts();
    parts.tasks[t(1)].modes[0].resident = 100;
    let problem = Problem::new(parts).unwrap();
    let mut steps = vec![run(0), run(1), free(3), run(1), free(1), free(2), run(2)];
    steps.push(free(3));
    let checked = check(&problem, Plan { steps }).unwrap();
    let profile = checked.profile(d(0));
    assert_eq!((profile[0], profile[7]), (133, 10 + 8 + 8 + 100));
    assert_eq!((checked.resident(d(0)), checked.resident(d(1))), (110, 0));
    assert_eq!(problem.resident_bytes(d(0)), 110);
    assert_eq!(problem.fixed_bytes(d(0)), 118);
}

#[test]
fn a_group_runs_on_one_device() {
    let mut parts = parts();
    parts.devices[d(1)].computes = true;
    for task in [t(0), t(1)] {
        let mode = parts.tasks[task].modes[0].clone();
        let there = Mode {
            device: d(1),
            ..mode
        };
        parts.tasks[task].modes.push(there);
    }
    let mut steps = vec![run(0), copy(1, 0, 1), copy(2, 0, 1)];
    steps.push(Step::Run {
        task: t(1),
        device: d(1),
    });
    steps.extend([copy(3, 1, 0), run(2)]);
    let plan = Plan { steps };
    let apart = |parts: &ProblemParts| {
        let problem = Problem::new(parts.clone()).unwrap();
        check(&problem, plan.clone()).map(|_| ())
    };
    assert_eq!(apart(&parts), Ok(()));
    parts.together = vec![vec![t(0)], vec![t(1), t(2)]];
    let violation = V::Apart {
        step: 5,
        task: t(2),
        device: d(0),
        first: 3,
    };
    assert_eq!(apart(&parts), Err(vec![violation]));
    let problem = Problem::new(parts).unwrap();
    assert_eq!(problem.group(t(0)), Some(0));
    assert_eq!(problem.group(t(2)), Some(1));
    let other = Fingerprint::of(&problem);
    let mut parts = problem.parts();
    parts.together.clear();
    assert_ne!(other, Fingerprint::of(&Problem::new(parts).unwrap()));
}
