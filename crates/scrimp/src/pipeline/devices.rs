//! Several devices that compute: what each takes alone, and where weights and optimizer state live between steps.

use std::time::{Duration, Instant};

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};
use scrimp_plan::{
    CheckedLayout, CheckedPlan, DeviceId, Link, LinkId, Origin, Problem, Sequence, Step, TaskId,
    ValueId, check, check_layout,
};
use scrimp_solve::{Options, PlaceError, SolveError, Solved, solve};

use super::Homes;
use crate::error::Result;
use crate::pipeline::Budgeted;

/// Every task once, in the given order, on this device or, where a task can't run there, on the fastest one for it.
/// What is given is there, too, if it may be anywhere. Nothing is computed again, and everything is kept until its
/// last use.
pub(super) fn alone(problem: &Problem, device: DeviceId, homes: Homes) -> Result<CheckedPlan> {
    let problem = match homes {
        Homes::Given => problem.clone(),
        Homes::Free => with_homes(problem, |_| Some(device))?,
    };
    let place = |task: TaskId| {
        let modes = &problem.task(task).modes;
        let fastest = || {
            let mut fastest = modes.iter();
            let first = fastest.next()?;
            Some(fastest.fold(first, |a, b| if b.seconds < a.seconds { b } else { a }))
        };
        let here = modes.iter().find(|mode| mode.device == device);
        here.or_else(fastest).map_or(device, |mode| mode.device)
    };
    let order = problem.tasks().keys();
    let sequence = Sequence::placed(&problem, order.map(|task| (task, place(task))));
    Ok(check(&problem, sequence.plan(&problem)?)?)
}

/// The first run of each task on the device and in the order of this plan; nothing is computed again, and
/// everything is kept until its last use.
pub(super) fn alike(plan: &CheckedPlan) -> Result<CheckedPlan> {
    let problem = plan.problem();
    let mut ran: SecondaryMap<TaskId, bool> = SecondaryMap::new();
    let runs = plan.steps().iter().filter_map(|step| match *step {
        Step::Run { task, device } => Some((task, device)),
        _ => None,
    });
    let first = runs.filter(|&(task, _)| !std::mem::replace(&mut ran[task], true));
    Ok(check(
        problem,
        Sequence::placed(problem, first).plan(problem)?,
    )?)
}

/// The problem with what is given on devices that compute at home elsewhere.
fn with_homes(problem: &Problem, home: impl Fn(ValueId) -> Option<DeviceId>) -> Result<Problem> {
    let homes = problem.values().iter().filter_map(|(value, what)| {
        let computes = |device: DeviceId| problem.devices()[device].computes;
        let given = matches!(what.origin, Origin::Given(device) if computes(device));
        Some((value, home(value).filter(|_| given)?))
    });
    let moved = problem.with_homes(&homes.collect::<Vec<_>>());
    Ok(moved.map_err(scrimp_plan::SwapError::from)?)
}

/// The shares of the time limit for each of the quick plans that decide homes, and the most of these plans.
const TRIAL: u32 = 8;
const TRIALS: usize = 3;

/// The problem with weights, optimizer state and inputs at home where a quick plan uses them, as long as that makes
/// the quick plan faster. With one device that computes, nothing changes.
///
/// # Errors
/// The planner fails for another reason than a budget that is too small.
pub fn find_homes(budgeted: &Budgeted, options: &Options) -> Result<Budgeted> {
    let mut best = budgeted.clone();
    if budgeted.problem.sole_device().is_some() {
        return Ok(best);
    }
    let mut cost = f64::INFINITY;
    let mut tried = budgeted.clone();
    for _ in 0..TRIALS {
        let Some(solved) = quick(&tried, options, options.time_limit / TRIAL)? else {
            break;
        };
        if solved.cost >= cost {
            break;
        }
        cost = solved.cost;
        let uses = users(&solved.plan);
        let problem = with_homes(&tried.problem, |value| uses[value])?;
        let next = Budgeted {
            fixed_bytes: problem.fixed_bytes(tried.device),
            problem,
            ..tried.clone()
        };
        best = std::mem::replace(&mut tried, next);
        if options.stopped() {
            break;
        }
    }
    Ok(best)
}

