//! Passes over whole steps of a plan, and what their times mean.
//!
//! Each run has two times: one in its place, and one *warm*, right after all of its arguments were read
//! through twice. For each of the two, [`Recency`] tells how many bytes move between memory and the
//! last-level cache. The line through both points is the measurement's cost: [`Times::warm`] where nothing
//! moves, and [`Times::per_moved_byte`] for each byte that does. Where the points are too close to each
//! other, a node is taken to cost the same everywhere.
//!
//! Interruptions are left out of each run's times (see `typical`). But a step has hundreds of runs, and in
//! every step something takes longer than usual, so typical times of single runs add up to too little. All
//! times are therefore scaled so that their sum over all runs is what a whole pass typically takes.

use scrimp_graph::{DType, Graph, NodeId, Role};
use scrimp_plan::{DeviceId, Step};
use std::hint::black_box;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Rehearsal;
use super::distinct::{Distinct, Times};
use super::last_level::cache_of;
use super::locality::{Access, Recency, accesses, moved_bytes};
use super::typical::typical;
use crate::data::Data;
use crate::error::RunError;
use crate::executor::{Executor, ExecutorOptions, RunEvent};
use crate::par;
use crate::processor::Processor;
use crate::span::Span;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Warms up.
    Unmeasured,
    /// Times the runs in their places.
    InPlace,
    /// Times the runs with their arguments in the caches.
    Warm,
    /// Times the runs in their places while other devices go through their plans.
    Beside,
}

struct Run {
    node: NodeId,
    touches: Vec<Access>,
    seconds: Vec<f64>,
    warm: Vec<f64>,
    beside: Vec<f64>,
}

impl Run {
    fn arguments<'m>(&self, memory: impl Fn(Span) -> Option<&'m [u8]>) -> Vec<&'m [u8]> {
        let ranges = self.touches.iter().map(|access| &access.range);
        let memory = ranges.filter_map(|range| {
            memory(Span {
                offset: range.start,
                bytes: range.end - range.start,
            })
        });
        memory.collect()
    }

    fn bytes(&self) -> f64 {
        let ranges = self.touches.iter().map(|access| &access.range);
        ranges.map(|range| range.end - range.start).sum::<u64>() as f64
    }
}

/// A plan in memory, and the times measured so far.
pub(super) struct Passes<'a> {
    rehearsal: &'a Rehearsal<'a>,
    device: DeviceId,
    executor: Executor<'a>,
    runs: Vec<Run>,
    /// Whether what a driver takes between two runs counts as part of the second: where it doesn't wait for copies.
    with_gaps: bool,
    /// Seconds of each pass with runs in their places.
    totals: Vec<f64>,
    /// The same beside other devices.
    totals_beside: Vec<f64>,
}

impl<'a> Passes<'a> {
    pub fn new(rehearsal: &'a Rehearsal<'a>) -> Result<Self, RunError> {
        let Rehearsal {
            compiled,
            lowered,
            layout,
            ..
        } = *rehearsal;
        let options = ExecutorOptions {
            files: rehearsal.files,
            ..ExecutorOptions::default()
        };
        let executor = Executor::new(slice::from_ref(compiled), lowered, layout, options)?;
        let device = layout.plan().problem().sole_device();
        let device = device.ok_or_else(|| RunError::WrongPlan {
            reason: "it runs tasks on several devices".into(),
        })?;
        let steps = layout.plan().steps();
        let copies = steps.iter().any(|step| matches!(step, Step::Copy { .. }));
        let runs = steps
            .iter()
            .enumerate()
            .filter_map(|(index, step)| match *step {
                Step::Run { task, .. } => Some(Run {
                    node: lowered.nodes[task],
                    touches: accesses(layout, index),
                    seconds: Vec::new(),
                    warm: Vec::new(),
                    beside: Vec::new(),
                }),
                _ => None,
            });
        Ok(Passes {
            rehearsal,
            device,
            executor,
            runs: runs.collect(),
            with_gaps: compiled.processor().goes_ahead() && !copies,
            totals: Vec::new(),
            totals_beside: Vec::new(),
        })
    }

    /// Goes through the plan once. `progress` receives the number of runs done and the number of all runs.
    pub fn pass(
        &mut self,
        kind: Pass,
        progress: &mut (dyn FnMut(usize, usize) + Send),
    ) -> Result<(), RunError> {
        let seconds = self.go(kind, progress)?;
        self.note(kind, &seconds);
        Ok(())
    }

