//! Depthwise convolutions, computed as sums under windows: they have too little arithmetic for a matrix
//! product.

use super::geometry::Conv;
use crate::error::RunError;
use crate::kernels::scratch::Scratch;
use crate::real::Real;

pub(super) fn forward<T: Real>(
    slots: usize,
    conv: &Conv,
    workspace: &mut [u8],
    (x, w, bias): (&[T], &[T], Option<&[T]>),
    y: &mut [T],
) -> Result<(), RunError> {
    let taps = conv.taps();
    let weights = |plane: usize| {
        let c = plane % conv.c;
        let bias = bias.map_or(T::ZERO, |bias| bias[c]);
        (&w[c * taps..(c + 1) * taps], bias)
    };
    let mut scratch = Scratch::new(workspace);
    conv.windows()
        .sums(slots, &mut scratch, x, weights, |_, _| {}, y)
}

pub(super) fn input_grad<T: Real>(
    slots: usize,
    conv: &Conv,
    workspace: &mut [u8],
    (dy, w): (&[T], &[T]),
    dx: &mut [T],
) -> Result<(), RunError> {
    let taps = conv.taps();
    let weights = |plane: usize| &w[plane % conv.c * taps..(plane % conv.c + 1) * taps];
    let mut scratch = Scratch::new(workspace);
    conv.windows()
        .spread(slots, &mut scratch, dy, weights, |_, _| {}, dx)
}

pub(super) fn weight_grad<T: Real>(
    slots: usize,
    conv: &Conv,
    workspace: &mut [u8],
    operands: (&[T], &[T]),
    dw: &mut [T],
) -> Result<(), RunError> {
    let mut scratch = Scratch::new(workspace);
    conv.windows()
        .products(slots, &mut scratch, conv.c, operands, dw)
}
