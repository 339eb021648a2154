//! One step of training or inference: each device does its part of a schedule in order, while copiers do the
//! copies.

#![allow(
    unsafe_code,
    reason = "runs beside copies and other devices, which a checked layout allows"
)]

use scrimp_graph::{Graph, NodeId, TensorId};
use scrimp_plan::{DeviceId, TaskId};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::copiers::Copying;
use super::memories::{Location, Memories};
use super::schedule::{Action, Launch, Schedule, Transfer};
use super::trace::{Record, RunTrace};
use crate::compiled::Compiled;
use crate::error::{RunError, unless_panicked};
use crate::span::Span;

/// A run that has just ended, as observers see it.
pub struct RunEvent<'a> {
    /// Index of the plan's step.
    pub step: usize,
    /// The task that ran.
    pub task: TaskId,
    /// The node it ran.
    pub node: NodeId,
    /// The device that ran it.
    pub device: DeviceId,
    /// Whether the plan has an earlier run of the task.
    pub again: bool,
    graph: &'a Graph,
    launch: &'a Launch,
    memories: &'a Memories,
}

impl RunEvent<'_> {
    /// The memory of each of the node's outputs, unrounded and in the device's format. There is none if
    /// nothing is computed.
    pub fn outputs(&self) -> impl Iterator<Item = (TensorId, &[u8])> {
        let tensors = self.graph.node(self.node).outputs.iter();
        tensors
            .zip(&self.launch.outputs)
            .filter_map(|(&tensor, &at)| Some((tensor, self.memories.read(at)?)))
    }
}

impl<'a> RunEvent<'a> {
    /// A stretch of the memory of the device that ran; `None` if that memory has no contents.
    pub(crate) fn memory(&self, span: Span) -> Option<&'a [u8]> {
        let device = self.launch.device;
        self.memories.read(Location { device, span })
    }
}

/// Called after each run. Where several devices run side by side, one of them calls at a time.
pub type Observer<'a> = &'a mut (dyn FnMut(&RunEvent<'_>) + Send);

/// What all devices of a step share.
pub(super) struct Stage<'a, 'o> {
    pub compiled: &'a [Compiled<'a>],
    pub memories: &'a Memories,
    pub schedule: &'a Schedule,
    pub start: Instant,
    /// `None` if one device computes and nothing is copied.
    pub copying: Option<&'a Copying<'a>>,
    pub observer: Option<&'a Mutex<Observer<'o>>>,
}

/// A device that computes.
#[derive(Debug)]
pub(super) struct Player {
    /// Its number among those that compute.
    number: usize,
    name: String,
    pub record: Record,
    /// How its last step ended.
    done: Result<(), RunError>,
}

impl Player {
    pub fn new(number: usize, name: &str, record: Record) -> Player {
        Player {
            number,
            name: name.into(),
            record,
            done: Ok(()),
        }
    }

    /// Does the device's part of a step. If that fails, the step ends for all devices.
    fn play(&mut self, stage: &Stage<'_, '_>) {
        let processor = stage.compiled[self.number].processor();
        let part = Part {
            number: self.number,
            stage,
            record: &mut self.record,
        };
        let play = || processor.enter(|| part.play());
        self.done = unless_panicked(&format!("device `{}`", self.name), play);
        if let (Err(error), Some(copying)) = (&self.done, stage.copying) {
            copying.fail(error.clone());
        }
    }
}

/// A step of all devices, side by side: the first works on this thread, each other one on a thread of its own.
///
/// # Errors
/// One of them fails, or a thread can't be started.
pub(super) fn together(players: &mut [Player], stage: &Stage<'_, '_>) -> Result<(), RunError> {
    let threads = players.len();
    let Some((first, others)) = players.split_first_mut() else {
        return Ok(());
    };
    std::thread::scope(|scope| {
        for player in others {
            let thread = std::thread::Builder::new().name(format!("scrimp-{}", player.name));
            player.done = Ok(());
            if let Err(error) = thread.spawn_scoped(scope, || player.play(stage))
                && let Some(copying) = stage.copying
            {
                copying.fail(RunError::Threads {
                    threads,
                    reason: error.to_string(),
                });
            }
        }
        first.play(stage);
    });
    players.iter().try_for_each(|player| player.done.clone())
}

/// A device's part of a step.
struct Part<'a, 'o> {
    number: usize,
    stage: &'a Stage<'a, 'o>,
    record: &'a mut Record,
}

impl Part<'_, '_> {
    /// Call this inside [`crate::processor::Processor::enter`].
    fn play(mut self) -> Result<(), RunError> {
        for index in 0..self.record.steps.len() {
            let step = self.record.steps[index];
            self.before(step)?;
            match &self.stage.schedule.actions[step] {
                Action::Run(launch) => self.run(step, launch)?,
                Action::Free(at) => self.free(*at)?,
                Action::Copy(transfer) => self.copy(transfer)?,
            }
            self.after(step);
        }
        Ok(())
    }

    fn now(&self) -> f64 {
        self.stage.start.elapsed().as_secs_f64()
    }

    /// Waits for the copies that must precede a step.
    fn before(&mut self, step: usize) -> Result<(), RunError> {
        let clock = &self.stage.schedule.waits.before[step];
        if let Some(copying) = self.stage.copying.filter(|_| !clock.is_empty()) {
            let start = self.now();
            copying.wait(clock)?;
            self.record.waiting += self.now() - start;
        }
        Ok(())
    }

    /// Tells the copies that wait for it that a step is done.
    fn after(&self, step: usize) {
        if let Some(copying) = self.stage.copying
            && self.stage.schedule.waits.awaited[step]
        {
            copying.advance(self.number, step + 1);
        }
    }

    fn run(&mut self, step: usize, launch: &Launch) -> Result<(), RunError> {
        let Launch { task, node, .. } = *launch;
        let (compiled, memories) = (&self.stage.compiled[self.number], self.stage.memories);
        for &at in launch.fresh.iter().chain(&launch.workspace) {
            // SAFETY: the checked layout gives this place to this run alone.
            unsafe { memories.spoil(at)? };
        }
        self.record.run(launch);
        let start = self.now();
        let memory = memories.of(launch.device);
        // SAFETY: the copies that write what this run reads, and those that read or write what it writes, are
        // done or haven't begun: `before` waited for the former, and the latter wait for this run. All other
        // copies use other places, as the checked layout proves, and other devices use other memories.
        let done = unsafe { compiled.processor().run_beside(&launch.job, memory) };
        done.map_err(|error| RunError::in_node(&compiled.graph().node(node).name, error))?;
        self.record.runs.push(RunTrace {
            step,
            task,
            start,
            seconds: self.now() - start,
        });
        if let Some(observer) = self.stage.observer {
            let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
            observer(&RunEvent {
                step,
                task,
                node,
                device: launch.device,
                again: launch.again,
                graph: compiled.graph(),
                launch,
                memories,
            });
        }
        Ok(())
    }

    fn free(&mut self, at: Location) -> Result<(), RunError> {
        self.record.free(at);
        // SAFETY: all copies of the buffer are done, and nothing has taken its place yet.
        unsafe { self.stage.memories.spoil(at) }
    }

    /// Takes the bytes of a copy, which a copier does.
    fn copy(&mut self, transfer: &Transfer) -> Result<(), RunError> {
        self.record.copy(transfer);
        // SAFETY: the place is free, and the copy into it waits for this step.
        unsafe { self.stage.memories.spoil(transfer.to) }
    }
}
