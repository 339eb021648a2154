//! Support for tests: random small problems with every feature of the semantics, and their exact optimum.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use scrimp_plan::{
    Device, DeviceId, Keep, Link, Mode, Origin, Overwrite, Phase, Plan, Problem, ProblemParts,
    Task, TaskId, Value, ValueId, check,
};

pub(crate) mod oracle;
pub(crate) mod several;

use crate::method::Order;
use crate::random::Random;

/// What a random problem may contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub tasks: usize,
    /// Whether it has overwriting, several outputs, workspaces, tasks that run once, given and kept values.
    pub rich: bool,
}

/// A random problem on one device.
pub(crate) fn problem(shape: Shape, rng: &mut Random) -> Problem {
    let mut parts = ProblemParts {
        name: "random".into(),
        ..ProblemParts::default()
    };
    let resident = if shape.rich { rng.below(4) as u64 } else { 0 };
    let device = parts.devices.push(Device {
        resident,
        ..Device::computing("cpu")
    });
    let mut readable: Vec<ValueId> = Vec::new();
    let mut lost = Vec::new();
    if shape.rich {
        for _ in 0..rng.below(3) {
            readable.push(parts.values.push(value(rng, Origin::Given(device))));
        }
    }
    for k in 0..shape.tasks {
        let id = TaskId::from_u32(k as u32);
        let mut inputs: Vec<ValueId> = Vec::new();
        for _ in 0..1 + rng.below(2) + rng.below(2) {
            if !readable.is_empty() {
                // Mostly recent values are read, now and then any value.
                let back = if rng.below(3) > 0 {
                    rng.below(readable.len().min(3))
                } else {
                    rng.below(readable.len())
                };
                let v = readable[readable.len() - 1 - back];
                if !inputs.contains(&v) {
                    inputs.push(v);
                }
            }
        }
        let mut outputs = vec![parts.values.push(value(rng, Origin::Task(id)))];
        if shape.rich && rng.below(6) == 0 {
            outputs.push(parts.values.push(value(rng, Origin::Task(id))));
        }
        let mut overwrites = Vec::new();
        if shape.rich && !inputs.is_empty() && rng.below(4) == 0 {
            let input = inputs[rng.below(inputs.len())];
            parts.values[outputs[0]].bytes = parts.values[input].bytes;
            overwrites.push(Overwrite {
                input,
                output: outputs[0],
            });
            readable.retain(|&v| v != input);
            lost.push(input);
        }
        readable.extend(&outputs);
        parts.tasks.push(Task {
            name: format!("t{k}"),
            phase: if k * 2 < shape.tasks {
                Phase::Forward
            } else {
                Phase::Backward
            },
            inputs,
            outputs,
            overwrites,
            modes: vec![Mode {
                device,
                seconds: (1 + rng.below(9)) as f64,
                joules: 0.0,
                workspace: if shape.rich && rng.below(4) == 0 {
                    rng.below(5) as u64
                } else {
                    0
                },
                resident: 0,
            }],
            rerunnable: !shape.rich || rng.below(10) > 0,
        });
    }
    for (v, value) in parts.values.iter_mut() {
        if shape.rich && !lost.contains(&v) && rng.below(6) == 0 {
            value.keep = if rng.below(2) == 0 {
                Keep::Anywhere
            } else {
                Keep::On(device)
            };
        }
    }
    Problem::new(parts).expect("the generator makes valid problems")
}

fn value(rng: &mut Random, origin: Origin) -> Value {
    Value {
        name: String::new(),
        bytes: 1 + rng.below(8) as u64,
        origin,
        keep: Keep::No,
    }
}

