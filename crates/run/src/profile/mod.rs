//! The profiler: how long each operator of a graph takes on a device.
//!
//! The profiler runs whole steps of a plan (a [`Rehearsal`]) and times each run in its place. So caches,
//! clocks, sleeping threads and the contents of tensors are as they are in training. In every other pass each
//! run's arguments are read through right before the run, so that they are in the caches if they fit. The two
//! times together tell what bytes cost that have to come from memory (see `passes`). So the times of a step
//! that keeps everything are known even where such a step doesn't fit in memory. Nodes with the same
//! operator, shapes, types and overwritten inputs share one measurement.
//!
//! Devices that compute at the same time slow each other down. How much is measured with all of them at work (see
//! `beside`), and what that means for a plan follows from who computes when (see `overlap`).
//!
//! [`CostCache`] keeps measurements from one process to the next.

mod alone;
mod beside;
mod cache;
mod conversions;
mod distinct;
mod last_level;
mod links;
mod locality;
mod overlap;
mod passes;
mod samples;
mod typical;
mod wakes;

use scrimp_graph::{Costs, Graph, Lowered, NodeId};
use scrimp_plan::{CheckedLayout, DeviceId, Step, Timeline};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::compiled::Compiled;
use crate::error::RunError;
pub use alone::Alone;
pub use beside::{Slowdown, profile_beside};
pub use cache::CostCache;
pub use conversions::{conversion_seconds, converted};
use distinct::{Distinct, Times};
use last_level::{cache_of, last_level_cache};
pub use links::{FarEnd, LinkProfile, profile_link};
use locality::moved_bytes;
use overlap::{Run, simulate_beside};
use passes::{Pass, Passes};
pub use samples::Samples;
pub use wakes::wake_seconds;

/// What is run to measure a graph's nodes.
#[derive(Clone, Copy, Debug)]
pub struct Rehearsal<'a> {
    /// The graph on its processor.
    pub compiled: &'a Compiled<'a>,
    /// The graph's tasks and values; their costs don't matter.
    pub lowered: &'a Lowered,
    /// The plan that is run. Profiling takes no more memory than its arena.
    pub layout: &'a CheckedLayout,
    /// The plan that keeps everything, for which costs are wanted; it isn't run.
    pub keep_all: &'a CheckedLayout,
    /// Devices of the plan whose memory is a file in a folder.
    pub files: &'a [(DeviceId, &'a Path)],
}

/// How to profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// The most passes that are measured as they are, at least one. One pass that isn't measured precedes
    /// them.
    pub passes: usize,
    /// No pass begins after this time once one has been measured.
    pub time: Duration,
}

impl Default for ProfileOptions {
    /// At most nine passes, begun within twenty seconds.
    fn default() -> Self {
        ProfileOptions {
            passes: 9,
            time: Duration::from_secs(20),
        }
    }
}

/// The measurements of a graph.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The cost of each node in a step that keeps everything, while no other device computes.
    pub costs: Costs,
    distinct: Distinct,
    /// One for each measurement, in the order of the keys.
    times: Vec<Times>,
    /// How many times as long each takes while the other devices compute, if that was measured.
    slowdown: Option<Slowdown>,
}

impl Profile {
    fn new(graph: &Graph, distinct: Distinct, times: Vec<Times>) -> Profile {
        Profile {
            costs: distinct.costs(graph, &times),
            distinct,
            times,
            slowdown: None,
        }
    }

    /// The profile with what was measured of the same graph beside other devices.
    #[must_use]
    pub fn beside(self, slowdown: Slowdown) -> Profile {
        Profile {
            slowdown: Some(slowdown),
            ..self
        }
    }

    /// How many times as long a node takes while the other devices compute; `None` if that wasn't measured.
    pub fn slowed(&self, node: NodeId) -> Option<f64> {
        let key = self.distinct.of[node]?;
        self.slowdown.as_ref().map(|slowdown| slowdown.0[key])
    }

    /// How many times as long all nodes together take; `None` if that wasn't measured.
    pub fn slowed_step(&self, graph: &Graph) -> Option<f64> {
        let nodes = graph.nodes().iter().filter(|(_, node)| !node.op.is_view());
        let seconds = |id: NodeId| Some(self.costs.nodes[id].seconds * self.slowed(id)?);
        let slowed: f64 = nodes.map(|(id, _)| seconds(id)).sum::<Option<f64>>()?;
        Some(slowed / self.costs.seconds(graph)).filter(|slowed| slowed.is_finite())
    }
}

