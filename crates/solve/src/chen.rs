//! Chen et al. 2016: keep checkpoints of the forward pass, run each segment again when the backward
//! pass needs it. On a graph that isn't a chain, the tasks in index order stand for the chain.

use crate::model::{Model, Task};
use crate::search::state::State;

/// Segment sizes tried by [`greedy`].
const SIZES: i32 = 64;

/// The sequence that keeps the last of every ⌈√n⌉ forward tasks.
pub(crate) fn sqrt_n(model: &Model, forward: &[bool]) -> Vec<Task> {
    let candidates = candidates(model, forward);
    let step = (candidates.len() as f64).sqrt().ceil().max(1.0) as usize;
    let checkpoints: Vec<Task> = candidates
        .iter()
        .copied()
        .skip(step - 1)
        .step_by(step)
        .collect();
    sequence(model, forward, &checkpoints)
}

/// The cheapest sequence that fits among those that close a segment when it has written `b` bytes,
/// over a range of `b`; the leanest one if none fits.
pub(crate) fn greedy(model: &Model, forward: &[bool], budget: f64) -> Vec<Task> {
    let candidates = candidates(model, forward);
    let bytes = |t: Task| {
        model
            .outputs
            .of(t)
            .iter()
            .map(|&v| model.bytes[v as usize])
            .sum::<f64>()
    };
    let total: f64 = candidates.iter().map(|&t| bytes(t)).sum();
    let mut best: Option<(bool, f64, Vec<Task>)> = None;
    for k in 0..SIZES {
        let limit = total * 0.9f64.powi(k);
        let mut written = 0.0;
        let mut checkpoints = Vec::new();
        for &t in &candidates {
            written += bytes(t);
            if written > limit {
                checkpoints.push(t);
                written = 0.0;
            }
        }
        let order = sequence(model, forward, &checkpoints);
        let state = State::new(model, &order);
        let fits = state.peak() <= budget;
        let key = if fits { state.cost() } else { state.peak() };
        if best.as_ref().is_none_or(|b| (fits, -key) > (b.0, -b.1)) {
            best = Some((fits, key, order));
        }
    }
    best.map_or_else(|| (0..model.tasks).collect(), |b| b.2)
}

/// Forward tasks that can be run again and whose outputs nobody overwrites.
fn candidates(model: &Model, forward: &[bool]) -> Vec<Task> {
    let lasting = |t: Task| {
        model.outputs.of(t).iter().any(|&v| {
            let by = model.overwriter[v as usize];
            model.bytes[v as usize] > 0.0 && (by >= model.tasks || !forward[by as usize])
        })
    };
    (0..model.tasks)
        .filter(|&t| forward[t as usize] && model.rerunnable[t as usize] && lasting(t))
        .collect()
}

/// Forward in order; then each other task, before it the forward tasks that it needs and that are
/// neither checkpoints nor run again yet.
fn sequence(model: &Model, forward: &[bool], checkpoints: &[Task]) -> Vec<Task> {
    let given: Vec<Task> = (0..model.tasks).collect();
    let mut state = State::new(model, &given);
    let mut done = vec![false; model.tasks as usize + 2];
    for &t in checkpoints {
        done[t as usize] = true;
    }
    for t in 0..model.tasks {
        if !forward[t as usize] {
            let anchor = state.runs(t)[0];
            for i in model.inputs.of(t) {
                let mark = state.mark();
                if !again(
                    model,
                    forward,
                    &mut state,
                    &mut done,
                    model.producer[i.value as usize],
                    anchor,
                ) {
                    state.undo_to(mark);
                }
            }
        }
    }
    state.order()
}

/// Runs `t` again before `anchor` unless it is kept; false if that can't be done.
fn again(
    model: &Model,
    forward: &[bool],
    state: &mut State<'_>,
    done: &mut [bool],
    t: Task,
    anchor: u32,
) -> bool {
    if t >= model.tasks || !forward[t as usize] || !model.rerunnable[t as usize] || done[t as usize]
    {
        return true;
    }
    done[t as usize] = true;
    for i in model.inputs.of(t) {
        let make = model.producer[i.value as usize];
        if !again(model, forward, state, done, make, anchor) {
            return false;
        }
        if !state.available(i.value, state.pos(anchor)) {
            // A checkpoint whose value was overwritten since: only this run can need it.
            if make >= model.tasks || !model.rerunnable[make as usize] {
                return false;
            }
            done[make as usize] = false;
            if !again(model, forward, state, done, make, anchor) {
                return false;
            }
        }
    }
    let p = state.pos(anchor);
    if !state.can_insert(t, p) {
        return false;
    }
    state.insert(t, p);
    true
}
