//! Shape inference as a table: operator, input shapes, expected output shapes or part of the error.

use scrimp_graph::DType::{F32, F64, I64};
use scrimp_graph::{Binary, DType, Norm, Op, Optimizer, Reduction, Unary, Window, infer};

type Shape<'a> = (&'a [usize], DType);

#[track_caller]
fn check(op: Op, inputs: &[Shape<'_>], expected: &[Shape<'_>]) {
    let outputs = infer(&op, inputs).map_err(|error| error.to_string());
    let expected = expected
        .iter()
        .map(|&(shape, dtype)| (shape.to_vec(), dtype))
        .collect();
    assert_eq!(outputs, Ok(expected), "{op:?}");
}

#[track_caller]
fn reject(op: Op, inputs: &[Shape<'_>], message: &str) {
    match infer(&op, inputs) {
        Ok(outputs) => panic!("{op:?} gave {outputs:?}, expected an error with '{message}'"),
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.contains(message),
                "{op:?} gave '{text}', not '{message}'"
            );
        }
    }
}

const X: Shape<'_> = (&[2, 6, 9, 7], F32);

fn conv(window: Window, groups: usize) -> Op {
    Op::Conv { window, groups }
}

#[test]
fn convolution() {
    let w = (&[4, 6, 3, 3][..], F32);
    check(conv(Window::square(3), 1), &[X, w], &[(&[2, 4, 7, 5], F32)]);
    check(
        conv(Window::square(3).pad(1).stride(2), 1),
        &[X, w],
        &[(&[2, 4, 5, 4], F32)],
    );
    check(
        conv(Window::square(3).dilation(3), 1),
        &[X, w, (&[4], F32)],
        &[(&[2, 4, 3, 1], F32)],
    );
    check(
        conv(Window::square(3).same(), 3),
        &[X, (&[9, 2, 3, 3], F32)],
        &[(&[2, 9, 9, 7], F32)],
    );
    let asymmetric = Window {
        pad_begin: [0, 2],
        pad_end: [1, 0],
        ..Window::square(3)
    };
    check(conv(asymmetric, 1), &[X, w], &[(&[2, 4, 8, 7], F32)]);

    reject(
        conv(Window::square(3).stride(0), 1),
        &[X, w],
        "stride is [0, 0]; every entry",
    );
    reject(
        conv(Window::square(3).dilation(0), 1),
        &[X, w],
        "dilation is [0, 0]",
    );
    reject(
        conv(Window::square(2), 1),
        &[X, w],
        "must equal the last two axes of the weight",
    );
    reject(
        conv(Window::square(3), 0),
        &[X, w],
        "groups is 0; it must divide the 4",
    );
    reject(
        conv(Window::square(3), 2),
        &[X, w],
        "input 0 has shape [2, 6, 9, 7] but must",
    );
    reject(
        conv(Window::square(3).dilation(4), 1),
        &[X, w],
        "it spans 9 elements but only 7",
    );
    reject(
        conv(Window::square(3).pad(usize::MAX), 1),
        &[X, w],
        "larger than the limit",
    );
    reject(
        conv(Window::square(3).dilation(usize::MAX), 1),
        &[X, w],
        "larger than the limit",
    );
    reject(
        conv(Window::square(3).pad(1 << 40), 1),
        &[X, w],
        "larger than the limit",
    );
    reject(
        conv(Window::square(3), 1),
        &[X, w, (&[5], F32)],
        "input 2 has shape [5] but must have shape [4]",
    );
    reject(
        conv(Window::square(3), 1),
        &[X],
        "takes 2 or 3 inputs but got 1",
    );
    reject(
        conv(Window::square(3), 1),
        &[X, (&[4, 6, 3, 3], F64)],
        "input 1 has element type f64",
    );
    reject(
        conv(Window::square(3), 1),
        &[(&[2, 6, 9], F32), w],
        "4 ([N,C,H,W])",
    );
}

