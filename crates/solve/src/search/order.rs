//! Topological orders to start from if the order is free. Each step takes, of the tasks that can run, the one
//! that adds the fewest bytes.

use cranelift_entity::PrimaryMap;
use scrimp_plan::{TaskId, ValueId};

use crate::cutoff::Cutoff;
use crate::model::Model;
use crate::random::Random;

/// The number of tasks after which the cutoff is looked at again.
const LOOK: usize = 64;

/// An order of all tasks, each once. `noise` blurs growth by up to that many times the mean size of a task's
/// outputs; `inertia` prefers tasks that are close, in the given order, to the one that ran last.
/// A cutoff ends the order early.
pub(crate) fn lean(
    model: &Model,
    noise: f64,
    inertia: f64,
    cutoff: Cutoff<'_>,
    rng: &mut Random,
) -> Vec<TaskId> {
    let n = model.tasks;
    let mut readers: PrimaryMap<ValueId, u32> = model
        .value_ids()
        .map(|v| model.consumers.of(v).len() as u32)
        .collect();
    let mut missing: PrimaryMap<TaskId, u32> =
        model.task_ids().map(|t| missing_inputs(model, t)).collect();
    let scale = model.bytes.values().sum::<f64>() / model.bytes.len().max(1) as f64;
    let mut ready: Vec<TaskId> = model.task_ids().filter(|&t| missing[t] == 0).collect();
    let mut order = Vec::with_capacity(n as usize);
    let mut last = 0.0;
    while let Some(at) = ready
        .iter()
        .enumerate()
        .filter(|&(_, &t)| may_overwrite(model, t, &readers))
        .map(|(k, &t)| {
            let blur = noise * scale * rng.unit();
            let away = inertia * scale * (f64::from(t.as_u32()) - last).abs() / f64::from(n);
            (growth(model, t, &readers) + blur + away, k)
        })
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, k)| k)
    {
        if order.len().is_multiple_of(LOOK) && cutoff.reached() {
            break;
        }
        let t = ready.swap_remove(at);
        last = f64::from(t.as_u32());
        order.push(t);
        for i in model.inputs.of(t) {
            readers[i.value] -= 1;
        }
        for &v in model.outputs.of(t) {
            for &r in model.consumers.of(v).iter().filter(|&&r| model.has(r)) {
                missing[r] -= 1;
                if missing[r] == 0 {
                    ready.push(r);
                }
            }
        }
    }
    order
}

/// The number of inputs that tasks write.
fn missing_inputs(model: &Model, t: TaskId) -> u32 {
    model
        .inputs
        .of(t)
        .iter()
        .filter(|i| model.has(model.producer[i.value]))
        .count() as u32
}

/// Whether no other task still has to read what this one overwrites.
fn may_overwrite(model: &Model, t: TaskId, readers: &PrimaryMap<ValueId, u32>) -> bool {
    model
        .inputs
        .of(t)
        .iter()
        .all(|i| !i.overwritten || readers[i.value] == 1)
}

/// Bytes in use after the task has run, less those before it.
fn growth(model: &Model, t: TaskId, readers: &PrimaryMap<ValueId, u32>) -> f64 {
    let freed = |i: &&crate::model::Input| !i.overwritten && readers[i.value] == 1;
    let freed: f64 = model
        .inputs
        .of(t)
        .iter()
        .filter(freed)
        .map(|i| model.bytes[i.value])
        .sum();
    model.grows[t] - model.workspace[t] - freed
}
