//! Checkmate's mixed-integer program: problem (9) with the simplifications of section 4.8.
//!
//! Stages advance the frontier (8a–8c), so `R` and `S` are lower triangular, the diagonal of `R` is 1, and
//! `FREE[t,k,k]` is left out. The program also leaves out what serves nothing any more: runs and checkpoints
//! in stages after the last one that could read them, and `FREE` after the last run of a stage, because the
//! next stage starts from `S`. Beyond the paper, it has tasks with several outputs (their unread outputs can
//! be freed at once, which takes `FREE[t,v,k]` for `k` the producer of `v`), workspace (counted in `U` while
//! its task runs), given values (no `R`), values that must be in memory at the end (`S` of a stage `n`), and
//! tasks that overwrite an input (no memory for the output, no `S` for the input afterwards).

use scrimp_solvers::highs::{Column, Kind, Model};

use super::graph::Graph;
use super::stages::Stages;
use crate::divisor;
use crate::error::SolveError;
use crate::method::Formulation;

/// What to minimize, and under which limit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// The cost within a budget of bytes.
    Cost { budget: u64 },
    /// The peak in bytes within a limit on the cost (equation 10, divided by the batch size).
    Peak { cost: f64 },
}

/// An entry of `R` or `S`: a fixed number or a column.
#[derive(Clone, Copy, Debug)]
enum Entry {
    Never,
    Always,
    Column(Column),
}

/// A program, and the places of its columns.
pub(crate) struct Program {
    pub(crate) model: Model,
    runs: Vec<Vec<Entry>>,
    held: Vec<Vec<Entry>>,
    usage: Vec<Column>,
    /// Seconds per unit of the objective (if that is a cost), and bytes per unit of memory.
    pub(crate) cost_unit: f64,
    pub(crate) byte_unit: f64,
    fixed: u64,
}

/// Bytes that a program takes here and in the solver: per column, and per entry of `R` and `S`.
const BYTES_PER_COLUMN: u64 = 1000;
const BYTES_PER_ENTRY: u64 = 2 * size_of::<Entry>() as u64;
/// The bytes that a workstation can spare.
const MOST_BYTES: u64 = 4_000_000 * BYTES_PER_COLUMN;

/// A linear row under construction.
#[derive(Default)]
struct Sum {
    constant: f64,
    terms: Vec<(Column, f64)>,
}

impl Sum {
    fn add(&mut self, entry: Entry, coefficient: f64) {
        match entry {
            Entry::Never => {}
            Entry::Always => self.constant += coefficient,
            Entry::Column(column) => self.terms.push((column, coefficient)),
        }
    }

    /// Adds `lower ≤ sum ≤ upper` as a row, or drops it if it has no columns and holds.
    fn row(self, model: &mut Model, lower: f64, upper: f64) {
        let holds = self.constant >= lower - 1e-9 && self.constant <= upper + 1e-9;
        if !self.terms.is_empty() || !holds {
            model.row(lower - self.constant, upper - self.constant, &self.terms);
        }
    }
}

/// Refuses a program that would take too much memory, before the program is built.
pub(crate) fn fits_in_memory(graph: &Graph<'_>) -> Result<(), SolveError> {
    let stages = graph.tasks.len() as u64 + 1;
    let entries = stages.saturating_mul(stages + graph.values.len() as u64);
    let of_entries = entries.saturating_mul(BYTES_PER_ENTRY);
    // Counting columns takes a while, so columns are counted only where it can matter.
    let bytes = match of_entries > MOST_BYTES {
        true => of_entries,
        false => of_entries + columns(graph) * BYTES_PER_COLUMN,
    };
    if bytes > MOST_BYTES {
        return Err(SolveError::TooLarge {
            method: graph.method.name(),
            bytes,
            most: MOST_BYTES,
        });
    }
    Ok(())
}

/// The number of columns that a program would have.
fn columns(graph: &Graph<'_>) -> u64 {
    let n = graph.tasks.len();
    let reach = graph.reach();
    let mut count = 0;
    for (task, &last) in reach.iter().enumerate() {
        let again = (task + 1..=last.min(n - 1)).filter(|&stage| graph.may_rerun(task, stage));
        let stages = again.count() + 1;
        // A run, its use of memory, and one FREE per input.
        count += stages * (2 + graph.tasks[task].inputs.len());
    }
    for (value, what) in graph.values.iter().enumerate() {
        let first = what.producer.map_or(0, |task| task + 1);
        count += (graph.value_reach(value, &reach) + 1).saturating_sub(first);
    }
    count as u64
}

