//! The gap program: a lower bound on what a budget costs in a fixed order, and which values can be
//! worth recomputing.
//!
//! Between two uses of a value by first runs, `p` and `u`, the value is idle. At the first run of a
//! task `k` between them it is in memory, or else its producer runs again after that and before the
//! first run of `u`, at its cost. Gaps of one value don't overlap, so no run is counted twice; a task
//! with several outputs shares its cost among them. With `x = 1` for the gaps in which the value is
//! absent somewhere, every step's usage without recomputation, less the bytes of idle values with
//! `x = 1`, must fit the budget. This holds for every plan that keeps the order of first runs.

use std::sync::Arc;
use std::time::Duration;

use scrimp_solvers::highs::{Column, Kind, Model, Options, Solution, Start, Status};
use scrimp_solvers::{Highs, SolverError};

use super::PublishedOptions;
use super::graph::Graph;

/// A time between two uses during which a value is idle: the steps after `from` and before `until`.
struct Gap {
    producer: usize,
    from: usize,
    until: usize,
    bytes: u64,
    seconds: f64,
}

/// Rows that are added to the program at most; more of them barely move the bound.
const MAX_ROWS: usize = 60;

/// What the gap program proves.
pub(super) struct Gaps {
    /// No plan in this order takes fewer seconds.
    pub(super) bound: f64,
    /// The same by the linear relaxation.
    relaxed: f64,
    /// Producers of the values that the program's solution evicts.
    pub(super) evicted: Vec<bool>,
    /// For each task, by how many seconds `relaxed` grows at least if it runs again.
    rerun: Vec<f64>,
}

impl Gaps {
    /// Tasks whose recomputation can appear in a plan cheaper than this.
    pub(super) fn worth_rerunning(&self, cost: f64) -> Vec<bool> {
        self.rerun
            .iter()
            .map(|extra| self.relaxed + extra < cost * (1.0 - 1e-9))
            .collect()
    }
}

/// Solves the gap program; nothing if it proves that there is no plan.
pub(super) fn solve(
    graph: &Graph<'_>,
    highs: Highs,
    options: &PublishedOptions,
    time_limit: Duration,
) -> Result<Option<Gaps>, SolverError> {
    let gaps = gaps(graph);
    let base = graph.base_cost();
    let unit = if base > 0.0 { base / 1000.0 } else { 1.0 };
    let mut model = Model::new();
    let columns: Vec<Column> = gaps
        .iter()
        .map(|gap| model.column(gap.seconds / unit, 0.0, 1.0, Kind::Integer))
        .collect();
    let over = overflows(graph);
    let mut solver = Options {
        time_limit,
        threads: options.threads,
        seed: options.seed as u32,
        relax: true,
        ..Options::default()
    };
    let run = |model: &Model, solver: &Options| {
        let model = Arc::new(model.clone());
        highs.solve(&model, solver, Start::default(), &mut |_| {
            !options.stopped()
        })
    };
    let mut used = vec![false; over.len()];
    let mut values = vec![0.0; gaps.len()];
    let mut last: Option<Solution> = None;
    for _ in 0..MAX_ROWS {
        let Some(step) = most_violated(&gaps, &over, &values, &used) else {
            break;
        };
        used[step] = true;
        let idle = gaps
            .iter()
            .zip(&columns)
            .filter(|(gap, _)| gap.from < step && step < gap.until);
        let scale = over[step] as f64;
        let terms: Vec<(Column, f64)> = idle
            .map(|(gap, &column)| (column, (gap.bytes as f64 / scale).min(1.0)))
            .collect();
        model.row(1.0, f64::INFINITY, &terms);
        let solution = run(&model, &solver)?;
        match solution.status {
            Status::Infeasible => return Ok(None),
            Status::Optimal => values.clone_from(&solution.values),
            _ => break,
        }
        last = Some(solution);
    }
    let mut rerun: Vec<f64> = graph.tasks.iter().map(|task| task.seconds).collect();
    let Some(last) = last else {
        let evicted = vec![false; graph.tasks.len()];
        return Ok(Some(Gaps {
            bound: base,
            relaxed: base,
            evicted,
            rerun,
        }));
    };
    let relaxed = base + last.objective * unit * (1.0 - 1e-9);
    // A run that no gap stands for costs its own seconds, one in a gap that gap's reduced cost.
    for ((gap, reduced), value) in gaps.iter().zip(&last.reduced_costs).zip(&last.values) {
        let extra = if *value > 1e-9 {
            0.0
        } else {
            reduced.max(0.0) * unit
        };
        rerun[gap.producer] = rerun[gap.producer].min(extra);
    }
    solver.relax = false;
    let solution = run(&model, &solver)?;
    let mut evicted = vec![false; graph.tasks.len()];
    let values = if solution.values.is_empty() {
        &last.values
    } else {
        &solution.values
    };
    for (gap, value) in gaps.iter().zip(values) {
        evicted[gap.producer] |= *value > 1e-6;
    }
    let integral = base + solution.bound.clamp(0.0, 1e300) * unit * (1.0 - 1e-9);
    Ok(Some(Gaps {
        bound: integral.max(relaxed),
        relaxed,
        evicted,
        rerun,
    }))
}

