//! POET (Patil et al., ICML 2022): checkmate's stages with paging, for the least energy, solved by HiGHS.
//!
//! Stage t ends with the first run of task t. `R[t][i]` says that stage t runs task i; `SRam[t][i]` and
//! `SSd[t][i]` say that its value is in memory, or in the other memory, when stage t begins; `MIn[t][i]` and
//! `MOut[t][i]` say that stage t pages it in or out. The program minimizes
//! `Σ R·e + MIn·p_in + MOut·p_out`, the joules of runs and of copies, subject to
//!
//! ```text
//! R[t][i] ≤ R[t][u] + SRam[t][u]                      for each input u of i
//! SRam[t+1][i] ≤ SRam[t][i] + R[t][i] + MIn[t][i]
//! SSd[t+1][i] ≤ SSd[t][i] + MOut[t][i]
//! MIn[t][i] ≤ SSd[t][i],  MOut[t][i] ≤ SRam[t][i]
//! U ≤ memory,  Σ R·runtime ≤ runtime budget
//! ```
//!
//! with U as checkmate counts memory. A value that is paged in during stage t counts from stage t + 1 on, and
//! only then can be read; its copy is the last step of stage t. A copy out is the first step of its stage.
//! Freeing is stated hazard by hazard, as in `checkmate-disaggregated`, which doesn't change the optimum.
//!
//! No constraint knows how long paging takes: the program assumes that it is hidden. The runtime budget
//! limits the seconds of runs, and the plan's makespan may be longer. The plan's cost is its makespan; its
//! energy and what is proven about it are in the note. The program has no overwriting and no given values.
//! The start that HiGHS gets pages out whatever isn't used for three stages.

use std::sync::Arc;
use std::time::Instant;

use cranelift_entity::EntityRef;
use scrimp_plan::{CheckedPlan, Move, Sequence, TaskId, ValueId};
use scrimp_solvers::Highs;
use scrimp_solvers::highs::{Column, Kind, Model, Start, Status};

use super::maps::links;
use crate::checked::checked;
use crate::error::SolveError;
use crate::options::{Options, Solved};
use crate::published::checkmate::solver_options;
use crate::published::formulation::{Goal, byte_unit};
use crate::published::graph::Graph;

/// Columns of the largest program.
const MOST_COLUMNS: u64 = 4_000_000;
/// Roughly the bytes that a column takes with its rows.
const BYTES_PER_COLUMN: u64 = 1000;

/// By stage and earlier task, 0 or 1.
#[derive(Clone, Debug, Default)]
struct Stages<T> {
    /// `R[t][i]` for i < t; task t itself always runs.
    runs: Vec<Vec<T>>,
    /// One more stage for the end.
    ram: Vec<Vec<T>>,
    sd: Vec<Vec<T>>,
    page_in: Vec<Vec<T>>,
    page_out: Vec<Vec<T>>,
}

impl<T> Stages<T> {
    fn lists(&self) -> [&Vec<Vec<T>>; 5] {
        [
            &self.runs,
            &self.ram,
            &self.sd,
            &self.page_in,
            &self.page_out,
        ]
    }
}

struct Program<'g, 'p> {
    graph: &'g Graph<'p>,
    model: Model,
    columns: Stages<Column>,
    byte_unit: f64,
    joule_unit: f64,
    /// Of running every task once.
    joules: f64,
}

pub(in crate::published) fn plan(
    graph: &Graph<'_>,
    options: &Options,
) -> Result<Solved, SolveError> {
    let began = Instant::now();
    let cutoff = options.cutoff(began, options.time_limit);
    let (memory, ..) = links(graph)?;
    supported(graph)?;
    let highs = Highs::load(options.highs.as_deref())?;
    let runtime = options
        .runtime_budget
        .map(|factor| factor * graph.base_cost());
    let program = Program::new(graph, runtime)?;
    let mut best: Option<CheckedPlan> = None;
    let first = paged(graph);
    let mut offer = |stages: &Stages<bool>| -> Result<(), SolveError> {
        let moves = moves(graph, stages, memory);
        let sequence = Sequence { moves };
        let plan = checked(graph.problem, &sequence, graph.method.name())?;
        let in_time = runtime.is_none_or(|most| plan.cost() <= most * (1.0 + 1e-9));
        let better = |best: &CheckedPlan| plan.total_joules() < best.total_joules();
        if in_time && plan.within(graph.capacities).is_ok() && best.as_ref().is_none_or(better) {
            best = Some(plan);
        }
        Ok(())
    };
    for stages in [kept(graph), first.clone()] {
        offer(&stages)?;
    }
    let start = Start {
        values: program.start(&first),
        ..Start::default()
    };
    let solver = solver_options(options, cutoff.left());
    let model = Arc::new(program.model.clone());
    let solution = highs.solve(&model, &solver, start, &mut |_| !options.stopped())?;
    if !solution.values.is_empty() {
        offer(&program.decode(&solution.values))?;
    }
    if solution.status == Status::Infeasible && best.is_none() {
        return Err(graph.infeasible());
    }
    let plan = best.ok_or_else(|| graph.not_found(None))?;
    // Every task runs at least once.
    let least = program.joules.max(solution.bound * program.joule_unit);
    let proven = least.min(plan.total_joules());
    let note = format!(
        "{} J, at least {proven} J in its model; runs take {} s{}",
        plan.total_joules(),
        plan.cost(),
        runtime.map_or_else(String::new, |most| format!(" of {most} s")),
    );
    Ok(super::solved(graph, plan, Some(note), began))
}

