//! oneDNN's kernels against ours, on one thread and on three, with a workspace full of NaN. Without the
//! library these tests say that they are skipped.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use scrimp_graph::{DType, Op, Window, infer};
use scrimp_onednn::OneDnnError;

use super::cases::{ConvCase, PRODUCTS, conv_cases, product};
use super::{Input, Run, compare, floats, run};
use crate::cpu::{Cpu, Library};
use crate::error::RunError;
use crate::onednn::Kernel;

/// A CPU with oneDNN, if that is installed.
fn onednn(threads: usize) -> Option<Cpu> {
    match Cpu::with_library(threads, Library::OneDnn) {
        Ok(cpu) => Some(cpu),
        Err(RunError::OneDnn(error @ OneDnnError::NotFound)) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Which implementations run an operator; empty if ours does.
fn implementations(cpu: &Cpu, op: &Op, inputs: &[Input]) -> Vec<String> {
    let signatures: Vec<_> = inputs
        .iter()
        .map(|input| (&input.shape[..], DType::F32))
        .collect();
    let outputs = infer(op, &signatures).expect("the case has valid shapes");
    let outputs: Vec<_> = outputs.iter().map(|(s, dtype)| (&s[..], *dtype)).collect();
    match cpu.kernel(op, &signatures, &outputs) {
        Kernel::Native => Vec::new(),
        Kernel::OneDnn(program) => program.names().map(str::to_owned).collect(),
        Kernel::Failed(error) => panic!("{op:?}: {error}"),
    }
}

/// The devices of a test: ours, and oneDNN's on one thread and on three.
struct Devices {
    native: Cpu,
    onednn: [Cpu; 2],
}

impl Devices {
    fn new() -> Option<Devices> {
        Some(Devices {
            native: Cpu::new(1).expect("threads start"),
            onednn: [onednn(1)?, onednn(3)?],
        })
    }

    /// Compares; says how many of the two devices have an implementation of oneDNN's.
    fn check(&self, op: &Op, inputs: &[Input]) -> usize {
        let expected = run(&self.native, op, inputs, DType::F32, &[]);
        let mut theirs = 0;
        for cpu in &self.onednn {
            let names = implementations(cpu, op, inputs);
            assert!(
                !names.iter().any(|name| name.starts_with("ref")),
                "{names:?}"
            );
            theirs += usize::from(!names.is_empty());
            let found = run(cpu, op, inputs, DType::F32, &[]);
            compare(op, &found.values, &expected.values, 2e-5);
            let again: Run = run(cpu, op, inputs, DType::F32, &[]);
            assert_eq!(found.bits, again.bits, "{op:?} differs when it runs again");
        }
        theirs
    }

    /// A convolution, with and without bias, and its gradients.
    fn convolution(&self, (window, groups, x, o): ConvCase, key: u64) -> usize {
        let w = [o, x[1] / groups, window.kernel[0], window.kernel[1]];
        let (image, weight, bias) = (floats(&x, key), floats(&w, key + 1), floats(&[o], key + 2));
        let forward = Op::Conv { window, groups };
        let shapes = [(&x[..], DType::F32), (&w[..], DType::F32)];
        let y = infer(&forward, &shapes).expect("valid").remove(0).0;
        let dy = floats(&y, key + 3);
        let input_hw = [x[2], x[3]];
        let data = Op::ConvInputGrad {
            window,
            groups,
            input_hw,
        };
        self.check(&forward, &[image.clone(), weight.clone()])
            + self.check(&forward, &[image.clone(), weight.clone(), bias])
            + self.check(&data, &[dy.clone(), weight])
            + self.check(&Op::ConvWeightGrad { window, groups }, &[image, dy])
    }
}

#[test]
fn convolutions_of_every_class_agree() {
    let Some(devices) = Devices::new() else {
        return;
    };
    for (i, case) in conv_cases().into_iter().enumerate() {
        devices.convolution(case, 10 * i as u64);
    }
}

#[test]
fn convolutions_of_networks_are_the_librarys() {
    let Some(devices) = Devices::new() else {
        return;
    };
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
        let theirs = devices.convolution(case, 1000 + 10 * i as u64);
        assert_eq!(theirs, 8, "{case:?}");
    }
}

#[test]
fn matrix_products_agree() {
    let Some(devices) = Devices::new() else {
        return;
    };
    for (i, &shapes) in PRODUCTS.iter().enumerate() {
        product(shapes, i as u64, |op, inputs| {
            devices.check(op, inputs);
        });
    }
    // Attention: scores, and what they weigh.
    for shapes in [
        (&[2, 4, 64, 16][..], &[2, 4, 16, 64][..]),
        (&[2, 4, 64, 64], &[2, 4, 64, 16]),
        (&[2, 64, 96], &[96, 130]),
    ] {
        product(shapes, 50, |op, inputs| {
            assert_eq!(devices.check(op, inputs), 2, "{op:?} {shapes:?}");
        });
    }
}
