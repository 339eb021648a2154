//! Plans with copies, executed: a device that computes beside a memory that doesn't. On the null processor
//! everything is counted and nothing computed; on the CPU both memories are real.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Case, beside_a_host, estimate_with, hash, place, set_inputs, small_net, swapped};
use cranelift_entity::SecondaryMap;
use scrimp_graph::{
    Binary, DType, Graph, GraphBuilder, Lowered, NodeId, Optimizer, TensorId, Unary, lower,
};
use scrimp_plan::{CheckedPlan, DeviceId, Keep, Phase, Plan, Problem, Step, TaskId, check};
use scrimp_run::{
    Compiled, Cpu, Data, Executor, ExecutorOptions, Processor, RunError, StepTrace, interpret,
};

const OPTIONS: ExecutorOptions<'_> = ExecutorOptions {
    seed: 5,
    arena_bytes: 0,
    poison: true,
    files: &[],
    delays: None,
};

/// What was counted is what the checker proved, step by step in each memory; copies took place in the
/// plan's order.
fn agrees(trace: &StepTrace, plan: &CheckedPlan) {
    for device in plan.problem().devices().keys() {
        assert_eq!(trace.in_use[device], plan.profile(device), "{device}");
    }
    let copies = plan.steps().iter().enumerate();
    let copies = copies.filter_map(|(k, step)| match *step {
        Step::Copy { value, from, to } => Some((k, value, plan.problem().link_between(from, to))),
        _ => None,
    });
    let traced = trace.copies.iter();
    let traced = traced.map(|copy| (copy.step, copy.value, Some(copy.link)));
    assert!(copies.eq(traced), "{:?}", trace.copies);
}

/// Three operators, the last of which overwrites the result of the second.
fn sum_of_two() -> Graph {
    let mut b = GraphBuilder::new("sum");
    let x = b.input("x", &[4, 100], DType::F32).unwrap();
    let a = b.unary("a", Unary::Exp, x).unwrap();
    let b1 = b.unary("b", Unary::Tanh, a).unwrap();
    let c = b.binary("c", Binary::Add, b1, a).unwrap();
    b.output(c);
    b.finish().unwrap()
}

/// Sends values away and brings them back, makes one again instead of bringing it, overwrites one that was
/// brought, and leaves the output beside the device.
fn written_by_hand(graph: &Graph, lowered: &Lowered) -> (CheckedPlan, [DeviceId; 2]) {
    let (problem, [device, host]) = beside_a_host(&lowered.problem);
    let mut parts = problem.parts();
    for value in parts.values.values_mut() {
        if value.keep != Keep::No {
            value.keep = Keep::Anywhere;
        }
    }
    let problem = Problem::new(parts).unwrap();
    let value = |name: &str| lowered.values[graph.find(name).unwrap()].unwrap();
    let [x, a, b, c] = ["x", "a", "b", "c"].map(value);
    let run = |task| Step::Run {
        task: TaskId::from_u32(task),
        device,
    };
    let free = |value, device| Step::Free { value, device };
    let away = |value| Step::Copy {
        value,
        from: device,
        to: host,
    };
    let back = |value| Step::Copy {
        value,
        from: host,
        to: device,
    };
    let steps = vec![
        run(0),
        away(x),
        free(x, device),
        run(1),
        away(b),
        free(b, device),
        away(a),
        free(a, device),
        free(b, host),
        // Nothing but copies beside the device: the first operator again, and so on.
        back(x),
        run(0),
        free(x, device),
        free(x, host),
        run(1),
        free(a, device),
        back(a),
        free(a, host),
        run(2),
        free(a, device),
        away(c),
        free(c, device),
    ];
    let task = problem.task(TaskId::from_u32(2));
    assert_eq!(task.overwrites.len(), 1, "the sum takes over an operand");
    (check(&problem, Plan { steps }).unwrap(), [device, host])
}

