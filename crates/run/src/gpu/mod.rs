//! GPUs: the launches of each operator (`lower`, `norm`, `windows`), and the kernels that they
//! name, compiled from the files beside the CPU's.

#![allow(unsafe_code, reason = "launches of kernels on parts of a buffer")]

#[cfg(test)]
mod cuda;
mod libraries;
mod lower;
mod memory;
mod norm;
mod program;
mod sizes;
mod windows;

use scrimp_gpu::{
    Context, Event, GpuError, Interface, Kernel, Libraries, Locked, Program as Compiled, Queue,
};
use scrimp_graph::{DType, Op};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use self::memory::{DeviceMemory, Launched};
pub(crate) use self::program::Program;
use self::program::{Argument, DEPTH, ITEMS, Launch, TILES, What};
use self::sizes::Sizes;
use crate::error::RunError;
use crate::format::Operand;
use crate::span::Span;

/// The words of an interface's language for the kernels.
fn prelude(interface: Interface) -> &'static str {
    match interface {
        Interface::OpenCl => include_str!("prelude.cl"),
        Interface::Cuda => include_str!("prelude.cu"),
    }
}

/// The kernels that only move elements, of any type, and what all kernels share.
const MOVES: [&str; 3] = [
    include_str!("../kernels/common.cl"),
    include_str!("../kernels/shape.cl"),
    include_str!("../kernels/gather.cl"),
];

/// The kernels that compute; a file may use what is in those before it.
const COMPUTES: [&str; 12] = [
    include_str!("../kernels/gather_grad.cl"),
    include_str!("../kernels/elementwise.cl"),
    include_str!("../kernels/reduce.cl"),
    include_str!("../kernels/norm.cl"),
    include_str!("../kernels/softmax.cl"),
    include_str!("../kernels/loss.cl"),
    include_str!("../kernels/update.cl"),
    include_str!("../kernels/window.cl"),
    include_str!("../kernels/pool.cl"),
    include_str!("../kernels/conv.cl"),
    include_str!("../kernels/product.cl"),
    include_str!("../kernels/conv_reads.cl"),
];

/// The kernels that exist for several sizes of squares.
const SIZED: [&str; 2] = [
    include_str!("../kernels/matmul.cl"),
    include_str!("../kernels/conv_product.cl"),
];

/// A GPU, or whatever else runs OpenCL.
#[derive(Debug)]
pub struct Gpu {
    context: Context,
    /// Whose functions run where they can.
    libraries: Libraries,
    folder: Option<PathBuf>,
    /// The program of each type of elements, compiled when the type is first met.
    programs: Mutex<HashMap<DType, Compiled>>,
    kernels: Mutex<HashMap<(DType, &'static str), Arc<Kernel>>>,
    sizes: Sizes,
}

impl Gpu {
    /// Takes the device of this number into use, counted as `scrimp doctor` lists those of an interface. With a folder,
    /// compiled kernels are kept there. `vendor` has the vendor's libraries compute what they can, as far as they are
    /// installed, and not this crate's kernels.
    ///
    /// # Errors
    /// The interface isn't installed, there is no such device, it lacks something, or its driver fails.
    pub fn new(
        interface: Interface,
        number: usize,
        folder: Option<PathBuf>,
        vendor: bool,
    ) -> Result<Gpu, GpuError> {
        let context = Context::new(interface, number)?;
        let libraries = match vendor {
            true => context.libraries()?,
            false => Libraries::default(),
        };
        Ok(Gpu {
            sizes: Sizes::of(&signature(&context), folder.as_deref()),
            context,
            libraries,
            folder,
            programs: Mutex::default(),
            kernels: Mutex::default(),
        })
    }

    /// A description of what times, workspaces and results depend on, for plan files.
    #[must_use]
    pub fn signature(&self) -> String {
        signature(&self.context) + &self.libraries.described()
    }

    /// Whether it computes in 64 bits.
    #[must_use]
    pub fn computes_in_64_bits(&self) -> bool {
        self.context.computes_in_64_bits()
    }

    /// Bytes of the largest arena that the device's own memory can hold; `None` if it is the host's memory.
    pub(crate) fn own_memory(&self) -> Option<u64> {
        self.context.own_memory()
    }

