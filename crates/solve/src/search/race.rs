//! A race between lineages of plans with different starts, if there are such, and then epochs of annealing from the best plan, with
//! work on the bound in between. A lineage is annealed on two walks, whose results are merged after each epoch.

use scrimp_plan::TaskId;

use std::sync::Arc;

use crate::bound::{Ascent, Growth};
use crate::cutoff::Cutoff;
use crate::options::Others;
use crate::random::Random;
use crate::search::anneal::Walk;
use crate::search::backward::{self, Estimate, Sought};
use crate::search::driver::priced;
use crate::search::exact::{self, Limits, Verdict};
use crate::search::first::FirstPlan;
use crate::search::lineage::Lineage;
use crate::search::state::State;
use crate::search::walks::WALKS;

/// The share of the search's work for several lineages side by side, and that share if none of them was made afresh. Then a longer
/// race brings nothing: the lineages differ little, and the epochs after it would start from the same plans.
const RACE_SHARE: f64 = 0.3;
const SHORT_RACE_SHARE: f64 = 0.06;
/// The most lineages, and how many times the work of its first epoch each gets at least.
const LINEAGES: u64 = 4;
const RACE_EPOCHS: u64 = 20;
/// If the order is free but the given one seems good, most of the work of large problems leaves orders as they are, which
/// is this share of what follows the race.
pub(super) const KEEPING_SHARE: f64 = 2.0 / 3.0;
/// A plan is promising if it adds at most this many times the seconds that the best plan adds.
pub(super) const PROMISING: f64 = 1.25;
/// After this many epochs a lineage goes on only if its plan is promising.
const TRIAL: u64 = 3;
/// Units of work of the first epoch, per task.
pub(super) const FIRST_EPOCH: u64 = 5000;
/// After each epoch of the last lineage, one part in so many of its work is for the bound by single moments.
const PROOF_PART: u64 = 12;
/// The share of all work that the epochs without a better plan take at least before the search has converged, so
/// that small problems don't end too soon.
const IDLE_SHARE: f64 = 0.1;
/// The same per task, in units of work, if the plan is further above the bound than a share of all tasks' seconds.
const ENOUGH: u64 = 2_000_000;
const CLOSE: f64 = 1e-3;
/// The units of work for a state of the exact search.
const STATE: u64 = 15;
/// The most of the work at the end for search from the end, before the exact search.
const FROM_THE_END: f64 = 0.4;

/// Several lineages of plans, which are annealed in turn until the best of them takes what work is left.
pub(super) struct Race<'m, 'g> {
    /// Has the model, budget, order, seed and threads.
    pub first: FirstPlan<'m>,
    pub given: &'g [TaskId],
    pub cutoff: Cutoff<'m>,
    /// A plan that takes at most this many seconds needn't be improved.
    pub enough: f64,
    pub bound: Ascent<'m>,
    /// Units of work for it before the race.
    pub bound_work: u64,
    /// No plan takes fewer seconds.
    pub lower_bound: f64,
    pub best: (f64, Vec<TaskId>),
    /// Other plans.
    pub others: Others<Vec<TaskId>>,
    /// The first plans.
    pub origins: Vec<Vec<TaskId>>,
    pub tell: &'g mut dyn FnMut(f64, f64),
}

/// The first plan that keeps the given order while the order is free. Improving it is often easier.
pub(super) struct Kept {
    pub runs: Vec<TaskId>,
    /// Whether no other first plan is cheaper.
    pub cheapest: bool,
}