#[test]
fn a_plan_written_by_hand_is_executed_step_by_step() {
    let (graph, cpu) = (sum_of_two(), Cpu::new(1).unwrap());
    let x = graph.find("x").unwrap();
    let data: Vec<f32> = (0..400).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect();
    for processor in [Processor::Null, Processor::Cpu(&cpu)] {
        let compiled = Compiled::new(&graph, processor);
        let phases = SecondaryMap::with_default(Phase::Forward);
        let lowered = lower(&graph, &phases, &estimate_with(&compiled), "cpu").unwrap();
        let (plan, [device, host]) = written_by_hand(&graph, &lowered);
        let layout = place(&plan);
        let mut executor =
            Executor::new(std::slice::from_ref(&compiled), &lowered, &layout, OPTIONS).unwrap();
        for _ in 0..2 {
            assert!(executor.step(None).is_err(), "x has to be set");
            executor.set(x, Data::F32(&data)).unwrap();
            let trace = executor.step(None).unwrap();
            agrees(trace, &plan);
            assert_eq!((trace.runs.len(), trace.copies.len()), (5, 6));
            // Two at a time where they are computed; x, b and a beside it.
            let most = |device| trace.in_use[device].iter().max().copied();
            assert_eq!((most(device), most(host)), (Some(2 * 1600), Some(3 * 1600)));
        }
        let output = graph.outputs()[0];
        match processor {
            Processor::Null => assert!(executor.bytes(output).is_err(), "nothing was computed"),
            _ => {
                let expected = interpret(&compiled, &[(x, Data::F32(&data))], 5).unwrap();
                assert_eq!(executor.bytes(output).unwrap(), expected.bytes(output));
            }
        }
    }
}

/// Hashes of what every run wrote in two steps.
fn bits(case: &Case, plan: &CheckedPlan, processor: Processor<'_>) -> Vec<(NodeId, TensorId, u64)> {
    let compiled = Compiled::new(case.graph(), processor);
    let layout = place(plan);
    let mut executor = Executor::new(
        std::slice::from_ref(&compiled),
        &case.lowered,
        &layout,
        OPTIONS,
    )
    .unwrap();
    let mut bits = Vec::new();
    for step in 0..2 {
        set_inputs(case.graph(), &mut executor, step);
        let mut observer = |event: &scrimp_run::RunEvent<'_>| {
            let outputs = event.outputs();
            bits.extend(
                outputs
                    .map(|(tensor, output)| (event.node, tensor, hash(&output.bytes().unwrap()))),
            );
        };
        agrees(executor.step(Some(&mut observer)).unwrap(), plan);
    }
    bits
}

#[test]
fn a_training_step_that_swaps_gives_the_same_bits() {
    let cpu = Cpu::new(2).unwrap();
    let adam = Optimizer::Adam {
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
    };
    let case = Case::new(&small_net(), Some(adam), &cpu);
    let base = case.keep_all();
    let (problem, [device, host]) = beside_a_host(&case.lowered.problem);
    let plan = swapped(&base, &problem, [device, host]);
    let copies = plan.steps().iter();
    let copies = copies.filter(|step| matches!(step, Step::Copy { .. }));
    assert!(
        copies.count() > 20,
        "most activations wait for the backward pass"
    );
    assert!(plan.peak(device) < base.peak(device) && plan.peak(host) > 0);
    let without = bits(&case, &base, Processor::Cpu(&cpu));
    assert!(!without.is_empty());
    assert_eq!(without, bits(&case, &plan, Processor::Cpu(&cpu)));
    assert!(bits(&case, &plan, Processor::Null).is_empty());
}

#[test]
fn what_only_counts_takes_no_memory() {
    let cpu = Cpu::new(1).unwrap();
    let case = Case::new(&small_net(), None, &cpu);
    let layout = place(&case.keep_all());
    let options = ExecutorOptions {
        arena_bytes: 1 << 60,
        ..OPTIONS
    };
    let null = Compiled::new(case.graph(), Processor::Null);
    let mut executor =
        Executor::new(std::slice::from_ref(&null), &case.lowered, &layout, options).unwrap();
    assert_eq!(executor.arena_bytes(), 1 << 60);
    set_inputs(case.graph(), &mut executor, 0);
    let trace = executor.step(None).unwrap();
    assert_eq!(trace.runs.len(), case.lowered.nodes.len());
    let real = case.compiled(&cpu);
    let error =
        Executor::new(std::slice::from_ref(&real), &case.lowered, &layout, options).unwrap_err();
    assert_eq!(error, RunError::OutOfMemory { bytes: 1 << 60 });
}