/// Refuses a problem that the program can't express or that would make it too large.
fn supported(graph: &Graph<'_>) -> Result<(), SolveError> {
    let unsupported = |what: &str| Err(SolveError::unsupported(graph.method.name(), what));
    let plain = graph
        .tasks
        .iter()
        .all(|task| task.outputs.len() == 1 && task.overwrites.is_empty());
    if !plain || graph.values.iter().any(|value| value.producer.is_none()) {
        return unsupported("its stages know tasks that write one value each, and no given values");
    }
    let problem = graph.problem;
    let modes = problem
        .tasks()
        .values()
        .filter_map(|task| task.mode(graph.device));
    if modes.map(|mode| mode.joules).sum::<f64>() <= 0.0 {
        return unsupported("no task has joules, and the program minimizes energy");
    }
    let (n, inputs) = (graph.tasks.len() as u64, graph.tasks.iter());
    let edges: u64 = inputs.map(|task| task.inputs.len() as u64).sum();
    let columns = n.saturating_mul(3 * n + (edges + 2 * n) / 2);
    if columns > MOST_COLUMNS {
        return Err(SolveError::TooLarge {
            method: graph.method.name(),
            bytes: columns.saturating_mul(BYTES_PER_COLUMN),
            most: MOST_COLUMNS * BYTES_PER_COLUMN,
        });
    }
    Ok(())
}

/// The value that a task writes.
fn output(graph: &Graph<'_>, task: usize) -> usize {
    graph.tasks[task].outputs[0]
}

/// The tasks that write what a task reads.
fn sources<'a>(graph: &'a Graph<'_>, task: usize) -> impl Iterator<Item = usize> + 'a {
    let inputs = graph.tasks[task].inputs.iter();
    inputs.filter_map(|&value| graph.values[value].producer)
}

impl<'g, 'p> Program<'g, 'p> {
    fn new(graph: &'g Graph<'p>, runtime: Option<f64>) -> Result<Self, SolveError> {
        let (_, out, back) = links(graph)?;
        let problem = graph.problem;
        let n = graph.tasks.len();
        let joules = |task: usize| {
            let mode = problem.task(TaskId::new(task)).mode(graph.device);
            mode.map_or(0.0, |mode| mode.joules)
        };
        let budget = graph.capacity;
        let once = (0..n).map(joules).sum::<f64>();
        let byte_unit = byte_unit(graph, Goal::Cost { budget });
        let joule_unit = once / n as f64;
        let mut model = Model::new();
        model.add_offset(n as f64);
        let mut triangle =
            |stages: usize, cost: &dyn Fn(usize) -> f64, most: &dyn Fn(usize, usize) -> f64| {
                let row = |t: usize| (0..t.min(n)).map(move |i| (t, i));
                let rows: Vec<Vec<Column>> = (0..stages)
                    .map(|t| {
                        row(t)
                            .map(|(t, i)| {
                                model.column(cost(i) / joule_unit, 0.0, most(t, i), Kind::Integer)
                            })
                            .collect()
                    })
                    .collect();
                rows
            };
        let paging =
            |link| move |i: usize| problem.copy_joules(link, ValueId::new(output(graph, i)));
        let always = |_: usize, _: usize| 1.0;
        let columns = Stages {
            runs: triangle(n, &joules, &|_, i| {
                f64::from(u8::from(graph.tasks[i].rerunnable))
            }),
            ram: triangle(n + 1, &|_| 0.0, &always),
            sd: triangle(n, &|_| 0.0, &|t, i| f64::from(u8::from(i + 1 < t))),
            page_in: triangle(n, &paging(back), &always),
            page_out: triangle(n, &paging(out), &always),
        };
        for (i, &last) in columns.ram[n].iter().enumerate() {
            let kept = f64::from(u8::from(graph.values[output(graph, i)].kept));
            model.set_bounds(last, kept, kept);
        }
        let mut program = Program {
            graph,
            model,
            columns,
            byte_unit,
            joule_unit,
            joules: once,
        };
        program.movement();
        for stage in 0..n {
            program.memory(stage);
        }
        if let Some(most) = runtime {
            let unit = graph.base_cost() / n as f64;
            let runs = program
                .columns
                .runs
                .iter()
                .flat_map(|row| row.iter().enumerate());
            let terms: Vec<(Column, f64)> = runs
                .map(|(i, &run)| (run, graph.tasks[i].seconds / unit))
                .collect();
            let left = (most - graph.base_cost()) / unit;
            program.model.row(f64::NEG_INFINITY, left, &terms);
        }
        Ok(program)
    }

