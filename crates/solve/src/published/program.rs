//! Moccasin's constraint program: retention intervals (1–8), with memory as a cumulative resource (4) and
//! inputs as reservoirs (10) or as explicit choices (5).
//!
//! A value is in memory during the events `s..=e` of its active intervals, the first of which starts with the
//! run that makes the value. The solver's half-open intervals end at `e + 1`. In the staged program (2.3),
//! task `k` of `n`, counted from 1, may run only at event `k` of a stage `j ≥ k`, at time `j(j-1)/2 + k`, and
//! first runs in stage `k`. In the unstaged program (domain 9), all starts differ. Beyond the paper, values
//! of one task share their starts, a given value has one interval that begins before all events, a kept value
//! has an interval that reaches the last event, and workspace is an interval of one event.

use scrimp_solvers::cpsat::{Change, Expr, Literal, Model, Solution, Var};

use super::graph::Graph;
use crate::divisor;
use crate::method::Precedence;

/// One possible run of a task.
struct Run {
    start: Var,
    active: Literal,
}

/// One possible stay of a value in memory.
struct Retention {
    start: Var,
    end: Var,
    size: Var,
    active: Literal,
}

/// What the solver minimizes.
pub(super) enum Goal {
    /// Phase 1 (12–13): `max(peak, budget)`.
    Memory,
    /// Phase 2 (1): the cost, within the budget.
    Cost,
}

/// A choice among the intervals that may serve a use, or may reach the end.
struct Choice {
    /// The reader's run; none for the end.
    reader: Option<(usize, usize)>,
    value: usize,
    literals: Vec<Literal>,
}

/// A program, and the places of its variables.
pub(super) struct Program {
    pub(super) model: Model,
    runs: Vec<Vec<Run>>,
    retentions: Vec<Vec<Retention>>,
    choices: Vec<Choice>,
    peak: Option<(Var, Var)>,
    staged: bool,
    horizon: i64,
    /// Seconds per unit of the objective, and the most by which rounding may overstate a plan's cost.
    pub(super) cost_unit: f64,
    pub(super) cost_slack: f64,
    byte_unit: u64,
    capacity: i64,
}

/// The time of event `task` of stage `stage`, both counted from 0.
fn event(stage: usize, task: usize) -> i64 {
    (stage * (stage + 1) / 2 + task + 1) as i64
}

impl Program {
    pub(super) fn new(
        graph: &Graph<'_>,
        staged: bool,
        runs_per_task: usize,
        precedence: Precedence,
        goal: &Goal,
    ) -> Program {
        let n = graph.tasks.len();
        let mut program = Program {
            model: Model::new(),
            runs: Vec::new(),
            retentions: Vec::new(),
            choices: Vec::new(),
            peak: None,
            staged,
            horizon: event(n - 1, n - 1),
            cost_unit: 1.0,
            cost_slack: 0.0,
            byte_unit: byte_unit(graph),
            capacity: 0,
        };
        let room = graph.capacity.saturating_sub(graph.fixed) / program.byte_unit;
        program.capacity = i64::try_from(room).unwrap_or(i64::MAX);
        program.task_runs(graph, runs_per_task.max(1));
        program.value_retentions(graph);
        program.inputs(graph, precedence);
        program.ends(graph);
        let capacity = program.objective(graph, goal);
        program.memory(graph, capacity);
        program
    }

    /// Starts and activity of runs: (6), (7), or the staged domain (11).
    fn task_runs(&mut self, graph: &Graph<'_>, runs_per_task: usize) {
        let n = graph.tasks.len();
        let reach = graph.reach();
        let counts: Vec<usize> = (0..n)
            .map(|task| match (graph.tasks[task].rerunnable, self.staged) {
                (false, _) => 1,
                (true, true) => runs_per_task.min(reach[task].min(n - 1) + 1 - task),
                (true, false) => runs_per_task,
            })
            .collect();
        if !self.staged {
            self.horizon = counts.iter().sum::<usize>() as i64;
        }
        let mut starts = Vec::new();
        for (task, &count) in counts.iter().enumerate() {
            let mut runs: Vec<Run> = Vec::new();
            for i in 0..count {
                let start = match (self.staged, i) {
                    (true, 0) => self.model.one_of(&[event(task, task)]),
                    (true, _) => {
                        let last = reach[task].min(n - 1);
                        let stages = task + i..=last;
                        let events: Vec<i64> = stages.map(|stage| event(stage, task)).collect();
                        self.model.one_of(&events)
                    }
                    (false, _) => self.model.integer(1, self.horizon),
                };
                let active = if i == 0 {
                    self.model.truth()
                } else {
                    self.model.boolean()
                };
                if let Some(before) = runs.last() {
                    self.model.implies(active, before.active);
                    self.model
                        .at_most(Expr::from(before.start).plus(1), start, &[active]);
                }
                starts.push(Expr::from(start));
                runs.push(Run { start, active });
            }
            self.runs.push(runs);
        }
        if !self.staged {
            self.model.all_different(&starts);
        }
    }

