//! One step of training or inference: performs the runs of a schedule one after the other, while copiers do its
//! copies.

#![allow(
    unsafe_code,
    reason = "runs beside copies, which a checked layout allows"
)]

use scrimp_graph::{Graph, NodeId, TensorId};
use scrimp_plan::{DeviceId, TaskId};
use std::time::Instant;

use super::copiers::{Copiers, Copying};
use super::memories::{InUse, Location, Memories};
use super::schedule::{Launch, Transfer};
use super::trace::{RunTrace, StepTrace};
use super::waits::{Clock, Waits};
use crate::compiled::Compiled;
use crate::error::RunError;
use crate::span::Span;

/// A run that has just ended, as observers see it.
pub struct RunEvent<'a> {
    /// Index of the plan's step.
    pub step: usize,
    /// The task that ran.
    pub task: TaskId,
    /// The node it ran.
    pub node: NodeId,
    /// Whether the task had run before in this step.
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

/// Called after each run.
pub type Observer<'a> = &'a mut (dyn FnMut(&RunEvent<'_>) + Send);

pub(super) struct Play<'a> {
    compiled: &'a Compiled<'a>,
    memories: &'a Memories,
    in_use: &'a mut InUse,
    trace: &'a mut StepTrace,
    start: Instant,
    copying: Option<(Copying<'a>, &'a Waits)>,
}

impl<'a> Play<'a> {
    /// Begins a step with the buffers that are given. Call this inside
    /// [`crate::processor::Processor::enter`].
    pub fn begin(
        compiled: &'a Compiled<'a>,
        memories: &'a Memories,
        in_use: &'a mut InUse,
        given: &[Location],
        trace: &'a mut StepTrace,
        copiers: Option<(&'a Copiers, &'a Waits)>,
    ) -> Play<'a> {
        in_use.begin(given);
        trace.clear();
        let start = Instant::now();
        Play {
            compiled,
            memories,
            in_use,
            trace,
            start,
            copying: copiers.map(|(copiers, waits)| (copiers.begin(memories, start), waits)),
        }
    }

    fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Waits for the copies that must precede a step.
    ///
    /// # Errors
    /// A copy failed.
    pub fn before(&mut self, step: usize) -> Result<(), RunError> {
        let wait = |(copying, waits): &(Copying<'_>, &Waits)| {
            let clock: &Clock = &waits.before[step];
            match clock.copies.is_empty() {
                true => Ok(()),
                false => copying.wait(clock),
            }
        };
        let start = self.now();
        self.copying.as_ref().map_or(Ok(()), wait)?;
        self.trace.waiting += self.now() - start;
        Ok(())
    }

    /// Tells the copies that wait for it that a step is done.
    pub fn after(&self, step: usize) {
        if let Some((copying, waits)) = &self.copying
            && waits.awaited[step]
        {
            copying.advance(step + 1);
        }
    }

    pub fn run(&mut self, step: usize, launch: &Launch) -> Result<(), RunError> {
        let Launch { task, node, .. } = *launch;
        for &at in &launch.fresh {
            self.in_use.take(at);
        }
        for &at in launch.fresh.iter().chain(&launch.workspace) {
            // SAFETY: the checked layout gives this place to this run alone.
            unsafe { self.memories.spoil(at) };
        }
        self.trace.count(self.in_use, launch.workspace);
        let start = self.now();
        if let Some(arena) = self.memories.arena(launch.device) {
            let processor = self.compiled.processor();
            // SAFETY: the copies that write what this run reads, and those that read or write what it writes,
            // are done or haven't begun: `before` waited for the former, and the latter wait for this run.
            // All other copies use other places, as the checked layout proves.
            let done = unsafe { processor.run_beside(&launch.job, arena) };
            done.map_err(|error| RunError::in_node(&self.compiled.graph().node(node).name, error))?;
        }
        self.trace.runs.push(RunTrace {
            step,
            task,
            start,
            seconds: self.now() - start,
        });
        Ok(())
    }

    pub fn event<'b>(&'b self, step: usize, launch: &'b Launch, again: bool) -> RunEvent<'b> {
        RunEvent {
            step,
            task: launch.task,
            node: launch.node,
            again,
            graph: self.compiled.graph(),
            launch,
            memories: self.memories,
        }
    }

    /// Gives back bytes of the device at `home`, which computes, or of another memory.
    pub fn free(&mut self, at: Location, home: DeviceId) {
        self.trace.count(self.in_use, None);
        self.in_use.give_back(at);
        if at.device == home {
            // SAFETY: all copies of the buffer are done, and nothing has taken its place yet.
            unsafe { self.memories.spoil(at) };
        }
    }

    /// Takes the bytes of a copy, which a copier does.
    pub fn copy(&mut self, transfer: &Transfer, home: DeviceId) {
        self.in_use.take(transfer.to);
        self.trace.count(self.in_use, None);
        if transfer.to.device == home {
            // SAFETY: the place is free, and the copy into it waits for this step.
            unsafe { self.memories.spoil(transfer.to) };
        }
    }

    /// Waits for the last copies, and notes how long the whole step took.
    ///
    /// # Errors
    /// A copy failed.
    pub fn end(self) -> Result<(), RunError> {
        let Play {
            trace,
            start,
            copying,
            ..
        } = self;
        if let Some((copying, _)) = copying {
            copying.end(&mut trace.copies)?;
        }
        trace.seconds = start.elapsed().as_secs_f64();
        Ok(())
    }
}
