//! The devices of the suite. To test another one, add it to [`DEVICES`].

#![allow(clippy::print_stdout, reason = "a skipped device says so")]

use scrimp_gpu::{GpuError, Interface};
use scrimp_onednn::OneDnnError;
use std::sync::LazyLock;

use crate::cpu::{Cpu, Library};
use crate::error::RunError;
use crate::format::Format;
use crate::gpu::Gpu;
use crate::processor::Processor;
use crate::simd::Isa;

pub(super) struct Device {
    /// The device on one thread and on three.
    pub processors: [Processor<'static>; 2],
    /// Whether its kernels are this crate's, whose results don't depend on the number of threads.
    pub ours: bool,
    /// Whether it computes in 64 bits.
    pub double: bool,
    /// The formats that images can have.
    pub formats: &'static [Format],
}

/// This crate's kernels with each instruction set that the machine has, the widest first; then oneDNN's
/// kernels if it is installed, and a GPU of each interface.
pub(super) static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let widths = [Isa::Avx512, Isa::Avx2, Isa::Portable].into_iter();
    let native = widths
        .filter(|&isa| isa <= Isa::detect())
        .map(|isa| Device {
            processors: [1, 3]
                .map(|threads| processor(Cpu::narrowed(threads, isa).expect("threads start"))),
            ours: true,
            double: true,
            formats: &[Format::Rows],
        });
    // Only CUDA has libraries.
    let gpus = [
        (Interface::OpenCl, false),
        (Interface::Cuda, false),
        (Interface::Cuda, true),
    ];
    let gpus = gpus
        .into_iter()
        .filter_map(|(interface, vendor)| gpu(interface, vendor));
    native.chain(theirs()).chain(gpus).collect()
});

/// The first device of an interface, if there is one.
fn gpu(interface: Interface, vendor: bool) -> Option<Device> {
    let device = match Gpu::new(interface, 0, None, vendor) {
        Ok(device) => device,
        Err(error @ (GpuError::NotFound { .. } | GpuError::NoDevice { .. })) => {
            println!("without {}: {error}", interface.word());
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let double = device.computes_in_64_bits();
    if !double {
        println!("the GPU isn't tested in 64 bits, in which it doesn't compute");
    }
    let processor = Processor::Gpu(Box::leak(Box::new(device)));
    Some(Device {
        processors: [processor; 2],
        ours: !vendor,
        double,
        formats: &[Format::Rows],
    })
}

/// A CPU that lives as long as the process.
fn processor(cpu: Cpu) -> Processor<'static> {
    Processor::Cpu(Box::leak(Box::new(cpu)))
}

fn theirs() -> Option<Device> {
    Some(Device {
        processors: [processor(onednn(1)?), processor(onednn(3)?)],
        ours: false,
        double: true,
        formats: &[Format::Rows, Format::ChannelsLast],
    })
}

/// A CPU with oneDNN, if it is installed.
pub(crate) fn onednn(threads: usize) -> Option<Cpu> {
    match Cpu::with_library(threads, Library::OneDnn) {
        Ok(cpu) => Some(cpu),
        Err(RunError::OneDnn(error @ OneDnnError::NotFound)) => {
            println!("without oneDNN: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
