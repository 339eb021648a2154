//! How often a trained classifier is right on samples that it wasn't trained with.

use scrimp_graph::data::{Arrays, Rows};
use scrimp_graph::weights::Elements;
use scrimp_graph::{Graph, TensorId, inference};
use scrimp_plan::Budget;
use scrimp_run::{Processor, RunError};
use scrimp_solve::Options;
use std::io;

use crate::checkpoint;
use crate::error::{Error, Result};
use crate::inference::Inference;
use crate::pipeline::Planned;
use crate::swap::Swap;

/// A test of a classifier: everything but its weights. The weights are copied when training ends, into memory
/// that is reserved from the start.
#[derive(Debug)]
pub struct Evaluation<'a> {
    graph: Graph,
    processor: Processor<'a>,
    planned: Planned,
    test: Rows,
    labels: Vec<i64>,
    /// Number of rows of logits, and the length of each.
    shape: [usize; 2],
    weights: Vec<(TensorId, Vec<f32>)>,
}

impl<'a> Evaluation<'a> {
    /// Plans the network in inference mode. If possible, the plan and the weights that are held meanwhile
    /// stay within `budget` bytes; otherwise only the plan has to. One of the arrays is called `y` or `labels`. Integers that
    /// are still in a file may take `room` bytes of memory each.
    ///
    /// # Errors
    /// If the samples don't fit the graph, its output isn't `[batch, classes]`, or it can't be run.
    pub fn new(
        graph: &Graph,
        mut test: Arrays,
        room: u64,
        processor: Processor<'a>,
        budget: u64,
    ) -> Result<Evaluation<'a>> {
        let graph = inference(graph)?;
        let labels = labels(&mut test, room)?;
        let test = Rows::new(&graph, test, room)?;
        if labels.len() != test.count() {
            let reason = format!(
                "there are {} labels for {} samples",
                labels.len(),
                test.count()
            );
            return Err(Error::NoAccuracy { reason });
        }
        let output = graph.outputs()[0];
        let &[batch, classes] = &graph.tensor(output).shape[..] else {
            return Err(Error::NoAccuracy {
                reason: "the output isn't one row of classes per sample".into(),
            });
        };
        let network = Inference::new(&graph, processor, Swap::default())?;
        let within = |bytes| network.plan(Budget::Bytes(bytes), &Options::default(), &mut |_| {});
        let held: u64 = checkpoint::kept(&graph)
            .map(|id| (graph.tensor(id).elements() * size_of::<f32>()) as u64)
            .sum();
        let planned = within(budget.saturating_sub(held)).or_else(|_| within(budget))?;
        Ok(Evaluation {
            weights: reserved(&graph)?,
            planned,
            processor,
            test,
            labels,
            shape: [batch, classes],
            graph,
        })
    }

    /// Number of test samples.
    pub fn samples(&self) -> usize {
        self.test.count()
    }

    /// Copies the weights of a trained network, by name.
    ///
    /// # Errors
    /// If one of them isn't there.
    pub fn hold(&mut self, weights: &dyn Elements) -> io::Result<()> {
        for (tensor, held) in &mut self.weights {
            let mut at = 0;
            let all = 0..held.len();
            weights.read(&self.graph.tensor(*tensor).name, all, &mut |piece| {
                held[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The share of samples whose largest logit is the label's, with the weights that were copied.
    ///
    /// # Errors
    /// If the network can't be run.
    pub fn accuracy(&self) -> Result<f64> {
        let (graph, [batch, classes]) = (&self.graph, self.shape);
        let network = Inference::new(graph, self.processor, Swap::default())?;
        let planned = &self.planned;
        let mut forward = network.start(&planned.layout, planned.reserved_bytes(), 0)?;
        for (tensor, values) in &self.weights {
            forward.set(*tensor, values)?;
        }
        let (mut start, mut right) = (0, 0);
        while let Some((inputs, count)) = self.test.from(start) {
            forward.run(&inputs)?;
            let logits = forward.floats(graph.outputs()[0])?;
            let rows = logits.chunks(classes).take(count.min(batch));
            let guesses = rows.map(largest).zip(&self.labels[start..]);
            right += guesses
                .filter(|&(guess, &label)| guess as i64 == label)
                .count();
            start += count;
        }
        Ok(right as f64 / self.test.count() as f64)
    }
}

/// Takes the samples' labels, as class numbers.
fn labels(test: &mut Arrays, room: u64) -> Result<Vec<i64>> {
    let reason = |reason: &str| Error::NoAccuracy {
        reason: reason.into(),
    };
    let at = test
        .0
        .iter()
        .position(|(name, _)| name == "y" || name == "labels");
    let at = at.ok_or_else(|| reason("the test samples have no array y"))?;
    let (_, array) = test.0.swap_remove(at);
    if array.shape.len() != 1 {
        return Err(reason("a sample has more than one label"));
    }
    let ints = array.contents.into_ints(room)?;
    ints.ok_or_else(|| reason("its labels aren't integers"))
}

/// Memory for each parameter and each tensor of state.
fn reserved(graph: &Graph) -> Result<Vec<(TensorId, Vec<f32>)>> {
    let room = |id| {
        let count = graph.tensor(id).elements();
        let mut values = Vec::new();
        let bytes = (count * size_of::<f32>()) as u64;
        values
            .try_reserve_exact(count)
            .map_err(|_| RunError::OutOfMemory { bytes })?;
        // The system provides the memory only once it is written.
        values.resize(count, 0.0);
        Ok((id, values))
    };
    checkpoint::kept(graph).map(room).collect()
}

/// The index of the largest element; the first one if several are equal.
fn largest(row: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = index;
        }
    }
    best
}
