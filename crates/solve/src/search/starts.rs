//! Where a walk starts: first plans of orders, plans by beams or from the front, and starts over.

use scrimp_plan::TaskId;

use crate::model::Model;
use crate::search::anneal::Walk;
use crate::search::backward::{self, Estimate, Sought, Verdict};
use crate::search::beam::{self, Breadth};
use crate::search::first::MANY;
use crate::search::front::{self, Prices};
use crate::search::order;
use crate::search::repair::Taste;
use crate::search::state::State;
use crate::search::stretch::{STATES, anneals};

/// Units of work per task after which the squeeze towards a first plan gives up.
const SQUEEZE: u64 = 120_000;
/// The number of orders from which first plans are made, times the number of tasks.
const START_TASKS: u32 = 4000;
/// The most tasks for which beams are worth their time.
pub(crate) const BEAM_TASKS: u32 = 300;
/// The width of the widest beam times the number of tasks.
const WIDEST: u32 = 20_000;
/// The most units of work of a beam, per task and width.
const BEAM_WORK: u64 = 5000;
/// Units of work of building a plan from the front, per task.
const BUILD_WORK: u64 = 1000;
/// In a free order, a start over that fails is tried again within one part in this many of its work. Where only few tries succeed, the
/// first plans may all be in one basin.
const START_TRIES: u64 = 4;
/// The most of a walk's work for starts that take long, and the work for one, per task.
const DEAR_SHARE: f64 = 0.15;
const DEAR_WORK: u64 = 100_000;
/// The number of plans to go back to from which on new ones replace others.
const ORIGINS: usize = 16;
/// By which power of e search from the end may vary costs for a start.
const BACKWARD_NOISE: f64 = 2.0;
/// How often the repair of a known plan is tried.
const REPAIRS: usize = 2;
/// With many tasks, the most evictions of a repair, times the tasks, because each takes a time that grows with the tasks.
const EVICTIONS: usize = 20_000_000;