/// A plan made in a short time; `None` if there is none within the budgets.
fn quick(budgeted: &Budgeted, options: &Options, limit: Duration) -> Result<Option<Solved>> {
    let options = Options {
        time_limit: limit,
        deadline: Instant::now().checked_add(limit),
        keeps_homes: true,
        ..options.clone()
    };
    match solve(
        &budgeted.problem,
        &budgeted.capacities(),
        &options,
        &mut |_| {},
    ) {
        Ok(solved) => Ok(Some(solved)),
        Err(SolveError::Infeasible { .. } | SolveError::NotFound { .. } | SolveError::Short(_)) => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The problem in which only the device that alone is the fastest computes, and everything is at home there; `None` if
/// a task can't run there, or if no other device computes.
pub(super) fn on_the_fastest(budgeted: &Budgeted) -> Result<Option<Budgeted>> {
    let device = budgeted.device;
    if budgeted.problem.sole_device().is_some() {
        return Ok(None);
    }
    let mut parts = budgeted.base.problem().parts();
    for task in parts.tasks.values_mut() {
        task.modes.retain(|mode| mode.device == device);
    }
    if parts.tasks.values().any(|task| task.modes.is_empty()) {
        return Ok(None);
    }
    let idle = |other: DeviceId| other != device && budgeted.problem.devices()[other].computes;
    for (other, what) in parts.devices.iter_mut() {
        what.computes &= !idle(other);
    }
    let mut kept: SecondaryMap<LinkId, Option<LinkId>> = SecondaryMap::new();
    let mut links = PrimaryMap::new();
    for (id, link) in &parts.links {
        if !idle(link.from) && !idle(link.to) {
            let queue = link.queue.and_then(|queue| kept[queue]);
            kept[id] = Some(links.push(Link {
                queue,
                ..link.clone()
            }));
        }
    }
    parts.links = links;
    let problem = Problem::new(parts).map_err(scrimp_plan::SwapError::from)?;
    Ok(Some(Budgeted {
        fixed_bytes: problem.fixed_bytes(device),
        problem,
        ..budgeted.clone()
    }))
}

/// A layout for [`on_the_fastest`] as one for the problem in which tasks may run elsewhere, too.
pub(super) fn with_choice(
    budgeted: &Budgeted,
    layout: &CheckedLayout,
) -> Result<(Budgeted, CheckedLayout)> {
    let problem = budgeted.base.problem();
    let plan = check(problem, layout.plan().plan().clone())?;
    let layout = check_layout(&plan, layout.layout().clone()).map_err(PlaceError::Defect)?;
    let budgeted = Budgeted {
        fixed_bytes: problem.fixed_bytes(budgeted.device),
        problem: problem.clone(),
        ..budgeted.clone()
    };
    Ok((budgeted, layout))
}

/// The device that uses each given value, or what overwrites it, most often.
fn users(plan: &CheckedPlan) -> SecondaryMap<ValueId, Option<DeviceId>> {
    let problem = plan.problem();
    let mut heads: SecondaryMap<ValueId, Option<ValueId>> = SecondaryMap::new();
    for (value, what) in problem.values().iter() {
        if matches!(what.origin, Origin::Given(_)) {
            for link in problem.chain(value) {
                heads[link] = Some(value);
            }
        }
    }
    let devices = problem.devices().len();
    let mut uses: SecondaryMap<ValueId, Vec<u32>> = SecondaryMap::new();
    for step in plan.steps() {
        let Step::Run { task, device } = *step else {
            continue;
        };
        let what = problem.task(task);
        for &value in what.inputs.iter().chain(&what.outputs) {
            if let Some(head) = heads[value] {
                uses[head].resize(devices, 0);
                uses[head][device.index()] += 1;
            }
        }
    }
    let mut users = SecondaryMap::new();
    for value in problem.values().keys() {
        let most = uses[value].iter().copied().enumerate();
        let most = most.max_by_key(|&(device, count)| (count, std::cmp::Reverse(device)));
        users[value] = most.map(|(device, _)| DeviceId::new(device));
    }
    users
}
