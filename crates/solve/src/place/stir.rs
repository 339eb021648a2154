//! Other orders of a plan's runs, whose buffers may pack better.

use scrimp_plan::{Capacities, CheckedPlan, Sequence, Step, TaskId};

use crate::checked::checked;
use crate::cutoff::Cutoff;
use crate::method::Order;
use crate::model::Model;
use crate::random::Random;
use crate::search::arrange::Arrangement;

/// The temperatures at which other orders are annealed.
const HEATS: [f64; 3] = [1.0, 10.0, 100.0];

/// The runs of a plan in another order within the same capacity; `None` if no such order was found.
pub(super) fn stirred(
    plan: &CheckedPlan,
    capacities: &Capacities,
    order: Order,
    seed: u64,
    cutoff: Cutoff<'_>,
) -> Option<CheckedPlan> {
    let problem = plan.problem();
    // The places of copies decide how long a plan takes.
    let copies = |step: &Step| matches!(step, Step::Copy { .. });
    if plan.steps().iter().any(copies) {
        return None;
    }
    let (model, device) = Model::new(problem).ok()?;
    let capacity = capacities.bytes(device);
    let limit = capacity.unwrap_or(u64::MAX).max(plan.peak(device)) as f64 - model.resident;
    let runs: Vec<TaskId> = plan.runs().collect();
    let mut rng = Random::new(seed, 1);
    let mut arrangement = Arrangement::new(&model, &runs, limit, order == Order::Free);
    arrangement.stir(HEATS[seed as usize % HEATS.len()], cutoff, &mut rng);
    arrangement.tidy(cutoff);
    let sequence = Sequence::of_runs(device, arrangement.order());
    checked(problem, &sequence, "search").ok()
}
