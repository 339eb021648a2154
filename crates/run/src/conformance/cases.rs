//! The cases: each operator on shapes of every class that its kernel treats differently.

use scrimp_graph::{Binary, DType, Op, Optimizer, Place, Reduction, Unary, Window, infer};

use super::{Input, check, check_ours, floats, ints, same_in_all_ways};

pub(super) fn positive(shape: &[usize], key: u64) -> Input {
    let mut input = floats(shape, key);
    input
        .floats
        .iter_mut()
        .for_each(|x| *x = (x.abs() * 4096.0).round() / 4096.0 + 0.25);
    input
}

#[test]
fn unary_functions_and_their_gradients() {
    let any = [
        Unary::Relu,
        Unary::LeakyRelu { slope: 0.1 },
        Unary::Gelu,
        Unary::GeluTanh,
        Unary::Sigmoid,
        Unary::Tanh,
        Unary::Clip { lo: -0.25, hi: 0.5 },
        Unary::Exp,
        Unary::Erf,
        Unary::Abs,
        Unary::Pow { exponent: 2.0 },
        Unary::Silu,
        Unary::Affine {
            scale: -1.5,
            shift: 0.25,
        },
    ];
    let positive_only = [Unary::Log, Unary::Sqrt, Unary::Pow { exponent: -0.5 }];
    for shape in [&[37][..], &[3, 20_001]] {
        let mut inputs: Vec<(Unary, Input)> = any.iter().map(|&f| (f, floats(shape, 3))).collect();
        inputs.extend(positive_only.iter().map(|&f| (f, positive(shape, 4))));
        for (f, mut x) in inputs {
            check(&Op::Unary(f), &[x.clone()]);
            // The inputs stay away from kinks, and where an output is saved, they are values that an output
            // can have.
            x.floats
                .iter_mut()
                .for_each(|x| *x += if x.abs() < 0.02 { 0.0625 } else { 0.0 });
            let dy = floats(shape, 5);
            match f {
                Unary::Affine { .. } => check(&Op::UnaryGrad(f), &[dy]),
                _ => check(&Op::UnaryGrad(f), &[x, dy]),
            }
        }
    }
}

#[test]
fn binary_operators_broadcast() {
    let cases: &[(&[usize], &[usize])] = &[
        (&[40], &[40]),
        (&[3, 70_00], &[3, 70_00]),
        (&[2, 3, 4, 5], &[3, 1, 1]),
        (&[2, 3, 4, 5], &[1]),
        (&[3, 1, 5], &[4, 1]),
        (&[1, 6], &[5, 1]),
        (&[6], &[5, 6]),
        (&[], &[3, 2]),
        (&[64, 300], &[300]),
    ];
    for f in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div] {
        for (a, b) in cases {
            check(&Op::Binary(f), &[positive(a, 1), positive(b, 2)]);
            check(&Op::Binary(f), &[positive(b, 3), positive(a, 4)]);
        }
    }
}

#[test]
fn reductions_and_broadcasts() {
    let shapes: &[(&[usize], &[usize])] = &[
        (&[2, 3, 40, 50], &[0, 2, 3]),
        (&[2, 3, 40, 50], &[2, 3]),
        (&[2, 3, 40, 50], &[1]),
        (&[200, 130], &[0]),
        (&[200, 130], &[1]),
        (&[200, 130], &[0, 1]),
        (&[4, 5, 6, 7], &[1, 3]),
        (&[3, 1, 4], &[1]),
        (&[5], &[]),
    ];
    for (shape, axes) in shapes {
        for kind in [Reduction::Sum, Reduction::Mean] {
            for keep_dims in [false, true] {
                check(
                    &Op::Reduce {
                        kind,
                        axes: axes.to_vec(),
                        keep_dims,
                    },
                    &[floats(shape, 1)],
                );
            }
        }
    }
    let broadcasts: &[(&[usize], &[usize])] = &[
        (&[3, 1, 1], &[2, 3, 4, 5]),
        (&[130], &[200, 130]),
        (&[1, 130], &[200, 130]),
        (&[200, 1], &[200, 130]),
        (&[], &[4, 6]),
        (&[1], &[7]),
        (&[2, 1, 4, 1], &[2, 3, 4, 5]),
        (&[6], &[6]),
    ];
    for (small, large) in broadcasts {
        check(
            &Op::SumTo {
                shape: small.to_vec(),
            },
            &[floats(large, 2)],
        );
        check(
            &Op::Expand {
                shape: large.to_vec(),
                scale: 0.25,
            },
            &[floats(small, 3)],
        );
    }
    for dtype in [DType::F32, DType::F64] {
        check(
            &Op::Fill {
                shape: vec![3, 5],
                value: 0.5,
                dtype,
            },
            &[],
        );
    }
}

