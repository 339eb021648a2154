//! Several devices side by side: bits depend neither on where tasks run, if all devices have the same arithmetic,
//! nor on when copies take place.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{
    Case, beside_a_host, gpus, on_devices, onednn, place, set_inputs, small_net, swapped,
};
use scrimp_graph::{Binary, DType, Graph, GraphBuilder, Op, Optimizer, Role, Unary};
use scrimp_plan::testing::{Unstructured, plan as random_plan, random_bytes};
use scrimp_plan::{CheckedPlan, DeviceId, Plan, Problem, Sequence, Step, ValueId, check};
use scrimp_run::{
    Compiled, Cpu, Data, Executor, ExecutorOptions, Gpu, Processor, RunError, RunEvent, StepTrace,
    interpret,
};
use std::collections::HashMap;

const MOMENTUM: Optimizer = Optimizer::Sgd {
    momentum: 0.9,
    weight_decay: 0.01,
};

/// A small network of operators chosen at random.
fn random_net(seed: u64) -> Graph {
    let mut draws = random_bytes(seed, 64).into_iter();
    let mut draw = |below: usize| usize::from(draws.next().unwrap()) % below;
    let mut b = GraphBuilder::new("random");
    let mut all = vec![b.input("x", &[6, 16], DType::F32).unwrap()];
    for k in 0..5 + draw(8) {
        let (x, y) = (all[draw(all.len())], all[all.len() - 1]);
        let name = format!("n{k}");
        all.push(match draw(6) {
            0 | 1 => b.linear(&name, y, 16, true).unwrap(),
            2 => b.unary(&name, Unary::Gelu, y).unwrap(),
            3 => b.binary(&name, Binary::Add, x, y).unwrap(),
            4 => b.binary(&name, Binary::Mul, x, y).unwrap(),
            _ => b.dropout(&name, y, 0.25).unwrap(),
        });
    }
    let y = b.linear("last", all[all.len() - 1], 10, true).unwrap();
    b.output(y);
    b.finish().unwrap()
}

fn options(delays: Option<u64>) -> ExecutorOptions<'static> {
    ExecutorOptions {
        seed: 5,
        poison: true,
        delays,
        ..ExecutorOptions::default()
    }
}

