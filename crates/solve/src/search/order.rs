//! Topological orders to start from where the order is free: of the tasks that can run, the one that
//! adds the fewest bytes.

use crate::model::{Model, Task};
use crate::search::rng::Random;

/// An order of all tasks, each once. With `noise`, growth is blurred by up to that many times the mean
/// size of a task's outputs; `inertia` prefers tasks near the one that ran last in the given order.
pub(crate) fn lean(model: &Model, noise: f64, inertia: f64, rng: &mut Random) -> Vec<Task> {
    let n = model.tasks;
    let mut readers: Vec<u32> = (0..model.bytes.len() as u32)
        .map(|v| model.consumers.of(v).len() as u32)
        .collect();
    let mut missing: Vec<u32> = (0..n).map(|t| missing_inputs(model, t)).collect();
    let scale = model.bytes.iter().sum::<f64>() / model.bytes.len().max(1) as f64;
    let mut ready: Vec<Task> = (0..n).filter(|&t| missing[t as usize] == 0).collect();
    let mut order = Vec::with_capacity(n as usize);
    let mut last = 0.0;
    while let Some(at) = ready
        .iter()
        .enumerate()
        .filter(|&(_, &t)| may_overwrite(model, t, &readers))
        .map(|(k, &t)| {
            let blur = noise * scale * rng.unit();
            let away = inertia * scale * (f64::from(t) - last).abs() / f64::from(n);
            (growth(model, t, &readers) + blur + away, k)
        })
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, k)| k)
    {
        let t = ready.swap_remove(at);
        last = f64::from(t);
        order.push(t);
        for i in model.inputs.of(t) {
            readers[i.value as usize] -= 1;
        }
        for &v in model.outputs.of(t) {
            for &r in model.consumers.of(v).iter().filter(|&&r| r < n) {
                missing[r as usize] -= 1;
                if missing[r as usize] == 0 {
                    ready.push(r);
                }
            }
        }
    }
    order
}

/// Inputs that tasks write.
fn missing_inputs(model: &Model, t: Task) -> u32 {
    model
        .inputs
        .of(t)
        .iter()
        .filter(|i| model.producer[i.value as usize] < model.tasks)
        .count() as u32
}

/// Whether no other task still reads what this one overwrites.
fn may_overwrite(model: &Model, t: Task, readers: &[u32]) -> bool {
    model
        .inputs
        .of(t)
        .iter()
        .all(|i| !i.overwritten || readers[i.value as usize] == 1)
}

/// Bytes in use after the task has run, less those before.
fn growth(model: &Model, t: Task, readers: &[u32]) -> f64 {
    let freed = |i: &&crate::model::Input| !i.overwritten && readers[i.value as usize] == 1;
    let freed: f64 = model
        .inputs
        .of(t)
        .iter()
        .filter(freed)
        .map(|i| model.bytes[i.value as usize])
        .sum();
    model.grows[t as usize] - model.workspace[t as usize] - freed
}
