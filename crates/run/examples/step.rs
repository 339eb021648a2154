//! Where the time of a built-in network's training step goes: `step NETWORK BATCH THREADS [STEPS
//! [native|onednn|opencl:N|cuda:N[@vendor] [shapes]]]` runs steps without a plan and prints each kind of operator's processor
//! time, the median over the steps after the first; `shapes` tells operators of different shapes apart.
//! Processor time, unlike the clock's, hardly depends on what else the machine does. On a GPU it is the time by the
//! device's clock.

#![allow(clippy::print_stdout, reason = "an example prints")]

use scrimp_graph::networks::{NetworkOptions, build};
use scrimp_graph::{Costs, DType, Graph, Loss, NodeId, Optimizer, Role, lower, train};
use scrimp_plan::{Plan, check, check_layout};
use scrimp_run::{
    Compiled, Cpu, Data, Executor, ExecutorOptions, Gpu, Interface, Library, Processor, RunEvent,
};
use std::collections::BTreeMap;

#[allow(unsafe_code, reason = "the environment is set up")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    // SAFETY: there is no other thread yet.
    unsafe { scrimp_run::wait_briefly() };
    let args: Vec<String> = std::env::args().collect();
    let (name, batch, threads) = (&args[1], args[2].parse()?, args[3].parse()?);
    let steps = args.get(4).map_or(Ok(4), |steps| steps.parse())?;
    let options = NetworkOptions {
        batch,
        ..NetworkOptions::default()
    };
    let graph = build(name, &options)?;
    let sgd = Optimizer::Sgd {
        momentum: 0.0,
        weight_decay: 0.0,
    };
    let training = train(&graph, Loss::CrossEntropy, Some(sgd))?;
    let graph = &training.graph;
    let kernels = args.get(5).map_or("native", String::as_str);
    let library = match kernels {
        "onednn" => Library::OneDnn,
        _ => Library::Native,
    };
    let by_shape = args.get(6).is_some();
    let cpu = Cpu::with_library(threads, library)?;
    let gpu = Interface::ALL.into_iter().find_map(|interface| {
        let number = kernels.strip_prefix(interface.word())?.strip_prefix(':')?;
        let vendor = number.strip_suffix("@vendor");
        Some((interface, vendor.unwrap_or(number), vendor.is_some()))
    });
    let device = match gpu {
        None => None,
        Some((interface, number, vendor)) => {
            Some(Gpu::new(interface, number.parse()?, None, vendor)?)
        }
    };
    let processor = device.as_ref().map_or(Processor::Cpu(&cpu), Processor::Gpu);
    let compiled = Compiled::new(graph, processor);
    let mut costs = Costs::default();
    for id in graph.nodes().keys() {
        costs.nodes[id].workspace = compiled.workspace(id);
    }
    let lowered = lower(graph, &training.phases, &costs, "cpu")?;
    let sole = lowered.problem.sole_device().ok_or("one device")?;
    let plan = check(&lowered.problem, Plan::keep_all(&lowered.problem, sole)?)
        .map_err(|v| format!("{v:?}"))?;
    let layout = check_layout(&plan, bump(&plan)).map_err(|v| format!("{v:?}"))?;
    let mut executor = Executor::new(
        std::slice::from_ref(&compiled),
        &lowered,
        &layout,
        ExecutorOptions::default(),
    )?;
    // Processor seconds of each kind, by step.
    let mut kinds: BTreeMap<String, (Vec<f64>, usize)> = BTreeMap::new();
    let (mut totals, mut walls) = (Vec::new(), Vec::new());
    for step in 0..steps {
        set(&mut executor, graph, step)?;
        let mut times: BTreeMap<String, (f64, usize)> = BTreeMap::new();
        let mut count = |node, seconds| {
            let entry = times.entry(label(graph, node, by_shape)).or_default();
            entry.0 += seconds;
            entry.1 += 1;
        };
        let start = process_seconds();
        let mut last = start;
        let mut observe = |event: &RunEvent<'_>| {
            count(event.node, process_seconds() - last);
            last = process_seconds();
        };
        let on_host = device.is_none();
        let trace = executor.step(on_host.then_some(&mut observe))?;
        for run in trace.runs.iter().filter(|_| !on_host) {
            count(lowered.nodes[run.task], run.seconds);
        }
        walls.push(trace.seconds);
        totals.push(match on_host {
            true => last - start,
            false => trace.runs.iter().map(|run| run.seconds).sum(),
        });
        for (kind, (seconds, count)) in times {
            let entry = kinds.entry(kind).or_default();
            entry.0.push(seconds);
            entry.1 = count;
        }
    }
    let loss = executor.read(training.loss)?[0];
    let signature = processor.signature();
    println!("{name}, batch {batch}, {signature}, loss {loss}");
    let (wall, busy) = (median(&walls) * 1e3, median(&totals) * 1e3);
    println!("{wall:9.1} ms of time, {busy:.1} ms busy");
    let mut rows: Vec<_> = kinds
        .into_iter()
        .map(|(kind, (seconds, count))| (median(&seconds), kind, count))
        .collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (seconds, kind, count) in rows {
        println!("{:9.2} ms {count:4} × {kind}", seconds * 1e3);
    }
    let (arena, peak) = (executor.arena_bytes() >> 20, plan.peak(sole) >> 20);
    println!("arena {arena} MiB, peak {peak} MiB");
    Ok(())
}