/// All gaps of values that can be made again.
fn gaps(graph: &Graph<'_>) -> Vec<Gap> {
    let n = graph.tasks.len();
    let mut gaps = Vec::new();
    for (value, what) in graph.values.iter().enumerate() {
        let Some(producer) = what.producer.filter(|_| !graph.irreplaceable(value)) else {
            continue;
        };
        if what.bytes == 0 {
            continue;
        }
        let seconds = graph.tasks[producer].seconds / graph.tasks[producer].outputs.len() as f64;
        let uses = what.consumers.iter().copied().chain(what.kept.then_some(n));
        let mut from = producer;
        for until in uses {
            if until > from + 1 {
                gaps.push(Gap {
                    producer,
                    from,
                    until,
                    bytes: what.bytes,
                    seconds,
                });
            }
            from = until;
        }
    }
    gaps
}

/// For each step of running everything once in order, the bytes in use over the budget.
fn overflows(graph: &Graph<'_>) -> Vec<u64> {
    let n = graph.tasks.len();
    let mut change = vec![0i128; n + 1];
    for (value, what) in graph.values.iter().enumerate() {
        // Held during the steps after its own and up to its last use.
        let first = what.producer.map_or(0, |task| task + 1);
        let last = graph.last_use(value).min(n - 1);
        let used = what.kept || !what.consumers.is_empty();
        if used && first <= last {
            change[first] += i128::from(what.bytes);
            change[last + 1] -= i128::from(what.bytes);
        }
    }
    let mut held = i128::from(graph.fixed) - i128::from(graph.capacity);
    let steps = graph.tasks.iter().zip(&change).map(|(task, change)| {
        held += change;
        let over = held + i128::from(task.allocates) + i128::from(task.workspace);
        u64::try_from(over.max(0)).unwrap_or(u64::MAX)
    });
    steps.collect()
}

/// The step that is furthest over the budget with these values evicted.
fn most_violated(gaps: &[Gap], over: &[u64], values: &[f64], used: &[bool]) -> Option<usize> {
    let mut freed = vec![0.0; over.len() + 1];
    for (gap, value) in gaps.iter().zip(values).filter(|(_, value)| **value > 0.0) {
        freed[gap.from + 1] += value * gap.bytes as f64;
        freed[gap.until.min(over.len())] -= value * gap.bytes as f64;
    }
    let mut sum = 0.0;
    let mut worst = None;
    for (step, &over) in over.iter().enumerate() {
        sum += freed[step];
        let missing = over as f64 - sum;
        let counts = missing > 1e-6 * over as f64 && over > 0 && !used[step];
        if counts && worst.is_none_or(|(most, _)| missing > most) {
            worst = Some((missing, step));
        }
    }
    worst.map(|(_, step)| step)
}