    /// At most 0.
    fn row(&mut self, terms: &[(Column, f64)]) {
        self.model.row(f64::NEG_INFINITY, 0.0, terms);
    }

    /// Where values come from.
    fn movement(&mut self) {
        let n = self.graph.tasks.len();
        for t in 0..n {
            for i in 0..=t {
                let run = self.columns.runs[t].get(i).copied();
                for source in sources(self.graph, i) {
                    let from = [
                        (self.columns.runs[t][source], -1.0),
                        (self.columns.ram[t][source], -1.0),
                    ];
                    match run {
                        Some(run) => self.row(&[from[0], from[1], (run, 1.0)]),
                        None => self.model.row(f64::NEG_INFINITY, -1.0, &from),
                    }
                }
                let Some(run) = run else { continue };
                let of = |rows: &[Vec<Column>]| rows[t][i];
                let c = &self.columns;
                let (ram, page_in, page_out) = (of(&c.ram), of(&c.page_in), of(&c.page_out));
                let (sd, next) = (of(&c.sd), c.ram[t + 1][i]);
                let later = c.sd.get(t + 1).map(|row| row[i]);
                self.row(&[(next, 1.0), (ram, -1.0), (run, -1.0), (page_in, -1.0)]);
                self.row(&[(page_in, 1.0), (sd, -1.0)]);
                self.row(&[(page_out, 1.0), (ram, -1.0)]);
                if let Some(later) = later {
                    self.row(&[(later, 1.0), (sd, -1.0), (page_out, -1.0)]);
                }
            }
        }
    }

    /// The bytes in use in a stage, task after task.
    fn memory(&mut self, t: usize) {
        let graph = self.graph;
        let limit = (graph.capacity - graph.fixed.min(graph.capacity)) as f64 / self.byte_unit;
        let unit = self.byte_unit;
        let bytes = |i: usize| graph.values[output(graph, i)].bytes as f64 / unit;
        let mut before: Option<(Column, Vec<(Column, f64)>)> = None;
        for k in 0..=t {
            let usage = self.model.column(0.0, 0.0, limit, Kind::Continuous);
            // usage = before − freed + run; task t always runs.
            let mut terms = vec![(usage, -1.0)];
            match before.take() {
                None => terms.extend((0..t).map(|i| (self.columns.ram[t][i], bytes(i)))),
                Some((last, freed)) => {
                    terms.push((last, 1.0));
                    terms.extend(freed);
                }
            }
            let run = self.columns.runs[t].get(k).copied();
            terms.extend(run.map(|run| (run, bytes(k))));
            let constant = if run.is_none() { bytes(k) } else { 0.0 };
            self.model.row(-constant, -constant, &terms);
            let workspace = graph.tasks[k].workspace as f64 / self.byte_unit;
            if workspace > 0.0 {
                match run {
                    Some(run) => {
                        self.model
                            .row(f64::NEG_INFINITY, limit, &[(usage, 1.0), (run, workspace)])
                    }
                    None => self.model.set_bounds(usage, 0.0, limit - workspace),
                }
            }
            let values: Vec<usize> = sources(graph, k).chain([k]).collect();
            let freed = values.into_iter().filter(|&i| i < t || k == t);
            let freed: Vec<usize> = freed.filter(|&i| bytes(i) > 0.0).collect();
            let freed = freed.into_iter().map(|i| (self.freed(t, i, k), -bytes(i)));
            before = Some((usage, freed.collect()));
        }
    }