    /// Goes through the plan again and again until as many passes as there are devices in `working` have ended: each
    /// device takes itself off after its first one. Notes the passes during which all others were at work.
    pub fn beside(&mut self, working: &AtomicUsize) -> Result<(), RunError> {
        let mut first = true;
        while first || working.load(Ordering::SeqCst) > 0 {
            let seconds = self.go(Pass::Beside, &mut |_, _| {});
            let overlapped = working.load(Ordering::SeqCst) > 0;
            if std::mem::take(&mut first) {
                working.fetch_sub(1, Ordering::SeqCst);
            }
            let seconds = seconds?;
            if overlapped {
                self.note(Pass::Beside, &seconds);
            }
        }
        Ok(())
    }

    /// The seconds of each run of one pass.
    fn go(
        &mut self,
        kind: Pass,
        progress: &mut (dyn FnMut(usize, usize) + Send),
    ) -> Result<Vec<f64>, RunError> {
        let runs = &self.runs;
        let processor = self.rehearsal.compiled.processor();
        feed(self.rehearsal.compiled.graph(), &mut self.executor)?;
        let first = runs.first().filter(|_| kind == Pass::Warm);
        let memory = |span| self.executor.memory(span);
        let first = first.map_or(Vec::new(), |run| run.arguments(memory));
        processor.enter(|| read_through(processor, &first));
        let mut done = 0;
        let mut observe = |event: &RunEvent<'_>| {
            done += 1;
            if done % 16 == 0 || done == runs.len() {
                progress(done, runs.len());
            }
            if let (Pass::Warm, Some(next)) = (kind, runs.get(done)) {
                read_through(processor, &next.arguments(|span| event.memory(span)));
            }
        };
        let trace = self.executor.step(Some(&mut observe))?;
        let mut before = trace.runs.first().map_or(0.0, |run| run.start);
        let seconds = trace.runs.iter().map(|run| {
            let end = run.start + run.seconds;
            match self.with_gaps {
                true => end - std::mem::replace(&mut before, end),
                false => run.seconds,
            }
        });
        Ok(seconds.collect())
    }

    fn note(&mut self, kind: Pass, seconds: &[f64]) {
        for (run, &seconds) in self.runs.iter_mut().zip(seconds) {
            match kind {
                Pass::Unmeasured => {}
                Pass::InPlace => run.seconds.push(seconds),
                Pass::Warm => run.warm.push(seconds),
                Pass::Beside => run.beside.push(seconds),
            }
        }
        match kind {
            Pass::Unmeasured | Pass::Warm => {}
            Pass::InPlace => self.totals.push(seconds.iter().sum()),
            Pass::Beside => self.totals_beside.push(seconds.iter().sum()),
        }
    }

    pub fn seconds(&self) -> f64 {
        typical(&self.totals)
    }

    /// How many times as long each measurement takes beside other devices.
    pub fn slowed(&self, distinct: &Distinct) -> Vec<f64> {
        let scale = self.scale(&self.totals, |run| &run.seconds);
        let beside = self.scale(&self.totals_beside, |run| &run.beside);
        let mut sums = vec![(0.0, 0.0); distinct.keys.len()];
        for run in &self.runs {
            if let Some(key) = distinct.of[run.node] {
                sums[key].0 += scale * typical(&run.seconds);
                sums[key].1 += beside * typical(&run.beside);
            }
        }
        let all = typical(&self.totals_beside) / self.seconds();
        let slowed = sums.into_iter().map(|(seconds, beside)| beside / seconds);
        let sound = |slowed: f64| slowed.is_finite() && slowed > 0.0;
        let all = if sound(all) { all } else { 1.0 };
        slowed
            .map(|slowed| if sound(slowed) { slowed } else { all })
            .collect()
    }

    /// What typical times of single runs are multiplied by, so that they add up to a typical pass.
    fn scale(&self, totals: &[f64], seconds: impl Fn(&Run) -> &[f64]) -> f64 {
        let sum: f64 = self.runs.iter().map(|run| typical(seconds(run))).sum();
        if sum > 0.0 {
            typical(totals) / sum
        } else {
            1.0
        }
    }

    pub fn times(&self, distinct: &Distinct) -> Vec<Times> {
        let scale = self.scale(&self.totals, |run| &run.seconds);
        let mut means = vec![Mean::default(); distinct.keys.len()];
        for (run, moved) in self.runs.iter().zip(self.moved()) {
            if let Some(key) = distinct.of[run.node] {
                means[key].add(&Mean {
                    runs: 1.0,
                    seconds: scale * typical(&run.seconds),
                    warm: scale * typical(&run.warm),
                    bytes: run.bytes(),
                    moved: moved.in_place,
                    moved_warm: moved.warm,
                    ..Mean::default()
                });
            }
        }
        for (node, moved) in self.moved_when_kept() {
            if let Some(key) = distinct.of[node] {
                means[key].nodes += 1.0;
                means[key].moved_when_kept += moved;
            }
        }
        means.iter().map(Mean::times).collect()
    }

    fn moved(&self) -> Vec<Moved> {
        let Some(cache) = cache_of(self.rehearsal.compiled.processor()) else {
            return vec![Moved::default(); self.runs.len()];
        };
        let mut recency = Recency::new(cache);
        let runs = || self.runs.iter();
        // The second pass meets what the first one left behind.
        runs().for_each(|run| {
            recency.touch(&run.touches);
        });
        let in_place: Vec<f64> = runs().map(|run| recency.touch(&run.touches)).collect();
        let moved = runs().zip(in_place).map(|(run, in_place)| {
            for _ in 0..READS {
                recency.touch(&run.touches);
            }
            let warm = recency.touch(&run.touches);
            Moved { in_place, warm }
        });
        moved.collect()
    }

    /// The bytes that each node moves in a step that keeps everything.
    fn moved_when_kept(&self) -> Vec<(NodeId, f64)> {
        let Rehearsal {
            lowered, keep_all, ..
        } = *self.rehearsal;
        let Some(cache) = cache_of(self.rehearsal.compiled.processor()) else {
            return Vec::new();
        };
        let moved = moved_bytes(keep_all, self.device, cache);
        let steps = keep_all.plan().steps().iter().zip(moved);
        let runs = steps.filter_map(|(step, moved)| match *step {
            Step::Run { task, .. } => Some((lowered.nodes[task], moved)),
            _ => None,
        });
        runs.collect()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    in_place: f64,
    warm: f64,
}

