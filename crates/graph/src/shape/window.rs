//! Shapes of convolutions, poolings and resizing: operators over the last two axes of [N,C,H,W].

use super::error::ShapeError;
use super::signature::{
    Inferred, Signature, attribute, exactly, expect_shape, floating, with_optional,
};
use super::size::too_large;
use crate::op::Window;

type Four = [usize; 4];

fn four(input: usize, shape: &[usize]) -> Result<Four, ShapeError> {
    shape.try_into().map_err(|_| ShapeError::Rank {
        input,
        expected: "4 ([N,C,H,W])".into(),
        found: shape.to_vec(),
    })
}

/// The number of positions of the window along `axis` (0: height, 1: width) of a tensor with length
/// `len` there: ⌊(len + pads − dilation·(kernel−1) − 1)/stride⌋ + 1.
pub fn window_count(window: &Window, axis: usize, len: usize) -> Result<usize, ShapeError> {
    for (field, value) in [
        ("kernel", window.kernel),
        ("stride", window.stride),
        ("dilation", window.dilation),
    ] {
        if value.contains(&0) {
            return Err(attribute(field, value, "every entry must be at least 1"));
        }
    }
    let padded = len
        .checked_add(window.pad_begin[axis])
        .and_then(|len| len.checked_add(window.pad_end[axis]))
        .filter(|&len| len <= isize::MAX as usize);
    let span = extent(window, axis);
    let (Some(padded), Some(span)) = (padded, span) else {
        return Err(too_large(&[len]));
    };
    let room = padded.checked_sub(span).ok_or_else(|| {
        attribute(
            "kernel",
            window.kernel,
            format!("it spans {span} elements but only {padded} are there, padding included; use a larger image, more padding or a smaller kernel"),
        )
    })?;
    Ok(room / window.stride[axis] + 1)
}

/// Elements from the first to one past the last that a window touches.
fn extent(window: &Window, axis: usize) -> Option<usize> {
    (window.kernel[axis] - 1)
        .checked_mul(window.dilation[axis])?
        .checked_add(1)
}

fn window_counts(window: &Window, hw: [usize; 2]) -> Result<[usize; 2], ShapeError> {
    Ok([
        window_count(window, 0, hw[0])?,
        window_count(window, 1, hw[1])?,
    ])
}

/// Input and output channels of the convolution's weight `[O, C/g, kh, kw]`.
fn channels(w: Four, window: &Window, groups: usize) -> Result<(usize, usize), ShapeError> {
    if groups == 0 || !w[0].is_multiple_of(groups) {
        return Err(attribute(
            "groups",
            groups,
            format!("it must divide the {} output channels", w[0]),
        ));
    }
    if [w[2], w[3]] != window.kernel {
        return Err(attribute(
            "kernel",
            window.kernel,
            format!(
                "it must equal the last two axes of the weight, {:?}",
                [w[2], w[3]]
            ),
        ));
    }
    let input = w[1].checked_mul(groups).ok_or_else(|| too_large(&w))?;
    Ok((input, w[0]))
}

