//! The profiler: how long each operator of a graph takes on a device.
//!
//! It runs whole steps, node by node in order, and times each node in its place: caches, clocks and sleeping
//! threads are as they are in training, and so are the contents of tensors as long as there is memory for a step that
//! keeps everything (see `place`). Nodes with the same operator, shapes, types and overwritten inputs
//! are one measurement. Its seconds are the mean over its nodes of what each typically takes (see
//! `typical`), so that the sum over all nodes is what a step typically takes.
//!
//! [`CostCache`] keeps measurements from one process to the next.

mod alone;
mod cache;
mod place;
mod typical;

use cranelift_entity::{PrimaryMap, SecondaryMap};
use scrimp_graph::{Costs, DType, Graph, Lowered, NodeCost, NodeId, Role, TensorId, lower};
use scrimp_plan::Phase;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::arena::{Arena, Piece};
use crate::cpu::Cpu;
use crate::data::{Memory, arrange};
use crate::error::RunError;
use crate::format::Formats;
use crate::job::{Job, Recipe};
pub use alone::Alone;
pub use cache::CostCache;
use place::{Overwrites, Placement};
use typical::typical;

/// How to profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// Most passes over the graph that are measured; at least one, after one that isn't.
    pub passes: usize,
    /// No pass begins after this time, once one has been measured.
    pub time: Duration,
    /// Most bytes for the tensors that nodes write, if the largest node can do with them.
    pub room: u64,
}

impl Default for ProfileOptions {
    /// Nine passes within twenty seconds, 1 GiB.
    fn default() -> Self {
        ProfileOptions {
            passes: 9,
            time: Duration::from_secs(20),
            room: 1 << 30,
        }
    }
}

/// Passes after which measuring ends if the last one changed the sum by less than [`SETTLED`].
const LEAST_PASSES: usize = 4;
/// Relative change of the sum of all seconds.
const SETTLED: f64 = 0.003;

/// Where a profile has got to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileProgress {
    /// Passes done, the first one included.
    pub pass: usize,
    /// Passes to do at most.
    pub passes: usize,
    /// Nodes done in this pass.
    pub node: usize,
    /// Nodes of the graph.
    pub nodes: usize,
}

/// Called while a profile is made.
pub type ProfileWatch<'a> = &'a mut (dyn FnMut(ProfileProgress) + Send);

/// Measures every node of a graph that isn't a view.
///
/// # Errors
/// An operator without a kernel; memory that isn't there.
pub fn profile(
    graph: &Graph,
    cpu: &Cpu,
    options: &ProfileOptions,
    progress: ProfileWatch<'_>,
) -> Result<Costs, RunError> {
    let plan = Distinct::new(graph, cpu)?;
    let seconds = measure(graph, cpu, &plan, options, progress)?;
    Ok(plan.costs(graph, &seconds))
}

/// The measurements that a graph takes.
struct Distinct {
    pairs: Overwrites,
    formats: Formats,
    workspaces: SecondaryMap<NodeId, u64>,
    /// What each is of: operator, shapes, types, formats, overwritten inputs.
    keys: Vec<String>,
    /// Which one a node belongs to; none for views.
    of: SecondaryMap<NodeId, Option<usize>>,
}

impl Distinct {
    fn new(graph: &Graph, cpu: &Cpu) -> Result<Distinct, RunError> {
        let (pairs, formats) = (overwritten(graph)?, cpu.formats(graph));
        let workspaces = cpu.workspaces(graph, &formats);
        let mut indices = HashMap::new();
        let mut keys = Vec::new();
        let mut of = SecondaryMap::new();
        for (id, node) in graph.nodes().iter().filter(|(_, node)| !node.op.is_view()) {
            let signature = |&tensor: &TensorId| {
                let what = graph.tensor(tensor);
                (&what.shape[..], what.dtype, formats.of(tensor))
            };
            let tensors = node.inputs.iter().chain(&node.outputs);
            let tensors: Vec<_> = tensors.map(signature).collect();
            let key = format!("{:?} {tensors:?} {:?}", node.op, pairs[id]);
            let index = *indices.entry(key).or_insert_with_key(|key| {
                keys.push(key.clone());
                keys.len() - 1
            });
            of[id] = Some(index);
        }
        Ok(Distinct {
            pairs,
            formats,
            workspaces,
            keys,
            of,
        })
    }

    /// The costs of all nodes, given the seconds of each measurement.
    fn costs(&self, graph: &Graph, seconds: &[f64]) -> Costs {
        let mut costs = Costs::default();
        for id in graph.nodes().keys() {
            if let Some(key) = self.of[id] {
                costs.nodes[id] = NodeCost {
                    seconds: seconds[key],
                    joules: 0.0,
                    workspace: self.workspaces[id],
                };
            }
        }
        costs
    }
}

