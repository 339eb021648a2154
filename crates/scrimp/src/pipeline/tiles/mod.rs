//! How many tiles: so many that a plan within the budget is fastest, none if that is as fast.

mod judge;
mod search;

use std::time::{Duration, Instant};

use scrimp_graph::Tiles;
use scrimp_plan::{Budget, CheckedPlan, DeviceId, PerDevice, Sequence, ValueId};
use scrimp_solve::{Method, Options, Order, sequence_of};

use self::judge::{Judge, Judged, TRIAL, missed};
use crate::error::Result;
use crate::pipeline::{Budgeted, Fit, find_plan, homes};

pub use self::search::{Pricing, TileSearch, TiledStep, Work};

/// This part of the limit is kept back for the plan with the chosen tiles, which has at least the second one.
const KEPT_BACK: u32 = 4;
const LEAST_LEFT: u32 = 8;

/// Where tiles aren't asked for, any plan without them is looked for if a step of one device needs at least this part of the
/// budget, for this part of the limit.
const TIGHT: f64 = 0.7;
const UNTILED: u32 = 2;
/// A plan without tiles that takes less than so many times the budget is searched for further, and tiles aren't.
const NEARLY: f64 = 1.03;

/// Tiles, whether a plan within the budgets was found with them, and what is left to plan.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The fastest, or without a plan those that come closest to the budgets.
    pub tiles: Tiles,
    /// Whether they meet the budgets.
    pub fits: bool,
    /// If not, the least budget of one device for which any tiles are known to have a plan.
    pub least: Option<u64>,
    /// The budgets, in bytes where there are tiles.
    pub budget: PerDevice<Budget>,
    /// A plan with these tiles whose layout fits, if one was made, or the leanest without tiles that was found.
    pub start: Option<TrialPlan>,
    /// What is left of the time limit.
    pub left: Duration,
}

/// A plan from which another search can start.
#[derive(Clone, Debug)]
pub struct TrialPlan {
    /// What runs, and where.
    pub sequence: Sequence,
    /// Where what is given is between steps.
    pub homes: Vec<(ValueId, DeviceId)>,
}

impl TrialPlan {
    fn of(budgeted: &Budgeted, plan: &CheckedPlan) -> TrialPlan {
        TrialPlan {
            sequence: sequence_of(plan),
            homes: budgeted.problem.homes_under(plan.plan()),
        }
    }
}

impl Choice {
    /// What to plan and how, in the time that is left. Only a search in any order starts from the plan found on the way.
    ///
    /// # Errors
    /// The problem isn't that of these tiles.
    pub fn within(&self, budgeted: Budgeted, options: Options) -> Result<(Budgeted, Options)> {
        let searches = options.method == Method::Search && options.order == Order::Free;
        let options = Options {
            time_limit: self.left,
            ..options
        };
        let Some(start) = self.start.as_ref().filter(|_| searches) else {
            return Ok((budgeted, options));
        };
        let options = Options {
            start: Some(start.sequence.clone()),
            ..options
        };
        Ok((homes::with_homes(&budgeted, &start.homes)?, options))
    }
}

