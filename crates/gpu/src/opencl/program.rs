//! Programs, compiled on the machine that runs them and kept on its disk, and their kernels.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::context::{Buffer, Context, Owned};
use super::done;
use super::driver::text;
use super::ffi::{self, Handle};
use crate::error::GpuError;
use crate::kept::{self, keep};

/// A compiled program.
#[derive(Clone, Debug)]
pub struct Program(Arc<Owned>);

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Memory of the device.
    Buffer(&'a Buffer),
    /// The bytes of a number or of a structure.
    Bytes(&'a [u8]),
}

/// A function of a program.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) owned: Owned,
    /// Arguments are part of the kernel: only one thread at a time may set them and launch it.
    arguments: Mutex<()>,
    /// The program outlives its kernels.
    _program: Program,
}

impl Program {
    /// Compiles a source with these options. With a folder, the result is kept there, and taken from there the
    /// next time; a folder that can't be read or written costs only time.
    ///
    /// # Errors
    /// The source doesn't compile, or the driver fails.
    pub fn new(
        context: &Context,
        source: &str,
        options: &str,
        folder: Option<&Path>,
    ) -> Result<Program, GpuError> {
        let file = folder.map(|folder| folder.join(file_name(context, source, options)));
        if let Some(program) = file.as_ref().and_then(|file| kept(context, options, file)) {
            return Ok(program);
        }
        let (start, length) = (source.as_ptr().cast(), source.len());
        let mut status = 0;
        // SAFETY: one string with its length.
        let handle = unsafe {
            let create = context.0.api().program_with_source;
            create(context.0.handle, 1, &start, &length, &mut status)
        };
        done("clCreateProgramWithSource", status)?;
        let program = Program::owning(context, handle);
        program.build(options)?;
        if let (Some(file), Ok(binary)) = (file, program.binary()) {
            keep(&file, &binary);
        }
        Ok(program)
    }

    fn owning(context: &Context, handle: Handle) -> Program {
        Program(Arc::new(Owned::new(&context.0.device, handle, |api| {
            api.release_program
        })))
    }

    fn build(&self, options: &str) -> Result<(), GpuError> {
        let options = CString::new(options).unwrap_or_default();
        let device = &self.0.device;
        // SAFETY: one device, options that a zero ends, and no callback: the call returns when it is done.
        let status = unsafe {
            let build = self.0.api().build_program;
            build(
                self.0.handle,
                1,
                &device.id,
                options.as_ptr(),
                ptr::null(),
                ptr::null_mut(),
            )
        };
        if status != ffi::BUILD_PROGRAM_FAILURE {
            return done("clBuildProgram", status);
        }
        let log = text("clGetProgramBuildInfo", |bytes, to, length| {
            // SAFETY: `to` has room for `bytes` bytes.
            unsafe {
                let ask = self.0.api().build_info;
                ask(
                    self.0.handle,
                    device.id,
                    ffi::PROGRAM_BUILD_LOG,
                    bytes,
                    to,
                    length,
                )
            }
        })?;
        Err(GpuError::Build {
            device: device.name.clone(),
            log,
        })
    }

    /// The compiled program for the one device of its context.
    fn binary(&self) -> Result<Vec<u8>, GpuError> {
        let ask = self.0.api().program_info;
        let mut length = 0usize;
        // SAFETY: the answer is one number.
        let status = unsafe {
            let to = (&raw mut length).cast();
            ask(
                self.0.handle,
                ffi::PROGRAM_BINARY_SIZES,
                size_of::<usize>(),
                to,
                ptr::null_mut(),
            )
        };
        done("clGetProgramInfo", status)?;
        let mut binary = vec![0u8; length];
        let mut start = binary.as_mut_ptr();
        // SAFETY: the answer is written to where the one pointer points, which has room for it.
        let status = unsafe {
            let to = (&raw mut start).cast();
            ask(
                self.0.handle,
                ffi::PROGRAM_BINARIES,
                size_of::<*mut u8>(),
                to,
                ptr::null_mut(),
            )
        };
        done("clGetProgramInfo", status)?;
        Ok(binary)
    }

    /// The kernel of this name.
    ///
    /// # Errors
    /// The program has none.
    pub fn kernel(&self, name: &str) -> Result<Kernel, GpuError> {
        let name = CString::new(name).unwrap_or_default();
        let mut status = 0;
        // SAFETY: the name ends with a zero.
        let handle =
            unsafe { (self.0.api().create_kernel)(self.0.handle, name.as_ptr(), &mut status) };
        done("clCreateKernel", status)?;
        Ok(Kernel {
            owned: Owned::new(&self.0.device, handle, |api| api.release_kernel),
            arguments: Mutex::new(()),
            _program: self.clone(),
        })
    }
}

/// By the source, the options, the device and its driver.
fn file_name(context: &Context, source: &str, options: &str) -> PathBuf {
    let device = context.device();
    let driver = [&device.name, &device.vendor, &device.driver].map(String::as_str);
    kept::file_name(&[&[source, options], &driver[..]].concat(), "opencl")
}

/// The program that was kept in a file; `None` if there is none or the driver doesn't take it.
fn kept(context: &Context, options: &str, file: &Path) -> Option<Program> {
    let binary = kept::kept(file)?;
    let (start, length, id) = (binary.as_ptr(), binary.len(), context.device().id);
    let (mut accepted, mut status) = (0, 0);
    // SAFETY: one device and one piece of memory with its length.
    let handle = unsafe {
        let create = context.0.api().program_with_binary;
        create(
            context.0.handle,
            1,
            &id,
            &length,
            &start,
            &mut accepted,
            &mut status,
        )
    };
    if status != ffi::SUCCESS || accepted != ffi::SUCCESS {
        return None;
    }
    let program = Program::owning(context, handle);
    program.build(options).ok()?;
    Some(program)
}

impl Kernel {
    /// Sets all arguments; nobody else can until the guard is gone.
    pub(crate) fn bind(&self, values: &[Value<'_>]) -> Result<MutexGuard<'_, ()>, GpuError> {
        let guard = self
            .arguments
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (i, value) in values.iter().enumerate() {
            let (bytes, start) = match value {
                Value::Buffer(buffer) => {
                    (size_of::<Handle>(), (&raw const buffer.owned.handle).cast())
                }
                Value::Bytes(bytes) => (bytes.len(), bytes.as_ptr().cast()),
            };
            // SAFETY: the value is that many bytes, which the call copies.
            let status = unsafe {
                (self.owned.api().set_argument)(self.owned.handle, i as u32, bytes, start)
            };
            done("clSetKernelArg", status)?;
        }
        Ok(guard)
    }
}
