//! The search's schedule: a race between lineages of plans with different starts, if there are such, and then epochs of annealing
//! from the best plan. A lineage is annealed on two walks, whose results are merged after each epoch.
//!
//! All decisions depend on units of work, never on the clock, and the walks don't see each other within an
//! epoch. So one thread and two give the same plan; the clock only cuts the search off.

use scrimp_plan::{Sequence, TaskId};

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bound::{self, Ascent, Growth};
use crate::cutoff::Cutoff;
use crate::method::Order;
use crate::model::Model;
use crate::options::{Options, Others, Progress};
use crate::random::Random;
use crate::search::anneal::Walk;
use crate::search::arrange::Arrangement;
use crate::search::contract::Contracted;
use crate::search::exact::{self, Limits, Verdict};
use crate::search::first::{FirstPlan, Lacking, MANY};
use crate::search::lineage::Lineage;
use crate::search::space;
use crate::search::state::State;
use crate::search::walks::WALKS;

/// Units of work per second that the schedule expects of a walk.
const RATE: f64 = 75e6;
/// The bound's share of all work before the race, that for pairs included. Half of it follows after the race, and half at the end.
const BOUND_SHARE: f64 = 0.05;
/// After each epoch of the last lineage, one part in so many of its work is for the bound by single moments.
const PROOF_PART: u64 = 12;
/// The share of all work for the problem of pairs.
const PAIRS_SHARE: f64 = 0.6;
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
const PROMISING: f64 = 1.25;
/// After this many epochs a lineage goes on only if its plan is promising.
const TRIAL: u64 = 3;
/// Units of work of the first epoch, per task.
pub(super) const FIRST_EPOCH: u64 = 5000;
/// Where no plan is given to start from, the search for a first one may take at least this long, whatever the limit: without a plan there
/// is nothing to return, and a feasible budget would be called infeasible.
pub(super) const FIRST_PLAN: Duration = Duration::from_secs(2);
/// The share of that time for plans within the budget; the rest is for finding the least budget.
const FIRST_SHARE: f64 = 0.7;
/// The share of all work, per walk, for squeezing the leanest plan if no plan fits the budget at once: for two sizes of small problems, for
/// which the exact search follows, and for others so much that time ends it.
const SQUEEZE_SHARES: [f64; 3] = [0.4, 0.8, 3.0];
const SMALL_WORDS: [usize; 2] = [2, 4];
/// Tidying may take at least this long.
const TIDY_TIME: Duration = Duration::from_millis(300);
/// The most states that the exact search makes at first, and the size of problems for which it is quick.
const STATES: usize = 150_000;
const FIRST_WORDS: usize = 2;
/// The least share of a very small problem's work for the exact search after the walks, the size of such problems, and the
/// units of work for a state.
const EXACT_SHARE: f64 = 0.15;
const RESERVED_WORDS: usize = 1;
const STATE: u64 = 15;
/// The same limit at first for each budget while the least budget is sought.
const LEAST_STATES: usize = 20_000;
/// The share of all work that the epochs without a better plan take at least before the search has converged, so
/// that small problems don't end too soon.
const IDLE_SHARE: f64 = 0.1;
/// The same per task, in units of work, if the plan is further above the bound than a share of all tasks' seconds.
const ENOUGH: u64 = 2_000_000;
const CLOSE: f64 = 1e-3;

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
            let none = budget.max(floor - 1.0);
            let limits = Limits {
                states: LEAST_STATES,
                below: f64::INFINITY,
                cutoff: first.late,
            };
            let found = exact::leanest(model, (none, first.leanest()), free, limits);
            (known.floor, (known.least, known.runs)) = found;
            known
        }
        Verdict::AtLeast(seconds) => {
            known.lower_bound = known.lower_bound.max(seconds);
            by_walks(first, known, options, start, how, progress)
        }
    }
}

