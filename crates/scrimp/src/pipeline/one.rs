//! Stages 6 to 8 where one device computes.

use std::time::Instant;

use scrimp_plan::{Capacities, CheckedLayout, CheckedPlan, DeviceId, Problem, Sequence, check};
use scrimp_solve::{
    Cutoff, Method, Options, Order, Overflow, PlaceError, Progress, SolveError, Solved, leanest,
    place_by, place_reordered, sequence_of, smallest_thinned, solve,
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

/// Stages 6 to 8 for one device that computes. A layout that fits the budget may be known.
pub(super) fn find(
    known: Option<CheckedLayout>,
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    match budgeted.budget_bytes {
        Some(bytes) => under::find(known, budgeted, bytes, fit, options, watch),
        None if options.method == Method::Search && !counts_energy(budgeted, options) => {
            least(budgeted, fit, options, watch)
        }
        None => {
            let bytes = least_of_method(budgeted, options, watch)?;
            under::find(known, budgeted, bytes, fit, options, watch)
        }
    }
}

/// By how much a layout misses a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Missed {
    excess: u64,
    budget: u64,
    device: Option<DeviceId>,
}

impl Missed {
    /// No layout was made.
    pub const NONE: Missed = Missed {
        excess: u64::MAX,
        budget: 0,
        device: None,
    };

    /// A layout needs so many bytes more than the budget of a device.
    pub const fn by(excess: u64, budget: u64, device: DeviceId) -> Missed {
        Missed {
            excess,
            budget,
            device: Some(device),
        }
    }

    /// That no layout of the problem fits.
    pub fn error(self, problem: &Problem) -> Error {
        let name = |device| problem.devices()[device].name.clone();
        Error::NoLayout {
            memory: self.device.map_or_else(|| "any device".into(), name),
            budget: self.budget,
            needed: self.budget.saturating_add(self.excess),
        }
    }
}

