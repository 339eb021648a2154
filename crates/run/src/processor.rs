//! The processors that run the operators of a graph, one entry for each kind of hardware.

#![allow(
    unsafe_code,
    reason = "launches beside copies, which a checked layout allows"
)]

use crate::cpu::Cpu;
use crate::error::RunError;
use crate::format::{Formats, Operand};
use crate::gpu::Gpu;
use crate::job::{Job, Recipe};
use crate::memory::Memory;
use scrimp_graph::{Graph, Node, Op};

/// The part of a device that computes.
#[derive(Clone, Copy, Debug)]
pub enum Processor<'a> {
    /// This machine's CPU.
    Cpu(&'a Cpu),
    /// A GPU, or whatever else runs OpenCL.
    Gpu(&'a Gpu),
    /// No processor at all: nothing is computed, only counted. It tests plans without their hardware.
    Null,
}

impl Processor<'_> {
    /// A description of what times, workspaces and results depend on, for plan files.
    pub fn signature(self) -> String {
        match self {
            Processor::Cpu(cpu) => cpu.signature(),
            Processor::Gpu(device) => device.signature(),
            Processor::Null => "null".into(),
        }
    }

    /// Number of this machine's threads that compute.
    pub fn threads(self) -> usize {
        match self {
            Processor::Cpu(cpu) => cpu.threads(),
            Processor::Gpu(_) | Processor::Null => 1,
        }
    }

    /// Bytes of the largest arena that this processor's own memory can hold; `None` if it computes in this machine's
    /// main memory.
    pub fn own_memory(self) -> Option<u64> {
        match self {
            Processor::Gpu(device) => device.own_memory(),
            Processor::Cpu(_) | Processor::Null => None,
        }
    }

    /// Whether a driver is given runs ahead of time, and tells afterwards when they were.
    pub(crate) fn goes_ahead(self) -> bool {
        matches!(self, Processor::Gpu(_))
    }

    /// The formats that a graph's tensors have on this processor.
    pub(crate) fn formats(self, graph: &Graph) -> Formats {
        match self {
            Processor::Cpu(cpu) => cpu.formats(graph),
            Processor::Gpu(_) | Processor::Null => Formats::rows(),
        }
    }

    /// The recipe for a node whose tensors have these formats; `None` if there is nothing to do.
    pub(crate) fn recipe(self, graph: &Graph, formats: &Formats, node: &Node) -> Option<Recipe> {
        let inputs = formats.operands(graph, &node.inputs);
        let outputs = formats.operands(graph, &node.outputs);
        self.recipe_of(&node.op, &inputs, &outputs)
    }

    /// The recipe for an operator; `None` if there is nothing to do.
    pub(crate) fn recipe_of(
        self,
        op: &Op,
        inputs: &[Operand<'_>],
        outputs: &[Operand<'_>],
    ) -> Option<Recipe> {
        match self {
            Processor::Cpu(cpu) => Some(Recipe::new(cpu, op, inputs, outputs)),
            Processor::Gpu(device) => Some(Recipe::on_gpu(device, op, inputs, outputs)),
            Processor::Null => None,
        }
    }

    /// Calls `f` in a context in which jobs may be run.
    pub(crate) fn enter<R: Send>(self, f: impl FnOnce() -> R + Send) -> R {
        match self {
            Processor::Cpu(cpu) => cpu.enter(f),
            Processor::Gpu(_) | Processor::Null => f(),
        }
    }

    /// Runs a job on a memory of this processor. Call this inside [`Processor::enter`].
    pub(crate) fn run(self, job: &Job, memory: &mut Memory) -> Result<(), RunError> {
        // SAFETY: the memory is borrowed exclusively.
        unsafe { self.run_beside(job, memory) }
    }

    /// Runs a job on a memory of this processor in which other spans are in use. Call this inside
    /// [`Processor::enter`].
    ///
    /// # Safety
    /// Meanwhile nothing else writes a byte of the node's arguments, or reads a byte of its outputs or its
    /// workspace.
    pub(crate) unsafe fn run_beside(self, job: &Job, memory: &Memory) -> Result<(), RunError> {
        match (self, memory) {
            // SAFETY: the caller's promise.
            (Processor::Cpu(cpu), Memory::Ram(arena)) => unsafe { job.run_on_cpu(cpu, arena) },
            // SAFETY: the caller's promise.
            (Processor::Gpu(device), Memory::Gpu(memory)) => unsafe {
                job.run_on_gpu(device, memory)
            },
            (Processor::Null, _) => Ok(()),
            (_, Memory::Null(_)) => Ok(()),
            (processor, _) => Err(RunError::WrongPlan {
                reason: format!("{} can't compute in this memory", processor.signature()),
            }),
        }
    }
}