#[test]
fn poolings() {
    let w = Window::square;
    let mut ceiled = w(3).stride(2);
    ceiled.pad_end = [1, 1];
    let cases = [
        (w(2).stride(2), [2, 3, 8, 10]),
        (w(3).stride(2).pad(1), [2, 3, 9, 12]),
        (w(3).pad(1), [1, 2, 7, 150]),
        (ceiled, [2, 2, 8, 9]),
        (w(2).dilation(2), [1, 2, 6, 7]),
        (w(5), [2, 4, 5, 5]),
        (w(3).stride(3), [1, 2, 10, 301]),
        (w(3).stride(3).pad(1), [2, 2, 10, 12]),
        // Several bands, gaps between windows, planes one element wide.
        (w(3).stride(2).pad(1), [1, 2, 150, 130]),
        (w(3).pad(1), [1, 2, 75, 80]),
        (w(2).stride(2), [1, 2, 150, 130]),
        (w(2).stride(3), [2, 2, 11, 13]),
        (w(3).pad(1), [2, 2, 9, 1]),
        (Window::rect(1, 5).stride(2).pad_hw(0, 2), [1, 1, 1, 9000]),
    ];
    for (window, shape) in cases {
        // There are few different values, so that windows have several maxima.
        let mut x = floats(&shape, 9);
        x.floats
            .iter_mut()
            .for_each(|x| *x = (*x * 4.0).round() / 4.0);
        let out = infer(&Op::MaxPool { window }, &[(&shape, DType::F64)])
            .expect("valid")
            .remove(0)
            .0;
        check(&Op::MaxPool { window }, &[x.clone()]);
        check(&Op::MaxPoolGrad { window }, &[x.clone(), floats(&out, 4)]);
        // oneDNN drops the gradient of windows with nothing but −∞.
        let mut infinite = x.clone();
        let count = 3 * shape[3].min(infinite.floats.len() / 3);
        infinite.floats[..count].fill(f64::NEG_INFINITY);
        check_ours(&Op::MaxPoolGrad { window }, &[infinite, floats(&out, 4)]);
        for count_pad in [false, true] {
            check(&Op::AvgPool { window, count_pad }, &[x.clone()]);
            let input_hw = [shape[2], shape[3]];
            check(
                &Op::AvgPoolGrad {
                    window,
                    count_pad,
                    input_hw,
                },
                &[floats(&out, 5)],
            );
        }
    }
}

#[test]
fn softmaxes() {
    let cases: &[(&[usize], usize)] = &[
        (&[5, 33], 1),
        (&[200, 130], 1),
        (&[2, 21, 13, 17], 1),
        (&[6, 70], 0),
        (&[2, 3, 50, 64], 3),
    ];
    for &(shape, axis) in cases {
        let (x, y, dy) = (floats(shape, 1), positive(shape, 2), floats(shape, 3));
        for op in [Op::Softmax { axis }, Op::LogSoftmax { axis }] {
            check(&op, std::slice::from_ref(&x));
        }
        for op in [Op::SoftmaxGrad { axis }, Op::LogSoftmaxGrad { axis }] {
            check(&op, &[y.clone(), dy.clone()]);
        }
    }
}

