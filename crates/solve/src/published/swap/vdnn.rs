//! vDNN (Rhu et al., MICRO 2016): sends away what layers read, and waits for each copy.
//!
//! A layer's input X is offloaded while its last forward consumer runs: for every layer of the feature
//! extraction (`vdnn-all`), or for convolutions (`vdnn-conv`). The device waits for the copy before the next
//! layer. In the backward pass, the layer that runs begins at most one copy back, by `find_prefetch`: going
//! back from the layer before it, the first X that is offloaded and not yet fetched, but not beyond the next
//! convolution. An X that isn't there when its own layer begins is fetched then, and the layer waits.
//!
//! The classifier is what follows from the first linear layer after the last convolution; without convolutions
//! there is none. A layer's backward stage begins where X is first read. Two things are kinder than the
//! paper: a copy back waits if there is no room for it, and the device waits for it only when its map is
//! needed, because a plan can't express a wait without a need.

use super::evaluate::{Policy, uniform};
use super::layers::{Layer, Layers};
use super::maps::Maps;
use super::unfold::Action;
use crate::error::SolveError;
use crate::method::Offload;

pub(super) fn policy(
    maps: &Maps<'_, '_>,
    layers: &Layers,
    offload: Offload,
) -> Result<Policy, SolveError> {
    let convolutions = match offload {
        Offload::All => layers.convolutions(maps).unwrap_or_default(),
        Offload::Convolutions => layers.convolutions(maps)?,
    };
    let classifier = convolutions.last().and_then(|&last| {
        let mut after = last..maps.graph.tasks.len();
        after.find(|&task| layers.of(task) == Layer::Linear)
    });
    let mut actions = uniform(maps, Action::Keep);
    for (action, map) in actions.iter_mut().zip(&maps.maps) {
        let consumers = maps.graph.values[map.value].consumers.iter();
        let mut forward = consumers.take_while(|&&reader| reader <= map.last_forward);
        let offloaded = match offload {
            Offload::All => forward.any(|&reader| classifier.is_none_or(|first| reader < first)),
            Offload::Convolutions => forward.any(|&reader| layers.of(reader) == Layer::Convolution),
        };
        if offloaded {
            *action = Action::Swap;
        }
    }
    let issue = Some(prefetches(maps, layers, &actions));
    Ok(Policy {
        actions,
        issue,
        synchronous: true,
    })
}

/// By map, the task whose layer begins the copy back.
fn prefetches(maps: &Maps<'_, '_>, layers: &Layers, actions: &[Action]) -> Vec<usize> {
    let is_input = |map: &usize| maps.maps[*map].last_forward > maps.maps[*map].producer;
    let mut order: Vec<usize> = (0..maps.maps.len()).filter(is_input).collect();
    order.sort_by_key(|&map| maps.maps[map].first_backward);
    let mut issue: Vec<Option<usize>> = vec![None; maps.maps.len()];
    // The stage before the first is that of the loss.
    let loss = maps.graph.tasks.iter().position(|task| !task.forward);
    let stages = order.iter().map(|&map| maps.maps[map].first_backward);
    for (next, stage) in loss.into_iter().chain(stages).enumerate() {
        for &map in &order[next.min(order.len())..] {
            if actions[map] == Action::Swap && issue[map].is_none() {
                issue[map] = Some(stage);
                break;
            }
            if layers.of(maps.maps[map].last_forward) == Layer::Convolution {
                break;
            }
        }
    }
    let needed =
        |(map, issue): (usize, Option<usize>)| issue.unwrap_or(maps.maps[map].first_backward);
    issue.into_iter().enumerate().map(needed).collect()
}
