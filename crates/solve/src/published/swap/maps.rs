//! What the published swap planners see of a problem: feature maps, and the links to one other memory.
//!
//! A *feature map* is a value that a forward task writes and a task of another phase reads. Values that must
//! be in memory at the end aren't managed, and neither are weights, gradients and optimizer state, as in the
//! papers. What layers write beside their feature maps (statistics, counts) stays in memory too: from the
//! smallest map on, as many as together hold at most a thousandth of the bytes of all maps.

use cranelift_entity::EntityRef;
use scrimp_plan::{DeviceId, LinkId, Origin, TaskId, ValueId};

use crate::error::SolveError;
use crate::published::graph::Graph;

/// The maps that stay in memory together hold one part in this many of the bytes of all maps.
const NEGLIGIBLE: u64 = 1000;

/// A feature map.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    pub(super) value: usize,
    pub(super) bytes: u64,
    pub(super) producer: usize,
    /// The last task that reads it before the first task of another phase does; the producer if there is none.
    pub(super) last_forward: usize,
    /// The first task that reads it after that.
    pub(super) first_backward: usize,
    /// Seconds of a copy to the memory.
    pub(super) out: f64,
    /// Seconds of a copy back.
    pub(super) back: f64,
}

/// A problem with one device that computes and one memory, and its feature maps.
pub(super) struct Maps<'g, 'p> {
    pub(super) graph: &'g Graph<'p>,
    pub(super) memory: DeviceId,
    /// Whether copies in both directions share one queue.
    pub(super) half_duplex: bool,
    /// Bytes of the memory that copies may take.
    pub(super) room: u64,
    /// In the order of their producers.
    pub(super) maps: Vec<Map>,
    /// By value.
    map_of: Vec<Option<u32>>,
    /// By task, the maps whose last forward use it is.
    pub(super) let_go: Vec<Vec<u32>>,
    /// By task, the forward values that aren't maps whose last use it is.
    pub(super) dead: Vec<Vec<u32>>,
    /// The tasks at which a map is first needed after its forward uses, ascending: the backward stages.
    pub(super) stages: Vec<usize>,
}

impl<'g, 'p> Maps<'g, 'p> {
    pub(super) fn new(graph: &'g Graph<'p>) -> Result<Self, SolveError> {
        let problem = graph.problem;
        let (memory, out, back) = links(graph)?;
        if graph.tasks.iter().all(|task| task.forward) {
            let what = "no task is marked as backward, so nothing is a feature map";
            return Err(SolveError::unsupported(graph.method.name(), what));
        }
        let maps = feature_maps(graph, (out, back));
        let mut map_of = vec![None; graph.values.len()];
        let mut let_go = vec![Vec::new(); graph.tasks.len()];
        for (id, map) in maps.iter().enumerate() {
            map_of[map.value] = Some(id as u32);
            let_go[map.last_forward].push(id as u32);
        }
        let mut dead = vec![Vec::new(); graph.tasks.len()];
        for (value, what) in graph.values.iter().enumerate() {
            let Some(producer) = what.producer.filter(|&task| graph.tasks[task].forward) else {
                continue;
            };
            let last = what.consumers.last().copied().unwrap_or(producer);
            if !what.kept && graph.tasks[last].forward {
                dead[last].push(value as u32);
            }
        }
        let mut stages: Vec<usize> = maps.iter().map(|map| map.first_backward).collect();
        stages.sort_unstable();
        stages.dedup();
        let given = problem.values().values();
        let there = given.filter(|value| value.origin == Origin::Given(memory));
        let taken = problem.devices()[memory].resident + there.map(|v| v.bytes).sum::<u64>();
        let room = graph.capacities.bytes(memory);
        Ok(Maps {
            graph,
            memory,
            half_duplex: problem.queue(out) == problem.queue(back),
            room: room.map_or(u64::MAX, |bytes| bytes.saturating_sub(taken)),
            maps,
            map_of,
            let_go,
            dead,
            stages,
        })
    }

    /// The map that a value is.
    pub(super) fn of(&self, value: usize) -> Option<usize> {
        self.map_of[value].map(|map| map as usize)
    }

    /// What a task is called.
    pub(super) fn name(&self, task: usize) -> &str {
        &self.graph.problem.task(TaskId::new(task)).name
    }
}

/// The other memory, with the link to it and the link back.
pub(super) fn links(graph: &Graph<'_>) -> Result<(DeviceId, LinkId, LinkId), SolveError> {
    let (problem, device) = (graph.problem, graph.device);
    let mut linked = problem.devices().keys().filter_map(|memory| {
        let out = problem.link_between(device, memory)?;
        Some((memory, out, problem.link_between(memory, device)?))
    });
    let found = linked.next().ok_or(
        "it has no memory with links there and back to which values could be swapped (on the command line, --swap adds one)",
    );
    let only = found.and_then(|found| match linked.next() {
        None => Ok(found),
        Some(_) => Err("it has several memories, and the method knows one"),
    });
    only.map_err(|what| SolveError::unsupported(graph.method.name(), what))
}

fn feature_maps(graph: &Graph<'_>, (out, back): (LinkId, LinkId)) -> Vec<Map> {
    let problem = graph.problem;
    let mut maps = Vec::new();
    for (producer, task) in graph.tasks.iter().enumerate().filter(|(_, t)| t.forward) {
        for &value in &task.outputs {
            let what = &graph.values[value];
            let consumers = &what.consumers;
            let Some(turn) = (consumers.iter()).position(|&reader| !graph.tasks[reader].forward)
            else {
                continue;
            };
            if what.kept || what.bytes == 0 {
                continue;
            }
            let seconds = |link| problem.copy_seconds(link, ValueId::new(value));
            maps.push(Map {
                value,
                bytes: what.bytes,
                producer,
                last_forward: turn.checked_sub(1).map_or(producer, |last| consumers[last]),
                first_backward: consumers[turn],
                out: seconds(out),
                back: seconds(back),
            });
        }
    }
    let mut sizes: Vec<u64> = maps.iter().map(|map| map.bytes).collect();
    sizes.sort_unstable();
    let all: u64 = sizes.iter().sum();
    let mut sum = 0;
    let least = sizes.into_iter().find(|bytes| {
        sum += bytes;
        sum > all / NEGLIGIBLE
    });
    maps.retain(|map| Some(map.bytes) >= least);
    maps
}
