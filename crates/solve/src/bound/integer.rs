//! The stay program in whole numbers, for a solver of mixed-integer programs. Its optimum is a lower bound like
//! the Lagrangian's, and includes what the Lagrangian leaves out: values are in memory whole or not at all.
//!
//! Of each value it has a column per row, whether the value is in memory there, and of each task a column per
//! block, whether the task runs again there. With these the rules of [`super::stays`] need no stretches: a
//! value that is made again in block `e` needs its producer's inputs at row `e − 1` or made again in block `e`.

use std::sync::Arc;

use cranelift_entity::PrimaryMap;
use scrimp_plan::TaskId;
use scrimp_solvers::highs::{Column, Model as Milp};

use super::ascent::Worthwhile;
use super::stays::Stays;
use crate::model::Model;

/// The program, and what its columns mean.
pub(crate) struct Integer {
    pub milp: Arc<Milp>,
    /// Seconds per unit of the objective.
    pub unit: f64,
    runs: Vec<(Column, TaskId, usize)>,
}

impl Integer {
    /// The program with those reruns only that are worth it.
    pub(super) fn new(
        model: &Model,
        program: &Stays<'_>,
        worthwhile: &Worthwhile,
        budget: f64,
    ) -> Self {
        let base = model.base_cost();
        let unit = if base > 0.0 { base / 1000.0 } else { 1.0 };
        let mut milp = Milp::new();
        milp.add_offset(base / unit);
        let t = program.rows;
        let mut runs = Vec::new();
        // By task and block, its column.
        let mut again: PrimaryMap<TaskId, Vec<Option<Column>>> = PrimaryMap::new();
        for task in model.cost.keys() {
            let made = model.outputs.of(task).first().map(|&v| &program.stays[v]);
            let begin = made
                .filter(|s| s.seconds.is_finite())
                .map_or(t, |s| s.begin);
            let column = |e: usize| {
                (e > begin && worthwhile.blocks[task][e]).then(|| {
                    let column = milp.binary(model.cost[task] / unit);
                    runs.push((column, task, e));
                    column
                })
            };
            again.push((0..=t).map(column).collect());
        }
        let byte = budget.max(1.0) / 1000.0;
        let mut rows: Vec<Vec<(Column, f64)>> = vec![Vec::new(); t];
        let mut held: PrimaryMap<_, Vec<Option<Column>>> = PrimaryMap::new();
        for (v, stay) in program.stays.iter() {
            let again = &again[model.producer[v]];
            let column = |k: usize| {
                (stay.bytes > 0.0 && k >= stay.begin).then(|| {
                    let column = milp.binary(0.0);
                    rows[k].push((column, stay.bytes / byte));
                    column
                })
            };
            let at: Vec<Option<Column>> = (0..t).map(column).collect();
            let sum = |held: Option<Column>, from: usize, until: usize| -> Vec<(Column, f64)> {
                let made = again[from.min(until)..until].iter();
                let terms = std::iter::once(&held).chain(made);
                terms.flatten().map(|&column| (column, 1.0)).collect()
            };
            for k in stay.begin + 1..t {
                // In memory at a row, a value was there at the row before or made again.
                let mut terms = sum(at[k - 1], k, k + 1);
                terms.extend(at[k].map(|column| (column, -1.0)));
                milp.row(0.0, f64::INFINITY, &terms);
            }
            for next in 1..=t + 1 {
                let l = stay.forced[next] as usize;
                if stay.bytes > 0.0 && l > stay.begin && l > stay.forced[next - 1] as usize {
                    milp.row(1.0, f64::INFINITY, &sum(at[l - 1], l, next));
                }
            }
            if let Some(gone) = stay.gone
                && let Some(Some(late)) = at.get(gone.cap)
            {
                let mut terms = sum(None, gone.from, gone.cap + 1);
                terms.push((*late, -1.0));
                milp.row(0.0, f64::INFINITY, &terms);
            }
            held.push(at);
        }
        for rule in program.rules.values() {
            let (from, made) = (&program.stays[rule.from], &program.stays[rule.made]);
            let gone = from.gone.and_then(|gone| gone.row);
            for e in made.begin + 1..=t {
                let Some(run) = again[model.producer[rule.made]][e] else {
                    continue;
                };
                let at = held[rule.from][e - 1].filter(|_| gone != Some(e - 1));
                let there = [at, again[model.producer[rule.from]][e]];
                let there = there.iter().flatten().map(|&column| (column, 1.0));
                let terms: Vec<_> = there.chain([(run, -1.0)]).collect();
                milp.row(0.0, f64::INFINITY, &terms);
            }
        }
        for (terms, lack) in rows.iter().zip(&program.lack) {
            milp.row(f64::NEG_INFINITY, -lack / byte, terms);
        }
        Integer {
            milp: Arc::new(milp),
            unit,
            runs,
        }
    }

    /// The tasks that a solution runs again, and in which blocks.
    pub fn reruns(&self, values: &[f64]) -> Vec<(TaskId, usize)> {
        let again = |column: Column| values.get(column.index()).is_some_and(|&value| value > 0.5);
        let runs = self.runs.iter().filter(|run| again(run.0));
        runs.map(|&(_, task, block)| (task, block)).collect()
    }
}
