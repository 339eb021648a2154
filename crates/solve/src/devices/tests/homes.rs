//! Where what is given is at the end of a step: plans whose values take each other's place.

use scrimp_plan::{
    Device, Keep, Link, Mode, Origin, Overwrite, Phase, ProblemParts, Task, Value,
    problem_from_json,
};

use super::*;

/// While the weight is updated elsewhere, the first task's output is in its place at home. A layout needs other bytes for it.
#[test]
fn a_plan_that_takes_the_place_of_what_is_given_is_no_start() {
    let problem = problem_from_json(
        r#"{
        "format": "scrimp-problem", "version": 1, "name": "places", "units": {"cost": "s", "memory": "B"},
        "devices": [{"name": "home", "capacity": 8, "computes": true, "resident": 0},
            {"name": "away", "capacity": 20, "computes": true, "resident": 0}],
        "links": [{"from": 0, "to": 1, "bandwidth": 1.0, "latency": 0.0},
            {"from": 1, "to": 0, "bandwidth": 1.0, "latency": 0.0}],
        "tasks": [
            {"name": "first", "phase": "forward", "inputs": [0], "outputs": [1, 4], "rerunnable": false,
             "modes": [{"device": 1, "seconds": 1.0, "joules": 0.0, "workspace": 0}]},
            {"name": "update", "phase": "forward", "inputs": [0, 4], "outputs": [2, 5], "rerunnable": false,
             "overwrites": [{"input": 0, "output": 2}],
             "modes": [{"device": 1, "seconds": 1.0, "joules": 0.0, "workspace": 12}]},
            {"name": "third", "phase": "forward", "inputs": [1, 5], "outputs": [3], "rerunnable": false,
             "modes": [{"device": 1, "seconds": 1.0, "joules": 0.0, "workspace": 0}]}
        ],
        "values": [
            {"name": "weight", "bytes": 8, "origin": {"given": 0}, "keep": "no"},
            {"name": "made", "bytes": 8, "origin": {"task": 0}, "keep": "no"},
            {"name": "weight'", "bytes": 8, "origin": {"task": 1}, "keep": {"on": 0}},
            {"name": "end", "bytes": 0, "origin": {"task": 2}, "keep": "anywhere"},
            {"name": "before", "bytes": 0, "origin": {"task": 0}, "keep": "no"},
            {"name": "after", "bytes": 0, "origin": {"task": 1}, "keep": "no"}
        ]
    }"#,
    );
    let (problem, capacities) = problem.unwrap();
    let [home, away] = [0, 1].map(DeviceId::new);
    let run = |task| Move::Run {
        task: TaskId::new(task),
        device: away,
    };
    let copy = |value, from, to| Move::Copy {
        value: ValueId::new(value),
        from,
        to,
    };
    let release = |value, device| Move::Release {
        value: ValueId::new(value),
        device,
    };
    let moves = vec![
        copy(0, home, away),
        release(0, home),
        run(0),
        copy(1, away, home),
        release(1, away),
        run(1),
        copy(1, home, away),
        release(1, home),
        copy(2, away, home),
        run(2),
    ];
    let is_given = |laid_out| {
        let options = Options {
            laid_out,
            start: Some(Sequence {
                moves: moves.clone(),
            }),
            ..Options::default()
        };
        let system = System::new(&problem, &capacities, &options);
        let search = search(&problem, &capacities, &options, &system);
        search.given().is_some()
    };
    assert!(is_given(false));
    assert!(!is_given(true));
}

