//! Programs, compiled on the machine that runs them and kept on its disk, and their kernels.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use super::compiler::{Compiler, Made};
use super::context::Context;
use super::done;
use super::ffi::Handle;
use crate::error::GpuError;
use crate::kept;

/// A compiled program.
#[derive(Clone, Debug)]
pub struct Program(Arc<Module>);

#[derive(Debug)]
struct Module {
    context: Context,
    handle: Handle,
}

// SAFETY: the driver's functions on modules may be called from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(api) = self.context.api() {
            // SAFETY: this is its only owner, and its kernels are gone.
            let _ = unsafe { (api.unload_module)(self.handle) };
        }
    }
}

/// A function of a program.
#[derive(Debug)]
pub struct Kernel {
    function: Handle,
    /// The program outlives its kernels.
    _program: Program,
}

// SAFETY: a function's handle is a constant of its program.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    pub(super) fn function(&self) -> Handle {
        self.function
    }
}

impl Program {
    /// Compiles a source. With a folder, the result is kept there, and taken from there the next time, without the
    /// compiler; a folder that can't be read or written costs only time.
    ///
    /// # Errors
    /// NVRTC isn't installed, the source doesn't compile, or the driver fails.
    pub fn new(
        context: &Context,
        source: &str,
        folder: Option<&Path>,
    ) -> Result<Program, GpuError> {
        let file = folder.map(|folder| folder.join(file_name(context, source)));
        let before = file.as_deref().and_then(kept::kept);
        if let Some(program) = before.and_then(|code| Program::load(context, &code).ok()) {
            return Ok(program);
        }
        let device = context.device();
        let code = match Compiler::load(None)?.compile(source, device.capability)? {
            Made::Code(code) => code,
            Made::Complaints(log) => {
                let device = device.name.clone();
                return Err(GpuError::Build { device, log });
            }
        };
        let program = Program::load(context, &code)?;
        if let Some(file) = file {
            kept::keep(&file, &code);
        }
        Ok(program)
    }

    fn load(context: &Context, code: &[u8]) -> Result<Program, GpuError> {
        // Code that the driver translates is text, which a zero ends.
        let code = [code, &[0]].concat();
        let (api, mut handle) = (context.api()?, ptr::null_mut());
        // SAFETY: a module's code says how long it is, or ends with a zero. A file that was damaged is refused by its
        // header and by its tables; what its folder holds is the user's own.
        let status = unsafe { (api.load_module)(&mut handle, code.as_ptr().cast()) };
        done("cuModuleLoadData", status)?;
        let context = context.clone();
        Ok(Program(Arc::new(Module { context, handle })))
    }

    /// The kernel of this name.
    ///
    /// # Errors
    /// The program has none.
    pub fn kernel(&self, name: &str) -> Result<Kernel, GpuError> {
        let name = CString::new(name).unwrap_or_default();
        let (api, mut function) = (self.0.context.api()?, ptr::null_mut());
        // SAFETY: the name ends with a zero.
        done("cuModuleGetFunction", unsafe {
            (api.function)(&mut function, self.0.handle, name.as_ptr())
        })?;
        Ok(Kernel {
            function,
            _program: self.clone(),
        })
    }
}

/// By the source, the device and its driver.
fn file_name(context: &Context, source: &str) -> PathBuf {
    let device = context.device();
    let (major, minor) = device.version();
    let of = format!("{major}.{minor}/{:?}", device.capability);
    kept::file_name(&[source, &device.name, &of], "cuda")
}
