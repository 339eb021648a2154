//! The CPU device: its threads, its kernels, and what scratch they need.

use scrimp_graph::{Graph, NodeId, Op};

use crate::arena::{ALIGN, Arena, Args};
use crate::error::RunError;
use crate::kernels::{self, Machine, Signature};
use crate::simd::Isa;

/// Which library of kernels a device runs. A plan belongs to one: workspaces differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// This crate's kernels.
    Native,
}

/// A CPU with a number of threads.
#[derive(Debug)]
pub struct Cpu {
    pool: rayon::ThreadPool,
    machine: Machine,
    library: Library,
}

impl Cpu {
    /// Starts `threads` threads; 0 is as many as the machine has cores.
    pub fn new(threads: usize) -> Result<Cpu, RunError> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("scrimp-{i}"))
            .build()
            .map_err(|error| RunError::Threads {
                threads,
                reason: error.to_string(),
            })?;
        Ok(Cpu {
            pool,
            machine: Machine {
                slots: threads,
                isa: Isa::detect(),
            },
            library: Library::Native,
        })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.machine.slots
    }

    /// The widest instruction set that the kernels use here.
    pub fn isa(&self) -> &'static str {
        self.machine.isa.name()
    }

    /// What workspaces and results depend on, for plan files: library, instruction set, threads.
    pub fn signature(&self) -> String {
        let library = match self.library {
            Library::Native => "native",
        };
        format!(
            "cpu/{library}/{}/{}",
            self.machine.isa.name(),
            self.machine.slots
        )
    }

    /// Bytes of scratch that the operator needs for arguments of these shapes and types (which
    /// [`scrimp_graph::infer`] accepts), a multiple of [`ALIGN`].
    pub fn op_workspace(
        &self,
        op: &Op,
        inputs: &[Signature<'_>],
        outputs: &[Signature<'_>],
    ) -> u64 {
        let bytes = match self.library {
            Library::Native => kernels::workspace(self.machine, op, inputs, outputs),
        };
        bytes.next_multiple_of(ALIGN) as u64
    }

    /// Bytes of scratch that a node needs.
    pub fn workspace(&self, graph: &Graph, node: NodeId) -> u64 {
        let node = graph.node(node);
        let signatures = |tensors: &[scrimp_graph::TensorId]| -> Vec<_> {
            tensors
                .iter()
                .map(|&tensor| (&graph.tensor(tensor).shape[..], graph.tensor(tensor).dtype))
                .collect()
        };
        self.op_workspace(
            &node.op,
            &signatures(&node.inputs),
            &signatures(&node.outputs),
        )
    }

    /// Calls `f` on one of the device's threads, so that the kernels it runs needn't hand over to
    /// them one by one.
    pub(crate) fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.pool.install(f)
    }

    /// Runs an operator; call it inside [`Cpu::enter`].
    pub(crate) fn run(&self, op: &Op, args: &Args, arena: &mut Arena) -> Result<(), RunError> {
        args.assert_in(arena);
        match self.library {
            Library::Native => kernels::run(self.machine, op, args),
        }
    }
}