/// The times of one of many steps of a plan, with each run in its place there. Compared with a step that keeps
/// everything, more or less of what a run touches is still in the last-level cache, where the cache is known, and while
/// other devices compute runs take as much longer as was measured. `profiles` has one profile for each device that
/// computes, in their order.
pub fn timeline(profiles: &[Profile], layout: &CheckedLayout, lowered: &Lowered) -> Timeline {
    let plan = layout.plan();
    let cache = last_level_cache();
    let devices = plan.problem().devices().iter();
    let computing = devices.filter(|(_, what)| what.computes).zip(profiles);
    let each: Vec<(DeviceId, &Profile, Option<Vec<f64>>)> = computing
        .map(|((device, _), profile)| {
            let moved = cache.map(|cache| moved_bytes(layout, device, cache));
            (device, profile, moved)
        })
        .collect();
    let run = |(index, step): (usize, &Step)| match *step {
        Step::Run { task, device } => {
            let (_, profile, moved) = each.iter().find(|(other, ..)| *other == device)?;
            let node = lowered.nodes[task];
            let times = &profile.times[profile.distinct.of[node]?];
            Some(Run {
                seconds: match moved {
                    Some(moved) => times.when_moving(moved[index]),
                    None => times.seconds,
                },
                slowed: profile.slowed(node).unwrap_or(1.0),
            })
        }
        _ => None,
    };
    let runs: Vec<Option<Run>> = plan.steps().iter().enumerate().map(run).collect();
    simulate_beside(plan, &runs)
}

/// Measuring may end after this many passes, if the last one changed the sum by less than [`SETTLED`].
const LEAST_PASSES: usize = 4;
/// Passes with arguments in the caches, each between two ordinary passes.
const WARM_PASSES: usize = 3;
/// Relative change of the sum of all seconds below which it counts as settled.
const SETTLED: f64 = 0.003;

/// Progress of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileProgress {
    /// Passes done, the first one included.
    pub pass: usize,
    /// Passes to do at most.
    pub passes: usize,
    /// Runs done in this pass.
    pub node: usize,
    /// Runs of the plan in each pass.
    pub nodes: usize,
}

/// Called while a profile is made.
pub type ProfileWatch<'a> = &'a mut (dyn FnMut(ProfileProgress) + Send);