pub(super) fn conv(
    inputs: &[Signature<'_>],
    window: &Window,
    groups: usize,
) -> Result<Inferred, ShapeError> {
    let ([x, w], bias) = with_optional::<2>(inputs, "2 or 3")?;
    let dtype = floating(inputs)?;
    let [n, c, h, width] = four(0, x.0)?;
    let (c_in, c_out) = channels(four(1, w.0)?, window, groups)?;
    if c != c_in {
        return Err(ShapeError::Shape {
            input: 0,
            expected: format!(
                "[N, {c_in}, H, W] for the weight {:?} and {groups} groups",
                w.0
            ),
            found: x.0.to_vec(),
        });
    }
    if let Some(bias) = bias {
        expect_shape(2, bias.0, &[c_out])?;
    }
    let [oh, ow] = window_counts(window, [h, width])?;
    Ok((vec![n, c_out, oh, ow], dtype))
}

pub(super) fn conv_input_grad(
    inputs: &[Signature<'_>],
    window: &Window,
    groups: usize,
    input_hw: [usize; 2],
) -> Result<Inferred, ShapeError> {
    let [dy, w] = exactly(inputs, "2")?;
    let dtype = floating(inputs)?;
    let n = four(0, dy.0)?[0];
    let (c_in, c_out) = channels(four(1, w.0)?, window, groups)?;
    let [oh, ow] = window_counts(window, input_hw)?;
    expect_shape(0, dy.0, &[n, c_out, oh, ow])?;
    Ok((vec![n, c_in, input_hw[0], input_hw[1]], dtype))
}

pub(super) fn conv_weight_grad(
    inputs: &[Signature<'_>],
    window: &Window,
    groups: usize,
) -> Result<Inferred, ShapeError> {
    let ([x, dy], sum) = with_optional::<2>(inputs, "2 or 3")?;
    let dtype = floating(inputs)?;
    let [n, c, h, w] = four(0, x.0)?;
    let [_, c_out, ..] = four(1, dy.0)?;
    if groups == 0 || c % groups != 0 || c_out % groups != 0 {
        return Err(attribute(
            "groups",
            groups,
            format!("it must divide the {c} input and {c_out} output channels"),
        ));
    }
    let [oh, ow] = window_counts(window, [h, w])?;
    expect_shape(1, dy.0, &[n, c_out, oh, ow])?;
    let shape = vec![c_out, c / groups, window.kernel[0], window.kernel[1]];
    if let Some((sum, _)) = sum {
        expect_shape(2, sum, &shape)?;
    }
    Ok((shape, dtype))
}

/// Every window of a pooling touches at least one element that isn't padding, so that a maximum and
/// a mean exist.
fn check_pool_padding(window: &Window, hw: [usize; 2]) -> Result<(), ShapeError> {
    for (axis, &len) in hw.iter().enumerate() {
        let begin = window.pad_begin[axis];
        let count = window_count(window, axis, len)?;
        let span = extent(window, axis).ok_or_else(|| too_large(&hw))?;
        // Fits: window_count has checked len + pads, and the last window starts within that.
        let last_start = (count - 1) * window.stride[axis];
        let first_ok = begin == 0 || (begin < span && window.dilation[axis] <= len);
        if !first_ok || last_start >= len + begin {
            return Err(attribute(
                "pad",
                (window.pad_begin, window.pad_end),
                "a pooling window would lie wholly in the padding; use less padding",
            ));
        }
    }
    Ok(())
}

pub(super) fn pool(inputs: &[Signature<'_>], window: &Window) -> Result<Inferred, ShapeError> {
    let [x] = exactly(inputs, "1")?;
    let dtype = floating(inputs)?;
    let [n, c, h, w] = four(0, x.0)?;
    check_pool_padding(window, [h, w])?;
    let [oh, ow] = window_counts(window, [h, w])?;
    Ok((vec![n, c, oh, ow], dtype))
}

pub(super) fn max_pool_grad(
    inputs: &[Signature<'_>],
    window: &Window,
) -> Result<Inferred, ShapeError> {
    let [x, dy] = exactly(inputs, "2")?;
    floating(inputs)?;
    let (pooled, dtype) = pool(&[x], window)?;
    expect_shape(1, dy.0, &pooled)?;
    Ok((x.0.to_vec(), dtype))
}

pub(super) fn avg_pool_grad(
    inputs: &[Signature<'_>],
    window: &Window,
    input_hw: [usize; 2],
) -> Result<Inferred, ShapeError> {
    let [dy] = exactly(inputs, "1")?;
    let dtype = floating(inputs)?;
    let [n, c, ..] = four(0, dy.0)?;
    check_pool_padding(window, input_hw)?;
    let [oh, ow] = window_counts(window, input_hw)?;
    expect_shape(0, dy.0, &[n, c, oh, ow])?;
    Ok((vec![n, c, input_hw[0], input_hw[1]], dtype))
}

pub(super) fn resize(inputs: &[Signature<'_>], factor: [usize; 2]) -> Result<Inferred, ShapeError> {
    let [x] = exactly(inputs, "1")?;
    let dtype = floating(inputs)?;
    let [n, c, h, w] = four(0, x.0)?;
    let scaled = |len: usize, by: usize| len.checked_mul(by).ok_or_else(|| too_large(x.0));
    if factor.contains(&0) {
        return Err(attribute(
            "factor",
            factor,
            "every entry must be at least 1",
        ));
    }
    Ok((
        vec![n, c, scaled(h, factor[0])?, scaled(w, factor[1])?],
        dtype,
    ))
}

pub(super) fn resize_grad(
    inputs: &[Signature<'_>],
    factor: [usize; 2],
) -> Result<Inferred, ShapeError> {
    let [dy] = exactly(inputs, "1")?;
    let dtype = floating(inputs)?;
    let [n, c, h, w] = four(0, dy.0)?;
    if factor.contains(&0) || h % factor[0] != 0 || w % factor[1] != 0 {
        return Err(attribute(
            "factor",
            factor,
            format!("it must divide the size {:?}", [h, w]),
        ));
    }
    Ok((vec![n, c, h / factor[0], w / factor[1]], dtype))
}
