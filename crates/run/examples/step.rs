//! Profiles a built-in network, runs its training step without a plan, and prints where the time
//! goes: `step NETWORK BATCH THREADS [STEPS [native|onednn]]`.

#![allow(clippy::print_stdout, reason = "an example prints")]

use scrimp_graph::networks::{NetworkOptions, build};
use scrimp_graph::{DType, Loss, Optimizer, Role, lower, train};
use scrimp_plan::{Plan, check, check_layout};
use scrimp_run::{Cpu, Data, Executor, ExecutorOptions, Library, ProfileOptions, profile};
use std::collections::BTreeMap;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let (name, batch, threads) = (&args[1], args[2].parse()?, args[3].parse()?);
    let steps = args.get(4).map_or(Ok(3), |steps| steps.parse())?;
    let options = NetworkOptions {
        batch,
        ..NetworkOptions::default()
    };
    let graph = build(name, &options)?;
    let sgd = Optimizer::Sgd {
        momentum: 0.9,
        weight_decay: 0.0,
    };
    let training = train(&graph, Loss::CrossEntropy, Some(sgd))?;
    let graph = &training.graph;
    let library = match args.get(5).map(String::as_str) {
        Some("onednn") => Library::OneDnn,
        _ => Library::Native,
    };
    let cpu = Cpu::with_library(threads, library)?;
    let start = std::time::Instant::now();
    let costs = profile(graph, &cpu, &ProfileOptions::default(), &mut |_| {})?;
    println!(
        "{name} batch {batch}, {}: profiled in {:.1} s",
        cpu.signature(),
        start.elapsed().as_secs_f64()
    );

    let lowered = lower(graph, &training.phases, &costs, "cpu")?;
    let device = lowered.problem.sole_device().ok_or("one device")?;
    let plan = check(&lowered.problem, Plan::keep_all(&lowered.problem, device)?)
        .map_err(|v| format!("{v:?}"))?;
    let layout = bump(&plan);
    let layout = check_layout(&plan, layout).map_err(|v| format!("{v:?}"))?;
    let mut executor = Executor::new(graph, &lowered, &layout, &cpu, ExecutorOptions::default())?;
    let mut by_kind: BTreeMap<&str, (f64, f64, usize)> = BTreeMap::new();
    let mut best = f64::INFINITY;
    for step in 0..steps {
        for (tensor, what) in graph.given() {
            let count = what.elements();
            match (&what.role, what.dtype) {
                (Role::Input, DType::I64) => {
                    executor.set(
                        tensor,
                        Data::I64(&(0..count as i64).map(|i| i % 2).collect::<Vec<_>>()),
                    )?;
                }
                (Role::Input, _) => {
                    let data: Vec<f32> = (0..count)
                        .map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0)
                        .collect();
                    executor.set(tensor, Data::F32(&data))?;
                }
                (Role::Hyper, _) => executor.set(tensor, Data::F32(&[1e-3, step as f32 + 1.0]))?,
                (Role::Seed, _) => executor.set(tensor, Data::I64(&[step as i64]))?,
                _ => {}
            }
        }
        let busy = process_seconds();
        let trace = executor.step(None)?.clone();
        let busy = process_seconds() - busy;
        println!(
            "step {step}: {:.3} s ({busy:.2} s of CPU), predicted {:.3} s, loss {}",
            trace.seconds,
            plan.cost(),
            executor.read(training.loss)?[0]
        );
        if trace.seconds < best {
            best = trace.seconds;
            by_kind.clear();
            for run in &trace.runs {
                let node = lowered.nodes[run.task];
                let entry = by_kind.entry(graph.node(node).op.kind()).or_default();
                entry.0 += run.seconds;
                entry.1 += costs.nodes[node].seconds;
                entry.2 += 1;
            }
        }
    }
    let mut kinds: Vec<_> = by_kind.into_iter().collect();
    kinds.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    for (kind, (seconds, predicted, count)) in kinds {
        println!(
            "{kind:>16} {count:4} × {:9.1} ms, predicted {:9.1} ms",
            seconds * 1e3,
            predicted * 1e3
        );
    }
    println!(
        "arena {} MiB, peak {} MiB",
        executor.arena_bytes() >> 20,
        plan.peak(device) >> 20
    );
    Ok(())
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

/// CPU time of this process, to 10 ms; 0 where /proc isn't there.
fn process_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .map(|f| f.parse().unwrap_or(0.0))
        .collect();
    fields
        .get(11)
        .zip(fields.get(12))
        .map_or(0.0, |(user, system)| (user + system) / 100.0)
}
