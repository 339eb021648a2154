//! The profiler: how long each operator of a graph takes on a device.
//!
//! It runs whole steps, node by node in order, and times each node in its place: caches, clocks and sleeping
//! threads are as they are in training, and so are the contents of tensors as long as there is memory for a step that
//! keeps everything (see `place`). In every other pass each node's arguments are read through right before it
//! runs: then what fits the caches is there, and the two times tell what its bytes cost that have to come from
//! memory (see `passes`). Nodes with the same operator, shapes, types and overwritten inputs are one measurement.
//!
//! [`CostCache`] keeps measurements from one process to the next.

mod alone;
mod cache;
mod distinct;
mod last_level;
mod passes;
mod place;
mod typical;

use scrimp_graph::Costs;
use std::time::{Duration, Instant};

use crate::compiled::Compiled;
use crate::error::RunError;
pub use alone::Alone;
pub use cache::CostCache;
use distinct::{Distinct, Times};
pub use last_level::last_level_cache;
use passes::{Pass, Passes};

/// How to profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// Most passes over the graph that are measured as they are; at least one, after one that isn't measured.
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
/// Passes with arguments in the caches, each between two others.
const WARM_PASSES: usize = 3;
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
    compiled: &Compiled<'_>,
    options: &ProfileOptions,
    progress: ProfileWatch<'_>,
) -> Result<Costs, RunError> {
    let plan = Distinct::new(compiled)?;
    let times = measure(compiled, &plan, options, progress)?;
    Ok(plan.costs(compiled.graph(), &times))
}

/// Runs the graph until the seconds settle; the times are returned in the order of the keys.
fn measure(
    compiled: &Compiled<'_>,
    plan: &Distinct,
    options: &ProfileOptions,
    progress: ProfileWatch<'_>,
) -> Result<Vec<Times>, RunError> {
    let mut run = Passes::new(compiled, plan, options.room)?;
    let start = Instant::now();
    let measured = options.passes.max(1);
    let warm = match last_level_cache() {
        Some(_) => WARM_PASSES.min(measured),
        None => 0,
    };
    let passes = 1 + measured + warm;
    let mut watch = |pass: usize, node: usize, nodes: usize| {
        progress(ProfileProgress {
            pass,
            passes,
            node,
            nodes,
        });
    };
    let processor = compiled.processor();
    let mut pass = 0;
    let mut go = |run: &mut Passes<'_>, kind: Pass| {
        let done = processor.enter(|| run.pass(kind, &mut |node, nodes| watch(pass, node, nodes)));
        pass += 1;
        done
    };
    go(&mut run, Pass::Unmeasured)?;
    let mut before = f64::INFINITY;
    for index in 0..measured {
        if index > 0 && start.elapsed() > options.time {
            break;
        }
        go(&mut run, Pass::InPlace)?;
        if index < warm {
            go(&mut run, Pass::Warm)?;
        }
        let seconds = run.seconds();
        if index + 1 >= LEAST_PASSES && (seconds - before).abs() <= SETTLED * seconds {
            break;
        }
        before = seconds;
    }
    Ok(run.times(plan))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cpu::Cpu;
    use crate::processor::Processor;
    use scrimp_graph::{DType, Graph, GraphBuilder, Loss, Window, train};

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
        let compiled = Compiled::new(&graph, Processor::Cpu(&cpu));
        for room in [0, 100_000, 1 << 30] {
            let options = ProfileOptions {
                passes: 2,
                room,
                ..ProfileOptions::default()
            };
            let mut last = None;
            let costs = profile(&compiled, &options, &mut |p| last = Some(p)).expect("it runs");
            assert!(last.is_some_and(|p| p.pass >= 2 && p.node == p.nodes));
            for (id, node) in graph.nodes().iter().filter(|(_, node)| !node.op.is_view()) {
                let cost = costs.nodes[id];
                assert!(
                    cost.seconds > 0.0 && cost.seconds < 1.0,
                    "{}: {cost:?}",
                    node.name
                );
                assert_eq!(cost.workspace, compiled.workspace(id));
            }
        }
    }
}
