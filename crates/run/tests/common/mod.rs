//! What the tests of execution share: small networks, plans made by hand, layouts, data.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use scrimp_graph::networks::{NetworkOptions, build};
use scrimp_graph::{Costs, estimate, lower, train};
use scrimp_graph::{
    DType, Graph, GraphBuilder, Loss, Lowered, Optimizer, Role, TrainingGraph, Window,
};
use scrimp_plan::{
    BufferId, CheckedLayout, CheckedPlan, Device, DeviceId, Layout, Link, Mode, Origin, Phase,
    Plan, Problem, Step, TaskId, ValueId, check, check_layout,
};
use scrimp_run::{
    Compiled, Cpu, Data, Executor, Gpu, GpuError, Interface, Library, OneDnnError, Processor,
    RunError,
};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// A network, differentiated and lowered with estimated costs.
pub struct Case {
    pub training: TrainingGraph,
    pub lowered: Lowered,
}

impl Case {
    pub fn new(graph: &Graph, optimizer: Option<Optimizer>, cpu: &Cpu) -> Case {
        let training = train(graph, Loss::CrossEntropy, optimizer).unwrap();
        let graph = &training.graph;
        let costs = estimate_with(&Compiled::new(graph, Processor::Cpu(cpu)));
        let lowered = lower(graph, &training.phases, &costs, "cpu").unwrap();
        Case { training, lowered }
    }

    pub fn graph(&self) -> &Graph {
        &self.training.graph
    }

    pub fn compiled<'a>(&'a self, cpu: &'a Cpu) -> Compiled<'a> {
        Compiled::new(self.graph(), Processor::Cpu(cpu))
    }

    pub fn keep_all(&self) -> CheckedPlan {
        let problem = &self.lowered.problem;
        check(
            problem,
            Plan::keep_all(problem, problem.sole_device().unwrap()).unwrap(),
        )
        .unwrap()
    }

    /// Every forward value that a backward task reads is computed again right before, except where
    /// `keep` says so.
    pub fn recompute(&self, keep: impl Fn(TaskId) -> bool) -> CheckedPlan {
        let problem = &self.lowered.problem;
        let mut runs = Vec::new();
        for (task, what) in problem.tasks().iter() {
            if what.phase == Phase::Backward {
                for &input in &what.inputs {
                    again(problem, input, &keep, &mut runs);
                }
            }
            runs.push(task);
        }
        let plan = Plan::from_runs(problem, problem.sole_device().unwrap(), &runs).unwrap();
        check(problem, plan).unwrap()
    }
}

/// Runs the value's producer again, after the producers of what it overwrites.
fn again(problem: &Problem, value: ValueId, keep: &dyn Fn(TaskId) -> bool, runs: &mut Vec<TaskId>) {
    let Some(producer) = problem.producer(value) else {
        return;
    };
    let task = problem.task(producer);
    if task.phase != Phase::Forward || !task.rerunnable || keep(producer) {
        return;
    }
    for pair in &task.overwrites {
        again(problem, pair.input, &|_| false, runs);
    }
    runs.push(producer);
}

/// The problem with a memory beside its device, and a link in each direction.
pub fn beside_a_host(problem: &Problem) -> (Problem, [DeviceId; 2]) {
    let mut parts = problem.parts();
    let device = problem.sole_device().unwrap();
    let host = parts.devices.push(Device::memory("host"));
    for (from, to) in [(device, host), (host, device)] {
        parts.links.push(Link::new(from, to, 1e9, 1e-6));
    }
    (Problem::new(parts).unwrap(), [device, host])
}

