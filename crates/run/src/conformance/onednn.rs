//! oneDNN as a device of the suite, and which operators it must have implementations for. Without the
//! library these tests say that they are skipped.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use scrimp_graph::{DType, Op, Window, infer};
use scrimp_onednn::OneDnnError;

use super::linear::{ConvCase, convolution, product};
use super::{Devices, Input, ONEDNN, check, operands, signatures};
use crate::cpu::{Cpu, Kernel, Library};
use crate::error::RunError;
use crate::format::Format;
use crate::job::Recipe;

/// CPUs with oneDNN, if that is installed.
pub(super) fn devices() -> Option<Devices> {
    Some(Devices {
        cpus: [onednn(1)?, onednn(3)?],
        same_bits: false,
        formats: &[Format::Rows, Format::ChannelsLast],
    })
}

/// A CPU with oneDNN, if that is installed.
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

/// Which implementations run an operator; empty if ours does.
fn implementations(cpu: &Cpu, op: &Op, inputs: &[Input], format: Format) -> Vec<String> {
    let signatures = signatures(inputs, DType::F32);
    let outputs = infer(op, &signatures).expect("the case has valid shapes");
    let (inputs, outputs) = operands(op, &signatures, &outputs, format);
    match Recipe::new(cpu, op, &inputs, &outputs).kernel() {
        Kernel::Native(_) => Vec::new(),
        Kernel::OneDnn(program) => program.names().map(str::to_owned).collect(),
        Kernel::Failed(error) => panic!("{op:?}: {error}"),
    }
}

/// Checks the operator on every device, and that oneDNN has an implementation.
pub(super) fn check_theirs(op: &Op, inputs: &[Input]) {
    check(op, inputs);
    ONEDNN.with(|devices| {
        for cpu in devices.iter().flat_map(|devices| &devices.cpus) {
            for format in [Format::Rows, Format::ChannelsLast] {
                let names = implementations(cpu, op, inputs, format);
                assert!(!names.is_empty(), "{op:?} runs on our kernels");
                let reference = names.iter().any(|name| name.starts_with("ref"));
                assert!(!reference, "{op:?}: {names:?}");
            }
        }
    });
}

#[test]
fn convolutions_of_networks_are_the_librarys() {
    let w = Window::square;
    let cases: [ConvCase; 9] = [
        (w(7).pad(3).stride(2), 1, [2, 3, 32, 32], 64),
        (w(3).pad(1), 1, [2, 64, 14, 14], 64),
        (w(3).pad(1).stride(2), 1, [2, 64, 14, 14], 128),
        (w(1), 1, [2, 64, 14, 14], 256),
        (w(1).stride(2), 1, [2, 64, 14, 14], 128),
        (w(3).pad(1), 64, [2, 64, 14, 14], 64),
        (w(3).pad(1).stride(2), 64, [2, 64, 14, 14], 64),
        (w(3).pad(1), 1, [2, 3, 16, 16], 64),
        (w(3).pad(1), 4, [2, 64, 9, 9], 64),
    ];
    for (i, case) in cases.into_iter().enumerate() {
        convolution(case, 1000 + 10 * i as u64, check_theirs);
    }
}

#[test]
fn products_of_networks_are_the_librarys() {
    // Attention: scores, and what they weigh.
    for shapes in [
        (&[2, 4, 64, 16][..], &[2, 4, 16, 64][..]),
        (&[2, 4, 64, 64], &[2, 4, 64, 16]),
        (&[2, 64, 96], &[96, 130]),
    ] {
        product(shapes, 50, check_theirs);
    }
}
