//! One step of training or inference: performs the actions of a schedule one after the other.

use scrimp_graph::{Graph, NodeId, TensorId};
use scrimp_plan::TaskId;
use std::time::Instant;

use super::memories::{Location, Memories};
use super::schedule::{Launch, Transfer};
use super::trace::{CopyTrace, RunTrace, StepTrace};
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
    memories: &'a mut Memories,
    trace: &'a mut StepTrace,
    start: Instant,
}

impl<'a> Play<'a> {
    /// Begins a step with the buffers that are given. Call this inside
    /// [`crate::processor::Processor::enter`].
    pub fn begin(
        compiled: &'a Compiled<'a>,
        memories: &'a mut Memories,
        given: &[Location],
        trace: &'a mut StepTrace,
    ) -> Play<'a> {
        memories.begin(given);
        trace.clear();
        Play {
            compiled,
            memories,
            trace,
            start: Instant::now(),
        }
    }

    fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    pub fn run(&mut self, step: usize, launch: &Launch) -> Result<(), RunError> {
        let Launch { task, node, .. } = *launch;
        for &at in &launch.fresh {
            self.memories.take(at);
        }
        if let Some(at) = launch.workspace {
            self.memories.spoil(at);
        }
        self.trace.count(self.memories, launch.workspace);
        let start = self.now();
        if let Some(arena) = self.memories.arena(launch.device) {
            let done = self.compiled.processor().run(&launch.job, arena);
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

    pub fn free(&mut self, at: Location) {
        self.trace.count(self.memories, None);
        self.memories.give_back(at);
    }

    pub fn copy(&mut self, step: usize, transfer: &Transfer) {
        let Transfer {
            value,
            link,
            from,
            to,
        } = *transfer;
        self.memories.take(to);
        self.trace.count(self.memories, None);
        let start = self.now();
        self.memories.copy(from, to);
        self.trace.copies.push(CopyTrace {
            step,
            value,
            link,
            start,
            seconds: self.now() - start,
        });
    }

    /// Notes how long the whole step took.
    pub fn end(self) {
        self.trace.seconds = self.now();
    }
}
