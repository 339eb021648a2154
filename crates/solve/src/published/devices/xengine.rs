//! XEngine's program (Schuler et al. 2022, equations 1–19) with the holes of the print closed, solved by HiGHS:
//! what runs where and when, what is kept, copied and computed again, at the least serial cost.
//!
//! Stage `t` makes task `t` for the first time, after it has made others again, in index order (7–10). The events
//! of all stages form one line. For event `e`, which may run task `i`, on device `d`:
//!
//! ```text
//! R[d,e]       task i runs                                               binary
//! X[d,e,v]     v is in memory during the event, before i's outputs are
//! K[d',d,e,v]  v is copied from d' right before the event                binary
//! minimize Σ (seconds + α joules) R + Σ (seconds + α joules) K           (1, 17)
//! Σ_d R[d, first event of i] = 1                                         (8, 9)
//! R[d,e] ≤ X[d,e,v]                                   inputs v of i      (12, on the same device)
//! X[d,e,v] ≤ X[d,e-1,v] + R[d,e-1] + Σ_d' K[d',d,e,v]                    (11; R if it writes v)
//! K[d',d,e,v] ≤ X[d',e-1,v] + R[d',e-1]
//! Σ_v bytes X[d,e,v] + (outputs + workspace) R[d,e] ≤ capacity           (6, 13–16)
//! Σ_e joules R[d,e] ≤ cap of d                                           (18)
//! ```
//!
//! This differs from the print as follows.
//! * Memory is stated per device, not summed over devices, and by what is there (`X`) instead of by what is
//!   freed. So a value stays while any device still reads it, and one that isn't there can't be freed.
//! * A task reads only what is on its device. Copied bytes count there, and may be kept there.
//! * A copy is paid once for its value and device, not once for each reader and each device that holds the value.
//! * A task that runs again does so where the arithmetic is that of its first run.
//! * While a value is copied away and others arrive, all of them are counted.
//! * Memories that don't compute may hold values, too.
//!
//! Copies between two events take one link each. A power limit (19) isn't part of the program; the note has the
//! most power that the plan draws at once. The optimum is the model's: plans in another order, or with more runs
//! in a stage, may cost less.

use std::sync::Arc;
use std::time::Instant;

use cranelift_entity::EntityRef;
use scrimp_plan::{CheckedPlan, DeviceId, Keep, LinkId, Move, Origin, Sequence, TaskId, ValueId};
use scrimp_solvers::Highs;
use scrimp_solvers::highs::{Column, Kind, Model, Start, Status};

use super::stages::{self, Reach};
use super::system::System;
use crate::checked::checked;
use crate::error::SolveError;
use crate::options::{Options, Solved};
use crate::published::checkmate::solver_options;

/// One possible run of a task, with its columns by device.
struct Event {
    task: TaskId,
    runs: Vec<Option<Column>>,
    /// By device and value.
    held: Vec<Vec<Option<Column>>>,
    copies: Vec<Copy>,
}

struct Copy {
    link: LinkId,
    value: ValueId,
    column: Column,
}

struct Program<'s, 'a> {
    system: &'s System<'a>,
    alpha: f64,
    reach: Reach,
    model: Model,
    events: Vec<Event>,
    /// Seconds per unit of the objective, and bytes per unit of memory.
    cost_unit: f64,
    byte_unit: f64,
    /// By task and device, whether the task's resident bytes are taken.
    resident: Vec<Vec<Option<Column>>>,
}

pub(super) fn plan(
    system: &System<'_>,
    options: &Options,
    began: Instant,
) -> Result<Solved, SolveError> {
    let cutoff = options.cutoff(began, options.time_limit);
    let highs = Highs::load(options.highs.as_deref())?;
    let program = Program::new(system, options)?;
    let solver = solver_options(options, cutoff.left());
    let model = Arc::new(program.model.clone());
    let start = Start::default();
    let solution = highs.solve(&model, &solver, start, &mut |_| !options.stopped())?;
    let mut best: Option<CheckedPlan> = None;
    let serial = |plan: &CheckedPlan| plan.serial_seconds() + options.alpha * plan.total_joules();
    if !solution.values.is_empty() {
        let sequence = program.sequence(&solution.values);
        let plan = checked(system.problem, &sequence, system.method.name())?;
        best = plan.within(system.capacities).is_ok().then_some(plan);
    }
    if solution.status != Status::Optimal
        && let Ok(single) = super::single_device(system, options, began)
        && best
            .as_ref()
            .is_none_or(|best| serial(&single.plan) < serial(best))
    {
        best = Some(single.plan);
    }
    let plan = match best {
        Some(plan) => plan,
        None => return Err(stages::refused(system, options, began)),
    };
    let bound = solution.bound * program.cost_unit;
    let cost = serial(&plan);
    let note = format!(
        "serial cost {cost}, at least {} in its model; {} W at most at once",
        bound.clamp(0.0, cost),
        stages::most_power(&plan),
    );
    let optimal = solution.status == Status::Optimal;
    Ok(stages::outcome(
        system,
        options,
        began,
        plan,
        (bound, optimal, note),
    ))
}

