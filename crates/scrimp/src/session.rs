//! One training run: an executor that is fed step by step, from a fresh start or from where a file of weights
//! left off.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::time::Instant;

use cranelift_entity::EntityRef;
use scrimp_graph::data::{Contents, Feed};
use scrimp_graph::weights::Elements;
use scrimp_graph::{Lowered, Optimizer, Role, Storages, TensorId, TrainingGraph};
use scrimp_plan::{CheckedLayout, Phase};
use scrimp_run::{Compiled, Data, Executor, ExecutorOptions, Observer, RunEvent, StepTrace};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

use crate::checkpoint::{self, Start};
use crate::error::{Error, Result};
use crate::swap::Swap;

/// What is trained and how: everything but the plan.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The training step.
    pub training: &'a TrainingGraph,
    /// Its tasks and values.
    pub lowered: &'a Lowered,
    /// The training step's graph on each device that computes, in their order.
    pub compiled: &'a [Compiled<'a>],
    /// The data.
    pub feed: &'a Feed,
    /// How parameters change.
    pub optimizer: Optimizer,
    /// Step size.
    pub learning_rate: f32,
    /// Where to begin.
    pub start: &'a Start,
    /// Memories to swap to.
    pub swap: &'a Swap,
}

/// A training run under one plan.
#[derive(Debug)]
pub struct Session<'a> {
    job: Job<'a>,
    executor: Executor<'a>,
    /// Steps done since training first began, by this run and by those that it resumes.
    step: u64,
    /// For each tensor that a node writes, the index of the gradient that it completes in the training
    /// graph's list.
    gradients: HashMap<TensorId, usize>,
    breakdown: Breakdown,
    /// The trace of the last step.
    trace: StepTrace,
}

/// What one step did.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRecord {
    /// The loss before the update.
    pub loss: f32,
    /// Wall-clock time of the step, without setting inputs.
    pub seconds: f64,
    /// A hash of each gradient's bytes, in the training graph's order; empty unless asked for.
    pub gradients: Vec<u64>,
}

/// Where the time of a run went, in seconds over all of its steps and devices that compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Breakdown {
    /// First runs of forward tasks.
    pub forward: f64,
    /// First runs of backward tasks.
    pub backward: f64,
    /// Updates of parameters.
    pub update: f64,
    /// Runs beyond the first.
    pub recompute: f64,
    /// Waits for copies between runs.
    pub waiting: f64,
    /// The rest of the time between runs, and the copies after the last one.
    pub other: f64,
}

impl<'a> Session<'a> {
    /// Prepares the plan in an arena of `arena_bytes` bytes on the first device that computes, or as many as the
    /// layout needs if that is more, and fills weights and state.
    ///
    /// # Errors
    /// If the plan doesn't fit the job or this machine, or there isn't enough memory.
    pub fn new(job: Job<'a>, layout: &CheckedLayout, arena_bytes: u64) -> Result<Session<'a>> {
        let options = ExecutorOptions {
            seed: job.start.seed,
            arena_bytes,
            files: &job.swap.files(layout.plan().problem()),
            ..ExecutorOptions::default()
        };
        let mut executor = Executor::new(job.compiled, job.lowered, layout, options)?;
        job.start.fill(&mut executor, &job.training.graph)?;
        Ok(Session {
            executor,
            step: job.start.step,
            gradients: gradient_writers(job.training),
            breakdown: Breakdown::default(),
            trace: StepTrace::default(),
            job,
        })
    }

    /// Trains one step. `hash` asks for the gradients' hashes.
    ///
    /// # Errors
    /// If a kernel refuses its data.
    pub fn step(&mut self, hash: bool) -> Result<StepRecord> {
        self.feed()?;
        let training = self.job.training;
        let mut gradients = vec![0; if hash { training.gradients.len() } else { 0 }];
        let mut hashing = 0.0;
        let mut failed = None;
        let mut observe = |event: &RunEvent<'_>| {
            for (tensor, output) in event.outputs() {
                let Some(&index) = self.gradients.get(&tensor) else {
                    continue;
                };
                // A device that goes ahead computes until the bytes are here.
                match output.bytes() {
                    Ok(bytes) => {
                        let start = Instant::now();
                        gradients[index] = xxh3_64(&bytes);
                        hashing += start.elapsed().as_secs_f64();
                    }
                    Err(error) => failed = Some(error),
                }
            }
        };
        let observer: Option<Observer<'_>> = if hash { Some(&mut observe) } else { None };
        let trace = self.executor.step(observer)?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        self.trace.clone_from(trace);
        self.trace.seconds -= hashing;
        self.breakdown.add(&self.trace, self.job.lowered, training);
        let loss = self
            .executor
            .read(training.loss)?
            .first()
            .copied()
            .unwrap_or(f32::NAN);
        self.step += 1;
        Ok(StepRecord {
            loss,
            seconds: self.trace.seconds,
            gradients,
        })
    }

