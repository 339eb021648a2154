//! Launches of convolutions and poolings.

use bytemuck::NoUninit;
use scrimp_graph::Window;

use super::lower::{add_all, reduce, start_from};
use super::program::Argument::{Input, Output};
use super::program::{Argument, Builder, Walk, constant, sized, squares, team, word};
use crate::kernels::shape::dims;

/// A window on planes, as `kernels/window.cl` has it.
#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Windows {
    input: [u32; 2],
    output: [u32; 2],
    kernel: [u32; 2],
    stride: [u32; 2],
    dilation: [u32; 2],
    begin: [u32; 2],
    end: [u32; 2],
}

impl Windows {
    /// That moves over x and makes y.
    fn new(window: &Window, x: &[usize], y: &[usize]) -> Windows {
        let words = |pair: [usize; 2]| pair.map(|x| x as u32);
        Windows {
            input: words([x[2], x[3]]),
            output: words([y[2], y[3]]),
            kernel: words(window.kernel),
            stride: words(window.stride),
            dilation: words(window.dilation),
            begin: words(window.pad_begin),
            end: words(window.pad_end),
        }
    }
}

/// As `kernels/conv.cl` has it.
#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Convolution {
    windows: Windows,
    groups: u32,
    inputs: u32,
    outputs: u32,
}

impl Convolution {
    fn new(window: &Window, groups: usize, x: &[usize], y: &[usize]) -> Convolution {
        Convolution {
            windows: Windows::new(window, x, y),
            groups: groups as u32,
            inputs: (x[1] / groups) as u32,
            outputs: (y[1] / groups) as u32,
        }
    }
}

/// Rows and columns at least of a product of matrices: a smaller one leaves most of a square empty, and its
/// elements are summed one by one.
const LEAST: usize = 3;

pub fn conv(b: &mut Builder<'_>, window: &Window, groups: usize) {
    let geometry = Convolution::new(window, groups, b.shape(0), b.to());
    let biased = b.inputs.len() > 2;
    let bias = Input(if biased { 2 } else { 0 });
    let [samples, outputs, height, width] = dims(b.to());
    let (rows, columns) = (outputs / groups, samples * height * width);
    let tensors = vec![Input(0), Input(1), bias, Output(0)];
    let rest = |first| vec![word(first), word(usize::from(biased)), constant(&geometry)];
    if rows < LEAST || columns < LEAST {
        return b.items("conv", b.count(), [tensors, rest(b.count())].concat());
    }
    b.product(
        sized!("conv_product"),
        [rows, columns, groups],
        [tensors, rest(samples)].concat(),
    );
}

/// Positions that are a multiple of the stride from each other, and the taps that read them, as
/// `kernels/conv_product.cl` has them.
#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Phase {
    first: [u32; 2],
    count: [u32; 2],
    tap: [u32; 2],
    taps: [u32; 2],
    tap_step: [u32; 2],
}

/// Along one axis: the number of these positions, the first tap, the number of taps, and their distance.
fn phase(window: &Window, axis: usize, length: usize, first: usize) -> [u32; 4] {
    let (stride, dilation) = (window.stride[axis], window.dilation[axis]);
    let reads = |tap: &usize| (first + window.pad_begin[axis]) % stride == tap * dilation % stride;
    let taps: Vec<usize> = (0..window.kernel[axis]).filter(reads).collect();
    let step = taps.get(1).map_or(1, |second| second - taps[0]);
    let tap = taps.first().copied().unwrap_or(0);
    [(length - first).div_ceil(stride), tap, taps.len(), step].map(|x| x as u32)
}

pub fn conv_input_grad(b: &mut Builder<'_>, window: &Window, groups: usize) {
    let geometry = Convolution::new(window, groups, b.to(), b.shape(0));
    let [samples, inputs, height, width] = dims(b.to());
    let rows = inputs / groups;
    let arguments = |first| {
        vec![
            Input(0),
            Input(1),
            Output(0),
            word(first),
            constant(&geometry),
        ]
    };
    if rows < LEAST || samples * height * width < LEAST {
        return b.items("conv_input_grad", b.count(), arguments(b.count()));
    }
    for down in 0..window.stride[0].min(height) {
        for right in 0..window.stride[1].min(width) {
            let axes = [
                phase(window, 0, height, down),
                phase(window, 1, width, right),
            ];
            let [count, tap, taps, tap_step] = [0, 1, 2, 3].map(|what| axes.map(|of| of[what]));
            let phase = Phase {
                first: [down as u32, right as u32],
                count,
                tap,
                taps,
                tap_step,
            };
            let columns = samples * count[0] as usize * count[1] as usize;
            b.product(
                sized!("conv_input_grad_product"),
                [rows, columns, groups],
                [arguments(samples), vec![constant(&phase)]].concat(),
            );
        }
    }
}

