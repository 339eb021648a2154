//! Named arrays that fill a graph's inputs batch by batch.

use thiserror::Error;

use super::contents::{Contents, Slot};
use super::feed::slots;
use super::npz::Arrays;
use super::stream::Stream;
use crate::dtype::DType;
use crate::graph::{Graph, TensorId};

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

/// Samples for all inputs of a graph, in their own order.
#[derive(Clone, Debug)]
pub struct Rows {
    fillings: Vec<Filling>,
    /// Arrays whose rows nodes of the graph read themselves.
    streams: Vec<Stream>,
    count: usize,
    batch: usize,
}

/// What fills one input.
#[derive(Clone, Debug)]
struct Filling {
    slot: Slot,
    contents: Contents,
    /// Elements of one sample; `None` for an array that fills the whole input in every batch.
    width: Option<usize>,
}

impl Rows {
    /// Takes each input's array by the input's name. Labels or targets, the input that differentiation adds, may also
    /// be called `y`, and the only other input `x`; a graph with one input takes a file's only array, whatever its name. The first
    /// axis of an array counts samples, as many in all arrays; an array of exactly an input's shape may also fill that
    /// input in every batch, but not if only labels differ. Labels may have any shape that is as large per sample.
    /// Integers that are still in a file may take `room` bytes of memory each.
    ///
    /// # Errors
    /// If an input has no array, an array has no input, or shapes, element types or numbers don't fit.
    pub fn new(graph: &Graph, mut arrays: Arrays, room: u64) -> Result<Rows, DataError> {
        let slots = slots(graph);
        let only = slots.len() == 1 && arrays.0.len() == 1;
        let others = slots.iter().filter(|slot| !slot.is_label());
        let single = others.clone().count() == 1;
        let batch = others.chain(&slots).find_map(|slot| slot.shape.first());
        let batch = batch.copied().unwrap_or(1);
        let found = arrays.0.iter().map(|(name, _)| name.as_str());
        let found = found.collect::<Vec<_>>().join(", ");
        let mut fillings = Vec::new();
        let mut counts = Vec::new();
        for slot in slots {
            let (short, alias) = match (slot.is_label(), single) {
                (true, _) => (Some("y"), " or y"),
                (false, true) => (Some("x"), " or x"),
                (false, false) => (None, ""),
            };
            let named = |wanted: &str| arrays.0.iter().position(|(name, _)| name == wanted);
            let at = named(&slot.name).or_else(|| named(short?));
            let Some(at) = at.or(only.then_some(0)) else {
                return Err(DataError::NoArray {
                    input: slot.name,
                    alias,
                    found,
                });
            };
            let (name, array) = arrays.0.swap_remove(at);
            let Some((rows, row)) = rows_for(&slot, &array.shape, batch) else {
                return Err(DataError::Rows {
                    array: name,
                    expected: slot.shape.clone(),
                    input: slot.name,
                    found: array.shape,
                });
            };
            let contents = match slot.dtype {
                DType::I64 => {
                    let ints = array.contents.into_ints(room);
                    let ints = ints.map_err(|error| DataError::File {
                        reason: error.to_string(),
                    })?;
                    ints.map(Contents::Ints)
                }
                _ => array.contents.into_type(slot.dtype),
            };
            let contents = contents.ok_or_else(|| DataError::Type {
                array: name.clone(),
                input: slot.name.clone(),
            })?;
            slot.check_range(&name, &contents)?;
            counts.push((name, rows));
            let width = rows.map(|_| row);
            fillings.push(Filling {
                slot,
                contents,
                width,
            });
        }
        if let Some((name, _)) = arrays.0.first() {
            let inputs: Vec<String> = fillings.iter().map(|f| f.slot.name.clone()).collect();
            return Err(DataError::NoInput {
                array: name.clone(),
                inputs: inputs.join(", "),
            });
        }
        // An array of exactly the input's shape is one batch, or the same in every batch.
        let streamed = |&(batch, count): &(usize, usize)| batch != count;
        let of = |labels: bool| {
            let pairs = fillings.iter().zip(&counts);
            let pairs = pairs.filter(move |(filling, _)| filling.slot.is_label() == labels);
            pairs.filter_map(|(_, (_, rows))| *rows)
        };
        let found = of(false).find(streamed).or_else(|| of(false).next());
        let (batch, count) = found.or_else(|| of(true).next()).unwrap_or((batch, 1));
        for (filling, (name, rows)) in fillings.iter_mut().zip(&counts) {
            match *rows {
                Some(rows) if rows == (batch, count) => {}
                Some((own, samples)) if own == samples && !filling.slot.is_label() => {
                    filling.width = None;
                }
                None => {}
                Some((_, samples)) => {
                    return Err(DataError::Counts {
                        array: name.clone(),
                        found: samples,
                        expected: count,
                    });
                }
            }
        }
        if count == 0 {
            return Err(DataError::NoSamples);
        }
        Ok(Rows {
            fillings,
            streams: Vec::new(),
            count,
            batch,
        })
    }