impl Walk<'_> {
    /// The first sequence, or what repairing it gives if it doesn't fit. With many tasks, repair ends after some evictions, because
    /// it may take too long.
    pub fn fit(&mut self) -> Option<Vec<TaskId>> {
        let mut tries = 0..if self.model.tasks <= MANY { REPAIRS } else { 1 };
        self.limit_repair();
        let fits = self.repairer.fits(&self.state) || tries.any(|k| self.settle(self.taste_of(k)));
        self.repairer.most = usize::MAX;
        fits.then(|| self.state.order())
    }

    /// With many tasks, the next repairs end after some evictions.
    fn limit_repair(&mut self) {
        if self.model.tasks > MANY {
            self.repairer.most = EVICTIONS / self.model.tasks as usize;
        }
    }

    /// Looks for a first plan within the budget: directly, and then, if `squeeze` is set, by lowering the
    /// budget step by step.
    pub fn first_plan(&mut self, walk: usize, squeeze: bool) {
        let target = self.repairer.budget;
        let taste = Taste {
            tries: 4 << walk,
            noise: 0.3 * walk as f64,
        };
        if !squeeze {
            self.limit_repair();
        }
        if self.repairer.free {
            self.first_of_orders(walk, taste);
        }
        if self.best.is_some() {
            return;
        }
        let narrow = Breadth {
            width: 4,
            rent: 1.0,
            noise: 0.0,
            free: false,
        };
        if !self.settle(taste) && !self.beam(narrow) && squeeze {
            self.start_leaner();
            let most = SQUEEZE * u64::from(self.model.tasks);
            self.squeeze(target, target, most);
        }
        self.repairer.budget = target;
        if self.repairer.fits(&self.state) {
            self.record();
        }
    }

    /// Makes plans from the given order and from lean ones, after rearranging each. Keeps the cheapest plan,
    /// or the last order if none fits.
    fn first_of_orders(&mut self, walk: usize, taste: Taste) {
        let starts = (START_TASKS / self.model.tasks.max(1)).clamp(1, 4) as usize;
        for k in 0..starts {
            if k > 0 {
                let inertia = [20.0, 5.0, 1.0, 50.0][(k + 2 * walk) % 4];
                let noise = 0.1 * walk as f64;
                let order = order::lean(self.model, noise, inertia, self.cutoff, &mut self.rng);
                if order.len() < self.model.tasks as usize {
                    continue;
                }
                self.state.reset(&order);
            }
            self.rearrange(300, 100.0, 0.01);
            if self.settle(taste) {
                self.record();
            }
            let least = self.model.base_cost() * (1.0 + 1e-12);
            if self.cutoff.reached() || self.best.as_ref().is_some_and(|b| b.0 <= least) {
                break;
            }
        }
    }

    /// If the order is free, starts from the leanest of several orders; otherwise from the given one.
    pub fn start_leaner(&mut self) {
        if !self.repairer.free {
            return;
        }
        for k in 0..6 {
            let (noise, inertia) = (0.1 * f64::from(k / 3), [0.0, 2.0, 20.0][k as usize % 3]);
            let order = order::lean(self.model, noise, inertia, self.cutoff, &mut self.rng);
            if order.len() == self.model.tasks as usize {
                let peak = State::new(self.model, &order).peak();
                if peak < self.leanest.0 {
                    self.leanest = (peak, order);
                }
            }
        }
        self.state.reset(&self.leanest.1);
    }

    /// Makes a plan by a beam that keeps the present order, in which every task must run once. If the beam
    /// finds none, returns false and changes nothing.
    fn beam(&mut self, breadth: Breadth) -> bool {
        if self.model.tasks > BEAM_TASKS {
            return false;
        }
        let order = self.state.order();
        let over = || self.cutoff.reached();
        let tools = (&over as _, &mut self.rng, &mut self.repairer.work);
        let found = beam::search(self.model, &order, self.repairer.budget, breadth, tools);
        self.start_from(found)
    }

    /// Goes on from a plan, without the runs that it doesn't need, if there is one.
    fn start_from(&mut self, found: Option<Vec<TaskId>>) -> bool {
        let Some(runs) = found else {
            return false;
        };
        self.state.reset(&runs);
        self.polish_all();
        self.state.commit();
        self.record();
        true
    }

    /// The model with random factors on costs, which vary at most by this power of e.
    fn noisy(&mut self, most: f64) -> Model {
        let noise = most * self.rng.unit();
        let mut model = self.model.clone();
        for cost in model.cost.values_mut() {
            *cost *= (noise * (2.0 * self.rng.unit() - 1.0)).exp();
        }
        model
    }

    /// Makes a plan by search from the end, in the present order or, if it is free, perhaps in any. Random factors on costs make plans
    /// differ. If none is found, returns false and leaves the sequence unchanged.
    fn make_backward(&mut self) -> bool {
        let model = self.noisy(BACKWARD_NOISE);
        let order = self.state.order();
        let any_order = self.repairer.free && self.rng.below(2) == 0;
        let sought = Sought {
            budget: self.repairer.budget,
            order: (!any_order).then_some(&order[..]),
            by: Estimate::Greedy,
            states: STATES[self.rng.below(STATES.len())],
            below: f64::INFINITY,
        };
        let over = || self.cutoff.reached();
        let mut made = 0;
        let verdict = backward::any(&model, sought, &over, &mut made);
        self.repairer.work += made as u64 * backward::state_work(&model);
        match verdict {
            Verdict::Plan(runs) => self.start_from(Some(runs)),
            Verdict::NoPlan | Verdict::Unknown => false,
        }
    }

    /// Makes a plan without copies from the front, in the present order, in which every task must run once. Random factors on costs
    /// and first prices make plans differ. If none is found, returns false and leaves the sequence unchanged.
    fn build(&mut self) -> bool {
        let copies = &self.model.copies;
        if copies
            .given
            .values()
            .chain(copies.kept.values())
            .any(Option::is_some)
        {
            return false;
        }
        let model = self.noisy(1.0);
        let prices = match self.rng.below(2) {
            0 => Prices::Proven(0.5 + 0.5 * self.rng.unit()),
            _ => Prices::Excess(self.rng.unit()),
        };
        let order = self.state.order();
        self.repairer.work += BUILD_WORK * u64::from(model.tasks);
        let found = front::cheapest(
            &model,
            order.clone(),
            self.target,
            prices,
            false,
            self.cutoff,
        );
        let Some(runs) = found else {
            return false;
        };
        self.state.reset(&runs);
        self.polish_all();
        self.state.commit();
        if !self.seconds().is_finite() {
            self.state.reset(&order);
            return false;
        }
        self.record();
        true
    }

    /// Makes a new plan, or goes back to a first one if that fails, as is usual under tight budgets. Annealing
    /// gets further from either than from a plan that it has improved before. Beams are so narrow that they take
    /// at most about `most` units of work, and a part of these is for trying again; starts that take longer have a share of all work.
    /// Returns whether the plan is new.
    pub fn start_over(&mut self, most: u64) -> bool {
        let again = self.repairer.work + most / START_TRIES;
        let mut made = self.make_plan(most);
        while !made && self.repairer.free && self.repairer.work < again && !self.cutoff.reached() {
            made = self.make_plan(most);
        }
        made = made || self.start_dearly(most);
        if !made {
            let origin = self.rng.below(self.origins.len());
            self.state.reset(&self.origins[origin]);
        }
        made
    }

    /// Makes a plan where cheaper tries fail: by wide beams or from a plan above the budget, mostly in the way that has failed less often
    /// since it last made one. Such plans are often dear, but unlike the first ones; annealing may return to them, so they become origins. Takes
    /// about `most` units of work, or more if that is too little. Returns whether there is a new plan.
    fn start_dearly(&mut self, most: u64) -> bool {
        let before = self.repairer.work;
        if !anneals(self.model) || self.dear_work as f64 > DEAR_SHARE * before as f64 {
            return false;
        }
        let end = before + most.max(DEAR_WORK * u64::from(self.model.tasks));
        let mut made = false;
        while !made && self.repairer.work < end && !self.cutoff.reached() {
            self.repairer.work += u64::from(self.model.tasks);
            let [wide, above] = self.dear_failures;
            let way = usize::from(self.rng.below(2 + wide + above) > above);
            made = match way {
                0 => self.start_order() && self.wide_beam(end),
                _ => self.start_above(most, end),
            };
            self.dear_failures[way] = if made { 0 } else { self.dear_failures[way] + 1 };
        }
        self.dear_work += self.repairer.work - before;
        if made {
            if self.origins.len() >= ORIGINS {
                let old = self.rng.below(self.origins.len());
                self.origins.swap_remove(old);
            }
            self.origins.push(self.state.order());
        }
        made
    }

    /// Makes a plan from the given order, or from a lean one if the order is free, with a random taste.
    pub(super) fn make_plan(&mut self, most: u64) -> bool {
        if !self.start_order() {
            return false;
        }
        if self.model.tasks > MANY && self.rng.below(4) > 0 && self.build() {
            return true;
        }
        if anneals(self.model) && self.rng.below(2 + self.backward_failures) == 0 {
            if self.make_backward() {
                self.backward_failures = 0;
                return true;
            }
            self.backward_failures += 1;
        }
        if self.timing.is_none() && self.rng.below(2) == 0 {
            let widest = (WIDEST / self.model.tasks.max(1)).clamp(64, 1000) as usize;
            let width = [2, 8, 32, widest][self.rng.below(4)].min(self.affordable(most));
            let free = self.repairer.free && self.rng.below(2) == 0;
            if self.random_beam(width, free) {
                return true;
            }
        }
        let taste = Taste {
            tries: 1 + self.rng.below(8),
            noise: 4.0 * self.rng.unit(),
        };
        self.settle(taste) && self.seconds().is_finite()
    }

    /// Resets the sequence to the given order, or perhaps to a lean one if the order is free, perhaps rearranged. Returns whether there
    /// was time for all of it.
    fn start_order(&mut self) -> bool {
        let order = if self.repairer.free && self.rng.below(3) > 0 {
            let (noise, inertia) = (self.rng.unit(), [0.0, 1.0, 5.0, 20.0][self.rng.below(4)]);
            let noise = noise * noise;
            order::lean(self.model, noise, inertia, self.cutoff, &mut self.rng)
        } else {
            self.model.given_order()
        };
        if order.len() < self.model.tasks as usize {
            return false;
        }
        let order = self.model.with_brings(order);
        self.follow();
        self.state.reset(&order);
        if self.repairer.free && self.rng.below(4) > 0 {
            let hot = 100f64.powf(self.rng.unit());
            self.rearrange(300, hot, 0.01);
        }
        true
    }

    /// The widest beam that takes at most about so many units of work.
    fn affordable(&self, most: u64) -> usize {
        let width = most / (BEAM_WORK * u64::from(self.model.tasks));
        (width as usize).max(2)
    }

    /// A beam as wide as the work until `end` allows or half as wide, in any order if the order is free.
    fn wide_beam(&mut self, end: u64) -> bool {
        let most = end.saturating_sub(self.repairer.work);
        let width = self.affordable(most) >> self.rng.below(2);
        self.random_beam(width.max(2), self.repairer.free)
    }

    /// A beam of this width that keeps the present order or not, with a random taste.
    fn random_beam(&mut self, width: usize, free: bool) -> bool {
        let breadth = Breadth {
            width,
            rent: 2.0 * self.rng.unit(),
            noise: [0.0, 0.3, 1.0][self.rng.below(3)],
            free,
        };
        self.beam(breadth)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Shape, base_peak, problem};

    use super::*;
    use crate::cutoff::Cutoff;
    use crate::floor_bytes;
    use crate::random::Random;
    use crate::search::state::State;

    /// A random problem of so many tasks, and a budget a little above the floor, without resident bytes.
    fn tight(tasks: usize, rng: &mut Random) -> (Model, f64) {
        let p = problem(Shape { tasks, rich: false }, rng);
        let model = Model::new(&p).unwrap().0;
        let (floor, peak) = (floor_bytes(&p).unwrap(), base_peak(&p));
        let budget = (floor + (peak - floor) / 10) as f64 - model.resident;
        (model, budget)
    }

    #[test]
    fn a_start_over_ends_with_a_plan_that_fits() {
        let mut rng = Random::new(3, 0);
        let mut back = 0;
        for round in 0..20 {
            let (model, budget) = tight(12 + round, &mut rng);
            let given = model.given_order();
            let mut walk = Walk::new(&model, &given, budget, true, Cutoff::NEVER, rng.clone());
            walk.first_plan(0, true);
            let Some((_, origin)) = walk.best.clone() else {
                continue;
            };
            walk.origins.push(origin.clone());
            for _ in 0..10 {
                walk.start_over(1_000_000);
                assert!(walk.state.peak() <= budget);
                back += usize::from(walk.state.order() == origin);
            }
        }
        assert!(back > 0, "some starts fail");
    }

    #[test]
    fn a_start_that_fails_is_tried_again_in_a_free_order() {
        let mut rng = Random::new(5, 0);
        // How many starts succeed with and without work for more tries, in a fixed and in a free order.
        let mut made = [[0, 0]; 2];
        for round in 0..30 {
            let (model, budget) = tight(16 + round / 2, &mut rng);
            let given = model.given_order();
            for (free, made) in [false, true].into_iter().zip(&mut made) {
                for (most, made) in [0, 4_000_000].into_iter().zip(made) {
                    let rng = Random::new(6, round as u64);
                    let mut walk = Walk::new(&model, &given, budget, free, Cutoff::NEVER, rng);
                    walk.origins.push(given.clone());
                    // No work is left for starts that take long.
                    walk.dear_work = u64::MAX;
                    *made += usize::from(walk.start_over(most));
                }
            }
        }
        let [fixed, free] = made;
        assert!(free[1] > free[0] + 3, "{free:?}");
        assert!(fixed[1] <= fixed[0] + 3, "{fixed:?}");
    }

    #[test]
    fn starts_that_take_long_become_origins_within_a_share_of_the_work() {
        let mut rng = Random::new(13, 0);
        let (mut made, mut failed) = (0, 0);
        for round in 0..30 {
            let (model, budget) = tight(15 + round / 2, &mut rng);
            // Some budgets have no plan.
            let budget = if round % 5 == 0 { 0.7 * budget } else { budget };
            let given = model.given_order();
            let free = round % 2 > 0;
            let mut walk = Walk::new(&model, &given, budget, free, Cutoff::NEVER, rng.clone());
            for _ in 0..ORIGINS + 4 {
                let known = walk.origins.len();
                walk.dear_work = 0;
                let found = walk.start_dearly(20_000);
                assert_eq!(walk.repairer.budget, budget);
                if found {
                    made += 1;
                    assert_eq!(walk.dear_failures.iter().min(), Some(&0));
                    assert!(walk.state.peak() <= budget && walk.state.is_sound());
                    assert_eq!(walk.origins.len(), (known + 1).min(ORIGINS));
                    assert_eq!(walk.origins.last(), Some(&walk.state.order()));
                } else {
                    failed += 1;
                    assert!(walk.dear_failures.iter().sum::<usize>() > 0);
                    assert_eq!(walk.origins.len(), known);
                    break;
                }
            }
            walk.dear_work = u64::MAX;
            assert!(!walk.start_dearly(20_000), "no work is left");
        }
        assert!(made > 100 && failed > 3, "{made} and {failed}");
    }

    #[test]
    fn a_start_that_exceeds_the_budget_is_repaired() {
        let mut rng = Random::new(4, 0);
        let (mut repaired, mut impossible) = (0, 0);
        for round in 0..40 {
            let shape = Shape {
                tasks: 12 + round / 2,
                rich: round % 2 > 0,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let (floor, peak) = (floor_bytes(&p).unwrap(), base_peak(&p));
            let given = model.given_order();
            let fit = |bytes: u64, free: bool| {
                let budget = bytes as f64 - model.resident;
                let mut walk = Walk::new(&model, &given, budget, free, Cutoff::NEVER, rng.clone());
                let runs = walk.fit()?;
                assert!(State::new(&model, &runs).peak() <= budget);
                Some(runs)
            };
            assert_eq!(fit(peak, true).as_ref(), Some(&given));
            repaired += usize::from(fit((floor + peak) / 2, round % 4 > 1).is_some());
            impossible += usize::from(fit(floor.saturating_sub(1), true).is_none());
        }
        assert!(
            repaired > 20 && impossible == 40,
            "{repaired}, {impossible}"
        );
    }
}
