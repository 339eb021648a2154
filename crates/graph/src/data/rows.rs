//! Named arrays that fill a graph's inputs batch by batch.

use super::contents::{Contents, Slot};
use super::feed::{DataError, slots};
use super::npz::Arrays;
use super::stream::Stream;
use crate::dtype::DType;
use crate::graph::{Graph, TensorId};

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
    /// Takes each input's array by the input's name. A graph with one input also takes a file's only array,
    /// whatever its name. The first axis of an array counts samples, as many in all arrays; an array of
    /// exactly an input's shape may also fill that input in every batch. Integers that are still in a file may
    /// take `room` bytes of memory each.
    ///
    /// # Errors
    /// If an input has no array, an array has no input, or shapes, element types or numbers don't fit.
    pub fn new(graph: &Graph, mut arrays: Arrays, room: u64) -> Result<Rows, DataError> {
        let slots = slots(graph);
        if let ([slot], [(name, _)]) = (&slots[..], &mut arrays.0[..]) {
            name.clone_from(&slot.name);
        }
        let mut fillings = Vec::new();
        let mut counts = Vec::new();
        for slot in slots {
            let names = || arrays.0.iter().map(|(name, _)| name.clone());
            let Some(at) = arrays.0.iter().position(|(name, _)| *name == slot.name) else {
                return Err(DataError::NoArray {
                    input: slot.name,
                    found: names().collect::<Vec<_>>().join(", "),
                });
            };
            let (name, array) = arrays.0.swap_remove(at);
            let (rows, row) = match (slot.shape.split_first(), array.shape.split_first()) {
                (Some((&batch, row)), Some((&count, found))) if row == found => {
                    (Some((batch, count)), row.iter().product())
                }
                _ if slot.shape == array.shape => (None, 0),
                _ => {
                    return Err(DataError::Rows {
                        expected: slot.shape.clone(),
                        input: slot.name,
                        found: array.shape,
                    });
                }
            };
            let contents = match array.contents {
                Contents::Stored(stream) if slot.dtype == DType::I64 => {
                    let ints = stream.ints(room).map_err(|error| DataError::File {
                        reason: error.to_string(),
                    })?;
                    ints.map(Contents::Ints)
                }
                contents => contents.into_type(slot.dtype),
            };
            let contents = contents.ok_or_else(|| DataError::Type {
                array: name.clone(),
                input: slot.name.clone(),
            })?;
            slot.check_range(&name, &contents)?;
            counts.push(rows);
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
        let all = || counts.iter().flatten().copied();
        let (batch, count) = all()
            .find(streamed)
            .or_else(|| all().next())
            .unwrap_or((1, 1));
        for (filling, rows) in fillings.iter_mut().zip(&counts) {
            match *rows {
                Some(rows) if rows == (batch, count) => {}
                Some((own, samples)) if own == samples => filling.width = None,
                None => {}
                Some((_, samples)) => {
                    return Err(DataError::Counts {
                        input: filling.slot.name.clone(),
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
        self.streams.iter().for_each(|stream| stream.select(&rows));
        let filled = self.fillings.iter().map(|filling| {
            let contents = match filling.width {
                Some(width) => filling.contents.rows(width, &rows),
                None => filling.contents.clone(),
            };
            (filling.slot.tensor, contents)
        });
        Some((filled.collect(), left.min(self.batch)))
    }
}