    /// Ends of intervals: (2) and (3).
    fn value_retentions(&mut self, graph: &Graph<'_>) {
        for what in &graph.values {
            let mut retentions: Vec<Retention> = Vec::new();
            if what.constant() {
                self.retentions.push(retentions);
                continue;
            }
            let runs: Vec<(Var, Literal)> = match what.producer {
                Some(task) => self.runs[task]
                    .iter()
                    .map(|run| (run.start, run.active))
                    .collect(),
                None => vec![(self.model.integer(0, 0), self.model.truth())],
            };
            for (start, active) in runs {
                let end = self.model.integer(0, self.horizon);
                let size = self.model.integer(1, self.horizon + 1);
                let length = Expr::sum([(start, 1), (size, 1), (end, -1)]);
                self.model.between(&length, 1, 1, &[]);
                if let Some(before) = retentions.last() {
                    self.model
                        .at_most(Expr::from(before.end).plus(1), start, &[active]);
                }
                retentions.push(Retention {
                    start,
                    end,
                    size,
                    active,
                });
            }
            self.retentions.push(retentions);
        }
    }

    /// (5): at each run, each input has been in memory since before the run.
    fn inputs(&mut self, graph: &Graph<'_>, precedence: Precedence) {
        for (task, what) in graph.tasks.iter().enumerate() {
            for &value in &what.inputs {
                if graph.values[value].constant() {
                    continue;
                }
                for i in 0..self.runs[task].len() {
                    match precedence {
                        Precedence::Reservoir => self.reservoir(task, i, value),
                        Precedence::Choice => self.choice(task, i, value),
                    }
                }
            }
        }
    }

    /// (10): an input's level is the sum of what its intervals give, less one while the run takes it.
    fn reservoir(&mut self, task: usize, i: usize, value: usize) {
        let run = &self.runs[task][i];
        let mut changes: Vec<Change> = vec![
            (run.start.into(), -1, run.active),
            (Expr::from(run.start).plus(1), 1, run.active),
        ];
        for retention in &self.retentions[value] {
            changes.push((retention.start.into(), 1, retention.active));
            changes.push((Expr::from(retention.end).plus(1), -1, retention.active));
        }
        self.model.reservoir(&changes, 0);
    }

    /// (5) directly, with a literal for each interval that may serve the run.
    fn choice(&mut self, task: usize, i: usize, value: usize) {
        let (start, active) = (self.runs[task][i].start, self.runs[task][i].active);
        let mut literals = Vec::new();
        for j in 0..self.retentions[value].len() {
            let literal = self.model.boolean();
            let retention = &self.retentions[value][j];
            self.model.implies(literal, retention.active);
            self.model
                .at_most(Expr::from(retention.start).plus(1), start, &[literal]);
            self.model.at_most(start, retention.end, &[literal]);
            literals.push(literal);
        }
        self.model.any(&literals, &[active]);
        self.choices.push(Choice {
            reader: Some((task, i)),
            value,
            literals,
        });
    }

    /// Kept values are in memory at the last event.
    fn ends(&mut self, graph: &Graph<'_>) {
        for (value, what) in graph.values.iter().enumerate() {
            if !what.kept || what.constant() {
                continue;
            }
            let mut literals = Vec::new();
            for j in 0..self.retentions[value].len() {
                let literal = self.model.boolean();
                let retention = &self.retentions[value][j];
                self.model.implies(literal, retention.active);
                self.model.at_most(self.horizon, retention.end, &[literal]);
                literals.push(literal);
            }
            self.model.any(&literals, &[]);
            self.choices.push(Choice {
                reader: None,
                value,
                literals,
            });
        }
    }

