//! Plans for one device from a sequence of runs alone: where each value is freed follows from it.

use cranelift_entity::{EntityRef, SecondaryMap};
use thiserror::Error;

use crate::ids::{DeviceId, TaskId, ValueId};
use crate::plan::{Plan, Step};
use crate::problem::{Keep, Origin, Problem, Task};

/// Why a sequence of runs on one device isn't a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named after what they hold; the message says the rest"
)]
pub enum SequenceError {
    /// A device id out of range.
    #[error("{device} isn't a device of the problem")]
    UnknownDevice { device: DeviceId },
    /// A task id out of range.
    #[error("run {position} of the sequence is {task}, which isn't a task of the problem")]
    UnknownTask { position: usize, task: TaskId },
    /// A task that can't run on the device.
    #[error("run {position} of the sequence is {task} ({name}), which can't run on {device}")]
    NoMode {
        position: usize,
        task: TaskId,
        name: String,
        device: DeviceId,
    },
    /// A second run of a task that may run once.
    #[error(
        "run {position} of the sequence repeats {task} ({name}), which may run only once; its first run is {first}"
    )]
    NotRerunnable {
        position: usize,
        task: TaskId,
        name: String,
        first: usize,
    },
    /// An input that no run before makes.
    #[error(
        "run {position} of the sequence, {task} ({name}), reads {value}, which isn't made before it; run its producer first"
    )]
    NotMade {
        position: usize,
        task: TaskId,
        name: String,
        value: ValueId,
    },
    /// An input whose latest instance an earlier run took over.
    #[error(
        "run {position} of the sequence, {task} ({name}), reads {value}, which run {overwriter} overwrote; run its producer again in between"
    )]
    Overwritten {
        position: usize,
        task: TaskId,
        name: String,
        value: ValueId,
        overwriter: usize,
    },
    /// A task without a run.
    #[error("the sequence never runs {task} ({name}); every task runs at least once")]
    NeverRun { task: TaskId, name: String },
    /// A value that must end on another device.
    #[error(
        "{value} ({name}) must be on {device} at the end, which no sequence of runs elsewhere brings about"
    )]
    KeptElsewhere {
        value: ValueId,
        name: String,
        device: DeviceId,
    },
}

/// The latest instance of a value while the sequence is walked.
#[derive(Clone, Copy, Default)]
enum Instance {
    /// Not made yet, or given on another device.
    #[default]
    None,
    /// There. `last` is the run after which it is free to go: its last use so far, or else the run
    /// that made it (nothing for a given value without a use).
    Present { last: Option<usize> },
    /// Its buffer went to an output of this run.
    Consumed { by: usize },
}

impl Plan {
    /// The plan that runs `tasks` one after another on `device`. Each use is served by the latest run
    /// of its producer; a value is freed right after the last use that this run serves, at once if
    /// there is none, and not at all if it is kept and this is the producer's last run. An
    /// overwritten value needs no freeing. Runs in O(uses + values).
    ///
    /// # Errors
    /// The first run that can't happen: an input that isn't made or was overwritten since, a task
    /// that can't run there or again; or a task that never runs.
    pub fn from_runs(
        problem: &Problem,
        device: DeviceId,
        tasks: &[TaskId],
    ) -> Result<Plan, SequenceError> {
        let frees = Walk::new(problem, device)?.all(tasks)?;
        let mut steps = Vec::with_capacity(2 * tasks.len() + frees.at_start.len());
        steps.extend(
            frees
                .at_start
                .iter()
                .map(|&value| Step::Free { value, device }),
        );
        // Counting sort by run keeps the order in which the instances ended, hence is deterministic.
        let mut heads = vec![0usize; tasks.len() + 1];
        for &(run, _) in &frees.after {
            heads[run + 1] += 1;
        }
        for run in 0..tasks.len() {
            heads[run + 1] += heads[run];
        }
        let mut sorted = vec![ValueId::new(0); frees.after.len()];
        let mut next = heads.clone();
        for &(run, value) in &frees.after {
            sorted[next[run]] = value;
            next[run] += 1;
        }
        for (run, &task) in tasks.iter().enumerate() {
            steps.push(Step::Run { task, device });
            steps.extend(
                sorted[heads[run]..heads[run + 1]]
                    .iter()
                    .map(|&value| Step::Free { value, device }),
            );
        }
        Ok(Plan { steps })
    }

