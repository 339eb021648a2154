//! Planned execution gives the bits of execution without a plan: every run of every task, whatever
//! was recomputed, overwritten or freed, with freed and fresh memory full of NaN.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Case, estimate_with, hash, network, onednn, place, set_inputs, small_net};
use cranelift_entity::SecondaryMap;
use scrimp_graph::networks::NetworkOptions;
use scrimp_graph::{Graph, Optimizer, Role, inference, lower};
use scrimp_plan::{CheckedPlan, Phase, Plan, TaskId, check};
use scrimp_run::{Compiled, Cpu, Data, Executor, ExecutorOptions, Processor, RunError, interpret};
use std::collections::HashMap;

const SGD: Optimizer = Optimizer::Sgd {
    momentum: 0.9,
    weight_decay: 1e-3,
};
const ADAM: Optimizer = Optimizer::Adam {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.0,
};

/// Hashes of all outputs by step and task, and the losses.
type Bits = (HashMap<(usize, TaskId), Vec<u64>>, Vec<f32>);

/// Three steps; a task that runs again must write the same bits again.
fn execute(case: &Case, plan: &CheckedPlan, cpu: &Cpu) -> Bits {
    let layout = place(plan);
    let device = case.lowered.problem.sole_device().unwrap();
    let options = ExecutorOptions {
        seed: 5,
        poison: true,
        ..ExecutorOptions::default()
    };
    let graph = case.graph();
    let compiled = case.compiled(cpu);
    let mut executor = Executor::new(
        std::slice::from_ref(&compiled),
        &case.lowered,
        &layout,
        options,
    )
    .unwrap();
    let mut seen = HashMap::new();
    let mut losses = Vec::new();
    for step in 0..3 {
        set_inputs(graph, &mut executor, step);
        let mut count = 0;
        let mut observer = |event: &scrimp_run::RunEvent<'_>| {
            let bits: Vec<u64> = event
                .outputs()
                .map(|(_, output)| hash(&output.bytes().unwrap()))
                .collect();
            let first = seen
                .entry((step, event.task))
                .or_insert_with(|| bits.clone());
            assert_eq!(
                *first,
                bits,
                "{} differs when run again",
                graph.node(event.node).name
            );
            count += usize::from(event.again);
        };
        let trace = executor.step(Some(&mut observer)).unwrap();
        assert_eq!(trace.in_use[device], plan.profile(device));
        assert_eq!(
            trace.runs.len(),
            case.lowered.nodes.len() + plan.recomputed()
        );
        assert_eq!(count, plan.recomputed());
        losses.push(executor.read(case.training.loss).unwrap()[0]);
    }
    assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    (seen, losses)
}

/// Plans that recompute give the bits of the plan that keeps everything, which are returned.
fn plans_agree(graph: &Graph, optimizer: Option<Optimizer>, cpu: &Cpu) -> Bits {
    let case = Case::new(graph, optimizer, cpu);
    let base = execute(&case, &case.keep_all(), cpu);
    let all = case.recompute(|_| false);
    let some = case.recompute(|task| task.as_u32() % 3 == 0);
    assert!(all.recomputed() > some.recomputed() && some.recomputed() > 0);
    for plan in [all, some] {
        let planned = execute(&case, &plan, cpu);
        assert_eq!(base.1, planned.1, "losses differ");
        assert_eq!(base.0, planned.0, "some task's output differs");
    }
    base
}

fn compare(graph: &Graph, optimizer: Option<Optimizer>) {
    let base = plans_agree(graph, optimizer, &Cpu::new(2).unwrap());
    // One thread and five give the same bits as two.
    for threads in [1, 5] {
        let cpu = Cpu::new(threads).unwrap();
        let case = Case::new(graph, optimizer, &cpu);
        assert_eq!(
            base,
            execute(&case, &case.keep_all(), &cpu),
            "{threads} threads differ"
        );
    }
}

#[test]
fn a_small_network_of_everything() {
    compare(&small_net(), Some(SGD));
    compare(&small_net(), Some(ADAM));
    compare(&small_net(), None);
}

fn small_transformer() -> Graph {
    let options = NetworkOptions {
        batch: 2,
        layers: Some(2),
        width: Some(32),
        heads: Some(4),
        sequence: Some(24),
        vocabulary: Some(50),
        dropout: Some(0.1),
        ..NetworkOptions::default()
    };
    network("transformer", options)
}

fn small_u_net() -> Graph {
    let options = NetworkOptions {
        batch: 2,
        image: Some([16, 16]),
        classes: Some(10),
        width: Some(12),
        ..NetworkOptions::default()
    };
    network("unet", options)
}