    /// The inputs whose arrays are in files, by name.
    pub fn streams(&self) -> Vec<(String, Stream)> {
        let stored = self.fillings.iter().filter_map(|filling| {
            let Contents::Stored(stream) = &filling.contents else {
                return None;
            };
            Some((filling.slot.name.clone(), stream.clone()))
        });
        stored.collect()
    }

    /// The same rows for another graph, some of whose inputs may have been replaced ([`super::streamed`]). The others are those
    /// of the graph for which the rows were made.
    pub fn moved(mut self, graph: &Graph) -> Rows {
        for mut filling in std::mem::take(&mut self.fillings) {
            match (graph.find(&filling.slot.name), filling.contents) {
                (Some(tensor), contents) => {
                    filling.slot.tensor = tensor;
                    self.fillings.push(Filling {
                        contents,
                        ..filling
                    });
                }
                (None, Contents::Stored(stream)) if filling.width.is_some() => {
                    self.streams.push(stream);
                }
                // All of the array is in every batch.
                (None, _) => {}
            }
        }
        self
    }

    /// Number of samples.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Samples per batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Contents of the inputs for the samples from `start` on, and how many samples of the batch count; the
    /// last sample fills the rest. `None` past the end. What nodes of a graph read themselves is of this
    /// batch until the next call.
    pub fn from(&self, start: usize) -> Option<(Vec<(TensorId, Contents)>, usize)> {
        let left = self.count.checked_sub(start).filter(|&left| left > 0)?;
        let rows = (start..).map(|row| row.min(self.count - 1));
        let rows: Vec<usize> = rows.take(self.batch).collect();
        Some((self.select(&rows), left.min(self.batch)))
    }

    /// Contents of the inputs for these samples. What nodes of a graph read themselves is of them until the next call.
    ///
    /// # Panics
    /// There are fewer samples.
    pub fn select(&self, rows: &[usize]) -> Vec<(TensorId, Contents)> {
        self.streams.iter().for_each(|stream| stream.select(rows));
        let filled = self.fillings.iter().map(|filling| {
            let contents = match filling.width {
                Some(width) => filling.contents.rows(width, rows),
                None => filling.contents.clone(),
            };
            (filling.slot.tensor, contents)
        });
        filled.collect()
    }
}

/// Samples per batch and in an array of this shape, and a sample's elements, if the array fits an input: no samples
/// if it fills the whole input in every batch. `None` if it doesn't fit.
fn rows_for(slot: &Slot, shape: &[usize], batch: usize) -> Option<(Option<(usize, usize)>, usize)> {
    if let Some((&count, found)) = shape.split_first() {
        let row: usize = found.iter().product();
        // Labels of tokens are one axis in the graph.
        if slot.is_label() && batch.checked_mul(row) == Some(slot.shape.iter().product()) {
            return Some((Some((batch, count)), row));
        }
        if let Some((&batch, row_shape)) = slot.shape.split_first()
            && row_shape == found
        {
            return Some((Some((batch, count)), row));
        }
    }
    (slot.shape == shape).then_some((None, 0))
}

/// Names of the inputs that differentiation adds.
const LABELS: [&str; 2] = ["labels", "target"];

impl Slot {
    /// Checks that integers are labels or tokens that exist, if the input takes such.
    fn check_range(&self, array: &str, contents: &Contents) -> Result<(), DataError> {
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

    /// Whether differentiation added the input. Its name has a suffix if the model already used it.
    fn is_label(&self) -> bool {
        LABELS.iter().any(|name| self.name.starts_with(name))
    }
}
