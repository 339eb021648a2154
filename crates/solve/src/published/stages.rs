//! Frontier-advancing stages (checkmate 4.6): stage `t` ends with the first run of task `t`, and before that
//! runs other tasks at most once each, in index order.
//!
//! `R[t][k]` says that stage `t` runs task `k`, and `S[t][v]` that value `v` is in memory when stage `t`
//! begins; one more row of `S` describes the end. The paper counts a spurious checkpoint for its whole stage.
//! It also counts twice any value that is computed again while it is present. A plan made from the runs alone
//! frees every value right after the last use that its run serves. So the plan never needs more than the
//! paper's `U`, and needs exactly `U` if `S` holds only what is used.

use std::ops::{ControlFlow, RangeInclusive};

use super::graph::Graph;

/// Runs and checkpoints of all stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stages {
    /// `[stage][task]`.
    pub(crate) runs: Vec<Vec<bool>>,
    /// `[stage][value]`, with one more row for the end.
    pub(crate) held: Vec<Vec<bool>>,
}

/// Why checkpoints can't be completed to a plan: this stage needs this value, which isn't held and can't be
/// made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) value: usize,
    pub(crate) stage: usize,
}

/// One stage of a schedule.
pub(crate) struct Stage<'s> {
    pub(crate) number: usize,
    /// By task, whether it runs.
    pub(crate) runs: &'s [bool],
    /// By value, whether it is held when the next stage begins.
    pub(crate) next: &'s [bool],
}

