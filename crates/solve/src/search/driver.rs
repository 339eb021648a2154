//! The search's schedule: the exact search, a first plan, a race of walks that improve it, and the exact search again.
//!
//! All decisions depend on units of work, never on the clock, and the walks don't see each other within an
//! epoch. So one thread and two give the same plan; the clock only cuts the search off.

use scrimp_plan::{Sequence, TaskId};

use std::time::{Duration, Instant};

use crate::bound;
use crate::method::Order;
use crate::model::Model;
use crate::options::{Options, Others, Progress};
use crate::search::arrange::Arrangement;
use crate::search::contract::Contracted;
use crate::search::exact::{self, Limits, Verdict};
use crate::search::first::{FirstPlan, Lean, MANY, Plans};
use crate::search::race::{Kept, PROMISING, Race};
use crate::search::space;
use crate::search::state::State;

/// Units of work per second that the schedule expects of a walk.
const RATE: f64 = 75e6;
/// The bound's share of all work before the race, that for pairs included. Half of it follows after the race, and half at the end.
const BOUND_SHARE: f64 = 0.05;
/// The share of all work for the problem of pairs.
const PAIRS_SHARE: f64 = 0.6;
/// Where no plan is given to start from, the search for a first one may take at least this long, whatever the limit: without a plan there
/// is nothing to return, and a feasible budget would be called infeasible.
pub(super) const FIRST_PLAN: Duration = Duration::from_secs(2);
/// The share of that time for plans within the budget; the rest is for finding the least budget.
const FIRST_SHARE: f64 = 0.7;
/// The share of all work, per walk and turn, for squeezing the leanest plan if no plan fits the budget at once: for two sizes of small
/// problems, for which search from the end follows, and for others so much that time ends it.
const SQUEEZE_SHARES: [f64; 3] = [0.4, 0.8, 3.0];
const SMALL_WORDS: [usize; 2] = [2, 4];
/// Tidying may take at least this long.
const TIDY_TIME: Duration = Duration::from_millis(300);
/// The most states that the exact search makes at first, and the size of problems for which it is quick.
const STATES: usize = 150_000;
const FIRST_WORDS: usize = 2;
/// The least share of a very small problem's work for the exact search after the walks, and the size of such problems.
const EXACT_SHARE: f64 = 0.15;
const RESERVED_WORDS: usize = 1;

/// What the search found.
pub(crate) struct Found {
    /// The cheapest sequence that fits, or the leanest if none does.
    pub runs: Vec<TaskId>,
    /// Other sequences that fit.
    pub others: Others<Vec<TaskId>>,
    /// The least budget for which a plan was found: the requested one, or else a larger one.
    pub least: f64,
    pub lower_bound: f64,
    /// A proven floor, without resident bytes: no plan takes fewer bytes.
    pub floor: f64,
    /// Whether the order is free but the search kept the given one, as [`settled`] does if that is promising.
    pub settled: bool,
    /// Units of work that the search didn't need.
    left: u64,
}

/// Searches for the cheapest sequence within `budget` bytes, without resident bytes.
pub(crate) fn run<'m>(
    model: &'m Model,
    budget: f64,
    options: &'m Options,
    start: Instant,
    progress: &mut dyn FnMut(Progress),
) -> Found {
    let how = How {
        exactly: true,
        settles: false,
        whole: true,
    };
    with(model, budget, options, start, how, progress)
}

