//! The profiler: how long each operator of a graph takes on a device.
//!
//! It runs the nodes in order, as a step does, several times, so that caches, clocks and sleeping
//! threads are as in a step. Memory is bounded: given tensors have a place of their own, everything
//! else is written round and round in a ring, so contents are meaningless and inputs are as cold or
//! as warm as they would be. Nodes with the same operator, shapes, types and overwritten inputs are
//! one measurement: its seconds are the median over its nodes and passes, so that interruptions don't
//! count.

use cranelift_entity::SecondaryMap;
use scrimp_graph::{Costs, DType, Graph, Lowered, NodeCost, NodeId, Role, TensorId, lower};
use scrimp_plan::Phase;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::arena::{ALIGN, Arena, Arg, Args, Piece};
use crate::cpu::Cpu;
use crate::data::Memory;
use crate::error::RunError;
use crate::onednn::Kernel;

/// How to profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// Passes over the graph that are measured; at least one, after one that isn't.
    pub passes: usize,
    /// No pass begins after this time, once one has been measured.
    pub time: Duration,
    /// Bytes for the tensors that nodes write, if the largest node can do with them.
    pub ring: u64,
}

impl Default for ProfileOptions {
    /// Five passes within twenty seconds, 512 MiB.
    fn default() -> Self {
        ProfileOptions {
            passes: 5,
            time: Duration::from_secs(20),
            ring: 512 << 20,
        }
    }
}

/// Where a profile has got to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileProgress {
    /// Passes done, the first one included.
    pub pass: usize,
    /// Passes to do.
    pub passes: usize,
    /// Nodes done in this pass.
    pub node: usize,
    /// Nodes of the graph.
    pub nodes: usize,
}

/// Measures every node of a graph that isn't a view.
///
/// # Errors
/// An operator without a kernel; memory that isn't there.
pub fn profile(
    graph: &Graph,
    cpu: &Cpu,
    options: &ProfileOptions,
    progress: &mut (dyn FnMut(ProfileProgress) + Send),
) -> Result<Costs, RunError> {
    let mut run = Profile::new(graph, cpu, options)?;
    let start = Instant::now();
    let passes = options.passes.max(1) + 1;
    for pass in 0..passes {
        if pass > 1 && start.elapsed() > options.time {
            break;
        }
        cpu.enter(|| run.pass(pass, passes, progress))?;
    }
    Ok(run.costs())
}

/// One node, ready to run.
struct Prepared {
    node: NodeId,
    kernel: Kernel,
    args: Args,
    /// Which measurement it belongs to.
    key: usize,
}

struct Profile<'a> {
    graph: &'a Graph,
    cpu: &'a Cpu,
    arena: Arena,
    nodes: Vec<Prepared>,
    seconds: Vec<Vec<f64>>,
}

impl<'a> Profile<'a> {
    fn new(graph: &'a Graph, cpu: &'a Cpu, options: &ProfileOptions) -> Result<Self, RunError> {
        let pairs = overwritten(graph)?;
        let mut place = Placement::new(graph, cpu, options.ring);
        let mut arena = Arena::new(place.end)?;
        cpu.enter(|| initialize(graph, &place, &mut arena))?;
        let mut keys = HashMap::new();
        let mut nodes = Vec::new();
        for (id, node) in graph.nodes().iter() {
            if node.op.is_view() {
                place.offsets[node.outputs[0]] = place.offsets[node.inputs[0]];
                continue;
            }
            let pairs = &pairs[id];
            let signature =
                |&tensor: &TensorId| (&graph.tensor(tensor).shape[..], graph.tensor(tensor).dtype);
            let inputs: Vec<_> = node.inputs.iter().map(signature).collect();
            let key = format!("{:?} {inputs:?} {pairs:?}", node.op);
            let next = keys.len();
            let key = *keys.entry(key).or_insert(next);
            let bytes = cpu.workspace(graph, id);
            let scratch = place.node(graph, id, bytes, pairs);
            let mut arg = |tensor: TensorId| {
                let what = graph.tensor(tensor);
                let piece = arena.piece(place.offsets[tensor], what.bytes(), &what.name)?;
                Arg::new(what.dtype, &what.shape, piece, &what.name)
            };
            let reads = node
                .inputs
                .iter()
                .map(|&t| arg(t))
                .collect::<Result<_, _>>()?;
            let writes = node
                .outputs
                .iter()
                .map(|&t| arg(t))
                .collect::<Result<_, _>>()?;
            let workspace = match bytes {
                0 => Piece::EMPTY,
                _ => arena.piece(scratch, bytes, &node.name)?,
            };
            let args = Args::new(&arena, reads, writes, workspace)
                .map_err(|error| RunError::in_node(&node.name, error))?;
            nodes.push(Prepared {
                node: id,
                kernel: cpu.node_kernel(graph, id),
                args,
                key,
            });
        }
        Ok(Profile {
            graph,
            cpu,
            arena,
            nodes,
            seconds: vec![Vec::new(); keys.len()],
        })
    }

