//! Stages 6 to 8, from a budget to a plan with its layout, with the pipeline's one loop.

use std::time::{Duration, Instant};

use scrimp_plan::{
    Capacities, CheckedLayout, CheckedPlan, DeviceId, Plan, SavedPlan, Sequence, check,
};
use scrimp_solve::{
    Cutoff, Method, Options, Order, PlaceError, Progress, SolveError, Solved, leanest, place,
    place_by, place_reordered, solve,
};

use crate::error::{Error, Result};
use crate::history::History;
use crate::pipeline::{Budgeted, Planned, Provenance, devices, homes};

/// The share of the time limit by which the first attempt ends, if the limit is at least this long. A shorter
/// one may not suffice for a first plan.
const FIRST_PART: f64 = 0.75;
const FIRST_LIMIT: Duration = Duration::from_secs(4);
/// A placement may take at least this time and this part of the limit, and a further attempt this part.
const PLACE_TIME: Duration = Duration::from_millis(500);
const PLACE_PART: u32 = 10;
const AGAIN_PART: u32 = 20;

/// What must fit the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The layout: the plan will be executed in an arena of the budget's size.
    Layout,
    /// The live bytes, which is what budgets of published instances mean. A layout is made all the same.
    LiveBytes,
}

/// The most times that the planner is asked, and for several devices even after the time limit.
const ATTEMPTS: u64 = 12;
const MOST_AFTER: u64 = 3;
/// The first tightening removes, besides the missing bytes, one part in this many of what planning can
/// change. Each further tightening removes twice as much as the one before. Another plan has other holes, so
/// without a margin it may miss the budget by as much again.
const MARGIN: u64 = 256;

