//! Stages 6 to 8 where one device computes.

use std::time::Instant;

use scrimp_plan::{Capacities, CheckedLayout, Sequence, check};
use scrimp_solve::{
    Cutoff, Method, Options, Order, Others, Overflow, PlaceAny, Progress, SolveError, Solved,
    leanest, place_by, place_reordered, solve,
};

use crate::error::{Error, Result};
use crate::history::History;
use crate::pipeline::{Budgeted, Planned, Provenance, under};

/// What must fit the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The layout: the plan will be executed in an arena of the budget's size.
    Layout,
    /// The live bytes, which is what budgets of published instances mean. A layout is made all the same.
    LiveBytes,
}

/// Stages 6 to 8 for one device that computes.
pub(super) fn find(
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    match budgeted.budget_bytes {
        Some(bytes) => under::find(budgeted, bytes, fit, options, watch),
        None if options.method == Method::Search && !counts_energy(budgeted, options) => {
            least(budgeted, fit, options, watch)
        }
        None => {
            let bytes = least_of_method(budgeted, options, watch)?;
            under::find(budgeted, bytes, fit, options, watch)
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

    /// A layout needs so many bytes more than the budget.
    pub const fn by(excess: u64, budget: u64) -> Missed {
        Missed { excess, budget }
    }

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
pub(super) fn counts_energy(budgeted: &Budgeted, options: &Options) -> bool {
    options.alpha != 0.0 || budgeted.beside.joules(budgeted.device).is_some()
}

/// The shares of the time limit after which the least budget and the plan under it must be known, for live bytes and for layouts.
const LEAST_SHARES: [f64; 2] = [0.75, 0.9];
const LAYOUT_SHARES: [f64; 2] = [0.6, 0.75];
/// The share of the time limit for placing the plan.
const PLACE_SHARE: f64 = 0.1;
/// The first step by which a layout is made smaller, as a part of what it loses, and the part of the time left that the tries
/// for a step may take. A step that fails is followed by one of half its size, down to this part of the plan's bytes.
const STEP: u64 = 4;
const STEP_PART: u32 = 3;
const LEAST_STEP: u64 = 2000;
/// The share of a refusal's time for finding plans that are as lean as the leanest.
const OTHERS_SHARE: f64 = 0.4;

/// The plan under the least budget for which the search finds one. The time limit covers everything. If the
/// search is stopped, the result is the leanest plan so far, at worst the one that keeps everything.
fn least(
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    let began = Instant::now();
    let shares = match fit {
        Fit::Layout => LAYOUT_SHARES,
        Fit::LiveBytes => LEAST_SHARES,
    };
    let (budget, solved, history) = leanest_within(budgeted, options, shares, watch)?;
    let unlimited = Capacities::unlimited();
    let cutoff = options.cutoff(Instant::now(), options.time_limit.mul_f64(PLACE_SHARE));
    // With the least budget, the layout gets what it needs.
    let layout = match fit {
        Fit::Layout => {
            let layout = place_reordered(&solved.plan, &unlimited, options.order, cutoff)?;
            let cutoff = options.cutoff(began, options.time_limit);
            smaller(budgeted, layout, &solved.others, options, cutoff)?
        }
        Fit::LiveBytes => place_by(&solved.plan, &unlimited, cutoff)?,
    };
    let provenance = Provenance {
        history,
        ..Provenance::default()
    };
    let provenance = provenance.followed_by(&solved, options.order);
    let provenance = Provenance {
        optimal: layout.plan().cost() <= provenance.lower_bound * (1.0 + 1e-9),
        ..provenance
    };
    Ok(budgeted.planned(layout, fit, budget, Some(provenance)))
}

/// A layout that takes fewer bytes than this one, of other plans that need as few live bytes; or this one.
fn smaller(
    budgeted: &Budgeted,
    layout: CheckedLayout,
    others: &Others<Sequence>,
    options: &Options,
    cutoff: Cutoff<'_>,
) -> Result<CheckedLayout> {
    let needed = |layout: &CheckedLayout| layout.needed_bytes(budgeted.device);
    let live = layout.plan().peak(budgeted.device);
    let plans = Others {
        ties: [others.ties.clone(), others.dearer.clone()].concat(),
        dearer: Vec::new(),
    };
    let mut smallest = layout;
    // Some of the plans may be leaner than this one.
    let lost = |layout: &CheckedLayout| needed(layout).saturating_sub(live);
    let mut step = lost(&smallest) / STEP;
    while step > live / LEAST_STEP && !cutoff.reached() {
        let capacities = budgeted.within((needed(&smallest) - step).max(live));
        let mut any = PlaceAny::new(&budgeted.problem, &plans, &capacities, options);
        let part = cutoff.by(Instant::now().checked_add(cutoff.left() / STEP_PART));
        match any.tie(&mut None, [part; 2])? {
            Some(layout) => smallest = layout,
            None => step /= 2,
        }
        step = step.min(lost(&smallest) / STEP);
    }
    Ok(smallest)
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
            let (budget, solved, _) = leanest_within(budgeted, options, LEAST_SHARES, watch)?;
            return Ok((budget, solved));
        }
        None => least_of_method(budgeted, options, watch)?,
    };
    let solved = solve(&budgeted.problem, &budgeted.within(budget), options, watch)?;
    Ok((budget, solved))
}

/// The least budget for which the search finds a plan within a share of the time limit, and a plan within it that is as cheap
/// as the time to another share allows.
fn leanest_within(
    budgeted: &Budgeted,
    options: &Options,
    shares: [f64; 2],
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
        &until(shares[0]),
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
            ..until(shares[1])
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
pub(super) fn with_layout(
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
    let layout = layout_of_leanest(budgeted, leanest, options, cutoff);
    if let Some(layout) = &layout {
        *least_found = layout.needed_bytes(budgeted.device).max(*least_found);
    }
    (refusal, layout)
}

/// The smallest layout that is found of the leanest plan and of others that are as lean.
fn layout_of_leanest(
    budgeted: &Budgeted,
    leanest: &Sequence,
    options: &Options,
    cutoff: Cutoff<'_>,
) -> Option<CheckedLayout> {
    let (problem, capacities) = (&budgeted.problem, budgeted.within(u64::MAX));
    let plan = check(problem, leanest.plan(problem).ok()?).ok()?;
    let (mut plan, mut others) = (plan, Others::default());
    if options.method == Method::Search && !counts_energy(budgeted, options) {
        let time = cutoff.left().mul_f64(OTHERS_SHARE);
        let options = Options {
            time_limit: time,
            deadline: Instant::now().checked_add(time),
            start: Some(leanest.clone()),
            enough: None,
            ..options.clone()
        };
        let within = budgeted.within(plan.peak(budgeted.device));
        if let Ok(solved) = solve(problem, &within, &options, &mut |_| {}) {
            (plan, others) = (solved.plan, solved.others);
        }
    }
    let first = cutoff.by(Instant::now().checked_add(cutoff.left() / STEP_PART));
    let layout = place_reordered(&plan, &capacities, options.order, first).ok()?;
    smaller(budgeted, layout, &others, options, cutoff).ok()
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
    /// This provenance with one more attempt. Only the first attempt is made under the budget itself, so only
    /// its bound is valid for the budget.
    pub(super) fn followed_by(self, solved: &Solved, order: Order) -> Provenance {
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