    fn pass(
        &mut self,
        pass: usize,
        passes: usize,
        progress: &mut (dyn FnMut(ProfileProgress) + Send),
    ) -> Result<(), RunError> {
        for (index, prepared) in self.nodes.iter().enumerate() {
            let node = self.graph.node(prepared.node);
            let start = Instant::now();
            self.cpu
                .run(&prepared.kernel, &node.op, &prepared.args, &mut self.arena)
                .map_err(|error| RunError::in_node(&node.name, error))?;
            let seconds = start.elapsed().as_secs_f64();
            if pass > 0 {
                self.seconds[prepared.key].push(seconds);
            }
            if index % 16 == 0 || index + 1 == self.nodes.len() {
                progress(ProfileProgress {
                    pass,
                    passes,
                    node: index + 1,
                    nodes: self.nodes.len(),
                });
            }
        }
        Ok(())
    }

    fn costs(mut self) -> Costs {
        let medians: Vec<f64> = self
            .seconds
            .iter_mut()
            .map(|seconds| median(seconds))
            .collect();
        let mut costs = Costs::default();
        for prepared in &self.nodes {
            costs.nodes[prepared.node] = NodeCost {
                seconds: medians[prepared.key],
                joules: 0.0,
                workspace: self.cpu.workspace(self.graph, prepared.node),
            };
        }
        costs
    }
}

fn median(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    match seconds.len() {
        0 => 0.0,
        n if n % 2 == 1 => seconds[n / 2],
        n => 0.5 * (seconds[n / 2 - 1] + seconds[n / 2]),
    }
}

/// The inputs that each node overwrites, as lowering will have it.
fn overwritten(graph: &Graph) -> Result<SecondaryMap<NodeId, Vec<(usize, usize)>>, RunError> {
    let mut phases = SecondaryMap::with_default(Phase::Forward);
    phases.resize(graph.nodes().len());
    let lowered: Lowered =
        lower(graph, &phases, &Costs::default(), "profile").map_err(|error| {
            RunError::WrongPlan {
                reason: error.to_string(),
            }
        })?;
    let mut pairs: SecondaryMap<NodeId, Vec<(usize, usize)>> = SecondaryMap::new();
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

/// Where tensors are: given ones one after another, the others in a ring behind them.
struct Placement {
    offsets: SecondaryMap<TensorId, u64>,
    ring: std::ops::Range<u64>,
    cursor: u64,
    end: u64,
}

fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN as u64)
}

impl Placement {
    fn new(graph: &Graph, cpu: &Cpu, ring: u64) -> Placement {
        let mut offsets = SecondaryMap::new();
        let mut start = 0;
        for (id, tensor) in graph.given() {
            offsets[id] = start;
            start += rounded(tensor.bytes());
        }
        let written = |node: NodeId| {
            let outputs = graph.node(node).outputs.iter();
            let bytes: u64 = outputs
                .map(|&tensor| rounded(graph.tensor(tensor).bytes()))
                .sum();
            bytes + cpu.workspace(graph, node)
        };
        let touched = |node: NodeId| {
            let inputs = graph.node(node).inputs.iter();
            written(node)
                + inputs
                    .map(|&tensor| rounded(graph.tensor(tensor).bytes()))
                    .sum::<u64>()
        };
        // Room for everything if that is less; but always for the largest node twice over, so that
        // outputs find a place beside inputs wherever those are.
        let total: u64 = graph.nodes().keys().map(written).sum();
        let largest = graph.nodes().keys().map(touched).max().unwrap_or(0);
        let length = ring.min(total).max(4 * largest);
        Placement {
            offsets,
            ring: start..start + length,
            cursor: start,
            end: start + length,
        }
    }