#[test]
fn convolution_gradients() {
    let window = Window::square(3).pad(1).stride(2);
    let (w, dy): (Shape<'_>, Shape<'_>) = ((&[4, 6, 3, 3], F32), (&[2, 4, 5, 4], F32));
    let input = |input_hw| Op::ConvInputGrad {
        window,
        groups: 1,
        input_hw,
    };
    check(input([9, 7]), &[dy, w], &[X]);
    check(input([10, 8]), &[dy, w], &[(&[2, 6, 10, 8], F32)]);
    reject(input([11, 7]), &[dy, w], "must have shape [2, 4, 6, 4]");
    let weight = |groups| Op::ConvWeightGrad { window, groups };
    check(weight(1), &[X, dy], &[w]);
    check(weight(2), &[X, dy], &[(&[4, 3, 3, 3], F32)]);
    reject(
        weight(3),
        &[X, dy],
        "it must divide the 6 input and 4 output channels",
    );
    reject(
        weight(1),
        &[X, (&[2, 4, 5, 5], F32)],
        "must have shape [2, 4, 5, 4]",
    );
}

#[test]
fn pooling_and_resizing() {
    let pool = |window| Op::MaxPool { window };
    check(
        pool(Window::square(3).stride(2).pad(1)),
        &[X],
        &[(&[2, 6, 5, 4], F32)],
    );
    reject(
        pool(Window::square(2).pad(2)),
        &[X],
        "wholly in the padding",
    );
    let end = Window {
        pad_end: [0, 3],
        ..Window::square(2).stride(2)
    };
    reject(pool(end), &[X], "wholly in the padding");
    let hole = Window::square(2).dilation(8).pad_hw(0, 8);
    reject(pool(hole), &[X], "wholly in the padding");
    let window = Window::square(3).stride(2);
    let grad = |input_hw| Op::AvgPoolGrad {
        window,
        count_pad: true,
        input_hw,
    };
    check(grad([9, 7]), &[(&[2, 6, 4, 3], F32)], &[X]);
    check(Op::MaxPoolGrad { window }, &[X, (&[2, 6, 4, 3], F32)], &[X]);
    reject(
        Op::MaxPoolGrad { window },
        &[X, X],
        "must have shape [2, 6, 4, 3]",
    );
    check(
        Op::ResizeNearest { factor: [2, 3] },
        &[X],
        &[(&[2, 6, 18, 21], F32)],
    );
    check(
        Op::ResizeNearestGrad { factor: [3, 7] },
        &[X],
        &[(&[2, 6, 3, 1], F32)],
    );
    reject(
        Op::ResizeNearestGrad { factor: [2, 7] },
        &[X],
        "must divide the size [9, 7]",
    );
    reject(
        Op::ResizeNearest {
            factor: [usize::MAX, 1],
        },
        &[X],
        "larger than the limit",
    );
    reject(Op::ResizeNearest { factor: [0, 1] }, &[X], "at least 1");
}

