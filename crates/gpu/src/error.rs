//! What can go wrong between us and a driver.

use std::fmt;
use std::path::PathBuf;

use crate::opencl::ffi;

/// A library that is loaded at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// OpenCL's loader or a driver.
    OpenCl,
    /// The driver of NVIDIA's GPUs.
    Cuda,
    /// NVIDIA's compiler for kernels.
    Nvrtc,
    /// NVIDIA's products of matrices.
    CublasLt,
    /// NVIDIA's convolutions.
    Cudnn,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Library::OpenCl => "OpenCL",
            Library::Cuda => "CUDA's driver",
            Library::Nvrtc => "NVRTC",
            Library::CublasLt => "cuBLASLt",
            Library::Cudnn => "cuDNN",
        })
    }
}

impl Library {
    /// The environment variable that names the library's file.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Library::OpenCl => "SCRIMP_OPENCL",
            Library::Cuda => "SCRIMP_CUDA",
            Library::Nvrtc => "SCRIMP_NVRTC",
            Library::CublasLt => "SCRIMP_CUBLASLT",
            Library::Cudnn => "SCRIMP_CUDNN",
        }
    }

    /// What the file is called, the newest first.
    #[must_use]
    pub fn file_names(self) -> &'static [&'static str] {
        match self {
            Library::OpenCl if cfg!(target_os = "macos") => {
                &["/System/Library/Frameworks/OpenCL.framework/OpenCL"]
            }
            Library::OpenCl if cfg!(target_os = "windows") => &["OpenCL.dll"],
            Library::OpenCl => &["libOpenCL.so.1"],
            Library::Cuda if cfg!(target_os = "windows") => &["nvcuda.dll"],
            Library::Cuda => &["libcuda.so.1"],
            Library::Nvrtc if cfg!(target_os = "windows") => {
                &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
            }
            Library::Nvrtc => &[
                "libnvrtc.so.13",
                "libnvrtc.so.12",
                "libnvrtc.so",
                "/usr/local/cuda/lib64/libnvrtc.so",
            ],
            Library::CublasLt if cfg!(target_os = "windows") => {
                &["cublasLt64_13.dll", "cublasLt64_12.dll"]
            }
            Library::CublasLt => &[
                "libcublasLt.so.13",
                "libcublasLt.so.12",
                "/usr/local/cuda/lib64/libcublasLt.so",
            ],
            Library::Cudnn if cfg!(target_os = "windows") => &["cudnn64_9.dll"],
            Library::Cudnn => &["libcudnn.so.9"],
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Library::OpenCl => {
                "install the driver of your GPU, or `pocl-opencl-icd ocl-icd-libopencl1` for a device on the CPU"
            }
            Library::Cuda => "install the driver of your NVIDIA GPU",
            Library::Nvrtc => {
                "`pip install nvidia-cuda-nvrtc` brings it, and so does CUDA's toolkit"
            }
            Library::CublasLt => {
                "`pip install nvidia-cublas` brings it, and so does CUDA's toolkit"
            }
            Library::Cudnn => "`pip install nvidia-cudnn-cu13` brings it",
        }
    }

    fn least(self) -> &'static str {
        match self {
            Library::OpenCl => "install a driver with OpenCL 1.2 or later",
            Library::Cuda => "install a driver for CUDA 12 or later",
            Library::Nvrtc | Library::CublasLt => "install that of CUDA 12 or later",
            Library::Cudnn => "install version 9",
        }
    }
}