    /// Whether stage t frees the value of i right after running k: only if k runs, the next stage doesn't
    /// hold it and no later task of the stage reads it.
    fn freed(&mut self, t: usize, i: usize, k: usize) -> Column {
        let free = self.model.column(0.0, 0.0, 1.0, Kind::Continuous);
        if let Some(&run) = self.columns.runs[t].get(k) {
            self.row(&[(free, 1.0), (run, -1.0)]);
        }
        let next = self.columns.ram[t + 1][i];
        let consumers = &self.graph.values[output(self.graph, i)].consumers;
        let later = consumers
            .iter()
            .filter(|&&reader| reader > k && reader <= t);
        let hazards: Vec<Option<Column>> = (later
            .map(|&reader| self.columns.runs[t].get(reader).copied()))
        .chain([Some(next)])
        .collect();
        for hazard in hazards {
            match hazard {
                Some(hazard) => {
                    self.model
                        .row(f64::NEG_INFINITY, 1.0, &[(free, 1.0), (hazard, 1.0)])
                }
                // The stage's own task reads it.
                None => self.model.set_bounds(free, 0.0, 0.0),
            }
        }
        free
    }

    fn decode(&self, values: &[f64]) -> Stages<bool> {
        let on = |rows: &[Vec<Column>]| -> Vec<Vec<bool>> {
            let row = |row: &Vec<Column>| {
                row.iter()
                    .map(|column| values[column.index()] > 0.5)
                    .collect()
            };
            rows.iter().map(row).collect()
        };
        let c = &self.columns;
        Stages {
            runs: on(&c.runs),
            ram: on(&c.ram),
            sd: on(&c.sd),
            page_in: on(&c.page_in),
            page_out: on(&c.page_out),
        }
    }

    fn start(&self, stages: &Stages<bool>) -> Vec<(Column, f64)> {
        let lists = self.columns.lists().into_iter().zip(stages.lists());
        let rows = lists.flat_map(|(columns, on)| columns.iter().zip(on));
        let entries = rows.flat_map(|(columns, on)| columns.iter().zip(on));
        entries
            .map(|(&column, &on)| (column, f64::from(u8::from(on))))
            .collect()
    }
}

/// Everything runs once, and nothing is paged.
fn kept(graph: &Graph<'_>) -> Stages<bool> {
    let n = graph.tasks.len();
    let rows =
        |stages: usize| -> Vec<Vec<bool>> { (0..stages).map(|t| vec![false; t.min(n)]).collect() };
    let mut stages = Stages {
        runs: rows(n),
        ram: rows(n + 1),
        sd: rows(n),
        page_in: rows(n),
        page_out: rows(n),
    };
    for i in 0..n {
        for t in i + 1..=graph.last_use(output(graph, i)) {
            stages.ram[t][i] = true;
        }
    }
    stages
}

/// Everything runs once; a value whose next use is more than three stages away is paged out one stage after
/// its use, and paged in one stage before the next.
fn paged(graph: &Graph<'_>) -> Stages<bool> {
    let mut stages = kept(graph);
    for i in 0..graph.tasks.len() {
        let value = output(graph, i);
        let (mut last, mut stored) = (i, None);
        for &next in &graph.values[value].consumers {
            if next > last + 3 {
                if stored.is_none() {
                    stages.page_out[last + 1][i] = true;
                }
                stages.page_in[next - 1][i] = true;
                stages.ram[last + 2..next]
                    .iter_mut()
                    .for_each(|row| row[i] = false);
                stored = Some((stored.map_or(last + 2, |(first, _)| first), next));
            }
            last = next;
        }
        if let Some((first, end)) = stored {
            stages.sd[first..end]
                .iter_mut()
                .for_each(|row| row[i] = true);
        }
    }
    stages
}

/// The moves of the stages: copies out, runs in index order, copies back.
fn moves(graph: &Graph<'_>, stages: &Stages<bool>, memory: scrimp_plan::DeviceId) -> Vec<Move> {
    let (n, device) = (graph.tasks.len(), graph.device);
    let mut moves = Vec::new();
    let mut stored = vec![false; n];
    for t in 0..n {
        for i in (0..t).filter(|&i| stages.page_out[t][i]) {
            if !std::mem::replace(&mut stored[i], true) {
                let value = ValueId::new(output(graph, i));
                moves.push(Move::Copy {
                    value,
                    from: device,
                    to: memory,
                });
            }
        }
        let runs = (0..t).filter(|&i| stages.runs[t][i]).chain([t]);
        moves.extend(runs.map(|task| Move::Run {
            task: TaskId::new(task),
            device,
        }));
        for i in (0..t).filter(|&i| stages.page_in[t][i]) {
            let there = stages.ram[t][i] || stages.runs[t][i];
            if stored[i] && !there && stages.ram[t + 1][i] {
                let value = ValueId::new(output(graph, i));
                moves.push(Move::Copy {
                    value,
                    from: memory,
                    to: device,
                });
            }
        }
    }
    moves
}
