//! The schedule for problems with other memories: annealing, by the simulated makespan, over what is made again
//! and what is sent away. It starts from the best plan without copies, if there is one, and from the better of a
//! plan that pages the given order and of plans in which repair chooses at different prices of a copied second.

use scrimp_plan::{Move, Sequence, TaskId};

use std::time::Instant;

use crate::bound;
use crate::cutoff::Cutoff;
use crate::method::Order;
use crate::model::Model;
use crate::options::{Options, Progress};
use crate::random::Random;
use crate::search::anneal::Walk;
use crate::search::belady;
use crate::search::driver::{self, FIRST_PLAN};
use crate::search::lineage::Lineage;
use crate::search::race::{FIRST_EPOCH, KEEPING_SHARE};
use crate::search::state::State;
use crate::search::timing::Timing;
use crate::search::walks::WALKS;

/// The share of the time for plans without copies. If copies don't lower the seconds that planning adds to this part of
/// those without, half of what is left after the race follows.
const PLAIN_SHARE: f64 = 0.2;
const LITTLE: f64 = 0.9;
/// The share of the work for which all starts go on side by side.
const RACE_SHARE: f64 = 0.3;
/// The share of all work without a better plan after which the search has converged.
const IDLE_SHARE: f64 = 0.3;

/// The number of the lineage from what comes of that.
const LATER: u64 = 2;

/// The number of prices at which the given order is repaired.
const PRICES: u32 = 8;
/// The share of all work for that, if there is a plan.
const PRICES_SHARE: f64 = 0.2;
/// The number of budgets for paging below the real one. A lower one leaves room for copies beside runs.
const MARGINS: u32 = 8;
/// The factor between budgets that are tried for the least one.
const STEP: f64 = 1.01;
/// The share of the time for the least budget without copies.
const ALONE_SHARE: f64 = 0.5;
/// How often in a row a lean plan is repaired in vain, with which steps, as shares of the bytes above the largest working set, and at
/// which prices of a copied second.
const SQUEEZES: usize = 24;
const SQUEEZE_STEPS: [f64; 4] = [0.2, 0.05, 0.01, 0.003];
const SQUEEZE_COPYING: [f64; 3] = [0.0, 0.3, 1.0];

/// What the search found.
pub(crate) struct Found {
    /// The moves of the quickest plan that fits, with its seconds.
    pub plan: Option<(f64, Vec<Move>)>,
    /// The least budget for which a plan was found, without resident bytes.
    pub least: f64,
}

/// Searches for the quickest plan within `budget` bytes, without resident bytes. `plain` is the same problem
/// without other memories.
pub(crate) fn run<'m>(
    model: &'m Model,
    plain: Option<&Model>,
    budget: f64,
    options: &'m Options,
    start: Instant,
    progress: &mut dyn FnMut(Progress),
) -> Found {
    let base = model.base_cost();
    let mut tell = |cost: f64| {
        progress(Progress {
            elapsed: start.elapsed(),
            cost: Some(cost),
            lower_bound: base,
        });
    };
    let search = Search {
        model,
        budget,
        options,
        cutoff: options.cutoff(start, options.time_limit),
    };
    let found = search.improved(plain, &mut tell);
    match found {
        Ok((seconds, runs)) => Found {
            plan: Some((seconds, moves(model, budget, &runs))),
            least: budget,
        },
        Err(least) => Found { plan: None, least },
    }
}

/// The least budget for which a plan is found, without resident bytes, with that plan. `plain` is the same problem without other
/// memories.
pub(crate) fn leanest(
    model: &Model,
    plain: Option<&Model>,
    options: &Options,
    start: Instant,
) -> (f64, Vec<Move>) {
    let search = Search {
        model,
        budget: 0.0,
        options,
        cutoff: options.cutoff(start, options.time_limit.max(FIRST_PLAN)),
    };
    let (least, runs) = search.least(plain);
    (least, moves(model, least, &runs))
}

