//! Stages 6 to 8 where several devices compute: what each can do alone, where weights and optimizer state live, and
//! the plan for all of them with its layout.

use std::borrow::Borrow;
use std::time::{Duration, Instant};

use scrimp_plan::{Capacities, CheckedLayout, CheckedPlan, DeviceId, Move, Sequence, TaskId};
use scrimp_solve::{
    Method, Objective, Options, PlaceError, Progress, SolveError, Solved, lower_bound, place_by,
    sequence_of, solve,
};

use crate::error::{Error, Result};
use crate::history::History;
use crate::pipeline::cuts::cuts;
use crate::pipeline::one::{self, Missed};
use crate::pipeline::under;
use crate::pipeline::{Budgeted, Fit, Homes, Planned, Provenance, devices, find_plan, homes};

/// The shares of the time limit for the plans of single devices together, at first and where there is no other plan, for
/// each quick plan that decides homes, and at least for each further attempt at a layout, which has half of what is left. All
/// that is left in the end is for single devices that could be faster.
const ALONE_SHARE: f64 = 0.1;
const LATE_SHARE: f64 = 0.5;
const TRIAL_SHARE: f64 = 0.1;
const AGAIN_SHARE: f64 = 0.05;
/// After this share no further quick plan is begun.
const TRIALS_SHARE: f64 = 0.5;
/// The share by which the first plan for all devices is made: if its layout must fit, and if any layout will do.
const FIRST_SHARE: f64 = 0.6;
const ONLY_SHARE: f64 = 0.95;
/// A placement may take at least this time.
const PLACE_TIME: Duration = Duration::from_millis(500);
/// The most quick plans that decide homes.
const TRIALS: usize = 3;
/// The most attempts at a layout, and the most of them after the time limit.
const ATTEMPTS: usize = 12;
const MOST_AFTER: usize = 6;
/// An attempt removes, besides the missing bytes, one part in this many of what planning can change, and each further
/// one twice as much as the one before.
const MARGIN: u64 = 256;

/// A plan with its layout.
struct Found {
    /// The device that does everything, if one does.
    alone: Option<DeviceId>,
    budgeted: Budgeted,
    layout: CheckedLayout,
    cost: f64,
}

/// Plans for all devices within their budgets. The result is never slower than the best plan of a single device within its own budget.
pub(super) fn within(
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    let several = Several {
        fit,
        options,
        began: Instant::now(),
    };
    let alone = several.alone(budgeted, ALONE_SHARE, f64::INFINITY)?;
    let slowed = several.slowed(budgeted)?;
    let spare = several.given(&slowed)?;
    let known = cheapest([spare.as_ref(), alone.as_ref()]);
    let (homed, start) = several.with_homes(&slowed, known)?;
    let mut provenance = Provenance {
        order: options.order,
        alpha: options.alpha,
        history: History::new(budgeted.base.objective(options.alpha)),
        ..Provenance::default()
    };
    let together = several.together(&homed, start, known, &mut provenance, watch);
    let found = together.as_ref().ok().and_then(Option::as_ref);
    let best = cheapest([found, known]).map(|found| found.cost);
    let share = match (&together, best) {
        // Rather late than not at all.
        (Err(error), None) if is_too_little(error) => LATE_SHARE,
        _ => several.share_left(),
    };
    let alone = match share >= AGAIN_SHARE && !options.stopped() {
        true => cheapest([
            alone,
            several.alone(budgeted, share, best.unwrap_or(f64::INFINITY))?,
        ]),
        false => alone,
    };
    provenance.alone = alone
        .as_ref()
        .and_then(|found| Some((found.alone?, found.cost)));
    let (together, refusal) = match together {
        Ok(found) => (found, None),
        Err(error) if is_too_little(&error) => (None, Some(error)),
        Err(error) => return Err(error),
    };
    let found = match (cheapest([together, spare, alone]), refusal) {
        (Some(found), _) => found,
        (None, Some(refusal)) => return Err(refusal),
        (None, None) => unreachable!("without a plan there is an error"),
    };
    if found.alone.is_some() {
        let problem = &found.budgeted.problem;
        provenance.lower_bound = lower_bound(problem, &budgeted.capacities(), options);
    } else if several.may_be_alone(budgeted) {
        // One device that computes alone isn't slowed down.
        let least = several.least_alone(budgeted)?;
        provenance.lower_bound = provenance.lower_bound.min(least);
    }
    provenance.optimal = found.cost <= provenance.lower_bound * (1.0 + 1e-9);
    provenance.elapsed = several.began.elapsed();
    let budget = budgeted.budget_bytes.unwrap_or(u64::MAX);
    Ok(found
        .budgeted
        .planned(found.layout, fit, budget, Some(provenance)))
}

impl Found {
    fn start(&self) -> Sequence {
        sequence_of(self.layout.plan())
    }
}

/// The first of those that cost the least.
fn cheapest<F: Borrow<Found>>(found: impl IntoIterator<Item = Option<F>>) -> Option<F> {
    let found = found.into_iter().flatten();
    found.min_by(|a, b| a.borrow().cost.total_cmp(&b.borrow().cost))
}

