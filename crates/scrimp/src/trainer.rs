//! Training within a budget in a few lines: every stage of [`crate::pipeline`] with its usual options.

use std::slice;
use std::sync::atomic::AtomicBool;

use scrimp_graph::data::{Arrays, Feed, Rows};
use scrimp_graph::networks::NetworkOptions;
use scrimp_graph::{Graph, Loss, Lowered, Optimizer, Tiles, TrainingGraph};
use scrimp_plan::{Budget, SwapMemory};
use scrimp_run::{Compiled, Cpu, Processor};
use scrimp_solve::Options;

use crate::checkpoint::Start;
use crate::error::Result;
use crate::machine;
use crate::pipeline::{self, Budgeted, Fit, ModelSource, Planned, Recipe};
use crate::session::{Job, Session, StepRecord};
use crate::swap::Swap;
use crate::training::{self, Trained};

/// Bytes of memory that measuring the links to memories may take.
const MEASURED: u64 = 64 << 20;

/// What to train and how. [`Trainer::plan`] makes it fit a budget.
#[derive(Clone, Debug)]
pub struct Trainer {
    /// The model.
    pub graph: Graph,
    /// What a step minimizes, and how it changes the parameters.
    pub recipe: Recipe,
    /// The step size.
    pub learning_rate: f32,
    /// The data to learn from: an array for each input and for labels or targets ([`Rows::new`]). Without it the model trains on random
    /// numbers, which shows how much memory and time a step takes.
    pub data: Option<Arrays>,
    /// Decides the first weights, the order of the samples and every random operator.
    pub seed: u64,
    /// Threads that a step uses; 0 means one per core.
    pub threads: usize,
    /// How to plan.
    pub options: Options,
    /// Memories in which values may wait; none unless they are given. The speed of their links is measured
    /// where it isn't stated.
    pub swap: Vec<SwapMemory>,
}

impl Trainer {
    /// Trains a built-in network or an ONNX file with `batch` samples per step, by stochastic gradient
    /// descent with momentum on the cross-entropy. Every field can be changed afterwards.
    ///
    /// # Errors
    /// If there is no such model, or it can't be imported at this batch size.
    pub fn new(model: &str, batch: usize) -> Result<Trainer> {
        let sizes = NetworkOptions {
            batch,
            ..NetworkOptions::default()
        };
        let optimizer = Optimizer::Sgd {
            momentum: 0.9,
            weight_decay: 0.0,
        };
        Ok(Trainer {
            graph: pipeline::import(&ModelSource::find(model)?, &sizes, Some(batch))?,
            recipe: Recipe {
                loss: Loss::CrossEntropy,
                optimizer,
                tiles: Tiles::Off,
            },
            learning_rate: 0.01,
            data: None,
            seed: 0,
            threads: 0,
            options: Options::default(),
            swap: Vec::new(),
        })
    }

    /// Differentiates the model and plans a step within the budget. The planner uses the costs of
    /// [`pipeline::estimate`]; call the stages one by one to plan with measured costs.
    ///
    /// # Errors
    /// If the model can't be trained this way, or no plan is found. In the latter case the error says how
    /// many bytes are enough.
    pub fn plan(&self, budget: Budget) -> Result<PlannedTraining> {
        let training = pipeline::differentiate(&self.graph, self.recipe)?;
        let cpu = Cpu::new(self.threads)?;
        let costs = pipeline::estimate(&Compiled::new(&training.graph, Processor::Cpu(&cpu)));
        let lowered = pipeline::lower(&training, &costs)?;
        let swap = Swap::measure(&self.swap, Processor::Cpu(&cpu), MEASURED, None, false)?;
        let (problem, beside) = swap.add(&lowered.problem)?;
        let budgeted = Budgeted {
            beside,
            ..pipeline::budget(&problem, budget)?
        };
        let planned = pipeline::find_plan(&budgeted, Fit::Layout, &self.options, &mut |_| {})?;
        let feed = match &self.data {
            Some(data) => {
                let room = machine::memory().available.unwrap_or(u64::MAX);
                Feed::shuffled(Rows::new(&training.graph, data.clone(), room)?, self.seed)
            }
            None => Feed::synthetic(&training.graph, self.seed),
        };
        Ok(PlannedTraining {
            training,
            lowered,
            planned,
            cpu,
            feed,
            optimizer: self.recipe.optimizer,
            learning_rate: self.learning_rate,
            start: Start::new(self.seed),
            swap,
        })
    }
}

/// A training step whose plan is proven to stay within its budget.
#[derive(Debug)]
pub struct PlannedTraining {
    /// The step: forward, backward and updates.
    pub training: TrainingGraph,
    /// Its tasks and values.
    pub lowered: Lowered,
    /// The plan, its layout and what is known of them.
    pub planned: Planned,
    /// The device.
    pub cpu: Cpu,
    feed: Feed,
    optimizer: Optimizer,
    learning_rate: f32,
    start: Start,
    swap: Swap,
}

impl PlannedTraining {
    /// The most bytes in use at any time of a step.
    pub fn peak_bytes(&self) -> u64 {
        self.planned.plan().peak(self.planned.budgeted.device)
    }

    /// The most bytes in use at any time of a step without a plan.
    pub fn base_peak_bytes(&self) -> u64 {
        self.planned.budgeted.base_peak()
    }

    /// Trains. `watch` is called after every step.
    ///
    /// # Errors
    /// If this machine doesn't have the memory, or a step fails.
    pub fn run(&self, steps: u64, watch: &mut dyn FnMut(u64, &StepRecord)) -> Result<Trained> {
        self.run_then(steps, watch, &mut |_| Ok(()))
    }

    /// Trains as [`PlannedTraining::run`] does. `finish` receives the run after its last step, while its
    /// weights are still there to be saved or read.
    ///
    /// # Errors
    /// As for [`PlannedTraining::run`]; also if `finish` fails.
    pub fn run_then(
        &self,
        steps: u64,
        watch: &mut dyn FnMut(u64, &StepRecord),
        finish: &mut dyn FnMut(&Session<'_>) -> Result<()>,
    ) -> Result<Trained> {
        let compiled = Compiled::new(&self.training.graph, Processor::Cpu(&self.cpu));
        let job = Job {
            training: &self.training,
            lowered: &self.lowered,
            compiled: slice::from_ref(&compiled),
            feed: &self.feed,
            optimizer: self.optimizer,
            learning_rate: self.learning_rate,
            start: &self.start,
            swap: &self.swap,
        };
        let never = AtomicBool::new(false);
        let outcome = training::run(job, &self.planned, None, steps, &never, watch, finish)?;
        Ok(outcome.planned)
    }
}
