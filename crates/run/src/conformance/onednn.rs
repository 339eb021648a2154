//! Tests which operators oneDNN must have implementations for. Without the library they test only our
//! kernels.

use scrimp_graph::{DType, Op, Window};

use super::case::{Case, Input};
use super::check;
use super::device::DEVICES;
use super::linear::{ConvCase, convolution, product};
use crate::cpu::Kernel;
use crate::format::Format;
use crate::processor::Processor;

/// Names of the implementations that run an operator; empty if ours runs it.
fn implementations(
    processor: Processor<'_>,
    op: &Op,
    inputs: &[Input],
    format: Format,
) -> Vec<String> {
    let recipe = Case::new(op, inputs, DType::F32, format).recipe(processor);
    let names = |kernel: &Kernel| match kernel {
        Kernel::Native(_) | Kernel::Gpu(_) => Vec::new(),
        Kernel::OneDnn(program) => program.names().map(str::to_owned).collect(),
        Kernel::Failed(error) => panic!("{op:?}: {error}"),
    };
    recipe
        .expect("it computes")
        .kernels()
        .flat_map(names)
        .collect()
}

/// Whether oneDNN may have no implementation that is used: for gradients of images, for convolutions 1×1 of rows, and without
/// AVX-512 for products and for all convolutions of rows.
fn may_be_ours(processor: Processor<'_>, op: &Op, inputs: &[Input], format: Format) -> bool {
    let narrow = !processor.signature().contains("/avx512/");
    match op {
        Op::ConvInputGrad { groups: 1, .. } if inputs[1].shape[1] == 3 => true,
        Op::MatMul { .. } => narrow,
        Op::Conv { window, .. }
        | Op::ConvInputGrad { window, .. }
        | Op::ConvWeightGrad { window, .. } => {
            format == Format::Rows && (narrow || window.kernel == [1, 1])
        }
        _ => false,
    }
}

/// Checks the operator on every device, and that oneDNN has an implementation.
pub(super) fn check_theirs(op: &Op, inputs: &[Input]) {
    check(op, inputs);
    for device in DEVICES.iter().filter(|device| !device.ours) {
        for &format in device.formats {
            let cpus = device.processors.into_iter();
            for processor in cpus.filter(|one| matches!(one, Processor::Cpu(_))) {
                if may_be_ours(processor, op, inputs, format) {
                    continue;
                }
                let names = implementations(processor, op, inputs, format);
                assert!(
                    !names.is_empty(),
                    "{op:?} in {format:?} runs on our kernels"
                );
                let reference = names.iter().any(|name| name.starts_with("ref"));
                assert!(!reference, "{op:?}: {names:?}");
            }
        }
    }
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
    // Products of attention: the scores, and the values weighted by them.
    for shapes in [
        (&[2, 4, 64, 16][..], &[2, 4, 16, 64][..]),
        (&[2, 4, 64, 64], &[2, 4, 64, 16]),
        (&[2, 64, 96], &[96, 130]),
    ] {
        product(shapes, 50, check_theirs);
    }
}