#[test]
fn movements() {
    check(
        &Op::Concat { axis: 1 },
        &[
            floats(&[2, 3, 40, 50], 1),
            floats(&[2, 5, 40, 50], 2),
            floats(&[2, 1, 40, 50], 3),
        ],
    );
    check(
        &Op::Concat { axis: 0 },
        &[floats(&[2, 3], 1), floats(&[4, 3], 2)],
    );
    check(
        &Op::Concat { axis: 2 },
        &[ints(&[2, 3, 4], 9, 1), ints(&[2, 3, 2], 9, 2)],
    );
    let slices: &[[&[usize]; 4]] = &[
        [&[6, 7], &[1, 2], &[5, 7], &[1, 1]],
        [&[6, 70], &[0, 3], &[6, 64], &[2, 3]],
        [
            &[4, 3, 50, 60],
            &[1, 0, 0, 0],
            &[3, 3, 50, 60],
            &[1, 1, 1, 1],
        ],
        [&[10], &[9], &[10], &[4]],
    ];
    for &[shape, start, end, step] in slices {
        let op = Op::Slice {
            start: start.to_vec(),
            end: end.to_vec(),
            step: step.to_vec(),
        };
        let out = infer(&op, &[(shape, DType::F64)])
            .expect("valid")
            .remove(0)
            .0;
        check(&op, &[floats(shape, 1)]);
        check(&op, &[ints(shape, 100, 1)]);
        let grad = Op::SliceGrad {
            start: start.to_vec(),
            step: step.to_vec(),
            shape: shape.to_vec(),
        };
        check(&grad, &[floats(&out, 2)]);
        check(&grad, &[floats(&out, 2), floats(shape, 3)]);
    }
    for value in [0.0, -1.5] {
        check(
            &Op::Pad {
                begin: vec![0, 1, 2],
                end: vec![1, 0, 3],
                value,
            },
            &[floats(&[2, 3, 4], 1)],
        );
        check(
            &Op::Pad {
                begin: vec![0, 0, 3, 2],
                end: vec![0, 0, 2, 2],
                value,
            },
            &[floats(&[2, 3, 40, 41], 1)],
        );
    }
    check(&Op::Reshape { shape: vec![6, 2] }, &[floats(&[3, 4], 1)]);
    let transposes: &[(&[usize], &[usize])] = &[
        (&[5, 7], &[1, 0]),
        (&[130, 170], &[1, 0]),
        (&[2, 40, 6, 32], &[0, 2, 1, 3]),
        (&[2, 6, 40, 32], &[0, 1, 3, 2]),
        (&[2, 3, 4, 5], &[3, 2, 1, 0]),
        (&[2, 3, 4], &[1, 2, 0]),
        (&[2, 3, 4], &[0, 1, 2]),
        (&[4, 30, 50], &[0, 2, 1]),
    ];
    for &(shape, perm) in transposes {
        check(
            &Op::Transpose {
                perm: perm.to_vec(),
            },
            &[floats(shape, 1)],
        );
        check(
            &Op::Transpose {
                perm: perm.to_vec(),
            },
            &[ints(shape, 50, 1)],
        );
    }
    for factor in [[2, 2], [1, 3]] {
        check(&Op::ResizeNearest { factor }, &[floats(&[2, 3, 5, 40], 1)]);
        check(
            &Op::ResizeNearestGrad { factor },
            &[floats(&[2, 3, 6, 42], 2)],
        );
    }
}

#[test]
fn gathers() {
    let cases: &[(&[usize], &[usize], usize)] = &[
        (&[50, 70], &[4, 30], 0),
        (&[3, 9, 5], &[6], 1),
        (&[4, 6], &[2, 2], 1),
        (&[20], &[], 0),
    ];
    for &(shape, at, axis) in cases {
        let index = ints(at, shape[axis] as i64, 3);
        check(&Op::Gather { axis }, &[floats(shape, 1), index.clone()]);
        let dy = [&shape[..axis], at, &shape[axis + 1..]].concat();
        let grad = Op::GatherGrad {
            axis,
            shape: shape.to_vec(),
        };
        check(&grad, &[index.clone(), floats(&dy, 2)]);
        check(&grad, &[index, floats(&dy, 2), floats(shape, 3)]);
    }
}

