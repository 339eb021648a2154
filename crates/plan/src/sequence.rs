//! Sequences of moves: the decisions of planners, which are what runs where and what is copied. They determine
//! where each value is freed, and so the whole plan.

use cranelift_entity::{EntityRef, SecondaryMap};
use thiserror::Error;

use crate::ids::{DeviceId, TaskId, ValueId};
use crate::plan::{Plan, Step};
use crate::problem::{Keep, Origin, Problem, Task};

/// One decision of a planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// The task runs on the device.
    Run {
        /// The task.
        task: TaskId,
        /// The device, which computes.
        device: DeviceId,
    },
    /// The value is copied over the link between two devices.
    Copy {
        /// The value.
        value: ValueId,
        /// The source device.
        from: DeviceId,
        /// The destination device.
        to: DeviceId,
    },
    /// The value's bytes are held on the device until here, so that a copy of it may end meanwhile. No step comes
    /// of this.
    Release {
        /// The value.
        value: ValueId,
        /// The device that holds it.
        device: DeviceId,
    },
}

/// The moves of all devices in one order of issue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// In order of issue.
    pub moves: Vec<Move>,
}

impl Sequence {
    /// A sequence of runs alone, all on one device.
    #[must_use]
    pub fn of_runs(device: DeviceId, tasks: impl IntoIterator<Item = TaskId>) -> Sequence {
        let run = |task| Move::Run { task, device };
        Sequence {
            moves: tasks.into_iter().map(run).collect(),
        }
    }

    /// The tasks in the order they run.
    pub fn runs(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.moves.iter().filter_map(|made| match *made {
            Move::Run { task, .. } => Some(task),
            Move::Copy { .. } | Move::Release { .. } => None,
        })
    }

    /// The plan that makes these moves. Each use of a value is served by its latest instance on the device of
    /// the use: the latest run of its producer there, or the latest copy to it. An instance is freed right
    /// after the last use it serves or its release, or at once if it serves none; an instance that must be kept is never
    /// freed. If a value may be kept anywhere, the instance that is used last is; of a copy and its source, the
    /// copy. What a task overwrites needs no freeing. Takes
    /// O(uses + values · devices) time.
    ///
    /// # Errors
    /// The first move that can't happen (an input that is absent or was overwritten since, a task that can't
    /// run there or again, a copy without a link), or a task that never runs.
    pub fn plan(&self, problem: &Problem) -> Result<Plan, SequenceError> {
        let frees = Walk::new(problem).all(&self.moves)?;
        let mut steps = Vec::with_capacity(2 * self.moves.len() + frees.at_start.len());
        steps.extend(frees.at_start.iter().map(Instance::free));
        // The counting sort is stable: instances freed after one move stay in the order in which they ended.
        let mut heads = vec![0usize; self.moves.len() + 1];
        for &(at, _) in &frees.after {
            heads[at + 1] += 1;
        }
        for at in 0..self.moves.len() {
            heads[at + 1] += heads[at];
        }
        let mut next = heads.clone();
        let mut sorted = vec![0usize; frees.after.len()];
        for (k, &(at, _)) in frees.after.iter().enumerate() {
            sorted[next[at]] = k;
            next[at] += 1;
        }
        for (at, made) in self.moves.iter().enumerate() {
            steps.extend(match *made {
                Move::Run { task, device } => Some(Step::Run { task, device }),
                Move::Copy { value, from, to } => Some(Step::Copy { value, from, to }),
                Move::Release { .. } => None,
            });
            let ended = sorted[heads[at]..heads[at + 1]].iter();
            steps.extend(ended.map(|&k| frees.after[k].1.free()));
        }
        Ok(Plan { steps })
    }
}

