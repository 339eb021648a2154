//! Where training starts, and the file that lets it go on later: weights, optimizer state, running
//! statistics, the number of steps done and the seed.

use std::path::Path;

use scrimp_graph::weights::{Require, Weights};
use scrimp_graph::{Optimizer, Role, TensorId, TrainingGraph};
use scrimp_run::Executor;

use crate::error::{Error, Result};

/// The first step's weights and state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Start {
    /// Of initial weights, the order of samples and everything random.
    pub seed: u64,
    /// Steps done before.
    pub step: u64,
    /// Contents of parameters and state; what isn't listed is initialized.
    pub tensors: Vec<(TensorId, Vec<f32>)>,
}

impl Start {
    /// From nothing.
    pub fn new(seed: u64) -> Start {
        Start {
            seed,
            ..Start::default()
        }
    }

    /// From a file. One made of what [`take`] returns goes on as if training had not stopped; its seed is used,
    /// and asking for another is an error. Any other file of weights starts from step 0.
    ///
    /// # Errors
    /// If the file can't be read or doesn't fit the graph, the optimizer or the seed.
    pub fn resume(
        path: &Path,
        training: &TrainingGraph,
        optimizer: Optimizer,
        seed: Option<u64>,
    ) -> Result<Start> {
        let weights = Weights::read(path)?;
        let wrong = |reason: String| Error::Resume {
            path: path.into(),
            reason,
        };
        let Some(step) = weights.notes.get(STEP) else {
            let tensors = weights.fit(&training.graph, Require::Parameters);
            let tensors = tensors.map_err(|error| wrong(error.to_string()))?;
            return Ok(Start {
                seed: seed.unwrap_or(0),
                step: 0,
                tensors,
            });
        };
        let note = |key: &str| weights.notes.get(key).map_or("", String::as_str);
        let damaged = |key: &str| wrong(format!("its note '{key}' is damaged; save it again"));
        let step = step.parse().map_err(|_| damaged(STEP))?;
        let saved: u64 = note(SEED).parse().map_err(|_| damaged(SEED))?;
        if note(OPTIMIZER) != name(optimizer) {
            return Err(wrong(format!(
                "it was trained with --optimizer {}, not {}; go on with the same",
                note(OPTIMIZER),
                name(optimizer)
            )));
        }
        if let Some(seed) = seed.filter(|&seed| seed != saved) {
            return Err(wrong(format!(
                "it was trained with --seed {saved}, not {seed}; leave --seed out"
            )));
        }
        let tensors = weights.fit(&training.graph, Require::Everything);
        let tensors = tensors.map_err(|error| wrong(error.to_string()))?;
        Ok(Start {
            seed: saved,
            step,
            tensors,
        })
    }
}

const STEP: &str = "step";
const SEED: &str = "seed";
const OPTIMIZER: &str = "optimizer";

/// The optimizer's name on the command line.
pub fn name(optimizer: Optimizer) -> &'static str {
    match optimizer {
        Optimizer::Sgd { momentum: 0.0, .. } => "sgd",
        Optimizer::Sgd { .. } => "momentum",
        Optimizer::Adam { .. } => "adam",
    }
}

/// Everything that training goes on from.
///
/// # Errors
/// If the executor doesn't have it.
pub fn take(
    executor: &Executor<'_>,
    training: &TrainingGraph,
    optimizer: Optimizer,
    seed: u64,
    step: u64,
) -> Result<Weights> {
    let mut weights = Weights::default();
    for (id, tensor) in training.graph.given() {
        if matches!(tensor.role, Role::Parameter(_) | Role::State(_)) {
            weights.insert(tensor, executor.read(id)?);
        }
    }
    let notes = [
        (STEP, step.to_string()),
        (SEED, seed.to_string()),
        (OPTIMIZER, name(optimizer).into()),
    ];
    weights.notes = notes.map(|(key, value)| (key.to_owned(), value)).into();
    Ok(weights)
}
