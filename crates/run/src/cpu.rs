//! The CPU device: its threads, its kernels, and the scratch memory that they need.

use scrimp_graph::{Graph, Op};
use scrimp_onednn::{Engine, OneDnnError};
use std::sync::Arc;

use crate::args::Args;
use crate::error::RunError;
use crate::format::{Formats, Operand};
use crate::gpu;
use crate::kernels::norm::Layout;
use crate::kernels::{self, Machine};
use crate::onednn::{self, OneDnn, Program};
use crate::par::Team;
use crate::simd::Isa;

/// The library of kernels that a device runs. A plan is made for one library: times, workspaces and the last
/// bits of results differ between libraries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Library {
    /// oneDNN where it is installed, otherwise this crate's kernels.
    Auto,
    /// This crate's kernels.
    #[default]
    Native,
    /// oneDNN's kernels, and this crate's for what oneDNN doesn't do better.
    OneDnn,
}

#[derive(Debug)]
enum Threads {
    Rayon(rayon::ThreadPool),
    /// oneDNN's threads, for its loops and ours.
    OneDnn(Box<OneDnn>),
}

#[derive(Clone, Debug)]
pub(crate) enum Kernel {
    /// One of ours; normalizations work on tensors in this layout.
    Native(Layout),
    /// One of oneDNN's.
    OneDnn(Arc<Program>),
    /// Launches on a GPU.
    Gpu(Arc<gpu::Program>),
    /// What couldn't be made: running it returns this error.
    Failed(RunError),
}

/// A CPU with a number of threads.
#[derive(Debug)]
pub struct Cpu {
    threads: Threads,
    machine: Machine,
}

impl Cpu {
    /// Starts a device with this crate's kernels on `threads` threads; 0 means one thread per core.
    pub fn new(threads: usize) -> Result<Cpu, RunError> {
        Cpu::with_library(threads, Library::Native)
    }

    /// Starts a device with this library's kernels on `threads` threads; 0 means one thread per core.
    ///
    /// oneDNN is loaded with the first device that asks for it. At that moment it reads from the environment
    /// how its threads wait for work, and a program can change the environment safely only at the start of
    /// `main`: a program of your own calls [`crate::wait_briefly`] there.
    ///
    /// # Errors
    /// Threads don't start, or oneDNN is asked for and isn't installed, or is installed and can't be used.
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

    /// A device whose loops use a narrower instruction set than the machine has.
    #[cfg(test)]
    pub(crate) fn narrowed(threads: usize, isa: Isa) -> Result<Cpu, RunError> {
        let mut cpu = Cpu::new(threads)?;
        if let Threads::Rayon(pool) = &cpu.threads {
            pool.broadcast(|_| isa.narrow());
        }
        cpu.machine.isa = isa.min(cpu.machine.isa);
        Ok(cpu)
    }

    /// The library whose kernels run: never [`Library::Auto`].
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

    /// A description of what times, workspaces and results depend on, for plan files: the library and its
    /// version, the instruction set and the number of threads.
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

    /// The kernel for an operator on these arguments, which [`scrimp_graph::infer`] accepts.
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
                Err(error) => Kernel::Failed(error.into()),
            },
        }
    }

    /// Bytes of scratch that a kernel needs on arguments in the format that it wants.
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
            Kernel::Gpu(_) | Kernel::Failed(_) => 0,
        }
    }

    /// The formats that a graph's tensors have on this device.
    pub(crate) fn formats(&self, graph: &Graph) -> Formats {
        match &self.threads {
            Threads::Rayon(_) => Formats::rows(),
            Threads::OneDnn(library) => onednn::formats(library, graph),
        }
    }

    /// Calls `f` so that its loops run on the device's threads. With rayon, `f` itself runs on one of them,
    /// so that kernels needn't be handed over one by one.
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

    /// Runs an operator by its [`Cpu::kernel`]. Call this inside [`Cpu::enter`].
    pub(crate) fn run(&self, kernel: &Kernel, op: &Op, args: Args<'_>) -> Result<(), RunError> {
        match kernel {
            Kernel::Native(layout) => kernels::run(self.machine, *layout, op, args),
            Kernel::OneDnn(program) => program.run(args),
            Kernel::Gpu(_) => Err(RunError::WrongPlan {
                reason: "a kernel is for another device".into(),
            }),
            Kernel::Failed(error) => Err(error.clone()),
        }
    }
}

/// Loads oneDNN if it is wanted; with [`Library::Auto`], only if it is installed.
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