/// Why a sequence of moves isn't a plan.
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
    #[error("move {position} of the sequence is {task}, which isn't a task of the problem")]
    UnknownTask { position: usize, task: TaskId },
    /// A task that can't run on the device.
    #[error("move {position} of the sequence is {task} ({name}), which can't run on {device}")]
    NoMode {
        position: usize,
        task: TaskId,
        name: String,
        device: DeviceId,
    },
    /// A second run of a task that may run only once.
    #[error(
        "move {position} of the sequence repeats {task} ({name}), which may run only once; its first run is {first}"
    )]
    NotRerunnable {
        position: usize,
        task: TaskId,
        name: String,
        first: usize,
    },
    /// An input that no earlier move makes or brings.
    #[error(
        "move {position} of the sequence, {task} ({name}), reads {value}, which isn't on {device} before it; run its producer there or copy it there first"
    )]
    NotMade {
        position: usize,
        task: TaskId,
        name: String,
        value: ValueId,
        device: DeviceId,
    },
    /// An input whose latest instance an earlier run overwrote.
    #[error(
        "move {position} of the sequence, {task} ({name}), reads {value}, which move {overwriter} overwrote; run its producer again in between"
    )]
    Overwritten {
        position: usize,
        task: TaskId,
        name: String,
        value: ValueId,
        overwriter: usize,
    },
    /// A copy of a value that is absent at its source.
    #[error(
        "move {position} of the sequence copies {value} ({name}) from {from}, where it isn't at that time"
    )]
    NotAtSource {
        position: usize,
        value: ValueId,
        name: String,
        from: DeviceId,
    },
    /// Something that isn't a value.
    #[error("move {position} of the sequence names {value}, which isn't a value of the problem")]
    UnknownValue { position: usize, value: ValueId },
    /// A release of a value that is absent.
    #[error(
        "move {position} of the sequence releases {value}, which isn't on {device} at that time"
    )]
    NotHeld {
        position: usize,
        value: ValueId,
        device: DeviceId,
    },
    /// A copy between devices without a link.
    #[error(
        "move {position} of the sequence copies from {from} to {to}, between which there is no link"
    )]
    NoLink {
        position: usize,
        from: DeviceId,
        to: DeviceId,
    },
    /// A task without a run.
    #[error("the sequence never runs {task} ({name}); every task runs at least once")]
    NeverRun { task: TaskId, name: String },
    /// A value that must be on another device at the end.
    #[error("{value} ({name}) must be on {device} at the end and isn't: copy it there")]
    KeptElsewhere {
        value: ValueId,
        name: String,
        device: DeviceId,
    },
}

/// The state of a value in one memory during the walk over the sequence.
#[derive(Clone, Copy, Default)]
enum There {
    /// The value is absent.
    #[default]
    No,
    /// The value is present since move `since`; `None` for a given value. It may be freed after move `last`, which
    /// is its last use so far or else the move that put it there; `None` for a given value without a use.
    Yes {
        since: Option<usize>,
        last: Option<usize>,
    },
    /// Its buffer went to an output of the run at this position.
    Consumed { by: usize },
}

/// A value in a memory.
#[derive(Clone, Copy)]
struct Instance {
    value: ValueId,
    device: DeviceId,
}

impl Instance {
    fn free(&self) -> Step {
        Step::Free {
            value: self.value,
            device: self.device,
        }
    }
}

impl Plan {
    /// The plan that runs `tasks` one after another on `device`; see [`Sequence::plan`].
    ///
    /// # Errors
    /// The errors of [`Sequence::plan`].
    pub fn from_runs(
        problem: &Problem,
        device: DeviceId,
        tasks: &[TaskId],
    ) -> Result<Plan, SequenceError> {
        Sequence::of_runs(device, tasks.iter().copied()).plan(problem)
    }

    /// The plan that recomputes nothing: all tasks in index order, each value freed after its last
    /// use.
    ///
    /// If the device alone can't run everything: a task has no mode there, or a value is given or must end
    /// elsewhere.
    pub fn keep_all(problem: &Problem, device: DeviceId) -> Result<Plan, SequenceError> {
        Sequence::of_runs(device, problem.tasks().keys()).plan(problem)
    }
}

/// The points at which values are freed.
#[derive(Default)]
struct Frees {
    /// Given values that nothing reads or keeps.
    at_start: Vec<Instance>,
    /// Values to free right after a move.
    after: Vec<(usize, Instance)>,
}

/// One pass over the sequence.
struct Walk<'a> {
    problem: &'a Problem,
    /// By value and device, in one array.
    there: Vec<There>,
    first_run: SecondaryMap<TaskId, Option<usize>>,
    frees: Frees,
}

impl<'a> Walk<'a> {
    fn new(problem: &'a Problem) -> Self {
        let places = problem.values().len() * problem.devices().len();
        let mut walk = Walk {
            problem,
            there: vec![There::No; places],
            first_run: SecondaryMap::new(),
            frees: Frees::default(),
        };
        for (value, what) in problem.values().iter() {
            if let Origin::Given(device) = what.origin {
                *walk.at(value, device) = There::Yes {
                    since: None,
                    last: None,
                };
            }
        }
        walk
    }

    fn at(&mut self, value: ValueId, device: DeviceId) -> &mut There {
        &mut self.there[value.index() * self.problem.devices().len() + device.index()]
    }