/// A random problem with a memory, or two, whose links may share a queue. Given values may rest in the first
/// one, and kept values may have to end there.
pub(crate) fn swapping(round: usize, rng: &mut Random) -> Problem {
    let shape = Shape {
        tasks: 3 + round % 18,
        rich: !round.is_multiple_of(4),
    };
    let mut parts = problem(shape, rng).parts();
    for _ in 0..1 + usize::from(round % 5 == 4) {
        let memory = parts.devices.push(Device::memory("memory"));
        let name = format!("memory {memory}");
        parts.devices[memory].name = name;
        let half = rng.below(3) == 0;
        let mut first = None;
        for (from, to) in [(device(), memory), (memory, device())] {
            let latency = rng.below(3) as f64 / 4.0;
            let bandwidth = 0.5 + rng.below(20) as f64 / 4.0;
            let link = Link {
                queue: first.filter(|_| half),
                drag: [0.0, 0.25, 0.0][round % 3],
                ..Link::new(from, to, bandwidth, latency)
            };
            first = Some(parts.links.push(link));
        }
    }
    let memory = DeviceId::from_u32(device().as_u32() + 1);
    for value in parts.values.values_mut() {
        let moves = rng.below(4) == 0;
        if moves && value.origin == Origin::Given(device()) {
            value.origin = Origin::Given(memory);
        }
        if moves && value.keep == Keep::On(device()) {
            value.keep = Keep::On(memory);
        }
    }
    Problem::new(parts).unwrap()
}

/// The only device of a random problem.
pub(crate) fn device() -> DeviceId {
    DeviceId::from_u32(0)
}

/// The peak without planning.
pub(crate) fn base_peak(problem: &Problem) -> u64 {
    let plan = Plan::keep_all(problem, device()).expect("one device");
    check(problem, plan)
        .expect("keep-all is a plan")
        .peak(device())
}

/// The least seconds of any plan within `capacity`, by search over (values present, tasks done); `None` if
/// there is no plan. For at most a dozen values and tasks.
pub(crate) fn optimum(problem: &Problem, capacity: u64, order: Order) -> Option<f64> {
    let bytes: Vec<u64> = problem.values().values().map(|v| v.bytes).collect();
    let resident = problem.devices()[device()].resident;
    let used = |set: u32| {
        resident
            + (0..bytes.len())
                .filter(|i| set >> i & 1 == 1)
                .map(|i| bytes[i])
                .sum::<u64>()
    };
    let bits = |list: &[ValueId]| list.iter().fold(0u32, |s, v| s | 1 << v.as_u32());
    let mut start = 0u32;
    let mut kept = 0u32;
    for (v, value) in problem.values().iter() {
        start |= u32::from(matches!(value.origin, Origin::Given(_))) << v.as_u32();
        kept |= u32::from(value.keep != Keep::No) << v.as_u32();
    }
    if used(start) > capacity {
        return None;
    }
    let all = (1u32 << problem.tasks().len()) - 1;
    let mut least: HashMap<(u32, u32), u64> = HashMap::from([((start, 0), 0)]);
    let mut queue = BinaryHeap::from([Reverse((0u64, start, 0u32))]);
    while let Some(Reverse((cost, set, done))) = queue.pop() {
        if least[&(set, done)] < cost {
            continue;
        }
        if done == all && set & kept == kept {
            return Some(cost as f64);
        }
        let mut reach = |cost: u64, set: u32, done: u32| {
            let known = least.entry((set, done)).or_insert(u64::MAX);
            if cost < *known {
                *known = cost;
                queue.push(Reverse((cost, set, done)));
            }
        };
        for v in 0..bytes.len() {
            if set >> v & 1 == 1 {
                reach(cost, set & !(1 << v), done);
            }
        }
        for (t, task) in problem.tasks().iter() {
            let bit = 1u32 << t.as_u32();
            let first = done & bit == 0;
            let in_order = order == Order::Free || !first || done == bit - 1;
            let (inputs, outputs) = (bits(&task.inputs), bits(&task.outputs));
            if !in_order
                || (!first && !task.rerunnable)
                || set & inputs != inputs
                || set & outputs != 0
            {
                continue;
            }
            let gone = task
                .overwrites
                .iter()
                .fold(0u32, |s, o| s | 1 << o.input.as_u32());
            let after = (set & !gone) | outputs;
            if used(after) + task.modes[0].workspace <= capacity {
                reach(cost + task.modes[0].seconds as u64, after, done | bit);
            }
        }
    }
    None
}