    /// (1) or (12); returns the capacity of memory.
    fn objective(&mut self, graph: &Graph<'_>, goal: &Goal) -> Expr {
        match goal {
            Goal::Cost => {
                let (units, unit, slack) = integer_costs(graph, &self.runs);
                (self.cost_unit, self.cost_slack) = (unit, slack);
                let mut terms = Vec::new();
                let mut once = 0;
                for (runs, &cost) in self.runs.iter().zip(&units) {
                    once += cost;
                    terms.extend(runs.iter().skip(1).map(|run| (run.active.var(), cost)));
                }
                self.model.minimize(&Expr::sum(terms).plus(once));
                self.capacity.into()
            }
            Goal::Memory => {
                let total: u64 = graph.values.iter().map(|value| value.bytes).sum();
                let workspace = graph
                    .tasks
                    .iter()
                    .map(|task| task.workspace)
                    .max()
                    .unwrap_or(0);
                let most = ((total + workspace) / self.byte_unit) as i64 + self.capacity;
                let peak = self.model.integer(0, most);
                let target = self.model.integer(self.capacity, most);
                self.model.at_most(peak, target, &[]);
                self.model.minimize(&target.into());
                self.peak = Some((peak, target));
                peak.into()
            }
        }
    }

    /// Memory: (4) or (13).
    fn memory(&mut self, graph: &Graph<'_>, capacity: Expr) {
        let mut intervals = Vec::new();
        for (retentions, what) in self.retentions.iter().zip(&graph.values) {
            let demand = (what.bytes / self.byte_unit) as i64;
            for held in retentions.iter().filter(|_| demand > 0) {
                let after = Expr::from(held.end).plus(1);
                let (start, size) = (held.start.into(), held.size.into());
                intervals.push((
                    self.model.interval(&start, &size, &after, held.active),
                    demand,
                ));
            }
        }
        for (runs, what) in self.runs.iter().zip(&graph.tasks) {
            let demand = what.workspace.div_ceil(self.byte_unit) as i64;
            for run in runs.iter().filter(|_| demand > 0) {
                let after = Expr::from(run.start).plus(1);
                let interval =
                    self.model
                        .interval(&run.start.into(), &1.into(), &after, run.active);
                intervals.push((interval, demand));
            }
        }
        self.model.cumulative(&intervals, capacity);
    }

    /// The sequence of runs that a solution describes.
    pub(super) fn sequence(&self, solution: &Solution) -> Vec<usize> {
        let mut runs: Vec<(i64, usize)> = Vec::new();
        for (task, possible) in self.runs.iter().enumerate() {
            let active = possible.iter().filter(|run| solution.holds(run.active));
            runs.extend(active.map(|run| (solution.value(run.start), task)));
        }
        runs.sort_unstable();
        runs.into_iter().map(|(_, task)| task).collect()
    }

    /// The number of tasks that may run again and use every run that they may have.
    pub(super) fn exhausted(&self, sequence: &[usize]) -> usize {
        let mut counts = vec![0; self.runs.len()];
        for &task in sequence {
            counts[task] += 1;
        }
        let full = |(runs, &count): (&Vec<Run>, &usize)| runs.len() > 1 && count >= runs.len();
        self.runs
            .iter()
            .zip(&counts)
            .filter(|&pair| full(pair))
            .count()
    }

    /// Values for all variables that follow from a sequence of runs. `None` if the sequence is outside this
    /// program: a task runs too often, or the runs don't form stages.
    pub(super) fn hint(&self, graph: &Graph<'_>, sequence: &[usize]) -> Option<Vec<i64>> {
        let times = self.times(graph, sequence)?;
        let mut hint = Hint {
            values: vec![0; self.model.variables()],
        };
        let mut seen = vec![0; self.runs.len()];
        let mut of_run = Vec::new();
        for (&task, &time) in sequence.iter().zip(&times) {
            let run = self.runs[task].get(seen[task])?;
            hint.set(run.start, time);
            hint.set(run.active.var(), 1);
            of_run.push(seen[task]);
            seen[task] += 1;
        }
        self.hint_idle(&seen, &mut hint);
        let ends = self.hint_uses(graph, sequence, &times, &of_run, &mut hint);
        for (value, retentions) in self.retentions.iter().enumerate() {
            for (j, retention) in retentions.iter().enumerate() {
                let start = hint.values[retention.start.index()];
                let end = ends[value][j].max(start);
                hint.set(retention.end, end);
                hint.set(retention.size, end + 1 - start);
                hint.set(
                    retention.active.var(),
                    i64::from(j < seen_of(graph, value, &seen)),
                );
            }
        }
        if let Some((peak, target)) = self.peak {
            let bytes = match graph.check(sequence).ok()? {
                Ok(plan) => plan.peak(graph.device),
                Err(peak) => peak,
            };
            let units = (bytes.saturating_sub(graph.fixed) / self.byte_unit) as i64;
            hint.set(peak, units);
            hint.set(target, units.max(self.capacity));
        }
        Some(hint.values)
    }