struct Several<'a> {
    fit: Fit,
    options: &'a Options,
    began: Instant,
}

impl Several<'_> {
    /// Options for work that takes this share of the time limit.
    fn part(&self, share: f64) -> Options {
        let limit = self.options.time_limit.mul_f64(share);
        Options {
            time_limit: limit,
            deadline: Instant::now().checked_add(limit),
            laid_out: self.fit == Fit::Layout,
            start: None,
            ..self.options.clone()
        }
    }

    /// Options for a further attempt at a layout.
    fn again(&self) -> Options {
        self.part((0.5 * self.share_left()).max(AGAIN_SHARE))
    }

    /// The share of the time limit that is left.
    fn share_left(&self) -> f64 {
        let left = self.options.time_limit.saturating_sub(self.began.elapsed());
        left.as_secs_f64() / self.options.time_limit.as_secs_f64()
    }

    /// Whether this share of the time limit is over.
    fn is_after(&self, share: f64) -> bool {
        self.began.elapsed() >= self.options.time_limit.mul_f64(share)
    }

    /// The cheapest plan in which one device does everything, if what is given may be anywhere, found in this share of the
    /// time limit. Devices that can't cost less than `below` aren't tried.
    fn alone(&self, budgeted: &Budgeted, share: f64, below: f64) -> Result<Option<Found>> {
        let mut best: Option<Found> = None;
        if !self.may_be_alone(budgeted) {
            return Ok(None);
        }
        let mut each = Vec::new();
        for device in devices::computing(&budgeted.problem) {
            let only = devices::only(budgeted, device)?;
            each.extend(only.map(|only| (device, only)));
        }
        each.retain(|(_, only)| self.cost(&only.base) < below);
        let share = share / each.len() as f64;
        for (device, only) in each {
            let found = match find_plan(&only, self.fit, &self.part(share), &mut |_| {}) {
                Ok(planned) => planned.layout,
                Err(error) if is_too_little(&error) => continue,
                Err(error) => return Err(error),
            };
            let (budgeted, layout) = devices::with_choice(budgeted, &found)?;
            let cost = self.cost(layout.plan());
            if best.as_ref().is_none_or(|best| cost < best.cost) {
                best = Some(Found {
                    alone: Some(device),
                    budgeted,
                    layout,
                    cost,
                });
            }
        }
        Ok(best)
    }

    /// The plan to start from, if that is one of this problem and its layout fits.
    fn given(&self, slowed: &Budgeted) -> Result<Option<Found>> {
        if self.fit == Fit::LiveBytes {
            return Ok(None);
        }
        let capacities = slowed.capacities();
        let layout = under::layout_of_start(&slowed.problem, &capacities, self.options)?;
        Ok(layout.map(|layout| Found {
            alone: None,
            budgeted: slowed.clone(),
            cost: self.cost(layout.plan()),
            layout,
        }))
    }

    /// Whether plans for one device alone are made beside those for all.
    fn may_be_alone(&self, budgeted: &Budgeted) -> bool {
        self.options.method == Method::Search && budgeted.homes == Homes::Free
    }

    /// What is given to the planner: the problem of devices that compute at the same time, unless the objective has each
    /// run and copy wait for the one before.
    fn slowed(&self, budgeted: &Budgeted) -> Result<Budgeted> {
        match self.options.objective {
            Objective::Makespan => budgeted.together(),
            Objective::Serial => Ok(budgeted.clone()),
        }
    }

    /// What one device alone takes at least: every task once.
    fn least_alone(&self, budgeted: &Budgeted) -> Result<f64> {
        let mut least = f64::INFINITY;
        for device in devices::computing(&budgeted.problem) {
            if let Some(only) = devices::only(budgeted, device)? {
                least = least.min(self.cost(&only.base));
            }
        }
        Ok(least)
    }

    fn cost(&self, plan: &CheckedPlan) -> f64 {
        self.options.objective.cost(plan, self.options.alpha)
    }

    /// The problem of all devices together with weights, optimizer state and inputs at home where a quick plan uses them or in
    /// a memory to swap to, and that plan. The first quick plan starts from the best one that is known or of a cut; others
    /// follow as long as they are faster.
    fn with_homes(
        &self,
        budgeted: &Budgeted,
        known: Option<&Found>,
    ) -> Result<(Budgeted, Option<Sequence>)> {
        let mut best = match known {
            Some(known) if known.alone.is_none() => (known.budgeted.clone(), Some(known.start())),
            Some(alone) => (self.slowed(&alone.budgeted)?, Some(alone.start())),
            None if budgeted.homes == Homes::Given => return Ok((budgeted.clone(), None)),
            // No device has room for all of that, so it waits elsewhere where it can.
            None => (homes::leanest(budgeted)?, None),
        };
        let mut cost = known.map_or(f64::INFINITY, |known| known.cost);
        for cut in cuts(&budgeted.problem) {
            if self.is_after(TRIALS_SHARE) && best.1.is_some() {
                break;
            }
            let homed = devices::where_used(budgeted, cut.iter().copied())?;
            let run = |&(task, device): &(TaskId, DeviceId)| Move::Run { task, device };
            let start = Sequence {
                moves: cut.iter().map(run).collect(),
            };
            let enough = Some(f64::INFINITY);
            if let Some(solved) = self.quick(&homed, Some(start), enough)?
                && solved.cost < cost
            {
                cost = solved.cost;
                best = (homed, Some(sequence_of(&solved.plan)));
            }
        }
        let mut tried = best.clone();
        cost = f64::INFINITY;
        for _ in 0..TRIALS {
            if self.is_after(TRIALS_SHARE) && best.1.is_some() {
                break;
            }
            let (homed, start) = tried;
            let Some(solved) = self.quick(&homed, start, None)?.filter(|s| s.cost < cost) else {
                break;
            };
            cost = solved.cost;
            let start = Some(sequence_of(&solved.plan));
            let next = devices::where_used(&homed, devices::runs(&solved.plan))?;
            tried = (next, start.clone());
            best = (homed, start);
            if self.options.stopped() {
                break;
            }
        }
        Ok(best)
    }

    /// A plan made in a short time; `None` if there is none within the budgets.
    fn quick(
        &self,
        budgeted: &Budgeted,
        start: Option<Sequence>,
        enough: Option<f64>,
    ) -> Result<Option<Solved>> {
        let options = Options {
            method: Method::Search,
            start,
            enough,
            ..self.part(TRIAL_SHARE)
        };
        match solve(
            &budgeted.problem,
            &budgeted.capacities(),
            &options,
            &mut |_| {},
        ) {
            Ok(solved) => Ok(Some(solved)),
            Err(error) if is_short(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A plan for all devices that has a layout and costs less than what is known, if there is one.
    fn together(
        &self,
        budgeted: &Budgeted,
        start: Option<Sequence>,
        known: Option<&Found>,
        provenance: &mut Provenance,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<Option<Found>> {
        let asked = budgeted.capacities();
        let (limit, first_share) = match self.fit {
            Fit::Layout => (asked.clone(), FIRST_SHARE),
            Fit::LiveBytes => (Capacities::unlimited(), ONLY_SHARE),
        };
        let share = self.began.elapsed().as_secs_f64() / self.options.time_limit.as_secs_f64();
        let mut options = Options {
            start,
            ..self.part((first_share - share).max(TRIAL_SHARE))
        };
        let mut tightened = asked.clone();
        let mut margin = budgeted.base_peak().saturating_sub(budgeted.fixed_bytes) / MARGIN;
        let mut missed = Missed::NONE;
        for attempt in 0..ATTEMPTS {
            let late = self.began.elapsed() >= self.options.time_limit;
            if attempt > MOST_AFTER && late || attempt > 0 && self.options.stopped() {
                break;
            }
            let mut tell = |news| {
                if attempt == 0 {
                    provenance.history.add(news);
                }
                watch(news);
            };
            let solved = match solve(&budgeted.problem, &tightened, &options, &mut tell) {
                Ok(solved) => solved,
                // The bytes that are missing are the layout's, not the plan's.
                Err(error) if attempt > 0 && is_short(&error) => {
                    // A plan for larger budgets may be a bad start.
                    if options.start.is_none() {
                        tightened = asked.clone();
                    }
                    options = Options {
                        seed: options.seed.wrapping_add(1),
                        ..self.again()
                    };
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if attempt == 0 {
                provenance.history.end(&solved);
                provenance.lower_bound = solved.lower_bound;
            }
            provenance.attempts += 1;
            provenance.method = solved.method;
            provenance.note.clone_from(&solved.note);
            if known.is_some_and(|known| known.cost <= solved.cost) {
                return Ok(None);
            }
            let left = self.options.time_limit.saturating_sub(self.began.elapsed());
            let cutoff = self.options.cutoff(Instant::now(), left.max(PLACE_TIME));
            let over = match place_by(&solved.plan, &limit, cutoff) {
                Ok(layout) => {
                    return Ok(Some(Found {
                        alone: None,
                        budgeted: budgeted.clone(),
                        cost: self.cost(layout.plan()),
                        layout,
                    }));
                }
                Err(PlaceError::OverCapacity(over)) => over,
                Err(error) => return Err(error.into()),
            };
            missed = missed.min(one::most_missed(&over, &asked));
            tightened = one::tighten(tightened, &over, margin);
            margin = margin.saturating_mul(2);
            options = Options {
                start: Some(sequence_of(&solved.plan)),
                seed: options.seed,
                ..self.again()
            };
        }
        Err(missed.error(&budgeted.problem))
    }
}

/// Whether an error says that a planner found no plan within the budgets.
fn is_short(error: &SolveError) -> bool {
    matches!(
        error,
        SolveError::Infeasible { .. }
            | SolveError::NotFound { .. }
            | SolveError::OutsideModel { .. }
            | SolveError::NoRoom { .. }
            | SolveError::Short(_)
            | SolveError::EnergyCap { .. }
    )
}

/// Whether an error says that there is no plan within the budgets, or no layout.
pub(crate) fn is_too_little(error: &Error) -> bool {
    match error {
        Error::NoLayout { .. } => true,
        Error::Solve(error) => is_short(error),
        _ => false,
    }
}
