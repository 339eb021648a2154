//! The cases of convolutions and products of matrices.

use scrimp_graph::{DType, Op, Window, infer};

use super::{Input, check, floats};

/// Window, groups, shape of x, output channels.
pub(super) type ConvCase = (Window, usize, [usize; 4], usize);

fn conv_cases() -> Vec<ConvCase> {
    let w = Window::square;
    let mut odd = Window::rect(3, 2).stride(2);
    odd.pad_begin = [0, 1];
    odd.pad_end = [2, 0];
    vec![
        (w(3).pad(1), 1, [2, 5, 9, 7], 6),
        (w(1), 1, [3, 20, 7, 7], 33),
        (w(1).stride(2), 1, [2, 8, 7, 8], 5),
        (w(3).pad(1).stride(2), 1, [2, 16, 15, 14], 20),
        (w(7).pad(3).stride(2), 1, [2, 3, 20, 21], 15),
        (w(3).dilation(2).pad(2), 2, [2, 6, 10, 9], 4),
        (w(2).stride(2), 1, [1, 6, 8, 10], 7),
        (w(3), 1, [1, 300, 4, 4], 17),
        (w(3).pad(1), 1, [1, 2, 40, 50], 3),
        (w(5).pad(4), 1, [1, 3, 6, 6], 2),
        (w(2).pad(3), 1, [1, 2, 5, 4], 3),
        (odd, 1, [2, 4, 9, 11], 6),
        (w(3).pad(1), 7, [2, 7, 9, 10], 7),
        (w(3).pad(1).stride(2), 5, [3, 5, 11, 12], 5),
        (w(5).pad(2).stride(3), 4, [1, 4, 12, 40], 4),
        (w(3).pad(1), 4, [2, 4, 6, 6], 8),
        // Depthwise convolutions in several bands, with gaps between windows, with dilation, and on planes
        // one element wide.
        (w(3).pad(1), 3, [2, 3, 75, 80], 3),
        (w(3).pad(1).stride(2), 2, [1, 2, 200, 91], 2),
        (w(2).stride(3), 3, [2, 3, 10, 12], 3),
        (w(3).dilation(2).pad(2).stride(2), 3, [1, 3, 13, 16], 3),
        (odd, 4, [2, 4, 9, 11], 4),
        (w(3).pad(2), 2, [2, 2, 9, 1], 2),
        (Window::rect(1, 9).pad_hw(0, 4), 2, [1, 2, 1, 5000], 2),
        (w(3).pad(1), 1, [2, 8, 64, 64], 8),
        (Window::rect(1, 7).pad_hw(0, 3), 1, [1, 6, 9, 9], 8),
    ]
}

/// Checks a convolution, with and without bias, and its gradients.
pub(super) fn convolution(
    (window, groups, x, o): ConvCase,
    key: u64,
    mut check: impl FnMut(&Op, &[Input]),
) {
    let w = [o, x[1] / groups, window.kernel[0], window.kernel[1]];
    let (image, weight, bias) = (floats(&x, key), floats(&w, key + 1), floats(&[o], key + 2));
    let forward = Op::Conv { window, groups };
    check(&forward, &[image.clone(), weight.clone()]);
    check(&forward, &[image.clone(), weight.clone(), bias]);
    let shapes = [(&x[..], DType::F64), (&w[..], DType::F64)];
    let y = infer(&forward, &shapes).expect("valid").remove(0).0;
    let dy = floats(&y, key + 3);
    let input_hw = [x[2], x[3]];
    let input_grad = Op::ConvInputGrad {
        window,
        groups,
        input_hw,
    };
    check(&input_grad, &[dy.clone(), weight]);
    let weight_grad = Op::ConvWeightGrad { window, groups };
    check(&weight_grad, &[image.clone(), dy.clone()]);
    check(&weight_grad, &[image, dy, floats(&w, key + 4)]);
}

#[test]
fn convolutions() {
    for (i, case) in conv_cases().into_iter().enumerate() {
        convolution(case, 10 * i as u64, check);
    }
}

/// Shapes of the factors before any is transposed.
const PRODUCTS: &[(&[usize], &[usize])] = &[
    (&[5, 7], &[7, 9]),
    (&[1, 300], &[300, 1]),
    (&[100, 513], &[513, 70]),
    (&[3, 20, 16], &[16, 33]),
    (&[2, 3, 17, 8], &[2, 3, 8, 19]),
    (&[2, 1, 17, 8], &[3, 8, 19]),
    (&[14, 32], &[4, 32, 32]),
    (&[300, 20], &[20, 500]),
];

/// A matrix product's arguments, stored in the four possible ways: without an addend, with a bias, and with a sum.
pub(super) fn product(
    (a, b): (&[usize], &[usize]),
    key: u64,
    mut check: impl FnMut(&Op, &[Input]),
) {
    let swapped = |shape: &[usize], swap: bool| {
        let mut shape = shape.to_vec();
        let last = shape.len() - 1;
        if swap {
            shape.swap(last, last - 1);
        }
        shape
    };
    for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
        let op = Op::MatMul { trans_a, trans_b };
        let n = b[b.len() - 1];
        let (a, b) = (swapped(a, trans_a), swapped(b, trans_b));
        let factors = [floats(&a, key), floats(&b, 100 + key)];
        check(&op, &factors);
        let signatures = [(&a[..], DType::F64), (&b[..], DType::F64)];
        let c = infer(&op, &signatures).expect("valid").remove(0).0;
        for addend in [&[n][..], &c] {
            let mut inputs = factors.to_vec();
            inputs.push(floats(addend, 7));
            check(&op, &inputs);
        }
    }
}

#[test]
fn matrix_products() {
    for (i, &shapes) in PRODUCTS.iter().enumerate() {
        product(shapes, i as u64, check);
    }
}
