//! Normalizations are tested against plain loops. With an activation they are tested, bit by bit, against a
//! normalization followed by the activation.

use scrimp_graph::{DType, Norm, Op, Unary, infer};

use super::case::{Case, Input, Run, floats};
use super::cases::positive;
use super::check;
use super::device::DEVICES;
use super::onednn::check_theirs;
use crate::processor::Processor;

const CASES: &[(Norm, &[usize])] = &[
    (Norm::Batch, &[3, 5, 6, 7]),
    (Norm::Batch, &[2, 4, 40, 40]),
    (Norm::Batch, &[2, 70, 7, 7]),
    (Norm::Batch, &[30, 6]),
    (Norm::Instance, &[3, 5, 6, 7]),
    (Norm::Instance, &[1, 8, 50, 50]),
    (Norm::Group { groups: 2 }, &[3, 6, 5, 5]),
    (Norm::Group { groups: 4 }, &[1, 8, 30, 30]),
    (Norm::Layer { axis: 2 }, &[4, 10, 700]),
    (Norm::Layer { axis: 1 }, &[50, 33]),
    (Norm::Layer { axis: 1 }, &[3, 4, 5]),
    (Norm::Layer { axis: 1 }, &[2, 9000]),
];

const ACTIVATIONS: [Unary; 3] = [
    Unary::Relu,
    Unary::LeakyRelu { slope: 0.1 },
    Unary::Clip { lo: 0.0, hi: 0.5 },
];

const EPSILON: f64 = 1e-3;

/// Inputs x, statistics that aren't quite those of x, scale, shift and dy.
fn tensors(norm: Norm, shape: &[usize]) -> [Input; 5] {
    let mut x = floats(shape, 1);
    x.floats.iter_mut().for_each(|x| *x += 3.0);
    let out = infer(&Op::NormStats { norm }, &[(shape, DType::F64)]).expect("valid");
    let mut stats = positive(&out[0].0, 2);
    let means = stats.floats.len() / 2;
    stats.floats[..means]
        .iter_mut()
        .for_each(|mean| *mean += 2.0);
    let params = match norm {
        Norm::Layer { axis } => &shape[axis..],
        _ => &shape[1..2],
    };
    [
        x,
        stats,
        floats(params, 3),
        floats(params, 4),
        floats(shape, 5),
    ]
}

/// Whether the library computes the gradients without an activation; longer rows gain nothing from it.
fn theirs(norm: Norm, shape: &[usize]) -> bool {
    match norm {
        Norm::Layer { axis } => shape[axis..].iter().product::<usize>() <= 4096,
        _ => false,
    }
}

fn apply(norm: Norm, activation: Option<Unary>) -> Op {
    Op::NormApply {
        norm,
        epsilon: EPSILON,
        activation,
    }
}

/// The gradients with their inputs, once with that of x and once without it.
fn gradients(
    norm: Norm,
    activation: Option<Unary>,
    [x, stats, scale, shift, dy]: &[Input; 5],
) -> [(Op, Vec<Input>); 2] {
    let epsilon = EPSILON;
    let all = Op::NormGrad {
        norm,
        epsilon,
        activation,
    };
    let params = Op::NormParamGrad {
        norm,
        epsilon,
        activation,
    };
    let (mut of_all, mut of_params) = (vec![x, stats, scale, dy], vec![x, stats, dy]);
    if activation.is_some() {
        of_all.push(shift);
        of_params.extend([scale, shift]);
    }
    let owned = |inputs: Vec<&Input>| inputs.into_iter().cloned().collect();
    [(all, owned(of_all)), (params, owned(of_params))]
}

#[test]
fn normalizations() {
    for &(norm, shape) in CASES {
        let tensors = tensors(norm, shape);
        check(&Op::NormStats { norm }, &tensors[..1]);
        for activation in [None].into_iter().chain(ACTIVATIONS.map(Some)) {
            check(&apply(norm, activation), &tensors[..4]);
            let [(all, of_all), (params, of_params)] = gradients(norm, activation, &tensors);
            match activation {
                None if theirs(norm, shape) => check_theirs(&all, &of_all),
                _ => check(&all, &of_all),
            }
            check(&params, &of_params);
        }
    }
}

#[test]
fn running_statistics() {
    let update = Op::RunningStats {
        momentum: 0.1,
        count: 50,
    };
    check(&update, &[positive(&[2, 9], 1), positive(&[2, 9], 2)]);
}

/// A result as an input, without rounding.
fn again(result: &Run, shape: &[usize]) -> Input {
    Input {
        shape: shape.to_vec(),
        floats: result.values[0].clone(),
        ints: None,
    }
}

/// Results of the application and both gradients with an activation, and the same results from a
/// normalization followed by the activation by itself.
fn joined_and_apart(
    norm: Norm,
    shape: &[usize],
    f: Unary,
    run: &dyn Fn(&Op, &[Input]) -> Run,
) -> [Vec<Run>; 2] {
    let tensors = tensors(norm, shape);
    let [x, stats, scale, shift, dy] = &tensors;
    let mut joined = vec![run(&apply(norm, Some(f)), &tensors[..4])];
    for (op, inputs) in gradients(norm, Some(f), &tensors) {
        joined.push(run(&op, &inputs));
    }
    let z = run(&apply(norm, None), &tensors[..4]);
    let y = run(&Op::Unary(f), &[again(&z, shape)]);
    let dz = run(&Op::UnaryGrad(f), &[again(&y, shape), dy.clone()]);
    let dz = again(&dz, shape);
    let plain = [x, stats, scale, shift, &dz].map(Input::clone);
    let mut apart = vec![y];
    for (op, inputs) in gradients(norm, None, &plain) {
        apart.push(run(&op, &inputs));
    }
    [joined, apart]
}

#[test]
fn an_activation_within_a_normalization_has_the_bits_of_one_after_it() {
    let on = |processor: Processor<'_>, format, ours: bool| {
        for &(norm, shape) in CASES {
            for f in ACTIVATIONS {
                for float in [DType::F32, DType::F64] {
                    let [joined, apart] = joined_and_apart(norm, shape, f, &|op, inputs| {
                        Case::new(op, inputs, float, format).run(processor, inputs, &[])
                    });
                    // Layer norm's gradients are the library's without an activation, ours with one.
                    let theirs = !ours && float == DType::F32 && theirs(norm, shape);
                    for (i, (joined, apart)) in joined.iter().zip(&apart).enumerate() {
                        if theirs && i == 1 {
                            continue;
                        }
                        assert_eq!(
                            joined.bits,
                            apart.bits,
                            "{norm:?} of {shape:?} with {f:?} in {float} on {}",
                            processor.signature()
                        );
                    }
                }
            }
        }
    };
    for device in DEVICES.iter() {
        for &format in device.formats {
            on(device.processors[1], format, device.ours);
        }
    }
}