#[test]
fn losses() {
    for shape in [&[7, 11][..], &[100, 300], &[2, 5, 20, 30]] {
        let labels = ints(&[&shape[..1], &shape[2..]].concat(), shape[1] as i64, 2);
        check(&Op::CrossEntropy, &[floats(shape, 1), labels.clone()]);
        check(
            &Op::CrossEntropyGrad,
            &[floats(shape, 1), labels, positive(&[], 3)],
        );
        check(&Op::MeanSquaredError, &[floats(shape, 1), floats(shape, 2)]);
        check(
            &Op::MeanSquaredErrorGrad,
            &[floats(shape, 1), floats(shape, 2), positive(&[], 3)],
        );
    }
}

#[test]
fn updates() {
    let hyper = Input {
        shape: vec![2],
        floats: vec![0.125, 3.0],
        ints: None,
    };
    for shape in [&[9][..], &[300, 150]] {
        let (param, grad, m, v) = (
            floats(shape, 1),
            floats(shape, 2),
            floats(shape, 3),
            positive(shape, 4),
        );
        for weight_decay in [0.0, 0.25] {
            let plain = Optimizer::Sgd {
                momentum: 0.0,
                weight_decay,
            };
            check(
                &Op::Update(plain),
                &[param.clone(), grad.clone(), hyper.clone()],
            );
            let heavy = Optimizer::Sgd {
                momentum: 0.9,
                weight_decay,
            };
            check(
                &Op::Update(heavy),
                &[param.clone(), grad.clone(), hyper.clone(), m.clone()],
            );
            let adam = Optimizer::Adam {
                beta1: 0.9,
                beta2: 0.99,
                epsilon: 1e-3,
                weight_decay,
            };
            check(
                &Op::Update(adam),
                &[
                    param.clone(),
                    grad.clone(),
                    hyper.clone(),
                    m.clone(),
                    v.clone(),
                ],
            );
        }
    }
}

#[test]
fn dropout_is_reproducible_and_has_its_rate() {
    let x = Input {
        shape: vec![40_000],
        floats: vec![1.0; 40_000],
        ints: None,
    };
    let seed = |seed| Input {
        shape: vec![1],
        floats: vec![0.0],
        ints: Some(vec![seed]),
    };
    for p in [0.0, 0.1, 0.5] {
        let op = |stream| Op::Dropout {
            p,
            stream,
            place: None,
        };
        let first = same_in_all_ways(&op(1), &[x.clone(), seed(7)]);
        let dropped = first.iter().filter(|&&y| y == 0.0).count() as f64 / 40_000.0;
        assert!(
            (dropped - p).abs() < 0.01,
            "{dropped} of the elements are dropped, not {p}"
        );
        let kept = 1.0 / (1.0 - p);
        assert!(first.iter().all(|&y| y == 0.0 || (y - kept).abs() < 1e-6));
        if p > 0.0 {
            assert_ne!(
                first,
                same_in_all_ways(&op(2), &[x.clone(), seed(7)]),
                "streams differ"
            );
            assert_ne!(
                first,
                same_in_all_ways(&op(1), &[x.clone(), seed(8)]),
                "seeds differ"
            );
        }
        // A part of a tensor has what the whole has there.
        let (shape, start, [rows, columns]) = (vec![200, 200], vec![3, 170], [60, 30]);
        let part = Input {
            shape: vec![rows, columns],
            floats: vec![1.0; rows * columns],
            ints: None,
        };
        let op = Op::Dropout {
            p,
            stream: 1,
            place: Some(Place { start, shape }),
        };
        let found = same_in_all_ways(&op, &[part, seed(7)]);
        for (i, y) in found.iter().enumerate() {
            assert_eq!(*y, first[(3 + i / columns) * 200 + 170 + i % columns]);
        }
    }
}