fn moves(model: &Model, budget: f64, runs: &[TaskId]) -> Vec<Move> {
    Timing::new(model, budget).moves(&State::new(model, runs))
}

#[derive(Clone, Copy)]
struct Search<'m> {
    model: &'m Model,
    budget: f64,
    options: &'m Options,
    cutoff: Cutoff<'m>,
}

impl<'m> Search<'m> {
    /// The quickest plan that is found, or else the least budget for which there is one.
    fn improved(
        &self,
        plain: Option<&Model>,
        tell: &mut dyn FnMut(f64),
    ) -> Result<(f64, Vec<TaskId>), f64> {
        let options = self.options;
        let base = self.model.base_cost();
        let enough = options.enough.unwrap_or(0.0).max(base) * (1.0 + 1e-9);
        let began = Instant::now();
        let paged = self.paged();
        if let Some(paged) = &paged {
            tell(paged.0);
            if paged.0 <= enough {
                return Ok(paged.clone());
            }
        }
        let possible = |plain: &&Model| bound::floor(plain) - plain.resident <= self.budget;
        // A plan without copies that needs more may still be squeezed with them.
        let whole = plain;
        let plain = plain.filter(possible);
        let alone =
            plain.and_then(|plain| self.without_copies(plain, options.order, PLAIN_SHARE, None));
        let keeps = alone.as_ref().is_some_and(|&(_, keeps)| keeps);
        let alone = alone.map(|(plan, _)| plan);
        // With a plan in hand, repairs have their share of the time only.
        let end = match paged {
            Some(_) => options.time_limit.mul_f64(PLAIN_SHARE + PRICES_SHARE),
            None => options.time_limit.max(FIRST_PLAN),
        };
        let first = Search {
            cutoff: options.cutoff(began, end),
            ..*self
        };
        let mut first = first.repaired(paged, keeps);
        if first.is_none() && alone.is_none() {
            let time = self.cutoff.left().max(FIRST_PLAN);
            let cutoff = options.cutoff(Instant::now(), time);
            let (least, runs) = Search { cutoff, ..*self }.least(whole);
            let seconds =
                Timing::new(self.model, self.budget).makespan(&State::new(self.model, &runs));
            if least > self.budget || !seconds.is_finite() {
                return Err(least);
            }
            first = Some((seconds, runs));
        }
        let mut lineages: Vec<Lineage<'m>> = Vec::new();
        for from in alone.clone().into_iter().chain(first) {
            tell(from.0);
            lineages.push(self.lineage(lineages.len() as u64, from));
        }
        let total = driver::work(options);
        let spent = if plain.is_some() { PLAIN_SHARE } else { 0.0 };
        let mut left = (total * (1.0 - spent)) as u64;
        let end = (left as f64 * (1.0 - RACE_SHARE)) as u64;
        for lineage in lineages.iter_mut().filter(|_| keeps) {
            lineage.keeps_until = (left as f64 * KEEPING_SHARE) as u64;
        }
        let ended = |seconds: f64| self.cutoff.reached() || seconds <= enough;
        while left > end
            && let Some(next) = lineages.iter_mut().min_by_key(|l| l.spent)
            && !ended(next.best.0)
        {
            next.epoch(options.threads, left - end, &mut left);
        }
        let best = lineages
            .into_iter()
            .min_by(|a, b| a.best.0.total_cmp(&b.best.0));
        let mut best = best.ok_or(f64::INFINITY)?;
        tell(best.best.0);
        if let Some(plain) = plain
            && let Some(alone) = alone
            && best.best.0 - base > LITTLE * (alone.0 - base)
            && !ended(best.best.0)
        {
            let share = left as f64 / 2.0 / total;
            left -= left / 2;
            let order = if keeps { Order::Fixed } else { options.order };
            let better = self.without_copies(plain, order, share, Some(alone.1));
            if let Some((better, _)) = better.filter(|(better, _)| better.0 < best.best.0) {
                tell(better.0);
                best = self.lineage(LATER, better);
            }
        }
        let idle = (total * IDLE_SHARE) as u64;
        while left > 0 && !ended(best.best.0) && !best.has_converged(idle) {
            best.epoch(options.threads, left, &mut left);
            tell(best.best.0);
        }
        Ok(best.best)
    }

