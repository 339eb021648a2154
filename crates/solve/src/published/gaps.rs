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
    let base = graph.base_cost();
    let gaps = gaps(graph);
    let mut program = Program {
        unit: if base > 0.0 { base / 1000.0 } else { 1.0 },
        over: overflows(graph),
        model: Model::new(),
        columns: Vec::new(),
        gaps: &gaps,
        highs,
        options,
        time_limit,
    };
    program.add_columns();
    let mut rerun: Vec<f64> = graph.tasks.iter().map(|task| task.seconds).collect();
    let mut evicted = vec![false; graph.tasks.len()];
    let last = match program.relax()? {
        Relaxed::NoOverflow => {
            return Ok(Some(Gaps {
                bound: base,
                relaxed: base,
                evicted,
                rerun,
            }));
        }
        Relaxed::Infeasible => return Ok(None),
        Relaxed::Solved(last) => last,
    };
    let seconds = |objective: f64| base + objective * program.unit * (1.0 - 1e-9);
    let relaxed = seconds(last.objective);
    // A run that no gap stands for costs its own seconds, one in a gap that gap's reduced cost.
    for ((gap, reduced), value) in gaps.iter().zip(&last.reduced_costs).zip(&last.values) {
        let extra = if *value > 1e-9 {
            0.0
        } else {
            reduced.max(0.0) * program.unit
        };
        rerun[gap.producer] = rerun[gap.producer].min(extra);
    }
    let integral = program.run(false)?;
    let values = if integral.values.is_empty() {
        &last.values
    } else {
        &integral.values
    };
    for (gap, value) in gaps.iter().zip(values) {
        evicted[gap.producer] |= *value > 1e-6;
    }
    let bound = seconds(integral.bound.clamp(0.0, 1e300)).max(relaxed);
    Ok(Some(Gaps {
        bound,
        relaxed,
        evicted,
        rerun,
    }))
}

/// The program while rows are added to it.
struct Program<'a> {
    gaps: &'a [Gap],
    /// For each step, the bytes over the budget.
    over: Vec<u64>,
    model: Model,
    columns: Vec<Column>,
    /// Seconds per unit of the objective.
    unit: f64,
    highs: Highs,
    options: &'a PublishedOptions,
    time_limit: Duration,
}

/// How the relaxation ended.
enum Relaxed {
    NoOverflow,
    Infeasible,
    Solved(Solution),
}

impl Program<'_> {
    fn add_columns(&mut self) {
        for gap in self.gaps {
            let column = self
                .model
                .column(gap.seconds / self.unit, 0.0, 1.0, Kind::Integer);
            self.columns.push(column);
        }
    }

    fn run(&self, relax: bool) -> Result<Solution, SolverError> {
        let solver = Options {
            relax,
            ..self.options.highs(self.time_limit)
        };
        let model = Arc::new(self.model.clone());
        self.highs
            .solve(&model, &solver, Start::default(), &mut |_| {
                !self.options.stopped()
            })
    }

    /// Adds the most violated row and solves, again and again.
    fn relax(&mut self) -> Result<Relaxed, SolverError> {
        let mut used = vec![false; self.over.len()];
        let mut values = vec![0.0; self.gaps.len()];
        let mut last = Relaxed::NoOverflow;
        for _ in 0..MAX_ROWS {
            let Some(step) = most_violated(self.gaps, &self.over, &values, &used) else {
                break;
            };
            used[step] = true;
            self.cover(step);
            let solution = self.run(true)?;
            match solution.status {
                Status::Infeasible => return Ok(Relaxed::Infeasible),
                Status::Optimal => values.clone_from(&solution.values),
                _ => break,
            }
            last = Relaxed::Solved(solution);
        }
        Ok(last)
    }

    /// What is over the budget at a step must be absent; a value that alone is enough counts as
    /// exactly enough.
    fn cover(&mut self, step: usize) {
        let scale = self.over[step] as f64;
        let all = self.gaps.iter().zip(&self.columns);
        let idle = all.filter(|(gap, _)| gap.from < step && step < gap.until);
        let terms: Vec<(Column, f64)> = idle
            .map(|(gap, &column)| (column, (gap.bytes as f64 / scale).min(1.0)))
            .collect();
        self.model.row(1.0, f64::INFINITY, &terms);
    }
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
