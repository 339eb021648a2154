//! The search's schedule: epochs of annealing on two walks, whose results are merged after each epoch.
//!
//! All decisions depend on units of work, never on the clock, and the walks don't see each other within an
//! epoch. So one thread and two give the same plan; the clock only cuts the search off.

use scrimp_plan::TaskId;

use std::time::{Duration, Instant};

use crate::bound;
use crate::cutoff::Cutoff;
use crate::method::Order;
use crate::model::Model;
use crate::options::{Options, Progress};
use crate::random::Random;
use crate::search::anneal::Walk;
use crate::search::arrange::Arrangement;
use crate::search::exact::{self, Limits, Verdict};
use crate::search::first::FirstPlan;
use crate::search::state::State;
use crate::search::walks::{WALKS, each};

/// Units of work per second that the schedule expects of a walk, which is fewer than machines do. Units are
/// quicker where tasks have few inputs on average, because lists are short.
const RATES: [f64; 2] = [55e6, 30e6];
const MEAN_INPUTS: [f64; 2] = [2.2, 2.7];
/// The bound's share of all work before the epochs, and again after them.
const BOUND_SHARE: f64 = 0.1;
/// In a free order, the share of the epochs' work for plans that keep the given order. Such plans come first
/// only if the first of them adds at most this many times the seconds that the first plan in a free order
/// adds.
const KEEPING_SHARE: f64 = 0.5;
const PROMISING: f64 = 1.25;
/// Units of work of the first epoch, per task.
const FIRST_EPOCH: u64 = 2500;
/// The search for a first plan may take at least this long, whatever the limit: without a plan there is
/// nothing to return, and a feasible budget would be called infeasible.
const FIRST_PLAN: Duration = Duration::from_secs(2);
/// Tidying may take at least this long.
const TIDY_TIME: Duration = Duration::from_millis(300);
/// The share of that time for plans within the budget; the rest is for finding the least budget.
const FIRST_SHARE: f64 = 0.7;
/// The most states that the exact search for small problems makes.
const STATES: usize = 150_000;
/// The same limit for each budget while the least budget is sought.
const LEAST_STATES: usize = 20_000;
/// The epochs without a better plan after which the search has converged.
const PATIENCE: u32 = 8;

/// What the search found.
pub(crate) struct Found {
    /// The cheapest sequence that fits, or the leanest if none does.
    pub runs: Vec<TaskId>,
    /// The least budget for which a plan was found: the requested one, or else a larger one.
    pub least: f64,
    pub lower_bound: f64,
    /// A proven floor, without resident bytes: no plan takes fewer bytes.
    pub floor: f64,
}

/// Searches for the cheapest sequence within `budget` bytes, without resident bytes.
pub(crate) fn run<'m>(
    model: &'m Model,
    budget: f64,
    options: &'m Options,
    start: Instant,
    progress: &mut dyn FnMut(Progress),
) -> Found {
    with(model, budget, options, start, true, progress)
}

/// Searches for the leanest sequence, which is what matters when a budget has no plan.
pub(crate) fn leanest<'m>(
    model: &'m Model,
    options: &'m Options,
    start: Instant,
    progress: &mut dyn FnMut(Progress),
) -> Found {
    run(model, -model.resident, options, start, progress)
}