impl<'s, 'a> Program<'s, 'a> {
    fn new(system: &'s System<'a>, options: &Options) -> Result<Self, SolveError> {
        let problem = system.problem;
        let mut tasks = problem.tasks().values();
        if tasks.any(|task| !task.overwrites.is_empty()) {
            return Err(system.unsupported("its program knows no tasks that overwrite an input"));
        }
        if problem.devices().values().any(|device| device.concurrent) {
            return Err(system.unsupported("its program runs one task at a time everywhere"));
        }
        let reach = Reach::new(problem);
        let n = problem.tasks().len() as u64;
        let places = problem.devices().len() as u64 + 2 * problem.links().len() as u64;
        let columns = n * (n + 1) / 2 * problem.values().len() as u64 * places;
        stages::small_enough(system, columns)?;
        let modes = problem.tasks().values().flat_map(|task| &task.modes);
        let seconds: f64 = modes.map(|mode| mode.seconds).sum();
        let bytes = problem.values().values().map(|value| value.bytes);
        let mut program = Program {
            system,
            alpha: options.alpha,
            reach,
            model: Model::new(),
            events: Vec::new(),
            cost_unit: if seconds > 0.0 {
                seconds / n as f64
            } else {
                1.0
            },
            byte_unit: bytes.max().unwrap_or(1).max(1) as f64,
            resident: Vec::new(),
        };
        program.residents();
        for stage in problem.tasks().keys() {
            for task in problem.tasks().keys().take(stage.index() + 1) {
                if program.reach.may_run(problem, task, stage) {
                    program.event(stage, task);
                }
            }
        }
        program.end();
        program.once_and_again();
        program.groups();
        program.energy();
        Ok(program)
    }

    fn devices(&self) -> Vec<DeviceId> {
        self.system.problem.devices().keys().collect()
    }

    fn residents(&mut self) {
        let problem = self.system.problem;
        for what in problem.tasks().values() {
            let model = &mut self.model;
            let mut taken = |device: DeviceId| {
                let mode = what.mode(device)?;
                let counted = mode.resident > 0 && what.modes.len() > 1;
                counted.then(|| model.column(0.0, 0.0, 1.0, Kind::Continuous))
            };
            let of_task = problem.devices().keys().map(&mut taken).collect();
            self.resident.push(of_task);
        }
    }

    /// What is on a device after the last event, as terms and a constant.
    fn after(&self, device: DeviceId, value: ValueId) -> (Vec<(Column, f64)>, f64) {
        let problem = self.system.problem;
        let Some(last) = self.events.last() else {
            let given = problem.value(value).origin == Origin::Given(device);
            return (Vec::new(), f64::from(u8::from(given)));
        };
        let held = last.held[device.index()][value.index()];
        let writes = problem.task(last.task).outputs.contains(&value);
        let made = last.runs[device.index()].filter(|_| writes);
        let terms = held.into_iter().chain(made).map(|column| (column, 1.0));
        (terms.collect(), 0.0)
    }

    /// Copies and holdings right before an event of a stage, or the end.
    fn arrivals(&mut self, stage: usize) -> (Vec<Vec<Option<Column>>>, Vec<Copy>) {
        let problem = self.system.problem;
        let exists = |value: ValueId, reach: &Reach| {
            let made = problem
                .producer(value)
                .is_none_or(|task| task.index() < stage);
            made && reach.of_value(value) >= stage
        };
        let mut copies = Vec::new();
        for (link, what) in problem.links().iter() {
            for value in problem.values().keys() {
                let (from, given) = self.after(what.from, value);
                if !exists(value, &self.reach) || (from.is_empty() && given == 0.0) {
                    continue;
                }
                let price = problem.copy_seconds(link, value)
                    + self.alpha * problem.copy_joules(link, value);
                let column = self.model.binary(price / self.cost_unit);
                let mut terms = vec![(column, 1.0)];
                terms.extend(from.iter().map(|&(column, one)| (column, -one)));
                self.model.row(f64::NEG_INFINITY, given, &terms);
                copies.push(Copy {
                    link,
                    value,
                    column,
                });
            }
        }
        let mut held = Vec::new();
        for device in self.devices() {
            let mut of_device = Vec::new();
            for value in problem.values().keys() {
                let (mut terms, given) = self.after(device, value);
                let into = copies
                    .iter()
                    .filter(|copy| copy.value == value && problem.links()[copy.link].to == device);
                terms.extend(into.map(|copy| (copy.column, 1.0)));
                let possible = !terms.is_empty() || given > 0.0;
                of_device.push((exists(value, &self.reach) && possible).then(|| {
                    let column = self.model.column(0.0, 0.0, 1.0, Kind::Continuous);
                    terms.iter_mut().for_each(|term| term.1 = -1.0);
                    terms.push((column, 1.0));
                    self.model.row(f64::NEG_INFINITY, given, &terms);
                    column
                }));
            }
            held.push(of_device);
        }
        self.leaving(&held, &copies);
        (held, copies)
    }

