//! Batches: which samples each step takes.

use thiserror::Error;

use super::contents::{Contents, Slot, below, stream};
use super::rows::Rows;
use super::synthetic;
use crate::dtype::DType;
use crate::graph::{Graph, Role, TensorId};

/// Why data doesn't fit a graph.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DataError {
    /// An input has no array.
    #[error("no array is named {input} like an input of the graph{alias}; the arrays are {found}")]
    NoArray {
        /// The graph's input.
        input: String,
        /// What else it may be called.
        alias: &'static str,
        /// Names of the arrays.
        found: String,
    },
    /// An array has no input.
    #[error("array {array} is named like no input of the graph; the inputs are {inputs}")]
    NoInput {
        /// The array.
        array: String,
        /// Names of the graph's inputs.
        inputs: String,
    },
    /// An array has another shape than the samples of an input.
    #[error(
        "array {array} has shape {found:?}, but input {input} takes {expected:?}, where the first axis counts samples and may be longer"
    )]
    Rows {
        /// The array.
        array: String,
        /// The graph's input.
        input: String,
        /// The array's shape.
        found: Vec<usize>,
        /// The input's shape.
        expected: Vec<usize>,
    },
    /// Arrays have different numbers of samples.
    #[error("array {array} has {found} samples, but another array has {expected}")]
    Counts {
        /// The array.
        array: String,
        /// The array's number of samples.
        found: usize,
        /// That of the other array.
        expected: usize,
    },
    /// Arrays without samples.
    #[error("the arrays have no samples")]
    NoSamples,
    /// Data has floats where the graph takes integers.
    #[error("{array} has floating-point numbers, but input {input} takes integers; convert them")]
    Type {
        /// The array.
        array: String,
        /// The graph's input.
        input: String,
    },
    /// A file can't be read.
    #[error("{reason}")]
    File {
        /// The file, and why.
        reason: String,
    },
    /// Data has a label or token that doesn't exist.
    #[error("{array} has the number {found}, but input {input} takes 0 to {last}")]
    Range {
        /// The array.
        array: String,
        /// The graph's input.
        input: String,
        /// The first number out of range.
        found: i64,
        /// The largest allowed.
        last: usize,
    },
}

/// Fills the inputs of a graph, step by step.
#[derive(Clone, Debug)]
pub struct Feed {
    source: Source,
    seed: u64,
    batch: usize,
}

#[derive(Clone, Debug)]
enum Source {
    Rows(Rows),
    Synthetic(Vec<Slot>),
}

impl Feed {
    /// A feed of samples, in a new random order every epoch.
    pub fn shuffled(rows: Rows, seed: u64) -> Feed {
        Feed {
            batch: rows.batch(),
            source: Source::Rows(rows),
            seed,
        }
    }

    /// A feed of random numbers: normally distributed floats, and integers uniform over what the graph takes.
    /// They serve to measure; there is nothing to learn from them.
    pub fn synthetic(graph: &Graph, seed: u64) -> Feed {
        let slots = slots(graph);
        let batch = slots
            .iter()
            .find_map(|s| s.shape.first().copied())
            .unwrap_or(1);
        Feed {
            source: Source::Synthetic(slots),
            seed,
            batch,
        }
    }

    /// Whether [`Feed::synthetic`] made this feed.
    pub fn is_synthetic(&self) -> bool {
        matches!(self.source, Source::Synthetic(_))
    }

    /// Samples per step.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The contents of the inputs in step `step`, counted from 0.
    pub fn step(&self, step: u64) -> Vec<(TensorId, Contents)> {
        match &self.source {
            Source::Rows(rows) => rows.select(&self.order(rows.count(), step)),
            Source::Synthetic(slots) => {
                let stream = (0..).zip(slots);
                stream
                    .map(|(i, slot)| (slot.tensor, synthetic::contents(slot, self.seed, step, i)))
                    .collect()
            }
        }
    }

    /// The samples of a step. Epochs are permutations of all samples; put one after another, they are cut
    /// into batches.
    fn order(&self, count: usize, step: u64) -> Vec<usize> {
        let first = u128::from(step) * self.batch as u128;
        let mut epoch = None;
        let mut permutation = Vec::new();
        let mut rows = Vec::with_capacity(self.batch);
        for position in (first..).take(self.batch) {
            let this = position / count as u128;
            if epoch != Some(this) {
                epoch = Some(this);
                permutation = shuffled(count, self.seed, this as u64);
            }
            rows.push(permutation[(position % count as u128) as usize]);
        }
        rows
    }
}

/// A Fisher–Yates shuffle with a generator of its own for each epoch.
fn shuffled(count: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut random = stream(seed, epoch, u64::MAX);
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        order.swap(i, below(&mut random, i as u64 + 1) as usize);
    }
    order
}

pub(super) fn slots(graph: &Graph) -> Vec<Slot> {
    let inputs = graph.given().filter(|(_, t)| t.role == Role::Input);
    inputs
        .map(|(tensor, t)| Slot {
            tensor,
            name: t.name.clone(),
            shape: t.shape.clone(),
            dtype: t.dtype,
            limit: synthetic::limit(graph, tensor),
        })
        .collect()
}

impl Slot {
    /// Checks that integers are labels or tokens that exist, if the input takes such.
    pub(super) fn check_range(&self, array: &str, contents: &Contents) -> Result<(), DataError> {
        let (Contents::Ints(values), Some(limit)) = (contents, self.limit) else {
            return Ok(());
        };
        match values.iter().find(|v| !(0..limit as i64).contains(*v)) {
            Some(&found) if self.dtype == DType::I64 => Err(DataError::Range {
                array: array.into(),
                input: self.name.clone(),
                found,
                last: limit - 1,
            }),
            _ => Ok(()),
        }
    }
}
