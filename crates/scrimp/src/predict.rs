//! How long a plan's steps will take, from the costs of its operators and from where it has its bytes.

use scrimp_graph::{Costs, Lowered};
use scrimp_plan::{CheckedLayout, Step, moved_bytes};
use scrimp_run::last_level_cache;

/// Seconds of one of many steps. A plan's cost is the sum of what its tasks take in a step that keeps everything;
/// here each run takes what it takes in its place in this plan, where more or less of what it touches is still in
/// the last cache. Static costs don't know of caches: of them it is the cost.
pub fn predicted_seconds(layout: &CheckedLayout, lowered: &Lowered, costs: &Costs) -> f64 {
    let plan = layout.plan();
    let moved = match (plan.problem().sole_device(), last_level_cache()) {
        (Some(device), Some(cache)) => moved_bytes(layout, device, cache),
        _ => return plan.cost(),
    };
    let steps = plan.steps().iter().zip(moved);
    let seconds = steps.map(|(step, moved)| match *step {
        Step::Run { task, .. } => costs.nodes[lowered.nodes[task]].when_moving(moved),
        _ => 0.0,
    });
    seconds.sum()
}
