//! Remaking stretches of a sequence: from the state before a stretch to what the rest of the sequence reads. Search from the end gets
//! below peaks that repair doesn't get below, and beams get out of plans that dropping and repairing a few runs doesn't leave.

use scrimp_plan::TaskId;

use std::ops::Range;

use crate::model::Model;
use crate::random::Random;
use crate::search::anneal::Walk;
use crate::search::backward::{self, Estimate, Sought, Verdict};
use crate::search::beam::{self, Breadth};

/// The fewest runs on either side of the one around which a stretch is remade, unless the sequence ends before.
const LEAST: f64 = 3.0;
/// Stretches remade at random after a failure.
const STIRS: usize = 3;
/// How much larger the budgets of plans that start above the real one are, as shares of it; and the shares of what is still to go down
/// that mending leaves, by failures in a row.
const ABOVE: [f64; 2] = [0.02, 0.5];
const SHARES: [f64; 4] = [0.0, 0.5, 0.75, 0.9];
/// The most tasks for which annealing remakes stretches and has starts that take long.
const ANNEALED_TASKS: u32 = 150;
/// The most tasks for which squeezing remakes stretches.
const REMADE_TASKS: u32 = 600;
/// How many stretches in a row that can't be remade end a mend while a plan is squeezed, with at most so many tasks and with more.
const FEW_TASKS: u32 = 200;
const TRIES_OF_FEW: usize = 10;
const TRIES: usize = 2;
/// The most states of searches from the end for starts and cheaper runs.
pub(super) const STATES: [usize; 3] = [2000, 10_000, 30_000];
/// The fewest of those of a squeeze, and how often they may double.
const FEWEST_STATES: usize = 2000;
const DOUBLINGS: usize = 4;
/// Beams hardly ever find cheaper runs for more than this part of a sequence on either side.
const CHEAPER_PART: f64 = 0.5;
/// Widths of beams for stretches, and their random factors.
const WIDTHS: [usize; 3] = [2, 8, 32];
const NOISES: [f64; 3] = [0.0, 0.3, 1.0];

/// Whether squeezing remakes stretches of a problem's sequences: those of few tasks without copies.
pub(super) fn remakes(model: &Model) -> bool {
    model.tasks <= REMADE_TASKS && model.copies.none()
}

/// Whether annealing remakes stretches, too, and has starts that take long: with more tasks both take longer than they save.
pub(super) fn anneals(model: &Model) -> bool {
    model.tasks <= ANNEALED_TASKS && remakes(model)
}

/// What mending a sequence came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mended {
    /// It meets the budget.
    Whole,
    /// Some stretches do that didn't, and the peak is no higher.
    Partly,
    /// It is unchanged.
    Not,
}

/// Draws the most states of a search.
type Draw = fn(&mut Random) -> usize;

/// Few or many, each as likely.
fn any_of_three(rng: &mut Random) -> usize {
    STATES[rng.below(STATES.len())]
}

/// Twice as many are half as likely, so that each number has about as much work in all.
pub(super) fn mostly_few(rng: &mut Random) -> usize {
    let doublings = (0..DOUBLINGS).take_while(|_| rng.below(2) == 0);
    FEWEST_STATES << doublings.count()
}

/// How many of a problem's stretches in a row that can't be remade end a mend while a plan is squeezed.
pub(super) fn tries(model: &Model) -> usize {
    match model.tasks {
        ..=FEW_TASKS => TRIES_OF_FEW,
        _ => TRIES,
    }
}

