//! Networks cut into parts, one for each device: starts for budgets that no device alone meets.
//!
//! A part is a stretch of the forward tasks with all that belongs to them: their weights, backward tasks and updates.

use scrimp_plan::{DeviceId, Origin, Phase, Problem, TaskId};

use super::devices::{computing, nearest};

/// The shares of the first part.
const SHARES: [f64; 3] = [0.25, 0.5, 0.75];

/// The tasks in their order with the devices of each cut: every device first with each of the shares, the others after
/// it with equal ones.
pub(super) fn cuts(problem: &Problem) -> Vec<Vec<(TaskId, DeviceId)>> {
    let devices = computing(problem);
    let forward = forward(problem);
    let mut bytes = vec![0.0; forward.len()];
    for (task, what) in problem.tasks().iter() {
        let made = what
            .outputs
            .iter()
            .map(|&value| problem.value(value).bytes as f64);
        bytes[forward[task.as_u32() as usize]] += made.sum::<f64>();
    }
    let all: f64 = bytes.iter().sum();
    // The share of bytes up to each forward task.
    let shares: Vec<f64> = bytes
        .iter()
        .scan(0.0, |sum, bytes| {
            *sum += bytes;
            Some(*sum / all.max(1.0))
        })
        .collect();
    let mut cuts = Vec::new();
    for first in 0..devices.len() {
        for share in SHARES {
            let part = |at: usize| match shares[at] <= share {
                true => 0,
                false => {
                    let others = devices.len() - 1;
                    let later = (shares[at] - share) / (1.0 - share) * others as f64;
                    1 + (later as usize).min(others - 1)
                }
            };
            let place = |(k, task): (usize, TaskId)| {
                let device = devices[(first + part(forward[k])) % devices.len()];
                (task, nearest(problem, task, device))
            };
            cuts.push(problem.tasks().keys().enumerate().map(place).collect());
        }
    }
    cuts
}

/// For each task, the index of the forward task that it belongs to: itself, or the last one whose outputs or weights it
/// reads, or else that of what it reads first.
fn forward(problem: &Problem) -> Vec<usize> {
    let mut of: Vec<usize> = Vec::new();
    for (index, (_, what)) in problem.tasks().iter().enumerate() {
        let is_forward = |task: TaskId| problem.task(task).phase == Phase::Forward;
        let read = what
            .inputs
            .iter()
            .filter_map(|&value| match problem.value(value).origin {
                Origin::Task(task) => is_forward(task).then_some(task.as_u32() as usize),
                Origin::Given(_) => {
                    let mut readers = problem.consumers(value).iter();
                    let reader = readers.find(|&&reader| is_forward(reader))?;
                    Some(reader.as_u32() as usize)
                }
            });
        let first = || {
            let mut makers = what
                .inputs
                .iter()
                .filter_map(|&value| problem.producer(value));
            makers.next().map_or(0, |task| of[task.as_u32() as usize])
        };
        let own = match what.phase == Phase::Forward {
            true => index,
            false => read.max().unwrap_or_else(first),
        };
        of.push(own);
    }
    of
}
