//! Batches: which samples each step takes.

use super::contents::{Contents, Slot, below, stream};
use super::rows::Rows;
use super::synthetic;
use crate::graph::{Graph, Role, TensorId};

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
