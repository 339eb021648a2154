//! The schedule for problems with other memories: annealing, by the simulated makespan, over what is made again
//! and what is sent away. It starts from the best plan without copies, if there is one, and from the better of a
//! plan that pages the given order and of plans in which repair chooses at different prices of a copied second.

use scrimp_plan::{Move, TaskId};

use std::time::Instant;

use crate::cutoff::Cutoff;
use crate::method::Order;
use crate::model::Model;
use crate::options::{Options, Progress};
use crate::random::Random;
use crate::search::anneal::Walk;
use crate::search::belady;
use crate::search::driver::{self, FIRST_EPOCH, FIRST_PLAN, Lineage};
use crate::search::state::State;
use crate::search::timing::Timing;
use crate::search::walks::WALKS;

/// The share of the time for plans without copies.
const PLAIN_SHARE: f64 = 0.2;
/// The share of the work for which all starts go on side by side.
const RACE_SHARE: f64 = 0.3;
/// The share of all work without a better plan after which the search has converged.
const IDLE_SHARE: f64 = 0.3;

/// The number of prices at which the given order is repaired.
const PRICES: u32 = 8;
/// The share of all work for that, if there is a plan.
const PRICES_SHARE: f64 = 0.2;
/// The number of budgets for paging below the real one. A lower one leaves room for copies beside runs.
const MARGINS: u32 = 8;
/// The factor between budgets that are tried for the least one.
const STEP: f64 = 1.01;

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
    let cutoff = options.cutoff(start, options.time_limit);
    let base = model.base_cost();
    let search = Search {
        model,
        budget,
        options,
        cutoff,
    };
    let mut tell = |cost: f64| {
        progress(Progress {
            elapsed: start.elapsed(),
            cost: Some(cost),
            lower_bound: base,
        });
    };
    let paged = search.paged();
    if let Some((seconds, runs)) = &paged {
        tell(*seconds);
        if *seconds <= options.enough.unwrap_or(0.0).max(base) * (1.0 + 1e-9) {
            return Found {
                plan: Some((*seconds, moves(model, budget, runs))),
                least: budget,
            };
        }
    }
    let known = plain.and_then(|plain| without_copies(plain, budget, options, start));
    // With a plan in hand, repairs have their share of the time only.
    let end = match paged {
        Some(_) => options.time_limit.mul_f64(PLAIN_SHARE + PRICES_SHARE),
        None => options.time_limit.max(FIRST_PLAN),
    };
    let first = Search {
        cutoff: options.cutoff(start, end),
        ..search
    };
    let first = first.repaired(paged);
    let mut lineages: Vec<Lineage<'m>> = Vec::new();
    for from in known.into_iter().chain(first) {
        tell(from.0);
        lineages.push(search.lineage(lineages.len() as u64, from));
    }
    let total = driver::work(model, options) as u64;
    let mut left = total - (total as f64 * PLAIN_SHARE) as u64;
    let end = left - (left as f64 * RACE_SHARE) as u64;
    let ended = |seconds: f64| {
        cutoff.reached() || seconds <= options.enough.unwrap_or(0.0).max(base) * (1.0 + 1e-9)
    };
    while left > end
        && let Some(next) = lineages.iter_mut().min_by_key(|l| l.spent)
        && !ended(next.best.0)
    {
        next.epoch(options.threads, left - end, &mut left);
    }
    let Some(last) = lineages
        .iter_mut()
        .min_by(|a, b| a.best.0.total_cmp(&b.best.0))
    else {
        return Found {
            plan: None,
            least: search.least().0,
        };
    };
    tell(last.best.0);
    let idle = (total as f64 * IDLE_SHARE) as u64;
    while left > 0 && !ended(last.best.0) && !last.has_converged(idle) {
        last.epoch(options.threads, left, &mut left);
        tell(last.best.0);
    }
    Found {
        plan: Some((last.best.0, moves(model, budget, &last.best.1))),
        least: budget,
    }
}

/// The least budget for which a plan is found, without resident bytes, with that plan.
pub(crate) fn leanest(model: &Model, options: &Options, start: Instant) -> (f64, Vec<Move>) {
    let search = Search {
        model,
        budget: 0.0,
        options,
        cutoff: options.cutoff(start, options.time_limit.max(FIRST_PLAN)),
    };
    let (least, runs) = search.least();
    (least, moves(model, least, &runs))
}

fn moves(model: &Model, budget: f64, runs: &[TaskId]) -> Vec<Move> {
    Timing::new(model, budget).moves(&State::new(model, runs))
}

/// The best plan without copies, if one fits.
fn without_copies(
    model: &Model,
    budget: f64,
    options: &Options,
    start: Instant,
) -> Option<(f64, Vec<TaskId>)> {
    let options = Options {
        time_limit: options.time_limit.mul_f64(PLAIN_SHARE),
        ..options.clone()
    };
    let found = driver::run(model, budget, &options, start, &mut |_| {});
    let state = State::new(model, &found.runs);
    (state.peak() <= budget).then(|| (state.cost(), found.runs))
}

#[derive(Clone, Copy)]
struct Search<'m> {
    model: &'m Model,
    budget: f64,
    options: &'m Options,
    cutoff: Cutoff<'m>,
}

impl<'m> Search<'m> {
    fn walk(&self, number: u64, free: bool) -> Walk<'m> {
        let order = self.model.with_brings(self.model.given_order());
        let random = Random::new(self.options.seed, number);
        Walk::new(self.model, &order, self.budget, free, self.cutoff, random)
    }

    /// A lineage from a plan. If the order is free, one walk changes it and the other keeps what it is, which
    /// is often easier to improve.
    fn lineage(&self, number: u64, best: (f64, Vec<TaskId>)) -> Lineage<'m> {
        let walks = WALKS as u64;
        let walk = |k| self.walk(number * walks + k, self.is_free() && k > 0);
        let walks = (0..walks).map(walk).collect();
        Lineage::new(best, walks, FIRST_EPOCH * u64::from(self.model.tasks))
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

    /// The best of a known plan and of those that one repair of the given order finds, at several prices.
    fn repaired(&self, known: Option<(f64, Vec<TaskId>)>) -> Option<(f64, Vec<TaskId>)> {
        let most = match known {
            Some(_) => (driver::work(self.model, self.options) * PRICES_SHARE) as u64,
            None => u64::MAX,
        };
        let orders = [false, true]
            .into_iter()
            .take(1 + usize::from(self.is_free()));
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

    /// The least budget for which paging or repair finds a plan, with that plan; at worst the given order.
    fn least(&self) -> (f64, Vec<TaskId>) {
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