/// Runs the graph until the seconds settle; they are returned in the order of the keys.
fn measure(
    graph: &Graph,
    cpu: &Cpu,
    plan: &Distinct,
    options: &ProfileOptions,
    progress: ProfileWatch<'_>,
) -> Result<Vec<f64>, RunError> {
    let mut run = Passes::new(graph, cpu, plan, options.room)?;
    let start = Instant::now();
    let passes = options.passes.max(1) + 1;
    let mut before = f64::INFINITY;
    for pass in 0..passes {
        if pass > 1 && start.elapsed() > options.time {
            break;
        }
        cpu.enter(|| run.pass(pass, passes, progress))?;
        let sum: f64 = run.typical().iter().sum();
        if pass >= LEAST_PASSES && (sum - before).abs() <= SETTLED * sum {
            break;
        }
        before = sum;
    }
    Ok(run.seconds(plan))
}

/// One node, ready to run.
struct Prepared {
    node: NodeId,
    job: Job,
    seconds: Vec<f64>,
}

struct Passes<'a> {
    graph: &'a Graph,
    cpu: &'a Cpu,
    arena: Arena,
    nodes: Vec<Prepared>,
}

impl<'a> Passes<'a> {
    fn new(graph: &'a Graph, cpu: &'a Cpu, plan: &Distinct, room: u64) -> Result<Self, RunError> {
        let places = Places::new(graph, plan, room);
        let mut arena = Arena::new(places.end)?;
        cpu.enter(|| initialize(graph, plan, &places, &mut arena))?;
        let mut nodes = Vec::new();
        for (id, node) in graph.nodes().iter().filter(|(_, node)| !node.op.is_view()) {
            let place = &places.nodes[id];
            let mut offsets = place.tensors.iter();
            let mut list = |tensors: &[TensorId]| -> Result<Vec<Piece>, RunError> {
                let pieces = tensors.iter().zip(&mut offsets).map(|(&tensor, &offset)| {
                    let what = graph.tensor(tensor);
                    arena.piece(offset, what.bytes(), &what.name)
                });
                pieces.collect()
            };
            let (reads, writes) = (list(&node.inputs)?, list(&node.outputs)?);
            let recipe = Recipe::of_node(cpu, graph, &plan.formats, id);
            let workspace = match recipe.workspace() {
                0 => Piece::EMPTY,
                bytes => arena.piece(place.workspace, bytes, &node.name)?,
            };
            let job = recipe
                .job(&arena, &reads, &writes, workspace, &node.name)
                .map_err(|error| RunError::in_node(&node.name, error))?;
            nodes.push(Prepared {
                node: id,
                job,
                seconds: Vec::new(),
            });
        }
        Ok(Passes {
            graph,
            cpu,
            arena,
            nodes,
        })
    }

    fn pass(
        &mut self,
        pass: usize,
        passes: usize,
        progress: &mut (dyn FnMut(ProfileProgress) + Send),
    ) -> Result<(), RunError> {
        let nodes = self.nodes.len();
        for (index, prepared) in self.nodes.iter_mut().enumerate() {
            let node = self.graph.node(prepared.node);
            let start = Instant::now();
            prepared
                .job
                .run(self.cpu, &mut self.arena)
                .map_err(|error| RunError::in_node(&node.name, error))?;
            let seconds = start.elapsed().as_secs_f64();
            if pass > 0 {
                prepared.seconds.push(seconds);
            }
            if index % 16 == 0 || index + 1 == nodes {
                progress(ProfileProgress {
                    pass,
                    passes,
                    node: index + 1,
                    nodes,
                });
            }
        }
        Ok(())
    }

    /// What each node typically took.
    fn typical(&self) -> Vec<f64> {
        let nodes = self.nodes.iter();
        nodes.map(|node| typical(&node.seconds)).collect()
    }

    /// The mean of that over the nodes of each measurement.
    fn seconds(&self, plan: &Distinct) -> Vec<f64> {
        let mut sums = vec![(0.0, 0usize); plan.keys.len()];
        for (prepared, seconds) in self.nodes.iter().zip(self.typical()) {
            if let Some(key) = plan.of[prepared.node] {
                sums[key].0 += seconds;
                sums[key].1 += 1;
            }
        }
        let means = sums.iter().map(|&(sum, count)| sum / count.max(1) as f64);
        means.collect()
    }
}

/// The inputs that each node overwrites, as lowering will have it.
fn overwritten(graph: &Graph) -> Result<Overwrites, RunError> {
    let mut phases = SecondaryMap::with_default(Phase::Forward);
    phases.resize(graph.nodes().len());
    let lowered: Lowered =
        lower(graph, &phases, &Costs::default(), "profile").map_err(|error| {
            RunError::WrongPlan {
                reason: error.to_string(),
            }
        })?;
    let mut pairs = Overwrites::new();
    for (task, &id) in lowered.nodes.iter() {
        let node = graph.node(id);
        let find = |tensors: &[TensorId], value| {
            tensors
                .iter()
                .position(|&tensor| lowered.values[tensor].expand() == Some(value))
        };
        for pair in &lowered.problem.task(task).overwrites {
            if let (Some(i), Some(o)) = (
                find(&node.inputs, pair.input),
                find(&node.outputs, pair.output),
            ) {
                pairs[id].push((i, o));
            }
        }
    }
    Ok(pairs)
}