impl Program {
    pub(crate) fn new(graph: &Graph<'_>, formulation: Formulation, goal: Goal) -> Program {
        let base = graph.base_cost();
        let cost_unit = if base > 0.0 { base / 1000.0 } else { 1.0 };
        let mut program = Program {
            model: Model::new(),
            runs: Vec::new(),
            held: Vec::new(),
            usage: Vec::new(),
            cost_unit,
            byte_unit: byte_unit(graph, goal),
            fixed: graph.fixed,
        };
        program.decisions(graph, goal);
        program.correctness(graph);
        program.memory(graph, formulation, goal);
        program
    }

    /// `R` and `S` (1f, 8a–8c) with the objective (1a) or the limit on the cost.
    fn decisions(&mut self, graph: &Graph<'_>, goal: Goal) {
        let n = graph.tasks.len();
        let reach = graph.reach();
        let minimize_cost = matches!(goal, Goal::Cost { .. });
        let mut extra = Sum::default();
        for stage in 0..n {
            let row = (0..n).map(|task| {
                if task == stage {
                    return Entry::Always;
                }
                let what = &graph.tasks[task];
                if !graph.may_rerun(task, stage) || reach[task] < stage {
                    return Entry::Never;
                }
                let cost = what.seconds / self.cost_unit;
                let column = self.model.binary(if minimize_cost { cost } else { 0.0 });
                extra.terms.push((column, cost));
                Entry::Column(column)
            });
            let row = row.collect();
            self.runs.push(row);
        }
        for stage in 0..=n {
            let row = graph.values.iter().enumerate().map(|(value, what)| {
                let first = what.producer.map_or(0, |task| task + 1);
                if what.constant() || (stage == n && what.kept) {
                    Entry::Always
                } else if stage < first || stage == n || stage > graph.value_reach(value, &reach) {
                    Entry::Never
                } else if graph.irreplaceable(value) && stage <= graph.last_use(value) {
                    Entry::Always
                } else {
                    Entry::Column(self.model.binary(0.0))
                }
            });
            let row = row.collect();
            self.held.push(row);
        }
        match goal {
            Goal::Cost { .. } => self.model.add_offset(graph.base_cost() / self.cost_unit),
            Goal::Peak { cost } => {
                let spare = (cost - graph.base_cost()) / self.cost_unit;
                extra.row(&mut self.model, f64::NEG_INFINITY, spare);
            }
        }
    }

    /// Dependencies are in memory (1b), checkpoints come from somewhere (1c), and overwritten values aren't
    /// held.
    fn correctness(&mut self, graph: &Graph<'_>) {
        for stage in 0..graph.tasks.len() {
            for (task, what) in graph.tasks.iter().enumerate().take(stage + 1) {
                let run = self.runs[stage][task];
                if matches!(run, Entry::Never) {
                    continue;
                }
                for &value in &what.inputs {
                    if graph.values[value].constant() {
                        continue;
                    }
                    let mut sum = Sum::default();
                    sum.add(self.held[stage][value], 1.0);
                    sum.add(self.made(graph, stage, value), 1.0);
                    sum.add(run, -1.0);
                    sum.row(&mut self.model, 0.0, f64::INFINITY);
                }
                for &input in &what.overwrites {
                    let mut sum = Sum::default();
                    sum.add(run, 1.0);
                    sum.add(self.held[stage + 1][input], 1.0);
                    sum.row(&mut self.model, f64::NEG_INFINITY, 1.0);
                }
            }
            for value in 0..graph.values.len() {
                let next = self.held[stage + 1][value];
                if matches!(next, Entry::Never) || graph.values[value].constant() {
                    continue;
                }
                let mut sum = Sum::default();
                sum.add(self.held[stage][value], 1.0);
                sum.add(self.made(graph, stage, value), 1.0);
                sum.add(next, -1.0);
                sum.row(&mut self.model, 0.0, f64::INFINITY);
            }
        }
    }

