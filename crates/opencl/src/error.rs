//! What can go wrong between us and an OpenCL driver.

use std::path::PathBuf;

use crate::ffi::{self, Status};
use crate::library::{FILE_NAME, VARIABLE};

/// Why OpenCL couldn't be used, or didn't do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenClError {
    /// Nowhere we look.
    #[error(
        "OpenCL isn't installed; install the driver of your GPU, or `pocl-opencl-icd ocl-icd-libopencl1` for a device on the CPU, or set {VARIABLE} to the path of {FILE_NAME}"
    )]
    NotFound,
    /// The path that was asked for doesn't have it. No other place is tried then.
    #[error("OpenCL isn't at `{}`, which {origin} names; give the path of {FILE_NAME}", path.display())]
    NotThere {
        /// Where it should be.
        path: PathBuf,
        /// Who said so: an argument or an environment variable.
        origin: String,
    },
    /// The file is there but can't be loaded, or lacks a function.
    #[error("`{}` can't be used as OpenCL: {reason}; install a driver with OpenCL 1.2 or later", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What the loader said, or what is missing.
        reason: String,
    },
    /// There is no device of this number.
    #[error("there is no OpenCL device {number}; {}", list(devices))]
    NoDevice {
        /// Which was asked for, from 0.
        number: usize,
        /// The names of those that are there.
        devices: Vec<String>,
    },
    /// A device that lacks what is needed.
    #[error("the OpenCL device {device:?} can't be used: {missing}; choose another device")]
    Lacking {
        /// Its name.
        device: String,
        /// What it lacks.
        missing: String,
    },
    /// A program doesn't compile.
    #[error(
        "the driver of {device:?} can't compile scrimp's kernels; update the driver. It says: {log}"
    )]
    Build {
        /// Name of the device.
        device: String,
        /// What the compiler says.
        log: String,
    },
    /// The device has no room.
    #[error("the OpenCL device has no {bytes} bytes for a buffer; lower its budget")]
    OutOfMemory {
        /// What was asked for.
        bytes: u64,
    },
    /// The device stopped working, which drivers report in several ways.
    #[error(
        "the OpenCL device was lost in `{call}` (status {status}): its driver gave up on it; start again"
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
    #[error("OpenCL's `{call}` failed with status {status}")]
    Failed {
        /// The function.
        call: &'static str,
        /// The library's status.
        status: i32,
    },
}

/// The devices that may be asked for.
fn list(devices: &[String]) -> String {
    let each = devices.iter().enumerate();
    let each: Vec<String> = each
        .map(|(number, name)| format!("{number} ({name})"))
        .collect();
    match &each[..] {
        [] => "no driver has one, so install the driver of your GPU, or `pocl-opencl-icd` for a device on the CPU".into(),
        [only] => format!("the only one is {only}"),
        all => format!("those that are there are {}", all.join(", ")),
    }
}

/// Turns a status into a result.
pub(crate) fn done(call: &'static str, status: Status) -> Result<(), OpenClError> {
    match status {
        ffi::SUCCESS => Ok(()),
        // A kernel that faults ends in the second one, and what waits for it in the third.
        ffi::DEVICE_NOT_AVAILABLE | ffi::OUT_OF_RESOURCES | ffi::FAILED_IN_WAIT_LIST => {
            Err(OpenClError::Lost { call, status })
        }
        status => Err(OpenClError::Failed { call, status }),
    }
}