/// Visits the fewest runs for the given checkpoints (algorithm 2; appendix B: "optimal R for its S"), stage
/// by stage. `rows` fills in what the policy holds when a stage begins, and is called for the stages in
/// order, so only a few rows are in memory. `visit` may end this early; returns whether all stages were
/// visited.
///
/// A value that can't be made again is held as long as it may be needed, whatever the policy says. A value
/// that a stage overwrites isn't held afterwards.
pub(crate) fn complete(
    graph: &Graph<'_>,
    rows: &mut dyn FnMut(usize, &mut [bool]),
    visit: &mut dyn FnMut(Stage<'_>) -> ControlFlow<()>,
) -> Result<bool, Lost> {
    let n = graph.tasks.len();
    let last_rerun = last_reruns(graph);
    let task_reach = graph.reach();
    let reach: Vec<usize> = (0..graph.values.len())
        .map(|value| graph.value_reach(value, &task_reach))
        .collect();
    let irreplaceable = irreplaceable(graph, &last_rerun, &reach);
    let mut fill = |stage: usize, row: &mut [bool]| {
        rows(stage, row);
        for (held, stages) in row.iter_mut().zip(&irreplaceable) {
            *held |= stages.contains(&stage);
        }
    };
    let can_run = |task: usize, stage: usize| task == stage || last_rerun[task] >= Some(stage);
    let (mut now, mut next) = (
        vec![false; graph.values.len()],
        vec![false; graph.values.len()],
    );
    let mut runs = vec![false; n];
    fill(0, &mut now);
    for stage in 0..n {
        fill(stage + 1, &mut next);
        runs.fill(false);
        runs[stage] = true;
        for task in (0..=stage).rev() {
            let outputs = &graph.tasks[task].outputs;
            // (1c): a value that is held next must be held already or made now, if it can still serve
            // anything.
            let missing = |&value: &usize| next[value] && !now[value] && stage < reach[value];
            if outputs.iter().any(missing) {
                runs[task] |= can_run(task, stage);
            }
            if !runs[task] {
                continue;
            }
            for &input in &graph.tasks[task].overwrites {
                next[input] = false;
            }
            // (1b): each input of a run must be held or made now.
            for &value in &graph.tasks[task].inputs {
                let what = &graph.values[value];
                if now[value] || what.constant() {
                    continue;
                }
                match what.producer {
                    Some(producer) if can_run(producer, stage) => runs[producer] = true,
                    _ => return Err(Lost { value, stage }),
                }
            }
        }
        for (value, what) in graph.values.iter().enumerate() {
            let made = what.producer.is_some_and(|task| runs[task]);
            next[value] &= now[value] || made;
        }
        let told = Stage {
            number: stage,
            runs: &runs,
            next: &next,
        };
        if visit(told).is_break() {
            return Ok(false);
        }
        std::mem::swap(&mut now, &mut next);
    }
    Ok(true)
}

impl Stages {
    /// The fewest runs for the given rows of `S`; see [`complete`].
    pub(crate) fn complete(graph: &Graph<'_>, held: &[Vec<bool>]) -> Result<Stages, Lost> {
        let mut runs = Vec::with_capacity(graph.tasks.len());
        let mut rows = |stage: usize, row: &mut [bool]| row.copy_from_slice(&held[stage]);
        complete(graph, &mut rows, &mut |stage| {
            runs.push(stage.runs.to_vec());
            ControlFlow::Continue(())
        })?;
        Ok(Stages {
            held: self::held(graph, &runs),
            runs,
        })
    }

    /// The runs, stage by stage, as one sequence.
    pub(crate) fn sequence(&self) -> Vec<usize> {
        let rows = self.runs.iter();
        rows.flat_map(|row| (0..row.len()).filter(|&task| row[task]))
            .collect()
    }

    /// The stages of a sequence of runs; `None` if a stage runs a task twice or out of index order.
    pub(crate) fn from_sequence(graph: &Graph<'_>, sequence: &[usize]) -> Option<Stages> {
        let n = graph.tasks.len();
        let mut runs = vec![vec![false; n]; n];
        let (mut stage, mut last) = (0, None);
        for &task in sequence {
            if stage == n || task > stage || last.is_some_and(|last| task <= last) {
                return None;
            }
            runs[stage][task] = true;
            last = Some(task);
            if task == stage {
                stage += 1;
                last = None;
            }
        }
        (stage == n && last.is_none()).then(|| Stages {
            held: held(graph, &runs),
            runs,
        })
    }
}

/// The values that each stage must find in memory for these runs, computed backwards from their last uses.
fn held(graph: &Graph<'_>, runs: &[Vec<bool>]) -> Vec<Vec<bool>> {
    let n = graph.tasks.len();
    let mut needed: Vec<bool> = graph.values.iter().map(|value| value.kept).collect();
    let mut held = vec![Vec::new(); n + 1];
    held[n] = needed.clone();
    for stage in (0..n).rev() {
        for task in (0..=stage).rev().filter(|&task| runs[stage][task]) {
            for &value in &graph.tasks[task].outputs {
                needed[value] = false;
            }
            for &value in &graph.tasks[task].inputs {
                needed[value] = true;
            }
        }
        held[stage] = needed.clone();
    }
    held
}

/// For each task, the last stage in which it may run again; `None` if it runs once. A task can run only while
/// its inputs can be present, and a value that can't be made again is gone after the stage of the task that
/// overwrites it.
fn last_reruns(graph: &Graph<'_>) -> Vec<Option<usize>> {
    let n = graph.tasks.len();
    let mut last: Vec<Option<usize>> = Vec::with_capacity(n);
    for task in &graph.tasks {
        let available = |&value: &usize| {
            let value = &graph.values[value];
            let held = value.overwriter.unwrap_or(n);
            Some(held).max(value.producer.and_then(|task| last[task]))
        };
        let inputs = task.inputs.iter().map(available).min().flatten();
        last.push(inputs.or(Some(n)).filter(|_| task.rerunnable));
    }
    last
}

/// By value, the stages at whose start it must be held because it can't be made again in them. They reach
/// from there, or from where the value is made, to the last stage that may need it.
fn irreplaceable(
    graph: &Graph<'_>,
    last_rerun: &[Option<usize>],
    reach: &[usize],
) -> Vec<RangeInclusive<usize>> {
    let stages = graph.values.iter().enumerate().map(|(value, what)| {
        let first = match what.producer {
            None => 0,
            Some(task) => task.max(last_rerun[task].unwrap_or(task)) + 1,
        };
        // The value is gone for good after the first run of the task that overwrites it.
        first..=what.overwriter.unwrap_or(reach[value])
    });
    stages.collect()
}