    /// The best plan without copies that is found in this order and share of the time, if one fits, and whether it keeps
    /// the given order although any would do.
    fn without_copies(
        &self,
        plain: &Model,
        order: Order,
        share: f64,
        from: Option<Vec<TaskId>>,
    ) -> Option<((f64, Vec<TaskId>), bool)> {
        let start = Instant::now();
        let time_limit = self.options.time_limit.mul_f64(share);
        // A shorter limit may not suffice for a first plan, so it isn't kept.
        let kept = (time_limit >= FIRST_PLAN / 4).then_some(0.0);
        let options = Options {
            order,
            time_limit,
            enough: self.options.enough.or(kept),
            deadline: match &from {
                Some(_) => start.checked_add(self.cutoff.left()),
                None => self.options.deadline,
            },
            start: from.map(|runs| Sequence::of_runs(plain.device, runs)),
            ..self.options.clone()
        };
        let found = driver::settled(plain, self.budget, &options, start);
        let state = State::new(plain, &found.runs);
        (state.peak() <= self.budget).then(|| ((state.cost(), found.runs), found.settled))
    }

    fn walk(&self, number: u64, free: bool) -> Walk<'m> {
        let order = self.model.with_brings(self.model.given_order());
        let random = Random::new(self.options.seed, number);
        Walk::new(self.model, &order, self.budget, free, self.cutoff, random)
    }

    /// A lineage from a plan.
    fn lineage(&self, number: u64, best: (f64, Vec<TaskId>)) -> Lineage<'m> {
        let walks = WALKS as u64;
        let walk = |k| self.walk(number * walks + k, self.is_free());
        let walks = (0..walks).map(walk).collect();
        Lineage::new(
            best,
            walks,
            self.is_free(),
            FIRST_EPOCH * u64::from(self.model.tasks),
        )
    }

    fn is_free(&self) -> bool {
        self.options.order == Order::Free
    }

    /// The best plan that pages the given order within one of several budgets.
    fn paged(&self) -> Option<(f64, Vec<TaskId>)> {
        let order = self.model.with_brings(self.model.given_order());
        let most = self.budget.min(State::new(self.model, &order).peak());
        let margin = (most - self.model.least_working_set()) / f64::from(MARGINS);
        let mut timing = Timing::new(self.model, self.budget);
        let mut best: Option<(f64, Vec<TaskId>)> = None;
        for k in 0..=MARGINS {
            let Some(runs) = belady::paged(self.model, most - margin * f64::from(k)) else {
                break;
            };
            let state = State::new(self.model, &runs);
            debug_assert!(state.peak() <= self.budget);
            let seconds = timing.makespan(&state);
            if seconds.is_finite() && best.as_ref().is_none_or(|b| seconds < b.0) {
                best = Some((seconds, runs));
            }
            if self.cutoff.reached() {
                break;
            }
        }
        best
    }

    /// The best of a known plan and of those that one repair of the given order finds, at several prices; `keeps` says
    /// that repairs keep the order though it is free.
    fn repaired(
        &self,
        known: Option<(f64, Vec<TaskId>)>,
        keeps: bool,
    ) -> Option<(f64, Vec<TaskId>)> {
        let most = match known {
            Some(_) => (driver::work(self.options) * PRICES_SHARE) as u64,
            None => u64::MAX,
        };
        let orders = [false, true]
            .into_iter()
            .take(1 + usize::from(self.is_free() && !keeps));
        let found = orders.filter_map(|free| {
            let mut walk = self.walk(u64::MAX, free);
            for k in 0..PRICES {
                if walk.repairer.work > most || self.cutoff.reached() {
                    break;
                }
                walk.repair_at(f64::from(k) / f64::from(PRICES));
            }
            walk.best
        });
        let found: Vec<_> = found.collect();
        found
            .into_iter()
            .chain(known)
            .min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The least budget for which a plan is found, with that plan: by paging, by one repair, without copies or by repairing the leanest of
    /// these. Ends as soon as a plan fits the search's budget.
    fn least(&self, plain: Option<&Model>) -> (f64, Vec<TaskId>) {
        let first = self.least_at_once();
        if first.0 <= self.enough() {
            return first;
        }
        let alone = plain.map(|plain| {
            let options = Options {
                time_limit: self.cutoff.left().mul_f64(ALONE_SHARE),
                ..self.options.clone()
            };
            let found = driver::leanest(plain, &options, Instant::now(), &mut |_| {});
            (State::new(plain, &found.runs).peak(), found.runs)
        });
        self.squeezed(match alone {
            Some(alone) if alone.0 < first.0 => alone,
            _ => first,
        })
    }

    /// A budget below which no lower one is looked for.
    fn enough(&self) -> f64 {
        self.budget.max(self.model.least_working_set())
    }

    /// A lean plan with its peak, repaired for lower budgets until that fails for all steps and prices of copies.
    fn squeezed(&self, known: (f64, Vec<TaskId>)) -> (f64, Vec<TaskId>) {
        let floor = self.model.least_working_set();
        let (mut least, mut failures) = (known, 0);
        while failures < SQUEEZES && least.0 > self.enough() && !self.cutoff.reached() {
            let step = SQUEEZE_STEPS[failures % SQUEEZE_STEPS.len()];
            let budget = (least.0 - (least.0 - floor) * step).floor();
            let random = Random::new(self.options.seed, failures as u64);
            let free = self.is_free();
            let mut walk = Walk::new(self.model, &least.1, budget, free, self.cutoff, random);
            walk.repairer.copying = SQUEEZE_COPYING[failures % SQUEEZE_COPYING.len()];
            if walk.settle(walk.taste_of(failures)) {
                walk.record();
            }
            match walk.best {
                Some((_, runs)) => (least, failures) = ((budget, runs), 0),
                None => failures += 1,
            }
        }
        least
    }

    /// The least budget for which paging or one repair finds a plan, with that plan; at worst the given order.
    fn least_at_once(&self) -> (f64, Vec<TaskId>) {
        let paged = self.least_paged();
        let mut budget = self.model.least_working_set();
        while budget < paged.0 && !self.cutoff.reached() {
            let mut walk = Search { budget, ..*self }.walk(0, self.is_free());
            walk.repair_at(0.0);
            if let Some((_, runs)) = walk.best {
                return (budget, runs);
            }
            budget = (budget * STEP).ceil();
        }
        paged
    }

    /// The least budget, up to a factor, within which the given order can be paged, with that plan.
    fn least_paged(&self) -> (f64, Vec<TaskId>) {
        let order = self.model.with_brings(self.model.given_order());
        let peak = State::new(self.model, &order).peak();
        let mut least = (peak, order);
        let at = |budget: f64| {
            let runs = belady::paged(self.model, budget)?;
            let seconds = Timing::new(self.model, budget).makespan(&State::new(self.model, &runs));
            seconds.is_finite().then_some((budget, runs))
        };
        let mut none = self.model.least_working_set();
        if let Some(found) = at(none) {
            return found;
        }
        while least.0 > none * STEP && !self.cutoff.reached() {
            let budget = ((none + least.0) / 2.0).ceil();
            match at(budget) {
                Some(found) if budget < least.0 => least = found,
                Some(_) => break,
                None => none = budget,
            }
        }
        least
    }
}

#[cfg(test)]
mod tests;
