//! Squeezing: lowers the peak of a sequence, whatever that costs.

use crate::search::anneal::Walk;
use crate::search::repair::{self, Taste};
use crate::search::stretch::{Mended, mostly_few, remakes, tries};

/// The steps of a squeeze with annealing, as shares of the bytes above its target.
const STEPS: [f64; 6] = [1.0, 0.5, 0.25, 0.1, 0.03, 0.01];
/// The first of them where stretches are remade: what that reaches at once is little, and trying takes long.
const CLOSE_STEP: usize = 3;
/// Steps of annealing after a failure of a squeeze, per failure in a row; remaking stretches finds more in the same time.
const AFTER: usize = 20;
const AFTER_REMAKING: usize = 5;
/// With up to so many tasks, half of the squeezes anneal although no stretches are remade; with more, annealing takes too long.
const ANNEALED: u32 = 1000;
/// The steps of a squeeze by repair alone, which has one of these lists, with so many evictions by one estimate.
const LONG_STEPS: [[f64; 7]; 2] = [
    [1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.003],
    [0.15, 0.05, 0.03, 0.01, 0.005, 0.003, 0.001],
];
pub(super) const BATCHES: [usize; 2] = [16, 64];
/// How often squeezing then chooses up to so many reruns near the peak anew, by so many evictions whose estimates look at so many values,
/// for a peak that is lower by at most this share; and with which of the steps it goes on.
const EASES: usize = 50;
const EASED: f64 = 60.0;
const EASE_EVICTIONS: usize = 100;
const EASE_VISITS: u32 = 3;
const CLOSER: f64 = 0.002;
const AFTER_EASING: usize = 3;