    /// The next stretch of the ring that doesn't overlap `used`, if there is one.
    fn take(&mut self, bytes: u64, used: &[std::ops::Range<u64>]) -> Option<u64> {
        let bytes = rounded(bytes);
        let mut wrapped = 0;
        while wrapped < 2 {
            if self.cursor + bytes > self.ring.end {
                self.cursor = self.ring.start;
                wrapped += 1;
            }
            let taken = self.cursor..self.cursor + bytes;
            match used
                .iter()
                .find(|used| used.start < taken.end && taken.start < used.end)
            {
                Some(used) => self.cursor = rounded(used.end),
                None => {
                    self.cursor = taken.end;
                    return Some(taken.start);
                }
            }
        }
        None
    }

    /// Places a node's outputs and its workspace, whose offset is returned.
    fn node(&mut self, graph: &Graph, id: NodeId, workspace: u64, pairs: &[(usize, usize)]) -> u64 {
        // An input that the ring has come round to may be half overwritten by another one of this
        // node; an output can't take the place of such an input.
        let tangled = !pairs.is_empty() && self.tangled(graph, id);
        if !tangled && let Some(offset) = self.try_node(graph, id, workspace, pairs) {
            return offset;
        }
        // Those inputs, or inputs all over the ring that leave no stretch that is long enough, are put
        // side by side. Their contents mean nothing, so nothing is copied.
        let mut at = self.ring.start;
        for &input in &graph.node(id).inputs {
            if self.ring.contains(&self.offsets[input]) {
                self.offsets[input] = at;
                at += rounded(graph.tensor(input).bytes());
            }
        }
        self.cursor = at;
        self.try_node(graph, id, workspace, pairs)
            .expect("the ring holds four times the largest node")
    }

    /// Whether two inputs overlap without being one.
    fn tangled(&self, graph: &Graph, id: NodeId) -> bool {
        let inputs = &graph.node(id).inputs;
        let end = |tensor: TensorId| self.offsets[tensor] + graph.tensor(tensor).bytes();
        inputs.iter().any(|&a| {
            let offset = self.offsets[a];
            inputs
                .iter()
                .any(|&b| a != b && self.offsets[b] < end(a) && offset < end(b))
        })
    }

    fn try_node(
        &mut self,
        graph: &Graph,
        id: NodeId,
        workspace: u64,
        pairs: &[(usize, usize)],
    ) -> Option<u64> {
        let node = graph.node(id);
        let stretch = |offset: u64, tensor| offset..offset + graph.tensor(tensor).bytes();
        let mut used: Vec<_> = node
            .inputs
            .iter()
            .map(|&tensor| stretch(self.offsets[tensor], tensor))
            .collect();
        for (o, &output) in node.outputs.iter().enumerate() {
            self.offsets[output] = match pairs.iter().find(|pair| pair.1 == o) {
                Some(&(input, _)) => self.offsets[node.inputs[input]],
                None => self.take(graph.tensor(output).bytes(), &used)?,
            };
            used.push(stretch(self.offsets[output], output));
        }
        self.take(workspace, &used)
    }
}

/// Parameters and the like as for training, inputs with numbers of ordinary size, integers 0.
fn initialize(graph: &Graph, place: &Placement, arena: &mut Arena) -> Result<(), RunError> {
    for (id, tensor) in graph.given() {
        let memory = Memory::new(
            tensor.dtype,
            arena.bytes_at_mut(place.offsets[id], tensor.bytes()),
        );
        match tensor.role {
            Role::Input | Role::Hyper if tensor.dtype != DType::I64 => {
                memory.fill(|i| 1.0 / (1 + i % 7) as f64)
            }
            _ => memory.initialize(graph, id, 0)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use scrimp_graph::{GraphBuilder, Loss, Window, train};

    fn training() -> Graph {
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
    fn every_node_is_measured_even_in_the_smallest_ring() {
        let graph = training();
        let cpu = Cpu::new(2).expect("threads start");
        for ring in [0, 100_000, 1 << 30] {
            let options = ProfileOptions {
                passes: 2,
                ring,
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
                assert_eq!(cost.workspace, cpu.workspace(&graph, id));
            }
        }
    }

    #[test]
    fn the_median_ignores_an_interruption() {
        assert_eq!(median(&mut [2.0, 1.0, 50.0]), 2.0);
        assert_eq!(median(&mut [2.0, 1.0, 50.0, 3.0]), 2.5);
        assert_eq!(median(&mut []), 0.0);
    }
}
