//! Passes over a graph, and what their times mean.
//!
//! Of each node there are two times: in its place, and *warm*, right after all of its arguments were read through,
//! twice. Of each there is also known how many bytes move between memory and the last cache, by
//! [`scrimp_plan::Recency`]. The line through both points is the measurement's cost: [`Times::warm`] where nothing
//! moves, and [`Times::per_moved_byte`]. Where the points are too near each other to tell, a node takes the same time
//! everywhere.
//!
//! Interruptions are left out of each node's times (see `typical`), but a step has hundreds of nodes and something
//! always takes longer than usual. So all times are scaled to make the sum over all nodes what a whole pass
//! typically takes.

use scrimp_graph::{DType, Graph, NodeId, Role, TensorId};
use scrimp_plan::{Access, Recency};
use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use super::distinct::{Distinct, Times};
use super::last_level::last_level_cache;
use super::place::{Places, rounded};
use super::typical::typical;
use crate::arena::Arena;
use crate::compiled::Compiled;
use crate::data::{Elements, arrange};
use crate::error::RunError;
use crate::job::Job;
use crate::par;
use crate::processor::Processor;
use crate::span::Span;

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// To warm up.
    Unmeasured,
    /// For the times of nodes in their places.
    InPlace,
    /// For their times with arguments in the caches.
    Warm,
}

/// One node, ready to run.
struct Prepared {
    node: NodeId,
    job: Job,
    touches: Vec<Access>,
    seconds: Vec<f64>,
    warm: Vec<f64>,
}

impl Prepared {
    fn bytes(&self) -> f64 {
        let ranges = self.touches.iter().map(|access| &access.range);
        ranges.map(|range| range.end - range.start).sum::<u64>() as f64
    }
}

/// A graph in memory, and the times so far.
pub(super) struct Passes<'a> {
    graph: &'a Graph,
    processor: Processor<'a>,
    arena: Arena,
    nodes: Vec<Prepared>,
    /// Of each pass in which nodes are in their places.
    totals: Vec<f64>,
}

impl<'a> Passes<'a> {
    /// Takes memory for it and fills it.
    pub fn new(compiled: &Compiled<'a>, plan: &Distinct, room: u64) -> Result<Self, RunError> {
        let (graph, processor) = (compiled.graph(), compiled.processor());
        let places = Places::new(graph, plan, room);
        let mut arena = Arena::new(places.end)?;
        processor.enter(|| initialize(compiled, &places, &mut arena))?;
        let mut nodes = Vec::new();
        for (id, node) in graph.nodes().iter().filter(|(_, node)| !node.op.is_view()) {
            let place = &places.nodes[id];
            let mut offsets = place.tensors.iter();
            let mut touches = Vec::new();
            let mut list = |tensors: &[TensorId], written| -> Result<Vec<Span>, RunError> {
                let spans = tensors.iter().zip(&mut offsets).map(|(&tensor, &offset)| {
                    let what = graph.tensor(tensor);
                    let range = offset..offset + rounded(what.bytes());
                    touches.push(Access { range, written });
                    arena.span(offset, what.bytes(), &what.name)
                });
                spans.collect()
            };
            let (reads, writes) = (list(&node.inputs, false)?, list(&node.outputs, true)?);
            let workspace = match compiled.workspace(id) {
                0 => Span::EMPTY,
                bytes => {
                    let range = place.workspace..place.workspace + bytes;
                    touches.push(Access {
                        range,
                        written: true,
                    });
                    arena.span(place.workspace, bytes, &node.name)?
                }
            };
            let job = compiled.job(id, &reads, &writes, workspace)?;
            nodes.push(Prepared {
                node: id,
                job,
                touches,
                seconds: Vec::new(),
                warm: Vec::new(),
            });
        }
        Ok(Passes {
            graph,
            processor,
            arena,
            nodes,
            totals: Vec::new(),
        })
    }

    /// Runs every node once; call it inside [`Processor::enter`]. `progress` is told how many of how many are done.
    pub fn pass(
        &mut self,
        kind: Pass,
        progress: &mut (dyn FnMut(usize, usize) + Send),
    ) -> Result<(), RunError> {
        let nodes = self.nodes.len();
        let mut total = 0.0;
        for (index, prepared) in self.nodes.iter_mut().enumerate() {
            let node = self.graph.node(prepared.node);
            if kind == Pass::Warm {
                let reads = (0..READS).flat_map(|_| &prepared.touches);
                reads.for_each(|access| read_through(self.processor, &self.arena, &access.range));
            }
            let start = Instant::now();
            self.processor
                .run(&prepared.job, &mut self.arena)
                .map_err(|error| RunError::in_node(&node.name, error))?;
            let seconds = start.elapsed().as_secs_f64();
            total += seconds;
            match kind {
                Pass::Unmeasured => {}
                Pass::InPlace => prepared.seconds.push(seconds),
                Pass::Warm => prepared.warm.push(seconds),
            }
            if index % 16 == 0 || index + 1 == nodes {
                progress(index + 1, nodes);
            }
        }
        if kind == Pass::InPlace {
            self.totals.push(total);
        }
        Ok(())
    }

