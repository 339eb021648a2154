//! Several devices that compute: what each takes alone, and where weights and optimizer state live between steps.

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};
use scrimp_plan::{
    CheckedLayout, CheckedPlan, DeviceId, Link, LinkId, Origin, Problem, Sequence, Step, TaskId,
    ValueId, check, check_layout,
};
use scrimp_solve::PlaceError;

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
    let order = problem.tasks().keys();
    let placed = order.map(|task| (task, nearest(&problem, task, device)));
    let sequence = Sequence::placed(&problem, placed);
    Ok(check(&problem, sequence.plan(&problem)?)?)
}

/// This device or, if the task can't run there, the fastest one for it.
pub(super) fn nearest(problem: &Problem, task: TaskId, device: DeviceId) -> DeviceId {
    let modes = &problem.task(task).modes;
    let fastest = || modes.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let here = modes.iter().find(|mode| mode.device == device);
    here.or_else(fastest).map_or(device, |mode| mode.device)
}

/// The first run of each task on the device of this plan; nothing is computed again, and everything is kept until its
/// last use. The order is that of the plan or, if a value would be overwritten there before its last reader has run,
/// as plans with copies or second runs may do, the given one.
pub(super) fn alike(plan: &CheckedPlan) -> Result<CheckedPlan> {
    let problem = plan.problem();
    let mut on: SecondaryMap<TaskId, Option<DeviceId>> = SecondaryMap::new();
    let first = runs(plan).filter(|&(task, device)| on[task].replace(device).is_none());
    let first: Vec<(TaskId, DeviceId)> = first.collect();
    let ordered = Sequence::placed(problem, first.iter().copied()).plan(problem);
    let plan = ordered.or_else(|_| {
        let mut given = first;
        given.sort_by_key(|&(task, _)| task);
        Sequence::placed(problem, given).plan(problem)
    });
    Ok(check(problem, plan?)?)
}

/// The runs of a plan.
pub(super) fn runs(plan: &CheckedPlan) -> impl Iterator<Item = (TaskId, DeviceId)> + '_ {
    plan.steps().iter().filter_map(|step| match *step {
        Step::Run { task, device } => Some((task, device)),
        _ => None,
    })
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

/// The problem with weights, optimizer state and inputs at home where these runs use them.
pub(super) fn where_used(
    budgeted: &Budgeted,
    runs: impl IntoIterator<Item = (TaskId, DeviceId)>,
) -> Result<Budgeted> {
    let uses = users(&budgeted.problem, runs);
    at_home(
        budgeted,
        with_homes(&budgeted.problem, |value| uses[value])?,
    )
}

/// The same with other homes.
fn at_home(budgeted: &Budgeted, problem: Problem) -> Result<Budgeted> {
    Ok(Budgeted {
        fixed_bytes: problem.fixed_bytes(budgeted.device),
        problem,
        ..budgeted.clone()
    })
}

/// The devices that compute.
pub(super) fn computing(problem: &Problem) -> Vec<DeviceId> {
    let devices = problem.devices().iter();
    let devices = devices.filter(|(_, what)| what.computes);
    devices.map(|(device, _)| device).collect()
}

/// The problem in which only this device computes, and everything is at home there; `None` if a task can't run there.
pub(super) fn only(budgeted: &Budgeted, device: DeviceId) -> Result<Option<Budgeted>> {
    let base = alone(&budgeted.problem, device, Homes::Free)?;
    let mut parts = base.problem().parts();
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
        budget_bytes: Some(budgeted.capacities().bytes(device).unwrap_or(u64::MAX)),
        problem,
        device,
        base,
        ..budgeted.clone()
    }))
}

/// A layout for [`only`] one device as one for the problem in which tasks may run elsewhere, too.
pub(super) fn with_choice(
    budgeted: &Budgeted,
    layout: &CheckedLayout,
) -> Result<(Budgeted, CheckedLayout)> {
    let alone = layout.plan().problem();
    let problem = with_homes(&budgeted.problem, |value| match alone.value(value).origin {
        Origin::Given(home) => Some(home),
        Origin::Task(_) => None,
    })?;
    let plan = check(&problem, layout.plan().plan().clone())?;
    let layout = check_layout(&plan, layout.layout().clone()).map_err(PlaceError::Defect)?;
    Ok((at_home(budgeted, problem)?, layout))
}

/// The device that uses each given value, or what overwrites it, most often.
fn users(
    problem: &Problem,
    runs: impl IntoIterator<Item = (TaskId, DeviceId)>,
) -> SecondaryMap<ValueId, Option<DeviceId>> {
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
    for (task, device) in runs {
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

#[cfg(test)]
mod tests {
    use super::*;
    use scrimp_plan::problem_from_json;

    /// `reader` reads what `maker` makes and `writer` overwrites.
    const PROBLEM: &str = r#"{
        "format": "scrimp-problem", "version": 1, "name": "chain", "units": {"cost": "s", "memory": "B"},
        "devices": [{"name": "cpu", "capacity": null, "computes": true, "resident": 0}], "links": [],
        "tasks": [
            {"name": "maker", "phase": "forward", "inputs": [0], "outputs": [1], "rerunnable": true,
             "modes": [{"device": 0, "seconds": 1.0, "joules": 0.0, "workspace": 0}]},
            {"name": "reader", "phase": "forward", "inputs": [1], "outputs": [2], "rerunnable": true,
             "modes": [{"device": 0, "seconds": 1.0, "joules": 0.0, "workspace": 0}]},
            {"name": "writer", "phase": "forward", "inputs": [1], "outputs": [3], "rerunnable": true,
             "overwrites": [{"input": 1, "output": 3}],
             "modes": [{"device": 0, "seconds": 1.0, "joules": 0.0, "workspace": 0}]}
        ],
        "values": [
            {"name": "x", "bytes": 8, "origin": {"given": 0}, "keep": "no"},
            {"name": "v", "bytes": 8, "origin": {"task": 0}, "keep": "no"},
            {"name": "y", "bytes": 8, "origin": {"task": 1}, "keep": "anywhere"},
            {"name": "w", "bytes": 8, "origin": {"task": 2}, "keep": "anywhere"}
        ]
    }"#;

    #[test]
    fn a_plan_whose_order_needs_a_second_run_has_one_alike_without() {
        let (problem, _) = problem_from_json(PROBLEM).expect("a problem");
        let device = problem.sole_device().expect("one device");
        let [maker, reader, writer] = [0, 1, 2].map(TaskId::new);
        let tasks = |plan: &CheckedPlan| runs(plan).map(|(task, _)| task).collect::<Vec<_>>();
        let made = |order: &[TaskId]| {
            let sequence = Sequence::of_runs(device, order.iter().copied());
            check(&problem, sequence.plan(&problem).expect("it can run")).expect("a plan")
        };
        let again = made(&[maker, writer, maker, reader]);
        let without = alike(&again).expect("the given order can run");
        assert_eq!(tasks(&without), [maker, reader, writer]);
        let once = made(&[maker, reader, writer]);
        assert_eq!(
            tasks(&alike(&once).expect("its order can run")),
            tasks(&once)
        );
    }
}