#[test]
fn a_transformer() {
    compare(&small_transformer(), Some(ADAM));
}

#[test]
fn a_u_net() {
    compare(&small_u_net(), Some(SGD));
}

/// The bits depend on the number of threads there, but not on the plan.
#[test]
fn the_same_with_onednn() {
    for threads in [1, 3] {
        let Some(cpu) = onednn(threads) else {
            return;
        };
        plans_agree(&small_net(), Some(SGD), &cpu);
        plans_agree(&small_transformer(), Some(ADAM), &cpu);
        plans_agree(&small_u_net(), Some(SGD), &cpu);
    }
}

#[test]
fn training_lowers_the_loss_and_agrees_with_the_interpreter() {
    let cpu = Cpu::new(2).unwrap();
    let graph = network(
        "digits",
        NetworkOptions {
            batch: 16,
            ..NetworkOptions::default()
        },
    );
    let case = Case::new(&graph, Some(SGD), &cpu);
    let plan = case.recompute(|task| task.as_u32() % 2 == 0);
    let layout = place(&plan);
    let options = ExecutorOptions {
        seed: 1,
        poison: false,
        ..ExecutorOptions::default()
    };
    let compiled = case.compiled(&cpu);
    let mut executor = Executor::new(
        std::slice::from_ref(&compiled),
        &case.lowered,
        &layout,
        options,
    )
    .unwrap();
    let mut losses = Vec::new();
    for _ in 0..8 {
        set_inputs(case.graph(), &mut executor, 0);
        executor.step(None).unwrap();
        losses.push(executor.read(case.training.loss).unwrap()[0]);
    }
    assert!(losses[7] < 0.5 * losses[0], "{losses:?}");

    let elements = |name: &str| {
        case.graph()
            .tensor(case.graph().find(name).unwrap())
            .elements()
    };
    let image: Vec<f32> = (0..elements("input"))
        .map(|i| ((i * 7919) % 1009) as f32 / 504.0 - 1.0)
        .collect();
    let labels: Vec<i64> = (0..elements("labels"))
        .map(|i| (i * 7 % 10) as i64)
        .collect();
    let inputs = [
        (case.graph().find("input").unwrap(), Data::F32(&image)),
        (case.graph().find("labels").unwrap(), Data::I64(&labels)),
    ];
    let tensors = interpret(&compiled, &inputs, 1).unwrap();
    assert_eq!(
        tensors.floats(case.graph(), case.training.loss)[0] as f32,
        losses[0]
    );
}