/// The size of squares with which sums are split: the parts are the same whichever size runs.
const TYPICAL_TILE: usize = 64;

/// Groups that a device should have to work with, and windows that one should at least sum over.
const ENOUGH_GROUPS: usize = 256;
const ENOUGH_WINDOWS: usize = 1024;

pub fn conv_weight_grad(b: &mut Builder<'_>, window: &Window, groups: usize) {
    if b.inputs.len() == 2 {
        return conv_weight_grad_to(b, window, groups, Output(0));
    }
    start_from(b, 2);
    let part = b.scratch(b.count());
    conv_weight_grad_to(b, window, groups, part.clone());
    add_all(b, part);
}

fn conv_weight_grad_to(b: &mut Builder<'_>, window: &Window, groups: usize, to: Argument) {
    let (x, dy, count) = (b.shape(0), b.shape(1), b.count());
    let geometry = Convolution::new(window, groups, x, dy);
    let depth = dy[0] * dy[2] * dy[3];
    let rows = dy[1] / groups;
    let columns = count / dy[1];
    if rows < LEAST || columns < LEAST {
        let team = team(depth);
        let rest = [word(count), word(dy[0]), word(team), constant(&geometry)];
        let arguments = [Input(0), Input(1), to].into_iter().chain(rest).collect();
        return b.items("conv_weight_grad", count * team, arguments);
    }
    // A weight has few elements and many terms: groups share them, and their sums are added in order.
    let squares = squares(rows, columns, TYPICAL_TILE) * groups;
    let parts = (ENOUGH_GROUPS / squares).clamp(1, (depth / ENOUGH_WINDOWS).max(1));
    let span = depth.div_ceil(parts);
    let sums = if parts == 1 {
        to.clone()
    } else {
        b.scratch(parts * count)
    };
    let rest = [word(dy[0]), word(span), constant(&geometry)];
    let arguments = [Input(0), Input(1), sums.clone()]
        .into_iter()
        .chain(rest)
        .collect();
    let kernels = sized!("conv_weight_grad_product");
    b.product(kernels, [rows, columns, groups * parts], arguments);
    if parts > 1 {
        let walks = [Walk::straight(count), Walk::new(&[parts], &[count])];
        reduce(b, [sums, to], [count, parts], 1.0, walks);
    }
}

pub fn max_pool(b: &mut Builder<'_>, window: &Window) {
    let windows = Windows::new(window, b.shape(0), b.to());
    let arguments = vec![Input(0), Output(0), word(b.count()), constant(&windows)];
    b.items("max_pool", b.count(), arguments);
}

pub fn max_pool_grad(b: &mut Builder<'_>, window: &Window) {
    let windows = Windows::new(window, b.to(), b.shape(1));
    let tensors = [Input(0), Input(1), Output(0)].into_iter();
    if !window.tiles() {
        // The largest element of each window is found once, however many windows an element is in.
        let count = b.shape(1).iter().product();
        let places = b.scratch(count);
        let arguments = vec![Input(0), places.clone(), word(count), constant(&windows)];
        b.items("max_pool_places", count, arguments);
        let (gradients, count) = ([Input(1), Output(0)], b.count());
        let arguments = [places].into_iter().chain(gradients);
        let rest = [word(count), constant(&windows)];
        return b.items("max_pool_grad", count, arguments.chain(rest).collect());
    }
    let [n, c, h, w] = dims(b.to());
    let along = |axis: usize, length: usize| {
        (length + window.pad_begin[axis]).div_ceil(window.stride[axis])
    };
    let (down, right) = (along(0, h), along(1, w));
    let tiles = n * c * down * right;
    let rest = [word(tiles), word(down), word(right), constant(&windows)];
    b.items("max_pool_grad_tiles", tiles, tensors.chain(rest).collect());
}

pub fn average_pool(b: &mut Builder<'_>, window: &Window, count_pad: bool) {
    let windows = Windows::new(window, b.shape(0), b.to());
    average(b, "average_pool", windows, count_pad);
}

pub fn average_pool_grad(b: &mut Builder<'_>, window: &Window, count_pad: bool) {
    let windows = Windows::new(window, b.to(), b.shape(0));
    average(b, "average_pool_grad", windows, count_pad);
}

fn average(b: &mut Builder<'_>, kernel: &'static str, windows: Windows, count_pad: bool) {
    let constants = [
        word(b.count()),
        word(usize::from(count_pad)),
        constant(&windows),
    ];
    let arguments = [Input(0), Output(0)].into_iter().chain(constants).collect();
    b.items(kernel, b.count(), arguments);
}
