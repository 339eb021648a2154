use scrimp_plan::{Device, Keep, Mode, Origin, Phase, ProblemParts, Task, Value};

use super::*;
use crate::bound;
use crate::testing::{Shape, problem};

/// By task: its inputs, seconds, bytes of its output, and workspace.
const TASKS: [(&[u32], f64, u64, u64); 5] = [
    (&[], 100.0, 10, 0),
    (&[0], 1.0, 4, 0),
    (&[0], 1.0, 4, 8),
    (&[2], 1.0, 1, 15),
    (&[1, 3], 1.0, 1, 0),
];

/// Task 2 has no room for value 1, and task 3 has none for value 0. So task 1 can run again between them only,
/// unless task 0 does too.
fn tight() -> Model {
    let mut parts = ProblemParts::default();
    let device = parts.devices.push(Device::computing("cpu"));
    for (k, (inputs, seconds, bytes, workspace)) in TASKS.into_iter().enumerate() {
        let output = parts.values.push(Value {
            name: String::new(),
            bytes,
            origin: Origin::Task(TaskId::new(k)),
            keep: Keep::No,
        });
        parts.tasks.push(Task {
            name: format!("t{k}"),
            phase: Phase::Forward,
            inputs: inputs.iter().map(|&v| ValueId::from_u32(v)).collect(),
            outputs: vec![output],
            overwrites: Vec::new(),
            modes: vec![Mode {
                device,
                seconds,
                joules: 0.0,
                workspace,
                resident: 0,
            }],
            rerunnable: true,
        });
    }
    let problem = scrimp_plan::Problem::new(parts).unwrap();
    Model::new(&problem).unwrap().0
}

#[test]
fn some_reruns_come_before_their_inputs_leave() {
    let model = tight();
    let mut rng = Random::new(5, 0);
    let taste = Taste {
        tries: 1,
        noise: 0.0,
    };
    let mut found = 0;
    for _ in 0..100 {
        let mut state = State::new(&model, &model.given_order());
        let mut repairer = Repairer::new(&model, 24.0, false, Cutoff::NEVER);
        if repairer.repair(&mut state, taste, f64::INFINITY, &mut rng) {
            let runs = [0, 1, 2, 1, 3, 4].map(TaskId::from_u32);
            assert_eq!(state.order(), runs);
            found += 1;
        }
    }
    assert!(found > 0, "no repair reruns task 1 early");
}

#[test]
fn several_evictions_by_one_estimate_take_less_work() {
    let shape = Shape {
        tasks: 800,
        rich: false,
    };
    let model = Model::new(&problem(shape, &mut Random::new(6, 0)))
        .unwrap()
        .0;
    let given = model.given_order();
    let (peak, floor) = (State::new(&model, &given).peak(), bound::floor(&model));
    let budget = (floor + 0.7 * (peak - floor)).floor();
    let taste = Taste {
        tries: 4,
        noise: 0.0,
    };
    let work = [1, 64].map(|batch| {
        let mut state = State::new(&model, &given);
        let mut repairer = Repairer::new(&model, budget, false, Cutoff::NEVER);
        repairer.batch = batch;
        let mut rng = Random::new(6, 1);
        assert!(repairer.repair(&mut state, taste, f64::INFINITY, &mut rng));
        assert!(state.is_sound() && state.peak() <= budget);
        repairer.work
    });
    assert!(work[1] < work[0], "{work:?}");
}

#[test]
fn a_repair_makes_only_so_many_evictions() {
    let model = tight();
    let mut rng = Random::new(5, 0);
    let taste = Taste {
        tries: 4,
        noise: 0.0,
    };
    let mut state = State::new(&model, &model.given_order());
    let mut repairer = Repairer::new(&model, 24.0, false, Cutoff::NEVER);
    repairer.most = 0;
    assert!(!repairer.repair(&mut state, taste, f64::INFINITY, &mut rng));
    assert_eq!(state.order(), model.given_order());
}
