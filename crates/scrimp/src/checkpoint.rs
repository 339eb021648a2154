//! Where training starts, and the file from which it can resume later: weights, optimizer state, running
//! statistics, the number of steps done and the seed.

use std::io::{self, Write};
use std::path::Path;

use scrimp_graph::weights::{self, Elements, Notes, Require, WeightsFile};
use scrimp_graph::{Graph, Optimizer, Role, TensorId, TrainingGraph};
use scrimp_run::Executor;

use crate::error::{Error, Result};

/// The weights and state of the first step, with the seed.
#[derive(Debug, Default)]
pub struct Start {
    /// Seed of the initial weights, the order of samples and everything random.
    pub seed: u64,
    /// Steps done before.
    pub step: u64,
    /// The file, and the parameters and state that it has; all others are initialized.
    weights: Option<(WeightsFile, Vec<TensorId>)>,
}

impl Start {
    /// Starts from nothing.
    pub fn new(seed: u64) -> Start {
        Start {
            seed,
            ..Start::default()
        }
    }

    /// Starts from a file. If [`crate::Session::save`] wrote it, training goes on as if it had not stopped:
    /// the file's seed is used, and asking for another one is an error. From any other file of weights
    /// training starts at step 0.
    ///
    /// # Errors
    /// If the file can't be read or doesn't fit the graph, the optimizer or the seed.
    pub fn resume(
        path: &Path,
        training: &TrainingGraph,
        optimizer: Optimizer,
        seed: Option<u64>,
    ) -> Result<Start> {
        let weights = WeightsFile::open(path)?;
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
                weights: Some((weights, tensors)),
            });
        };
        let note = |key: &str| weights.notes.get(key).map_or("", String::as_str);
        let damaged = |key: &str| wrong(format!("its note '{key}' is damaged; save it again"));
        let step = step.parse().ok().filter(|&step| step <= MOST_STEPS);
        let step = step.ok_or_else(|| damaged(STEP))?;
        let saved: u64 = note(SEED).parse().map_err(|_| damaged(SEED))?;
        if note(OPTIMIZER) != name(optimizer) {
            return Err(wrong(format!(
                "it was trained with --optimizer {}, not {}; resume with the same optimizer",
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
            weights: Some((weights, tensors)),
        })
    }

    /// Puts the file's contents where the first step expects them, piece by piece.
    pub(crate) fn fill(&self, executor: &mut Executor<'_>, graph: &Graph) -> Result<()> {
        let Some((file, tensors)) = &self.weights else {
            return Ok(());
        };
        fill(executor, graph, file, tensors)
    }
}

/// Puts a file's contents of some tensors where the next step expects them, piece by piece.
pub(crate) fn fill(
    executor: &mut Executor<'_>,
    graph: &Graph,
    file: &WeightsFile,
    tensors: &[TensorId],
) -> Result<()> {
    for &tensor in tensors {
        let mut elements = file.elements(graph.tensor(tensor))?;
        executor.set_pieces(tensor, &mut |piece| {
            elements.next(piece).map_err(Error::from)
        })?;
    }
    Ok(())
}

/// No training takes this many steps, and a count that starts below it can't overflow.
const MOST_STEPS: u64 = 1 << 53;
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

/// What a file keeps: parameters, optimizer state and running statistics.
pub(crate) fn kept(graph: &Graph) -> impl Iterator<Item = TensorId> {
    let kept = |role: &Role| matches!(role, Role::Parameter(_) | Role::State(_));
    let given = graph.given().filter(move |(_, tensor)| kept(&tensor.role));
    given.map(|(id, _)| id)
}

/// Writes a file with everything that training needs to resume; `elements` are those of the training graph.
pub(crate) fn save(
    file: &mut dyn Write,
    elements: &dyn Elements,
    training: &TrainingGraph,
    optimizer: Optimizer,
    seed: u64,
    step: u64,
) -> io::Result<()> {
    let notes = [
        (STEP, step.to_string()),
        (SEED, seed.to_string()),
        (OPTIMIZER, name(optimizer).into()),
    ];
    let notes: Notes = notes.map(|(key, value)| (key.to_owned(), value)).into();
    let tensors: Vec<_> = kept(&training.graph)
        .map(|id| training.graph.tensor(id))
        .collect();
    weights::write(file, &notes, &tensors, elements)
}
