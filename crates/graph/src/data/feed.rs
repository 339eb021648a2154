//! Batches: which samples each step takes and how they fill the graph's inputs.

use thiserror::Error;

use super::contents::{Contents, Slot, below, stream};
use super::synthetic;
use crate::dtype::DType;
use crate::graph::{Graph, Role, TensorId};

/// Samples with their labels or targets.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// Number of samples.
    pub count: usize,
    /// Shape of one sample.
    pub x_shape: Vec<usize>,
    /// Shape of one sample's label or target; empty for a single number.
    pub y_shape: Vec<usize>,
    /// The samples, one after another.
    pub x: Contents,
    /// Their labels or targets, one after another.
    pub y: Contents,
}

/// Why data doesn't fit a graph.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DataError {
    /// The graph takes more or fewer inputs than a file of samples can fill.
    #[error(
        "the graph's inputs are {found}; data from a file can fill one input and labels or target"
    )]
    Inputs {
        /// Names of the graph's inputs.
        found: String,
    },
    /// Samples have another shape than the graph's input.
    #[error(
        "a sample of {array} has shape {found:?}, but input {input} takes {expected:?} per sample"
    )]
    Shape {
        /// `x` or `y`.
        array: &'static str,
        /// The graph's input.
        input: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape in the graph, without the batch.
        expected: Vec<usize>,
    },
    /// An input has no array.
    #[error("no array is named like input {input}; the arrays are {found}")]
    NoArray {
        /// The graph's input.
        input: String,
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
        "the array for input {input} has shape {found:?}, but the input takes {expected:?}, where the first axis counts samples and may be longer"
    )]
    Rows {
        /// The graph's input.
        input: String,
        /// The array's shape.
        found: Vec<usize>,
        /// The input's shape.
        expected: Vec<usize>,
    },
    /// Arrays have different numbers of samples.
    #[error("the array for input {input} has {found} samples, but another array has {expected}")]
    Counts {
        /// The graph's input.
        input: String,
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
    slots: Vec<Slot>,
    source: Source,
    seed: u64,
    batch: usize,
}

#[derive(Clone, Debug)]
enum Source {
    /// Samples of a file; the first slot takes x, the second y.
    File(Samples),
    Synthetic,
}

/// Names of the inputs that differentiation adds.
const LABELS: [&str; 2] = ["labels", "target"];

impl Feed {
    /// A feed of samples, in a new random order every epoch. The graph must have one input besides `labels`
    /// or `target`; a graph that isn't for training may lack labels.
    pub fn from_samples(graph: &Graph, samples: Samples, seed: u64) -> Result<Feed, DataError> {
        let mut slots = slots(graph);
        // x comes first. An added input has a suffix if the model already used its name.
        slots.sort_by_key(|slot| LABELS.iter().any(|name| slot.name.starts_with(name)));
        let names = || {
            slots
                .iter()
                .map(|s| s.name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        if slots.is_empty() || slots.len() > 2 {
            return Err(DataError::Inputs { found: names() });
        }
        let batch = slots[0].shape.first().copied().unwrap_or(1);
        let sides = [
            ("x", &samples.x, &samples.x_shape),
            ("y", &samples.y, &samples.y_shape),
        ];
        for (slot, (array, contents, shape)) in slots.iter().zip(sides) {
            check(slot, array, contents, shape, batch)?;
        }
        Ok(Feed {
            slots,
            source: Source::File(samples),
            seed,
            batch,
        })
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
            slots,
            source: Source::Synthetic,
            seed,
            batch,
        }
    }

    /// Whether [`Feed::synthetic`] made this feed.
    pub fn is_synthetic(&self) -> bool {
        matches!(self.source, Source::Synthetic)
    }

    /// Samples per step.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The contents of the inputs in step `step`, counted from 0.
    pub fn step(&self, step: u64) -> Vec<(TensorId, Contents)> {
        match &self.source {
            Source::File(samples) => self.fill(samples, &self.order(samples.count, step)),
            Source::Synthetic => {
                let stream = (0..).zip(&self.slots);
                stream
                    .map(|(i, slot)| (slot.tensor, synthetic::contents(slot, self.seed, step, i)))
                    .collect()
            }
        }
    }

    /// Contents of the inputs for a test on the samples from `start` on, in their own order, and how many
    /// samples of the batch count; the last sample fills the rest. `None` past the end or without samples.
    pub fn test(&self, start: usize) -> Option<(Vec<(TensorId, Contents)>, usize)> {
        let Source::File(samples) = &self.source else {
            return None;
        };
        let valid = samples
            .count
            .checked_sub(start)
            .filter(|&n| n > 0)?
            .min(self.batch);
        let rows = (start..).map(|i| i.min(samples.count - 1)).take(self.batch);
        Some((self.fill(samples, &rows.collect::<Vec<_>>()), valid))
    }

    fn fill(&self, samples: &Samples, rows: &[usize]) -> Vec<(TensorId, Contents)> {
        let sides = [
            (&samples.x, &samples.x_shape),
            (&samples.y, &samples.y_shape),
        ];
        let filled = self
            .slots
            .iter()
            .zip(sides)
            .map(|(slot, (contents, shape))| {
                let width = shape.iter().product();
                let contents = contents.rows(width, rows).into_type(slot.dtype);
                (
                    slot.tensor,
                    contents.expect("from_samples has checked the types"),
                )
            });
        filled.collect()
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

fn check(
    slot: &Slot,
    array: &'static str,
    contents: &Contents,
    shape: &[usize],
    batch: usize,
) -> Result<(), DataError> {
    let wrong_shape = |expected: Vec<usize>| DataError::Shape {
        array,
        input: slot.name.clone(),
        found: shape.to_vec(),
        expected,
    };
    let per_sample: usize = shape.iter().product();
    let total: usize = slot.shape.iter().product();
    // Labels of tokens are one axis [batch·sequence] in the graph, so sizes are compared, not axes.
    let expected = match slot.shape.split_first() {
        Some((&first, rest)) if first == batch => rest.to_vec(),
        _ => vec![total / batch.max(1)],
    };
    let same = shape == expected || array == "y" && batch.checked_mul(per_sample) == Some(total);
    if !same {
        return Err(wrong_shape(expected));
    }
    match (contents, slot.dtype) {
        (Contents::Floats(_), DType::I64) => Err(DataError::Type {
            array: array.into(),
            input: slot.name.clone(),
        }),
        (Contents::Ints(_), DType::I64) => slot.check_range(array, contents),
        _ => {
            debug_assert_eq!(contents.len() % per_sample.max(1), 0);
            Ok(())
        }
    }
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