/// Measures every node of a graph that isn't a view, until the seconds of whole steps settle. Once `stop` is
/// set, the pass that is running is the last, and the result is an error.
///
/// # Errors
/// An operator has no kernel, there isn't enough memory, or `stop` was set.
pub fn profile(
    rehearsal: &Rehearsal<'_>,
    options: &ProfileOptions,
    stop: &AtomicBool,
    progress: ProfileWatch<'_>,
) -> Result<Profile, RunError> {
    let distinct = Distinct::new(rehearsal.compiled)?;
    let mut run = Passes::new(rehearsal)?;
    let start = Instant::now();
    let measured = options.passes.max(1);
    // What would be read beside copies may be written by them.
    let copies = rehearsal.layout.plan().steps().iter();
    let copies = copies
        .filter(|step| matches!(step, Step::Copy { .. }))
        .count();
    let warm = match cache_of(rehearsal.compiled.processor()) {
        Some(_) if copies == 0 => WARM_PASSES.min(measured),
        _ => 0,
    };
    let passes = 1 + measured + warm;
    let mut pass = 0;
    let mut go = |run: &mut Passes<'_>, kind: Pass| {
        if stop.load(Ordering::SeqCst) {
            return Err(RunError::Stopped);
        }
        let mut watch = |node: usize, nodes: usize| {
            progress(ProfileProgress {
                pass,
                passes,
                node,
                nodes,
            });
        };
        let done = run.pass(kind, &mut watch);
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
    let times = run.times(&distinct);
    Ok(Profile::new(rehearsal.compiled.graph(), distinct, times))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cpu::Cpu;
    use crate::processor::Processor;
    use crate::span::ALIGN;
    use cranelift_entity::SecondaryMap;
    use scrimp_graph::{DType, GraphBuilder, Loss, Window, lower, train};
    use scrimp_plan::{Layout, Phase, Plan, check, check_layout};

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

    /// The graph's tasks and values, and its keep-all plan with a place of its own for each buffer.
    fn kept(compiled: &Compiled<'_>) -> (Lowered, CheckedLayout) {
        let graph = compiled.graph();
        let mut costs = Costs::default();
        for id in graph.nodes().keys() {
            costs.nodes[id].workspace = compiled.workspace(id);
        }
        let mut phases = SecondaryMap::with_default(Phase::Forward);
        phases.resize(graph.nodes().len());
        let lowered = lower(graph, &phases, &costs, "cpu").expect("valid");
        let device = lowered.problem.sole_device().expect("one");
        let plan = Plan::keep_all(&lowered.problem, device).expect("the order is valid");
        let plan = check(&lowered.problem, plan).expect("valid");
        let mut end = 0;
        let offsets = plan.buffers().values().map(|buffer| {
            let at = end;
            end += buffer.bytes.next_multiple_of(ALIGN as u64);
            at
        });
        let offsets = Layout {
            offsets: offsets.collect(),
        };
        let layout = check_layout(&plan, offsets).expect("nothing overlaps");
        (lowered, layout)
    }

    pub(super) fn measured(compiled: &Compiled<'_>, passes: usize) -> Profile {
        let (lowered, layout) = kept(compiled);
        let rehearsal = Rehearsal {
            compiled,
            lowered: &lowered,
            layout: &layout,
            keep_all: &layout,
            files: &[],
        };
        let options = ProfileOptions {
            passes,
            ..ProfileOptions::default()
        };
        let mut last = None;
        let go = AtomicBool::new(false);
        let made = profile(&rehearsal, &options, &go, &mut |p| last = Some(p));
        assert!(last.is_some_and(|p| p.pass >= passes && p.node == p.nodes));
        made.expect("it runs")
    }

    #[test]
    fn every_node_is_measured() {
        let graph = training();
        let cpu = Cpu::new(2).expect("threads start");
        let compiled = Compiled::new(&graph, Processor::Cpu(&cpu));
        let costs = measured(&compiled, 2).costs;
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

    #[test]
    fn a_step_takes_what_its_runs_take() {
        let graph = training();
        let cpu = Cpu::new(1).expect("threads start");
        let compiled = Compiled::new(&graph, Processor::Cpu(&cpu));
        let (lowered, layout) = kept(&compiled);
        let made = measured(&compiled, 4);
        let (step, sum) = (
            timeline(std::slice::from_ref(&made), &layout, &lowered).makespan(),
            made.costs.seconds(&graph),
        );
        assert!((step - sum).abs() <= 1e-6 * sum, "{step} and {sum}");
    }

    #[test]
    fn devices_are_measured_beside_each_other() {
        let graph = training();
        let cpus = [(); 2].map(|()| Cpu::new(1).expect("threads start"));
        let compiled = cpus
            .each_ref()
            .map(|cpu| Compiled::new(&graph, Processor::Cpu(cpu)));
        let steps = compiled.each_ref().map(kept);
        let rehearsals: Vec<Rehearsal<'_>> = compiled
            .iter()
            .zip(&steps)
            .map(|(compiled, (lowered, layout))| Rehearsal {
                compiled,
                lowered,
                layout,
                keep_all: layout,
                files: &[],
            })
            .collect();
        let (go, options) = (AtomicBool::new(false), ProfileOptions::default());
        let slowed = profile_beside(&rehearsals, &options, &go, &mut |_| {}).expect("it runs");
        assert_eq!(slowed.len(), 2);
        let made = measured(&compiled[0], 1);
        for slowed in slowed {
            assert_eq!(slowed.0.len(), made.times.len());
            let sound = |slowed: &f64| slowed.is_finite() && *slowed > 0.0;
            assert!(slowed.0.iter().all(sound), "{slowed:?}");
        }
        go.store(true, Ordering::SeqCst);
        let stopped = profile_beside(&rehearsals, &options, &go, &mut |_| {});
        assert_eq!(stopped, Err(RunError::Stopped));
    }

    #[test]
    fn a_plan_of_one_device_is_not_slowed_down() {
        let graph = training();
        let cpu = Cpu::new(1).expect("threads start");
        let compiled = Compiled::new(&graph, Processor::Cpu(&cpu));
        let (lowered, layout) = kept(&compiled);
        let made = measured(&compiled, 1);
        let slowdown = Slowdown(vec![3.0; made.times.len()]);
        let times = |made: Profile| timeline(&[made], &layout, &lowered).makespan();
        assert!((times(made.clone()) - times(made.beside(slowdown))).abs() < 1e-12);
    }

    #[test]
    fn no_pass_begins_after_being_stopped() {
        let graph = training();
        let cpu = Cpu::new(1).expect("threads start");
        let compiled = Compiled::new(&graph, Processor::Cpu(&cpu));
        let (lowered, layout) = kept(&compiled);
        let rehearsal = Rehearsal {
            compiled: &compiled,
            lowered: &lowered,
            layout: &layout,
            keep_all: &layout,
            files: &[],
        };
        let stop = AtomicBool::new(false);
        let mut passes = 0;
        let mut watch = |news: ProfileProgress| {
            passes = news.pass + 1;
            stop.store(news.pass == 1, Ordering::SeqCst);
        };
        let options = ProfileOptions::default();
        let stopped = profile(&rehearsal, &options, &stop, &mut watch);
        assert_eq!(stopped.map(|_| ()), Err(RunError::Stopped));
        assert_eq!(passes, 2);
    }
}