    /// Sets the inputs, the optimizer's settings and the random state for the next step.
    fn feed(&mut self) -> Result<()> {
        for (tensor, contents) in self.job.feed.step(self.step) {
            set(&mut self.executor, tensor, &contents)?;
        }
        let (seed, number) = (self.job.start.seed, self.step + 1);
        // The seed has 53 bits, so that any number type holds it.
        let random = [(xxh3_64_with_seed(&self.step.to_le_bytes(), seed) >> 11) as i64];
        for (tensor, what) in self.job.training.graph.given() {
            match what.role {
                Role::Hyper => {
                    let hyper = [self.job.learning_rate, number as f32];
                    self.executor.set(tensor, Data::F32(&hyper))?;
                }
                Role::Seed => self.executor.set(tensor, Data::I64(&random))?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Steps done, including those before a resumption.
    pub fn steps_done(&self) -> u64 {
        self.step
    }

    /// Bytes of the arenas of all devices that compute.
    pub fn arena_bytes(&self) -> u64 {
        self.executor.arena_bytes()
    }

    /// A record of the last step, run by run.
    pub fn trace(&self) -> &StepTrace {
        &self.trace
    }

    /// Where the time went.
    pub fn breakdown(&self) -> Breakdown {
        self.breakdown
    }

    /// Writes a file with parameters, optimizer state, running statistics, the step number and the seed, from which
    /// [`crate::Start::resume`] goes on.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn save(&self, file: &mut dyn Write) -> io::Result<()> {
        let Job {
            training,
            optimizer,
            start,
            ..
        } = self.job;
        checkpoint::save(file, self, training, optimizer, start.seed, self.step)
    }

    /// A hash of each parameter and each tensor of state, in the training graph's order.
    ///
    /// # Errors
    /// If one of them can't be read.
    pub fn hashes(&self) -> Result<Vec<(TensorId, u64)>> {
        let graph = &self.job.training.graph;
        let hash = |tensor| {
            let mut hash = Xxh3::new();
            let all = 0..graph.tensor(tensor).elements();
            self.executor
                .read_pieces::<Error>(tensor, all, &mut |piece| {
                    let each = piece.iter();
                    each.for_each(|element| hash.update(&element.to_le_bytes()));
                    Ok(())
                })?;
            Ok((tensor, hash.digest()))
        };
        checkpoint::kept(graph).map(hash).collect()
    }
}

/// The elements of parameters and state, by their names in the training graph.
impl Elements for Session<'_> {
    fn read(
        &self,
        name: &str,
        elements: Range<usize>,
        take: &mut dyn FnMut(&[f32]) -> io::Result<()>,
    ) -> io::Result<()> {
        let tensor = self.job.training.graph.find(name);
        let tensor =
            tensor.ok_or_else(|| io::Error::other(format!("there is no tensor {name:?}")))?;
        self.executor.read_pieces(tensor, elements, take)
    }
}

/// Sets an input's contents.
pub(crate) fn set(
    executor: &mut Executor<'_>,
    tensor: TensorId,
    contents: &Contents,
) -> Result<()> {
    let data = match contents {
        Contents::Floats(values) => Data::F32(values),
        Contents::Ints(values) => Data::I64(values),
        Contents::Stored(stream) => {
            let mut first = 0;
            return executor.set_pieces(tensor, &mut |piece| {
                let read = stream.read_from(first, piece);
                first += piece.len();
                read.map_err(Error::from)
            });
        }
    };
    executor.set(tensor, data).map_err(Error::from)
}

/// The tensors whose writers complete a gradient. A gradient that is a view is complete when its storage is.
fn gradient_writers(training: &TrainingGraph) -> HashMap<TensorId, usize> {
    let storages = Storages::new(&training.graph);
    let indices = training.gradients.iter().enumerate();
    indices
        .map(|(index, &(_, gradient))| (storages.root(gradient), index))
        .collect()
}

impl Breakdown {
    fn add(&mut self, trace: &StepTrace, lowered: &Lowered, training: &TrainingGraph) {
        let mut seen = vec![false; lowered.nodes.len()];
        let mut running = 0.0;
        for run in &trace.runs {
            running += run.seconds;
            let again = std::mem::replace(&mut seen[run.task.index()], true);
            let part = match training.phases[lowered.nodes[run.task]] {
                _ if again => &mut self.recompute,
                Phase::Forward => &mut self.forward,
                Phase::Backward => &mut self.backward,
                Phase::Update => &mut self.update,
            };
            *part += run.seconds;
        }
        let waiting: f64 = trace.waiting.values().sum();
        let devices = lowered.problem.devices().values();
        let devices = devices.filter(|device| device.computes).count() as f64;
        self.waiting += waiting;
        self.other += (trace.seconds * devices - running - waiting).max(0.0);
    }

    /// The mean over this many steps.
    pub fn per_step(self, steps: u64) -> Breakdown {
        let share = |seconds: f64| seconds / steps.max(1) as f64;
        Breakdown {
            forward: share(self.forward),
            backward: share(self.backward),
            update: share(self.update),
            recompute: share(self.recompute),
            waiting: share(self.waiting),
            other: share(self.other),
        }
    }
}