/// Sums over the runs of one measurement and over its nodes.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    runs: f64,
    seconds: f64,
    warm: f64,
    bytes: f64,
    moved: f64,
    moved_warm: f64,
    nodes: f64,
    moved_when_kept: f64,
}

/// The least difference between the bytes moved in place and warm, as a share of the bytes touched. Below it
/// the two times differ only by noise.
const TELLING: f64 = 0.1;

impl Mean {
    fn add(&mut self, other: &Mean) {
        self.runs += other.runs;
        self.seconds += other.seconds;
        self.warm += other.warm;
        self.bytes += other.bytes;
        self.moved += other.moved;
        self.moved_warm += other.moved_warm;
    }

    fn times(&self) -> Times {
        let count = self.runs.max(1.0);
        let (seconds, moved) = (self.seconds / count, self.moved / count);
        let (fewer, bytes) = ((self.moved - self.moved_warm) / count, self.bytes / count);
        let saved = seconds - self.warm / count;
        let tells = self.warm > 0.0 && saved > 0.0 && fewer > TELLING * bytes;
        let per_moved_byte = if tells {
            // A run in which nothing moves can't take less than no time.
            (saved / fewer).min(seconds / moved)
        } else {
            0.0
        };
        let warm = seconds - per_moved_byte * moved;
        let when_kept = self.moved_when_kept / self.nodes.max(1.0);
        Times {
            seconds: warm + per_moved_byte * when_kept,
            warm,
            per_moved_byte,
        }
    }
}

/// How often arguments are read through: after a single read from memory they aren't in the last-level cache
/// yet.
const READS: usize = 2;
const CHUNK: usize = 1 << 16;
/// Reading one byte of a line brings the whole line.
const LINE: usize = 64;

/// Reads memory on the device's threads, so that the caches hold it.
fn read_through(processor: Processor<'_>, arguments: &[&[u8]]) {
    for memory in (0..READS).flat_map(|_| arguments) {
        let (threads, chunks) = (processor.threads(), memory.len().div_ceil(CHUNK));
        par::tasks(threads, chunks, &|_, task| {
            let chunk = memory.chunks(CHUNK).nth(task).unwrap_or_default();
            let sum = chunk
                .iter()
                .step_by(LINE)
                .fold(0u8, |sum, &byte| sum ^ byte);
            black_box(sum);
        });
    }
}

/// Sets what a step may have freed: inputs to numbers of ordinary size, integers to 0, and the optimizer's
/// settings.
fn feed(graph: &Graph, executor: &mut Executor<'_>) -> Result<(), RunError> {
    for (id, tensor) in graph.given() {
        let value = match tensor.role {
            Role::Hyper => |i: usize| if i == 0 { 1e-3 } else { 1.0 },
            Role::Input | Role::Seed => |i: usize| ((i * 7919) % 1000) as f32 / 500.0 - 1.0,
            _ => continue,
        };
        if tensor.dtype == DType::I64 {
            executor.set(id, Data::I64(&vec![0; tensor.elements()]))?;
            continue;
        }
        let mut at = 0;
        executor.set_pieces(id, &mut |piece: &mut [f32]| {
            for x in piece {
                *x = value(at);
                at += 1;
            }
            Ok::<(), RunError>(())
        })?;
    }
    Ok(())
}
