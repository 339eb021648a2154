//! The runtime: devices with their kernels, the profiler, and the executor, which runs a checked plan in one
//! arena of exactly the budget.

mod arena;
mod args;
mod blocks;
mod compiled;
#[cfg(test)]
mod conformance;
mod conversion;
mod cpu;
mod data;
mod error;
mod executor;
mod file;
mod format;
mod gpu;
mod interpret;
mod job;
mod kernels;
mod memory;
mod micro;
mod onednn;
mod par;
mod processor;
mod profile;
mod random;
mod real;
mod simd;
mod span;
mod vector;

pub use blocks::Blocks;
pub use compiled::Compiled;
pub use cpu::{Cpu, Library};
pub use data::Data;
pub use error::RunError;
pub use executor::{
    CopyTrace, Executor, ExecutorOptions, FIXED_OVERHEAD_BYTES, Observer, Output, RunEvent,
    RunTrace, StepTrace,
};
pub use file::swap_room;
pub use format::{Format, Formats};
pub use gpu::Gpu;
pub use interpret::{Tensors, interpret};
pub use processor::Processor;
pub use profile::{
    Alone, CostCache, FarEnd, LinkProfile, Profile, ProfileOptions, ProfileProgress, ProfileWatch,
    Rehearsal, Samples, Slowdown, conversion_seconds, converted, profile, profile_beside,
    profile_link, timeline, wake_seconds,
};
pub use scrimp_gpu::{GpuError, Interface, Library as GpuLibrary, cuda, opencl};
pub use scrimp_onednn::{OneDnnError, wait_briefly};
pub use span::{ALIGN, PAGE};
