//! Random inputs for a graph without data.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::Rng;

use super::contents::{Contents, Slot, below, stream};
use crate::dtype::DType;
use crate::graph::{Graph, TensorId};
use crate::op::Op;

/// One more than the largest integer that an input may hold, according to the nodes that read it: a table's
/// rows, the classes of a loss.
pub(super) fn limit(graph: &Graph, tensor: TensorId) -> Option<usize> {
    let limits = graph.consumers(tensor).iter().filter_map(|&id| {
        let node = graph.node(id);
        let first = node.inputs.first().map(|&t| &graph.tensor(t).shape)?;
        match node.op {
            Op::Gather { axis } => first.get(axis).copied(),
            Op::CrossEntropy | Op::CrossEntropyGrad => first.get(1).copied(),
            Op::Reshape { .. } | Op::Slice { .. } => limit(graph, *node.outputs.first()?),
            _ => None,
        }
    });
    limits.min()
}

/// The contents of an input in a step; `index` distinguishes the inputs.
pub(super) fn contents(slot: &Slot, seed: u64, step: u64, index: u64) -> Contents {
    let count = slot.shape.iter().product();
    let mut random = stream(seed, step, index);
    match slot.dtype {
        DType::I64 => {
            let limit = slot.limit.unwrap_or(2) as u64;
            Contents::Ints(
                (0..count)
                    .map(|_| below(&mut random, limit) as i64)
                    .collect(),
            )
        }
        DType::F32 | DType::F64 => {
            Contents::Floats((0..count).map(|_| normal(&mut random)).collect())
        }
    }
}

/// A standard normal number, by Box and Muller's method.
fn normal(random: &mut SplitMix64) -> f32 {
    // 53 bits in (0, 1], so that the logarithm is finite.
    let mut uniform = || ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    let (radius, angle) = (
        (-2.0 * uniform().ln()).sqrt(),
        std::f64::consts::TAU * uniform(),
    );
    (radius * angle.cos()) as f32
}
