//! SuperNeurons (Wang et al., PPoPP 2018), as HOME reimplements it (4.1): swaps what convolutions write and
//! makes again what pooling, activations and normalizations write. Everything else stays in memory.
//!
//! The tasks between two convolutions are a segment. If the maps of a segment that are made again hold at most
//! `l_peak` bytes, the most that any backward task has in memory, the segment is made again once and stays
//! (speed-centric); otherwise maps that are made on the way to another one don't stay (memory-centric). When
//! the backward stage of one convolution begins, what the convolution before it needs is fetched; the first
//! one is fetched when the backward pass begins. Bytes of a copy out come back when room is needed, as in the
//! paper's tensor cache, in the order in which the copies were started.

use super::evaluate::{Evaluator, Policy, uniform};
use super::layers::{Layer, Layers};
use super::maps::Maps;
use super::unfold::{Action, Op};
use crate::error::SolveError;

pub(super) fn policy(maps: &Maps<'_, '_>, layers: &Layers) -> Result<Policy, SolveError> {
    let convolutions = layers.convolutions(maps)?;
    let segment = |task: usize| convolutions.partition_point(|&first| first <= task);
    let mut actions = uniform(maps, Action::Keep);
    let mut again = vec![0; convolutions.len() + 1];
    for (action, map) in actions.iter_mut().zip(&maps.maps) {
        *action = match layers.of(map.producer) {
            Layer::Convolution => Action::Swap,
            Layer::Pooling | Layer::Activation | Layer::Normalization => Action::Recompute,
            Layer::Linear | Layer::Other => continue,
        };
        if *action == Action::Recompute {
            again[segment(map.producer)] += map.bytes;
        }
    }
    let most = backward_peak(maps);
    for (action, map) in actions.iter_mut().zip(&maps.maps) {
        if *action == Action::Recompute && again[segment(map.producer)] > most {
            *action = Action::RecomputeLean;
        }
    }
    let mut policy = Policy::of(actions);
    policy.issue = Some(prefetches(maps, &policy));
    Ok(policy)
}

/// The most bytes that a backward task reads and writes.
fn backward_peak(maps: &Maps<'_, '_>) -> u64 {
    let graph = maps.graph;
    let bytes = |values: &[usize]| values.iter().map(|&v| graph.values[v].bytes).sum::<u64>();
    let tasks = graph.tasks.iter().filter(|task| !task.forward);
    let sets = tasks.map(|task| bytes(&task.inputs) + task.allocates);
    sets.max().unwrap_or(0)
}

/// By map, the task that needs the map which is needed before it.
fn prefetches(maps: &Maps<'_, '_>, policy: &Policy) -> Vec<usize> {
    let mut evaluator = Evaluator::new(maps);
    // An impossible policy is refused when it is played.
    let _ = evaluator.peak(policy);
    let unfolded = &evaluator.unfolded;
    let mut issue: Vec<usize> = maps.maps.iter().map(|map| map.first_backward).collect();
    let mut before = maps.graph.tasks.iter().position(|task| !task.forward);
    for (at, op) in unfolded.ops.iter().enumerate() {
        if let Op::Back { map, .. } = *op {
            let needed = unfolded.begins.partition_point(|&begin| begin <= at as u32) - 1;
            issue[map as usize] = before.unwrap_or(needed);
            before = Some(needed);
        }
    }
    issue
}
