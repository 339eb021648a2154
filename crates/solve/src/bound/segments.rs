//! A bound on the makespan from the bytes that tasks take from start to end: on a path of tasks, successive runs on
//! one device are a segment, and the tasks of a segment fit there together.
//!
//! In every plan a run reads what another run made, on its own device or on one from which it was copied. So along
//! any path `p_1, …, p_m` of tasks there is a chain of runs, each of which follows the one before, with at least a
//! copy in between wherever the device changes. With `c` the seconds of runs, `w` those of the quickest route and
//! `r` resident bytes, the chain takes at least
//!
//! ```text
//! L(j, d) = min over s ≤ j with r(s, d) + … + r(j, d) ≤ room(d) of E(s, d) + c(s, d) + … + c(j, d)
//! E(s, d) = min over e ≠ d of L(s − 1, e) + w(s − 1, e, d), and E(1, d) = 0
//! ```
//!
//! and no plan within the capacities is shorter than the least `L(m, d)`.

use cranelift_entity::EntityRef;
use scrimp_plan::{Capacities, DeviceId, Problem, TaskId, ValueId};

/// A link of a path: a task, and the value that it reads of the task before.
#[derive(Clone, Copy)]
struct Link {
    task: TaskId,
    reads: Option<ValueId>,
}

/// The largest bound of some paths; 0 if no task has resident bytes. `route` is the least seconds of bringing a value
/// from one device to another.
pub(super) fn makespan(
    problem: &Problem,
    capacities: &Capacities,
    route: &dyn Fn(ValueId, DeviceId, DeviceId) -> f64,
) -> f64 {
    let modes = problem.tasks().values().flat_map(|task| &task.modes);
    if modes.clone().all(|mode| mode.resident == 0) {
        return 0.0;
    }
    let rooms: Vec<f64> = problem
        .devices()
        .iter()
        .map(|(id, what)| {
            let bytes = capacities.bytes(id);
            bytes.map_or(f64::INFINITY, |bytes| {
                bytes.saturating_sub(what.resident) as f64
            })
        })
        .collect();
    // A path is worth its seconds, and copies for each time that its bytes fill the largest limited device.
    let largest = rooms.iter().copied().filter(|room| room.is_finite());
    let largest = largest.fold(1.0, f64::max);
    let seconds = |task: TaskId| {
        let modes = problem.task(task).modes.iter().map(|mode| mode.seconds);
        modes.fold(f64::INFINITY, f64::min)
    };
    let fill = |task: TaskId| {
        let modes = problem.task(task).modes.iter();
        modes.map(|mode| mode.resident).max().unwrap_or(0) as f64 / largest
    };
    let copies = problem.links().iter().flat_map(|(link, _)| {
        let values = problem.values().keys();
        values.map(move |value| problem.copy_seconds(link, value))
    });
    let dearest = copies.fold(0.0, f64::max);
    let prices = [0.0, dearest / 64.0, dearest / 8.0, dearest];
    let bounds = prices.map(|price| {
        let path = longest(problem, &|task| seconds(task) + price * fill(task));
        least(problem, &path, &rooms, route)
    });
    bounds.into_iter().fold(0.0, f64::max)
}

/// The path of the largest weight.
fn longest(problem: &Problem, weight: &dyn Fn(TaskId) -> f64) -> Vec<Link> {
    let mut ends: Vec<(f64, Option<ValueId>)> = Vec::new();
    for (task, what) in problem.tasks().iter() {
        let mut best = (0.0, None);
        for &value in &what.inputs {
            if let Some(producer) = problem.producer(value) {
                let before = ends[producer.index()].0;
                if best.1.is_none() || before > best.0 {
                    best = (before, Some(value));
                }
            }
        }
        ends.push((best.0 + weight(task), best.1));
    }
    let tasks = problem.tasks().keys();
    let mut next = tasks.max_by(|a, b| ends[a.index()].0.total_cmp(&ends[b.index()].0));
    let mut path = Vec::new();
    while let Some(task) = next {
        let reads = ends[task.index()].1;
        path.push(Link { task, reads });
        next = reads.and_then(|value| problem.producer(value));
    }
    path.reverse();
    path
}

/// The least seconds of a chain of runs along a path.
fn least(
    problem: &Problem,
    path: &[Link],
    rooms: &[f64],
    route: &dyn Fn(ValueId, DeviceId, DeviceId) -> f64,
) -> f64 {
    let devices: Vec<DeviceId> = problem.devices().keys().collect();
    // By device: the least seconds up to each task whose segment ends there, and up to each segment's begin.
    let mut ends = vec![Vec::new(); devices.len()];
    let mut begins = vec![Vec::new(); devices.len()];
    for (j, link) in path.iter().enumerate() {
        for &to in &devices {
            let entry = link.reads.map_or(0.0, |value| {
                let others = devices.iter().filter(|&&from| from != to);
                let entries =
                    others.map(|&from| ends[from.index()][j - 1] + route(value, from, to));
                entries.fold(f64::INFINITY, f64::min)
            });
            begins[to.index()].push(entry);
        }
        for &device in &devices {
            let (mut bytes, mut seconds, mut least) = (0.0, 0.0, f64::INFINITY);
            for s in (0..=j).rev() {
                let Some(mode) = problem.task(path[s].task).mode(device) else {
                    break;
                };
                bytes += mode.resident as f64;
                seconds += mode.seconds;
                if bytes > rooms[device.index()] {
                    break;
                }
                least = least.min(begins[device.index()][s] + seconds);
            }
            ends[device.index()].push(least);
        }
    }
    let last = ends.iter().filter_map(|ends| ends.last().copied());
    // If the path can't be placed, other errors say so.
    let least = last.fold(f64::INFINITY, f64::min);
    if least.is_finite() { least } else { 0.0 }
}