    /// When each run of a sequence takes place.
    fn times(&self, graph: &Graph<'_>, sequence: &[usize]) -> Option<Vec<i64>> {
        if !self.staged {
            return (sequence.len() as i64 <= self.horizon)
                .then(|| (1..=sequence.len() as i64).collect());
        }
        super::stages::Stages::from_sequence(graph, sequence)?;
        let mut stage = 0;
        let times = sequence.iter().map(|&task| {
            let time = event(stage, task);
            stage += usize::from(task == stage);
            time
        });
        Some(times.collect())
    }

    /// Gives a time to each run that doesn't take place; in the unstaged program, a time of its own.
    fn hint_idle(&self, seen: &[usize], hint: &mut Hint) {
        let mut free = seen.iter().sum::<usize>() as i64;
        for (task, runs) in self.runs.iter().enumerate() {
            for (i, run) in runs.iter().enumerate().skip(seen[task]) {
                free += 1;
                let time = if self.staged {
                    event(task + i, task)
                } else {
                    free
                };
                hint.set(run.start, time);
                hint.set(run.active.var(), 0);
            }
        }
    }

    /// Chooses the latest run of its producer for each use; returns the last use of each interval.
    fn hint_uses(
        &self,
        graph: &Graph<'_>,
        sequence: &[usize],
        times: &[i64],
        of_run: &[usize],
        hint: &mut Hint,
    ) -> Vec<Vec<i64>> {
        let mut ends: Vec<Vec<i64>> = self
            .retentions
            .iter()
            .map(|retentions| vec![0; retentions.len()])
            .collect();
        let mut latest = vec![0; graph.values.len()];
        let mut served = std::collections::BTreeMap::new();
        for ((&task, &time), &i) in sequence.iter().zip(times).zip(of_run) {
            for &value in &graph.tasks[task].inputs {
                if let Some(end) = ends[value].get_mut(latest[value]) {
                    *end = time;
                }
                served.insert((task, i, value), latest[value]);
            }
            for &value in &graph.tasks[task].outputs {
                latest[value] = i;
            }
        }
        for choice in &self.choices {
            let chosen = match choice.reader {
                Some((task, i)) => served.get(&(task, i, choice.value)).copied(),
                None => Some(latest[choice.value]),
            };
            if let (None, Some(j)) = (choice.reader, chosen) {
                ends[choice.value][j] = self.horizon;
            }
            for (j, literal) in choice.literals.iter().enumerate() {
                hint.set(literal.var(), i64::from(chosen == Some(j)));
            }
        }
        ends
    }
}

/// Values of variables, by index.
struct Hint {
    values: Vec<i64>,
}

impl Hint {
    fn set(&mut self, var: Var, value: i64) {
        self.values[var.index()] = value;
    }
}

/// The number of active intervals of a value.
fn seen_of(graph: &Graph<'_>, value: usize, seen: &[usize]) -> usize {
    graph.values[value].producer.map_or(1, |task| seen[task])
}

/// Costs as integers: in units of their greatest common divisor if they are whole numbers, otherwise rounded
/// to a trillionth of their sum. Also returns the unit, and the most by which rounding can overstate the cost
/// of a plan.
fn integer_costs(graph: &Graph<'_>, runs: &[Vec<Run>]) -> (Vec<i64>, f64, f64) {
    let seconds: Vec<f64> = graph.tasks.iter().map(|task| task.seconds).collect();
    let total: f64 = seconds.iter().sum();
    let possible: usize = runs.iter().map(Vec::len).sum();
    let most = total * runs.iter().map(Vec::len).max().unwrap_or(1) as f64;
    if most < 2f64.powi(52) && seconds.iter().all(|cost| cost.fract() == 0.0) {
        let divisor = divisor::common(seconds.iter().map(|&cost| cost as u64));
        let units = seconds.iter().map(|&cost| (cost as u64 / divisor) as i64);
        return (units.collect(), divisor as f64, 0.0);
    }
    let unit = total / 1e12;
    let units = seconds.iter().map(|&cost| (cost / unit).round() as i64);
    (units.collect(), unit, 0.5 * unit * possible as f64)
}

/// The greatest common divisor of all sizes.
fn byte_unit(graph: &Graph<'_>) -> u64 {
    let sizes = graph.values.iter().map(|value| value.bytes);
    let workspaces = graph.tasks.iter().map(|task| task.workspace);
    divisor::common(sizes.chain(workspaces))
}