/// Data for one step.
fn set(
    executor: &mut Executor<'_>,
    graph: &Graph,
    step: usize,
) -> Result<(), scrimp_run::RunError> {
    for (tensor, what) in graph.given() {
        let count = what.elements();
        match (&what.role, what.dtype) {
            (Role::Input, DType::I64) => {
                let labels: Vec<i64> = (0..count as i64).map(|i| i % 2).collect();
                executor.set(tensor, Data::I64(&labels))?;
            }
            (Role::Input, _) => {
                let value = |i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0;
                let data: Vec<f32> = (0..count).map(value).collect();
                executor.set(tensor, Data::F32(&data))?;
            }
            (Role::Hyper, _) => executor.set(tensor, Data::F32(&[1e-3, step as f32 + 1.0]))?,
            (Role::Seed, _) => executor.set(tensor, Data::I64(&[step as i64]))?,
            _ => {}
        }
    }
    Ok(())
}

fn label(graph: &Graph, node: NodeId, by_shape: bool) -> String {
    let node = graph.node(node);
    if !by_shape {
        return node.op.kind().into();
    }
    let shapes = node.inputs.iter().chain(&node.outputs);
    let shapes: Vec<_> = shapes.map(|&tensor| &graph.tensor(tensor).shape).collect();
    format!("{} {shapes:?}", node.op.kind())
}

/// Without the first step, which also warms up, where there are others.
fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds[usize::from(seconds.len() > 1)..].to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// First fit in order of beginning: good enough for an example.
fn bump(plan: &scrimp_plan::CheckedPlan) -> scrimp_plan::Layout {
    let mut layout = scrimp_plan::Layout {
        offsets: Default::default(),
    };
    let mut placed: Vec<(u64, u64, usize)> = Vec::new(); // start, end, free from step
    for buffer in plan.buffers().values() {
        placed.retain(|&(_, _, end)| end > buffer.start);
        placed.sort_unstable();
        let mut at = 0;
        for &(start, end, _) in &placed {
            if at + buffer.bytes <= start {
                break;
            }
            at = at.max(end);
        }
        layout.offsets.push(at);
        placed.push((at, at + buffer.bytes, buffer.end));
    }
    layout
}

/// Processor time of this process.
#[allow(unsafe_code, reason = "a call into the C library")]
fn process_seconds() -> f64 {
    #[repr(C)]
    struct Time {
        seconds: i64,
        nanoseconds: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Time) -> i32;
    }
    const PROCESS: i32 = 2;
    let mut time = Time {
        seconds: 0,
        nanoseconds: 0,
    };
    // SAFETY: writes the structure it is given.
    unsafe { clock_gettime(PROCESS, &raw mut time) };
    time.seconds as f64 + time.nanoseconds as f64 * 1e-9
}