    fn all(mut self, moves: &[Move]) -> Result<Frees, SequenceError> {
        for (position, &made) in moves.iter().enumerate() {
            match made {
                Move::Run { task, device } => self.run(position, task, device)?,
                Move::Copy { value, from, to } => self.copy(position, value, [from, to])?,
                Move::Release { value, device } => self.hold(position, value, device)?,
            }
        }
        for (task, Task { name, .. }) in self.problem.tasks().iter() {
            if self.first_run[task].is_none() {
                return Err(SequenceError::NeverRun {
                    task,
                    name: name.clone(),
                });
            }
        }
        for value in self.problem.values().keys() {
            let kept = self.kept(value)?;
            for device in self.problem.devices().keys() {
                if kept != Some(device) {
                    self.end(value, device);
                }
            }
        }
        Ok(self.frees)
    }

    /// The device on which a kept value stays after the last move.
    fn kept(&mut self, value: ValueId) -> Result<Option<DeviceId>, SequenceError> {
        let problem = self.problem;
        match problem.value(value).keep {
            Keep::No => Ok(None),
            Keep::On(device) => match *self.at(value, device) {
                There::Yes { .. } => Ok(Some(device)),
                _ => Err(SequenceError::KeptElsewhere {
                    value,
                    name: problem.value(value).name.clone(),
                    device,
                }),
            },
            Keep::Anywhere => {
                let devices = problem.devices().keys();
                let there = devices.filter_map(|device| match *self.at(value, device) {
                    There::Yes { since, last } => Some((last, since, device)),
                    _ => None,
                });
                Ok(there.max().map(|(.., id)| id))
            }
        }
    }

    fn run(
        &mut self,
        position: usize,
        task: TaskId,
        device: DeviceId,
    ) -> Result<(), SequenceError> {
        let Some(what) = self.problem.tasks().get(task) else {
            return Err(SequenceError::UnknownTask { position, task });
        };
        let name = || what.name.clone();
        self.known(device)?;
        if what.mode(device).is_none() {
            return Err(SequenceError::NoMode {
                position,
                task,
                name: name(),
                device,
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
            let there = self.at(value, device);
            *there = match *there {
                There::No => {
                    return Err(SequenceError::NotMade {
                        position,
                        task,
                        name: name(),
                        value,
                        device,
                    });
                }
                There::Consumed { by } => {
                    return Err(SequenceError::Overwritten {
                        position,
                        task,
                        name: name(),
                        value,
                        overwriter: by,
                    });
                }
                There::Yes { .. } if what.overwritten_by(value).is_some() => {
                    There::Consumed { by: position }
                }
                There::Yes { since, .. } => There::Yes {
                    since,
                    last: Some(position),
                },
            };
        }
        for &value in &what.outputs {
            self.put(position, value, device);
        }
        Ok(())
    }

    fn copy(
        &mut self,
        position: usize,
        value: ValueId,
        [from, to]: [DeviceId; 2],
    ) -> Result<(), SequenceError> {
        let Some(what) = self.problem.values().get(value) else {
            return Err(SequenceError::UnknownValue { position, value });
        };
        if self.problem.link_between(from, to).is_none() {
            return Err(SequenceError::NoLink { position, from, to });
        }
        let source = self.at(value, from);
        let There::Yes { last, .. } = source else {
            return Err(SequenceError::NotAtSource {
                position,
                value,
                name: what.name.clone(),
                from,
            });
        };
        *last = Some(position);
        self.put(position, value, to);
        Ok(())
    }

    /// Holds a value on a device until this position.
    fn hold(
        &mut self,
        position: usize,
        value: ValueId,
        device: DeviceId,
    ) -> Result<(), SequenceError> {
        if self.problem.values().get(value).is_none() {
            return Err(SequenceError::UnknownValue { position, value });
        }
        self.known(device)?;
        match self.at(value, device) {
            There::Yes { last, .. } => *last = Some(position),
            _ => {
                return Err(SequenceError::NotHeld {
                    position,
                    value,
                    device,
                });
            }
        }
        Ok(())
    }

    fn known(&self, device: DeviceId) -> Result<(), SequenceError> {
        if self.problem.devices().is_valid(device) {
            return Ok(());
        }
        Err(SequenceError::UnknownDevice { device })
    }

    /// Starts a new instance, which replaces the one before.
    fn put(&mut self, position: usize, value: ValueId, device: DeviceId) {
        self.end(value, device);
        *self.at(value, device) = There::Yes {
            since: Some(position),
            last: Some(position),
        };
    }

    /// Ends the latest instance: it is freed right after its last use.
    fn end(&mut self, value: ValueId, device: DeviceId) {
        if let There::Yes { last, .. } = *self.at(value, device) {
            let instance = Instance { value, device };
            match last {
                Some(at) => self.frees.after.push((at, instance)),
                None => self.frees.at_start.push(instance),
            }
        }
    }
}
