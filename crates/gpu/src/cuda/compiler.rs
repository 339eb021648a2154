//! NVRTC, NVIDIA's compiler for kernels.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;

use super::ffi::{self, Handle, Status, nvrtc::Api};
use crate::error::{GpuError, Library, unless_failed};
use crate::loading::Loaded;

/// NVRTC, loaded. It stays until the process ends.
pub struct Compiler {
    api: Api,
    path: PathBuf,
    /// The compute capabilities that it compiles for, as major version times 10 plus minor version.
    architectures: Vec<c_int>,
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVRTC of {}", self.path.display())
    }
}

/// What became of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// Code for the driver to load.
    Code(Vec<u8>),
    /// It doesn't compile; this is what the compiler says.
    Complaints(String),
}

static LOADED: Loaded<Compiler> = Loaded::none();

/// `NVRTC_ERROR_COMPILATION`
const DOES_NOT_COMPILE: Status = 6;

fn done(call: &'static str, status: Status) -> Result<(), GpuError> {
    unless_failed(Library::Nvrtc, call, status)
}

/// A source in work, which is given back.
struct Source<'a> {
    api: &'a Api,
    handle: Handle,
}

impl Drop for Source<'_> {
    fn drop(&mut self) {
        // SAFETY: this is its only owner.
        let _ = unsafe { (self.api.destroy)(&mut self.handle) };
    }
}

impl Compiler {
    /// Loads NVRTC from `explicit`, from the file that [`Library::variable`] names, or from where the system has it.
    ///
    /// # Errors
    /// It isn't there, can't be loaded, or is too old.
    pub fn load(explicit: Option<&Path>) -> Result<&'static Compiler, GpuError> {
        LOADED.load(Library::Nvrtc, explicit, |library, path| {
            let api = Api::of(library)?;
            let failed = |status| format!("it doesn't list its architectures (status {status})");
            let mut count = 0;
            // SAFETY: the answer is one number.
            match unsafe { (api.count_architectures)(&mut count) } {
                ffi::SUCCESS => {}
                status => return Err(failed(status)),
            }
            let mut architectures = vec![0; count.max(0) as usize];
            // SAFETY: the answer has room for that many numbers.
            match unsafe { (api.architectures)(architectures.as_mut_ptr()) } {
                ffi::SUCCESS => {}
                status => return Err(failed(status)),
            }
            Ok(Compiler {
                api,
                path: path.to_path_buf(),
                architectures,
            })
        })
    }

    /// The file it was loaded from, or the name by which the system's loader knew it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Compiles a source for a device of this compute capability: to its own code, or if the device is newer than the
    /// compiler to code that the driver translates. Products and sums aren't fused.
    ///
    /// # Errors
    /// The compiler fails, or knows no device as old.
    pub fn compile(&self, source: &str, capability: (u32, u32)) -> Result<Made, GpuError> {
        let device = (capability.0 * 10 + capability.1) as c_int;
        let known = self.architectures.iter().copied();
        let Some(newest) = known.filter(|&known| known <= device).max() else {
            let (major, minor) = capability;
            return Ok(Made::Complaints(format!(
                "it doesn't compile for devices of compute capability {major}.{minor}"
            )));
        };
        let kind = if newest == device { "sm" } else { "compute" };
        let options = [
            format!("--gpu-architecture={kind}_{newest}"),
            "--fmad=false".into(),
        ];
        let options = options.map(|option| CString::new(option).unwrap_or_default());
        let options = options.each_ref().map(|option| option.as_ptr());
        let text = CString::new(source).unwrap_or_default();
        let mut handle = ptr::null_mut();
        // SAFETY: the source ends with a zero, and there are no headers.
        let status = unsafe {
            let (name, none) = (ptr::null(), ptr::null());
            (self.api.create)(&mut handle, text.as_ptr(), name, 0, none, none)
        };
        done("nvrtcCreateProgram", status)?;
        let source = Source {
            api: &self.api,
            handle,
        };
        // SAFETY: options end with zeros.
        match unsafe { (self.api.compile)(handle, options.len() as c_int, options.as_ptr()) } {
            DOES_NOT_COMPILE => {
                let log = source.bytes("nvrtcGetProgramLog", self.api.log_size, self.api.log)?;
                let log = String::from_utf8_lossy(&log);
                return Ok(Made::Complaints(log.trim_end_matches('\0').to_string()));
            }
            status => done("nvrtcCompileProgram", status)?,
        }
        let code = match newest == device {
            true => source.bytes("nvrtcGetCUBIN", self.api.code_size, self.api.code)?,
            false => source.bytes("nvrtcGetPTX", self.api.portable_size, self.api.portable)?,
        };
        Ok(Made::Code(code))
    }
}

impl Source<'_> {
    /// An answer whose size is asked for first.
    fn bytes(
        &self,
        call: &'static str,
        size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
        get: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
    ) -> Result<Vec<u8>, GpuError> {
        let mut length = 0;
        // SAFETY: the answer is one number.
        done(call, unsafe { size(self.handle, &mut length) })?;
        let mut bytes = vec![0u8; length];
        // SAFETY: the answer has the size that the library said.
        done(call, unsafe { get(self.handle, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}