/// The losses of three steps, and the parameters and state after them.
fn results(
    case: &Case,
    compiled: &[Compiled<'_>],
    plan: &CheckedPlan,
    delays: Option<u64>,
) -> Vec<Vec<u8>> {
    let layout = place(plan);
    let mut executor = Executor::new(compiled, &case.lowered, &layout, options(delays)).unwrap();
    let mut results = Vec::new();
    for step in 0..3 {
        set_inputs(case.graph(), &mut executor, step);
        let trace = executor.step(None).unwrap();
        for device in plan.problem().devices().keys() {
            assert_eq!(trace.in_use[device], plan.profile(device), "{device}");
        }
        let runs = plan.steps().iter().enumerate();
        let runs = runs.filter(|(_, step)| matches!(step, Step::Run { .. }));
        let traced = trace.runs.iter().map(|run| run.step);
        assert!(runs.map(|(step, _)| step).eq(traced));
        results.push(executor.bytes(case.training.loss).unwrap().into_owned());
    }
    let kept = case.graph().given();
    let kept = kept.filter(|(_, what)| matches!(what.role, Role::Parameter(_) | Role::State(_)));
    results.extend(kept.map(|(tensor, _)| executor.bytes(tensor).unwrap().into_owned()));
    results
}

/// A random plan.
fn drawn(problem: &Problem, seed: u64) -> CheckedPlan {
    let bytes = random_bytes(seed, 4096);
    let plan = random_plan(&mut Unstructured::new(&bytes), problem).unwrap();
    check(problem, plan).unwrap()
}

/// The same first runs on the same devices, with nothing computed again and nothing freed but what no task
/// reads any more.
fn placed_alike(plan: &CheckedPlan) -> CheckedPlan {
    let problem = plan.problem();
    let first = |task| {
        let mut steps = plan.steps().iter();
        steps.find_map(|step| match *step {
            Step::Run { task: ran, device } if ran == task => Some(device),
            _ => None,
        })
    };
    let order = problem.tasks().keys();
    let order = order.map(|task| (task, first(task).unwrap()));
    let plan = Sequence::placed(problem, order).plan(problem);
    check(problem, plan.unwrap()).unwrap()
}

fn on<'a>(case: &'a Case, cpus: &[&'a Cpu]) -> Vec<Compiled<'a>> {
    let compiled = cpus.iter().map(|cpu| case.compiled(cpu));
    compiled.collect()
}

#[test]
fn equal_devices_give_equal_bits_wherever_tasks_run() {
    let cpus = [(); 3].map(|()| Cpu::new(1).unwrap());
    let (mut copies, mut moved) = (0, 0);
    for seed in 0..24 {
        let graph = random_net(seed);
        let case = Case::new(&graph, Some(MOMENTUM), &cpus[0]);
        let count = 2 + seed as usize % 2;
        let compiled = on(&case, &cpus.each_ref()[..count]);
        let alone = results(&case, &compiled[..1], &case.keep_all(), None);
        let problem = on_devices(&case, &compiled);
        let plan = drawn(&problem, seed);
        for step in plan.steps() {
            copies += usize::from(matches!(step, Step::Copy { .. }));
            moved += usize::from(matches!(step, Step::Run { device, .. } if device.as_u32() > 0));
        }
        let found = results(&case, &compiled, &plan, Some(seed));
        assert!(found == alone, "seed {seed}");
    }
    assert!(copies > 1000 && moved > 500, "{copies} {moved}");
}

#[test]
fn different_devices_give_the_bits_of_the_same_placement() {
    let Some(library) = onednn(1) else {
        return;
    };
    let own = Cpu::new(2).unwrap();
    let case = Case::new(&small_net(), Some(MOMENTUM), &own);
    for (cpus, seeds) in [([&library, &own], 0..4), ([&own, &library], 4..8)] {
        let compiled = on(&case, &cpus);
        let problem = on_devices(&case, &compiled);
        for seed in seeds {
            let plan = drawn(&problem, seed);
            let kept = placed_alike(&plan);
            assert!(kept.recomputed() == 0);
            let expected = results(&case, &compiled, &kept, None);
            let found = results(&case, &compiled, &plan, Some(seed));
            assert!(found == expected, "seed {seed}");
        }
    }
}

/// Forward on the first device, backward on the second.
fn halves(problem: &Problem) -> CheckedPlan {
    let devices: Vec<DeviceId> = problem.devices().keys().collect();
    let half = problem.tasks().len() / 2;
    let order = problem.tasks().keys().enumerate();
    let order = order.map(|(k, task)| (task, devices[usize::from(k >= half)]));
    let plan = Sequence::placed(problem, order).plan(problem);
    check(problem, plan.unwrap()).unwrap()
}

#[test]
fn a_device_that_fails_ends_the_step_for_all() {
    let cpus = [(); 2].map(|()| Cpu::new(1).unwrap());
    let case = Case::new(&random_net(1), Some(MOMENTUM), &cpus[0]);
    let compiled = on(&case, &cpus.each_ref());
    let plan = halves(&on_devices(&case, &compiled));
    let layout = place(&plan);
    let expected = results(&case, &compiled, &plan, None);
    let mut executor = Executor::new(&compiled, &case.lowered, &layout, options(None)).unwrap();
    // A kernel refuses its data.
    set_inputs(case.graph(), &mut executor, 0);
    let mut given = case.graph().given();
    let (labels, _) = given
        .find(|(_, what)| what.dtype == DType::I64 && what.role == Role::Input)
        .unwrap();
    let wrong = vec![99; case.graph().tensor(labels).elements()];
    executor.set(labels, Data::I64(&wrong)).unwrap();
    let error = executor.step(None).unwrap_err();
    assert!(error.to_string().contains("99"), "{error}");
    assert!(executor.read(case.training.loss).is_err());
    // A thread panics.
    for device in [0, 1] {
        let mut executor = Executor::new(&compiled, &case.lowered, &layout, options(None)).unwrap();
        set_inputs(case.graph(), &mut executor, 0);
        let mut observer = |event: &RunEvent<'_>| {
            assert!(event.device.as_u32() != device, "out of order");
        };
        let error = executor.step(Some(&mut observer)).unwrap_err();
        let RunError::Panicked { who, reason } = &error else {
            panic!("{error}");
        };
        assert!(
            who.contains("cpu") && reason.contains("out of order"),
            "{error}"
        );
    }
    // Another executor isn't affected.
    assert!(results(&case, &compiled, &plan, None) == expected);
}

#[test]
fn a_plan_for_other_devices_is_refused() {
    let cpus = [(); 2].map(|()| Cpu::new(1).unwrap());
    let case = Case::new(&random_net(1), None, &cpus[0]);
    let compiled = on(&case, &cpus.each_ref());
    let plan = halves(&on_devices(&case, &compiled));
    for compiled in [&compiled[..1], &[]] {
        let refused = Executor::new(compiled, &case.lowered, &place(&plan), options(None));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("run on 2 devices"), "{refused}");
    }
}

