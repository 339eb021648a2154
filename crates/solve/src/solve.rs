//! [`solve`]: dispatches to a method, sends every plan through the checker.

use std::time::{Duration, Instant};

use scrimp_plan::{Capacities, CheckedPlan, DeviceId, Plan, Problem, Step, TaskId, check};

use crate::bound;
use crate::model::Model;
use crate::options::{Method, Options, Order, Progress, SolveError, Solved};
use crate::published::{Published, PublishedError, PublishedOptions};
use crate::random::Random;
use crate::search::arrange::Arrangement;
use crate::search::driver;
use crate::search::state::State;

/// Plans a problem within the capacity of the device that computes.
///
/// # Errors
/// [`SolveError::Infeasible`] if no plan within the budget was found, [`SolveError::Unsupported`]
/// for problems that no single device can run.
pub fn solve(
    problem: &Problem,
    capacities: &Capacities,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Solved, SolveError> {
    let start = Instant::now();
    let (model, device) = Model::new(problem)?;
    let capacity = capacities.bytes(device);
    let budget = capacity.map_or(f64::INFINITY, |c| c as f64 - model.resident);
    let given = model.given_order();
    let (mut floor, mut least_found) = (bound::floor(&model), 0.0f64);
    let (runs, lower_bound) = match options.method {
        Method::KeepAll => (given, model.base_cost()),
        Method::Published(method) => {
            return by_published(problem, capacities, device, method, options, floor as u64);
        }
        Method::Search => {
            let found = driver::run(&model, budget, options, start, progress);
            floor = floor.max(found.floor + model.resident);
            least_found = found.least;
            (found.runs, found.lower_bound)
        }
    };
    let peak = State::new(&model, &runs).peak();
    if peak > budget {
        return Err(SolveError::Infeasible {
            budget: capacity.unwrap_or(u64::MAX),
            least_found: (peak.max(least_found) + model.resident) as u64,
            floor: floor as u64,
        });
    }
    let plan = checked(problem, capacities, device, &runs, options.method)?;
    if options.order == Order::Fixed && !plan.keeps_order() {
        return Err(SolveError::Defect {
            method: options.method.name(),
            what: "first runs are out of order".into(),
        });
    }
    let cost = plan.cost();
    Ok(Solved {
        optimal: cost <= lower_bound * (1.0 + 1e-9),
        cost,
        lower_bound: lower_bound.min(cost),
        plan,
        method: options.method,
        elapsed: start.elapsed(),
        note: None,
    })
}

fn by_published(
    problem: &Problem,
    capacities: &Capacities,
    device: DeviceId,
    method: Published,
    options: &Options,
    floor: u64,
) -> Result<Solved, SolveError> {
    if options.order == Order::Fixed && method.reorders() {
        let text = "moccasin-unstaged changes the order; use `--method moccasin` for a fixed one";
        return Err(SolveError::Unsupported(text.into()));
    }
    let limits = PublishedOptions {
        time_limit: options.time_limit,
        threads: options.threads,
        seed: options.seed,
        stop: options.stop.clone(),
        ..options.published.clone()
    };
    let outcome = method
        .plan(problem, capacities, &limits)
        .map_err(|error| match error {
            PublishedError::NotFound {
                budget,
                least: Some(least_found),
                ..
            } => SolveError::Infeasible {
                budget,
                least_found,
                floor,
            },
            PublishedError::NotFound { budget, .. } | PublishedError::Infeasible { budget, .. } => {
                least_known(problem, capacities, options, device, (budget, floor))
            }
            error => SolveError::Published(error),
        })?;
    Ok(Solved {
        cost: outcome.plan.cost(),
        lower_bound: outcome.lower_bound,
        optimal: outcome.proven_optimal,
        plan: outcome.plan,
        method: options.method,
        elapsed: outcome.elapsed,
        note: outcome.note,
    })
}

/// How long the search looks for a lean plan where a published planner has none.
const LEAST_LIMIT: Duration = Duration::from_secs(2);

/// The error of a published planner without any plan: the search's leanest one needs this many bytes.
fn least_known(
    problem: &Problem,
    capacities: &Capacities,
    options: &Options,
    device: DeviceId,
    (budget, floor): (u64, u64),
) -> SolveError {
    let search = Options {
        method: Method::Search,
        time_limit: LEAST_LIMIT.min(options.time_limit),
        ..options.clone()
    };
    let (found, floor) = match solve(problem, capacities, &search, &mut |_| {}) {
        Ok(solved) => (solved.plan.peak(device), floor),
        Err(SolveError::Infeasible {
            least_found,
            floor: proven,
            ..
        }) => (least_found, floor.max(proven)),
        Err(error) => return error,
    };
    SolveError::Infeasible {
        budget,
        least_found: found,
        floor,
    }
}

/// Bytes without which no plan of this problem exists, resident ones included.
///
/// # Errors
/// As [`solve`].
pub fn floor_bytes(problem: &Problem) -> Result<u64, SolveError> {
    Ok(bound::floor(&Model::new(problem)?.0) as u64)
}

/// The tasks of a plan in the order they run.
pub(crate) fn runs(plan: &CheckedPlan) -> impl Iterator<Item = TaskId> + '_ {
    plan.steps().iter().filter_map(|step| match step {
        Step::Run { task, .. } => Some(*task),
        _ => None,
    })
}

/// The runs of a plan in another order, within the same capacity; `None` if there is no such thing.
pub(crate) fn stirred(
    plan: &CheckedPlan,
    capacities: &Capacities,
    order: Order,
    seed: u64,
) -> Option<CheckedPlan> {
    let problem = plan.problem();
    let (model, device) = Model::new(problem).ok()?;
    let capacity = capacities.bytes(device);
    let limit = capacity.unwrap_or(u64::MAX).max(plan.peak(device)) as f64 - model.resident;
    let runs: Vec<TaskId> = runs(plan).collect();
    let mut rng = Random::new(seed, 1);
    let mut arrangement = Arrangement::new(&model, &runs, limit, order == Order::Free);
    arrangement.stir([1.0, 10.0, 100.0][seed as usize % 3], &mut rng);
    arrangement.tidy();
    let runs = arrangement.order();
    check(problem, Plan::from_runs(problem, device, &runs).ok()?).ok()
}

/// The plan of a sequence of tasks.
fn checked(
    problem: &Problem,
    capacities: &Capacities,
    device: DeviceId,
    runs: &[TaskId],
    method: Method,
) -> Result<CheckedPlan, SolveError> {
    let defect = |what: String| SolveError::Defect {
        method: method.name(),
        what,
    };
    let plan = Plan::from_runs(problem, device, runs).map_err(|e| defect(e.to_string()))?;
    let told = |all: &[String]| defect(all.join("; "));
    let plan = check(problem, plan)
        .map_err(|all| told(&all.iter().map(ToString::to_string).collect::<Vec<_>>()))?;
    plan.within(capacities)
        .map_err(|all| told(&all.iter().map(ToString::to_string).collect::<Vec<_>>()))?;
    Ok(plan)
}
