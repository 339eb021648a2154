//! GPUs, through [`opencl`] or [`cuda`], loaded at run time where a driver is installed: a small safe layer over the C
//! interfaces, and [`Context`] with what belongs to it, which is either.

pub mod cuda;
mod either;
mod error;
mod kept;
mod loading;
pub mod opencl;

pub use either::{
    Answer, Buffer, Call, Context, Event, Interface, Kernel, Libraries, Locked, Program, Queue,
};
pub use error::{GpuError, Library};