/// A weight comes home after the last copy of what it replaces there, which a second run elsewhere reads after the
/// update.
#[test]
fn a_value_comes_home_when_nothing_needs_what_it_replaces() {
    let mut parts = ProblemParts::default();
    let home = parts.devices.push(Device::computing("home"));
    let away = parts.devices.push(Device::computing("away"));
    parts.links.push(Link::new(home, away, 1.0, 0.0));
    parts.links.push(Link::new(away, home, 1.0, 0.0));
    let task = |parts: &mut ProblemParts, inputs: &[ValueId], bytes: u64, workspace: u64| {
        let id = parts.tasks.next_key();
        let output = parts.values.push(Value {
            name: String::new(),
            bytes,
            origin: Origin::Task(id),
            keep: Keep::No,
        });
        parts.tasks.push(Task {
            name: String::new(),
            phase: Phase::Forward,
            inputs: inputs.to_vec(),
            outputs: vec![output],
            overwrites: Vec::new(),
            modes: vec![Mode {
                device: away,
                seconds: 1.0,
                joules: 0.0,
                workspace,
                resident: 0,
            }],
            rerunnable: true,
        });
        output
    };
    let weight = parts.values.push(Value {
        name: "weight".into(),
        bytes: 8,
        origin: Origin::Given(home),
        keep: Keep::No,
    });
    let made = task(&mut parts, &[weight], 4, 0);
    let read = task(&mut parts, &[made], 1, 0);
    let updated = task(&mut parts, &[weight], 8, 0);
    let large = task(&mut parts, &[read], 0, 8);
    let last = task(&mut parts, &[made, large], 0, 0);
    parts.values[updated].keep = Keep::On(home);
    parts.values[last].keep = Keep::Anywhere;
    let update = &mut parts.tasks[TaskId::new(2)];
    update.rerunnable = false;
    update.overwrites.push(Overwrite {
        input: weight,
        output: updated,
    });
    let problem = Problem::new(parts).unwrap();
    let capacities = Capacities::unlimited()
        .with_bytes(home, Some(8))
        .with_bytes(away, Some(20));
    let options = Options {
        laid_out: true,
        ..Options::default()
    };
    let system = System::new(&problem, &capacities, &options);
    let search = search(&problem, &capacities, &options, &system);
    let list = [0, 1, 2, 3, 0, 4].map(|task| Run { task, device: 1 });
    let mut walk = Walk::new(&system, false, Random::new(0, 0));
    assert!(walk.start(&list));
    let found = walk.best.take().unwrap();
    assert_eq!(found.over, 0.0);
    let (_, plan) = search.checked(&found).unwrap();
    assert_eq!((plan.recomputed(), plan.peak(home)), (1, 8));
}

/// A weight that was copied away can't come back once its update has its bytes at home.
#[test]
fn a_value_does_not_come_home_once_it_is_replaced() {
    let problem = problem_from_json(
        r#"{
        "format": "scrimp-problem", "version": 1, "name": "replaced", "units": {"cost": "s", "memory": "B"},
        "devices": [{"name": "home", "capacity": 20, "computes": true, "resident": 0, "arithmetic": "same"},
            {"name": "away", "capacity": 20, "computes": true, "resident": 0, "arithmetic": "same"}],
        "links": [{"from": 0, "to": 1, "bandwidth": 1.0, "latency": 0.0},
            {"from": 1, "to": 0, "bandwidth": 1.0, "latency": 0.0}],
        "tasks": [
            {"name": "maker", "phase": "forward", "inputs": [0], "outputs": [1], "rerunnable": true,
             "modes": [{"device": 0, "seconds": 1.0, "joules": 0.0, "workspace": 0},
                {"device": 1, "seconds": 1.0, "joules": 0.0, "workspace": 0}]},
            {"name": "update", "phase": "forward", "inputs": [0], "outputs": [2], "rerunnable": false,
             "overwrites": [{"input": 0, "output": 2}],
             "modes": [{"device": 0, "seconds": 1.0, "joules": 0.0, "workspace": 0}]},
            {"name": "reader", "phase": "forward", "inputs": [1], "outputs": [3], "rerunnable": true,
             "modes": [{"device": 0, "seconds": 1.0, "joules": 0.0, "workspace": 0}]}
        ],
        "values": [
            {"name": "weight", "bytes": 8, "origin": {"given": 0}, "keep": "no"},
            {"name": "made", "bytes": 4, "origin": {"task": 0}, "keep": "no"},
            {"name": "weight'", "bytes": 8, "origin": {"task": 1}, "keep": {"on": 0}},
            {"name": "read", "bytes": 1, "origin": {"task": 2}, "keep": "anywhere"}
        ]
    }"#,
    );
    let (problem, capacities) = problem.unwrap();
    let decodes = |laid_out, list: &[(usize, usize)]| {
        let options = Options {
            laid_out,
            ..Options::default()
        };
        let system = System::new(&problem, &capacities, &options);
        let list: Vec<Run> = list
            .iter()
            .map(|&(task, device)| Run { task, device })
            .collect();
        Decoder::new(&system).decode(&list)
    };
    // The first run makes `made` away, the second at home, where the weight must come from away.
    let back = [(0, 1), (1, 0), (0, 0), (2, 0)];
    assert!(decodes(true, &[(0, 1), (1, 0), (2, 0)]));
    assert!(decodes(false, &back));
    assert!(!decodes(true, &back));
}