/// [`run`], but if the order is free and the given one gives a promising first plan, the whole search is in the given
/// order. Then the bound is one for that order.
pub(crate) fn settled<'m>(
    model: &'m Model,
    budget: f64,
    options: &'m Options,
    start: Instant,
) -> Found {
    let how = How {
        exactly: true,
        settles: true,
        whole: true,
    };
    with(model, budget, options, start, how, &mut |_| {})
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

/// What a search may do.
#[derive(Clone, Copy)]
pub(crate) struct How {
    /// Whether the exact search comes first.
    pub exactly: bool,
    /// Whether the search keeps the given order if that seems good.
    pub settles: bool,
    /// Whether the problem is whole, and not one of pairs.
    pub whole: bool,
}

/// Runs the search in one of several ways.
pub(crate) fn with<'m>(
    model: &'m Model,
    budget: f64,
    options: &'m Options,
    start: Instant,
    how: How,
    progress: &mut dyn FnMut(Progress),
) -> Found {
    let given = model.given_order();
    let peak = State::new(model, &given).peak();
    let floor = bound::floor(model) - model.resident;
    let mut known = Found {
        least: peak,
        runs: given,
        others: Others::default(),
        lower_bound: model.base_cost(),
        floor,
        settled: false,
        left: work(options) as u64,
    };
    if peak <= budget {
        return known;
    }
    let cutoff = options.cutoff(start, options.time_limit);
    let free = options.order == Order::Free;
    let limits = Limits {
        states: match how.exactly && space::words(model) <= FIRST_WORDS {
            true => STATES,
            false => 0,
        },
        below: f64::INFINITY,
        cutoff,
    };
    let least_time = match (options.enough, &options.start) {
        (None, None) if how.whole => FIRST_PLAN,
        _ => Duration::ZERO,
    };
    let limit = options.time_limit.max(least_time);
    let late = options.cutoff(start, limit);
    let words = space::words(model);
    let squeeze = SQUEEZE_SHARES[SMALL_WORDS.partition_point(|&small| small < words)];
    let first = FirstPlan {
        model,
        budget,
        floor,
        free,
        cutoff: late.by(start.checked_add(late.left().mul_f64(FIRST_SHARE))),
        late,
        // A caller that sets `enough` plans under many budgets and needs the time limit to be kept.
        patient: options.enough.is_none() && options.deadline.is_none(),
        any: false,
        known: None,
        squeeze: (squeeze * work(options)) as u64,
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
            let floor = floor.max(budget + 1.0);
            let Lean { least, runs, floor } = FirstPlan { floor, ..first }.leanest();
            Found {
                runs,
                least,
                floor,
                ..known
            }
        }
        Verdict::AtLeast(seconds) => {
            known.lower_bound = known.lower_bound.max(seconds);
            let search = Search {
                first,
                options,
                start,
                how,
                progress,
            };
            search.run(known)
        }
    }
}

/// A search by walks.
struct Search<'m, 'p> {
    first: FirstPlan<'m>,
    options: &'m Options,
    start: Instant,
    how: How,
    progress: &'p mut dyn FnMut(Progress),
}