    /// Locks main memory in its place if copies to this device need that to run beside everything else.
    ///
    /// # Safety
    /// The memory lives until the guard is gone.
    pub(crate) unsafe fn lock(
        &self,
        start: *mut u8,
        bytes: u64,
    ) -> Result<Option<Locked>, GpuError> {
        // SAFETY: the caller's promise.
        unsafe { self.context.lock(start, bytes) }
    }

    /// What an operator runs on arguments in rows.
    ///
    /// # Errors
    /// The operator has no kernel for these arguments, or the device doesn't compute with their type.
    pub(crate) fn program(
        &self,
        op: &Op,
        inputs: &[Operand<'_>],
        outputs: &[Operand<'_>],
    ) -> Result<Program, RunError> {
        if let Some(program) = libraries::lower(&self.libraries, op, inputs, outputs)? {
            return Ok(program);
        }
        let program = lower::lower(op, inputs, outputs)?;
        if program.dtype == DType::F64 && !self.computes_in_64_bits() {
            return Err(program::unsupported(
                op,
                "the device doesn't compute in 64 bits",
            ));
        }
        Ok(program)
    }

    /// Memory of the device.
    pub(crate) fn memory(&self, bytes: u64) -> Result<DeviceMemory, GpuError> {
        DeviceMemory::new(&self.context, bytes)
    }

    /// Gives a program to the device, to run after all before it and after these events; nothing if it launches
    /// nothing.
    ///
    /// # Safety
    /// The spans are in the memory and as long as the program was made for. Until the program is done, nothing else
    /// writes them, or reads outputs or workspace, but what runs before it or waits for it.
    pub(crate) unsafe fn begin(
        &self,
        program: &Program,
        memory: &DeviceMemory,
        spans: [&[Span]; 2],
        workspace: Span,
        after: &[Event],
    ) -> Result<Option<Launched>, RunError> {
        let mut launched: Option<Launched> = None;
        for launch in &program.launches {
            let after = launched.as_ref().map_or(after, |_| &[]);
            // SAFETY: the caller's promise; kernels stay within their arguments.
            let event =
                unsafe { self.launch(program.dtype, launch, memory, spans, workspace, after)? };
            if let Some(launched) = &mut launched {
                launched.last = event;
                continue;
            }
            let launched = launched.insert(Launched {
                first: event.clone(),
                last: event,
                complaint: None,
            });
            if let Some(complaint) = program.complaint {
                let asked = (complaint, Box::new(self.context.answer()?));
                let (_, answer) = launched.complaint.insert(asked);
                let (from, at) = (&memory.buffer, workspace.offset);
                // SAFETY: the answer stays where it is until the command is done, since dropping it waits.
                let read = unsafe { memory.compute.begin_answer(from, at, answer)? };
                launched.last = read.unwrap_or_else(|| launched.first.clone());
            }
        }
        Ok(launched)
    }

    /// # Safety
    /// That of [`Gpu::begin`].
    unsafe fn launch(
        &self,
        dtype: DType,
        launch: &Launch,
        memory: &DeviceMemory,
        [inputs, outputs]: [&[Span]; 2],
        workspace: Span,
        after: &[Event],
    ) -> Result<Event, RunError> {
        let place = |argument: &Argument| match argument {
            Argument::Input(i) => inputs[*i].offset,
            Argument::Output(o) => outputs[*o].offset,
            Argument::Workspace(start) => workspace.offset + start,
            Argument::Constant(_) => 0,
        };
        let bytes = || -> Vec<Vec<u8>> {
            let each = launch.arguments.iter().map(|argument| match argument {
                Argument::Constant(bytes) => bytes.clone(),
                place_of => place(place_of).to_ne_bytes().to_vec(),
            });
            each.collect()
        };
        let (queue, buffer) = (&memory.compute, &memory.buffer);
        let event = match &launch.what {
            What::Kernel { name, groups } => {
                let kernel = self.kernel(dtype, name)?;
                let bytes = bytes();
                // SAFETY: the caller's promise.
                unsafe { queue.launch(&kernel, buffer, &bytes, [*groups, ITEMS], after)? }
            }
            What::Product { names, groups } => {
                let bytes = bytes();
                let run = |size: usize, after: &[Event]| {
                    let kernel = self.kernel(dtype, names[size])?;
                    let groups = [groups[size], ITEMS];
                    // SAFETY: the caller's promise. A product that reads what it writes runs once.
                    unsafe { queue.launch(&kernel, buffer, &bytes, groups, after) }
                };
                let numbers = launch.arguments.iter().filter_map(Argument::constant);
                let product = sizes::key(names[0], &dtype.to_string(), &Vec::from_iter(numbers));
                let in_place = inputs.iter().any(|input| outputs.contains(input));
                let size = match self.sizes.get(product) {
                    Some(size) => size,
                    None if in_place => TILES.len() / 2,
                    None => {
                        after.iter().try_for_each(Event::wait)?;
                        // Drivers keep some local memory for themselves.
                        let local = |tile| (2 * DEPTH * tile) as u64 * dtype.bytes();
                        let fits = |&size: &usize| local(TILES[size]) < self.context.local_bytes();
                        let sizes = (0..TILES.len()).filter(fits);
                        let size = fastest(queue, sizes, |size| run(size, &[]))?;
                        self.sizes.keep(product, size);
                        size
                    }
                };
                run(size, after)?
            }
            What::Call(call) => {
                let at = std::array::from_fn(|i| launch.arguments.get(i).map_or(0, place));
                // SAFETY: the caller's promise.
                unsafe { queue.call(call, buffer, at, after)? }
            }
        };
        Ok(event)
    }

    /// The kernel of this name for elements of this type.
    fn kernel(&self, dtype: DType, name: &'static str) -> Result<Arc<Kernel>, GpuError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(&(dtype, name)) {
            return Ok(kernel.clone());
        }
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let program = match programs.get(&dtype) {
            Some(program) => program.clone(),
            None => {
                let folder = self.folder.as_deref();
                let source = source(prelude(self.context.interface()), dtype);
                let program = self.context.program(&source, folder)?;
                programs.insert(dtype, program.clone());
                program
            }
        };
        let kernel = Arc::new(program.kernel(name)?);
        kernels.insert((dtype, name), kernel.clone());
        Ok(kernel)
    }
}

/// What times of our kernels depend on.
fn signature(context: &Context) -> String {
    let (interface, version) = (context.interface().word(), env!("CARGO_PKG_VERSION"));
    format!("{interface}/{version}/{}", context.described())
}

/// The size of squares, of these, with which a product takes the least time, the second time that it runs.
fn fastest(
    queue: &Queue,
    sizes: impl Iterator<Item = usize>,
    run: impl Fn(usize) -> Result<Event, GpuError>,
) -> Result<usize, GpuError> {
    let mut least = (i64::MAX, 0);
    for size in sizes {
        run(size)?;
        let event = run(size)?;
        queue.flush()?;
        event.wait()?;
        let [start, end] = event.times()?;
        least = least.min((end - start, size));
    }
    Ok(least.1)
}

/// The source of all kernels for elements of this type, in the language of this prelude.
fn source(prelude: &str, dtype: DType) -> String {
    let (types, computes) = match dtype {
        DType::F32 => ("typedef float real;\n#define R(x) x##f\n", &COMPUTES[..]),
        DType::F64 => ("typedef double real;\n#define R(x) x\n", &COMPUTES[..]),
        DType::I64 => ("typedef long real;\n", &[][..]),
    };
    let mut all = [&[types, prelude], &MOVES[..], computes]
        .concat()
        .join("\n");
    if !computes.is_empty() {
        for (size, tile) in TILES.into_iter().enumerate() {
            // A group's items have the square's elements among them.
            let side = tile / ITEMS.isqrt();
            all += &format!("\n#define TILE {tile}\n#define SIDE {side}\n");
            all += &format!("#define SIZED(name) name##_{size}\n");
            all += &SIZED.join("\n");
            all += "\n#undef TILE\n#undef SIDE\n#undef SIZED\n";
        }
    }
    all
}
