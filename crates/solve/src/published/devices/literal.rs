//! XEngine's program as printed (Schuler et al. 2022, equations 1–16), read as it must be for it to make sense:
//! memory, a device at a time (13–16 without the sums over devices), in bytes (15), and a value that isn't on a
//! device isn't freed there (16, `1 - Z` added to the hazards; else its bytes would be given back twice).
//!
//! What the print leaves open stays open. An operator reads inputs from any device, and copies take no bytes
//! (12). Each edge pays for each device that holds its value (1). A value may be freed although an operator on
//! another device still reads it (16). A value can't be kept where it was copied to (11). So the program's
//! plans need not be plans here: its moves are made ours, with a copy before each remote read, and refused with
//! the reason where that isn't possible. The program knows no workspaces, kept or given values, and one value
//! per task.
//!
//! The quadratic terms of (1) are linearised: `y ≥ R[d',t,v] + Z[d,t,u] - 1`, exact because copies cost nothing
//! negative.

use std::sync::Arc;
use std::time::Instant;

use cranelift_entity::EntityRef;
use scrimp_plan::{DeviceId, Keep, Move, Sequence, TaskId, ValueId};
use scrimp_solvers::Highs;
use scrimp_solvers::highs::{Column, Kind, Model, Start, Status};

use super::stages;
use super::system::System;
use crate::checked::checked;
use crate::error::SolveError;
use crate::options::{Options, Solved};
use crate::published::checkmate::solver_options;

/// By stage, device and task.
type Cube = Vec<Vec<Vec<Column>>>;

struct Program<'s, 'a> {
    system: &'s System<'a>,
    model: Model,
    runs: Cube,
    /// For earlier tasks only, and one more stage in which nothing is kept.
    kept: Cube,
    /// By stage and device: value, reader, and whether it is freed after the reader.
    freed: Vec<Vec<Vec<(usize, usize, Column)>>>,
    cost_unit: f64,
    byte_unit: f64,
}

pub(super) fn plan(
    system: &System<'_>,
    options: &Options,
    began: Instant,
) -> Result<Solved, SolveError> {
    supported(system)?;
    let cutoff = options.cutoff(began, options.time_limit);
    let highs = Highs::load(options.highs.as_deref())?;
    let program = Program::new(system);
    let solver = solver_options(options, cutoff.left());
    let model = Arc::new(program.model.clone());
    let start = Start::default();
    let solution = highs.solve(&model, &solver, start, &mut |_| !options.stopped())?;
    if solution.values.is_empty() {
        return Err(match solution.status {
            Status::Infeasible => stages::refused(system, options, began),
            _ => system.unsupported("its program wasn't solved within the time limit"),
        });
    }
    let moves = program.moves(&solution.values)?;
    let plan = checked(system.problem, &Sequence { moves }, system.method.name())?;
    let objective = solution.objective * program.cost_unit;
    if let Err(excesses) = plan.within(system.capacities) {
        return Err(system.unsupported(&format!(
            "the optimum of its program, {objective}, reads from other devices without bytes for the copies; \
             with them, {}",
            excesses[0]
        )));
    }
    let note = format!(
        "serial cost {} for {objective} in its program, at least {} there",
        plan.serial_seconds(),
        solution.bound * program.cost_unit,
    );
    // What the program proves holds for its own cost only.
    Ok(stages::outcome(
        system,
        options,
        began,
        plan,
        (0.0, false, note),
    ))
}

fn supported(system: &System<'_>) -> Result<(), SolveError> {
    let problem = system.problem;
    let tasks_fit = problem.tasks().values().all(|task| {
        task.outputs.len() == 1
            && task.overwrites.is_empty()
            && task
                .modes
                .iter()
                .all(|mode| mode.workspace == 0 && mode.resident == 0)
    });
    let values_fit = problem
        .values()
        .iter()
        .all(|(value, what)| problem.producer(value).is_some() && what.keep == Keep::No);
    let devices_fit = problem
        .devices()
        .values()
        .all(|d| d.computes && !d.concurrent);
    if !tasks_fit || !values_fit || !devices_fit || !problem.together().is_empty() {
        return Err(system.unsupported(
            "its program knows tasks of one value each, without workspace, groups, given and kept values",
        ));
    }
    let (n, devices) = (problem.tasks().len() as u64, problem.devices().len() as u64);
    let edges: u64 = problem
        .tasks()
        .values()
        .map(|task| task.inputs.len() as u64)
        .sum();
    let per_stage = devices * 3 * n + devices * (devices - 1) * edges + devices * (edges + n);
    stages::small_enough(system, n.saturating_mul(per_stage))
}