/// Whether results are close to each other, float by float.
fn close(found: &[Vec<u8>], expected: &[Vec<u8>]) {
    let floats = |bytes: &[u8]| -> Vec<f32> {
        let (floats, _) = bytes.as_chunks();
        floats.iter().copied().map(f32::from_ne_bytes).collect()
    };
    for (found, expected) in found.iter().zip(expected) {
        for (found, expected) in floats(found).into_iter().zip(floats(expected)) {
            let bound = 1e-3 * expected.abs().max(1.0);
            assert!(
                (found - expected).abs() <= bound,
                "{found} instead of {expected}"
            );
        }
    }
}

#[test]
fn a_gpu_swaps_to_memory() {
    gpus().for_each(|device| swaps_to_memory(&device));
}

fn swaps_to_memory(device: &Gpu) {
    let cpu = Cpu::new(1).unwrap();
    let case = Case::new(&small_net(), Some(MOMENTUM), &cpu);
    let compiled = [Compiled::new(case.graph(), Processor::Gpu(device))];
    let alone = on_devices(&case, &compiled);
    let keep = Plan::keep_all(&alone, alone.sole_device().unwrap()).unwrap();
    let keep = check(&alone, keep).unwrap();
    let expected = results(&case, &compiled, &keep, None);
    close(
        &expected,
        &results(&case, &on(&case, &[&cpu]), &case.keep_all(), None),
    );
    for seed in 0..3 {
        assert!(
            results(&case, &compiled, &drawn(&alone, seed), None) == expected,
            "seed {seed}"
        );
    }
    let (problem, devices) = beside_a_host(&alone);
    let away = swapped(&keep, &problem, devices);
    assert!(away.profile(devices[0]).iter().max() < keep.profile(devices[0]).iter().max());
    for delays in [None, Some(1)] {
        assert!(results(&case, &compiled, &away, delays) == expected);
    }
    let layout = place(&away);
    let mut executor = Executor::new(&compiled, &case.lowered, &layout, options(None)).unwrap();
    set_inputs(case.graph(), &mut executor, 0);
    in_order(&away, executor.step(None).unwrap());
}

