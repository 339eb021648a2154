//! A bound on the makespan from the bytes that tasks take from start to end: on a path of tasks, successive runs on
//! one device are a segment, and the tasks of a segment fit there together.
//!
//! In every plan a run reads what other runs made, each on its own device or on one from which it was copied. With
//! `c` the seconds of runs, `w` those of the quickest route and `m` resident bytes, a run of task `j` on device `d`
//! whose segment may take `r` bytes up to there ends no sooner than
//!
//! ```text
//! E(j, d, r) = c(j, d) + max over inputs i of min(E(i, d, r − m(j, d)), min over e ≠ d of E(i, e, room(e)) + w(i, e, d))
//! ```
//!
//! which is infinite if `r < m(j, d)`. No plan within the capacities is shorter than the least `E(j, d, room(d))` of any
//! task. As a function of `r` it falls in steps.

use cranelift_entity::EntityRef;
use scrimp_plan::{Capacities, DeviceId, Origin, Problem, ValueId};

use crate::staircase::Staircase;

/// The bound; 0 if no task has resident bytes. `route` is the least seconds of bringing a value from one device to
/// another.
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
    let devices = || problem.devices().keys();
    let mut bound = 0.0f64;
    // By task and device, as a function of the bytes for its segment.
    let mut ends: Vec<Vec<Staircase>> = Vec::new();
    for task in problem.tasks().values() {
        let end = |device: DeviceId| {
            let Some(mode) = task.mode(device) else {
                return Staircase::default();
            };
            let taken = mode.resident as f64;
            // For each input: when it can come from another device, and when its run here ends.
            let inputs = task.inputs.iter().map(|&value| {
                let from = |other: DeviceId| match problem.value(value).origin {
                    Origin::Given(home) if home == other => 0.0,
                    Origin::Given(_) => f64::INFINITY,
                    Origin::Task(maker) => {
                        ends[maker.index()][other.index()].at(rooms[other.index()])
                    }
                };
                let others = devices().filter(|&other| other != device);
                let others = others.map(|other| from(other) + route(value, other, device));
                let here = match problem.value(value).origin {
                    Origin::Task(maker) => Some(&ends[maker.index()][device.index()]),
                    Origin::Given(_) => None,
                };
                let given = problem.value(value).origin == Origin::Given(device);
                let copied = others.fold(f64::INFINITY, f64::min);
                (if given { 0.0 } else { copied }, here)
            });
            let inputs: Vec<(f64, Option<&Staircase>)> = inputs.collect();
            let changes = inputs.iter().filter_map(|input| input.1);
            let changes = changes.flat_map(|here| here.changes().map(|bytes| bytes + taken));
            let bytes = changes.chain([taken]);
            let bytes = bytes.filter(|&bytes| bytes <= rooms[device.index()]);
            Staircase::new(bytes.collect(), |bytes| {
                let times = inputs.iter().map(|&(copied, here)| {
                    copied.min(here.map_or(f64::INFINITY, |here| here.at(bytes - taken)))
                });
                times.fold(0.0, f64::max) + mode.seconds
            })
        };
        let there: Vec<Staircase> = devices().map(end).collect();
        let times = there.iter().zip(&rooms).map(|(end, &room)| end.at(room));
        let least = times.fold(f64::INFINITY, f64::min);
        // If a task can't be placed, other errors say so.
        if least.is_finite() {
            bound = bound.max(least);
        }
        ends.push(there);
    }
    bound
}