#[test]
fn matrix_products() {
    let op = |trans_a, trans_b| Op::MatMul { trans_a, trans_b };
    check(
        op(false, false),
        &[(&[2, 3], F64), (&[3, 4], F64)],
        &[(&[2, 4], F64)],
    );
    check(
        op(true, true),
        &[(&[3, 2], F32), (&[4, 3], F32)],
        &[(&[2, 4], F32)],
    );
    let stacks: [Shape<'_>; 2] = [(&[5, 1, 2, 3], F32), (&[7, 3, 4], F32)];
    check(op(false, false), &stacks, &[(&[5, 7, 2, 4], F32)]);
    check(
        op(false, false),
        &[(&[2, 3], F32), (&[3, 4], F32), (&[4], F32)],
        &[(&[2, 4], F32)],
    );
    reject(
        op(false, false),
        &[(&[2, 3], F32), (&[4, 3], F32)],
        "with 3 rows",
    );
    reject(
        op(false, false),
        &[(&[3], F32), (&[3, 4], F32)],
        "at least 2 axes",
    );
    reject(
        op(false, false),
        &[(&[2, 2, 3], F32), (&[3, 3, 4], F32)],
        "don't broadcast",
    );
}

#[test]
fn elementwise_and_reductions() {
    let add = Op::Binary(Binary::Add);
    check(
        add.clone(),
        &[(&[2, 1, 4], F32), (&[3, 1], F32)],
        &[(&[2, 3, 4], F32)],
    );
    check(add.clone(), &[(&[], F32), (&[3], F32)], &[(&[3], F32)]);
    reject(add.clone(), &[(&[2], F32), (&[3], F32)], "don't broadcast");
    reject(
        add.clone(),
        &[(&[2], I64), (&[2], I64)],
        "a floating-point type",
    );
    reject(
        add,
        &[(&[1 << 30, 1], F32), (&[1 << 30], F32)],
        "larger than the limit",
    );
    let reduce = |axes: &[usize], keep_dims| Op::Reduce {
        kind: Reduction::Mean,
        axes: axes.to_vec(),
        keep_dims,
    };
    check(reduce(&[1, 3], true), &[X], &[(&[2, 1, 9, 1], F32)]);
    check(reduce(&[0, 1, 2, 3], false), &[X], &[(&[], F32)]);
    reject(reduce(&[3, 1], false), &[X], "ascending and below 4");
    reject(reduce(&[4], false), &[X], "ascending and below 4");
    check(
        Op::SumTo {
            shape: vec![6, 1, 1],
        },
        &[X],
        &[(&[6, 1, 1], F32)],
    );
    reject(
        Op::SumTo {
            shape: vec![5, 1, 1],
        },
        &[X],
        "don't broadcast",
    );
    reject(
        Op::SumTo {
            shape: vec![1, 2, 6, 9, 7],
        },
        &[X],
        "don't broadcast",
    );
    check(
        Op::Expand {
            shape: vec![2, 3],
            scale: 1.0,
        },
        &[(&[3], F32)],
        &[(&[2, 3], F32)],
    );
    reject(
        Op::Expand {
            shape: vec![2, 1],
            scale: 1.0,
        },
        &[(&[3], F32)],
        "don't broadcast",
    );
    check(
        Op::UnaryGrad(Unary::Affine {
            scale: 2.0,
            shift: 0.0,
        }),
        &[X],
        &[X],
    );
    check(Op::UnaryGrad(Unary::Relu), &[X, X], &[X]);
    reject(Op::UnaryGrad(Unary::Relu), &[X], "takes 2 inputs but got 1");
    reject(
        Op::Unary(Unary::Clip { lo: 1.0, hi: 0.0 }),
        &[X],
        "must not exceed",
    );
    reject(
        Op::Unary(Unary::Clip {
            lo: f64::NAN,
            hi: 0.0,
        }),
        &[X],
        "must not exceed",
    );
    reject(
        Op::Unary(Unary::LeakyRelu { slope: -1.0 }),
        &[X],
        "not negative",
    );
    let fill = |shape: &[usize], dtype| Op::Fill {
        shape: shape.to_vec(),
        value: 1.0,
        dtype,
    };
    check(fill(&[], F64), &[], &[(&[], F64)]);
    reject(
        fill(&[0], F32),
        &[],
        "every axis needs a length of at least 1",
    );
    reject(
        fill(&[1; 9], F32),
        &[],
        "9 axes is more than the limit of 8",
    );
    reject(
        fill(&[usize::MAX, usize::MAX], F32),
        &[],
        "larger than the limit",
    );
    let dropout = |p| Op::Dropout {
        p,
        stream: 0,
        place: None,
    };
    check(dropout(0.5), &[X, (&[1], I64)], &[X]);
    reject(dropout(1.0), &[X, (&[1], I64)], "below 1");
    reject(dropout(0.5), &[X, (&[1], F32)], "must be i64");
}

#[test]
fn normalization() {
    let stats = |norm| Op::NormStats { norm };
    check(stats(Norm::Batch), &[X], &[(&[2, 6], F32)]);
    check(stats(Norm::Instance), &[X], &[(&[2, 12], F32)]);
    check(stats(Norm::Group { groups: 3 }), &[X], &[(&[2, 6], F32)]);
    check(stats(Norm::Layer { axis: 2 }), &[X], &[(&[2, 12], F32)]);
    reject(
        stats(Norm::Group { groups: 4 }),
        &[X],
        "must divide the 6 channels",
    );
    reject(stats(Norm::Layer { axis: 4 }), &[X], "axis is 4");
    reject(stats(Norm::Batch), &[(&[3], F32)], "at least 2");
    let norm = Norm::Layer { axis: 2 };
    let (k, p): (Shape<'_>, Shape<'_>) = ((&[2, 12], F32), (&[9, 7], F32));
    let (plain, relu) = (None, Some(Unary::Relu));
    let apply = |activation| Op::NormApply {
        norm,
        epsilon: 1e-5,
        activation,
    };
    let all = |activation| Op::NormGrad {
        norm,
        epsilon: 1e-5,
        activation,
    };
    let params = |activation| Op::NormParamGrad {
        norm,
        epsilon: 1e-5,
        activation,
    };
    for activation in [plain, relu] {
        check(apply(activation), &[X, k, p, p], &[X]);
    }
    check(params(plain), &[X, k, X], &[p, p]);
    check(params(relu), &[X, k, X, p, p], &[p, p]);
    check(all(plain), &[X, k, p, X], &[X, p, p]);
    check(all(relu), &[X, k, p, X, p], &[X, p, p]);
    reject(all(plain), &[X, k, p, X, p], "takes 4 inputs");
    reject(all(relu), &[X, k, p, X], "takes 5 inputs");
    reject(params(relu), &[X, k, X], "takes 5 inputs");
    reject(params(relu), &[X, k, X, p, k], "input 4");
    let gelu = Some(Unary::Gelu);
    reject(apply(gelu), &[X, k, p, p], "relu, leaky relu or clip");
    let clip = Some(Unary::Clip { lo: 1.0, hi: 0.0 });
    reject(all(clip), &[X, k, p, X, p], "lower bound");
    let (k, p): (Shape<'_>, Shape<'_>) = ((&[2, 6], F32), (&[6], F32));
    let batch = Op::NormGrad {
        norm: Norm::Batch,
        epsilon: 1e-5,
        activation: None,
    };
    check(batch, &[X, k, p, X], &[X, p, p]);
    check(
        Op::RunningStats {
            momentum: 0.1,
            count: 4,
        },
        &[k, k],
        &[k],
    );
    reject(
        Op::RunningStats {
            momentum: 0.1,
            count: 4,
        },
        &[p, k],
        "input 0",
    );
    check(Op::SoftmaxGrad { axis: 1 }, &[X, X], &[X]);
    reject(Op::Softmax { axis: 4 }, &[X], "it must be below 4");
}

#[test]
fn movement() {
    check(
        Op::Concat { axis: 1 },
        &[X, (&[2, 1, 9, 7], F32)],
        &[(&[2, 7, 9, 7], F32)],
    );
    reject(
        Op::Concat { axis: 1 },
        &[X, (&[2, 1, 9, 8], F32)],
        "must have shape [2, 1, 9, 7]",
    );
    reject(Op::Concat { axis: 1 }, &[X, (&[2], F32)], "must have shape");
    reject(Op::Concat { axis: 0 }, &[], "at least 1 inputs but got 0");
    let slice = |start, end, step| Op::Slice {
        start: vec![start],
        end: vec![end],
        step: vec![step],
    };
    check(slice(1, 8, 3), &[(&[8], I64)], &[(&[3], I64)]);
    reject(slice(1, 9, 3), &[(&[8], I64)], "end at most 8");
    reject(slice(3, 3, 1), &[(&[8], I64)], "start must be below end");
    reject(slice(1, 2, 0), &[(&[8], I64)], "step is [0]");
    let grad = |start, step| Op::SliceGrad {
        start: vec![start],
        step: vec![step],
        shape: vec![8],
    };
    check(grad(1, 3), &[(&[3], F32)], &[(&[8], F32)]);
    check(grad(1, 3), &[(&[3], F32), (&[8], F32)], &[(&[8], F32)]);
    reject(grad(2, 3), &[(&[3], F32)], "reaches past the end");
    reject(grad(1, usize::MAX), &[(&[3], F32)], "reaches past the end");
    let pad = |begin, end| Op::Pad {
        begin: vec![begin],
        end: vec![end],
        value: 0.0,
    };
    check(pad(1, 2), &[(&[8], F32)], &[(&[11], F32)]);
    reject(pad(usize::MAX, 2), &[(&[8], F32)], "larger than the limit");
    check(
        Op::Reshape {
            shape: vec![12, 63],
        },
        &[X],
        &[(&[12, 63], F32)],
    );
    reject(
        Op::Reshape {
            shape: vec![12, 64],
        },
        &[X],
        "must have 756 elements",
    );
    reject(
        Op::Reshape {
            shape: vec![usize::MAX, 2],
        },
        &[X],
        "larger than the limit",
    );
    check(
        Op::Transpose {
            perm: vec![0, 2, 3, 1],
        },
        &[X],
        &[(&[2, 9, 7, 6], F32)],
    );
    reject(
        Op::Transpose {
            perm: vec![0, 2, 2, 1],
        },
        &[X],
        "permutation of the 4 axes",
    );
    let table: Shape<'_> = (&[10, 4], F32);
    check(
        Op::Gather { axis: 0 },
        &[table, (&[2, 3], I64)],
        &[(&[2, 3, 4], F32)],
    );
    check(
        Op::Gather { axis: 1 },
        &[table, (&[], I64)],
        &[(&[10], F32)],
    );
    reject(
        Op::Gather { axis: 0 },
        &[table, (&[2, 3], F32)],
        "must be i64",
    );
    let grad = Op::GatherGrad {
        axis: 0,
        shape: vec![10, 4],
    };
    let (indices, dy): (Shape<'_>, Shape<'_>) = ((&[2, 3], I64), (&[2, 3, 4], F32));
    check(grad.clone(), &[indices, dy], &[table]);
    check(grad.clone(), &[indices, dy, table], &[table]);
    reject(grad, &[indices, dy, dy], "must have shape [10, 4]");
}

#[test]
fn losses_and_updates() {
    let (logits, labels): (Shape<'_>, Shape<'_>) = ((&[2, 5, 3], F32), (&[2, 3], I64));
    let one: Shape<'_> = (&[], F32);
    check(Op::CrossEntropy, &[logits, labels], &[one]);
    check(Op::CrossEntropyGrad, &[logits, labels, one], &[logits]);
    reject(
        Op::CrossEntropy,
        &[logits, (&[2], I64)],
        "must have shape [2, 3]",
    );
    reject(Op::CrossEntropy, &[(&[2], F32), labels], "at least 2");
    reject(Op::CrossEntropy, &[logits, (&[2, 3], F32)], "must be i64");
    check(Op::MeanSquaredErrorGrad, &[X, X, one], &[X]);
    let p: Shape<'_> = (&[3, 4], F32);
    let hyper: Shape<'_> = (&[2], F32);
    let sgd = |momentum| {
        Op::Update(Optimizer::Sgd {
            momentum,
            weight_decay: 0.0,
        })
    };
    check(sgd(0.0), &[p, p, hyper], &[p]);
    check(sgd(0.9), &[p, p, hyper, p], &[p, p]);
    reject(sgd(0.9), &[p, p, hyper], "takes 4 inputs");
    reject(sgd(1.5), &[p, p, hyper, p], "momentum is 1.5");
    let adam = |epsilon| {
        Op::Update(Optimizer::Adam {
            beta1: 0.9,
            beta2: 0.999,
            epsilon,
            weight_decay: 0.0,
        })
    };
    check(adam(1e-8), &[p, p, hyper, p, p], &[p, p, p]);
    reject(adam(f64::NAN), &[p, p, hyper, p, p], "epsilon is NaN");
    reject(adam(1e-8), &[p, p, p, p, p], "must have shape [2]");
}

#[test]
fn numbers_out_of_range() {
    let (k, p): (Shape<'_>, Shape<'_>) = ((&[2, 6], F32), (&[6], F32));
    let norm = Norm::Batch;
    let apply = |epsilon| Op::NormApply {
        norm,
        epsilon,
        activation: None,
    };
    reject(
        apply(-1.0),
        &[X, k, p, p],
        "epsilon is -1.0; it must be finite and not negative",
    );
    reject(apply(f64::NAN), &[X, k, p, p], "epsilon is NaN");
    let batch = |momentum| Op::BatchNorm {
        epsilon: 1e-5,
        momentum,
    };
    reject(
        batch(1.5),
        &[X, p, p, k],
        "momentum is 1.5; it must be between 0 and 1",
    );
    reject(
        Op::RunningStats {
            momentum: -0.1,
            count: 4,
        },
        &[k, k],
        "momentum is -0.1",
    );
    reject(
        Op::RunningStats {
            momentum: 0.1,
            count: 0,
        },
        &[k, k],
        "count is 0",
    );
    let expand = Op::Expand {
        shape: vec![6],
        scale: f64::INFINITY,
    };
    reject(expand, &[p], "scale is inf");
}
