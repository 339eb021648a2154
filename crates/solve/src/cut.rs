//! Two sides of a system: where each task runs and what crosses, at least total cost, as a minimum cut (Stone
//! 1977), also where a task may run on both sides.
//!
//! One side is a single device, the other all the rest. Each task has two nodes: `a`, on the source's side if it
//! runs inside, and `b`, on the source's side if it does *not* run outside. Each value has two likewise for its
//! presence. Then every term is a directed edge: a run inside pays `a → sink`, a run outside `source → b`; a
//! value present inside that isn't made there was copied in, `present → a`; a reader inside needs it there,
//! `a → present` without limit. Without limits on memory and with one computing device on each side, the cut is
//! the least serial cost of all plans. Otherwise no plan costs less: copies within the rest are free.

use cranelift_entity::EntityRef;
use scrimp_plan::{DeviceId, Keep, Origin, Problem, TaskId, ValueId};

use crate::flow::{Network, Node, SINK, SOURCE};

/// What a cut pays.
pub(crate) struct Prices<'a> {
    /// For running a task on a device.
    pub run: &'a dyn Fn(TaskId, DeviceId) -> f64,
    /// For copying a value to the device inside.
    pub into: &'a dyn Fn(ValueId) -> f64,
    /// For copying it from there.
    pub out: &'a dyn Fn(ValueId) -> f64,
}

/// The cheapest division, by task.
pub(crate) struct Division {
    pub cost: f64,
    pub runs_inside: Vec<bool>,
    pub runs_outside: Vec<bool>,
    /// By value.
    pub copied_in: Vec<bool>,
    pub copied_out: Vec<bool>,
}

/// `None` if some value can't get where it is needed, or some task can run nowhere.
pub(crate) fn divide(problem: &Problem, inside: DeviceId, prices: &Prices<'_>) -> Option<Division> {
    let mut network = Network::new();
    let mut pairs = |count: usize| -> Vec<[Node; 2]> {
        (0..count)
            .map(|_| [network.node(), network.node()])
            .collect()
    };
    let tasks = pairs(problem.tasks().len());
    let values = pairs(problem.values().len());
    for (task, what) in problem.tasks().iter() {
        let [a, b] = tasks[task.index()];
        let outside = what.modes.iter().filter(|mode| mode.device != inside);
        let cheapest = outside.map(|mode| (prices.run)(task, mode.device));
        let here = what.mode(inside);
        let pay = here.map_or(f64::INFINITY, |_| (prices.run)(task, inside));
        network.edge(a, SINK, pay);
        network.edge(SOURCE, b, cheapest.fold(f64::INFINITY, f64::min));
        // It runs somewhere.
        network.edge(b, a, f64::INFINITY);
        if !may_run_on_both(problem, task, inside) {
            network.edge(a, b, f64::INFINITY);
        }
        for &value in &what.inputs {
            let [here, gone] = values[value.index()];
            network.edge(a, here, f64::INFINITY);
            network.edge(gone, b, f64::INFINITY);
        }
    }
    for (value, what) in problem.values().iter() {
        let [here, gone] = values[value.index()];
        let (into, out) = ((prices.into)(value), (prices.out)(value));
        match what.origin {
            Origin::Task(task) => {
                let [a, b] = tasks[task.index()];
                network.edge(here, a, into);
                network.edge(b, gone, out);
            }
            Origin::Given(home) if home == inside => network.edge(SOURCE, gone, out),
            Origin::Given(_) => network.edge(here, SINK, into),
        }
        match what.keep {
            Keep::On(device) if device == inside => network.edge(SOURCE, here, f64::INFINITY),
            Keep::On(_) => network.edge(gone, SINK, f64::INFINITY),
            Keep::No | Keep::Anywhere => {}
        }
    }
    for group in problem.together() {
        for pair in group.windows(2) {
            network.tie(tasks[pair[0].index()][0], tasks[pair[1].index()][0]);
        }
    }
    let cut = network.cut();
    if !cut.capacity.is_finite() {
        return None;
    }
    let side = |node: Node| cut.source_side[node];
    let made = |value: ValueId, which: usize| {
        let producer = problem.producer(value);
        producer.map(|task| side(tasks[task.index()][which]))
    };
    let copied_in = |value: ValueId| {
        let home = problem.value(value).origin == Origin::Given(inside);
        side(values[value.index()][0]) && !made(value, 0).unwrap_or(home)
    };
    let copied_out = |value: ValueId| {
        let home = problem.value(value).origin == Origin::Given(inside);
        !side(values[value.index()][1]) && made(value, 1).unwrap_or(home)
    };
    Some(Division {
        cost: cut.capacity,
        runs_inside: tasks.iter().map(|&[a, _]| side(a)).collect(),
        runs_outside: tasks.iter().map(|&[_, b]| !side(b)).collect(),
        copied_in: problem.values().keys().map(copied_in).collect(),
        copied_out: problem.values().keys().map(copied_out).collect(),
    })
}

/// Whether a task may run on a device and on another one.
pub(crate) fn may_run_on_both(problem: &Problem, task: TaskId, inside: DeviceId) -> bool {
    let (what, devices) = (problem.task(task), problem.devices());
    let alike = |device: DeviceId| devices[device].arithmetic == devices[inside].arithmetic;
    let mut others = what.modes.iter().filter(|mode| mode.device != inside);
    what.rerunnable
        && problem.group(task).is_none()
        && what.mode(inside).is_some()
        && others.any(|mode| alike(mode.device))
}