/// Finds a first plan and anneals from there; `known` holds what is known before.
fn by_walks<'m>(
    mut first: FirstPlan<'m>,
    known: Found,
    options: &'m Options,
    start: Instant,
    how: How,
    progress: &mut dyn FnMut(Progress),
) -> Found {
    let (mut lower_bound, floor) = (known.lower_bound, known.floor);
    let FirstPlan { model, budget, .. } = first;
    let cutoff = options.cutoff(start, options.time_limit);
    let start_runs: Option<Vec<TaskId>> = options.start.as_ref().map(|plan| plan.runs().collect());
    let mut total = work(options) as u64;
    let mut or_pairs = |known: Vec<TaskId>| {
        let enough = options
            .enough
            .is_some_and(|enough| first.seconds(&known) <= enough);
        let pairs = match first.free && how.whole && !how.settles && !enough {
            true => of_pairs(&first, &known, options, start, progress),
            false => None,
        };
        let pairs = pairs.map(|(runs, spent)| {
            total -= spent;
            runs
        });
        first.cheaper(known, pairs)
    };
    let plans = match &start_runs {
        Some(runs) => match first.fitted(runs) {
            Some(fitted) => Ok((or_pairs(first.beside(fitted)), None)),
            None if !how.whole => return known,
            None => {
                let known = FirstPlan {
                    known: Some(runs),
                    ..first
                };
                // With many tasks, squeezing takes longer than building from the front.
                match model.tasks > MANY {
                    true => known.plans_at_once().map_or_else(|| known.plans(), Ok),
                    false => known.plans(),
                }
            }
        },
        None => match first.plans_at_once() {
            Some((runs, kept)) => {
                let cheapest = or_pairs(runs.clone());
                let kept = kept.filter(|_| cheapest == runs);
                Ok((cheapest, kept))
            }
            None if how.whole => first.by_squeezing().map(|runs| (runs, None)),
            None => return known,
        },
    };
    let (mut runs, mut kept) = match plans {
        Ok(found) => found,
        Err(Lacking { least, runs, floor }) => {
            // Whether there is a plan at all takes fewer states than the cheapest one.
            let limits = Limits {
                states: LEAST_STATES,
                below: f64::INFINITY,
                cutoff: first.late,
            };
            let gap = (floor.max(1.0) - 1.0, (least, runs));
            let (proven, (least, runs)) = exact::leanest(model, gap, first.free, limits);
            if least > budget {
                return Found {
                    runs,
                    others: Others::default(),
                    least,
                    lower_bound,
                    floor: proven.max(floor),
                    settled: false,
                    left: 0,
                };
            }
            (runs, None)
        }
    };
    let added = |runs: &[TaskId]| State::new(model, runs).cost() - model.base_cost();
    let promising = kept.take_if(|kept| how.settles && added(kept) <= PROMISING * added(&runs));
    let settled = promising.is_some();
    let mut order = options.order;
    if let Some(kept) = promising {
        (runs, first, order) = (kept, first.keeping(), Order::Fixed);
    }
    let best = priced(model, runs);
    let keeps = kept
        .as_ref()
        .is_some_and(|kept| priced(model, kept.clone()).0 <= best.0);
    // The bound may take a while, so a waiting caller hears of the plan first and may stop.
    progress(Progress {
        elapsed: start.elapsed(),
        cost: Some(best.0),
        lower_bound,
    });
    let mut race = Race {
        first,
        given: &known.runs,
        cutoff,
        seed: options.seed,
        enough: options.enough.unwrap_or(0.0),
        bound: {
            let known = best.0 - model.base_cost();
            bound::seconds(model, budget, order, known, cutoff)
        },
        bound_work: (work(options) * BOUND_SHARE) as u64,
        lower_bound,
        origins: [&best.1].into_iter().chain(&kept).cloned().collect(),
        best,
        others: Others::default(),
        tell: &mut |cost, lower_bound| {
            progress(Progress {
                elapsed: start.elapsed(),
                cost: Some(cost),
                lower_bound,
            });
        },
    };
    let share = match how.exactly && space::words(model) <= RESERVED_WORDS {
        true => EXACT_SHARE,
        false => 0.0,
    };
    let reserve = (total as f64 * share) as u64;
    race.cutoff = cutoff.by(start.checked_add(options.time_limit.mul_f64(1.0 - share)));
    let left = race.run(kept, keeps, total - reserve);
    race.cutoff = cutoff;
    if how.exactly {
        race.exactly(left + reserve);
    }
    let best = race.best;
    lower_bound = race.lower_bound;
    let mut arrangement = Arrangement::new(model, &best.1, budget, first.free);
    arrangement.tidy(cutoff.not_within(TIDY_TIME));
    Found {
        runs: arrangement.order(),
        others: race.others,
        least: budget,
        lower_bound,
        floor,
        settled,
        left,
    }
}