/// Runs the search, with or without the exact search first.
pub(crate) fn with<'m>(
    model: &'m Model,
    budget: f64,
    options: &'m Options,
    start: Instant,
    exactly: bool,
    progress: &mut dyn FnMut(Progress),
) -> Found {
    let given = model.given_order();
    let peak = State::new(model, &given).peak();
    let floor = bound::floor(model) - model.resident;
    let mut known = Found {
        least: peak,
        runs: given,
        lower_bound: model.base_cost(),
        floor,
    };
    if peak <= budget {
        return known;
    }
    let cutoff = options.cutoff(start, options.time_limit);
    let free = options.order == Order::Free;
    let limits = Limits {
        states: if exactly { STATES } else { 0 },
        cutoff,
    };
    let least_time = options.enough.map_or(FIRST_PLAN, |_| options.time_limit);
    let limit = options.time_limit.max(least_time);
    let first = FirstPlan {
        model,
        budget,
        floor,
        free,
        cutoff: options.cutoff(start, limit.mul_f64(FIRST_SHARE)),
        late: options.cutoff(start, limit),
        // A caller that sets `enough` plans under many budgets and needs the time limit to be kept.
        patient: options.enough.is_none() && options.deadline.is_none(),
        seed: options.seed,
        threads: options.threads,
    };
    match exact::cheapest(model, budget, free, limits) {
        Verdict::Optimal(runs) => {
            known.lower_bound = State::new(model, &runs).cost();
            known.least = budget;
            known.runs = runs;
            known
        }
        Verdict::Infeasible => {
            let none = budget.max(floor - 1.0);
            let limits = Limits {
                states: LEAST_STATES,
                cutoff: first.late,
            };
            let found = exact::leanest(model, (none, first.least(None)), free, limits);
            (known.floor, (known.least, known.runs)) = found;
            known
        }
        Verdict::AtLeast(seconds) => {
            known.lower_bound = known.lower_bound.max(seconds);
            by_walks(first, known, options, start, progress)
        }
    }
}

/// Finds a first plan and anneals from there; `known` holds what is known before.
fn by_walks<'m>(
    first: FirstPlan<'m>,
    known: Found,
    options: &'m Options,
    start: Instant,
    progress: &mut dyn FnMut(Progress),
) -> Found {
    let Found {
        mut lower_bound,
        floor,
        runs: given,
        ..
    } = known;
    let FirstPlan { model, budget, .. } = first;
    let cutoff = options.cutoff(start, options.time_limit);
    let (runs, kept) = match first.plans() {
        Ok(found) => found,
        Err((least, runs)) => {
            return Found {
                runs,
                least,
                lower_bound,
                floor,
            };
        }
    };
    let mut best = priced(model, runs);
    // The bound may take a while, so a waiting caller hears of the plan first and may stop.
    progress(Progress {
        elapsed: start.elapsed(),
        cost: Some(best.0),
        lower_bound,
    });
    let base = model.base_cost();
    let mut bound = bound::seconds(model, budget, options.order, best.0 - base);
    let total = options.time_limit.as_secs_f64().min(1e6) * rate(model);
    let share = (total * BOUND_SHARE) as u64;
    let spared = bound.advance(share, best.0 - base, &|| cutoff.reached());
    lower_bound = lower_bound.max(bound.proven());
    let work = match spared {
        0 => total as u64 - 2 * share,
        spared => total as u64 - share + spared,
    };
    let epochs = Epochs {
        first,
        given: &given,
        cutoff,
        seed: options.seed,
        enough: options.enough.unwrap_or(0.0).max(lower_bound) * (1.0 + 1e-9),
    };
    let mut tell = |cost: f64| {
        progress(Progress {
            elapsed: start.elapsed(),
            cost: Some(cost),
            lower_bound,
        });
    };
    epochs.better(&mut best, kept, work, &mut tell);
    bound.advance(share, best.0 - base, &|| cutoff.reached());
    lower_bound = lower_bound.max(bound.proven());
    progress(Progress {
        elapsed: start.elapsed(),
        cost: Some(best.0),
        lower_bound,
    });
    let mut arrangement = Arrangement::new(model, &best.1, budget, first.free);
    arrangement.tidy(cutoff.not_within(TIDY_TIME));
    Found {
        runs: arrangement.order(),
        least: budget,
        lower_bound,
        floor,
    }
}

/// The units of work per second of a walk; see [`RATES`].
fn rate(model: &Model) -> f64 {
    let inputs: usize = model.task_ids().map(|t| model.inputs.of(t).len()).sum();
    let mean = inputs as f64 / f64::from(model.tasks.max(1));
    let dense = ((mean - MEAN_INPUTS[0]) / (MEAN_INPUTS[1] - MEAN_INPUTS[0])).clamp(0.0, 1.0);
    RATES[0] + dense * (RATES[1] - RATES[0])
}

