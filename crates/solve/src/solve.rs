//! [`solve`]: calls the chosen method. Every plan it returns has passed the checker.

use std::time::{Duration, Instant};

use scrimp_plan::{Capacities, CheckedPlan, DeviceId, Problem, Sequence, simulate};

use crate::bound;
use crate::checked::checked;
use crate::devices;
use crate::energy;
use crate::error::SolveError;
use crate::exact;
use crate::method::{Method, Objective, Order, Published};
use crate::model::Model;
use crate::options::{Options, Others, Progress, Solved};
use crate::proof::{self, Proof};
use crate::published;
use crate::search::driver::{self, Found};
use crate::search::state::State;
use crate::search::swap;

/// Plans a problem within the devices' capacities, in bytes and in joules. If several devices compute, the
/// search and the published methods for several devices plan it.
///
/// # Errors
/// [`SolveError::Infeasible`] if no plan was found within the budget, [`SolveError::Short`] or
/// [`SolveError::NoRoom`] if none was found within those of several devices, [`SolveError::EnergyCap`] if none was
/// found within the cap on energy, [`SolveError::Unsupported`] if the method can't plan the problem; and the
/// published methods' own errors.
pub fn solve(
    problem: &Problem,
    capacities: &Capacities,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Solved, SolveError> {
    let serial = options.objective == Objective::Serial && !problem.links().is_empty();
    let (device, cap) = match problem.sole_device() {
        Some(device) if !serial => (device, capacities.joules(device)),
        _ if options.method == Method::Search => {
            return devices::plan(problem, capacities, options, progress);
        }
        _ => return by_time(problem, capacities, options, progress),
    };
    if options.alpha == 0.0 && cap.is_none() {
        return by_time(problem, capacities, options, progress);
    }
    let asked = energy::Asked {
        problem,
        device,
        alpha: options.alpha,
        cap,
        time_limit: options.time_limit,
        stopped: &|| options.stopped(),
    };
    let bytes = capacities.clone().with_joules(device, None);
    energy::plan(&asked, &mut |priced, time_limit| {
        let options = Options {
            time_limit,
            ..options.clone()
        };
        by_time(priced, &bytes, &options, progress)
    })
}

/// Plans a problem by seconds and bytes alone.
fn by_time(
    problem: &Problem,
    capacities: &Capacities,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Solved, SolveError> {
    let outside = match options.method {
        Method::Search => return searched(problem, capacities, options, progress),
        Method::KeepAll => return kept(problem, capacities),
        Method::Exact => exact::plan(problem, capacities, options),
        Method::Published(Published::MoccasinUnstaged) if options.order == Order::Fixed => {
            let text =
                "moccasin-unstaged changes the order; use `--method moccasin` for a fixed one";
            return Err(SolveError::Unsupported(text.into()));
        }
        Method::Published(method) => published::plan(problem, capacities, method, options),
    };
    outside.or_else(|error| Err(infeasible(problem, options, error)?))
}

/// Plans by the default search.
fn searched(
    problem: &Problem,
    capacities: &Capacities,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Solved, SolveError> {
    let start = Instant::now();
    let (model, device) = Model::with_copies(problem, capacities)?;
    let capacity = capacities.bytes(device);
    let budget = capacity.map_or(f64::INFINITY, |c| c as f64 - model.resident);
    if !model.copies.none() {
        return swapped(problem, (&model, device), capacities, options, progress);
    }
    let options = &Options {
        start: usable_start(problem, options),
        ..options.clone()
    };
    let found = driver::run(&model, budget, options, start, progress);
    let (plan, peak) = plan_of(problem, &model, device, &found)?;
    let proof = Proof::of(problem, capacities)?;
    if peak > budget {
        let floor = match &proof {
            Some(proof) => proof.floor() as f64,
            None => bound::floor(&model).max(found.floor + model.resident),
        };
        return Err(SolveError::Infeasible {
            budget: capacity.unwrap_or(u64::MAX),
            least_found: (peak.max(found.least) + model.resident) as u64,
            floor: floor as u64,
            leanest: Some(Sequence::of_runs(device, plan.runs())),
        });
    }
    if options.order == Order::Fixed && !plan.keeps_order() {
        return Err(SolveError::Defect {
            method: options.method.name(),
            what: "first runs are out of order".into(),
        });
    }
    let lower_bound = match proof {
        Some(proof) => proof.makespan(options, plan.cost()),
        None => found.lower_bound,
    };
    let others = found.others;
    Ok(Solved {
        others: others.map(|runs| Sequence::of_runs(device, runs)),
        ..solved(plan, lower_bound, start)
    })
}

/// Plans by the default search, with copies to and from other memories.
fn swapped(
    problem: &Problem,
    (model, device): (&Model, DeviceId),
    capacities: &Capacities,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Solved, SolveError> {
    let start = Instant::now();
    let capacity = capacities.bytes(device);
    let budget = capacity.map_or(f64::INFINITY, |c| c as f64 - model.resident);
    let plain = Model::new(problem).ok().map(|(plain, _)| plain);
    let search = Options {
        time_limit: options.time_limit.mul_f64(1.0 - proof::SHARE),
        ..options.clone()
    };
    let found = swap::run(model, plain.as_ref(), budget, &search, start, progress);
    let Some((_, moves)) = found.plan else {
        return Err(SolveError::Infeasible {
            budget: capacity.unwrap_or(u64::MAX),
            least_found: (found.least + model.resident) as u64,
            floor: floor_within(problem, capacities)?,
            leanest: None,
        });
    };
    let sequence = Sequence { moves };
    let plan = checked(problem, &sequence, Method::Search.name())?;
    let cost = simulate(&plan).makespan();
    let proof = Proof::of(problem, capacities)?;
    let lower_bound = proof.map_or(0.0, |proof| proof.makespan(options, cost));
    Ok(timed(plan, lower_bound, start))
}

/// A plan with copies, whose cost is its makespan.
fn timed(plan: CheckedPlan, lower_bound: f64, start: Instant) -> Solved {
    let cost = simulate(&plan).makespan();
    Solved {
        others: Others::default(),
        optimal: cost <= lower_bound * (1.0 + 1e-9),
        cost,
        lower_bound: lower_bound.min(cost),
        plan,
        method: Method::Search,
        elapsed: start.elapsed(),
        note: None,
    }
}

/// The caller's plan, if it is one in the requested order.
fn usable_start(problem: &Problem, options: &Options) -> Option<Sequence> {
    let start = options.start.clone()?;
    let plan = checked(problem, &start, "start").ok()?;
    (options.order == Order::Free || plan.keeps_order()).then_some(start)
}

/// The checked plan of the search's result, and its peak without resident bytes.
fn plan_of(
    problem: &Problem,
    model: &Model,
    device: DeviceId,
    found: &Found,
) -> Result<(CheckedPlan, f64), SolveError> {
    let peak = State::new(model, &found.runs).peak();
    let sequence = Sequence::of_runs(device, found.runs.iter().copied());
    let plan = checked(problem, &sequence, Method::Search.name())?;
    Ok((plan, peak))
}

fn solved(plan: CheckedPlan, lower_bound: f64, start: Instant) -> Solved {
    let cost = plan.cost();
    Solved {
        others: Others::default(),
        optimal: cost <= lower_bound * (1.0 + 1e-9),
        cost,
        lower_bound: lower_bound.min(cost),
        plan,
        method: Method::Search,
        elapsed: start.elapsed(),
        note: None,
    }
}

/// Plans to run every task once, in the given order.
fn kept(problem: &Problem, capacities: &Capacities) -> Result<Solved, SolveError> {
    let start = Instant::now();
    let (model, device) = Model::new(problem)?;
    let sequence = Sequence::of_runs(device, model.task_ids());
    let plan = checked(problem, &sequence, Method::KeepAll.name())?;
    if plan.within(capacities).is_err() {
        return Err(SolveError::Infeasible {
            budget: capacities.bytes(device).unwrap_or(u64::MAX),
            least_found: plan.peak(device),
            floor: floor_within(problem, capacities)?,
            leanest: None,
        });
    }
    Ok(Solved {
        method: Method::KeepAll,
        ..solved(plan, model.base_cost(), start)
    })
}

/// The leanest plan that the search finds within its limits, at whatever cost, and the least budget for which
/// it is known to find one. There always is a plan: at worst it keeps everything. Of the capacities, only
/// those of other memories count.
///
/// # Errors
/// The errors of [`solve`], except for a budget that is too small.
pub fn leanest(
    problem: &Problem,
    capacities: &Capacities,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<(u64, Solved), SolveError> {
    let start = Instant::now();
    let (model, device) = Model::with_copies(problem, capacities)?;
    if !model.copies.none() {
        let plain = Model::new(problem).ok().map(|(plain, _)| plain);
        let (least, moves) = swap::leanest(&model, plain.as_ref(), options, start);
        let sequence = Sequence { moves };
        let plan = checked(problem, &sequence, Method::Search.name())?;
        let least = (least + model.resident) as u64;
        return Ok((least, timed(plan, model.base_cost(), start)));
    }
    let found = driver::leanest(&model, options, start, progress);
    let (plan, peak) = plan_of(problem, &model, device, &found)?;
    let least = peak.max(found.least) + model.resident;
    Ok((least as u64, solved(plan, found.lower_bound, start)))
}

/// How long the search looks for a lean plan when a published planner has none.
const LEAST_LIMIT: Duration = Duration::from_secs(2);

/// The error of a method that has no plan, with the least known budget: the method's own, or else that of the
/// search's leanest plan. `Err` holds an error of another kind.
fn infeasible(
    problem: &Problem,
    options: &Options,
    error: SolveError,
) -> Result<SolveError, SolveError> {
    let (budget, least) = match error {
        SolveError::NotFound { budget, least, .. } => (budget, least),
        SolveError::OutsideModel { budget, .. } => (budget, None),
        other => return Err(other),
    };
    let (model, _) = Model::new(problem)?;
    let mut floor = floor_bytes(problem)?;
    let least_found = match least {
        Some(least) => least,
        None => {
            let search = Options {
                time_limit: LEAST_LIMIT.min(options.time_limit),
                ..options.clone()
            };
            let within = budget as f64 - model.resident;
            let start = Instant::now();
            let found = driver::run(&model, within, &search, start, &mut |_| {});
            if problem.links().is_empty() {
                floor = floor.max((found.floor + model.resident) as u64);
            }
            let peak = State::new(&model, &found.runs).peak();
            let least = if peak > within {
                peak.max(found.least)
            } else {
                peak
            };
            (least + model.resident) as u64
        }
    };
    Ok(SolveError::Infeasible {
        budget,
        least_found,
        floor,
        leanest: None,
    })
}

/// Bytes without which no plan of this problem exists, including resident bytes.
///
/// # Errors
/// The errors of [`solve`].
pub fn floor_bytes(problem: &Problem) -> Result<u64, SolveError> {
    floor_within(problem, &Capacities::unlimited())
}

/// Proven: some device must have so many times its capacity. Above 1 there is no plan.
///
/// # Errors
/// The errors of [`solve`].
pub fn share_needed(problem: &Problem, capacities: &Capacities) -> Result<f64, SolveError> {
    let Some(device) = problem.sole_device() else {
        return Ok(bound::devices::share_needed(problem, capacities));
    };
    Ok(match capacities.bytes(device) {
        Some(bytes) => floor_within(problem, capacities)? as f64 / bytes.max(1) as f64,
        None => 0.0,
    })
}

/// [`floor_bytes`] where other memories have these capacities.
fn floor_within(problem: &Problem, capacities: &Capacities) -> Result<u64, SolveError> {
    Ok(match Proof::of(problem, capacities)? {
        Some(proof) => proof.floor(),
        None => bound::floor(&Model::new(problem)?.0) as u64,
    })
}