impl<'s, 'a> Program<'s, 'a> {
    fn new(system: &'s System<'a>) -> Self {
        let problem = system.problem;
        let n = problem.tasks().len();
        let modes = problem.tasks().values().flat_map(|task| &task.modes);
        let seconds: f64 = modes.map(|mode| mode.seconds).sum();
        let bytes = problem.values().values().map(|value| value.bytes);
        let cost_unit = if seconds > 0.0 {
            seconds / n as f64
        } else {
            1.0
        };
        let mut model = Model::new();
        let devices: Vec<DeviceId> = problem.devices().keys().collect();
        let cube = |stages: usize,
                    column: &mut dyn FnMut(usize, DeviceId, usize) -> Column,
                    tasks: &dyn Fn(usize) -> usize| {
            (0..stages)
                .map(|t| {
                    let of_device = |&d: &DeviceId| {
                        (0..tasks(t))
                            .map(|i| column(t, d, i))
                            .collect::<Vec<Column>>()
                    };
                    devices.iter().map(of_device).collect::<Vec<_>>()
                })
                .collect::<Cube>()
        };
        let runs = cube(
            n,
            &mut |t, d, i| {
                let task = problem.task(TaskId::new(i));
                let mode = task.mode(d).filter(|_| t == i || task.rerunnable);
                let price = mode.map_or(0.0, |mode| mode.seconds) / cost_unit;
                let most = f64::from(u8::from(mode.is_some()));
                model.column(price, 0.0, most, Kind::Integer)
            },
            &|t| t + 1,
        );
        let kept = cube(
            n + 1,
            &mut |t, _, _| {
                let most = f64::from(u8::from(t < n));
                model.column(0.0, 0.0, most, Kind::Integer)
            },
            &|t| t,
        );
        let mut program = Program {
            system,
            model,
            runs,
            kept,
            freed: Vec::new(),
            cost_unit,
            byte_unit: bytes.max().unwrap_or(1).max(1) as f64,
        };
        for t in 0..n {
            program.correctness(t);
            program.copies(t);
            let of_stage = (0..devices.len()).map(|d| program.memory(t, d)).collect();
            program.freed.push(of_stage);
        }
        program
    }

    /// The tasks that write what a task reads.
    fn sources(&self, task: usize) -> Vec<usize> {
        let problem = self.system.problem;
        let inputs = problem.task(TaskId::new(task)).inputs.iter();
        let sources = inputs.filter_map(|&value| problem.producer(value));
        sources.map(|task| task.index()).collect()
    }

    fn value(&self, task: usize) -> ValueId {
        self.system.problem.task(TaskId::new(task)).outputs[0]
    }

    fn row(&mut self, terms: &[(Column, f64)], most: f64) {
        self.model.row(f64::NEG_INFINITY, most, terms);
    }

    /// Equations 8, 9, 11 and 12.
    fn correctness(&mut self, t: usize) {
        let devices = self.runs[t].len();
        let own: Vec<(Column, f64)> = (0..devices).map(|d| (self.runs[t][d][t], 1.0)).collect();
        self.model.row(1.0, 1.0, &own);
        for d in 0..devices {
            for i in 0..=t {
                let (run, next) = (self.runs[t][d][i], self.kept[t + 1][d][i]);
                let mut terms = vec![(next, 1.0), (run, -1.0)];
                terms.extend(self.kept[t][d].get(i).map(|&kept| (kept, -1.0)));
                self.row(&terms, 0.0);
                for u in self.sources(i) {
                    let mut terms = vec![(run, 1.0)];
                    for other in 0..devices {
                        terms.push((self.runs[t][other][u], -1.0));
                        terms.push((self.kept[t][other][u], -1.0));
                    }
                    self.row(&terms, 0.0);
                }
            }
        }
    }

    /// The copies of equation 1. `Z ≥ R` and `Z ≥ S` (5) become one row for each.
    fn copies(&mut self, t: usize) {
        let devices: Vec<DeviceId> = self.system.problem.devices().keys().collect();
        for reader in 0..=t {
            for u in self.sources(reader) {
                let value = self.value(u);
                for (d, &from) in devices.iter().enumerate() {
                    for (other, &to) in devices.iter().enumerate().filter(|(o, _)| *o != d) {
                        let seconds = self.system.transfer(&[value], from, to);
                        let run = self.runs[t][other][reader];
                        if !seconds.is_finite() || seconds == 0.0 {
                            continue;
                        }
                        let price = seconds / self.cost_unit;
                        let y = self.model.column(price, 0.0, 1.0, Kind::Continuous);
                        for there in [self.runs[t][d][u], self.kept[t][d][u]] {
                            self.row(&[(run, 1.0), (there, 1.0), (y, -1.0)], 1.0);
                        }
                    }
                }
            }
        }
    }

