//! NVIDIA's GPUs, through the driver's own library; programs are compiled by NVRTC. Neither is linked.
//!
//! A [`Context`] on a [`Device`] makes [`Buffer`]s, [`Program`]s and in-order [`Queue`]s (CUDA's streams), whose
//! commands return [`Event`]s with timestamps. On the device nothing is allocated but the buffers that are asked for,
//! the compiled programs, and what the driver needs itself.

mod compiler;
mod context;
mod convolutions;
mod device;
mod driver;
mod event;
mod ffi;
mod host;
mod object;
mod products;
mod program;
mod queue;

pub use compiler::{Compiler, Made};
pub use context::{Buffer, Context};
pub use convolutions::{Convolution, Convolutions, Pass, PreparedConvolution};
pub use device::Device;
pub use driver::Driver;
pub use event::Event;
pub use host::{Locked, Words};
pub use products::{Added, PreparedProduct, Product, Products};
pub use program::{Kernel, Program};
pub use queue::Queue;

use crate::error::{GpuError, Library};

/// Turns a status of the driver into a result.
fn done(call: &'static str, status: ffi::Status) -> Result<(), GpuError> {
    match status {
        ffi::SUCCESS => Ok(()),
        status if ffi::LOST.contains(&status) => Err(GpuError::Lost { call, status }),
        status => Err(GpuError::Failed {
            library: Library::Cuda,
            call,
            status,
        }),
    }
}
