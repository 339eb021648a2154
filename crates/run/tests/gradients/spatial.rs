//! Convolutions, transposed convolutions, pooling, resizing.

use scrimp_graph::{Op, Window};

use super::check;

/// x, weight, groups, window.
type Convolution = ([usize; 4], [usize; 4], usize, Window);

fn convolutions() -> Vec<Convolution> {
    let asymmetric = Window {
        pad_begin: [0, 2],
        pad_end: [1, 0],
        ..Window::square(3)
    };
    let uneven = Window {
        stride: [2, 1],
        dilation: [1, 2],
        ..Window::rect(3, 2)
    };
    vec![
        ([2, 3, 4, 5], [4, 3, 1, 1], 1, Window::square(1)),
        ([2, 3, 4, 5], [4, 3, 1, 1], 1, Window::square(1).stride(2)),
        ([2, 3, 5, 4], [2, 3, 3, 3], 1, Window::square(3).pad(1)),
        (
            [1, 2, 6, 7],
            [3, 2, 3, 3],
            1,
            Window::square(3).stride(2).pad(1),
        ),
        // The last row and column are never read.
        ([1, 2, 6, 6], [2, 2, 3, 3], 1, Window::square(3).stride(2)),
        (
            [1, 2, 7, 6],
            [2, 2, 3, 3],
            1,
            Window::square(3).dilation(2).pad(1),
        ),
        ([2, 4, 4, 4], [6, 2, 3, 3], 2, Window::square(3).pad(1)),
        (
            [2, 3, 5, 5],
            [3, 1, 3, 3],
            3,
            Window::square(3).pad(1).stride(2),
        ),
        ([1, 2, 5, 5], [6, 1, 2, 2], 2, Window::square(2)),
        ([2, 2, 4, 4], [3, 2, 3, 3], 1, asymmetric),
        ([1, 4, 6, 5], [4, 2, 3, 2], 2, uneven),
        // More padding than kernel.
        ([1, 1, 2, 2], [1, 1, 2, 2], 1, Window::square(2).pad(3)),
    ]
}

#[test]
fn convolution() {
    for (x, w, groups, window) in convolutions() {
        for bias in [false, true] {
            check(|c| {
                let mut inputs = vec![c.p(&x)?, c.p(&w)?];
                if bias {
                    inputs.push(c.p(&[w[0]])?);
                }
                c.op(Op::Conv { window, groups }, &inputs)
            });
        }
    }
}

#[test]
fn transposed_convolution() {
    for (x, w, groups, window) in convolutions() {
        check(|c| {
            // The input of the transposed convolution has the shape of the convolution's output.
            let probe = (c.c(&x)?, c.c(&w)?);
            let y = c.op(Op::Conv { window, groups }, &[probe.0, probe.1])?;
            let shape = c.b.shape(y).to_vec();
            let (y, w) = (c.p(&shape)?, c.p(&w)?);
            c.op(
                Op::ConvInputGrad {
                    window,
                    groups,
                    input_hw: [x[2], x[3]],
                },
                &[y, w],
            )
        });
    }
    check(|c| {
        let x = c.p(&[1, 2, 3, 3])?;
        c.b.conv_transpose("up", x, 3, Window::square(3).stride(2).pad(1), [1, 0], true)
    });
}

fn poolings() -> Vec<([usize; 4], Window)> {
    let asymmetric = Window {
        pad_begin: [0, 1],
        pad_end: [1, 0],
        ..Window::square(2).stride(2)
    };
    vec![
        ([2, 2, 4, 6], Window::square(2).stride(2)),
        ([1, 2, 5, 5], Window::square(3).stride(2).pad(1)),
        ([1, 1, 5, 5], Window::square(3)),
        ([1, 1, 7, 6], Window::square(2).dilation(3)),
        ([1, 2, 5, 5], asymmetric),
        ([1, 1, 4, 4], Window::square(1).stride(3)),
        ([2, 1, 3, 5], Window::rect(3, 5)),
    ]
}

#[test]
fn pooling() {
    for (x, window) in poolings() {
        check(|c| {
            let x = c.p(&x)?;
            c.op(Op::MaxPool { window }, &[x])
        });
        for count_pad in [false, true] {
            check(|c| {
                let x = c.p(&x)?;
                c.op(Op::AvgPool { window, count_pad }, &[x])
            });
            check(|c| {
                let probe = c.c(&x)?;
                let y = c.op(Op::AvgPool { window, count_pad }, &[probe])?;
                let shape = c.b.shape(y).to_vec();
                let y = c.p(&shape)?;
                let input_hw = [x[2], x[3]];
                c.op(
                    Op::AvgPoolGrad {
                        window,
                        count_pad,
                        input_hw,
                    },
                    &[y],
                )
            });
        }
    }
}

#[test]
fn resizing() {
    for factor in [[2, 2], [1, 3], [3, 1]] {
        check(|c| {
            let x = c.p(&[2, 2, 2, 3])?;
            c.op(Op::ResizeNearest { factor }, &[x])
        });
        check(|c| {
            let x = c.p(&[1, 2, 6, 6])?;
            c.op(Op::ResizeNearestGrad { factor }, &[x])
        });
    }
}
