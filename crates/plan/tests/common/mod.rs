//! A small problem that has one of everything, for tests that spoil it.
#![allow(dead_code, reason = "each test file uses a part of it")]

use cranelift_entity::EntityRef;
use scrimp_plan::*;

pub fn d(index: usize) -> DeviceId {
    DeviceId::new(index)
}

pub fn t(index: usize) -> TaskId {
    TaskId::new(index)
}

pub fn v(index: usize) -> ValueId {
    ValueId::new(index)
}

pub fn run(task: usize) -> Step {
    Step::Run {
        task: t(task),
        device: d(0),
    }
}

pub fn free(value: usize) -> Step {
    Step::Free {
        value: v(value),
        device: d(0),
    }
}

pub fn copy(value: usize, from: usize, to: usize) -> Step {
    Step::Copy {
        value: v(value),
        from: d(from),
        to: d(to),
    }
}

/// Devices `gpu` and `host` (which doesn't compute), linked both ways; a disk without links.
///
/// | task | reads | writes | |
/// |---|---|---|---|
/// | 0 forward | 0 (weight, given, 8 B), 1 (image, given, 4 B) | 2 (6 B) | workspace 5 B, 2 s |
/// | 1 backward | 1, 2 | 3 (8 B) | 3 s |
/// | 2 update | 0, 3 | 4 (8 B), which overwrites 0 and is kept on the gpu | once, 1 s |
pub fn parts() -> ProblemParts {
    let mut parts = ProblemParts {
        name: "small".into(),
        ..ProblemParts::default()
    };
    for (name, computes, resident) in [("gpu", true, 10), ("host", false, 0), ("disk", false, 0)] {
        parts.devices.push(Device {
            computes,
            resident,
            ..Device::computing(name)
        });
    }
    for (from, to) in [(0, 1), (1, 0)] {
        parts.links.push(Link::new(d(from), d(to), 2.0, 0.5));
    }
    let mut value = |name: &str, bytes, origin, keep| {
        parts.values.push(Value {
            name: name.into(),
            bytes,
            origin,
            keep,
        });
    };
    value("weight", 8, Origin::Given(d(0)), Keep::No);
    value("image", 4, Origin::Given(d(0)), Keep::No);
    value("activation", 6, Origin::Task(t(0)), Keep::No);
    value("gradient", 8, Origin::Task(t(1)), Keep::No);
    value("new weight", 8, Origin::Task(t(2)), Keep::On(d(0)));
    let mut task = |name: &str, phase, inputs: &[usize], output, seconds, workspace| {
        parts.tasks.push(Task {
            name: name.into(),
            phase,
            inputs: inputs.iter().map(|&value| v(value)).collect(),
            outputs: vec![v(output)],
            overwrites: vec![],
            modes: vec![Mode {
                device: d(0),
                seconds,
                joules: 0.0,
                workspace,
                resident: 0,
            }],
            rerunnable: phase != Phase::Update,
        });
    };
    task("forward", Phase::Forward, &[0, 1], 2, 2.0, 5);
    task("backward", Phase::Backward, &[1, 2], 3, 3.0, 0);
    task("update", Phase::Update, &[0, 3], 4, 1.0, 0);
    parts.tasks[t(2)].overwrites.push(Overwrite {
        input: v(0),
        output: v(4),
    });
    parts
}

pub fn problem() -> Problem {
    Problem::new(parts()).unwrap()
}
