//! The functions of the module: plan, sweep, check, place.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use cranelift_entity::EntityRef;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use scrimp::plan::file::{self, Content};
use scrimp::plan::{
    Budget, Capacities, DeviceId, Interval, Keep, Origin, Plan, Problem, Rate, SwapMemory, TaskId,
    check_offsets, plan_from_json,
};
use scrimp::solve::{Cutoff, Method, Options, Progress, place_intervals, solve_sweep};
use scrimp::{Budgeted, Fit};

use crate::failure::Failure;
use crate::interrupt::watched;
use crate::planned::{Found, Placed, Planned};

/// Options as they come from Python.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Wanted {
    method: String,
    order: String,
    time_limit: f64,
    seed: u64,
    threads: usize,
}

impl Wanted {
    fn options(&self) -> Result<Options, Failure> {
        let limit = self.time_limit;
        if !(limit.is_finite() && (0.0..=1e7).contains(&limit)) {
            return Err(Failure::Option(format!(
                "time_limit is {limit}, but must be seconds from 0 to ten million"
            )));
        }
        if self.threads == 0 {
            return Err(Failure::Option(
                "threads is 0, but must be 1 or more".into(),
            ));
        }
        Ok(Options {
            method: self.method.parse().map_err(Failure::option)?,
            order: self.order.parse().map_err(Failure::option)?,
            time_limit: Duration::from_secs_f64(limit),
            seed: self.seed,
            threads: self.threads,
            ..Options::default()
        })
    }
}

fn read(text: &str) -> Result<(Problem, Capacities), Failure> {
    match file::read(text).map_err(Failure::problem)? {
        Content::Problem(problem, capacities) => Ok((problem, capacities)),
        Content::Instance(instance) => Ok((instance.problem, instance.capacities)),
        Content::Allocation(_) => Err(Failure::Problem(
            "this lists buffers to place, not tasks to plan; use scrimp.place".into(),
        )),
    }
}

/// What the budget means; without one, the capacity that the file states for the problem's device.
fn budgeted(
    (problem, capacities): &(Problem, Capacities),
    budget: Option<&str>,
) -> Result<Budgeted, Failure> {
    let budget = match budget {
        Some(text) => text.parse::<Budget>().map_err(Failure::option)?,
        None => {
            let device = problem.sole_device();
            let capacity = device.and_then(|device| capacities.bytes(device));
            Budget::Units(capacity.ok_or_else(|| {
                Failure::Option(
                    "no budget is given and the problem's device has no capacity; \
                     give a budget such as '60%'"
                        .into(),
                )
            })?)
        }
    };
    let device = problem.sole_device();
    Ok(Budgeted {
        beside: capacities.clone(),
        problem: problem.clone(),
        fixed_bytes: device.map_or(0, |device| problem.fixed_bytes(device)),
        ..scrimp::budget(&at_home(problem)?, budget)?
    })
}

/// The problem with everything given and kept on the device that computes: what happens without a plan.
fn at_home(problem: &Problem) -> Result<Problem, Failure> {
    let Some(device) = problem.sole_device() else {
        return Ok(problem.clone());
    };
    let mut parts = problem.parts();
    for value in parts.values.values_mut() {
        if matches!(value.origin, Origin::Given(_)) {
            value.origin = Origin::Given(device);
        }
        if matches!(value.keep, Keep::On(_)) {
            value.keep = Keep::On(device);
        }
    }
    Problem::new(parts).map_err(Failure::problem)
}

