//! Devices of any vendor, through OpenCL (1.2 and later).
//!
//! A [`Driver`] lists the [`Device`]s of all platforms. A [`Context`] on a device makes [`Buffer`]s,
//! [`Program`]s and in-order [`Queue`]s, whose commands return [`Event`]s with timestamps. Nothing is
//! allocated on a device but the buffers that are asked for.

mod context;
mod device;
mod driver;
pub(crate) mod ffi;
mod program;
mod queue;

pub use context::{Buffer, Context};
pub use device::{Device, Kind, LEAST_GROUP_ITEMS};
pub use driver::Driver;
pub use program::{Kernel, Program, Value};
pub use queue::{Event, Queue};

use crate::error::{GpuError, Library};

/// Turns a status into a result.
fn done(call: &'static str, status: ffi::Status) -> Result<(), GpuError> {
    match status {
        ffi::SUCCESS => Ok(()),
        // A kernel that faults ends in the second one, and what waits for it in the third.
        ffi::DEVICE_NOT_AVAILABLE | ffi::OUT_OF_RESOURCES | ffi::FAILED_IN_WAIT_LIST => {
            Err(GpuError::Lost { call, status })
        }
        status => Err(GpuError::Failed {
            library: Library::OpenCl,
            call,
            status,
        }),
    }
}
