//! The plan without recomputation on small problems whose numbers can be checked by hand.

use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::*;

fn here() -> DeviceId {
    DeviceId::new(0)
}

/// A chain `given → t0 → t1 → …` of tasks of one second; `sizes[0]` is the given value's.
fn chain(sizes: &[u64]) -> ProblemParts {
    let mut parts = ProblemParts {
        name: "chain".into(),
        ..ProblemParts::default()
    };
    parts.devices.push(Device {
        resident: 10,
        ..Device::computing("cpu")
    });
    for (i, &bytes) in sizes.iter().enumerate() {
        let origin = if i == 0 {
            Origin::Given(here())
        } else {
            Origin::Task(TaskId::new(i - 1))
        };
        let keep = if i + 1 == sizes.len() {
            Keep::Anywhere
        } else {
            Keep::No
        };
        let value = parts.values.push(Value {
            name: format!("v{i}"),
            bytes,
            origin,
            keep,
        });
        if i > 0 {
            parts.tasks.push(Task {
                name: format!("t{i}"),
                phase: Phase::Forward,
                inputs: vec![ValueId::new(i - 1)],
                outputs: vec![value],
                overwrites: vec![],
                modes: vec![Mode {
                    device: here(),
                    seconds: 1.0,
                    joules: 0.0,
                    workspace: 0,
                    resident: 0,
                }],
                rerunnable: true,
            });
        }
    }
    parts
}

#[test]
fn a_chain_holds_two_values_at_a_time() {
    let problem = Problem::new(chain(&[1, 2, 4, 8])).unwrap();
    let plan = Plan::keep_all(&problem, here()).unwrap();
    let checked = check(&problem, plan).unwrap();
    assert_eq!(checked.profile(here()), [13, 13, 16, 16, 22, 22]);
    assert_eq!(
        (checked.peak(here()), checked.cost(), checked.recomputed()),
        (22, 3.0, 0)
    );
    assert!(checked.keeps_order());
    let spans: PrimaryMap<BufferId, _> = checked
        .buffers()
        .values()
        .map(|b| (b.start, b.end, b.bytes))
        .collect();
    assert_eq!(
        spans.values().copied().collect::<Vec<_>>(),
        [(0, 2, 1), (0, 4, 2), (2, 6, 4), (4, 6, 8)]
    );
}

#[test]
fn an_overwritten_input_and_its_output_count_once() {
    let mut parts = chain(&[4, 4, 4]);
    for (i, task) in parts.tasks.iter_mut() {
        let (input, output) = (ValueId::new(i.index()), ValueId::new(i.index() + 1));
        task.overwrites.push(Overwrite { input, output });
    }
    let problem = Problem::new(parts).unwrap();
    assert_eq!(problem.fixed_bytes(here()), 14);
    let checked = check(&problem, Plan::keep_all(&problem, here()).unwrap()).unwrap();
    assert_eq!(checked.peak(here()), 14);
    assert_eq!(checked.buffers().len(), 1);
    let again = [0, 1, 1].map(TaskId::new);
    let error = Plan::from_runs(&problem, here(), &again).unwrap_err();
    assert!(
        matches!(
            error,
            SequenceError::Overwritten {
                position: 2,
                overwriter: 1,
                ..
            }
        ),
        "{error}"
    );
}