/// What a part of the work finds for the problem of pairs: the plan, if there is one at once, and that work. A search that was given a plan goes
/// on from a known one here, too.
fn of_pairs(
    first: &FirstPlan<'_>,
    known: &[TaskId],
    options: &Options,
    start: Instant,
    progress: &mut dyn FnMut(Progress),
) -> Option<(Vec<TaskId>, u64)> {
    let time_limit = options.time_limit.mul_f64(PAIRS_SHARE);
    if options.cutoff(start, time_limit).reached() {
        return None;
    }
    let pairs = Contracted::of(first.model)?;
    let from = options
        .start
        .as_ref()
        .and_then(|_| pairs.contract(first.model, known));
    let options = Options {
        time_limit,
        start: from.map(|runs| Sequence::of_runs(first.model.device, runs)),
        ..options.clone()
    };
    let how = How {
        exactly: false,
        settles: false,
        whole: false,
    };
    let lower_bound = first.model.base_cost();
    // What is proven of pairs isn't of the whole problem.
    let mut watch = |news: Progress| {
        progress(Progress {
            lower_bound,
            ..news
        });
    };
    let found = with(&pairs.model, first.budget, &options, start, how, &mut watch);
    let runs = pairs.expand(&found.runs);
    let spent = work(&options) as u64 - found.left;
    (State::new(first.model, &runs).peak() <= first.budget).then_some((runs, spent))
}

/// The units of work of a walk within the time limit.
pub(crate) fn work(options: &Options) -> f64 {
    options.time_limit.as_secs_f64().min(1e6) * RATE
}

/// A sequence, with its seconds.
fn priced(model: &Model, runs: Vec<TaskId>) -> (f64, Vec<TaskId>) {
    (State::new(model, &runs).cost(), runs)
}

/// Several lineages of plans, which are annealed in turn until the best of them takes what work is left.
struct Race<'m, 'g> {
    /// Has the model, budget, order and threads.
    first: FirstPlan<'m>,
    given: &'g [TaskId],
    cutoff: Cutoff<'m>,
    seed: u64,
    /// A plan that takes at most this many seconds needn't be improved.
    enough: f64,
    bound: Ascent<'m>,
    /// Units of work for it before the race.
    bound_work: u64,
    /// No plan takes fewer seconds.
    lower_bound: f64,
    best: (f64, Vec<TaskId>),
    /// Other plans.
    others: Others<Vec<TaskId>>,
    /// The first plans.
    origins: Vec<Vec<TaskId>>,
    tell: &'g mut dyn FnMut(f64, f64),
}

