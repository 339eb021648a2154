//! The CPU device: its threads, its kernels, and what scratch they need.

use scrimp_graph::{Graph, Op};
use scrimp_onednn::{Engine, OneDnnError};
use std::sync::Arc;

use crate::args::Args;
use crate::error::RunError;
use crate::format::{Formats, Operand};
use crate::kernels::norm::Layout;
use crate::kernels::{self, Machine};
use crate::onednn::{self, OneDnn, Program};
use crate::par::Team;
use crate::simd::Isa;

/// Which library of kernels a device runs. A plan belongs to one: times, workspaces and the last bits
/// of results differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Library {
    /// oneDNN where it is installed, otherwise this crate's kernels.
    Auto,
    /// This crate's kernels.
    #[default]
    Native,
    /// oneDNN's kernels, with this crate's for what it doesn't do better.
    OneDnn,
}

/// The threads that loops run on.
#[derive(Debug)]
enum Threads {
    Rayon(rayon::ThreadPool),
    /// The library's, for its loops and ours.
    OneDnn(Box<OneDnn>),
}

/// What runs an operator.
#[derive(Clone, Debug)]
pub(crate) enum Kernel {
    /// Ours, for normalizations of tensors in this layout.
    Native(Layout),
    /// oneDNN's.
    OneDnn(Arc<Program>),
    /// oneDNN's, which failed to be made: running it is that error.
    Failed(OneDnnError),
}

/// A CPU with a number of threads.
#[derive(Debug)]
pub struct Cpu {
    threads: Threads,
    machine: Machine,
}

impl Cpu {
    /// Starts `threads` threads, 0 being as many as the machine has cores, for this crate's kernels.
    pub fn new(threads: usize) -> Result<Cpu, RunError> {
        Cpu::with_library(threads, Library::Native)
    }

    /// Starts `threads` threads, 0 being as many as the machine has cores, for this library's kernels.
    ///
    /// oneDNN is loaded with the first device that asks for it. How its threads wait for work is a setting
    /// of the environment that it reads then, and nothing but the start of `main` may change the
    /// environment safely: a program of your own calls [`crate::wait_briefly`] there.
    ///
    /// # Errors
    /// Threads don't start; oneDNN is asked for and isn't there, or is there and can't be used.
    pub fn with_library(threads: usize, library: Library) -> Result<Cpu, RunError> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        Ok(Cpu {
            threads: match load(library, threads)? {
                Some(engine) => Threads::OneDnn(Box::new(engine)),
                None => Threads::Rayon(pool(threads)?),
            },
            machine: Machine {
                slots: threads,
                isa: Isa::detect(),
            },
        })
    }

    /// Threads whose loops use a narrower instruction set than the machine has.
    #[cfg(test)]
    pub(crate) fn narrowed(threads: usize, isa: Isa) -> Result<Cpu, RunError> {
        let mut cpu = Cpu::new(threads)?;
        if let Threads::Rayon(pool) = &cpu.threads {
            pool.broadcast(|_| isa.narrow());
        }
        cpu.machine.isa = isa.min(cpu.machine.isa);
        Ok(cpu)
    }

    /// Whose kernels run: never [`Library::Auto`].
    pub fn library(&self) -> Library {
        match self.threads {
            Threads::Rayon(_) => Library::Native,
            Threads::OneDnn(_) => Library::OneDnn,
        }
    }

    /// oneDNN, if its kernels run.
    pub fn onednn(&self) -> Option<&'static scrimp_onednn::Library> {
        match &self.threads {
            Threads::Rayon(_) => None,
            Threads::OneDnn(onednn) => Some(onednn.engine().library()),
        }
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.machine.slots
    }

    /// The widest instruction set that the kernels use here.
    pub fn isa(&self) -> &'static str {
        self.machine.isa.name()
    }

    /// What times, workspaces and results depend on, for plan files: library and its version,
    /// instruction set, threads.
    pub fn signature(&self) -> String {
        let library = match &self.threads {
            Threads::Rayon(_) => concat!("native-", env!("CARGO_PKG_VERSION")).into(),
            Threads::OneDnn(onednn) => format!("onednn-{}", onednn.engine().library().version()),
        };
        format!(
            "cpu/{library}/{}/{}",
            self.machine.isa.name(),
            self.machine.slots
        )
    }

    /// What runs an operator on these arguments, which [`scrimp_graph::infer`] accepts.
    pub(crate) fn kernel(
        &self,
        op: &Op,
        inputs: &[Operand<'_>],
        outputs: &[Operand<'_>],
    ) -> Kernel {
        match &self.threads {
            Threads::Rayon(_) => Kernel::Native(Layout::Rows),
            Threads::OneDnn(onednn) => match onednn.program(op, inputs, outputs) {
                Ok(Some(program)) => Kernel::OneDnn(program),
                Ok(None) => Kernel::Native(Layout::Rows),
                Err(error) => Kernel::Failed(error),
            },
        }
    }

    /// Bytes of scratch of a kernel on arguments that it takes as they are.
    pub(crate) fn scratch(
        &self,
        kernel: &Kernel,
        op: &Op,
        inputs: &[Operand<'_>],
        outputs: &[Operand<'_>],
    ) -> usize {
        match kernel {
            Kernel::Native(layout) => {
                kernels::workspace(self.machine, *layout, op, inputs, outputs)
            }
            Kernel::OneDnn(program) => program.workspace(),
            Kernel::Failed(_) => 0,
        }
    }

    /// The formats that a graph's tensors have on this device.
    pub(crate) fn formats(&self, graph: &Graph) -> Formats {
        match &self.threads {
            Threads::Rayon(_) => Formats::rows(),
            Threads::OneDnn(library) => onednn::formats(library, graph),
        }
    }

    /// Calls `f` so that its loops run on the device's threads; with rayon's, on one of them, so that
    /// kernels needn't hand over one by one.
    pub(crate) fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.threads {
            Threads::Rayon(pool) => pool.install(f),
            Threads::OneDnn(onednn) => {
                let library = onednn.engine().library();
                let threads = self.machine.slots;
                Team { library, threads }.enter(f)
            }
        }
    }

    /// Runs an operator by its [`Cpu::kernel`]; call it inside [`Cpu::enter`].
    pub(crate) fn run(&self, kernel: &Kernel, op: &Op, args: Args<'_>) -> Result<(), RunError> {
        match kernel {
            Kernel::Native(layout) => kernels::run(self.machine, *layout, op, args),
            Kernel::OneDnn(program) => program.run(args),
            Kernel::Failed(error) => Err(error.clone().into()),
        }
    }
}

/// oneDNN, if it is wanted and, where that is left open, there.
fn load(library: Library, threads: usize) -> Result<Option<OneDnn>, RunError> {
    if library == Library::Native {
        return Ok(None);
    }
    match scrimp_onednn::Library::load(None) {
        Ok(found) => Ok(Some(OneDnn::new(Engine::new(found, threads)?))),
        Err(OneDnnError::NotFound) if library == Library::Auto => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn pool(threads: usize) -> Result<rayon::ThreadPool, RunError> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("scrimp-{i}"))
        .build()
        .map_err(|error| RunError::Threads {
            threads,
            reason: error.to_string(),
        })
}
