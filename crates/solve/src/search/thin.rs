//! Thinning: more recomputation wherever a sequence is close to its peak, so that its buffers pack.
//!
//! A packing loses bytes where many positions are crowded, and a lean sequence is crowded nearly everywhere, because nothing kept it
//! from being so. Most of these positions can be relieved; what remains are the few that make the peak what it is.

use std::collections::HashSet;

use cranelift_entity::EntityRef;
use scrimp_plan::TaskId;

use crate::cutoff::Cutoff;
use crate::ids::{Position, Run};
use crate::model::Model;
use crate::random::Random;
use crate::search::repair::{Repairer, Taste};
use crate::search::state::State;

/// What is tried at a position, one after another; the first only without a seed, since it leaves nothing to chance.
const TASTES: [Taste; 3] = [
    Taste {
        tries: 8,
        noise: 0.0,
    },
    Taste {
        tries: 16,
        noise: 1.0,
    },
    Taste {
        tries: 32,
        noise: 3.0,
    },
];
/// The most evictions, per run.
const EVICTIONS: usize = 20;

/// How far to thin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thinning {
    /// Positions with more bytes are crowded.
    pub enough: f64,
    /// The peak may rise to this.
    pub most: f64,
    /// Of random choices.
    pub seed: u64,
}

/// A sequence with more runs whose peak is at most what is allowed or that of these runs, and that isn't crowded wherever evictions
/// achieve that. First runs keep their order unless it is free.
pub(crate) fn thinned(
    model: &Model,
    runs: &[TaskId],
    free: bool,
    Thinning { enough, most, seed }: Thinning,
    cutoff: Cutoff<'_>,
) -> Vec<TaskId> {
    let mut state = State::new(model, runs);
    let most = state.peak().max(most);
    let mut repairer = Repairer::new(model, enough, free, cutoff);
    let mut rng = Random::new(seed, 2);
    let tastes = &TASTES[usize::from(seed > 0)..];
    let mut stuck = HashSet::new();
    for _ in 0..EVICTIONS * runs.len() {
        let worst = worst_but(&state, &stuck, enough);
        let Some(worst) = worst.filter(|_| !cutoff.reached()) else {
            break;
        };
        let evicted = tastes.iter().any(|&taste| {
            let mark = state.mark();
            let better =
                repairer.evict_at(&mut state, worst, taste, &mut rng) && state.peak() <= most;
            if !better {
                state.undo_to(mark);
            }
            better
        });
        if !evicted {
            stuck.insert(state.run_at(worst));
        }
    }
    state.order()
}

/// The position with the most bytes in use of those with more than `enough`, apart from these runs.
fn worst_but(state: &State<'_>, stuck: &HashSet<Run>, enough: f64) -> Option<Position> {
    let mem = state.mem().iter().enumerate();
    let crowded = mem.filter(|&(_, &bytes)| bytes > enough);
    let crowded = crowded.map(|(at, bytes)| (Position::new(at), bytes));
    let open = crowded.filter(|&(at, _)| !stuck.contains(&state.run_at(at)));
    open.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)))
        .map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::anneal::Walk;
    use crate::testing::{Shape, base_peak, problem};

    #[test]
    fn a_thinned_sequence_is_less_crowded_and_no_higher() {
        let mut rng = Random::new(5, 0);
        let mut relieved = 0;
        for round in 0..40 {
            let shape = Shape {
                tasks: 12 + round,
                rich: round % 2 > 0,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let free = round % 4 > 1;
            let given = model.given_order();
            let limit = base_peak(&p) as f64 - model.resident;
            let mut walk = Walk::new(&model, &given, limit, free, Cutoff::NEVER, rng.clone());
            walk.squeeze(limit / 2.0, 0.0, 2_000_000);
            let lean = walk.leanest.1;
            let before = State::new(&model, &lean);
            let enough = 0.9 * before.peak();
            let thinning = Thinning {
                enough,
                most: 0.0,
                seed: round as u64 % 3,
            };
            let runs = thinned(&model, &lean, free, thinning, Cutoff::NEVER);
            let after = State::new(&model, &runs);
            assert!(after.is_sound() && after.peak() <= before.peak());
            let over = |state: &State<'_>| -> f64 {
                let each = state.mem().iter().map(|&bytes| (bytes - enough).max(0.0));
                each.sum()
            };
            assert!(over(&after) <= over(&before));
            relieved += usize::from(over(&after) < over(&before));
            if !free {
                let mut seen = HashSet::new();
                let first = runs.iter().filter(|&&task| seen.insert(task));
                assert!(first.eq(&given), "first runs keep their order");
            }
        }
        assert!(relieved > 10, "{relieved}");
    }
}