impl<'m> Race<'m, '_> {
    /// Improves the best plan, and the bound, with this much work. `kept` keeps the given order
    /// while the order is free; improving it is often easier. `keeps` says that no other first plan is cheaper.
    /// Returns the work left over once the search has converged.
    fn run(&mut self, kept: Option<Vec<TaskId>>, keeps: bool, total: u64) -> u64 {
        let share = self.bound_work;
        let spared = self.advance(share);
        let mut left = total.saturating_sub(2 * share);
        let model = self.first.model;
        let free = self.first.free;
        let guide = Arc::new(self.bound.growth(self.best.0));
        let made = self.at_moments(share / 4, &mut left);
        self.origins.extend(made.iter().map(|plan| plan.1.clone()));
        let added = |plan: &Vec<TaskId>| State::new(model, plan).cost() - model.base_cost();
        let promising = |kept: &Vec<TaskId>| added(kept) <= PROMISING * added(&self.best.1);
        let splits = kept.as_ref().is_some_and(promising);
        let mut lineages = vec![self.lineage(0, self.best.clone(), free, &guide)];
        if let Some(kept) = kept.filter(|_| !(keeps && lineages[0].tries)) {
            lineages.push(self.lineage(0, priced(model, kept), false, &guide));
        }
        let afford = (left as f64 * RACE_SHARE) as u64 / (RACE_EPOCHS * self.first_epoch());
        let mut race_share = SHORT_RACE_SHARE;
        while (lineages.len() as u64) < afford.min(LINEAGES) {
            let number = lineages.len() as u64;
            let from = self.best.clone();
            let mut lineage = self.lineage(number, from, free, &guide);
            // Under tight budgets no other plan may be found.
            if !lineage.start_over(RACE_EPOCHS * self.first_epoch()) {
                break;
            }
            lineages.push(lineage);
            race_share = RACE_SHARE;
        }
        for lineage in lineages.iter_mut().filter(|_| keeps) {
            lineage.keeps_until = u64::MAX;
        }
        if splits {
            lineages.iter_mut().for_each(Lineage::split);
        }
        // The shorter part of the work goes to all, the longer one to the best.
        let end = left - (left as f64 * race_share) as u64;
        let base = model.base_cost();
        let idle = (total as f64 * IDLE_SHARE) as u64;
        while left > end && !self.ended() {
            let most = base + PROMISING * (self.best.0 - base);
            let goes_on = |l: &&mut Lineage<'m>| {
                !l.has_converged(idle / LINEAGES) && (l.epochs < TRIAL || l.best.0 <= most)
            };
            let open = lineages.iter_mut().filter(goes_on);
            let Some(next) = open.min_by_key(|l| l.spent) else {
                break;
            };
            next.epoch(self.first.threads, left - end, &mut left);
            let found = next.best.clone();
            self.offer(found);
        }
        let spared = self.advance(spared + share / 2);
        let guide = Arc::new(self.bound.growth(self.best.0));
        for origin in lineages.iter().flat_map(Lineage::origins) {
            if !self.origins.contains(origin) {
                self.origins.push(origin.clone());
            }
        }
        let mut last = self.lineage(0, self.best.clone(), free, &guide);
        last.meet(made.as_slice());
        for lineage in &lineages {
            last.meet(std::slice::from_ref(&lineage.best));
            last.meet(lineage.walks[0].elite.plans());
        }
        if splits {
            last.split();
        }
        if keeps {
            last.keeps_until = (left as f64 * KEEPING_SHARE) as u64;
        }
        let enough = ENOUGH * u64::from(model.tasks);
        while left > 0 && !self.ended() {
            let idle = if self.is_close() {
                idle
            } else {
                idle.max(enough)
            };
            let converged = last.has_converged(idle);
            // A plan that is proven to be the best needn't be improved, and the proof may take as long as the search has taken.
            let proof = if converged {
                total - left
            } else {
                let before = left;
                last.epoch(self.first.threads, left, &mut left);
                self.offer(last.best.clone());
                (before - left) / PROOF_PART
            };
            if let Some(plan) = self.at_moments(proof, &mut left) {
                last.take(plan);
            }
            if converged && last.has_converged(idle) {
                break;
            }
        }
        self.others = last.others();
        self.advance(spared + share / 2);
        left
    }

    /// Looks for the cheapest plan once more with the work that is left, now that a plan's seconds limit the states.
    fn exactly(&mut self, left: u64) {
        if self.ended() {
            return;
        }
        let limits = Limits {
            states: exact::MOST_STATES.min((left / STATE) as usize),
            below: self.best.0,
            cutoff: self.cutoff,
        };
        let FirstPlan {
            model,
            budget,
            free,
            ..
        } = self.first;
        match exact::cheapest(model, budget, free, limits) {
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
                let random = Random::new(self.seed, number * WALKS as u64 + k);
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