impl<'m> Race<'m, '_> {
    /// Improves the best plan, and the bound, with this much work. Returns the work left over once the search has converged.
    pub fn run(&mut self, kept: Option<Kept>, total: u64) -> u64 {
        let share = self.bound_work;
        let spared = self.advance(share);
        let mut left = total.saturating_sub(2 * share);
        let guide = Arc::new(self.bound.growth(self.best.0));
        let made = self.at_moments(share / 4, &mut left);
        self.origins.extend(made.iter().map(|plan| plan.1.clone()));
        let splits = kept.as_ref().is_some_and(|kept| {
            let seconds = State::new(self.first.model, &kept.runs).cost();
            seconds <= self.promising()
        });
        let keeps = kept.as_ref().is_some_and(|kept| kept.cheapest);
        let (mut lineages, race_share) = self.lineages(kept, left, &guide);
        for lineage in &mut lineages {
            if keeps {
                lineage.keeps_until = u64::MAX;
            }
            if splits {
                lineage.split();
            }
        }
        // The shorter part of the work goes to all, the longer one to the best.
        let end = left - (left as f64 * race_share) as u64;
        let idle = (total as f64 * IDLE_SHARE) as u64;
        self.by_turns(&mut lineages, idle / LINEAGES, end, &mut left);
        let spared = self.advance(spared + share / 2);
        let mut last = self.last(&lineages, made.as_slice());
        if splits {
            last.split();
        }
        if keeps {
            last.keeps_until = (left as f64 * KEEPING_SHARE) as u64;
        }
        self.finish(&mut last, idle, total, &mut left);
        self.others = last.others();
        self.advance(spared + share / 2);
        left
    }

    /// A lineage from the best plan, perhaps one that keeps the given order, and others with plans of their own; with the share of
    /// the work for all of them.
    fn lineages(
        &self,
        kept: Option<Kept>,
        left: u64,
        guide: &Arc<Growth>,
    ) -> (Vec<Lineage<'m>>, f64) {
        let free = self.first.free;
        let mut lineages = vec![self.lineage(0, self.best.clone(), free, guide)];
        if let Some(kept) = kept.filter(|kept| !(kept.cheapest && lineages[0].tries)) {
            let plan = priced(self.first.model, kept.runs);
            lineages.push(self.lineage(0, plan, false, guide));
        }
        let afford = (left as f64 * RACE_SHARE) as u64 / (RACE_EPOCHS * self.first_epoch());
        let mut share = SHORT_RACE_SHARE;
        while (lineages.len() as u64) < afford.min(LINEAGES) {
            let number = lineages.len() as u64;
            let mut lineage = self.lineage(number, self.best.clone(), free, guide);
            // Under tight budgets no other plan may be found.
            if !lineage.start_over(RACE_EPOCHS * self.first_epoch()) {
                break;
            }
            lineages.push(lineage);
            share = RACE_SHARE;
        }
        (lineages, share)
    }

    /// Anneals the lineages in turn until `end` units of work are left. One whose plan isn't promising after a few epochs, or that has
    /// brought nothing for `idle` units of work, drops out.
    fn by_turns(&mut self, lineages: &mut [Lineage<'m>], idle: u64, end: u64, left: &mut u64) {
        while *left > end && !self.ended() {
            let most = self.promising();
            let goes_on = |l: &&mut Lineage<'m>| {
                !l.has_converged(idle) && (l.epochs < TRIAL || l.best.0 <= most)
            };
            let open = lineages.iter_mut().filter(goes_on);
            let Some(next) = open.min_by_key(|l| l.spent) else {
                break;
            };
            next.epoch(self.first.threads, *left - end, left);
            self.offer(next.best.clone());
        }
    }

    /// The lineage that goes on from the best plan, and that knows those of the others and what the moments made.
    fn last(&mut self, lineages: &[Lineage<'m>], made: &[(f64, Vec<TaskId>)]) -> Lineage<'m> {
        let guide = Arc::new(self.bound.growth(self.best.0));
        for origin in lineages.iter().flat_map(Lineage::origins) {
            if !self.origins.contains(origin) {
                self.origins.push(origin.clone());
            }
        }
        let mut last = self.lineage(0, self.best.clone(), self.first.free, &guide);
        last.meet(made);
        for lineage in lineages {
            last.meet(std::slice::from_ref(&lineage.best));
            last.meet(lineage.walks[0].elite.plans());
        }
        last
    }

    /// Anneals the last lineage, and proves in between, until it has brought nothing for `idle` units of work, or for more if the plan is far
    /// above the bound. `total` is the work of the whole search.
    fn finish(&mut self, last: &mut Lineage<'m>, idle: u64, total: u64, left: &mut u64) {
        let enough = ENOUGH * u64::from(self.first.model.tasks);
        while *left > 0 && !self.ended() {
            let idle = match self.is_close() {
                true => idle,
                false => idle.max(enough),
            };
            let converged = last.has_converged(idle);
            // A plan that is proven to be the best needn't be improved, and the proof may take as long as the search has taken.
            let proof = if converged {
                total - *left
            } else {
                let before = *left;
                last.epoch(self.first.threads, *left, left);
                self.offer(last.best.clone());
                (before - *left) / PROOF_PART
            };
            if let Some(plan) = self.at_moments(proof, left) {
                last.take(plan);
            }
            if converged && last.has_converged(idle) {
                break;
            }
        }
    }

    /// The most seconds of a promising plan.
    fn promising(&self) -> f64 {
        let base = self.first.model.base_cost();
        base + PROMISING * (self.best.0 - base)
    }

    /// Looks for the cheapest plan once more with the work that is left, now that a plan's seconds limit the states.
    pub fn exactly(&mut self, left: u64) {
        if self.ended() {
            return;
        }
        let FirstPlan {
            model,
            budget,
            free,
            ..
        } = self.first;
        let states = (left as f64 * FROM_THE_END / backward::state_work(model) as f64) as usize;
        let sought = Sought {
            budget,
            order: (!free).then_some(self.given),
            by: Estimate::Seconds,
            states: states.min(backward::most_states(model, 1)),
            below: self.best.0,
        };
        let over = || self.cutoff.reached();
        let mut made = 0;
        // Under a tight budget there are fewer states from the end, and else from the front.
        let from_the_end = backward::any(model, sought, &over, &mut made);
        let left = left.saturating_sub(made as u64 * backward::state_work(model));
        let limits = Limits {
            states: exact::MOST_STATES.min((left / STATE) as usize),
            below: self.best.0,
            cutoff: self.cutoff,
        };
        let verdict = match from_the_end {
            backward::Verdict::Plan(runs) => Verdict::Optimal(runs),
            backward::Verdict::NoPlan => Verdict::Infeasible,
            backward::Verdict::Unknown => exact::cheapest(model, budget, free, limits),
        };
        match verdict {
            Verdict::Optimal(runs) => {
                self.best = priced(model, runs);
                self.lower_bound = self.best.0;
                let Others { ties, dearer } = &mut self.others;
                dearer.splice(..0, ties.drain(..));
            }
            Verdict::Infeasible => self.lower_bound = self.best.0,
            Verdict::AtLeast(seconds) => self.lower_bound = self.lower_bound.max(seconds),
        }
        (self.tell)(self.best.0, self.lower_bound);
    }

    fn ended(&self) -> bool {
        let enough = self.enough.max(self.lower_bound) * (1.0 + 1e-9);
        self.cutoff.reached() || self.best.0 <= enough
    }

    /// Whether a better plan can't save much.
    fn is_close(&self) -> bool {
        self.best.0 - self.lower_bound <= CLOSE * self.first.model.base_cost()
    }

    /// Works on the bound; returns the work left over.
    fn advance(&mut self, work: u64) -> u64 {
        self.prove(work, Ascent::advance)
    }

    /// Spends at most so much of what is left on single moments. What fits best at one of them may be a plan, or nearly one: if there is such
    /// a plan, and a new one, returns it.
    fn at_moments(&mut self, most: u64, left: &mut u64) -> Option<(f64, Vec<TaskId>)> {
        let work = most.min(*left);
        *left -= work - self.prove(work, Ascent::at_moments);
        let model = self.first.model;
        let sound = |runs: &Vec<TaskId>| State::new(model, runs).is_sound();
        let start = self.bound.start().filter(sound)?;
        let plan = priced(model, self.first.fitted(&start)?);
        self.offer(plan.clone());
        Some(plan)
    }

    fn prove(
        &mut self,
        work: u64,
        by: impl Fn(&mut Ascent<'m>, u64, f64, &dyn Fn() -> bool) -> u64,
    ) -> u64 {
        let known = self.best.0 - self.first.model.base_cost();
        let cutoff = self.cutoff;
        let left = by(&mut self.bound, work, known, &|| cutoff.reached());
        self.lower_bound = self.lower_bound.max(self.bound.proven());
        (self.tell)(self.best.0, self.lower_bound);
        left
    }

    fn offer(&mut self, plan: (f64, Vec<TaskId>)) {
        if plan.0 < self.best.0 * (1.0 - 1e-12) {
            self.best = plan;
        }
        (self.tell)(self.best.0, self.lower_bound);
    }

    /// Units of work of a lineage's first epoch.
    fn first_epoch(&self) -> u64 {
        FIRST_EPOCH * u64::from(self.first.model.tasks)
    }

    /// A lineage that starts from a plan, with random choices of its own.
    fn lineage(
        &self,
        number: u64,
        best: (f64, Vec<TaskId>),
        free: bool,
        guide: &Arc<Growth>,
    ) -> Lineage<'m> {
        let FirstPlan { model, budget, .. } = self.first;
        let walks = (0..WALKS as u64)
            .map(|k| {
                let random = Random::new(self.first.seed, number * WALKS as u64 + k);
                let mut walk = Walk::new(model, self.given, budget, free, self.cutoff, random);
                walk.repairer.guide = Some(Arc::clone(guide));
                if free == self.first.free {
                    walk.origins.clone_from(&self.origins);
                }
                walk
            })
            .collect();
        Lineage::new(best, walks, free, self.first_epoch())
    }
}
