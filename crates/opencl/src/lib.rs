//! OpenCL devices, loaded at run time where a driver is installed: a small safe layer over the C interface
//! (1.2 and later).
//!
//! A [`Library`] lists [`Platform`]s with their [`Device`]s. A [`Context`] on a device makes [`Buffer`]s,
//! [`Program`]s and in-order [`Queue`]s, whose commands return [`Event`]s with timestamps. Nothing is
//! allocated on a device but the buffers that are asked for.

mod context;
mod device;
mod error;
mod ffi;
mod library;
mod program;
mod queue;

pub use context::{Buffer, Context};
pub use device::{Device, Kind, LEAST_GROUP_ITEMS};
pub use error::OpenClError;
pub use library::{FILE_NAME, Library, Platform, VARIABLE};
pub use program::{Kernel, Program, Value};
pub use queue::{Event, Queue, Times};
