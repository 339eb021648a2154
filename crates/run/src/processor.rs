//! The processors that run the operators of a graph, one entry for each kind of hardware.

#![allow(
    unsafe_code,
    reason = "launches beside copies, which a checked layout allows"
)]

use crate::arena::Arena;
use crate::cpu::Cpu;
use crate::error::RunError;
use crate::format::Formats;
use crate::job::{Job, Recipe};
use scrimp_graph::{Graph, Node};

/// The part of a device that computes.
#[derive(Clone, Copy, Debug)]
pub enum Processor<'a> {
    /// This machine's CPU.
    Cpu(&'a Cpu),
    /// No processor at all: nothing is computed, only counted. It tests plans without their hardware.
    Null,
}

impl Processor<'_> {
    /// A description of what times, workspaces and results depend on, for plan files.
    pub fn signature(self) -> String {
        match self {
            Processor::Cpu(cpu) => cpu.signature(),
            Processor::Null => "null".into(),
        }
    }

    /// Number of threads that compute.
    pub fn threads(self) -> usize {
        match self {
            Processor::Cpu(cpu) => cpu.threads(),
            Processor::Null => 1,
        }
    }

    /// The formats that a graph's tensors have on this processor.
    pub(crate) fn formats(self, graph: &Graph) -> Formats {
        match self {
            Processor::Cpu(cpu) => cpu.formats(graph),
            Processor::Null => Formats::rows(),
        }
    }

    /// The recipe for a node whose tensors have these formats; `None` if there is nothing to do.
    pub(crate) fn recipe(self, graph: &Graph, formats: &Formats, node: &Node) -> Option<Recipe> {
        match self {
            Processor::Cpu(cpu) => {
                let inputs = formats.operands(graph, &node.inputs);
                let outputs = formats.operands(graph, &node.outputs);
                Some(Recipe::new(cpu, &node.op, &inputs, &outputs))
            }
            Processor::Null => None,
        }
    }

    /// Calls `f` in a context in which jobs may be run.
    pub(crate) fn enter<R: Send>(self, f: impl FnOnce() -> R + Send) -> R {
        match self {
            Processor::Cpu(cpu) => cpu.enter(f),
            Processor::Null => f(),
        }
    }

    /// Runs a job. Call this inside [`Processor::enter`].
    pub(crate) fn run(self, job: &Job, arena: &mut Arena) -> Result<(), RunError> {
        match self {
            Processor::Cpu(cpu) => job.run(cpu, arena),
            Processor::Null => Ok(()),
        }
    }

    /// Runs a job on an arena in which other spans are in use. Call this inside [`Processor::enter`].
    ///
    /// # Safety
    /// That of [`Job::run_beside`].
    pub(crate) unsafe fn run_beside(self, job: &Job, arena: &Arena) -> Result<(), RunError> {
        match self {
            // SAFETY: the caller's promise.
            Processor::Cpu(cpu) => unsafe { job.run_beside(cpu, arena) },
            Processor::Null => Ok(()),
        }
    }
}