/// Stages 6 to 8: solve, check, place. If there is a memory to swap to, it is first decided which weights and
/// optimizer state live there, so the plan's problem may differ from the one given in these. This is the one loop of the pipeline. If the plan's live bytes fit the
/// budget but its layout doesn't, the planner is asked again. If the order is free, it is first asked for a
/// plan in the given order, whose lifetimes are nested more neatly. Then it is asked for a plan that uses
/// less by the missing bytes and a margin or, if there is none, for another plan.
///
/// # Errors
/// If no plan is found, with the least budget for which there is one, or if no layout fits.
pub fn find_plan(
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    let began = Instant::now();
    let budgeted = &homes::choose(budgeted, options)?;
    let options = &match budgeted.problem.devices().len() {
        1 => options.clone(),
        _ => Options {
            time_limit: options.time_limit.saturating_sub(began.elapsed()),
            ..options.clone()
        },
    };
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
    // The device that missed its budget by the least: its budget and what it needed.
    let mut missed = (budget, u64::MAX);
    // A plan that fits, at whatever cost.
    let mut spare: Option<CheckedLayout> = None;
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
    }
    let several = budgeted.problem.sole_device().is_none();
    let short = |time_limit| Options {
        time_limit,
        ..whole.clone()
    };
    // With energy, the search is called for several prices of a joule.
    let untold = counts_energy(budgeted, &options);
    for attempt in 1..=ATTEMPTS {
        let mut watch = |news| {
            if attempt == 1 && !untold {
                provenance.history.add(news);
            }
            watch(news);
        };
        let solved = match solve(&budgeted.problem, &tightened, &options, &mut watch) {
            Ok(solved) => solved,
            Err(refusal) if attempt == 1 => {
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
        let cutoff = whole.cutoff(Instant::now(), left(PLACE_PART).max(PLACE_TIME));
        let placed = match (fit, solved.method) {
            (Fit::Layout, Method::Search) => {
                place_reordered(&solved.plan, &limit, options.order, cutoff)
            }
            // A published planner's plan stays as it is.
            _ => place_by(&solved.plan, &limit, cutoff),
        };
        match placed {
            Ok(layout) => {
                let tight = attempt > 1 && several;
                let quick = short(left(PLACE_PART));
                let one = match tight {
                    true => alone(budgeted, budget, fit, &quick, &mut |_| {})?,
                    false => None,
                };
                let objective = |layout: &CheckedLayout| layout.plan().objective(whole.alpha);
                let better = one.filter(|(_, one)| objective(one) < objective(&layout));
                let (budgeted, layout) = better.unwrap_or((budgeted.clone(), layout));
                return Ok(budgeted.planned(layout, fit, budget, Some(provenance)));
            }
            Err(PlaceError::OverCapacity {
                device,
                arena,
                available,
            }) => {
                let mut over = match several {
                    true => excesses(&solved.plan, &asked, cutoff)?,
                    false => Vec::new(),
                };
                if over.is_empty() {
                    over.push((device, arena - available));
                }
                options.time_limit = first_limit / 4;
                options.deadline = Instant::now().checked_add(left(AGAIN_PART));
                for &(device, excess) in &over {
                    let limit = asked.bytes(device).unwrap_or(u64::MAX);
                    if excess < missed.1 - missed.0 {
                        missed = (limit, limit.saturating_add(excess));
                    }
                }
                if several && attempt > MOST_AFTER && began.elapsed() >= first_limit {
                    break;
                }
                if attempt == 1 && order == Order::Free && !several {
                    options.order = Order::Fixed;
                    continue;
                }
                options.order = order;
                for (device, excess) in over {
                    let before = tightened.bytes(device).unwrap_or(u64::MAX);
                    let less = before.saturating_sub(excess.saturating_add(margin));
                    tightened = tightened.with_bytes(device, Some(less));
                }
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
        // One device needs no room for values that come back.
        None => match alone(budgeted, budget, fit, &short(left(PLACE_PART)), watch)? {
            Some((budgeted, layout)) => {
                let provenance = provenance.ended_by(&layout);
                Ok(budgeted.planned(layout, fit, budget, Some(provenance)))
            }
            None => Err(Error::NoLayout {
                budget: missed.0,
                needed: missed.1,
            }),
        },
    }
}

/// Of several devices, the one that alone is the fastest: a layout for all tasks on it, if there is one.
fn alone(
    budgeted: &Budgeted,
    budget: u64,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Option<(Budgeted, CheckedLayout)>> {
    let Some(one) = devices::on_the_fastest(budgeted)? else {
        return Ok(None);
    };
    match under(&one, budget, fit, options, watch) {
        Ok(found) => devices::with_choice(budgeted, &found.layout).map(Some),
        Err(Error::Solve(SolveError::Infeasible { .. }) | Error::NoLayout { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The devices on which a plan's layout needs more bytes than they have, and how many more.
fn excesses(
    plan: &CheckedPlan,
    limits: &Capacities,
    cutoff: Cutoff<'_>,
) -> Result<Vec<(DeviceId, u64)>> {
    let layout = place_by(plan, &Capacities::unlimited(), cutoff)?;
    let devices = plan.problem().devices().keys();
    let over = devices.filter_map(|device| {
        let excess = layout
            .needed_bytes(device)
            .checked_sub(limits.bytes(device)?)?;
        (excess > 0).then_some((device, excess))
    });
    Ok(over.collect())
}

/// Stages 7 and 8 for a plan that was made before, perhaps for another device: checks it under this budget
/// with this device's workspaces and costs, and places it. `device` is the device's signature.
///
/// # Errors
/// If the plan is wrong or needs more than the budget, or if no layout fits.
pub fn adopt(budgeted: &Budgeted, saved: SavedPlan, device: &str) -> Result<Planned> {
    let budgeted = &homes::with_homes(budgeted, &saved.homes)?;
    let made = saved.device.filter(|made| made != device);
    if made.is_none() && saved.exact {
        return check_again(budgeted, saved.plan);
    }
    let made = made.unwrap_or_else(|| "other workspaces".into());
    match check_again(budgeted, saved.plan) {
        Ok(planned) => Ok(Planned {
            remark: Some(format!(
                "made for {made}; checked again with the workspaces and costs of {device}"
            )),
            ..planned
        }),
        Err(source) => Err(Error::OtherDevice {
            made,
            device: device.into(),
            source: Box::new(source),
        }),
    }
}

fn check_again(budgeted: &Budgeted, plan: Plan) -> Result<Planned> {
    let plan = check(&budgeted.problem, plan)?;
    let budget = budgeted.budget_bytes.unwrap_or(plan.peak(budgeted.device));
    let capacities = budgeted.capacities();
    plan.within(&capacities)?;
    match place(&plan, &capacities) {
        Ok(layout) => Ok(budgeted.planned(layout, Fit::Layout, budget, None)),
        Err(PlaceError::OverCapacity {
            device,
            arena,
            available,
        }) => {
            let budget = capacities.bytes(device).unwrap_or(budget);
            Err(Error::NoLayout {
                budget,
                needed: budget.saturating_add(arena - available),
            })
        }
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
    fn planned(
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
        }
    }
}