/// Plans live bytes without a layout.
fn plan_bytes(
    budgeted: &Budgeted,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned, Failure> {
    let start = Instant::now();
    let (budget, solved) = scrimp::plan_bytes(budgeted, options, watch)?;
    let found = Found {
        method: solved.method.name(),
        lower_bound: solved.lower_bound,
        optimal: solved.optimal,
        seconds: start.elapsed().as_secs_f64(),
        attempts: 1,
        history: None,
    };
    Ok(Planned {
        budget,
        fixed: budgeted.fixed_bytes,
        base: budgeted.base.clone(),
        device: budgeted.device,
        plan: solved.plan,
        found,
        layout: None,
        interrupted: false,
    })
}

/// Plans with a layout that fits the budget.
fn plan_layout(
    budgeted: &Budgeted,
    options: &Options,
    watch: &mut dyn FnMut(Progress),
) -> Result<Planned, Failure> {
    let planned = scrimp::find_plan(budgeted, Fit::Layout, options, watch)?;
    let provenance = planned.provenance.as_ref();
    let cost = planned.plan().cost();
    Ok(Planned {
        budget: planned.budget_bytes,
        fixed: budgeted.fixed_bytes,
        base: budgeted.base.clone(),
        device: budgeted.device,
        plan: planned.plan().clone(),
        found: Found {
            method: provenance.map_or("given", |provenance| provenance.method.name()),
            lower_bound: provenance
                .map_or(0.0, |provenance| provenance.lower_bound)
                .min(cost),
            optimal: provenance.is_some_and(|provenance| provenance.optimal),
            seconds: provenance.map_or(0.0, |provenance| provenance.elapsed.as_secs_f64()),
            attempts: provenance.map_or(0, |provenance| provenance.attempts),
            history: provenance.map(|provenance| provenance.history.clone()),
        },
        layout: Some(planned.layout),
        interrupted: false,
    })
}

/// Plans a problem given as JSON.
#[pyfunction]
#[pyo3(signature = (problem, budget, options, layout, progress))]
pub fn plan(
    py: Python<'_>,
    problem: &str,
    budget: Option<&str>,
    options: Wanted,
    layout: bool,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Planned> {
    let options = options.options()?;
    let budgeted = py.detach(|| budgeted(&read(problem)?, budget))?;
    let done = watched(py, progress, |stop: Arc<AtomicBool>, news| {
        let options = Options {
            stop: Some(stop),
            ..options
        };
        let mut watch = |progress| {
            let _ = news.send(progress);
        };
        if layout {
            plan_layout(&budgeted, &options, &mut watch)
        } else {
            plan_bytes(&budgeted, &options, &mut watch)
        }
    })?;
    match done.answer {
        // Without a plan there is nothing to keep.
        Err(Failure::Infeasible { .. }) if done.interrupted => {
            Err(PyKeyboardInterrupt::new_err("no plan was found yet"))
        }
        answer => Ok(Planned {
            interrupted: done.interrupted,
            ..answer?
        }),
    }
}

/// Plans a problem under several budgets: per budget a plan, or the exception.
#[pyfunction]
#[pyo3(signature = (problem, budgets, options, progress))]
pub fn sweep<'py>(
    py: Python<'py>,
    problem: &str,
    budgets: Vec<String>,
    options: Wanted,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let options = options.options()?;
    let problem = py.detach(|| read(problem))?;
    let asked: Vec<Budgeted> = budgets
        .iter()
        .map(|budget| budgeted(&problem, Some(budget)))
        .collect::<Result<_, _>>()?;
    let Some(first) = asked.first() else {
        return Ok(Vec::new());
    };
    let bytes: Option<Vec<u64>> = asked.iter().map(|budgeted| budgeted.budget_bytes).collect();
    let bytes = bytes.ok_or_else(|| {
        Failure::Option("'min' can't be one of several budgets; plan it by itself".into())
    })?;
    let done = watched(py, progress, |stop: Arc<AtomicBool>, news| {
        let options = Options {
            stop: Some(stop),
            ..options
        };
        let (problem, beside) = (&first.problem, &first.beside);
        solve_sweep(problem, beside, &bytes, &options, &mut |_, progress| {
            let _ = news.send(progress);
        })
    })?;
    let outcomes = done.answer.map_err(Failure::from)?;
    outcomes
        .into_iter()
        .map(|(budget, outcome)| match outcome {
            Err(error) => Ok(PyErr::from(Failure::from(error))
                .into_value(py)
                .into_bound(py)
                .into_any()),
            Ok(solved) => {
                let planned = Planned {
                    budget,
                    fixed: first.fixed_bytes,
                    base: first.base.clone(),
                    device: first.device,
                    found: Found {
                        method: solved.method.name(),
                        lower_bound: solved.lower_bound,
                        optimal: solved.optimal,
                        seconds: solved.elapsed.as_secs_f64(),
                        attempts: 1,
                        history: None,
                    },
                    plan: solved.plan,
                    layout: None,
                    interrupted: done.interrupted,
                };
                Ok(Bound::new(py, planned)?.into_any())
            }
        })
        .collect()
}

/// A plan to check: as JSON, or just the tasks in the order of their runs.
#[derive(FromPyObject)]
pub enum Given {
    Json(String),
    Runs(Vec<usize>),
}

fn to_plan(problem: &Problem, device: DeviceId, given: Given) -> Result<Plan, Failure> {
    match given {
        Given::Json(text) => plan_from_json(problem, &text).map_err(Failure::problem),
        Given::Runs(runs) => {
            let tasks = problem.tasks().len();
            if let Some(run) = runs.iter().find(|&&run| run >= tasks) {
                return Err(Failure::Problem(format!(
                    "the order of runs has task {run}, but the problem has {tasks} tasks, counted from 0"
                )));
            }
            let runs: Vec<TaskId> = runs.into_iter().map(TaskId::new).collect();
            Plan::from_runs(problem, device, &runs).map_err(Failure::problem)
        }
    }
}

/// What a planner said of a plan when it was made: its name, the bound, whether that is reached, and
/// the seconds that planning took.
type Said = (String, f64, bool, f64);

/// Checks a plan for a problem. What a planner `said` of it is taken over, unproven.
#[pyfunction]
#[pyo3(signature = (problem, plan, budget, said=None))]
pub fn check(
    py: Python<'_>,
    problem: &str,
    plan: Given,
    budget: Option<&str>,
    said: Option<Said>,
) -> Result<Planned, Failure> {
    py.detach(|| {
        let (problem, capacities) = read(problem)?;
        let (found, home) = (found(said)?, at_home(&problem)?);
        // A budget that can't be met is no reason not to check; `min` is the plan's own peak.
        let budgeted = match budget {
            Some(text) => scrimp::budget(&home, text.parse().map_err(Failure::option)?)?,
            None => scrimp::budget(&home, Budget::Min)?,
        };
        let device = budgeted.device;
        let capacity = match budget {
            Some(_) => budgeted.budget_bytes,
            None => capacities.bytes(device),
        };
        let plan = to_plan(&problem, device, plan)?;
        let plan = scrimp::plan::check(&problem, plan).map_err(Failure::plan)?;
        plan.within(&capacities.with_bytes(device, capacity))
            .map_err(Failure::plan)?;
        Ok(Planned {
            budget: capacity.unwrap_or(plan.peak(device)),
            fixed: problem.fixed_bytes(device),
            found,
            base: budgeted.base,
            device,
            plan,
            layout: None,
            interrupted: false,
        })
    })
}

fn found(said: Option<Said>) -> Result<Found, Failure> {
    let (method, lower_bound, optimal, seconds) = match said {
        Some((name, bound, optimal, seconds)) => {
            let method = name.parse::<Method>().map_err(Failure::option)?;
            (method.name(), bound, optimal, seconds)
        }
        None => ("given", 0.0, false, 0.0),
    };
    Ok(Found {
        method,
        lower_bound,
        optimal,
        seconds,
        attempts: 0,
        history: None,
    })
}

/// Places intervals in one memory.
#[pyfunction]
#[pyo3(signature = (starts, ends, sizes, capacity))]
pub fn place(
    py: Python<'_>,
    starts: Vec<u64>,
    ends: Vec<u64>,
    sizes: Vec<u64>,
    capacity: Option<u64>,
) -> Result<Placed, Failure> {
    py.detach(|| {
        let mut intervals = Vec::with_capacity(starts.len());
        for (i, ((&start, &end), &bytes)) in starts.iter().zip(&ends).zip(&sizes).enumerate() {
            if start > end {
                return Err(Failure::Problem(format!(
                    "buffer {i} starts at {start}, after its end {end}"
                )));
            }
            intervals.push(Interval { start, end, bytes });
        }
        let total: u128 = sizes.iter().map(|&bytes| u128::from(bytes)).sum();
        if total > u128::from(scrimp::plan::problem::MAX_BYTES) {
            return Err(Failure::Problem(format!(
                "all buffers together have {total} bytes, more than can be counted"
            )));
        }
        let placed = place_intervals(&intervals, capacity, Cutoff::NEVER);
        check_offsets(&intervals, &placed.offsets)
            .map_err(|wrong| Failure::Internal(format!("the placement is wrong: {wrong:?}")))?;
        match capacity {
            Some(capacity) if placed.arena_bytes > capacity => Err(Failure::Infeasible {
                message: format!(
                    "the buffers were packed into {} bytes at best, but there are {capacity}; {} are in use at the worst moment",
                    placed.arena_bytes, placed.live_bytes
                ),
                budget: capacity,
                least_found: placed.arena_bytes,
                floor: placed.live_bytes,
            }),
            _ => Ok(Placed(placed)),
        }
    })
}

/// Reads a budget: ("bytes", n), ("percent", p) or ("min", None).
#[pyfunction]
pub fn parse_budget(text: &str) -> Result<(&'static str, Option<f64>, Option<u64>), Failure> {
    Ok(match text.parse::<Budget>().map_err(Failure::option)? {
        Budget::Bytes(bytes) | Budget::Units(bytes) => ("bytes", None, Some(bytes)),
        Budget::Percent(percent) => ("percent", Some(percent), None),
        Budget::Min => ("min", None, None),
    })
}

/// Reads a memory to swap to: name, folder, bytes, and bytes per second out and back and whether both
/// share a queue, where that is stated.
#[pyfunction]
#[allow(
    clippy::type_complexity,
    reason = "plain tuples are what Python takes apart"
)]
pub fn parse_swap(
    text: &str,
) -> Result<(String, Option<PathBuf>, u64, Option<(f64, f64, bool)>), Failure> {
    let memory: SwapMemory = text.parse().map_err(Failure::option)?;
    let (Budget::Bytes(bytes) | Budget::Units(bytes)) = memory.capacity else {
        return Err(Failure::Internal(
            "the size of a memory is no number of bytes".into(),
        ));
    };
    let rate = |rate| {
        let (Rate::Bytes(amount) | Rate::Units(amount)) = rate;
        amount
    };
    let rates = memory.rates.map(|r| (rate(r.out), rate(r.back), r.half));
    Ok((memory.name, memory.folder, bytes, rates))
}

/// Bytes for people.
#[pyfunction]
pub fn format_bytes(bytes: u64) -> String {
    scrimp::plan::format_bytes(bytes)
}

/// The names of all planners.
#[pyfunction]
pub fn methods() -> Vec<&'static str> {
    Method::ALL.map(Method::name).to_vec()
}