    /// Bytes that a device may use for values, if it is limited.
    fn room(&self, device: DeviceId) -> Option<f64> {
        let capacity = self.system.capacities.bytes(device)?;
        let always = self.system.problem.resident_bytes(device);
        Some((capacity as f64 - always as f64) / self.byte_unit)
    }

    /// The bytes of held values, and of tasks that stay resident.
    fn holding(&self, held: &[Vec<Option<Column>>], device: DeviceId) -> Vec<(Column, f64)> {
        let problem = self.system.problem;
        let values = problem.values().iter().filter_map(|(value, what)| {
            let column = held[device.index()][value.index()]?;
            Some((column, what.bytes as f64 / self.byte_unit))
        });
        let tasks = problem.tasks().iter().filter_map(|(task, what)| {
            let column = self.resident[task.index()][device.index()]?;
            Some((column, what.mode(device)?.resident as f64 / self.byte_unit))
        });
        values.chain(tasks).collect()
    }

    /// While copies are made, what leaves and what arrives is in memory together.
    fn leaving(&mut self, held: &[Vec<Option<Column>>], copies: &[Copy]) {
        let problem = self.system.problem;
        for device in self.devices() {
            let Some(room) = self.room(device) else {
                continue;
            };
            let mut terms = self.holding(held, device);
            for (value, what) in problem.values().iter() {
                let out = copies.iter().filter(|copy| {
                    copy.value == value && problem.links()[copy.link].from == device
                });
                let out: Vec<Column> = out.map(|copy| copy.column).collect();
                if out.is_empty() || what.bytes == 0 {
                    continue;
                }
                let leaves = self.model.column(0.0, 0.0, 1.0, Kind::Continuous);
                for column in out {
                    let mut row = vec![(column, 1.0), (leaves, -1.0)];
                    row.extend(held[device.index()][value.index()].map(|held| (held, -1.0)));
                    self.model.row(f64::NEG_INFINITY, 0.0, &row);
                }
                terms.push((leaves, what.bytes as f64 / self.byte_unit));
            }
            self.model.row(f64::NEG_INFINITY, room, &terms);
        }
    }

    fn event(&mut self, stage: TaskId, task: TaskId) {
        let problem = self.system.problem;
        let what = problem.task(task);
        let (held, copies) = self.arrivals(stage.index());
        let mut runs = Vec::new();
        for device in self.devices() {
            let there = &held[device.index()];
            let possible = what.inputs.iter().all(|v| there[v.index()].is_some());
            let Some(mode) = what.mode(device).filter(|_| possible) else {
                runs.push(None);
                continue;
            };
            let price = (mode.seconds + self.alpha * mode.joules) / self.cost_unit;
            let run = self.model.binary(price);
            for input in &what.inputs {
                if let Some(held) = there[input.index()] {
                    let row = [(run, 1.0), (held, -1.0)];
                    self.model.row(f64::NEG_INFINITY, 0.0, &row);
                }
            }
            if let Some(taken) = self.resident[task.index()][device.index()] {
                let row = [(run, 1.0), (taken, -1.0)];
                self.model.row(f64::NEG_INFINITY, 0.0, &row);
            }
            if let Some(room) = self.room(device) {
                let outputs = what.outputs.iter().map(|&v| problem.value(v).bytes);
                let made = (outputs.sum::<u64>() + mode.workspace) as f64 / self.byte_unit;
                let mut terms = self.holding(&held, device);
                terms.push((run, made));
                self.model.row(f64::NEG_INFINITY, room, &terms);
            }
            runs.push(Some(run));
        }
        self.events.push(Event {
            task,
            runs,
            held,
            copies,
        });
    }