/// The steps of a training step, with every activation that waits for the backward pass sent away in the
/// meantime.
pub fn swapped(
    plan: &CheckedPlan,
    problem: &Problem,
    [device, host]: [DeviceId; 2],
) -> CheckedPlan {
    let mut away: HashMap<usize, Vec<ValueId>> = HashMap::new();
    let mut back = away.clone();
    let mut touched: HashMap<ValueId, usize> = HashMap::new();
    let phase = |k: usize| match plan.steps()[k] {
        Step::Run { task, .. } => problem.task(task).phase,
        _ => Phase::Forward,
    };
    for (k, step) in plan.steps().iter().enumerate() {
        let Step::Run { task, .. } = *step else {
            continue;
        };
        let what = problem.task(task);
        for &value in what.inputs.iter().chain(&what.outputs) {
            let before = touched.insert(value, k).filter(|&before| before != k);
            if let Some(before) = before
                && matches!(problem.value(value).origin, Origin::Task(_))
                && phase(before) == Phase::Forward
                && phase(k) != Phase::Forward
            {
                away.entry(before).or_default().push(value);
                back.entry(k).or_default().push(value);
            }
        }
    }
    let copy = |value, from, to| Step::Copy { value, from, to };
    let mut steps = Vec::new();
    for (k, &step) in plan.steps().iter().enumerate() {
        for &value in back.get(&k).into_iter().flatten() {
            steps.push(copy(value, host, device));
            steps.push(Step::Free {
                value,
                device: host,
            });
        }
        steps.push(step);
        for &value in away.get(&k).into_iter().flatten() {
            steps.push(copy(value, device, host));
            steps.push(Step::Free { value, device });
        }
    }
    check(problem, Plan { steps }).unwrap()
}

