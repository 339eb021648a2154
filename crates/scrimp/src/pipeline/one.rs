//! Stages 6 to 8 where one device computes, with the pipeline's loop.

use std::time::{Duration, Instant};

use scrimp_plan::{Capacities, CheckedLayout, Problem, Sequence, check};
use scrimp_solve::{
    Cutoff, Method, Options, Order, Overflow, PlaceError, Progress, SolveError, Solved, leanest,
    place_any, place_by, place_reordered, solve,
};

use crate::error::{Error, Result};
use crate::history::History;
use crate::pipeline::{Budgeted, Planned, Provenance};

/// The share of the time limit by which the first attempt ends, if the limit is at least this long. A shorter
/// one may not suffice for a first plan.
const FIRST_PART: f64 = 0.75;
const FIRST_LIMIT: Duration = Duration::from_secs(4);
/// If the first plan has a layout by then, the search runs once more with the work that is left, until this share of the limit.
/// In problems of up to so many tasks it starts from nothing, because where it ends depends most on where it began; larger
/// ones take too long for that and go on from the plan.
const SECOND_END: f64 = 0.95;
const AFRESH: usize = 400;
/// A placement may take at least this time and this part of the limit, and a further attempt this part.
const PLACE_TIME: Duration = Duration::from_millis(500);
const PLACE_PART: u32 = 10;
const AGAIN_PART: u32 = 20;
/// If there are other plans, this share of the time left is for placing the best one, and this share of the rest for placing
/// others; if a dearer one can be placed, plans that cost the same get all of it.
const BEST_SHARE: f64 = 0.1;
const OTHERS_SHARE: f64 = 0.75;

/// What must fit the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The layout: the plan will be executed in an arena of the budget's size.
    Layout,
    /// The live bytes, which is what budgets of published instances mean. A layout is made all the same.
    LiveBytes,
}

/// The most times that the planner is asked.
const ATTEMPTS: u64 = 12;
/// The first tightening removes, besides the missing bytes, one part in this many of what planning can
/// change. Each further tightening removes twice as much as the one before. Another plan has other holes, so
/// without a margin it may miss the budget by as much again.
const MARGIN: u64 = 256;

/// Stages 6 to 8 for one device that computes. If the plan's live bytes fit the budget but its layout doesn't, the
/// planner is asked again. If the order is free, it is first asked for a plan in the given order, whose lifetimes are
/// nested more neatly. Then it is asked for a plan that uses less by the missing bytes and a margin or, if there is
/// none, for another plan.
pub(super) fn find(
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    match budgeted.budget_bytes {
        Some(bytes) => under(budgeted, bytes, fit, options, watch),
        None if options.method == Method::Search && !counts_energy(budgeted, options) => {
            least(budgeted, fit, options, watch)
        }
        None => {
            let bytes = least_of_method(budgeted, options, watch)?;
            under(budgeted, bytes, fit, options, watch)
        }
    }
}

/// By how much a layout misses a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Missed {
    excess: u64,
    budget: u64,
}

impl Missed {
    /// No layout was made.
    pub const NONE: Missed = Missed {
        excess: u64::MAX,
        budget: 0,
    };

    /// That no layout fits.
    pub fn error(self) -> Error {
        Error::NoLayout {
            budget: self.budget,
            needed: self.budget.saturating_add(self.excess),
        }
    }
}

/// The device that misses its budget by the least.
pub(super) fn least_missed(over: &[Overflow], asked: &Capacities) -> Missed {
    let missed = over.iter().map(|over| Missed {
        excess: over.excess(),
        budget: asked.bytes(over.device).unwrap_or(u64::MAX),
    });
    missed.min().unwrap_or(Missed::NONE)
}

/// Capacities that are smaller by what is missing and a margin.
pub(super) fn tighten(capacities: Capacities, over: &[Overflow], margin: u64) -> Capacities {
    over.iter().fold(capacities, |capacities, over| {
        let before = capacities.bytes(over.device).unwrap_or(u64::MAX);
        let less = before.saturating_sub(over.excess().saturating_add(margin));
        capacities.with_bytes(over.device, Some(less))
    })
}

/// Whether energy has a price or a cap.
fn counts_energy(budgeted: &Budgeted, options: &Options) -> bool {
    options.alpha != 0.0 || budgeted.beside.joules(budgeted.device).is_some()
}