    /// The plan that recomputes nothing: all tasks in index order, each value freed after its last
    /// use.
    ///
    /// # Errors
    /// If the device alone can't do it: a task has no mode there, or a value is given or must end
    /// elsewhere.
    pub fn keep_all(problem: &Problem, device: DeviceId) -> Result<Plan, SequenceError> {
        let order: Vec<TaskId> = problem.tasks().keys().collect();
        Plan::from_runs(problem, device, &order)
    }
}

/// Where values are freed.
#[derive(Default)]
struct Frees {
    /// Given values that nothing reads or keeps.
    at_start: Vec<ValueId>,
    /// `(run, value)`: right after that run.
    after: Vec<(usize, ValueId)>,
}

/// One pass over the sequence.
struct Walk<'a> {
    problem: &'a Problem,
    device: DeviceId,
    latest: SecondaryMap<ValueId, Instance>,
    first_run: SecondaryMap<TaskId, Option<usize>>,
    frees: Frees,
}

impl<'a> Walk<'a> {
    fn new(problem: &'a Problem, device: DeviceId) -> Result<Self, SequenceError> {
        if device.index() >= problem.devices().len() {
            return Err(SequenceError::UnknownDevice { device });
        }
        let mut latest = SecondaryMap::with_capacity(problem.values().len());
        for (id, value) in problem.values().iter() {
            if value.origin == Origin::Given(device) {
                latest[id] = Instance::Present { last: None };
            }
            if let Keep::On(other) = value.keep
                && other != device
                && value.origin != Origin::Given(other)
            {
                return Err(SequenceError::KeptElsewhere {
                    value: id,
                    name: value.name.clone(),
                    device: other,
                });
            }
        }
        Ok(Walk {
            problem,
            device,
            latest,
            first_run: SecondaryMap::new(),
            frees: Frees::default(),
        })
    }

    fn all(mut self, tasks: &[TaskId]) -> Result<Frees, SequenceError> {
        for (position, &task) in tasks.iter().enumerate() {
            self.run(position, task)?;
        }
        for (task, Task { name, .. }) in self.problem.tasks().iter() {
            if self.first_run[task].is_none() {
                return Err(SequenceError::NeverRun {
                    task,
                    name: name.clone(),
                });
            }
        }
        for (value, what) in self.problem.values().iter() {
            if what.keep == Keep::No {
                self.end(value);
            }
        }
        Ok(self.frees)
    }

    fn run(&mut self, position: usize, task: TaskId) -> Result<(), SequenceError> {
        let Some(what) = self.problem.tasks().get(task) else {
            return Err(SequenceError::UnknownTask { position, task });
        };
        let name = || what.name.clone();
        if what.mode(self.device).is_none() {
            return Err(SequenceError::NoMode {
                position,
                task,
                name: name(),
                device: self.device,
            });
        }
        match self.first_run[task] {
            Some(first) if !what.rerunnable => {
                return Err(SequenceError::NotRerunnable {
                    position,
                    task,
                    name: name(),
                    first,
                });
            }
            Some(_) => {}
            None => self.first_run[task] = Some(position),
        }
        for &value in &what.inputs {
            self.latest[value] = match self.latest[value] {
                Instance::None => {
                    return Err(SequenceError::NotMade {
                        position,
                        task,
                        name: name(),
                        value,
                    });
                }
                Instance::Consumed { by } => {
                    return Err(SequenceError::Overwritten {
                        position,
                        task,
                        name: name(),
                        value,
                        overwriter: by,
                    });
                }
                Instance::Present { .. } if what.overwritten_by(value).is_some() => {
                    Instance::Consumed { by: position }
                }
                Instance::Present { .. } => Instance::Present {
                    last: Some(position),
                },
            };
        }
        for &value in &what.outputs {
            self.end(value);
            self.latest[value] = Instance::Present {
                last: Some(position),
            };
        }
        Ok(())
    }

    /// The latest instance serves no further use: it goes right after its last one.
    fn end(&mut self, value: ValueId) {
        if let Instance::Present { last } = self.latest[value] {
            match last {
                Some(run) => self.frees.after.push((run, value)),
                None => self.frees.at_start.push(value),
            }
        }
    }
}
