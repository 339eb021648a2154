//! The OpenCL device: the launches of each operator (`lower`, `norm`, `windows`), and the kernels that they
//! name, compiled from the files beside the CPU's.

#![allow(unsafe_code, reason = "launches of kernels on parts of a buffer")]

#[cfg(test)]
mod cuda;
mod lower;
mod norm;
mod program;
mod windows;

use scrimp_graph::{DType, Op};
use scrimp_opencl::{
    Buffer, Context, Event, Kernel, Kind, Library, OpenClError, Program as Compiled, Queue, Value,
};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use self::program::Program;
use self::program::{Argument, ITEMS, Launch};
use crate::error::RunError;
use crate::format::Operand;
use crate::span::Span;

/// The words of OpenCL C for the kernels.
const PRELUDE: &str = include_str!("prelude.cl");

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
    include_str!("../kernels/matmul.cl"),
    include_str!("../kernels/conv_product.cl"),
];

/// A GPU, or whatever else runs OpenCL.
#[derive(Debug)]
pub struct OpenCl {
    context: Context,
    queue: Queue,
    folder: Option<PathBuf>,
    /// The program of each type of elements, compiled when the type is first met.
    programs: Mutex<HashMap<DType, Compiled>>,
    kernels: Mutex<HashMap<(DType, &'static str), Arc<Kernel>>>,
}

impl OpenCl {
    /// Takes the device of this number into use, counted as `scrimp doctor` lists them. With a folder, compiled
    /// kernels are kept there.
    ///
    /// # Errors
    /// OpenCL isn't installed, there is no such device, it lacks something, or its driver fails.
    pub fn new(number: usize, folder: Option<PathBuf>) -> Result<OpenCl, OpenClError> {
        let context = Context::new(&Library::load(None)?.device(number)?)?;
        Ok(OpenCl {
            queue: Queue::new(&context)?,
            context,
            folder,
            programs: Mutex::default(),
            kernels: Mutex::default(),
        })
    }

    /// A description of what times, workspaces and results depend on, for plan files.
    #[must_use]
    pub fn signature(&self) -> String {
        let device = self.context.device();
        format!(
            "opencl/{}/{}/{}/{} units",
            env!("CARGO_PKG_VERSION"),
            device.name,
            device.driver,
            device.units
        )
    }

    /// Bytes of the largest arena that the device's own memory can hold; `None` if it is the host's memory.
    pub(crate) fn own_memory(&self) -> Option<u64> {
        let device = self.context.device();
        let bytes = device.largest_buffer_bytes.min(device.memory_bytes);
        (device.kind != Kind::Cpu).then_some(bytes)
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
        let program = lower::lower(op, inputs, outputs)?;
        if program.dtype == DType::F64 && !self.context.device().double {
            return Err(program::unsupported(
                op,
                "the OpenCL device doesn't compute in 64 bits",
            ));
        }
        Ok(program)
    }

    /// Memory of the device.
    pub(crate) fn memory(&self, bytes: u64) -> Result<DeviceMemory, OpenClError> {
        Ok(DeviceMemory {
            buffer: self.context.buffer(bytes)?,
            in_queue: Queue::new(&self.context)?,
            out_queue: Queue::new(&self.context)?,
        })
    }

    /// Runs a program, and waits until it is done.
    ///
    /// # Safety
    /// The spans are in the memory and as long as the program was made for. Meanwhile nothing else writes
    /// them, or reads outputs or workspace.
    pub(crate) unsafe fn run(
        &self,
        program: &Program,
        memory: &DeviceMemory,
        spans: [&[Span]; 2],
        workspace: Span,
    ) -> Result<(), RunError> {
        for launch in &program.launches {
            // SAFETY: the caller's promise; kernels stay within their arguments.
            unsafe { self.launch(program.dtype, launch, memory, spans, workspace)? };
        }
        self.queue.finish()?;
        let Some(complaint) = program.complaint else {
            return Ok(());
        };
        let mut answer = [0u8; 16];
        memory.load(workspace.offset, &mut answer)?;
        match bytemuck::cast::<[u8; 16], [i64; 2]>(answer) {
            [0, _] => Ok(()),
            [_, index] => Err(RunError::IndexOutOfRange {
                op: complaint.op,
                index,
                length: complaint.length,
            }),
        }
    }

    /// # Safety
    /// That of [`OpenCl::run`].
    unsafe fn launch(
        &self,
        dtype: DType,
        launch: &Launch,
        memory: &DeviceMemory,
        [inputs, outputs]: [&[Span]; 2],
        workspace: Span,
    ) -> Result<Event, RunError> {
        let kernel = self.kernel(dtype, launch.kernel)?;
        let start = |argument: &Argument| match argument {
            Argument::Input(i) => inputs[*i].offset.to_ne_bytes().to_vec(),
            Argument::Output(o) => outputs[*o].offset.to_ne_bytes().to_vec(),
            Argument::Workspace(start) => (workspace.offset + start).to_ne_bytes().to_vec(),
            Argument::Constant(bytes) => bytes.clone(),
        };
        let bytes: Vec<Vec<u8>> = launch.arguments.iter().map(start).collect();
        let values = bytes.iter().map(|bytes| Value::Bytes(bytes));
        let values: Vec<Value<'_>> = [Value::Buffer(&memory.buffer)]
            .into_iter()
            .chain(values)
            .collect();
        // SAFETY: the caller's promise.
        Ok(unsafe { self.queue.launch(&kernel, &values, launch.groups, ITEMS)? })
    }

    /// The kernel of this name for elements of this type.
    fn kernel(&self, dtype: DType, name: &'static str) -> Result<Arc<Kernel>, OpenClError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(&(dtype, name)) {
            return Ok(kernel.clone());
        }
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let program = match programs.get(&dtype) {
            Some(program) => program.clone(),
            None => {
                let folder = self.folder.as_deref();
                let program = Compiled::new(&self.context, &source(PRELUDE, dtype), "", folder)?;
                programs.insert(dtype, program.clone());
                program
            }
        };
        let kernel = Arc::new(program.kernel(name)?);
        kernels.insert((dtype, name), kernel.clone());
        Ok(kernel)
    }
}

/// The source of all kernels for elements of this type, in the language of this prelude.
fn source(prelude: &str, dtype: DType) -> String {
    let (types, computes) = match dtype {
        DType::F32 => ("typedef float real;\n#define R(x) x##f\n", &COMPUTES[..]),
        DType::F64 => ("typedef double real;\n#define R(x) x\n", &COMPUTES[..]),
        DType::I64 => ("typedef long real;\n", &[][..]),
    };
    [&[types, prelude], &MOVES[..], computes]
        .concat()
        .join("\n")
}

/// Memory of an OpenCL device. Copies in each direction have a queue of their own, beside the kernels'.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    buffer: Buffer,
    in_queue: Queue,
    out_queue: Queue,
}

impl DeviceMemory {
    pub fn bytes(&self) -> u64 {
        self.buffer.bytes()
    }

    /// Copies bytes to the device, and waits until they are there.
    pub fn store(&self, from: &[u8], offset: u64) -> Result<(), OpenClError> {
        self.in_queue.write(from, &self.buffer, offset)
    }

    /// Fills a span with a byte, and waits until that is done.
    pub fn fill(&self, span: Span, byte: u8) -> Result<(), OpenClError> {
        self.in_queue
            .fill(&self.buffer, span.offset, span.bytes, byte)
    }

    /// Copies bytes from the device.
    pub fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), OpenClError> {
        self.out_queue.read(&self.buffer, offset, to)
    }
}