impl Walk<'_> {
    /// Remakes stretches around the highest excess over the budget until the sequence fits, and around others where that fails. What has
    /// been remade stays so if so many stretches in a row can't be. Each search has at most as many states as are drawn.
    pub(super) fn mend(&mut self, tries: usize, states: Draw) -> Mended {
        let (mut failures, mut mended) = (0, Mended::Not);
        while !self.repairer.fits(&self.state) {
            let (mem, budget) = (self.state.mem(), self.repairer.budget);
            let over: Vec<usize> = (1..mem.len() - 1).filter(|&p| mem[p] > budget).collect();
            if over.is_empty() || failures == tries {
                return mended;
            }
            let highest = over.iter().max_by(|&&a, &&b| mem[a].total_cmp(&mem[b]));
            let at = match highest {
                Some(&at) if failures == 0 => at,
                _ => over[self.rng.below(over.len())],
            };
            match self.remake(at - 1, states) {
                true => (failures, mended) = (0, Mended::Partly),
                false => failures += 1,
            }
        }
        self.polish_all();
        self.state.commit();
        Mended::Whole
    }

    /// Remakes a few random stretches within the budget, which the sequence meets.
    pub(super) fn stir(&mut self, states: Draw) {
        for _ in 0..STIRS {
            if self.state.len() > 2 {
                let at = self.rng.below(self.state.len() - 2);
                self.remake(at, states);
            }
        }
    }

    /// A step of annealing: remakes a random stretch so that the sequence takes less than so many seconds.
    pub(super) fn remake_below(&mut self, limit: f64) {
        let (before, work) = (self.state.order(), self.repairer.work);
        let at = self.rng.below(before.len());
        let found = self.remake_cheaper(at, limit);
        self.remake_work += self.repairer.work - work;
        if !found {
            return;
        }
        self.polish_all();
        let after = self.seconds();
        if after <= limit {
            self.state.commit();
            self.now = after;
            self.record();
        } else {
            self.state.reset(&before);
        }
    }

    /// Makes a plan under a larger budget and mends it until it meets the walk's own, where starts under that one fail, until the work
    /// reaches `end`. Returns whether there is a new plan.
    pub(super) fn start_above(&mut self, most: u64, end: u64) -> bool {
        let [low, high] = ABOVE;
        let above = low * (high / low).powf(self.rng.unit());
        let target = self.target;
        self.repairer.budget = (target * (1.0 + above)).floor();
        let made = self.make_plan(most) && self.mend_down(target, end);
        self.repairer.budget = target;
        made
    }

    /// Mends the sequence under budgets that go down to this one, until the work reaches `end`. Returns whether it meets the last one.
    fn mend_down(&mut self, target: f64, end: u64) -> bool {
        let states = any_of_three;
        let mut failures = 0;
        while failures < SHARES.len() && self.repairer.work < end && !self.cutoff.reached() {
            let peak = self.state.peak();
            if peak <= target {
                return true;
            }
            let budget = target + (peak - target) * SHARES[failures];
            self.repairer.budget = budget.floor().max(target);
            let before = self.state.order();
            if self.mend(1, states) == Mended::Whole {
                failures = failures.saturating_sub(1);
            } else {
                // Keeping half a mend has brought nothing here.
                self.state.reset(&before);
                failures += 1;
                self.repairer.budget = peak;
                self.stir(states);
            }
        }
        self.state.peak() <= target
    }

    /// Remakes a stretch of random length around the run with this index within the budget. Returns whether there are such runs; if
    /// none were found, the sequence is unchanged.
    fn remake(&mut self, at: usize, states: Draw) -> bool {
        let stretch = self.stretch(at, 1.0);
        let by = Estimate::ANY[self.rng.below(Estimate::ANY.len())];
        let found = self.backwards(stretch.clone(), f64::INFINITY, (by, states));
        self.replace(stretch, found)
    }

    /// Remakes a stretch of random length around the run with this index, so that it meets the budget and the sequence takes less than so
    /// many seconds. Returns whether such runs were found; if not, the sequence is unchanged.
    fn remake_cheaper(&mut self, at: usize, limit: f64) -> bool {
        let stretch = self.stretch(at, CHEAPER_PART);
        let runs = self.state.order();
        let here = runs[stretch.clone()].iter().map(|&t| self.model.cost[t]);
        let here: f64 = here.sum();
        let below = limit - (self.seconds() - here);
        let found = match self.rng.below(2) {
            0 => self.backwards(stretch.clone(), below, (Estimate::Seconds, any_of_three)),
            _ => self.by_beam(stretch.clone(), below),
        };
        self.replace(stretch, found)
    }

    /// Other runs for a stretch that take less than so many seconds, by search from the end with at most as many states as are drawn.
    fn backwards(
        &mut self,
        stretch: Range<usize>,
        below: f64,
        (by, states): (Estimate, Draw),
    ) -> Option<Vec<TaskId>> {
        let runs = self.state.order();
        let order = self.model.first_runs(&runs[..stretch.end]);
        let before = self.model.first_runs(&runs[..stretch.start]).len();
        let any_order = self.repairer.free && self.rng.below(2) == 0;
        let sought = Sought {
            budget: self.repairer.budget,
            order: (!any_order).then_some(&order[before..]),
            by,
            states: states(&mut self.rng),
            below,
        };
        let over = || self.cutoff.reached();
        let mut made = 0;
        let verdict = backward::between(self.model, (&runs, stretch), sought, &over, &mut made);
        self.repairer.work += made as u64 * backward::state_work(self.model);
        match verdict {
            Verdict::Plan(other) => Some(other),
            Verdict::NoPlan | Verdict::Unknown => None,
        }
    }

    /// Other runs for a stretch that take less than so many seconds, by a beam.
    fn by_beam(&mut self, stretch: Range<usize>, below: f64) -> Option<Vec<TaskId>> {
        let runs = self.state.order();
        let breadth = Breadth {
            width: WIDTHS[self.rng.below(WIDTHS.len())],
            rent: 2.0 * self.rng.unit(),
            noise: NOISES[self.rng.below(NOISES.len())],
            free: self.repairer.free && self.rng.below(2) == 0,
        };
        let limits = (self.repairer.budget, below);
        let over = || self.cutoff.reached();
        let tools = (&over as _, &mut self.rng, &mut self.repairer.work);
        beam::between(self.model, &runs, stretch, limits, breadth, tools)
    }

    /// A stretch of random length around the run with this index, which reaches at most this part of the sequence to either side; it begins
    /// and ends where the sequence meets the budget.
    fn stretch(&mut self, at: usize, part: f64) -> Range<usize> {
        let len = self.state.len() - 2;
        let reach = |rng: &mut Random| {
            let longest = (part * len as f64 / LEAST).max(1.0);
            (LEAST * longest.powf(rng.unit())) as usize
        };
        let mut from = at.saturating_sub(reach(&mut self.rng));
        let mut to = (at + 1 + reach(&mut self.rng)).min(len);
        // Position 0 is the start's, so the run with index k is at position k + 1.
        let (mem, budget) = (self.state.mem(), self.repairer.budget);
        while to < len && mem[to + 1] > budget {
            to += 1;
        }
        while from > 0 && mem[from] > budget {
            from -= 1;
        }
        from..to
    }

    /// Replaces a stretch by other runs, if there are any.
    fn replace(&mut self, stretch: Range<usize>, other: Option<Vec<TaskId>>) -> bool {
        let Some(other) = other else {
            return false;
        };
        let mut runs = self.state.order();
        runs.splice(stretch, other);
        self.state.reset(&runs);
        debug_assert!(self.state.is_sound(), "the rest has what it reads");
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cutoff::Cutoff;
    use crate::search::state::State;
    use crate::testing::{Shape, problem};

    #[test]
    fn a_remade_sequence_is_a_plan_within_the_budget() {
        let mut rng = Random::new(11, 0);
        let (mut mended, mut partly, mut failed) = (0, 0, 0);
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
                let (before, peak) = (walk.state.order(), walk.state.peak());
                match walk.mend(1 + round % 3, mostly_few) {
                    Mended::Whole => {
                        mended += 1;
                        assert!(walk.state.peak() <= budget);
                        walk.stir(mostly_few);
                        assert!(walk.state.peak() <= budget);
                    }
                    Mended::Partly => {
                        partly += 1;
                        assert!(walk.state.peak() > budget && walk.state.peak() <= peak);
                    }
                    Mended::Not => {
                        failed += 1;
                        assert_eq!(walk.state.order(), before);
                    }
                }
                assert!(walk.state.is_sound());
                let runs = walk.state.order();
                assert!(model.task_ids().all(|t| runs.contains(&t)));
                if !free {
                    assert_eq!(model.first_runs(&runs), given);
                }
            }
        }
        let enough = mended > 30 && partly > 0 && failed > 10;
        assert!(enough, "{mended}, {partly} and {failed}");
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
            let remade = lowest(&mut |walk, _| walk.mend(1, mostly_few) == Mended::Whole);
            below += usize::from(remade < repaired);
        }
        assert!(below >= 3, "{below}");
    }

    /// A walk of a random problem under a budget that is a share of the peak in the given order.
    fn tight<'m>(model: &'m Model, share: f64, rng: &Random) -> (Walk<'m>, f64) {
        let given = model.given_order();
        let budget = (State::new(model, &given).peak() * share).floor();
        let walk = Walk::new(model, &given, budget, false, Cutoff::NEVER, rng.clone());
        (walk, budget)
    }

    #[test]
    fn starts_above_the_budget_end_within_it() {
        let mut rng = Random::new(13, 0);
        let (mut made, mut failed) = (0, 0);
        for round in 0..30 {
            let shape = Shape {
                tasks: 15 + round / 2,
                rich: false,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let (mut walk, budget) = tight(&model, 0.6 + 0.05 * (round % 5) as f64, &rng);
            for _ in 0..20 {
                let end = walk.repairer.work + 100_000 * u64::from(model.tasks);
                let found = walk.start_above(20_000, end);
                assert_eq!(walk.repairer.budget, budget);
                if found {
                    made += 1;
                    assert!(walk.state.peak() <= budget && walk.state.is_sound());
                } else {
                    failed += 1;
                    break;
                }
            }
        }
        assert!(made > 100 && failed > 3, "{made} and {failed}");
    }

    #[test]
    fn stretches_remade_below_a_limit_take_less() {
        let mut rng = Random::new(14, 0);
        let (mut cheaper, mut kept) = (0, 0);
        for round in 0..30 {
            let shape = Shape {
                tasks: 15 + round,
                rich: round % 3 == 0,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let (mut walk, budget) = tight(&model, 0.8, &rng);
            if walk.mend(1, mostly_few) != Mended::Whole {
                continue;
            }
            for _ in 0..20 {
                let (before, seconds) = (walk.state.order(), walk.seconds());
                walk.now = seconds;
                walk.remake_below(seconds);
                assert!(walk.state.peak() <= budget && walk.state.is_sound());
                let after = walk.seconds();
                assert_eq!(walk.now, after);
                if walk.now < seconds {
                    cheaper += 1;
                } else {
                    kept += 1;
                    assert_eq!(walk.state.order(), before);
                }
            }
        }
        assert!(cheaper > 3 && kept > 100, "{cheaper} and {kept}");
    }
}
