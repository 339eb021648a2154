//! Bytes that some moment before a task takes, because the task's inputs must be gathered.
//!
//! If some values are in memory at one moment, one of them was written last. While its producer ran, all others were
//! there already, beside the inputs and outputs of that run; and before it, the others and these inputs were. So the
//! least bytes in which values can be gathered are those of the easiest way back to given values, where a way is as
//! hard as its hardest run. The search looks at the easiest states first, so whatever it has not looked at yet is at
//! least as hard: it may end at any time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use scrimp_plan::{TaskId, ValueId};

use crate::model::Model;

/// How many tasks are looked at, those with the largest working sets, and how many states for each.
const TASKS: usize = 8;
const STATES: usize = 500;
/// Values of less than one part in so many of the largest working set are taken to be there.
const SMALL: f64 = 512.0;
/// Tasks with more large inputs aren't looked at.
const MOST_INPUTS: usize = 32;

/// Bytes that every plan without other memories has in use at some moment, without resident ones.
pub(super) fn least(model: &Model) -> f64 {
    if model.outside.is_some() {
        return 0.0;
    }
    let inputs = |t: TaskId| model.inputs.of(t).iter().map(|input| input.value);
    let needs = |t: TaskId| inputs(t).map(|v| model.size(v)).sum::<f64>() + model.grows[t];
    let mut tasks: Vec<TaskId> = model.task_ids().collect();
    tasks.sort_by(|&a, &b| needs(b).total_cmp(&needs(a)).then(a.cmp(&b)));
    let least = tasks.first().map_or(0.0, |&t| needs(t)) / SMALL;
    let large = |v: &ValueId| model.size(*v) > least;
    let mut most: f64 = 0.0;
    for &task in tasks.iter().take(TASKS) {
        let mut state: Vec<ValueId> = inputs(task).filter(large).collect();
        state.sort_unstable();
        if state.len() <= MOST_INPUTS {
            most = most.max(gathered(model, state, needs(task), &large));
        }
    }
    most + model.fixed_bytes
}

/// The least bytes of the hardest run of a way to a run that takes so many bytes, and before which these values are there.
fn gathered(
    model: &Model,
    state: Vec<ValueId>,
    bytes: f64,
    large: &impl Fn(&ValueId) -> bool,
) -> f64 {
    // Bytes are integers, so they order as such.
    let mut open = BinaryHeap::from([(Reverse(bytes as u64), state)]);
    let mut seen: HashSet<Vec<ValueId>> = HashSet::new();
    let mut hardest = bytes;
    for _ in 0..STATES {
        let Some((Reverse(bytes), state)) = open.pop() else {
            break;
        };
        hardest = bytes as f64;
        let written = |v: &&ValueId| model.producer[**v] != model.start();
        if !state.iter().any(|v| written(&v)) {
            break;
        }
        if !seen.insert(state.clone()) {
            continue;
        }
        for &last in state.iter().filter(written) {
            let run = model.producer[last];
            let outputs = model.outputs.of(run);
            let mut before: Vec<ValueId> = state.clone();
            before.retain(|v| !outputs.contains(v));
            // What the run overwrites isn't there after it.
            if before.iter().any(|&v| model.overwrites(run, v)) {
                continue;
            }
            let inputs = model.inputs.of(run).iter().map(|input| input.value);
            let held: f64 = before.iter().map(|&v| model.size(v)).sum();
            let more = inputs.clone().filter(|v| !before.contains(v));
            let more: f64 = more.map(|v| model.size(v)).sum();
            let during = (held + more + model.grows[run]).max(0.0) as u64;
            before.extend(inputs.filter(large));
            before.sort_unstable();
            before.dedup();
            if !seen.contains(&before) {
                open.push((Reverse(during.max(bytes)), before));
            }
        }
    }
    hardest
}
