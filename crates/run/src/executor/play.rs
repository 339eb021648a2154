//! One step of training or inference: each device does its part of a schedule in order, while copiers do the
//! copies.

#![allow(
    unsafe_code,
    reason = "runs beside copies and other devices, which a checked layout allows"
)]

use scrimp_gpu::Event;
use scrimp_graph::{Graph, NodeId, TensorId};
use scrimp_plan::{DeviceId, TaskId};
use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::ahead::Ahead;
use super::memories::{Location, Memories};
use super::progress::Progress;
use super::schedule::{Action, Launch, Schedule, Transfer};
use super::trace::{Record, RunTrace};
use crate::compiled::Compiled;
use crate::error::{RunError, unless_panicked};
use crate::memory::Memory;
use crate::processor::Processor;
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
    /// Each of the node's outputs. There is none if nothing is computed.
    pub fn outputs(&self) -> impl Iterator<Item = (TensorId, Output<'_>)> {
        let tensors = self.graph.node(self.node).outputs.iter();
        let each = tensors.zip(&self.launch.outputs);
        let each = each.filter(|(_, at)| !matches!(self.memories.of(at.device), Memory::Null(_)));
        each.map(|(&tensor, &at)| {
            let memory = self.memories.of(at.device);
            let span = at.span;
            (tensor, Output { memory, span })
        })
    }
}

/// An output of a run that has just ended.
#[derive(Debug)]
pub struct Output<'a> {
    memory: &'a Memory,
    span: Span,
}

impl<'a> Output<'a> {
    /// Its memory, unrounded and in the device's format. From a memory without addresses it is copied.
    ///
    /// # Errors
    /// The device fails.
    pub fn bytes(&self) -> Result<Cow<'a, [u8]>, RunError> {
        let Memory::Gpu(memory) = self.memory else {
            return Ok(Cow::Borrowed(
                self.memory.read(self.span).unwrap_or_default(),
            ));
        };
        let mut bytes = vec![0; self.span.bytes as usize];
        memory.load_results(self.span.offset, &mut bytes)?;
        Ok(Cow::Owned(bytes))
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
    pub progress: &'a Progress,
    /// Seed of random delays of this step's copies.
    pub delays: Option<u64>,
    pub observer: Option<&'a Mutex<Observer<'o>>>,
}

impl Stage<'_, '_> {
    /// The name of a node.
    fn name(&self, node: NodeId) -> &str {
        &self.compiled[0].graph().node(node).name
    }

    /// Seconds since the step began.
    pub fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

/// A device that computes.
#[derive(Debug)]
pub(super) struct Player {
    /// Its number among those that compute.
    number: usize,
    /// What messages call it.
    name: String,
    pub record: Record,
}

impl Player {
    pub fn new(number: usize, name: &str, record: Record) -> Player {
        Player {
            number,
            name: format!("device `{name}`"),
            record,
        }
    }

    /// Does the device's part of a step. If that fails, the step ends for all.
    pub fn play(&mut self, stage: &Stage<'_, '_>) {
        let processor = stage.compiled[self.number].processor();
        self.record.begin();
        let memory = stage.memories.of(self.record.device);
        let name = |step: usize| match &stage.schedule.actions[step] {
            Action::Run(launch) => stage.name(launch.node).to_owned(),
            Action::Free(_) | Action::Copy(_) => String::new(),
        };
        let part = Part {
            number: self.number,
            stage,
            record: &mut self.record,
            ahead: match (processor, memory) {
                (Processor::Gpu(device), Memory::Gpu(memory)) => {
                    Some(Ahead::new(device, memory, &name))
                }
                _ => None,
            },
        };
        let play = || processor.enter(|| part.play());
        if let Err(error) = unless_panicked(&self.name, play) {
            stage.progress.fail(error);
        }
    }
}

/// A device's part of a step.
struct Part<'a, 'o> {
    number: usize,
    stage: &'a Stage<'a, 'o>,
    record: &'a mut Record,
    /// What a driver was given, on a device whose host goes ahead.
    ahead: Option<Ahead<'a>>,
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
            self.after(step)?;
        }
        match self.ahead.take() {
            Some(ahead) => ahead.end(self.record),
            None => Ok(()),
        }
    }

    /// Waits for the copies that must precede a step.
    fn before(&mut self, step: usize) -> Result<(), RunError> {
        let clock = &self.stage.schedule.waits.before[step];
        if clock.is_empty() {
            return Ok(());
        }
        let start = self.stage.now();
        let events = self.stage.progress.let_device_wait(clock)?;
        if let Some(ahead) = &mut self.ahead {
            return ahead.wait(events);
        }
        events.iter().try_for_each(Event::wait)?;
        self.record.waiting += self.stage.now() - start;
        Ok(())
    }

    /// Tells the copies that wait for it that a step is done.
    fn after(&self, step: usize) -> Result<(), RunError> {
        if self.stage.schedule.waits.awaited[step] {
            let events = self.ahead.as_ref().map_or(Ok(Vec::new()), Ahead::so_far)?;
            self.stage.progress.stepped(self.number, step + 1, events);
        }
        Ok(())
    }

    /// Overwrites a place with NaN, if that is asked for.
    ///
    /// # Safety
    /// Nothing uses the place but what the device was given before.
    unsafe fn spoil(&mut self, at: Location) -> Result<(), RunError> {
        match (self.stage.memories.poison(), &mut self.ahead) {
            (None, _) => Ok(()),
            (Some(byte), Some(ahead)) => ahead.fill(at.span, byte),
            // SAFETY: the caller's promise.
            (Some(byte), None) => unsafe {
                self.stage.memories.of(at.device).fill_beside(at.span, byte)
            },
        }
    }

    fn run(&mut self, step: usize, launch: &Launch) -> Result<(), RunError> {
        let Launch { task, node, .. } = *launch;
        let (compiled, memories) = (&self.stage.compiled[self.number], self.stage.memories);
        for &at in launch.fresh.iter().chain(&launch.workspace) {
            // SAFETY: the checked layout gives this place to this run alone.
            unsafe { self.spoil(at)? };
        }
        self.record.run(launch);
        let start = self.stage.now();
        let memory = memories.of(launch.device);
        // SAFETY: the copies that write what this run reads, and those that read or write what it writes, are
        // done or haven't begun: `before` waited for the former or has the device wait for them, and the latter wait
        // for this run. All other copies use other places, as the checked layout proves, and other devices use other
        // memories.
        let done = unsafe {
            match &mut self.ahead {
                Some(ahead) => ahead.run(&launch.job, self.record.runs.len()),
                None => compiled.processor().run_beside(&launch.job, memory),
            }
        };
        done.map_err(|error| RunError::in_node(self.stage.name(node), error))?;
        // Where the host goes ahead, the device tells the times at the end.
        let seconds = self.stage.now() - start;
        self.record.runs.push(RunTrace {
            step,
            task,
            start,
            seconds,
        });
        if let Some(ahead) = &mut self.ahead {
            ahead.look(self.record)?;
        }
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
        // SAFETY: all copies of the buffer are done, or the device waits for them; nothing has taken its place yet.
        unsafe { self.spoil(at) }
    }

    /// Takes the bytes of a copy, which a copier does.
    fn copy(&mut self, transfer: &Transfer) -> Result<(), RunError> {
        self.record.copy(transfer);
        // SAFETY: the place is free, and the copy into it waits for this step.
        unsafe { self.spoil(transfer.to) }
    }
}