#[test]
fn tensors_come_and_go_piece_by_piece() {
    for cpu in [Some(Cpu::new(1).unwrap()), onednn(1)]
        .into_iter()
        .flatten()
    {
        // Weights larger than a piece, in oneDNN's blocks where it is installed.
        let options = NetworkOptions {
            batch: 1,
            image: Some([32, 32]),
            ..NetworkOptions::default()
        };
        let case = Case::new(&network("resnet18", options), Some(SGD), &cpu);
        let layout = place(&case.keep_all());
        let graph = case.graph();
        let compiled = case.compiled(&cpu);
        let options = ExecutorOptions::default();
        let mut executor = Executor::new(
            std::slice::from_ref(&compiled),
            &case.lowered,
            &layout,
            options,
        )
        .unwrap();
        let (tensor, what) = graph
            .given()
            .filter(|(_, what)| matches!(what.role, Role::Parameter(_)))
            .max_by_key(|(_, what)| what.elements())
            .unwrap();
        let count = what.elements();
        let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
        let mut rest = &values[..];
        let next = &mut |piece: &mut [f32]| -> Result<(), RunError> {
            piece.copy_from_slice(
                rest.split_off(..piece.len())
                    .expect("no more than there are"),
            );
            Ok(())
        };
        executor.set_pieces(tensor, next).unwrap();
        assert!(rest.is_empty());
        assert_eq!(executor.read(tensor).unwrap(), values);
        let part = count / 3..count - 5;
        let mut read = Vec::new();
        let take = &mut |piece: &[f32]| -> Result<(), RunError> {
            read.extend_from_slice(piece);
            Ok(())
        };
        executor.read_pieces(tensor, part.clone(), take).unwrap();
        assert_eq!(read, values[part]);
        executor.set(tensor, Data::F32(&values)).unwrap();
        assert_eq!(executor.read(tensor).unwrap(), values);
        let nothing = &mut |_: &[f32]| -> Result<(), RunError> { Ok(()) };
        assert!(executor.read_pieces(tensor, 0..count + 1, nothing).is_err());
        let labels = graph.find("labels").unwrap();
        let zeros = &mut |_: &mut [f32]| -> Result<(), RunError> { Ok(()) };
        assert!(executor.set_pieces(labels, zeros).is_err(), "integers");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let cpu = Cpu::new(1).unwrap();
    let case = Case::new(&small_net(), Some(SGD), &cpu);
    let (graph, lowered) = (case.graph(), &case.lowered);
    let layout = place(&case.keep_all());
    let options = ExecutorOptions::default();
    // More threads need more workspace than was planned.
    let many = Cpu::new(4).unwrap();
    let compiled = case.compiled(&many);
    let error =
        Executor::new(std::slice::from_ref(&compiled), lowered, &layout, options).unwrap_err();
    assert!(
        matches!(error, RunError::WrongPlan { .. }) && error.to_string().contains("workspace"),
        "{error}"
    );

    let compiled = case.compiled(&cpu);
    let mut executor =
        Executor::new(std::slice::from_ref(&compiled), lowered, &layout, options).unwrap();
    let error = executor.step(None).unwrap_err();
    assert!(error.to_string().contains("must be set"), "{error}");
    assert!(
        executor.read(case.training.loss).is_err(),
        "nothing has been computed yet"
    );
    set_inputs(graph, &mut executor, 0);
    executor.step(None).unwrap();
    executor.read(case.training.loss).unwrap();
    let param = case.training.updates[0];
    assert_eq!(
        executor.read(param.0).unwrap(),
        executor.read(param.1).unwrap()
    );
    set_inputs(graph, &mut executor, 1);
    assert!(
        executor.read(case.training.loss).is_err(),
        "setting an input may overwrite outputs"
    );
    assert!(
        executor.read(case.training.predictions.unwrap()).is_err(),
        "predictions aren't kept"
    );

    let labels = graph.find("labels").unwrap();
    executor.set(labels, Data::I64(&[10; 4])).unwrap();
    let error = executor.step(None).unwrap_err();
    assert!(error.to_string().contains("index 10"), "{error}");
    assert!(executor.set(labels, Data::F32(&[1.0; 4])).is_err());
    assert!(executor.set(case.training.loss, Data::F32(&[1.0])).is_err());
}

#[test]
fn the_arena_is_as_large_as_asked() {
    let cpu = Cpu::new(1).unwrap();
    let case = Case::new(&small_net(), Some(SGD), &cpu);
    let base = case.keep_all();
    let device = case.lowered.problem.sole_device().unwrap();
    let layout = place(&base);
    let needed = layout.arena_bytes(device);
    let compiled = case.compiled(&cpu);
    for (asked, expected) in [(0, needed), (2 * needed, 2 * needed)] {
        let options = ExecutorOptions {
            arena_bytes: asked,
            ..ExecutorOptions::default()
        };
        let executor = Executor::new(
            std::slice::from_ref(&compiled),
            &case.lowered,
            &layout,
            options,
        )
        .unwrap();
        assert_eq!(executor.arena_bytes(), expected);
    }
}

#[test]
fn inference_runs_in_an_arena_too() {
    let cpu = Cpu::new(2).unwrap();
    let graph = inference(&network(
        "digits",
        NetworkOptions {
            batch: 4,
            ..NetworkOptions::default()
        },
    ))
    .unwrap();
    let compiled = Compiled::new(&graph, Processor::Cpu(&cpu));
    let lowered = lower(
        &graph,
        &SecondaryMap::with_default(Phase::Forward),
        &estimate_with(&compiled),
        "cpu",
    )
    .unwrap();
    let device = lowered.problem.sole_device().unwrap();
    let plan = check(
        &lowered.problem,
        Plan::keep_all(&lowered.problem, device).unwrap(),
    )
    .unwrap();
    let options = ExecutorOptions {
        seed: 2,
        poison: true,
        ..ExecutorOptions::default()
    };
    let layout = place(&plan);
    let mut executor =
        Executor::new(std::slice::from_ref(&compiled), &lowered, &layout, options).unwrap();
    let input = graph.find("input").unwrap();
    for round in 0..2 {
        let image: Vec<f32> = (0..4 * 64)
            .map(|i| ((i + round) % 17) as f32 / 16.0)
            .collect();
        executor.set(input, Data::F32(&image)).unwrap();
        let trace = executor.step(None).unwrap();
        assert_eq!(trace.in_use[device], plan.profile(device));
        let tensors = interpret(&compiled, &[(input, Data::F32(&image))], 2).unwrap();
        for &output in graph.outputs() {
            assert_eq!(executor.bytes(output).unwrap(), tensors.bytes(output));
        }
    }
}
