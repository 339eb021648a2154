//! Elementwise operators, broadcasting, reductions, matrix products, losses.

use scrimp_graph::{Binary, Op, Reduction, Unary};

use super::check;

#[test]
fn every_function() {
    let functions = [
        Unary::Relu,
        Unary::LeakyRelu { slope: 0.2 },
        Unary::LeakyRelu { slope: 0.0 },
        Unary::LeakyRelu { slope: 1.5 },
        Unary::Gelu,
        Unary::GeluTanh,
        Unary::Sigmoid,
        Unary::Tanh,
        Unary::Clip { lo: -0.5, hi: 0.7 },
        Unary::Clip {
            lo: 0.0,
            hi: f64::INFINITY,
        },
        Unary::Exp,
        Unary::Erf,
        Unary::Abs,
        Unary::Pow { exponent: 2.0 },
        Unary::Pow { exponent: 3.0 },
        Unary::Silu,
        Unary::Affine {
            scale: -1.5,
            shift: 0.3,
        },
    ];
    for f in functions {
        check(|c| {
            let p = c.p(&[3, 1, 5])?;
            c.op(Op::Unary(f), &[p])
        });
    }
}

#[test]
fn functions_of_positive_numbers() {
    let functions = [
        Unary::Log,
        Unary::Sqrt,
        Unary::Pow { exponent: -0.5 },
        Unary::Pow { exponent: 1.3 },
    ];
    for f in functions {
        check(|c| {
            let p = c.p(&[11])?;
            let positive = c.op(Op::Unary(Unary::Exp), &[p])?;
            c.op(Op::Unary(f), &[positive])
        });
    }
}

/// Numerator and denominator shapes that broadcast to each other from either side.
const BROADCASTS: [[&[usize]; 2]; 7] = [
    [&[2, 3], &[2, 3]],
    [&[2, 3, 4], &[4]],
    [&[3, 1], &[2, 3, 4]],
    [&[2, 1, 4], &[1, 3, 1]],
    [&[], &[2, 3]],
    [&[2, 3], &[1]],
    [&[1, 1, 3], &[2, 1]],
];

#[test]
fn binary_operators_broadcast_both_sides() {
    for f in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div] {
        for [a, b] in BROADCASTS {
            check(|c| {
                let a = c.p(a)?;
                let b = c.p(b)?;
                let b = c.op(Op::Unary(Unary::Exp), &[b])?;
                c.op(Op::Binary(f), &[a, b])
            });
        }
    }
}

#[test]
fn binary_operators_of_one_tensor() {
    for f in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div] {
        check(|c| {
            let p = c.p(&[2, 3])?;
            let square = c.op(Op::Binary(Binary::Mul), &[p, p])?;
            let shifted = c.op(
                Op::Unary(Unary::Affine {
                    scale: 1.0,
                    shift: 0.5,
                }),
                &[square],
            )?;
            c.op(Op::Binary(f), &[shifted, shifted])
        });
    }
}

#[test]
fn reductions() {
    let axes: [&[usize]; 6] = [&[0], &[2], &[1, 3], &[0, 1, 2, 3], &[2, 3], &[]];
    for kind in [Reduction::Sum, Reduction::Mean] {
        for axes in axes {
            for keep_dims in [false, true] {
                check(|c| {
                    let p = c.p(&[2, 3, 1, 4])?;
                    c.op(
                        Op::Reduce {
                            kind,
                            axes: axes.to_vec(),
                            keep_dims,
                        },
                        &[p],
                    )
                });
            }
        }
    }
}

#[test]
fn sums_to_and_expansions() {
    let shapes: [[&[usize]; 2]; 5] = [
        [&[4], &[2, 3, 4]],
        [&[3, 1], &[2, 3, 4]],
        [&[2, 1, 1], &[2, 3, 4]],
        [&[], &[2, 3]],
        [&[2, 3], &[2, 3]],
    ];
    for [small, large] in shapes {
        check(|c| {
            let p = c.p(large)?;
            c.op(
                Op::SumTo {
                    shape: small.to_vec(),
                },
                &[p],
            )
        });
        for scale in [1.0, 0.25] {
            check(|c| {
                let p = c.p(small)?;
                c.op(
                    Op::Expand {
                        shape: large.to_vec(),
                        scale,
                    },
                    &[p],
                )
            });
        }
    }
}

#[test]
fn matrix_products() {
    // Leading axes of a and of b.
    let batches: [[&[usize]; 2]; 7] = [
        [&[], &[]],
        [&[2], &[2]],
        [&[2, 3], &[2, 3]],
        [&[2, 3], &[]],
        [&[2, 3], &[1, 1, 1]],
        [&[], &[2]],
        [&[2, 1], &[3]],
    ];
    let (m, k, n) = (3, 4, 2);
    for [batch_a, batch_b] in batches {
        for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
            for bias in [false, true] {
                check(|c| {
                    let a = if trans_a { [k, m] } else { [m, k] };
                    let b = if trans_b { [n, k] } else { [k, n] };
                    let mut inputs = vec![
                        c.p(&[batch_a, &a[..]].concat())?,
                        c.p(&[batch_b, &b[..]].concat())?,
                    ];
                    if bias {
                        inputs.push(c.p(&[n])?);
                    }
                    c.op(Op::MatMul { trans_a, trans_b }, &inputs)
                });
            }
        }
    }
}

#[test]
fn one_matrix_as_both_factors() {
    check(|c| {
        let p = c.p(&[3, 3])?;
        c.op(
            Op::MatMul {
                trans_a: false,
                trans_b: true,
            },
            &[p, p],
        )
    });
}

#[test]
fn losses() {
    for (logits, labels) in [
        (&[4, 3][..], &[4][..]),
        (&[2, 3, 2, 2], &[2, 2, 2]),
        (&[3, 4, 2], &[3, 2]),
    ] {
        check(|c| {
            let p = c.p(logits)?;
            let count: usize = labels.iter().product();
            let values: Vec<i64> = (0..count as i64).map(|i| (i * i + 1) % 3).collect();
            let labels = c.ints(labels, &values)?;
            c.op(Op::CrossEntropy, &[p, labels])
        });
    }
    check(|c| {
        let (a, b) = (c.p(&[2, 3])?, c.p(&[2, 3])?);
        c.op(Op::MeanSquaredError, &[a, b])
    });
    check(|c| {
        let (a, b) = (c.c(&[5])?, c.p(&[5])?);
        c.op(Op::MeanSquaredError, &[a, b])
    });
}
