//! Normalizations, softmax, dropout.

use scrimp_graph::{Init, Norm, Op, Unary};

use super::check;

#[test]
fn batch_normalization() {
    for shape in [&[4, 3][..], &[2, 3, 4], &[2, 3, 3, 2], &[3, 1, 2, 2]] {
        check(|c| {
            let x = c.p(shape)?;
            let (scale, shift) = (c.p(&shape[1..2])?, c.p(&shape[1..2])?);
            let running = c.b.state("running", &[2, shape[1]], Init::Constant(0.0))?;
            c.op(
                Op::BatchNorm {
                    epsilon: 1e-2,
                    momentum: 0.1,
                },
                &[x, scale, shift, running],
            )
        });
    }
}

/// The gradient of x needs the sums that are the gradients of scale and shift, trained or not.
#[test]
fn batch_normalization_with_fixed_scale() {
    for trained in 0..3 {
        check(|c| {
            let x = c.p(&[2, 3, 2, 2])?;
            let scale = if trained == 1 { c.p(&[3])? } else { c.c(&[3])? };
            let shift = if trained == 2 { c.p(&[3])? } else { c.c(&[3])? };
            let running = c.b.state("running", &[2, 3], Init::Constant(0.0))?;
            c.op(
                Op::BatchNorm {
                    epsilon: 1e-2,
                    momentum: 0.1,
                },
                &[x, scale, shift, running],
            )
        });
    }
}

#[test]
fn other_normalizations() {
    let cases: [(&[usize], Norm); 9] = [
        (&[2, 3, 4], Norm::Instance),
        (&[2, 3, 2, 3], Norm::Instance),
        (&[2, 4, 3], Norm::Group { groups: 2 }),
        (&[2, 6, 2, 2], Norm::Group { groups: 3 }),
        (&[2, 4, 2, 2], Norm::Group { groups: 1 }),
        (&[3, 5], Norm::Layer { axis: 1 }),
        (&[2, 3, 4], Norm::Layer { axis: 2 }),
        (&[2, 3, 2, 2], Norm::Layer { axis: 1 }),
        (&[2, 3, 2], Norm::Layer { axis: 0 }),
    ];
    for (shape, norm) in cases {
        check(|c| {
            let x = c.p(shape)?;
            let params = match norm {
                Norm::Layer { axis } => &shape[axis..],
                _ => &shape[1..2],
            };
            let (scale, shift) = (c.p(params)?, c.p(params)?);
            c.b.normalize_with("norm", x, norm, 1e-2, scale, shift)
        });
    }
}

/// The activation joins the normalization when the graph is differentiated.
#[test]
fn normalizations_with_activations() {
    let cases: [(&[usize], Norm); 4] = [
        (&[3, 2, 3, 2], Norm::Batch),
        (&[2, 3, 2, 3], Norm::Instance),
        (&[2, 4, 3], Norm::Group { groups: 2 }),
        (&[3, 5], Norm::Layer { axis: 1 }),
    ];
    let activations = [
        Unary::Relu,
        Unary::LeakyRelu { slope: 0.2 },
        Unary::Clip { lo: -0.5, hi: 0.5 },
    ];
    for (shape, norm) in cases {
        for f in activations {
            check(|c| {
                let x = c.p(shape)?;
                let (scale, shift) = (c.p(&shape[1..2])?, c.p(&shape[1..2])?);
                let y = c.b.normalize_with("norm", x, norm, 1e-2, scale, shift)?;
                c.op(Op::Unary(f), &[y])
            });
            // Data: only scale and shift have gradients.
            check(|c| {
                let x = c.c(shape)?;
                let (scale, shift) = (c.p(&shape[1..2])?, c.p(&shape[1..2])?);
                let y = c.b.normalize_with("norm", x, norm, 1e-2, scale, shift)?;
                c.op(Op::Unary(f), &[y])
            });
        }
    }
}

#[test]
fn normalization_of_data() {
    check(|c| {
        let x = c.c(&[2, 3, 4])?;
        c.b.layer_norm("norm", x)
    });
}

#[test]
fn softmax() {
    for (shape, axis) in [
        (&[3, 4][..], 1),
        (&[3, 4], 0),
        (&[2, 3, 2], 1),
        (&[5], 0),
        (&[2, 2, 1, 3], 3),
    ] {
        check(|c| {
            let x = c.p(shape)?;
            c.op(Op::Softmax { axis }, &[x])
        });
        check(|c| {
            let x = c.p(shape)?;
            c.op(Op::LogSoftmax { axis }, &[x])
        });
    }
}

#[test]
fn dropout() {
    for p in [0.0, 0.3, 0.9] {
        check(|c| {
            let x = c.p(&[4, 9])?;
            let once = c.b.dropout("a", x, p)?;
            c.b.dropout("b", once, 0.5)
        });
    }
}