/// A CPU with oneDNN; without the library, the test says that it is skipped.
#[allow(clippy::print_stdout, reason = "a skipped test says so")]
pub fn onednn(threads: usize) -> Option<Cpu> {
    match Cpu::with_library(threads, Library::OneDnn) {
        Ok(cpu) => Some(cpu),
        Err(RunError::OneDnn(error @ OneDnnError::NotFound)) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The first device of each interface; a test says which one it goes without.
#[allow(clippy::print_stdout, reason = "a skipped test says so")]
pub fn gpus() -> impl Iterator<Item = Gpu> {
    let first = |interface| match Gpu::new(interface, 0, None, false) {
        Ok(device) => Some(device),
        Err(error @ (GpuError::NotFound { .. } | GpuError::NoDevice { .. })) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    };
    Interface::ALL.into_iter().filter_map(first)
}

/// Estimated seconds, and the workspaces of this device.
pub fn estimate_with(compiled: &Compiled<'_>) -> Costs {
    estimate(compiled.graph(), &Default::default(), &|node| {
        compiled.workspace(node)
    })
}

/// The problem on several computing devices that are linked with each other. The first one is the problem's own;
/// all cost the same but for the workspaces, which `compiled` says.
pub fn on_devices(case: &Case, compiled: &[Compiled<'_>]) -> Problem {
    let mut parts = case.lowered.problem.parts();
    let first = case.lowered.problem.sole_device().unwrap();
    for (number, compiled) in compiled.iter().enumerate() {
        let device = match number {
            0 => first,
            _ => parts
                .devices
                .push(Device::computing(format!("cpu:{number}"))),
        };
        parts.devices[device].arithmetic = compiled.processor().signature();
        for other in parts.devices.keys().filter(|&other| other < device) {
            for (from, to) in [(device, other), (other, device)] {
                parts.links.push(Link::new(from, to, 1e9, 1e-6));
            }
        }
        for (task, what) in parts.tasks.iter_mut() {
            let mode = Mode {
                device,
                workspace: compiled.workspace(case.lowered.nodes[task]),
                ..what.modes[0].clone()
            };
            match number {
                0 => what.modes[0] = mode,
                _ => what.modes.push(mode),
            }
        }
    }
    Problem::new(parts).unwrap()
}

/// First fit in order of beginning. A value that is given and, perhaps overwritten, kept in the same memory
/// has one place there throughout; the new one has another place while the old one is there.
pub fn place(plan: &CheckedPlan) -> CheckedLayout {
    let problem = plan.problem();
    let mut throughout: HashSet<BufferId> = HashSet::new();
    let mut same: HashMap<BufferId, BufferId> = HashMap::new();
    for (value, what) in problem.values().iter() {
        let last = problem.chain(value).last().unwrap();
        if let Origin::Given(device) = what.origin
            && let (Some(first), Some(last)) =
                (plan.given_buffer(value), plan.final_buffer(last, device))
            && first != last
        {
            throughout.insert(first);
            if plan.buffers()[first].end <= plan.buffers()[last].start {
                same.insert(last, first);
            }
        }
    }
    let mut layout = Layout::default();
    let mut placed: Vec<(u64, u64, usize, DeviceId)> = Vec::new();
    for (id, buffer) in plan.buffers().iter() {
        if let Some(&first) = same.get(&id) {
            layout.offsets.push(layout.offsets[first]);
            continue;
        }
        placed.retain(|&(_, _, end, _)| end > buffer.start);
        placed.sort_unstable();
        let mut at = 0;
        for &(start, end, ..) in placed.iter().filter(|other| other.3 == buffer.device) {
            if at + buffer.bytes <= start {
                break;
            }
            at = at.max(end);
        }
        layout.offsets.push(at);
        let end = if throughout.contains(&id) {
            usize::MAX
        } else {
            buffer.end
        };
        placed.push((at, at + buffer.bytes, end, buffer.device));
    }
    check_layout(plan, layout).unwrap()
}

/// Sets inputs, settings and the seed of step number `step`.
pub fn set_inputs(graph: &Graph, executor: &mut Executor<'_>, step: usize) {
    for (tensor, what) in graph.given() {
        let count = what.elements();
        match (&what.role, what.dtype) {
            (Role::Input, DType::I64) => {
                let data: Vec<i64> = (0..count).map(|i| ((i * 7 + step) % 10) as i64).collect();
                executor.set(tensor, Data::I64(&data)).unwrap();
            }
            (Role::Input, _) => {
                let draw = |i: usize| ((i * 7919 + step * 31) % 1009) as f32 / 504.0 - 1.0;
                executor
                    .set(tensor, Data::F32(&(0..count).map(draw).collect::<Vec<_>>()))
                    .unwrap();
            }
            (Role::Hyper, _) => executor
                .set(tensor, Data::F32(&[0.05, step as f32 + 1.0]))
                .unwrap(),
            (Role::Seed, _) => executor.set(tensor, Data::I64(&[step as i64])).unwrap(),
            _ => {}
        }
    }
}

/// Convolutions of all kinds, batch normalization, elementwise operators that can run in place,
/// dropout, pooling, a residual connection, a concatenation.
pub fn small_net() -> Graph {
    let mut b = GraphBuilder::new("small");
    let x = b.input("x", &[4, 3, 20, 20], DType::F32).unwrap();
    let same = Window::square(3).pad(1);
    let x = b.conv("c1", x, 8, same, 1, false).unwrap();
    let x = b.batch_norm("n1", x).unwrap();
    let x = b.relu("r1", x).unwrap();
    let y = b.conv("c2", x, 8, same, 8, true).unwrap();
    let y = b.batch_norm("n2", y).unwrap();
    let x = b.binary("add", scrimp_graph::Binary::Add, x, y).unwrap();
    let x = b.relu("r2", x).unwrap();
    let x = b.dropout("drop", x, 0.25).unwrap();
    let z = b.conv("c3", x, 8, same, 2, true).unwrap();
    let z = b.unary("gelu", scrimp_graph::Unary::Gelu, z).unwrap();
    let x = b.concat("cat", 1, &[x, z]).unwrap();
    let x = b.max_pool("pool", x, Window::square(2).stride(2)).unwrap();
    let x = b.conv("c4", x, 12, same.stride(2), 1, true).unwrap();
    let x = b.unary("tanh", scrimp_graph::Unary::Tanh, x).unwrap();
    let x = b.global_avg_pool("gap", x).unwrap();
    let x = b.flatten("flat", x).unwrap();
    let x = b.linear("fc", x, 10, true).unwrap();
    b.output(x);
    b.finish().unwrap()
}

/// A built-in network, made small.
pub fn network(name: &str, options: NetworkOptions) -> Graph {
    build(name, &options).unwrap()
}

/// A hash of bytes; equal for equal bits only, for the purpose of these tests.
pub fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
