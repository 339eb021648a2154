//! Other plans near a given one, whose buffers may pack better: other orders of its runs, and more runs.

use scrimp_plan::{CheckedPlan, Move, Problem, Sequence, TaskId};

use crate::checked::{checked, sequence_of};
use crate::cutoff::Cutoff;
use crate::method::Order;
use crate::model::Model;
use crate::random::Random;
use crate::search::arrange::Arrangement;
use crate::search::state::State;
use crate::search::thin::{Thinning, thinned};

/// The temperatures at which other orders are annealed.
const HEATS: [f64; 3] = [1.0, 10.0, 100.0];

/// The runs of a plan, shuffled and then moved so that values wait less. The plan stays within its own peak. `None` if no such
/// order was found, or if there are copies, whose places decide how long a plan takes.
pub(super) fn reordered(
    problem: &Problem,
    sequence: &Sequence,
    order: Order,
    seed: u64,
    cutoff: Cutoff<'_>,
) -> Option<CheckedPlan> {
    if has_copies(sequence) {
        return None;
    }
    let (model, device) = Model::new(problem).ok()?;
    let runs: Vec<TaskId> = sequence.runs().collect();
    let limit = State::new(&model, &runs).peak();
    let mut arrangement = Arrangement::new(&model, &runs, limit, order == Order::Free);
    let heat = HEATS[seed as usize % HEATS.len()];
    arrangement.stir(heat, cutoff, &mut Random::new(seed, 1));
    arrangement.tidy(cutoff);
    let sequence = Sequence::of_runs(device, arrangement.order());
    checked(problem, &sequence, "search").ok()
}

/// A plan with more runs that holds at most `enough` bytes wherever that can be achieved, and never more than `most` or than the
/// given plan does. `None` if there are copies, whose places decide how long a plan takes.
pub(super) fn relieved(
    plan: &CheckedPlan,
    order: Order,
    [enough, most]: [u64; 2],
    seed: u64,
    cutoff: Cutoff<'_>,
) -> Option<CheckedPlan> {
    let (problem, sequence) = (plan.problem(), sequence_of(plan));
    if has_copies(&sequence) {
        return None;
    }
    let (model, device) = Model::new(problem).ok()?;
    let runs: Vec<TaskId> = sequence.runs().collect();
    let [enough, most] = [enough, most].map(|bytes| bytes as f64 - model.resident);
    let thinning = Thinning { enough, most, seed };
    let runs = thinned(&model, &runs, order == Order::Free, thinning, cutoff);
    checked(problem, &Sequence::of_runs(device, runs), "search").ok()
}

fn has_copies(sequence: &Sequence) -> bool {
    let is_copy = |step: &Move| matches!(step, Move::Copy { .. });
    sequence.moves.iter().any(is_copy)
}