    /// What a whole pass typically takes.
    pub fn seconds(&self) -> f64 {
        typical(&self.totals)
    }

    /// The times of each measurement: means over its nodes.
    pub fn times(&self, plan: &Distinct) -> Vec<Times> {
        let sum: f64 = self.nodes.iter().map(|node| typical(&node.seconds)).sum();
        let scale = if sum > 0.0 { self.seconds() / sum } else { 1.0 };
        let mut means = vec![Mean::default(); plan.keys.len()];
        for (prepared, moved) in self.nodes.iter().zip(self.moved()) {
            if let Some(key) = plan.of[prepared.node] {
                means[key].add(&Mean {
                    nodes: 1.0,
                    seconds: scale * typical(&prepared.seconds),
                    warm: scale * typical(&prepared.warm),
                    bytes: prepared.bytes(),
                    moved: moved.in_place,
                    moved_warm: moved.warm,
                });
            }
        }
        means.iter().map(Mean::times).collect()
    }

    /// The bytes that each node moves.
    fn moved(&self) -> Vec<Moved> {
        let Some(cache) = last_level_cache() else {
            return vec![Moved::default(); self.nodes.len()];
        };
        let mut recency = Recency::new(cache);
        let nodes = || self.nodes.iter();
        // What the last pass leaves behind is what the next one meets.
        nodes().for_each(|node| {
            recency.touch(&node.touches);
        });
        let in_place: Vec<f64> = nodes().map(|node| recency.touch(&node.touches)).collect();
        let moved = nodes().zip(in_place).map(|(node, in_place)| {
            for _ in 0..READS {
                recency.touch(&node.touches);
            }
            let warm = recency.touch(&node.touches);
            Moved { in_place, warm }
        });
        moved.collect()
    }
}

/// Bytes that a node moves between memory and the last cache.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    in_place: f64,
    warm: f64,
}

/// Sums over the nodes of one measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    nodes: f64,
    seconds: f64,
    warm: f64,
    /// What it touches.
    bytes: f64,
    moved: f64,
    moved_warm: f64,
}

/// The least difference between the bytes that move in place and warm, as a share of what is touched: below it the
/// two times differ by noise.
const TELLING: f64 = 0.1;

impl Mean {
    fn add(&mut self, other: &Mean) {
        self.nodes += other.nodes;
        self.seconds += other.seconds;
        self.warm += other.warm;
        self.bytes += other.bytes;
        self.moved += other.moved;
        self.moved_warm += other.moved_warm;
    }

    fn times(&self) -> Times {
        let count = self.nodes.max(1.0);
        let (seconds, moved) = (self.seconds / count, self.moved / count);
        let (fewer, bytes) = ((self.moved - self.moved_warm) / count, self.bytes / count);
        let saved = seconds - self.warm / count;
        let tells = self.warm > 0.0 && saved > 0.0 && fewer > TELLING * bytes;
        let per_moved_byte = if tells {
            // Not below no time at all where nothing moves.
            (saved / fewer).min(seconds / moved)
        } else {
            0.0
        };
        Times {
            seconds,
            warm: seconds - per_moved_byte * moved,
            per_moved_byte,
        }
    }
}

/// How often arguments are read through: what was read once from memory isn't in the last cache yet.
const READS: usize = 2;
/// Bytes that a thread reads at a time.
const CHUNK: usize = 1 << 16;
/// One byte of each line brings all of it.
const LINE: usize = 64;

/// Reads memory on the device's threads, so that it is in the caches.
fn read_through(processor: Processor<'_>, arena: &Arena, range: &Range<u64>) {
    let memory = arena.bytes_at(range.start, range.end - range.start);
    par::tasks(
        processor.threads(),
        memory.len().div_ceil(CHUNK),
        &|_, task| {
            let chunk = memory.chunks(CHUNK).nth(task).unwrap_or_default();
            let sum = chunk
                .iter()
                .step_by(LINE)
                .fold(0u8, |sum, &byte| sum ^ byte);
            black_box(sum);
        },
    );
}

/// Parameters and the like as for training, inputs with numbers of ordinary size, integers 0.
fn initialize(compiled: &Compiled<'_>, places: &Places, arena: &mut Arena) -> Result<(), RunError> {
    let graph = compiled.graph();
    for (id, tensor) in graph.given() {
        let (offset, bytes) = (places.given[id], tensor.bytes());
        let memory = Elements::new(tensor.dtype, arena.bytes_at_mut(offset, bytes));
        match tensor.role {
            Role::Hyper => memory.fill(|i| if i == 0 { 1e-3 } else { 1.0 }),
            Role::Input if tensor.dtype != DType::I64 => {
                memory.fill(|i| ((i * 7919) % 1000) as f64 / 500.0 - 1.0)
            }
            _ => memory.initialize(graph, id, 0)?,
        }
        let change = compiled.formats().of(id).change(&tensor.shape);
        arrange(change, tensor.dtype, arena.bytes_at_mut(offset, bytes));
    }
    Ok(())
}