impl<'m> Search<'m, '_> {
    /// Finds a first plan and anneals from there; `known` holds what is known before.
    fn run(mut self, known: Found) -> Found {
        let mut total = work(self.options) as u64;
        let plans = match self.first_plans(&mut total) {
            Ok(plans) => plans,
            Err(None) => return known,
            Err(Some(Lean { least, runs, floor })) => {
                return Found {
                    runs,
                    least,
                    floor,
                    left: 0,
                    ..known
                };
            }
        };
        self.anneal(plans, known, total)
    }

    /// The first plans, or what was learned without finding one, which is nothing where the problem isn't whole. Takes the work for
    /// the problem of pairs off `total`.
    fn first_plans(&mut self, total: &mut u64) -> Result<Plans, Option<Lean>> {
        let first = self.first;
        let Some(start) = &self.options.start else {
            return match first.plans_at_once() {
                Some((runs, kept)) => {
                    let cheapest = self.or_pairs(runs.clone(), total);
                    let kept = kept.filter(|_| cheapest == runs);
                    Ok((cheapest, kept))
                }
                None if self.how.whole => Ok((first.by_squeezing()?, None)),
                None => Err(None),
            };
        };
        let start: Vec<TaskId> = start.runs().collect();
        match first.fitted(&start) {
            Some(fitted) => Ok((self.or_pairs(first.beside(fitted), total), None)),
            None if self.how.whole => {
                let known = FirstPlan {
                    known: Some(&start),
                    ..first
                };
                // With many tasks, squeezing takes longer than building from the front.
                let many = first.model.tasks > MANY;
                match many.then(|| known.plans_at_once()).flatten() {
                    Some(plans) => Ok(plans),
                    None => Ok(known.plans()?),
                }
            }
            None => Err(None),
        }
    }

    /// A first plan, or a cheaper one of the problem of pairs where the order is free.
    fn or_pairs(&mut self, known: Vec<TaskId>, total: &mut u64) -> Vec<TaskId> {
        let first = self.first;
        let enough = self.options.enough;
        let enough = enough.is_some_and(|enough| first.seconds(&known) <= enough);
        if !first.free || !self.how.whole || self.how.settles || enough {
            return known;
        }
        let (pairs, spent) = self.of_pairs(&known).unzip();
        *total -= spent.unwrap_or(0);
        first.cheaper(known, pairs)
    }

    /// What a part of the work finds for the problem of pairs: the plan, if there is one at once, and that work. A search that was given a
    /// plan goes on from a known one here, too.
    fn of_pairs(&mut self, known: &[TaskId]) -> Option<(Vec<TaskId>, u64)> {
        let FirstPlan { model, budget, .. } = self.first;
        let time_limit = self.options.time_limit.mul_f64(PAIRS_SHARE);
        if self.options.cutoff(self.start, time_limit).reached() {
            return None;
        }
        let pairs = Contracted::of(model)?;
        let start = self.options.start.as_ref();
        let from = start.and_then(|_| pairs.contract(model, known));
        let options = Options {
            time_limit,
            start: from.map(|runs| Sequence::of_runs(model.device, runs)),
            ..self.options.clone()
        };
        let how = How {
            exactly: false,
            settles: false,
            whole: false,
        };
        // What is proven of pairs isn't of the whole problem.
        let lower_bound = model.base_cost();
        let mut watch = |news: Progress| {
            (self.progress)(Progress {
                lower_bound,
                ..news
            });
        };
        let found = with(&pairs.model, budget, &options, self.start, how, &mut watch);
        let runs = pairs.expand(&found.runs);
        let spent = work(&options) as u64 - found.left;
        (State::new(model, &runs).peak() <= budget).then_some((runs, spent))
    }

    /// Improves first plans and the bound with this much work.
    fn anneal(self, plans: Plans, known: Found, total: u64) -> Found {
        let Search {
            mut first,
            options,
            start,
            how,
            progress,
        } = self;
        let FirstPlan { model, budget, .. } = first;
        let (mut runs, mut kept) = plans;
        let added = |runs: &[TaskId]| State::new(model, runs).cost() - model.base_cost();
        let promising = kept.take_if(|kept| how.settles && added(kept) <= PROMISING * added(&runs));
        let settled = promising.is_some();
        if let Some(kept) = promising {
            (runs, first) = (kept, first.keeping());
        }
        let best = priced(model, runs);
        let origins = [&best.1].into_iter().chain(&kept).cloned().collect();
        let kept = kept.map(|runs| Kept {
            cheapest: State::new(model, &runs).cost() <= best.0,
            runs,
        });
        let mut tell = |cost: f64, lower_bound: f64| {
            progress(Progress {
                elapsed: start.elapsed(),
                cost: Some(cost),
                lower_bound,
            });
        };
        // The bound may take a while, so a waiting caller hears of the plan first and may stop.
        tell(best.0, known.lower_bound);
        let share = match how.exactly && space::words(model) <= RESERVED_WORDS {
            true => EXACT_SHARE,
            false => 0.0,
        };
        let reserve = (total as f64 * share) as u64;
        let cutoff = options.cutoff(start, options.time_limit);
        let order = match settled {
            true => Order::Fixed,
            false => options.order,
        };
        let added = best.0 - model.base_cost();
        let mut race = Race {
            first,
            given: &known.runs,
            cutoff: cutoff.by(start.checked_add(options.time_limit.mul_f64(1.0 - share))),
            enough: options.enough.unwrap_or(0.0),
            bound: bound::seconds(model, budget, order, added, cutoff),
            bound_work: (work(options) * BOUND_SHARE) as u64,
            lower_bound: known.lower_bound,
            origins,
            best,
            others: Others::default(),
            tell: &mut tell,
        };
        let left = race.run(kept, total - reserve);
        race.cutoff = cutoff;
        if how.exactly {
            race.exactly(left + reserve);
        }
        let mut arrangement = Arrangement::new(model, &race.best.1, budget, first.free);
        arrangement.tidy(cutoff.not_within(TIDY_TIME));
        Found {
            runs: arrangement.order(),
            others: race.others,
            least: budget,
            lower_bound: race.lower_bound,
            floor: known.floor,
            settled,
            left,
        }
    }
}

/// The units of work of a walk within the time limit.
pub(crate) fn work(options: &Options) -> f64 {
    options.time_limit.as_secs_f64().min(1e6) * RATE
}

/// A sequence, with its seconds.
pub(super) fn priced(model: &Model, runs: Vec<TaskId>) -> (f64, Vec<TaskId>) {
    (State::new(model, &runs).cost(), runs)
}