    fn made(&self, graph: &Graph<'_>, stage: usize, value: usize) -> Entry {
        graph.values[value]
            .producer
            .map_or(Entry::Never, |task| self.runs[stage][task])
    }

    /// The recurrence of `U` (2, 3, 4), within the budget or the peak to minimize. Here `U` includes the
    /// workspace of the task at its place.
    fn memory(&mut self, graph: &Graph<'_>, formulation: Formulation, goal: Goal) {
        let scale = |bytes: u64| bytes as f64 / self.byte_unit;
        let (limit, peak) = match goal {
            Goal::Cost { budget } => (scale(budget.saturating_sub(graph.fixed)), None),
            Goal::Peak { .. } => {
                let least = scale(graph.working_set());
                let peak = self
                    .model
                    .column(1.0, least, f64::INFINITY, Kind::Continuous);
                (f64::INFINITY, Some(peak))
            }
        };
        let sizes: Vec<f64> = graph
            .values
            .iter()
            .map(|value| scale(value.bytes))
            .collect();
        let allocates: Vec<f64> = graph
            .tasks
            .iter()
            .map(|task| scale(task.allocates))
            .collect();
        let workspace: Vec<f64> = graph
            .tasks
            .iter()
            .map(|task| scale(task.workspace))
            .collect();
        for stage in 0..graph.tasks.len() {
            // The previous task that may run in this stage, and its column.
            let mut carried: Option<(usize, Column)> = None;
            for task in 0..=stage {
                let run = self.runs[stage][task];
                if matches!(run, Entry::Never) {
                    continue;
                }
                let usage = self.model.column(0.0, 0.0, limit, Kind::Continuous);
                self.usage.push(usage);
                let mut sum = Sum::default();
                sum.terms.push((usage, -1.0));
                sum.add(run, allocates[task] + workspace[task]);
                if let Some((last, before)) = carried {
                    sum.terms.push((before, 1.0));
                    sum.add(self.runs[stage][last], -workspace[last]);
                    for (value, free) in self.frees(graph, formulation, stage, last) {
                        sum.add(Entry::Column(free), -sizes[value]);
                    }
                } else {
                    for (value, what) in graph.values.iter().enumerate() {
                        if !what.constant() {
                            sum.add(self.held[stage][value], sizes[value]);
                        }
                    }
                }
                sum.row(&mut self.model, 0.0, 0.0);
                if let Some(peak) = peak {
                    self.model
                        .row(0.0, f64::INFINITY, &[(peak, 1.0), (usage, -1.0)]);
                }
                carried = Some((task, usage));
            }
        }
    }

    /// `FREE[stage, value, task]` for the values that can be freed right after that run (7a–7c).
    fn frees(
        &mut self,
        graph: &Graph<'_>,
        formulation: Formulation,
        stage: usize,
        task: usize,
    ) -> Vec<(usize, Column)> {
        let run = self.runs[stage][task];
        if matches!(run, Entry::Never) {
            return Vec::new();
        }
        let what = &graph.tasks[task];
        let unread = if what.outputs.len() > 1 {
            &what.outputs[..]
        } else {
            &[]
        };
        let mut frees = Vec::new();
        for &value in what.inputs.iter().chain(unread) {
            let overwritten = what.overwrites.contains(&value);
            if overwritten || graph.values[value].bytes == 0 {
                continue;
            }
            let mut hazards = vec![self.held[stage + 1][value]];
            let readers = graph.values[value].consumers.iter().rev();
            let later = readers
                .take_while(|&&reader| reader > task)
                .filter(|&&r| r <= stage);
            hazards.extend(later.map(|&reader| self.runs[stage][reader]));
            if hazards.iter().any(|hazard| matches!(hazard, Entry::Always)) {
                continue;
            }
            hazards.retain(|hazard| !matches!(hazard, Entry::Never));
            frees.push((value, self.free(formulation, run, &hazards)));
        }
        frees
    }