    /// What must be where at the end.
    fn end(&mut self) {
        let problem = self.system.problem;
        let (held, copies) = self.arrivals(problem.tasks().len());
        for (value, what) in problem.values().iter() {
            let there = |device: DeviceId| held[device.index()][value.index()];
            let columns: Vec<Option<Column>> = match what.keep {
                Keep::No => continue,
                Keep::On(device) => vec![there(device)],
                Keep::Anywhere => problem.devices().keys().map(there).collect(),
            };
            let terms: Vec<_> = columns.into_iter().flatten().map(|c| (c, 1.0)).collect();
            self.model.row(1.0, f64::INFINITY, &terms);
        }
        // The last event has no run.
        self.events.push(Event {
            task: TaskId::new(0),
            runs: vec![None; problem.devices().len()],
            held,
            copies,
        });
    }

    fn once_and_again(&mut self) {
        let problem = self.system.problem;
        let mut first: Vec<Option<usize>> = vec![None; problem.tasks().len()];
        for e in 0..self.events.len() - 1 {
            let event = &self.events[e];
            let Some(made) = first[event.task.index()] else {
                // The stage of a task ends with its first run, and no earlier stage runs it.
                first[event.task.index()] = Some(e);
                let runs = event.runs.iter().flatten();
                let terms: Vec<(Column, f64)> = runs.map(|&run| (run, 1.0)).collect();
                self.model.row(1.0, 1.0, &terms);
                continue;
            };
            for (device, what) in problem.devices().iter() {
                let Some(run) = event.runs[device.index()] else {
                    continue;
                };
                let devices = problem.devices().iter();
                let alike = devices.filter(|(_, other)| other.arithmetic == what.arithmetic);
                let before = alike.filter_map(|(other, _)| self.events[made].runs[other.index()]);
                let terms: Vec<(Column, f64)> = before
                    .map(|column| (column, -1.0))
                    .chain([(run, 1.0)])
                    .collect();
                self.model.row(f64::NEG_INFINITY, 0.0, &terms);
            }
        }
    }

    fn groups(&mut self) {
        let problem = self.system.problem;
        for group in problem.together() {
            let devices = problem.devices().keys();
            let homes: Vec<Column> = devices.map(|_| self.model.binary(0.0)).collect();
            let terms: Vec<(Column, f64)> = homes.iter().map(|&home| (home, 1.0)).collect();
            self.model.row(1.0, 1.0, &terms);
            for event in &self.events {
                let runs = event.runs.iter().zip(&homes);
                let runs = runs.filter(|_| group.contains(&event.task));
                for (run, &home) in runs.filter_map(|(run, home)| Some(((*run)?, home))) {
                    self.model
                        .row(f64::NEG_INFINITY, 0.0, &[(run, 1.0), (home, -1.0)]);
                }
            }
        }
    }

    fn energy(&mut self) {
        let problem = self.system.problem;
        for device in self.devices() {
            let Some(cap) = self.system.capacities.joules(device) else {
                continue;
            };
            let unit = cap.max(f64::MIN_POSITIVE);
            let runs = self.events.iter().filter_map(|event| {
                let mode = problem.task(event.task).mode(device)?;
                Some((event.runs[device.index()]?, mode.joules / unit))
            });
            let terms: Vec<(Column, f64)> = runs.collect();
            self.model.row(f64::NEG_INFINITY, cap / unit, &terms);
        }
    }

    /// The moves of a solution.
    fn sequence(&self, values: &[f64]) -> Sequence {
        let problem = self.system.problem;
        let on = |column: Column| values[column.index()] > 0.5;
        let mut there: Vec<Vec<bool>> = problem
            .devices()
            .keys()
            .map(|device| {
                let given = |value: &scrimp_plan::Value| value.origin == Origin::Given(device);
                problem.values().values().map(given).collect()
            })
            .collect();
        let mut moves = Vec::new();
        for event in &self.events {
            let before = there.clone();
            for copy in event.copies.iter().filter(|copy| on(copy.column)) {
                let link = &problem.links()[copy.link];
                let (from, to, v) = (link.from, link.to, copy.value.index());
                if before[from.index()][v] && !there[to.index()][v] {
                    let value = copy.value;
                    moves.push(Move::Copy { value, from, to });
                    there[to.index()][v] = true;
                }
            }
            for (there, held) in there.iter_mut().zip(&event.held) {
                for (there, held) in there.iter_mut().zip(held) {
                    *there &= held.is_some_and(on);
                }
            }
            for device in problem.devices().keys() {
                let here = &mut there[device.index()];
                let outputs = &problem.task(event.task).outputs;
                let useful = outputs.is_empty() || outputs.iter().any(|v| !here[v.index()]);
                if event.runs[device.index()].is_some_and(on) && useful {
                    let task = event.task;
                    moves.push(Move::Run { task, device });
                    outputs.iter().for_each(|v| here[v.index()] = true);
                }
            }
        }
        Sequence { moves }
    }
}
