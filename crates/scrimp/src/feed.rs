//! What each training step reads: samples drawn from a data set, or made up from the seed.
//!
//! Everything is a function of (seed, step), never of the steps before: a resumed run reads what the
//! uninterrupted one would have.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use scrimp_graph::{DType, Graph, Op, TensorId};

/// Contents of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Floating point.
    Floats(Vec<f32>),
    /// Integers: labels, tokens.
    Ints(Vec<i64>),
}

/// A generator that depends on these numbers alone.
pub fn generator(seed: u64, stream: &str, index: u64) -> Xoshiro256PlusPlus {
    let mut hash = xxhash_rust::xxh3::Xxh3::with_seed(seed);
    hash.update(stream.as_bytes());
    hash.update(&index.to_le_bytes());
    Xoshiro256PlusPlus::seed_from_u64(hash.digest())
}

/// Uniform in [0, bound); the bias of at most bound/2^64 doesn't matter here.
pub fn below(random: &mut impl Rng, bound: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// The random state of a step, for dropout: a whole number that f64 and i64 hold exactly.
pub fn step_seed(seed: u64, step: u64) -> i64 {
    (generator(seed, "step", step).next_u64() >> 11) as i64
}

/// Contents of an input that are made up: floats uniform with mean 0 and variance 1, integers
/// uniform in the range that their readers accept.
pub fn random(graph: &Graph, tensor: TensorId, seed: u64, step: u64) -> Values {
    let spec = graph.tensor(tensor);
    let mut random = generator(seed, &spec.name, step);
    if spec.dtype == DType::I64 {
        let range = integer_range(graph, tensor);
        return Values::Ints(
            (0..spec.elements())
                .map(|_| below(&mut random, range) as i64)
                .collect(),
        );
    }
    let unit = |bits: u64| (bits >> 40) as f32 / (1u64 << 24) as f32;
    let scale = 12f32.sqrt();
    Values::Floats(
        (0..spec.elements())
            .map(|_| (unit(random.next_u64()) - 0.5) * scale)
            .collect(),
    )
}

/// How many different integers, from 0 on, every reader of an integer tensor accepts.
pub fn integer_range(graph: &Graph, tensor: TensorId) -> u64 {
    let mut range = i64::MAX as u64;
    for &consumer in graph.consumers(tensor) {
        let node = graph.node(consumer);
        let reads = |slot: usize| node.inputs.get(slot) == Some(&tensor);
        let length = |slot: usize, axis: usize| graph.tensor(node.inputs[slot]).shape[axis] as u64;
        let here = match &node.op {
            Op::Gather { axis } if reads(1) => length(0, *axis),
            Op::GatherGrad { axis, shape } if reads(0) => shape[*axis] as u64,
            Op::CrossEntropy | Op::CrossEntropyGrad if reads(1) => length(0, 1),
            // Moving integers around changes neither them nor who else reads them.
            _ => node
                .outputs
                .iter()
                .map(|&output| integer_range(graph, output))
                .min()
                .unwrap_or(range),
        };
        range = range.min(here);
    }
    range
}

/// The order in which samples are drawn: every epoch is a new permutation, and batches may span the
/// end of one and the start of the next.
#[derive(Clone, Debug)]
pub struct Order {
    seed: u64,
    samples: u64,
    batch: u64,
    /// The epoch of `permutation`.
    epoch: Option<u64>,
    permutation: Vec<u32>,
}

impl Order {
    /// Batches of `batch` out of `samples` samples (at least one of each).
    pub fn new(seed: u64, samples: u32, batch: usize) -> Order {
        let samples = u64::from(samples.max(1));
        Order {
            seed,
            samples,
            batch: batch as u64,
            epoch: None,
            permutation: Vec::new(),
        }
    }

    /// The samples of a step, counted from 0.
    pub fn batch(&mut self, step: u64) -> Vec<u32> {
        (step * self.batch..(step + 1) * self.batch)
            .map(|position| self.sample(position))
            .collect()
    }

    fn sample(&mut self, position: u64) -> u32 {
        let epoch = position / self.samples;
        if self.epoch != Some(epoch) {
            self.permutation = shuffled(self.seed, epoch, self.samples as u32);
            self.epoch = Some(epoch);
        }
        self.permutation[(position % self.samples) as usize]
    }
}

/// Fisher and Yates.
fn shuffled(seed: u64, epoch: u64, samples: u32) -> Vec<u32> {
    let mut random = generator(seed, "epoch", epoch);
    let mut order: Vec<u32> = (0..samples).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, below(&mut random, i as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_draws_every_sample_once_in_its_own_order() {
        let mut order = Order::new(7, 10, 4);
        let drawn: Vec<u32> = (0..5).flat_map(|step| order.batch(step)).collect();
        for epoch in drawn.chunks(10) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        }
        assert_ne!(drawn[..10], drawn[10..]);
    }

    #[test]
    fn a_step_needs_no_earlier_steps() {
        let mut walked = Order::new(3, 9, 5);
        let all: Vec<_> = (0..6).map(|step| walked.batch(step)).collect();
        assert_eq!(Order::new(3, 9, 5).batch(5), all[5]);
        assert_eq!(step_seed(3, 5), step_seed(3, 5));
        assert_ne!(step_seed(3, 5), step_seed(4, 5));
    }

    #[test]
    fn below_stays_below() {
        let mut random = generator(1, "test", 0);
        assert!((0..1000).all(|_| below(&mut random, 7) < 7));
        assert_eq!(below(&mut random, 1), 0);
    }
}