/// A sequence, with its seconds.
fn priced(model: &Model, runs: Vec<TaskId>) -> (f64, Vec<TaskId>) {
    (State::new(model, &runs).cost(), runs)
}

/// Annealing in epochs of growing length. After each epoch both walks go on from the better plan.
struct Epochs<'m, 'g> {
    /// Has the model, budget, order and threads.
    first: FirstPlan<'m>,
    given: &'g [TaskId],
    cutoff: Cutoff<'m>,
    seed: u64,
    /// A plan that takes at most this many seconds needn't be improved.
    enough: f64,
}

impl<'m> Epochs<'m, '_> {
    /// Improves a plan with the given work. If the order is free, also improves a plan that keeps the given
    /// order, because that is often easier: before the other plan unless it seems far worse, and again after
    /// it if other orders bring nothing.
    fn better(
        &self,
        best: &mut (f64, Vec<TaskId>),
        kept: Option<Vec<TaskId>>,
        work: u64,
        tell: &mut dyn FnMut(f64),
    ) {
        let mut left = work;
        let model = self.first.model;
        let Some(kept) = kept else {
            self.anneal(best, PATIENCE, &mut left, tell);
            return;
        };
        let mut kept = priced(model, kept);
        let base = model.base_cost();
        let promising = kept.0 - base <= PROMISING * (best.0 - base);
        let mut patience = PATIENCE;
        if promising {
            let mut share = (left as f64 * KEEPING_SHARE) as u64;
            left -= share;
            self.keep(&mut kept, best, &mut share, tell);
            left += share;
            patience = if share == 0 { PATIENCE / 2 } else { PATIENCE };
        }
        self.anneal(best, patience, &mut left, tell);
        if !promising || patience < PATIENCE {
            self.keep(&mut kept, best, &mut left, tell);
        }
    }

    /// Improves a plan that keeps the given order; it replaces the best plan if it is cheaper.
    fn keep(
        &self,
        kept: &mut (f64, Vec<TaskId>),
        best: &mut (f64, Vec<TaskId>),
        left: &mut u64,
        tell: &mut dyn FnMut(f64),
    ) {
        let first = self.first.keeping();
        if best.0 > self.enough {
            let mut tell = |cost: f64| tell(cost.min(best.0));
            Epochs { first, ..*self }.anneal(kept, PATIENCE, left, &mut tell);
        }
        if kept.0 < best.0 * (1.0 - 1e-12) {
            best.clone_from(kept);
        }
    }

    /// Improves a plan, given as its seconds and runs, until the epochs bring nothing or no work is left.
    fn anneal(
        &self,
        best: &mut (f64, Vec<TaskId>),
        patience: u32,
        left: &mut u64,
        tell: &mut dyn FnMut(f64),
    ) {
        let FirstPlan {
            model,
            budget,
            free,
            threads,
            ..
        } = self.first;
        let mut walks: Vec<Walk<'m>> = (0..WALKS)
            .map(|k| {
                let random = Random::new(self.seed, k as u64);
                Walk::new(model, self.given, budget, free, self.cutoff, random)
            })
            .collect();
        let mut length = FIRST_EPOCH * u64::from(model.tasks);
        let (mut idle, mut epoch) = (0, 0u64);
        while idle < patience && *left > 0 && !self.cutoff.reached() && best.0 > self.enough {
            tell(best.0);
            let length_now = length.min(*left);
            each(threads, &mut walks, &|k, walk| {
                walk.epoch(&best.1, length_now, epoch, k);
            });
            *left -= length_now;
            length = length * 3 / 2;
            epoch += 1;
            idle += 1;
            if let Some(better) = best_of(&walks)
                && better.0 < best.0 * (1.0 - 1e-12)
            {
                *best = better;
                idle = 0;
            }
        }
    }
}

fn best_of(walks: &[Walk<'_>]) -> Option<(f64, Vec<TaskId>)> {
    walks
        .iter()
        .filter_map(|w| w.best.as_ref())
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .cloned()
}