    /// Equations 6 and 13–16 on one device.
    fn memory(&mut self, t: usize, d: usize) -> Vec<(usize, usize, Column)> {
        let problem = self.system.problem;
        let device = DeviceId::new(d);
        let capacity = self.system.capacities.bytes(device);
        let Some(capacity) = capacity else {
            return Vec::new();
        };
        let always = problem.resident_bytes(device) as f64;
        let room = (capacity as f64 - always) / self.byte_unit;
        let bytes = |i: usize| {
            problem.value(problem.task(TaskId::new(i)).outputs[0]).bytes as f64 / self.byte_unit
        };
        let bytes: Vec<f64> = (0..=t).map(bytes).collect();
        let mut all = Vec::new();
        let mut before: Option<Column> = None;
        let mut freed: Vec<(usize, usize, Column)> = Vec::new();
        for v in 0..=t {
            let usage = self.model.column(0.0, 0.0, room, Kind::Continuous);
            let mut terms = vec![(usage, -1.0), (self.runs[t][d][v], bytes[v])];
            match before {
                None => terms.extend((0..t).map(|i| (self.kept[t][d][i], bytes[i]))),
                Some(last) => {
                    terms.push((last, 1.0));
                    terms.extend(freed.iter().map(|&(u, _, free)| (free, -bytes[u])));
                }
            }
            self.model.row(0.0, 0.0, &terms);
            freed = self
                .sources(v)
                .into_iter()
                .chain([v])
                .map(|u| self.free(t, d, (u, v)))
                .collect();
            all.extend(freed.iter().copied());
            before = Some(usage);
        }
        all
    }

    /// Whether `u` is freed after `v`: just if no hazard prevents it (16).
    fn free(&mut self, t: usize, d: usize, (u, v): (usize, usize)) -> (usize, usize, Column) {
        let problem = self.system.problem;
        let free = self.model.binary(0.0);
        // 1 - R[v], whether the next stage keeps it, and whether a later run of this stage reads it.
        let mut hazards = vec![(self.runs[t][d][v], -1.0), (self.kept[t + 1][d][u], 1.0)];
        let readers = problem.consumers(self.value(u)).iter();
        let later = readers
            .map(|task| task.index())
            .filter(|&j| j > v && j <= t);
        hazards.extend(later.map(|j| (self.runs[t][d][j], 1.0)));
        let mut most = hazards.len() as f64;
        let mut constant = 1.0;
        if u != v {
            // 1 - Z: it isn't there.
            let there = self.model.column(0.0, 0.0, 1.0, Kind::Continuous);
            for part in [self.runs[t][d][u], self.kept[t][d][u]] {
                self.row(&[(part, 1.0), (there, -1.0)], 0.0);
            }
            let parts = [
                (there, 1.0),
                (self.runs[t][d][u], -1.0),
                (self.kept[t][d][u], -1.0),
            ];
            self.row(&parts, 0.0);
            hazards.push((there, -1.0));
            (most, constant) = (most + 1.0, constant + 1.0);
        }
        // 1 - F ≤ h ≤ h_max (1 - F), with h = constant + hazards.
        let mut terms = hazards.clone();
        terms.push((free, 1.0));
        self.model.row(1.0 - constant, f64::INFINITY, &terms);
        hazards.push((free, most));
        self.row(&hazards, most - constant);
        (u, v, free)
    }

    /// The moves of a solution, with a copy before each read from another device.
    fn moves(&self, values: &[f64]) -> Result<Vec<Move>, SolveError> {
        let (system, problem) = (self.system, self.system.problem);
        let on = |column: Column| values[column.index()] > 0.5;
        let devices: Vec<DeviceId> = problem.devices().keys().collect();
        let mut moves = Vec::new();
        for (t, runs) in self.runs.iter().enumerate() {
            // In the program's memory, and with the copies that are made of it.
            let mut there: Vec<Vec<bool>> = self.kept[t]
                .iter()
                .map(|kept| kept.iter().map(|&kept| on(kept)).chain([false]).collect())
                .collect();
            let mut copied = there.clone();
            for i in 0..=t {
                for (d, &device) in devices.iter().enumerate() {
                    if !on(runs[d][i]) || there[d][i] {
                        continue;
                    }
                    for u in self.sources(i) {
                        if copied[d][u] {
                            continue;
                        }
                        let value = self.value(u);
                        let holders = devices.iter().zip(&there).filter(|(_, there)| there[u]);
                        let seconds = |from: DeviceId| system.transfer(&[value], from, device);
                        let near = holders.map(|(&from, _)| (seconds(from), from));
                        let Some((_, from)) = near.min_by(|a, b| a.0.total_cmp(&b.0)) else {
                            let (read, by) =
                                (&problem.value(value).name, problem.task(TaskId::new(i)));
                            return Err(system.unsupported(&format!(
                                "the optimum of its program frees value {read} before {} reads it on another device",
                                by.name
                            )));
                        };
                        if problem.link_between(from, device).is_none() {
                            return Err(
                                system.unsupported("its program copies between all devices")
                            );
                        }
                        moves.push(Move::Copy {
                            value,
                            from,
                            to: device,
                        });
                        copied[d][u] = true;
                    }
                    let task = TaskId::new(i);
                    moves.push(Move::Run { task, device });
                    (there[d][i], copied[d][i]) = (true, true);
                }
                for (d, freed) in self.freed[t].iter().enumerate() {
                    let now = freed.iter().filter(|(_, v, free)| *v == i && on(*free));
                    now.for_each(|&(u, ..)| there[d][u] = false);
                }
            }
        }
        Ok(moves)
    }
}
