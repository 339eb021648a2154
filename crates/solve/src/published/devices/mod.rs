//! Published planners for several devices: where each task runs, and XEngine's programs, which also decide what
//! is kept and what is computed again.
//!
//! | file | what |
//! |---|---|
//! | `system` | tasks, devices and routes, and the plan of a placement |
//! | `list` | HEFT and CPOP |
//! | `baechi` | m-TOPO, m-ETF and m-SCT |
//! | `cut` | the minimum cut, and α-expansion |
//! | `xengine` | XEngine's program with its holes closed |
//! | `literal` | the same as printed |
//! | `stages` | what both share |
//!
//! Placements ignore memory, except for Baechi's, which reserve it roughly; if the plan of a placement needs more
//! than a device has, the error says how much.

mod baechi;
mod cut;
mod list;
mod literal;
mod stages;
mod system;
#[cfg(test)]
mod tests;
mod xengine;

use std::time::Instant;

use scrimp_plan::{Capacities, DeviceId, Problem, TaskId};

use crate::bound;
use crate::error::SolveError;
use crate::method::{Method, Placing, Published, Wording};
use crate::options::{Options, Solved};
use system::System;

/// Plans by a method for several devices.
pub(super) fn plan(
    problem: &Problem,
    capacities: &Capacities,
    placing: Placing,
    options: &Options,
) -> Result<Solved, SolveError> {
    let began = Instant::now();
    let method = Method::Published(Published::Devices(placing));
    let system = System::new(problem, capacities, method);
    let mut tasks = problem.tasks().keys();
    if let Some(task) = tasks.find(|&task| system.allowed(task).is_empty()) {
        let name = &problem.task(task).name;
        return Err(system.unsupported(&format!("no device can run all of the group of {name}")));
    }
    if let Some((_, device, need)) = bound::devices::without_room(problem, capacities) {
        return Err(SolveError::NoRoom {
            method: method.name(),
            device: problem.devices()[device].name.clone(),
            budget: capacities.bytes(device).unwrap_or(u64::MAX),
            least: need,
            floor: need,
        });
    }
    let runs = match placing {
        Placing::Heft => list::heft(&system)?,
        Placing::Cpop => list::cpop(&system)?,
        Placing::MTopo => baechi::m_topo(&system)?,
        Placing::MEtf => baechi::m_etf(&system)?,
        Placing::MSct => baechi::m_sct(&system, options)?,
        Placing::SingleDevice => return single_device(&system, options, began),
        Placing::XEngine(Wording::Mended) => return xengine::plan(&system, options, began),
        Placing::XEngine(Wording::Printed) => return literal::plan(&system, options, began),
        Placing::MinCut => return system.finish(&cut::runs(&system, options)?, options, began),
    };
    system.finish_schedule(&runs, options, began)
}

/// The runs, in the given order, of the minimum cut; `None` if some task can't get its inputs.
pub(crate) fn least_cut(
    problem: &Problem,
    capacities: &Capacities,
    options: &Options,
) -> Option<Vec<(TaskId, DeviceId)>> {
    let method = Method::Published(Published::Devices(Placing::MinCut));
    cut::runs(&System::new(problem, capacities, method), options).ok()
}

/// All tasks once, in the given order, on the device where that costs the least and fits.
fn single_device(
    system: &System<'_>,
    options: &Options,
    began: Instant,
) -> Result<Solved, SolveError> {
    let mut outcomes = Vec::new();
    for &device in &system.devices {
        let mut tasks = system.problem.tasks().values();
        if tasks.all(|task| task.mode(device).is_some()) {
            let order: Vec<_> = system
                .problem
                .tasks()
                .keys()
                .map(|task| (task, device))
                .collect();
            outcomes.push(system.finish(&order, options, began));
        }
    }
    let cost = |outcome: &Result<Solved, SolveError>| match outcome {
        Ok(solved) => solved.cost,
        Err(_) => f64::INFINITY,
    };
    let best = outcomes
        .into_iter()
        .min_by(|a, b| cost(a).total_cmp(&cost(b)));
    best.unwrap_or_else(|| Err(system.unsupported("no device can run all tasks")))
}
