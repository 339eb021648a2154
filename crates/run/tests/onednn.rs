//! Whole training steps with oneDNN's kernels: gradients against those in 64 bits, and plans of
//! another device.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests that report measurements"
)]

mod common;

use common::{Case, network, onednn, place, small_net};
use scrimp_graph::networks::NetworkOptions;
use scrimp_graph::{DType, Graph, Loss, Optimizer, Role, train};
use scrimp_run::{
    Compiled, Cpu, Data, Executor, ExecutorOptions, Library, Processor, RunError, interpret,
};

const SGD: Optimizer = Optimizer::Sgd {
    momentum: 0.9,
    weight_decay: 0.0,
};

/// Norm of a gradient's error that is allowed, relative to the gradient's own norm, if it isn't less than
/// four times that of our kernels: a network may be ill-conditioned.
const TOLERANCE: f64 = 1e-3;

fn networks() -> [(&'static str, Graph); 4] {
    let options = NetworkOptions {
        batch: 2,
        image: Some([64, 64]),
        ..NetworkOptions::default()
    };
    let unet = NetworkOptions {
        image: Some([32, 32]),
        width: Some(16),
        ..options.clone()
    };
    [
        ("small", small_net()),
        ("resnet18", network("resnet18", options.clone())),
        ("mobilenet", network("mobilenet", options)),
        ("unet", network("unet", unet)),
    ]
}

#[test]
fn gradients_are_as_good_as_those_of_our_kernels() {
    let (Some(theirs), ours) = (onednn(2), Cpu::new(2).unwrap()) else {
        return;
    };
    for (name, graph) in networks() {
        let training = train(&graph, Loss::CrossEntropy, None).unwrap();
        let graph = &training.graph;
        let (input, what) = graph
            .given()
            .find(|(_, what)| what.role == Role::Input && what.dtype == DType::F32)
            .unwrap();
        let image: Vec<f32> = (0..what.elements())
            .map(|i| ((i * 7919) % 1009) as f32 / 504.0 - 1.0)
            .collect();
        let inputs = [(input, Data::F32(&image))];
        let exact = graph.clone().with_float(DType::F64);
        let exact_of = Compiled::new(&exact, Processor::Cpu(&ours));
        let exact_of = interpret(&exact_of, &inputs, 3).unwrap();
        assert!(!training.gradients.is_empty());
        let [theirs, ours] = [&theirs, &ours].map(|cpu| {
            let compiled = Compiled::new(graph, Processor::Cpu(cpu));
            let found = interpret(&compiled, &inputs, 3).unwrap();
            let errors = training.gradients.iter().map(|&(_, gradient)| {
                let exact = exact_of.floats(&exact, gradient);
                distance(&found.floats(graph, gradient), &exact)
            });
            errors.fold(0.0, f64::max)
        });
        println!("{name}: gradients are off by {theirs:.1e} of their norms, ours by {ours:.1e}");
        assert!(
            theirs <= TOLERANCE.max(4.0 * ours),
            "{name}: {theirs}, ours {ours}"
        );
    }
}

/// Norm of the difference, relative to that of what is exact.
fn distance(found: &[f64], exact: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(exact).map(|(a, b)| a - b));
    // A bias before a normalization has no gradient but rounding.
    difference / norm(&mut exact.iter().copied()).max(1e-3)
}

#[test]
fn a_plan_of_our_kernels_is_refused_where_it_lacks_workspace() {
    let Some(theirs) = onednn(2) else {
        return;
    };
    assert_eq!(theirs.library(), Library::OneDnn);
    assert!(theirs.signature().starts_with("cpu/onednn-3."));
    let ours = Cpu::new(2).unwrap();
    let case = Case::new(&small_net(), Some(SGD), &ours);
    let layout = place(&case.keep_all());
    let options = ExecutorOptions::default();
    let compiled = case.compiled(&theirs);
    let error = Executor::new(
        std::slice::from_ref(&compiled),
        &case.lowered,
        &layout,
        options,
    )
    .unwrap_err();
    assert!(
        matches!(error, RunError::WrongPlan { .. }) && error.to_string().contains("cpu/onednn-3."),
        "{error}"
    );
}

/// MobileNet's gradients in 32 bits differ by some thousandths from those in 64. That is the network's
/// condition, not an error of a kernel: in 64 bits, moving every parameter and pixel by the last bit of a
/// 32-bit float changes the gradients as much.
#[test]
fn errors_in_32_bits_are_of_the_size_that_rounding_explains() {
    let cpu = Cpu::new(2).unwrap();
    let options = NetworkOptions {
        batch: 2,
        image: Some([64, 64]),
        ..NetworkOptions::default()
    };
    let graph = network("mobilenet", options);
    let training = train(&graph, Loss::CrossEntropy, None).unwrap();
    let graph = &training.graph;
    let exact = graph.clone().with_float(DType::F64);
    let (input, what) = graph
        .given()
        .find(|(_, what)| what.role == Role::Input && what.dtype == DType::F32)
        .unwrap();
    let pixel = |i: usize| ((i * 7919) % 1009) as f32 / 504.0 - 1.0;
    let image: Vec<f32> = (0..what.elements()).map(pixel).collect();
    let single = Compiled::new(graph, Processor::Cpu(&cpu));
    let double = Compiled::new(&exact, Processor::Cpu(&cpu));
    let found = interpret(&single, &[(input, Data::F32(&image))], 3).unwrap();
    let exact_of = interpret(&double, &[(input, Data::F32(&image))], 3).unwrap();
    // Up or down by half of the last bit of 24.
    let moved = |values: &[f64], key: usize| -> Vec<f64> {
        let each = values.iter().enumerate();
        each.map(|(i, x)| {
            let up = (i.wrapping_mul(2_654_435_761) ^ key.wrapping_mul(40_503)) >> 7 & 1;
            x * (1.0 + (up as f64 - 0.5) * 2.0 / f64::from(1 << 24))
        })
        .collect()
    };
    let given: Vec<_> = exact
        .given()
        .filter(|(_, what)| matches!(what.role, Role::Parameter(_)) || what.role == Role::Input)
        .filter(|(_, what)| what.dtype == DType::F64)
        .map(|(id, _)| {
            (
                id,
                moved(&exact_of.floats(&exact, id), id.as_u32() as usize),
            )
        })
        .collect();
    let inputs: Vec<_> = given
        .iter()
        .map(|(id, values)| (*id, Data::F64(values)))
        .collect();
    let moved_of = interpret(&double, &inputs, 3).unwrap();
    let largest = |other: &dyn Fn(scrimp_graph::TensorId) -> Vec<f64>| {
        let errors = training
            .gradients
            .iter()
            .map(|&(_, gradient)| distance(&other(gradient), &exact_of.floats(&exact, gradient)));
        errors.fold(0.0, f64::max)
    };
    let rounding = largest(&|gradient| moved_of.floats(&exact, gradient));
    let error = largest(&|gradient| found.floats(graph, gradient));
    println!(
        "gradients in 32 bits are off by {error:.1e} of their norms; a last bit of what is given moves them by {rounding:.1e}"
    );
    assert!(error <= 8.0 * rounding, "{error} {rounding}");
}