impl Walk<'_> {
    /// Lowers the peak towards `target`, until there is a plan of at most `enough` bytes or `most` units of work are used up.
    pub fn squeeze(&mut self, target: f64, enough: f64, most: u64) {
        let end = self.repairer.work + most;
        // Training graphs gain more from annealing, and random ones from repair.
        let anneals = |walk: &mut Self| walk.model.tasks <= ANNEALED && walk.rng.below(2) == 0;
        match remakes(self.model) || anneals(self) {
            true => self.squeeze_by_annealing(target, enough, end),
            false => self.squeeze_by_repair(target, enough, end),
        }
    }

    /// Lowers the budget from the present peak, by steps that grow where repair succeeds and shrink where it fails, and anneals after
    /// failures. With few tasks, stretches are remade where repair fails.
    fn squeeze_by_annealing(&mut self, target: f64, enough: f64, end: u64) {
        let (mut failures, mut step) = (0, 0);
        let remakes = remakes(self.model);
        let (steps, after) = match remakes {
            true => (&STEPS[CLOSE_STEP..], AFTER_REMAKING),
            false => (&STEPS[..], AFTER),
        };
        while self.leanest.0 > target.max(enough)
            && failures < 60
            && self.repairer.work < end
            && !self.cutoff.reached()
        {
            let peak = self.state.peak();
            let share = steps[step % steps.len()];
            self.repairer.budget = (peak - (peak - target) * share)
                .floor()
                .min(peak - 1.0)
                .max(target);
            let mended = match self.settle(self.taste_of(failures)) {
                true => Mended::Whole,
                false if remakes => self.mend(tries(self.model), mostly_few),
                false => Mended::Not,
            };
            match mended {
                Mended::Whole => {
                    self.leanest = (self.state.peak(), self.state.order());
                    failures = 0;
                    step = (step % steps.len()).saturating_sub(1);
                }
                // The next try begins with fewer excesses, and without the runs that the present peak doesn't need.
                Mended::Partly => {
                    self.repairer.budget = peak;
                    self.polish_all();
                    self.state.commit();
                }
                Mended::Not => {
                    failures += 1;
                    step += 1;
                    self.repairer.budget = peak;
                    if remakes {
                        self.stir(mostly_few);
                    }
                    for _ in 0..after * failures {
                        if self.cutoff.reached() {
                            break;
                        }
                        self.now = self.state.cost();
                        let mean = self.repairer.mean_cost(&self.state, self.now);
                        self.step(mean, self.taste_of(failures));
                    }
                }
            }
        }
    }

    /// Repairs for lower budgets, ever closer to the peak where that fails, and then chooses some reruns near the peak anew. Which
    /// budgets and how many evictions by one estimate get furthest differs, so both are drawn.
    fn squeeze_by_repair(&mut self, target: f64, enough: f64, end: u64) {
        self.batch = BATCHES[self.rng.below(BATCHES.len())];
        let steps = LONG_STEPS[self.rng.below(LONG_STEPS.len())];
        let mut failures = 0;
        let over = |walk: &Self| {
            let met = walk.leanest.0 <= target.max(enough);
            met || walk.repairer.work >= end || walk.cutoff.reached()
        };
        while !over(self) {
            if failures < steps.len() {
                let peak = self.state.peak();
                let budget = peak - (peak - target) * steps[failures];
                self.repairer.budget = budget.floor().min(peak - 1.0).max(target);
                match self.settle_partly(self.taste_of(failures)) {
                    true => failures = failures.saturating_sub(1),
                    false => failures += 1,
                }
                continue;
            }
            let mut eased = false;
            for k in 0..EASES {
                eased |= !over(self) && self.ease(self.taste_of(k));
            }
            if !eased {
                break;
            }
            failures = AFTER_EASING;
        }
    }

    /// Drops some reruns near the peak and repairs the rest, for a budget a little below the peak. Returns whether the peak is lower
    /// then; otherwise, nothing changes.
    fn ease(&mut self, taste: Taste) -> bool {
        let extra = self.extra_runs();
        let (worst, peak) = repair::worst(self.state.mem());
        let near = extra.partition_point(|&run| self.state.pos(run) < worst);
        let count = EASED.powf(self.rng.unit()) as usize;
        let from = near + self.rng.below(count + 1);
        let from = from.saturating_sub(self.rng.below(2 * count + 1));
        for &run in extra.iter().skip(from).take(count) {
            if self.state.has(run) {
                self.drop_run(run);
            }
        }
        let budget = (peak * (1.0 - CLOSER * self.rng.unit())).floor();
        self.repairer.budget = budget.min(peak - 1.0);
        (self.repairer.most, self.repairer.visits) = (EASE_EVICTIONS, EASE_VISITS);
        self.repair(taste);
        (self.repairer.most, self.repairer.visits) = (usize::MAX, repair::VISITS);
        let lower = self.state.peak() < peak;
        match lower {
            true => self.keep_leanest(),
            false => self.state.restore(),
        }
        lower
    }

    /// Repairs the present sequence; if that fails, what it has become is kept only if it is the leanest one.
    fn settle_partly(&mut self, taste: Taste) -> bool {
        let ok = self.repair_much(taste);
        if ok || self.state.peak() < self.leanest.0 {
            self.repairer.budget = self.state.peak();
            self.polish_all();
            self.keep_leanest();
        } else {
            self.state.restore();
        }
        ok
    }

    /// Keeps the changes, and the sequence if it is the leanest one.
    fn keep_leanest(&mut self) {
        self.state.commit();
        let peak = self.state.peak();
        if peak < self.leanest.0 {
            self.leanest = (peak, self.state.order());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound;
    use crate::cutoff::Cutoff;
    use crate::model::Model;
    use crate::random::Random;
    use crate::search::state::State;
    use crate::testing::{Shape, problem};

    /// A random model of more tasks than stretches are remade for.
    fn large(rich: bool, rng: &mut Random) -> Model {
        let shape = Shape { tasks: 700, rich };
        let model = Model::new(&problem(shape, rng)).expect("it can be planned");
        assert!(!remakes(&model.0));
        model.0
    }

    #[test]
    fn squeezing_large_problems_gets_far_down() {
        let mut rng = Random::new(41, 0);
        for k in 0..4 {
            let model = large(k % 2 == 0, &mut rng);
            let (floor, given) = (bound::floor(&model), model.given_order());
            let first = State::new(&model, &given).peak();
            let free = k >= 2;
            let random = Random::new(k, 1);
            let mut walk = Walk::new(&model, &given, floor, free, Cutoff::NEVER, random);
            walk.squeeze(floor, floor, 20_000 * u64::from(model.tasks));
            let (least, runs) = &walk.leanest;
            let state = State::new(&model, runs);
            assert!(state.is_sound() && state.peak() == *least);
            let down = (first - least) / (first - floor);
            assert!(down > 0.5, "{least} of {first}, at least {floor}");
        }
    }

    #[test]
    fn easing_lowers_the_peak_or_changes_nothing() {
        let mut rng = Random::new(42, 0);
        let model = large(false, &mut rng);
        let (floor, given) = (bound::floor(&model), model.given_order());
        let random = Random::new(0, 1);
        let mut walk = Walk::new(&model, &given, floor, false, Cutoff::NEVER, random);
        let peak = walk.state.peak();
        walk.repairer.budget = (peak + floor) / 2.0;
        assert!(walk.settle(walk.taste_of(0)));
        let mut eased = 0;
        for k in 0..40 {
            let before = (walk.state.peak(), walk.state.order());
            if walk.ease(walk.taste_of(k)) {
                assert!(walk.state.peak() < before.0);
                assert_eq!(walk.leanest, (walk.state.peak(), walk.state.order()));
                eased += 1;
            } else {
                assert_eq!(before, (walk.state.peak(), walk.state.order()));
            }
        }
        assert!(eased > 0 && walk.state.is_sound());
    }
}
