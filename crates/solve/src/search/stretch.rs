//! Remaking stretches of a sequence by beams. A beam from the front forgets states that only pay off late; one for a stretch starts in
//! a good state, and ends where the rest of the sequence has what it reads. So it gets below peaks that neither repair nor
//! whole beams get below.

use crate::model::Model;
use crate::random::Random;
use crate::search::anneal::Walk;
use crate::search::beam::{self, Breadth};
use crate::search::starts::BEAM_TASKS;

/// The fewest runs on either side of the one around which a stretch is remade, unless the sequence ends before.
const LEAST: f64 = 3.0;
/// Stretches remade at random after a failure.
const STIRS: usize = 3;
/// Widths of beams for stretches, and their random factors.
const WIDTHS: [usize; 3] = [2, 8, 32];
const NOISES: [f64; 3] = [0.0, 0.3, 1.0];

/// Whether beams remake stretches of a problem's sequences: those of few tasks without copies.
pub(super) fn remakes(model: &Model) -> bool {
    model.tasks <= BEAM_TASKS && model.copies.none()
}

impl Walk<'_> {
    /// Remakes stretches around the highest excess over the budget until the sequence fits; if a beam fails, returns
    /// false and leaves the sequence unchanged.
    pub(super) fn mend(&mut self) -> bool {
        let before = self.state.order();
        while !self.repairer.fits(&self.state) {
            let mem = self.state.mem();
            let runs = 1..mem.len() - 1;
            let highest = runs.max_by(|&a, &b| mem[a].total_cmp(&mem[b]));
            let high = highest.filter(|&p| mem[p] > self.repairer.budget);
            if !high.is_some_and(|p| self.remake(p - 1)) {
                self.state.reset(&before);
                return false;
            }
        }
        self.polish_all();
        self.state.commit();
        true
    }

    /// Remakes a few random stretches within the budget, which the sequence meets.
    pub(super) fn stir(&mut self) {
        for _ in 0..STIRS {
            if self.state.len() > 2 {
                let at = self.rng.below(self.state.len() - 2);
                self.remake(at);
            }
        }
    }

    /// Remakes a stretch of random length around the run with this index, so that it meets the budget; the stretch begins and ends where
    /// the sequence does so, too. Returns whether a beam found other runs; if not, the sequence is unchanged.
    fn remake(&mut self, at: usize) -> bool {
        let budget = self.repairer.budget;
        let mut runs = self.state.order();
        let reach = |rng: &mut Random| {
            let longest = (runs.len() as f64 / LEAST).max(1.0);
            (LEAST * longest.powf(rng.unit())) as usize
        };
        let mut from = at.saturating_sub(reach(&mut self.rng));
        let mut to = (at + 1 + reach(&mut self.rng)).min(runs.len());
        // Position 0 is the start's, so the run with index k is at position k + 1.
        let mem = self.state.mem();
        while to < runs.len() && mem[to + 1] > budget {
            to += 1;
        }
        while from > 0 && mem[from] > budget {
            from -= 1;
        }
        let breadth = Breadth {
            width: WIDTHS[self.rng.below(WIDTHS.len())],
            rent: 2.0 * self.rng.unit(),
            noise: NOISES[self.rng.below(NOISES.len())],
            free: self.repairer.free && self.rng.below(2) == 0,
        };
        let over = || self.cutoff.reached();
        let tools = (&over as _, &mut self.rng, &mut self.repairer.work);
        let found = beam::between(self.model, &runs, from..to, budget, breadth, tools);
        let Some(other) = found else {
            return false;
        };
        runs.splice(from..to, other);
        self.state.reset(&runs);
        debug_assert!(self.state.is_sound(), "the rest has what it reads");
        true
    }
}

#[cfg(test)]
mod tests {
    use scrimp_plan::TaskId;

    use super::*;
    use crate::cutoff::Cutoff;
    use crate::search::state::State;
    use crate::testing::{Shape, problem};

    /// The tasks in the order of their first runs.
    fn first_runs(runs: &[TaskId]) -> Vec<TaskId> {
        let mut first = Vec::new();
        for &t in runs {
            if !first.contains(&t) {
                first.push(t);
            }
        }
        first
    }

    #[test]
    fn a_remade_sequence_is_a_plan_within_the_budget() {
        let mut rng = Random::new(11, 0);
        let (mut mended, mut failed) = (0, 0);
        for round in 0..60 {
            let shape = Shape {
                tasks: 10 + round / 2,
                rich: round % 3 == 0,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let given = model.given_order();
            let peak = State::new(&model, &given).peak();
            let free = round % 2 == 0;
            let budget = (peak * (0.75 + 0.05 * (round % 5) as f64)).floor();
            let mut walk = Walk::new(&model, &given, budget, free, Cutoff::NEVER, rng.clone());
            for _ in 0..4 {
                let before = walk.state.order();
                if walk.mend() {
                    mended += 1;
                    assert!(walk.state.peak() <= budget);
                    walk.stir();
                    assert!(walk.state.peak() <= budget);
                } else {
                    failed += 1;
                    assert_eq!(walk.state.order(), before);
                }
                assert!(walk.state.is_sound());
                let runs = walk.state.order();
                assert!(model.task_ids().all(|t| runs.contains(&t)));
                if !free {
                    assert_eq!(first_runs(&runs), given);
                }
            }
        }
        assert!(mended > 30 && failed > 10, "{mended} and {failed}");
    }

    #[test]
    fn stretches_get_below_what_repair_reaches() {
        let mut rng = Random::new(12, 0);
        let mut below = 0;
        for round in 0..10 {
            let shape = Shape {
                tasks: 20 + round,
                rich: false,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let given = model.given_order();
            let mut walk = Walk::new(&model, &given, 0.0, false, Cutoff::NEVER, rng.clone());
            // Lower by a percent at a time, by repair as long as that succeeds and then by stretches.
            let mut lowest = |by: &mut dyn FnMut(&mut Walk<'_>, usize) -> bool| {
                let mut tries = 0;
                while tries < 12 {
                    walk.repairer.budget = (walk.state.peak() * 0.99).floor();
                    tries = if by(&mut walk, tries) { 0 } else { tries + 1 };
                }
                walk.state.peak()
            };
            let repaired = lowest(&mut |walk, tries| walk.settle(walk.taste_of(tries)));
            let remade = lowest(&mut |walk, _| walk.mend());
            below += usize::from(remade < repaired);
        }
        assert!(below >= 3, "{below}");
    }
}
