//! The OpenCL device: the launches of each operator (`lower`, `norm`, `windows`), and the kernels that they
//! name, compiled from the files beside the CPU's.

#![allow(unsafe_code, reason = "launches of kernels on parts of a buffer")]

#[cfg(test)]
mod cuda;
mod lower;
mod memory;
mod norm;
mod program;
mod windows;

use scrimp_graph::{DType, Op};
use scrimp_opencl::{
    Context, Event, Kernel, Kind, Library, OpenClError, Program as Compiled, Value,
};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use self::memory::{DeviceMemory, Launched};
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

    /// Whether it computes in 64 bits.
    #[must_use]
    pub fn computes_in_64_bits(&self) -> bool {
        self.context.device().double
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
        if program.dtype == DType::F64 && !self.computes_in_64_bits() {
            return Err(program::unsupported(
                op,
                "the OpenCL device doesn't compute in 64 bits",
            ));
        }
        Ok(program)
    }

    /// Memory of the device.
    pub(crate) fn memory(&self, bytes: u64) -> Result<DeviceMemory, OpenClError> {
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
                answer: vec![0; 2],
                complaint: None,
            });
            if let Some(complaint) = program.complaint {
                // SAFETY: the answer lives until the command is done, since dropping it waits.
                let read = unsafe {
                    let answer = bytemuck::cast_slice_mut(&mut launched.answer);
                    let (from, at) = (&memory.buffer, workspace.offset);
                    memory.compute.begin_read(from, at, answer, &[])?
                };
                launched.complaint = Some(complaint);
                launched.last = read.unwrap_or_else(|| launched.first.clone());
            }
        }
        Ok(launched)
    }

    /// # Safety
    /// That of [`OpenCl::begin`].
    unsafe fn launch(
        &self,
        dtype: DType,
        launch: &Launch,
        memory: &DeviceMemory,
        [inputs, outputs]: [&[Span]; 2],
        workspace: Span,
        after: &[Event],
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
        let event = unsafe {
            let queue = &memory.compute;
            queue.launch(&kernel, &values, launch.groups, ITEMS, after)?
        };
        Ok(event)
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