    fn free(&mut self, formulation: Formulation, run: Entry, hazards: &[Entry]) -> Column {
        match formulation {
            Formulation::Published => {
                let free = self.model.binary(0.0);
                // num_hazards + FREE ≥ 1 and num_hazards + κ FREE ≤ κ.
                let kappa = 1.0 + hazards.len() as f64;
                for (coefficient, lower, upper) in
                    [(1.0, 1.0, f64::INFINITY), (kappa, f64::NEG_INFINITY, kappa)]
                {
                    let mut sum = Sum {
                        constant: 1.0,
                        terms: vec![(free, coefficient)],
                    };
                    sum.add(run, -1.0);
                    for &hazard in hazards {
                        sum.add(hazard, 1.0);
                    }
                    sum.row(&mut self.model, lower, upper);
                }
                free
            }
            Formulation::Disaggregated => {
                let free = self.model.column(0.0, 0.0, 1.0, Kind::Continuous);
                let mut sum = Sum {
                    constant: 0.0,
                    terms: vec![(free, -1.0)],
                };
                sum.add(run, 1.0);
                sum.row(&mut self.model, 0.0, f64::INFINITY);
                for &hazard in hazards {
                    let mut sum = Sum {
                        constant: 0.0,
                        terms: vec![(free, 1.0)],
                    };
                    sum.add(hazard, 1.0);
                    sum.row(&mut self.model, f64::NEG_INFINITY, 1.0);
                }
                free
            }
        }
    }

    /// The same model with another budget.
    pub(crate) fn with_budget(&self, budget: u64) -> Model {
        let mut model = self.model.clone();
        let limit = budget.saturating_sub(self.fixed) as f64 / self.byte_unit;
        for &usage in &self.usage {
            model.set_bounds(usage, 0.0, limit);
        }
        model
    }

    /// The values of `S` in a relaxed or integral solution, `[stage][value]`.
    pub(crate) fn held(&self, values: &[f64]) -> Vec<Vec<f64>> {
        matrix(&self.held, values)
    }

    /// The stages of an integral solution, with the fewest runs for its checkpoints, because the solver may
    /// have left runs that serve nothing. `None` if there is no solution.
    pub(crate) fn stages(&self, graph: &Graph<'_>, values: &[f64]) -> Option<Stages> {
        if values.is_empty() {
            return None;
        }
        let on = |rows: Vec<Vec<f64>>| -> Vec<Vec<bool>> {
            let row = |row: Vec<f64>| row.into_iter().map(|x| x > 0.5).collect();
            rows.into_iter().map(row).collect()
        };
        let (held, runs) = (on(self.held(values)), on(matrix(&self.runs, values)));
        Some(Stages::complete(graph, &held).unwrap_or(Stages { runs, held }))
    }

    /// Values of the columns of `R` and `S` for given stages; all other columns follow from them.
    pub(crate) fn start(&self, stages: &Stages) -> Vec<(Column, f64)> {
        let runs = self.runs.iter().zip(&stages.runs);
        let held = self.held.iter().zip(&stages.held);
        let entries = runs
            .chain(held)
            .flat_map(|(entries, row)| entries.iter().zip(row));
        let columns = entries.filter_map(|(entry, &on)| match entry {
            Entry::Column(column) => Some((*column, f64::from(u8::from(on)))),
            _ => None,
        });
        columns.collect()
    }
}

fn matrix(entries: &[Vec<Entry>], values: &[f64]) -> Vec<Vec<f64>> {
    let value = |entry: &Entry| match entry {
        Entry::Never => 0.0,
        Entry::Always => 1.0,
        Entry::Column(column) => values[column.index()],
    };
    entries
        .iter()
        .map(|row| row.iter().map(value).collect())
        .collect()
}

/// Bytes per unit: the greatest common divisor if that keeps numbers small, otherwise a millionth of the
/// budget.
pub(crate) fn byte_unit(graph: &Graph<'_>, goal: Goal) -> f64 {
    let sizes = graph.values.iter().map(|value| value.bytes);
    let workspaces = graph.tasks.iter().map(|task| task.workspace);
    let divisor = divisor::common(sizes.clone().chain(workspaces));
    let largest = match goal {
        Goal::Cost { budget } => budget.saturating_sub(graph.fixed),
        Goal::Peak { .. } => sizes.sum(),
    };
    if largest / divisor <= 1_000_000 {
        divisor as f64
    } else {
        largest as f64 / 1e6
    }
}