/// Where a node's arguments are.
struct Place {
    /// Offsets of inputs and outputs.
    tensors: Vec<u64>,
    workspace: u64,
}

/// Where everything is.
struct Places {
    nodes: PrimaryMap<NodeId, Place>,
    given: SecondaryMap<TensorId, u64>,
    end: u64,
}

impl Places {
    /// Those of a step that keeps everything if they take at most `room` bytes; otherwise within those.
    fn new(graph: &Graph, plan: &Distinct, room: u64) -> Places {
        let whole = Places::within(graph, plan, u64::MAX);
        let given = graph
            .given()
            .map(|(_, tensor)| place::rounded(tensor.bytes()));
        if whole.end - given.sum::<u64>() <= room {
            return whole;
        }
        Places::within(graph, plan, room)
    }

    fn within(graph: &Graph, plan: &Distinct, room: u64) -> Places {
        let mut placement = Placement::new(graph, &plan.workspaces, &plan.pairs, room);
        let given = graph.given();
        let given = given.map(|(id, _)| (id, placement.offset(id)));
        let given: Vec<_> = given.collect();
        let mut nodes = PrimaryMap::new();
        for (id, node) in graph.nodes().iter() {
            let workspace = match node.op.is_view() {
                true => 0,
                false => placement.node(id),
            };
            let tensors = node.inputs.iter().chain(&node.outputs);
            nodes.push(Place {
                tensors: tensors.map(|&tensor| placement.offset(tensor)).collect(),
                workspace,
            });
            placement.done(id);
        }
        let mut offsets = SecondaryMap::new();
        given.into_iter().for_each(|(id, at)| offsets[id] = at);
        Places {
            nodes,
            given: offsets,
            end: placement.end(),
        }
    }
}

/// Parameters and the like as for training, inputs with numbers of ordinary size, integers 0.
fn initialize(
    graph: &Graph,
    plan: &Distinct,
    places: &Places,
    arena: &mut Arena,
) -> Result<(), RunError> {
    for (id, tensor) in graph.given() {
        let (offset, bytes) = (places.given[id], tensor.bytes());
        let memory = Memory::new(tensor.dtype, arena.bytes_at_mut(offset, bytes));
        match tensor.role {
            Role::Hyper => memory.fill(|i| if i == 0 { 1e-3 } else { 1.0 }),
            Role::Input if tensor.dtype != DType::I64 => {
                memory.fill(|i| ((i * 7919) % 1000) as f64 / 500.0 - 1.0)
            }
            _ => memory.initialize(graph, id, 0)?,
        }
        let change = plan.formats.of(id).change(&tensor.shape);
        arrange(change, tensor.dtype, arena.bytes_at_mut(offset, bytes));
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use scrimp_graph::{GraphBuilder, Loss, Window, train};

    pub(super) fn training() -> Graph {
        let mut b = GraphBuilder::new("t");
        let mut x = b.input("x", &[2, 3, 16, 16], DType::F32).expect("valid");
        for i in 0..3 {
            let y = b
                .conv(&format!("c{i}"), x, 3, Window::square(3).pad(1), 1, false)
                .expect("valid");
            let y = b.relu(&format!("r{i}"), y).expect("valid");
            x = b.concat(&format!("k{i}"), 1, &[x, y]).expect("valid");
        }
        let y = b.reshape("flat", x, &[2, 12 * 256]).expect("valid");
        let y = b.linear("fc", y, 10, true).expect("valid");
        b.output(y);
        let graph = b.finish().expect("valid");
        train(&graph, Loss::CrossEntropy, None)
            .expect("differentiable")
            .graph
    }

    #[test]
    fn every_node_is_measured_in_any_room() {
        let graph = training();
        let cpu = Cpu::new(2).expect("threads start");
        let workspaces = cpu.workspaces(&graph, &cpu.formats(&graph));
        for room in [0, 100_000, 1 << 30] {
            let options = ProfileOptions {
                passes: 2,
                room,
                ..ProfileOptions::default()
            };
            let mut last = None;
            let costs = profile(&graph, &cpu, &options, &mut |p| last = Some(p)).expect("it runs");
            assert!(last.is_some_and(|p| p.pass == 2 && p.node == p.nodes));
            for (id, node) in graph.nodes().iter().filter(|(_, node)| !node.op.is_view()) {
                let cost = costs.nodes[id];
                assert!(
                    cost.seconds > 0.0 && cost.seconds < 1.0,
                    "{}: {cost:?}",
                    node.name
                );
                assert_eq!(cost.workspace, workspaces[id]);
            }
        }
    }
}
