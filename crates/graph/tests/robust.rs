//! Shape inference never panics or overflows, whatever shapes and attributes an importer brings, and
//! what it accepts has a size within the limits.

use proptest::prelude::*;
use scrimp_graph::shape::{MAX_RANK, MAX_TENSOR_BYTES, checked_bytes};
use scrimp_graph::{Binary, DType, Norm, Op, Optimizer, Reduction, Unary, Window, infer};

/// Mostly small, sometimes zero, sometimes enormous.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        60 => 1..4usize,
        1 => Just(0usize),
        1 => prop_oneof![Just(usize::MAX), Just(1 << 40), Just(1 << 20), any::<usize>()],
    ]
}

fn sizes(rank: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(size(), rank)
}

fn window() -> impl Strategy<Value = Window> {
    prop::array::uniform5(prop::array::uniform2(size())).prop_map(
        |[kernel, stride, dilation, pad_begin, pad_end]| Window {
            kernel,
            stride,
            dilation,
            pad_begin: pad_begin.map(|pad| pad.wrapping_sub(1)),
            pad_end: pad_end.map(|pad| pad.wrapping_sub(1)),
        },
    )
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(0.5),
        Just(f64::NAN),
        Just(f64::INFINITY),
        any::<f64>()
    ]
}

fn norm() -> impl Strategy<Value = Norm> {
    prop_oneof![
        Just(Norm::Batch),
        Just(Norm::Instance),
        size().prop_map(|groups| Norm::Group { groups }),
        size().prop_map(|axis| Norm::Layer { axis }),
    ]
}

fn spatial() -> impl Strategy<Value = Op> {
    (window(), size(), [size(), size()], any::<bool>(), 0..9).prop_map(
        |(window, groups, input_hw, count_pad, kind)| match kind {
            0 => Op::Conv { window, groups },
            1 => Op::ConvInputGrad {
                window,
                groups,
                input_hw,
            },
            2 => Op::ConvWeightGrad { window, groups },
            3 => Op::MaxPool { window },
            4 => Op::MaxPoolGrad { window },
            5 => Op::AvgPool { window, count_pad },
            6 => Op::AvgPoolGrad {
                window,
                count_pad,
                input_hw,
            },
            7 => Op::ResizeNearest { factor: input_hw },
            _ => Op::ResizeNearestGrad { factor: input_hw },
        },
    )
}

fn with_lists() -> impl Strategy<Value = Op> {
    (
        sizes(0..9),
        sizes(0..5),
        sizes(0..5),
        size(),
        number(),
        0..13,
    )
        .prop_map(|(shape, a, b, axis, value, kind)| match kind {
            0 => Op::Reduce {
                kind: Reduction::Mean,
                axes: a,
                keep_dims: axis % 2 == 0,
            },
            1 => Op::SumTo { shape },
            2 => Op::Expand {
                shape,
                scale: value,
            },
            3 => Op::Fill {
                shape,
                value,
                dtype: DType::F32,
            },
            4 => Op::Concat { axis },
            5 => Op::Slice {
                start: shape,
                end: a,
                step: b,
            },
            6 => Op::SliceGrad {
                start: a,
                step: b,
                shape,
            },
            7 => Op::Pad {
                begin: a,
                end: b,
                value,
            },
            8 => Op::Reshape { shape },
            9 => Op::Transpose {
                perm: a.iter().map(|i| i.wrapping_sub(1)).collect(),
            },
            10 => Op::Gather { axis },
            11 => Op::GatherGrad { axis, shape },
            _ => Op::Softmax { axis },
        })
}

fn with_numbers() -> impl Strategy<Value = Op> {
    (
        norm(),
        number(),
        number(),
        size(),
        any::<[bool; 2]>(),
        0..14,
    )
        .prop_map(|(norm, a, b, count, [trans_a, trans_b], kind)| match kind {
            0 => Op::MatMul { trans_a, trans_b },
            1 => Op::Unary(Unary::Clip { lo: a, hi: b }),
            2 => Op::UnaryGrad(Unary::Affine { scale: a, shift: b }),
            3 => Op::Binary(Binary::Div),
            4 => Op::BatchNorm {
                epsilon: a,
                momentum: b,
            },
            5 => Op::NormStats { norm },
            6 => Op::NormApply {
                norm,
                epsilon: a,
                activation: trans_a.then_some(Unary::Relu),
            },
            7 => Op::NormParamGrad {
                norm,
                epsilon: a,
                activation: trans_a.then_some(Unary::Clip { lo: a, hi: b }),
            },
            8 => Op::NormGrad {
                norm,
                epsilon: a,
                activation: trans_a.then_some(Unary::LeakyRelu { slope: b }),
            },
            9 => Op::RunningStats { momentum: a, count },
            10 => Op::Dropout {
                p: a,
                stream: 0,
                place: None,
            },
            11 => Op::CrossEntropyGrad,
            12 => Op::MeanSquaredError,
            _ => Op::Update(Optimizer::Sgd {
                momentum: a,
                weight_decay: b,
            }),
        })
}

/// Inputs that often agree with each other: a shape, and shapes like it.
fn inputs() -> impl Strategy<Value = Vec<(Vec<usize>, DType)>> {
    let dtype = prop_oneof![20 => Just(DType::F32), 3 => Just(DType::I64), 1 => Just(DType::F64)];
    let input = (
        prop_oneof![sizes(4), sizes(1), sizes(0..10)],
        any::<bool>(),
        dtype,
    );
    prop::collection::vec(input, 1..6).prop_map(|inputs| {
        let first = inputs
            .first()
            .map(|(shape, ..)| shape.clone())
            .unwrap_or_default();
        let pick = |(shape, same, dtype)| (if same { first.clone() } else { shape }, dtype);
        inputs.into_iter().map(pick).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn inference_never_panics(
        op in prop_oneof![spatial(), with_lists(), with_numbers()],
        inputs in inputs(),
    ) {
        let signature: Vec<_> = inputs.iter().map(|(shape, dtype)| (&**shape, *dtype)).collect();
        for (shape, dtype) in infer(&op, &signature).unwrap_or_default() {
            prop_assert!(shape.len() <= MAX_RANK);
            prop_assert!(checked_bytes(&shape, dtype).unwrap() <= MAX_TENSOR_BYTES);
        }
    }
}