/// By the device's clock, nothing begins before what it reads is written.
fn in_order(plan: &CheckedPlan, trace: &StepTrace) {
    // A value on a device, and when it was there.
    let mut written: HashMap<(ValueId, DeviceId), f64> = HashMap::new();
    let (mut runs, mut copies) = (trace.runs.iter(), trace.copies.iter());
    let mut waited = 0;
    for step in plan.steps() {
        let (reads, writes, start, seconds) = match *step {
            Step::Free { .. } => continue,
            Step::Run { task, device } => {
                let (what, run) = (plan.problem().task(task), runs.next().unwrap());
                let on = |values: &[ValueId]| values.iter().map(|&v| (v, device)).collect();
                let (reads, writes): (Vec<_>, Vec<_>) = (on(&what.inputs), on(&what.outputs));
                (reads, writes, run.start, run.seconds)
            }
            Step::Copy { value, from, to } => {
                let copy = copies.next().unwrap();
                (
                    vec![(value, from)],
                    vec![(value, to)],
                    copy.start,
                    copy.seconds,
                )
            }
        };
        for read in reads {
            let there = written.get(&read).copied().unwrap_or(0.0);
            assert!(
                there <= start + 1e-9,
                "{step:?} began at {start}, not after {there}"
            );
            waited += usize::from(there > 0.0);
        }
        written.extend(writes.into_iter().map(|write| (write, start + seconds)));
    }
    assert!(waited > 50, "{waited}");
}

/// What a device says to an operator on integers that lie outside of what they index.
fn refusal(device: &Gpu, op: Op, inputs: &[(&[usize], DType)]) -> String {
    let mut b = GraphBuilder::new("indices");
    let input = |(i, &(shape, dtype))| b.input(&format!("x{i}"), shape, dtype).unwrap();
    let given: Vec<_> = inputs.iter().enumerate().map(input).collect();
    let outputs = b.add("op", op, &given).unwrap();
    outputs.into_iter().for_each(|output| b.output(output));
    let graph = b.finish().unwrap();
    let integers = given
        .iter()
        .zip(inputs)
        .filter(|(_, input)| input.1 == DType::I64);
    let wrong = [1, 99, 2, -1_000_000_000_000];
    let data: Vec<_> = integers.map(|(&x, _)| (x, Data::I64(&wrong))).collect();
    let compiled = Compiled::new(&graph, Processor::Gpu(device));
    interpret(&compiled, &data, 1).err().unwrap().to_string()
}

#[test]
fn a_gpu_refuses_indices_out_of_range() {
    gpus().for_each(|device| refuses_indices_out_of_range(&device));
}

fn refuses_indices_out_of_range(device: &Gpu) {
    let (table, at) = ((&[5, 3][..], DType::F32), (&[4][..], DType::I64));
    let (rows, number) = ((&[4, 3][..], DType::F32), (&[][..], DType::F32));
    let shape = vec![5, 3];
    for (op, inputs) in [
        (Op::Gather { axis: 0 }, vec![table, at]),
        (Op::GatherGrad { axis: 0, shape }, vec![at, rows]),
        (Op::CrossEntropy, vec![rows, at]),
        (Op::CrossEntropyGrad, vec![rows, at, number]),
    ] {
        let refusal = refusal(device, op, &inputs);
        assert!(refusal.contains("99"), "{refusal}");
    }
}

#[test]
fn a_gpu_and_a_cpu_share_a_step() {
    gpus().for_each(|device| shares_a_step_with_a_cpu(&device));
}

fn shares_a_step_with_a_cpu(device: &Gpu) {
    let cpu = Cpu::new(1).unwrap();
    let case = Case::new(&small_net(), Some(MOMENTUM), &cpu);
    let [on_cpu, on_device] = [Processor::Cpu(&cpu), Processor::Gpu(device)];
    for (processors, seeds) in [([on_cpu, on_device], 0..2), ([on_device, on_cpu], 2..4)] {
        let compiled = processors.map(|processor| Compiled::new(case.graph(), processor));
        let problem = on_devices(&case, &compiled);
        for seed in seeds {
            let plan = drawn(&problem, seed);
            let expected = results(&case, &compiled, &placed_alike(&plan), None);
            assert!(
                results(&case, &compiled, &plan, Some(seed)) == expected,
                "seed {seed}"
            );
        }
    }
}
