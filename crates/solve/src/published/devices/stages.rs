//! What XEngine's two programs share.

use std::time::Instant;

use cranelift_entity::EntityRef;
use scrimp_plan::{CheckedPlan, Keep, Problem, TaskId, ValueId, simulate};

use super::system::System;
use crate::error::SolveError;
use crate::options::{Options, Solved};

/// Columns of the largest program, and roughly the bytes that a column takes with its rows.
const MOST_COLUMNS: u64 = 2_000_000;
const BYTES_PER_COLUMN: u64 = 1000;

/// The last stage in which anything of a task or a value can serve.
pub(super) struct Reach {
    tasks: Vec<usize>,
    values: Vec<usize>,
}

impl Reach {
    pub fn new(problem: &Problem) -> Reach {
        let mut reach = Reach {
            tasks: vec![0; problem.tasks().len()],
            values: vec![0; problem.values().len()],
        };
        // Given values are read as others are, so they come last.
        for task in (0..problem.tasks().len()).rev().map(TaskId::new) {
            for &value in &problem.task(task).outputs {
                reach.values[value.index()] = reach.last_read(problem, value);
            }
            let outputs = problem.task(task).outputs.iter();
            let last = outputs.map(|&v| reach.of_value(v)).max().unwrap_or(0);
            reach.tasks[task.index()] = match problem.task(task).rerunnable {
                true => last.max(task.index()),
                false => task.index(),
            };
        }
        for value in problem.values().keys() {
            if problem.producer(value).is_none() {
                reach.values[value.index()] = reach.last_read(problem, value);
            }
        }
        reach
    }

    fn last_read(&self, problem: &Problem, value: ValueId) -> usize {
        match problem.value(value).keep {
            Keep::No => {
                let readers = problem.consumers(value).iter();
                let stages = readers.map(|task| self.tasks[task.index()]);
                stages.max().unwrap_or(0)
            }
            Keep::Anywhere | Keep::On(_) => problem.tasks().len(),
        }
    }

    pub fn of_value(&self, value: ValueId) -> usize {
        self.values[value.index()]
    }

    /// Whether a task can run in a stage, to some use unless it is its own.
    pub fn may_run(&self, problem: &Problem, task: TaskId, stage: TaskId) -> bool {
        task == stage
            || (problem.task(task).rerunnable && self.tasks[task.index()] >= stage.index())
    }
}

/// Refuses a program that would take too much memory.
pub(super) fn small_enough(system: &System<'_>, columns: u64) -> Result<(), SolveError> {
    match columns > MOST_COLUMNS {
        true => Err(SolveError::TooLarge {
            method: system.method.name(),
            bytes: columns.saturating_mul(BYTES_PER_COLUMN),
            most: MOST_COLUMNS * BYTES_PER_COLUMN,
        }),
        false => Ok(()),
    }
}

/// Why a program has no plan: what the best single device lacks.
pub(super) fn refused(system: &System<'_>, options: &Options, began: Instant) -> SolveError {
    match super::single_device(system, options, began) {
        Err(refusal) => refusal,
        Ok(_) => system.unsupported("its program wasn't solved within the time limit"),
    }
}

/// The most watts that all devices and links draw at once (19).
pub(super) fn most_power(plan: &CheckedPlan) -> f64 {
    let timeline = simulate(plan);
    let spans = timeline.spans().iter();
    let drawing = spans.filter(|span| span.joules > 0.0 && span.end > span.start);
    let mut changes: Vec<(f64, f64)> = drawing
        .flat_map(|span| {
            let watts = span.joules / (span.end - span.start);
            [(span.start, watts), (span.end, -watts)]
        })
        .collect();
    // Of changes at the same time, what ends comes first.
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut watts = 0.0f64;
    let levels = changes.into_iter().map(|(_, change)| {
        watts += change;
        watts
    });
    levels.fold(0.0, f64::max)
}

/// The outcome of a program with what it proved of the serial cost in its model, and a note.
pub(super) fn outcome(
    system: &System<'_>,
    options: &Options,
    began: Instant,
    plan: CheckedPlan,
    (bound, optimal, note): (f64, bool, String),
) -> Solved {
    let mut solved = system.solved(plan, options, began);
    solved.note = Some(note);
    if options.objective == crate::method::Objective::Serial {
        solved.lower_bound = solved.lower_bound.max(bound).min(solved.cost);
        solved.optimal |= optimal;
    }
    solved
}