/// The tiles with which a step is fastest within the budgets: none, a number of them in each dimension, or those for a
/// number of bytes ([`Tiles::Within`]). The budget itself comes first, then on one device numbers of tiles, from the root of how
/// many times the budget the step needs without a plan, until one fits, then fewer bytes, far apart, all numbers of tiles if none
/// of those fits, and at last what lies around the best. On one device every plan runs each task at least once, so tiles with
/// which that takes longer than the best plan so far aren't planned. With `pricing`, the few
/// that the static model finds fastest are compared by those costs. Where the least budgets are asked, the best tiles are
/// those that need the least.
///
/// Unless tiles are asked for, there are none where a plan without them is found, and on several devices none where such a
/// plan may meet the budgets.
///
/// # Errors
/// As for [`Work::tiled`], [`scrimp_graph::lower_onto()`] and [`crate::budgets()`]; those of `pricing`.
pub fn choose_tiles(search: &TileSearch<'_>, pricing: Option<Pricing<'_>>) -> Result<Choice> {
    let began = Instant::now();
    let limit = search.options.time_limit;
    let left = || {
        let left = limit.saturating_sub(began.elapsed());
        left.max(limit / LEAST_LEFT)
    };
    let none = |start| Choice {
        tiles: Tiles::Off,
        fits: true,
        least: None,
        budget: search.budget.clone(),
        start,
        left: left(),
    };
    let all = |budget: &Budget| matches!(*budget, Budget::Min) || *budget == Budget::Percent(100.0);
    if !search.asked && search.budgets().all(all) {
        return Ok(none(None));
    }
    let step = search.work.tiled(search.graph, Tiles::Off)?;
    let untiled = search.budgeted(&step, search.budget, None)?;
    let unasked = match search.asked {
        true => None,
        false => match without_tiles(search, &untiled)? {
            Untiled::Misses(judged, leanest) => Some((judged, leanest)),
            Untiled::Serves(plan) => return Ok(none(plan)),
        },
    };
    let mut judge = Judge::new(search, search.in_bytes(&untiled));
    let (off, start) = match unasked {
        Some(missed) => missed,
        None => judge.plan(&untiled)?,
    };
    let kept_back = match off {
        Judged::Floor(_) => limit / KEPT_BACK + limit / TRIAL,
        _ => limit / KEPT_BACK,
    };
    judge.left = limit.saturating_sub(began.elapsed() + kept_back);
    if judge.is_best(&untiled, off) {
        return Ok(none(start));
    }
    judge.keep(step, off, start);
    let mut known = vec![(Tiles::Off, off)];
    judge.explore(&untiled, &mut known)?;
    if none_fits(&known) {
        judge.find_leasts(&mut known)?;
    }
    known.sort_by(|a, b| a.1.by_use(b.1));
    if let Some(pricing) = pricing {
        judge.compare(&mut known, pricing)?;
    }
    let (tiles, judged) = known[0];
    let (in_bytes, start) = judge.end(judged);
    let fits = judged.cost().is_some();
    let missed = known.iter().filter_map(|(_, judged)| match judged {
        Judged::Missed(share) => Some(*share),
        _ => None,
    });
    let bytes = untiled
        .budget_bytes
        .filter(|_| !fits && untiled.problem.sole_device().is_some());
    Ok(Choice {
        tiles,
        fits,
        least: bytes
            .zip(missed.min_by(f64::total_cmp))
            .map(|(bytes, share)| (share * bytes as f64).round() as u64),
        budget: match tiles {
            Tiles::Off => search.budget.clone(),
            _ => in_bytes,
        },
        start,
        left: left(),
    })
}

fn none_fits(known: &[(Tiles, Judged)]) -> bool {
    known.iter().all(|(_, judged)| judged.cost().is_none())
}

/// A step without tiles.
enum Untiled {
    /// Misses the budgets by so much, and tiles may help. With the leanest plan, if one was found.
    Misses(Judged, Option<TrialPlan>),
    /// May meet them, or tiles don't help. With a plan, if one was made.
    Serves(Option<TrialPlan>),
}

/// Whether a step without tiles may meet the budgets; tiles can't change what no plan changes. A plan is looked for on one device
/// alone, and only where the budget is tight: on several devices that takes long.
fn without_tiles(search: &TileSearch<'_>, untiled: &Budgeted) -> Result<Untiled> {
    let needed = homes::share_needed(untiled)?;
    let sole = untiled.problem.sole_device().is_some();
    let budget = untiled.budget_bytes;
    let fixed = homes::leanest(untiled)?.fixed_bytes;
    if sole && budget.is_some_and(|bytes| fixed >= bytes) {
        return Ok(Untiled::Serves(None));
    }
    if needed > 1.0 {
        return Ok(Untiled::Misses(Judged::Floor(needed), None));
    }
    if !sole || needed < TIGHT {
        return Ok(Untiled::Serves(None));
    }
    let limit = search.options.time_limit / UNTILED;
    let options = Options {
        time_limit: limit,
        deadline: Instant::now().checked_add(limit),
        enough: Some(f64::INFINITY),
        ..search.options.clone()
    };
    match find_plan(untiled, Fit::Layout, &options, &mut |_| {}) {
        Ok(planned) => Ok(Untiled::Serves(Some(TrialPlan::of(
            untiled,
            planned.plan(),
        )))),
        Err(error) => Ok(match missed(untiled, error)? {
            _ if search.stopped() => Untiled::Serves(None),
            (Judged::Missed(share), leanest) if share < NEARLY => Untiled::Serves(leanest),
            (judged, leanest) => Untiled::Misses(judged, leanest),
        }),
    }
}