/// The plan under a budget in bytes.
fn under(
    budgeted: &Budgeted,
    budget: u64,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    // Published budgets are for live bytes. With the least budget, the layout gets what it needs.
    let limit = match fit {
        Fit::Layout => budgeted.capacities(),
        Fit::LiveBytes => Capacities::unlimited(),
    };
    let asked = budgeted.within(budget);
    let mut tightened = asked.clone();
    let mut provenance = Provenance {
        alpha: options.alpha,
        history: History::new(budgeted.base.objective(options.alpha)),
        ..Provenance::default()
    };
    let mut missed = Missed::NONE;
    // A plan that fits, at whatever cost.
    let mut spare: Option<CheckedLayout> = match fit {
        Fit::Layout => layout_of_start(&budgeted.problem, &asked, options)?,
        Fit::LiveBytes => None,
    };
    let changeable = budgeted.base_peak().saturating_sub(budgeted.fixed_bytes);
    let mut margin = changeable / MARGIN;
    let first_limit = options.time_limit;
    let began = Instant::now();
    // From now on at least this part of the limit, and until the limit's end.
    let left = |part: u32| {
        let left = first_limit.saturating_sub(began.elapsed());
        left.max(first_limit / part)
    };
    let order = options.order;
    // An attempt's deadline is not that of its placement.
    let whole = options;
    let mut options = Options {
        keeps_homes: fit == Fit::Layout,
        ..options.clone()
    };
    if fit == Fit::Layout && first_limit >= FIRST_LIMIT {
        // A plan made in the last moment is poor, so later attempts have time of their own.
        let first = began.checked_add(first_limit.mul_f64(FIRST_PART));
        options.deadline = options.deadline.into_iter().chain(first).min();
        options.time_limit = first_limit.mul_f64(FIRST_PART);
    }
    let cost = |layout: &CheckedLayout| layout.plan().objective(whole.alpha);
    // With energy, the search is called for several prices of a joule.
    let untold = counts_energy(budgeted, &options);
    for attempt in 1..=ATTEMPTS {
        let mut watched = |news| {
            if attempt == 1 && !untold {
                provenance.history.add(news);
            }
            watch(news);
        };
        let solved = match solve(&budgeted.problem, &tightened, &options, &mut watched) {
            Ok(solved) => solved,
            Err(refusal) if attempt == 1 && spare.is_none() => {
                let cutoff = whole.cutoff(Instant::now(), left(PLACE_PART).max(PLACE_TIME));
                return Err(match fit {
                    Fit::Layout => with_layout(refusal, budgeted, &options, cutoff).0,
                    Fit::LiveBytes => refusal,
                }
                .into());
            }
            // The budget was tightened too far: the bytes that are missing are the layout's, not the plan's.
            Err(refusal @ (SolveError::Infeasible { .. } | SolveError::Short(_))) => {
                if spare.is_none() {
                    let cutoff = whole.cutoff(Instant::now(), left(PLACE_PART).max(PLACE_TIME));
                    let (_, leanest) = with_layout(refusal, budgeted, &options, cutoff);
                    spare = leanest.filter(|l| l.needed_bytes(budgeted.device) <= budget);
                }
                if spare.is_some() && began.elapsed() >= first_limit {
                    break;
                }
                options.order = order;
                options.seed = options.seed.wrapping_add(1);
                (tightened, margin) = (asked.clone(), changeable / MARGIN);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if attempt == 1 {
            provenance.history.end(&solved);
        }
        provenance = provenance.followed_by(&solved, order);
        let time = left(PLACE_PART).max(PLACE_TIME);
        let share = match fit {
            Fit::Layout if !solved.others.ties.is_empty() => BEST_SHARE,
            _ => 1.0,
        };
        let cutoff = whole.cutoff(Instant::now(), time.mul_f64(share));
        let placed = match (fit, solved.method) {
            (Fit::Layout, Method::Search) => {
                place_reordered(&solved.plan, &limit, options.order, cutoff)
            }
            // A published planner's plan stays as it is.
            _ => place_by(&solved.plan, &limit, cutoff),
        };
        match placed {
            Ok(layout) => {
                if spare
                    .as_ref()
                    .is_some_and(|spare| cost(spare) < cost(&layout))
                {
                    break;
                }
                let second = attempt == 1 && fit == Fit::Layout && first_limit >= FIRST_LIMIT;
                let (layout, provenance) = match second && whole.method == Method::Search && !untold
                {
                    true => {
                        search_again(budgeted, &asked, (layout, provenance), whole, began, watch)?
                    }
                    false => (layout, provenance),
                };
                return Ok(budgeted.planned(layout, fit, budget, Some(provenance)));
            }
            Err(PlaceError::OverCapacity(over)) => {
                missed = missed.min(least_missed(&over, &asked));
                let time = left(PLACE_PART);
                let cutoffs = [OTHERS_SHARE, 1.0]
                    .map(|share| whole.cutoff(Instant::now(), time.mul_f64(share)));
                let (problem, others) = (&budgeted.problem, &solved.others);
                if let Some(tie) =
                    place_any(problem, others, &mut spare, &limit, &options, cutoffs)?
                {
                    return Ok(budgeted.planned(tie, fit, budget, Some(provenance)));
                }
                if spare.is_some() && began.elapsed() >= first_limit {
                    break;
                }
                options.time_limit = first_limit / 4;
                options.deadline = Instant::now().checked_add(left(AGAIN_PART));
                if attempt == 1 && order == Order::Free {
                    options.order = Order::Fixed;
                    continue;
                }
                options.order = order;
                tightened = tighten(tightened, &over, margin);
                margin = margin.saturating_mul(2);
            }
            Err(error) => return Err(error.into()),
        }
    }
    match spare {
        Some(layout) => {
            let provenance = provenance.ended_by(&layout);
            Ok(budgeted.planned(layout, fit, budget, Some(provenance)))
        }
        None => Err(missed.error()),
    }
}

/// Searches once more, and returns what is cheaper: what is known or what is found.
fn search_again(
    budgeted: &Budgeted,
    capacities: &Capacities,
    known: (CheckedLayout, Provenance),
    options: &Options,
    began: Instant,
    watch: &mut dyn FnMut(Progress),
) -> Result<(CheckedLayout, Provenance)> {
    let (layout, mut provenance) = known;
    let cost = layout.plan().objective(options.alpha);
    let end = began.checked_add(options.time_limit.mul_f64(SECOND_END));
    let starts = budgeted.problem.tasks().len() > AFRESH;
    let options = Options {
        seed: options.seed.wrapping_add(1),
        time_limit: options.time_limit.mul_f64(1.0 - FIRST_PART),
        deadline: options.deadline.into_iter().chain(end).min(),
        start: starts.then(|| Sequence::of_runs(budgeted.device, layout.plan().runs())),
        ..options.clone()
    };
    let late = options.cutoff(Instant::now(), options.time_limit).reached();
    if late || provenance.optimal {
        return Ok((layout, provenance));
    }
    let (before, bound) = (began.elapsed(), provenance.lower_bound);
    let mut watch = |news: Progress| {
        let news = Progress {
            elapsed: before + news.elapsed,
            cost: Some(news.cost.map_or(cost, |found| found.min(cost))),
            lower_bound: news.lower_bound.max(bound),
        };
        provenance.history.add(news);
        watch(news);
    };
    let solved = match solve(&budgeted.problem, capacities, &options, &mut watch) {
        Ok(solved) => solved,
        Err(SolveError::Infeasible { .. } | SolveError::Short(_)) => {
            return Ok((layout, provenance));
        }
        Err(error) => return Err(error.into()),
    };
    let cutoff = options.cutoff(Instant::now(), options.time_limit);
    let (layout, cost) = match solved.cost < cost {
        true => match place_reordered(&solved.plan, capacities, options.order, cutoff) {
            Ok(better) => (better, solved.cost),
            Err(PlaceError::OverCapacity(_)) => (layout, cost),
            Err(error) => return Err(error.into()),
        },
        false => (layout, cost),
    };
    let elapsed = provenance.elapsed + solved.elapsed;
    let ended = Solved {
        cost,
        lower_bound: bound.max(solved.lower_bound),
        elapsed: before + solved.elapsed,
        ..solved
    };
    provenance.history.end(&ended);
    provenance = Provenance {
        lower_bound: ended.lower_bound,
        optimal: cost <= ended.lower_bound * (1.0 + 1e-9),
        elapsed,
        ..provenance
    };
    Ok((layout, provenance))
}

/// The layout of the plan that the search starts from, if that is a plan of this problem and its layout fits.
pub(super) fn layout_of_start(
    problem: &Problem,
    capacities: &Capacities,
    options: &Options,
) -> Result<Option<CheckedLayout>> {
    let start = match &options.start {
        Some(start) if options.method == Method::Search => start,
        _ => return Ok(None),
    };
    let plan = start.plan(problem).ok();
    let plan = plan.and_then(|plan| check(problem, plan).ok());
    let Some(plan) = plan.filter(|plan| plan.within(capacities).is_ok()) else {
        return Ok(None);
    };
    let cutoff = options.cutoff(
        Instant::now(),
        PLACE_TIME.max(options.time_limit / PLACE_PART),
    );
    let placed = match problem.sole_device() {
        Some(_) => place_reordered(&plan, capacities, options.order, cutoff),
        None => place_by(&plan, capacities, cutoff),
    };
    match placed {
        Ok(layout) => Ok(Some(layout)),
        Err(PlaceError::OverCapacity(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The shares of the time limit after which the least budget and the plan under it must be known.
const LEAST_SHARE: f64 = 0.75;
const PLAN_SHARE: f64 = 0.9;
/// The placement's share of the time limit.
const PLACE_SHARE: f64 = 0.1;

/// The plan under the least budget for which the search finds one. The time limit covers everything. If the
/// search is stopped, the result is the leanest plan so far, at worst the one that keeps everything.
fn least(
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    let (budget, solved, history) = leanest_within(budgeted, options, watch)?;
    let unlimited = Capacities::unlimited();
    let cutoff = options.cutoff(Instant::now(), options.time_limit.mul_f64(PLACE_SHARE));
    // With the least budget, the layout gets what it needs.
    let layout = match fit {
        Fit::Layout => place_reordered(&solved.plan, &unlimited, options.order, cutoff)?,
        Fit::LiveBytes => place_by(&solved.plan, &unlimited, cutoff)?,
    };
    let provenance = Provenance {
        history,
        ..Provenance::default()
    };
    let provenance = provenance.followed_by(&solved, options.order);
    Ok(budgeted.planned(layout, fit, budget, Some(provenance)))
}

/// Stages 6 and 7 for one device that computes: a plan whose live bytes fit the budget, or the least budget for which
/// one is found, and that budget. There is no layout.
///
/// # Errors
/// If no plan is found within the budget, with the least for which there is one.
pub fn plan_bytes(
    budgeted: &Budgeted,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<(u64, Solved)> {
    let budget = match budgeted.budget_bytes {
        Some(bytes) => bytes,
        None if options.method == Method::Search => {
            let (budget, solved, _) = leanest_within(budgeted, options, watch)?;
            return Ok((budget, solved));
        }
        None => least_of_method(budgeted, options, watch)?,
    };
    let solved = solve(&budgeted.problem, &budgeted.within(budget), options, watch)?;
    Ok((budget, solved))
}

/// The least budget for which the search finds a plan within a part of the time limit, and a plan within it that is
/// as cheap as the rest of the time allows.
fn leanest_within(
    budgeted: &Budgeted,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<(u64, Solved, History)> {
    let began = Instant::now();
    let until = |share: f64| Options {
        deadline: began.checked_add(options.time_limit.mul_f64(share)),
        ..options.clone()
    };
    let (budget, mut solved) = leanest(
        &budgeted.problem,
        &budgeted.beside,
        &until(LEAST_SHARE),
        watch,
    )?;
    let mut history = History::new(budgeted.base.cost());
    if !options.stopped() {
        let (problem, capacities) = (&budgeted.problem, budgeted.within(budget));
        let mut watch = |news| {
            history.add(news);
            watch(news);
        };
        let options = Options {
            start: Some(Sequence::of_runs(budgeted.device, solved.plan.runs())),
            ..until(PLAN_SHARE)
        };
        match solve(problem, &capacities, &options, &mut watch) {
            Ok(cheaper) if cheaper.cost <= solved.cost => solved = cheaper,
            Ok(_) | Err(SolveError::Infeasible { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    history.end(&solved);
    solved.elapsed = began.elapsed();
    Ok((budget, solved, history))
}

/// A refusal that names the bytes of the leanest plan's layout, and this layout.
fn with_layout(
    refusal: SolveError,
    budgeted: &Budgeted,
    options: &Options,
    cutoff: Cutoff<'_>,
) -> (SolveError, Option<CheckedLayout>) {
    let mut refusal = refusal;
    let SolveError::Infeasible {
        least_found,
        leanest: Some(leanest),
        ..
    } = &mut refusal
    else {
        return (refusal, None);
    };
    let capacities = budgeted.within(u64::MAX);
    let plan = leanest.plan(&budgeted.problem).ok();
    let plan = plan.and_then(|plan| check(&budgeted.problem, plan).ok());
    let layout =
        plan.and_then(|plan| place_reordered(&plan, &capacities, options.order, cutoff).ok());
    if let Some(layout) = &layout {
        *least_found = layout.needed_bytes(budgeted.device).max(*least_found);
    }
    (refusal, layout)
}

/// The least budget for which a method other than the search finds a plan.
fn least_of_method(
    budgeted: &Budgeted,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<u64> {
    match solve(&budgeted.problem, &budgeted.within(0), options, watch) {
        Ok(solved) => Ok(solved.plan.peak(budgeted.device)),
        Err(SolveError::Infeasible { least_found, .. }) => Ok(least_found),
        Err(error) => Err(error.into()),
    }
}

impl Budgeted {
    pub(super) fn planned(
        &self,
        layout: CheckedLayout,
        fit: Fit,
        budget_bytes: u64,
        provenance: Option<Provenance>,
    ) -> Planned {
        // With the least budget, the layout gets what it needs.
        let budget_bytes = match fit {
            Fit::Layout => budget_bytes.max(layout.needed_bytes(self.device)),
            Fit::LiveBytes => budget_bytes,
        };
        Planned {
            budgeted: self.clone(),
            budget_bytes,
            layout,
            provenance,
            remark: None,
        }
    }
}

impl Provenance {
    /// This provenance with a last attempt that gave the leanest plan, or one for a single device.
    fn ended_by(self, layout: &CheckedLayout) -> Provenance {
        let cost = layout.plan().objective(self.alpha);
        Provenance {
            optimal: cost <= self.lower_bound * (1.0 + 1e-9),
            attempts: self.attempts + 1,
            ..self
        }
    }

    /// This provenance with one more attempt. Only the first attempt is made under the budget itself, so only
    /// its bound is valid for the budget.
    fn followed_by(self, solved: &Solved, order: Order) -> Provenance {
        let lower_bound = if self.attempts == 0 {
            solved.lower_bound
        } else {
            self.lower_bound
        };
        Provenance {
            method: solved.method,
            order,
            alpha: self.alpha,
            lower_bound,
            optimal: solved.cost <= lower_bound * (1.0 + 1e-9),
            elapsed: self.elapsed + solved.elapsed,
            attempts: self.attempts + 1,
            note: solved.note.clone(),
            history: self.history,
            alone: self.alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use scrimp_graph::networks::{self, NetworkOptions};
    use scrimp_graph::{Loss, Optimizer, Tiles};
    use scrimp_plan::Budget;
    use scrimp_run::{Compiled, Cpu, Processor};
    use scrimp_solve::sequence_of;

    use super::*;
    use crate::pipeline::{Recipe, budget, differentiate, estimate, lower};

    fn digits(batch: usize) -> Budgeted {
        let options = NetworkOptions {
            batch,
            ..NetworkOptions::default()
        };
        let graph = networks::build("digits", &options).expect("it is built in");
        let recipe = Recipe {
            loss: Loss::CrossEntropy,
            optimizer: Optimizer::Sgd {
                momentum: 0.0,
                weight_decay: 0.0,
            },
            tiles: Tiles::Off,
        };
        let training = differentiate(&graph, recipe).expect("it has gradients");
        let cpu = Cpu::new(1).expect("threads start");
        let compiled = Compiled::new(&training.graph, Processor::Cpu(&cpu));
        let lowered = lower(&training, &estimate(&compiled)).expect("it can be planned");
        budget(&lowered.problem, Budget::Percent(100.0)).expect("a budget")
    }

    #[test]
    fn only_a_start_whose_layout_fits_is_a_spare() {
        let budgeted = digits(4);
        let keeps_all = Options {
            start: Some(sequence_of(&budgeted.base)),
            ..Options::default()
        };
        let spare = |budgeted: &Budgeted, bytes, options: &Options| {
            layout_of_start(&budgeted.problem, &budgeted.within(bytes), options).expect("no fault")
        };
        let layout = spare(&budgeted, u64::MAX, &keeps_all).expect("there is room");
        let needed = layout.needed_bytes(budgeted.device);
        assert_eq!(layout.plan().recomputed(), 0);
        assert!(spare(&budgeted, needed, &keeps_all).is_some());
        assert!(spare(&budgeted, budgeted.base_peak() - 1, &keeps_all).is_none());
        assert!(spare(&digits(8), needed, &keeps_all).is_none());
        assert!(spare(&budgeted, u64::MAX, &Options::default()).is_none());
        let published = Options {
            method: Method::KeepAll,
            ..keeps_all
        };
        assert!(spare(&budgeted, u64::MAX, &published).is_none());
    }
}