/// By how much a layout misses the budget of the device that lacks the most.
pub(super) fn most_missed(over: &[Overflow], asked: &Capacities) -> Missed {
    let missed = over.iter().map(|over| {
        let budget = asked.bytes(over.device).unwrap_or(u64::MAX);
        Missed::by(over.excess(), budget, over.device)
    });
    missed.max().unwrap_or(Missed::NONE)
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

/// The shares of the time limit after which the least budget and the plan under it must be known.
const LEAST_SHARES: [f64; 2] = [0.75, 0.9];
/// The shares of the time limit for the leanest plan and for placing it, where a cheaper one under the least budget is then looked for.
const LEANEST_SHARE: f64 = 0.6;
const SMALLEST_SHARE: f64 = 0.25;
/// How often the leanest plan is looked for where values can't be packed into a memory.
const SMALLER: u32 = 4;
/// The share for placing a plan whose layout has no limit.
const PLACE_SHARE: f64 = 0.1;

/// The plan under the least budget for which the search finds one. The time limit covers everything. If the
/// search is stopped, the result is the leanest plan so far, at worst the one that keeps everything.
fn least(
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    match fit {
        Fit::Layout => least_layout(budgeted, options, watch),
        Fit::LiveBytes => least_bytes(budgeted, options, watch),
    }
}

/// The smallest layout that is found, and then the cheapest plan whose layout takes no more.
fn least_layout(
    budgeted: &Budgeted,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    let began = Instant::now();
    let needed = |layout: &CheckedLayout| layout.needed_bytes(budgeted.device);
    let found = leanest_layout(budgeted, options, watch);
    let (solved, layout) = match (found, known_layout(budgeted, options)) {
        (Ok((_, layout)), Some(known)) if needed(&known) < needed(&layout) => (None, known),
        (Err(Error::NoLayout { .. } | Error::OverBudget(_)), Some(known)) => (None, known),
        (found, _) => found.map(|(solved, layout)| (Some(solved), layout))?,
    };
    let needed = needed(&layout);
    if options.stopped() {
        let followed = |solved| Provenance::default().followed_by(&solved, options.order);
        let provenance = solved.map_or_else(Provenance::default, followed);
        return Ok(budgeted.planned(layout, Fit::Layout, needed, Some(provenance)));
    }
    let options = Options {
        time_limit: options.time_limit.saturating_sub(began.elapsed()),
        start: Some(sequence_of(layout.plan())),
        ..options.clone()
    };
    let within = Budgeted {
        budget_bytes: Some(needed),
        ..budgeted.clone()
    };
    let planned = under::find(Some(layout), &within, needed, Fit::Layout, &options, watch)?;
    Ok(Planned {
        budgeted: budgeted.clone(),
        // The layout gets what it needs.
        budget_bytes: planned.layout.needed_bytes(budgeted.device),
        ..planned
    })
}

/// The leanest plan that is found, and its smallest layout. Where values waiting in another memory can't be packed into it, that memory
/// is taken to be smaller.
pub(super) fn leanest_layout(
    budgeted: &Budgeted,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<(Solved, CheckedLayout)> {
    let began = Instant::now();
    let mut beside = budgeted.beside.clone();
    let mut missed = Missed::NONE;
    for _ in 0..SMALLER {
        let left = options.time_limit.saturating_sub(began.elapsed());
        let first = Options {
            deadline: Instant::now().checked_add(left.mul_f64(LEANEST_SHARE)),
            ..options.clone()
        };
        let (_, solved) = leanest(&budgeted.problem, &beside, &first, watch)?;
        match solved.plan.within(&beside) {
            Ok(()) => {}
            Err(excesses) if missed == Missed::NONE => return Err(excesses.into()),
            Err(_) => break,
        }
        let cutoff = options.cutoff(Instant::now(), left.mul_f64(SMALLEST_SHARE));
        let over = match smallest_layout(budgeted, &solved.plan, options, cutoff) {
            Err(Error::Place(PlaceError::OverCapacity(over))) => over,
            layout => return layout.map(|layout| (solved, layout)),
        };
        missed = missed.min(most_missed(&over, &budgeted.beside));
        beside = tighten(beside, &over, 0);
        if options.time_limit <= began.elapsed() {
            break;
        }
    }
    Err(missed.error(&budgeted.problem))
}

/// The smallest layout of the plan that is known before, if there is one.
fn known_layout(budgeted: &Budgeted, options: &Options) -> Option<CheckedLayout> {
    let plan = plan_of(&budgeted.problem, options.start.as_ref()?)?;
    if options.order == Order::Fixed && !plan.keeps_order() {
        return None;
    }
    let time = options.time_limit.mul_f64(PLACE_SHARE);
    smallest_layout(
        budgeted,
        &plan,
        options,
        options.cutoff(Instant::now(), time),
    )
    .ok()
}

/// The least budget for live bytes, with a plan and its layout, which may take more.
fn least_bytes(
    budgeted: &Budgeted,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    let (budget, solved, history) = leanest_within(budgeted, options, watch)?;
    let cutoff = options.cutoff(Instant::now(), options.time_limit.mul_f64(PLACE_SHARE));
    let layout = place_by(&solved.plan, &Capacities::unlimited(), cutoff)?;
    let provenance = Provenance {
        history,
        ..Provenance::default()
    };
    let provenance = provenance.followed_by(&solved, options.order);
    Ok(budgeted.planned(layout, Fit::LiveBytes, budget, Some(provenance)))
}

/// The smallest layout that is found of a plan, or of one with more recomputation, without a limit for the device that computes.
fn smallest_layout(
    budgeted: &Budgeted,
    plan: &CheckedPlan,
    options: &Options,
    cutoff: Cutoff<'_>,
) -> Result<CheckedLayout> {
    let device = budgeted.device;
    let needed = |layout: &CheckedLayout| layout.needed_bytes(device);
    let thinned = match counts_energy(budgeted, options) {
        true => None,
        false => smallest_thinned(plan, options, cutoff)?,
    };
    match thinned {
        Some(layout) if needed(&layout) <= plan.peak(device) => Ok(layout),
        thinned => {
            let capacities = budgeted.beside.clone().with_bytes(device, None);
            let layout = place_reordered(plan, &capacities, options.order, cutoff)?;
            let smaller = thinned.filter(|thinned| needed(thinned) < needed(&layout));
            Ok(smaller.unwrap_or(layout))
        }
    }
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

/// The least budget for which the search finds a plan within a share of the time limit, and a plan within it that is as cheap
/// as the time to another share allows.
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
        &until(LEAST_SHARES[0]),
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
            ..until(LEAST_SHARES[1])
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
    let plan = plan_of(&budgeted.problem, leanest);
    let layout = plan.and_then(|plan| smallest_layout(budgeted, &plan, options, cutoff).ok());
    if let Some(layout) = &layout {
        *least_found = layout.needed_bytes(budgeted.device);
    }
    (refusal, layout)
}

/// The checked plan of a sequence, if it is one of this problem.
pub(super) fn plan_of(problem: &Problem, sequence: &Sequence) -> Option<CheckedPlan> {
    check(problem, sequence.plan(problem).ok()?).ok()
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