/// Why a device couldn't be used, or didn't do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// Nowhere we look.
    #[error(
        "{library} isn't installed; {}, or set {} to the path of {}",
        library.remedy(), library.variable(), library.file_names()[0]
    )]
    NotFound {
        /// The library.
        library: Library,
    },
    /// The path that was asked for doesn't have it. No other place is tried then.
    #[error(
        "{library} isn't at `{}`, which {origin} names; give the path of {}",
        path.display(), library.file_names()[0]
    )]
    NotThere {
        /// The library.
        library: Library,
        /// Where it should be.
        path: PathBuf,
        /// Who said so: an argument or an environment variable.
        origin: String,
    },
    /// The file is there but can't be loaded, or lacks a function.
    #[error("`{}` can't be used as {library}: {reason}; {}", path.display(), library.least())]
    Unusable {
        /// The library.
        library: Library,
        /// The file.
        path: PathBuf,
        /// What the loader said, or what is missing.
        reason: String,
    },
    /// There is no device of this number.
    #[error("there is no device {number} of {library}; {}", list(*library, devices))]
    NoDevice {
        /// The library that was asked.
        library: Library,
        /// Which was asked for, from 0.
        number: usize,
        /// The names of those that are there.
        devices: Vec<String>,
    },
    /// A device that lacks what is needed.
    #[error("the device {device:?} can't be used: {missing}; choose another device")]
    Lacking {
        /// Its name.
        device: String,
        /// What it lacks.
        missing: String,
    },
    /// A program doesn't compile.
    #[error(
        "the compiler for {device:?} can't compile scrimp's kernels; update the driver. It says: {log}"
    )]
    Build {
        /// Name of the device.
        device: String,
        /// What the compiler says.
        log: String,
    },
    /// The device has no room.
    #[error("the device has no {bytes} bytes for a buffer; lower its budget")]
    OutOfMemory {
        /// What was asked for.
        bytes: u64,
    },
    /// Main memory that can't be locked for copies beside compute.
    #[error(
        "the system doesn't lock {bytes} bytes of main memory for copies to the device (status {status}); lower the budget of that memory, or raise the limit of locked memory (ulimit -l)"
    )]
    NotLocked {
        /// What was asked for.
        bytes: u64,
        /// The library's status.
        status: i32,
    },
    /// The device stopped working, which drivers report in several ways.
    #[error(
        "the device was lost in `{call}` (status {status}): its driver gave up on it; start again"
    )]
    Lost {
        /// The function.
        call: &'static str,
        /// The library's status.
        status: i32,
    },
    /// A part of a buffer that isn't inside.
    #[error("a buffer of {found} bytes has no bytes {start} to {end}")]
    Outside {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Bytes of the buffer.
        found: u64,
    },
    /// Another call failed.
    #[error("`{call}` of {library} failed with status {status}")]
    Failed {
        /// The library.
        library: Library,
        /// The function.
        call: &'static str,
        /// The library's status.
        status: i32,
    },
    /// A command for a device of one library was given something of the other.
    #[error("what belongs to one device was given to another; this is a bug in scrimp")]
    Mixed,
}

impl GpuError {
    /// Whether the first command on a buffer may have failed because OpenCL's driver then found no room for it.
    #[must_use]
    pub fn may_be_no_room(&self) -> bool {
        match *self {
            GpuError::Lost { status, .. } => status == ffi::OUT_OF_RESOURCES,
            GpuError::Failed {
                library: Library::OpenCl,
                status,
                ..
            } => status == ffi::MEM_OBJECT_ALLOCATION_FAILURE,
            _ => false,
        }
    }
}

/// The devices that may be asked for.
fn list(library: Library, devices: &[String]) -> String {
    let each = devices.iter().enumerate();
    let each: Vec<String> = each
        .map(|(number, name)| format!("{number} ({name})"))
        .collect();
    match &each[..] {
        [] => format!("no driver has one, so {}", library.remedy()),
        [only] => format!("the only one is {only}"),
        all => format!("those that are there are {}", all.join(", ")),
    }
}

/// Turns a status of a library that is 0 if all went well into a result.
pub(crate) fn unless_failed(
    library: Library,
    call: &'static str,
    status: i32,
) -> Result<(), GpuError> {
    match status {
        0 => Ok(()),
        status => Err(GpuError::Failed {
            library,
            call,
            status,
        }),
    }
}

/// Fails unless these bytes are in a buffer of `found` bytes.
pub(crate) fn within(found: u64, start: u64, bytes: u64) -> Result<(), GpuError> {
    let end = start.saturating_add(bytes);
    if end <= found {
        return Ok(());
    }
    Err(GpuError::Outside { start, end, found })
}
