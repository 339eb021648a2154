//! Convolutions and their gradients, as products of matrices that read images in place of a matrix
//! of patches; depthwise convolutions go to `depthwise.rs`.
//!
//! * Forward: y = W·patches(x), columns are the output pixels of all images.
//! * Input gradient, stride 1: the forward convolution of dy with the weights turned around.
//! * Input gradient, other strides: Wᵀ·dy per image and block of channels, each column then added to
//!   the elements its patch came from.
//! * Weight gradient: dy·patches(x)ᵀ, summed over the pixels of all images; where the result is small
//!   the sum is cut into parts, by shape alone, so that threads have enough to do.

use scrimp_graph::Window;

use super::depthwise;
use super::gemm::{self, Bias, Block, DEPTH, Left, Sizes, Target};
use super::patches::Patches;
use super::scratch::{self, Scratch};
use super::shape::dims;
use crate::arena::Args;
use crate::error::RunError;
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::{Isa, wide};

/// Sizes of a convolution, named as in its forward direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conv {
    pub window: Window,
    pub groups: usize,
    pub n: usize,
    /// Channels of x.
    pub c: usize,
    pub h: usize,
    pub w: usize,
    /// Channels of y.
    pub o: usize,
    pub oh: usize,
    pub ow: usize,
}

impl Conv {
    /// From the shapes of x and y.
    pub fn new(window: &Window, groups: usize, x: &[usize], y: &[usize]) -> Conv {
        let ([n, c, h, w], [_, o, oh, ow]) = (dims(x), dims(y));
        Conv {
            window: *window,
            groups,
            n,
            c,
            h,
            w,
            o,
            oh,
            ow,
        }
    }

    /// Input channels of a group.
    fn c_group(&self) -> usize {
        self.c / self.groups
    }

    /// Output channels of a group.
    fn o_group(&self) -> usize {
        self.o / self.groups
    }

    /// Elements of a kernel.
    pub fn taps(&self) -> usize {
        self.window.kernel[0] * self.window.kernel[1]
    }

    /// Output pixels of an image.
    pub fn pixels(&self) -> usize {
        self.oh * self.ow
    }

    /// Each output channel reads one input channel and each input channel is read by one.
    pub fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.c && self.groups == self.o
    }

    fn forward(&self) -> Sizes {
        Sizes {
            batches: self.groups,
            m: self.o_group(),
            n: self.n * self.pixels(),
            k: self.c_group() * self.taps(),
            splits: 1,
            whole: true,
        }
    }

    /// The convolution that computes dx from dy for stride 1: padding is what is left of the kernel.
    fn turned(&self) -> Option<Patches> {
        let [kh, kw] = self.window.kernel;
        let [dh, dw] = self.window.dilation;
        let [ph, pw] = self.window.pad_begin;
        (self.window.stride == [1, 1]).then(|| {
            Patches {
                channels: self.o,
                h: self.oh,
                w: self.ow,
                oh: self.h,
                ow: self.w,
                kernel: [kh, kw],
                stride: [1, 1],
                dilation: [dh, dw],
                pad: [
                    ((kh - 1) * dh) as isize - ph as isize,
                    ((kw - 1) * dw) as isize - pw as isize,
                ],
            }
            .flattened()
        })
    }

    fn turned_sizes(&self) -> Sizes {
        Sizes {
            batches: self.groups,
            m: self.c_group(),
            n: self.n * self.h * self.w,
            k: self.o_group() * self.taps(),
            splits: 1,
            whole: true,
        }
    }

    /// Channels per task of the strided input gradient: a divisor of the group's channels.
    fn channel_block(&self) -> usize {
        const MOST_ROWS: usize = 512;
        let channels = self.c_group();
        let most = (MOST_ROWS / self.taps()).clamp(1, channels);
        (1..=most)
            .rev()
            .find(|&block| channels.is_multiple_of(block))
            .unwrap_or(1)
    }

    /// Wᵀ·dy of one image, block of channels by block of channels.
    fn transposed(&self) -> Sizes {
        let block = self.channel_block();
        Sizes {
            batches: self.c / block,
            m: block * self.taps(),
            n: self.pixels(),
            k: self.o_group(),
            splits: 1,
            whole: true,
        }
    }

    fn weight_grad(&self) -> Sizes {
        let (m, n) = (self.o_group(), self.c_group() * self.taps());
        let k = self.n * self.pixels();
        const SMALL: usize = 256 * 1024;
        let splits = (k / (8 * DEPTH))
            .min(SMALL / (m * n * self.groups))
            .clamp(1, 16);
        Sizes {
            batches: self.groups,
            m,
            n,
            k,
            splits,
            whole: false,
        }
    }

    fn patches(&self) -> Patches {
        Patches {
            channels: self.c,
            h: self.h,
            w: self.w,
            oh: self.oh,
            ow: self.ow,
            kernel: self.window.kernel,
            stride: self.window.stride,
            dilation: self.window.dilation,
            pad: self.window.pad_begin.map(|pad| pad as isize),
        }
        .flattened()
    }
}

fn product_workspace<T: Real>(slots: usize, isa: Isa, sizes: &Sizes) -> usize {
    let whole = if sizes.whole {
        sizes.whole_elements()
    } else {
        0
    };
    scratch::bytes::<T>(whole) + scratch::bytes::<T>(sizes.scratch_elements::<T>(slots, isa))
}

/// Bytes of scratch of [`forward`].
pub fn forward_workspace<T: Real>(
    slots: usize,
    isa: Isa,
    window: &Window,
    groups: usize,
    x: &[usize],
    y: &[usize],
) -> usize {
    let conv = Conv::new(window, groups, x, y);
    if conv.is_depthwise() {
        return conv.windows().sums_workspace::<T>(slots);
    }
    product_workspace::<T>(slots, isa, &conv.forward())
}

/// `x, w[, b] -> y`
pub fn forward<T: Real>(
    slots: usize,
    isa: Isa,
    window: &Window,
    groups: usize,
    args: &Args,
) -> Result<(), RunError> {
    let (x, w, y) = (
        args.input::<T>(0)?,
        args.input::<T>(1)?,
        args.output::<T>(0),
    );
    let bias = if args.inputs() > 2 {
        Some(args.input::<T>(2)?)
    } else {
        None
    };
    let conv = Conv::new(window, groups, args.input_shape(0), args.output_shape(0));
    if conv.is_depthwise() {
        return depthwise::forward(slots, &conv, args.workspace(), (x, w, bias), y);
    }
    let sizes = conv.forward();
    let mut scratch = Scratch::new(args.workspace());
    let packed = scratch.take::<T>(sizes.whole_elements())?;
    let rest = scratch.take::<T>(sizes.scratch_elements::<T>(slots, isa))?;
    let blocks = T::blocks(isa);
    let pack_w = |block: Block, out: &mut [T], _: &mut [T]| {
        let first = block.batch * sizes.m + block.first;
        gemm::pack_along_k(block.count, block.depth, blocks.rows, true, out, |r, p| {
            &w[(first + r) * sizes.k + block.from + p..]
        });
    };
    gemm::pack_whole(slots, isa, &sizes, &pack_w, packed);
    let patches = conv.patches();
    let channels = conv.c_group();
    let pack_x = |block: Block, out: &mut [T], _: &mut [T]| {
        patches.pack_pixels(x, block.batch * channels, block, blocks.columns, out);
    };
    let bias = bias.map_or(Bias::None, Bias::Rows);
    let pixels = conv.pixels();
    let target = Target {
        memory: Shared::new(y),
        base: &|group| group * sizes.m * pixels,
        row: pixels,
        segment: pixels,
        apart: conv.o * pixels,
    };
    gemm::run(
        slots,
        isa,
        rest,
        &sizes,
        Left::Whole(packed),
        &pack_x,
        bias,
        &target,
    );
    Ok(())
}

/// Bytes of scratch of [`input_grad`]; shapes of dx and dy.
pub fn input_grad_workspace<T: Real>(
    slots: usize,
    isa: Isa,
    window: &Window,
    groups: usize,
    dx: &[usize],
    dy: &[usize],
) -> usize {
    let conv = Conv::new(window, groups, dx, dy);
    if conv.is_depthwise() {
        return conv.windows().spread_workspace::<T>(slots);
    }
    if conv.turned().is_some() {
        return product_workspace::<T>(slots, isa, &conv.turned_sizes());
    }
    let sizes = conv.transposed();
    scratch::bytes::<T>(sizes.whole_elements()) + slots * slot_bytes::<T>(isa, &sizes)
}

/// Scratch per thread of the strided input gradient: a block of columns, and one of dy.
fn slot_bytes<T: Real>(isa: Isa, sizes: &Sizes) -> usize {
    let columns = gemm::single_columns::<T>(sizes.n, isa);
    scratch::bytes::<T>(sizes.m * columns) + scratch::bytes::<T>(columns * sizes.k.min(DEPTH))
}

/// `dy, w -> dx`
pub fn input_grad<T: Real>(
    slots: usize,
    isa: Isa,
    window: &Window,
    groups: usize,
    args: &Args,
) -> Result<(), RunError> {
    let (dy, w, dx) = (
        args.input::<T>(0)?,
        args.input::<T>(1)?,
        args.output::<T>(0),
    );
    let conv = Conv::new(window, groups, args.output_shape(0), args.input_shape(0));
    if conv.is_depthwise() {
        return depthwise::input_grad(slots, &conv, args.workspace(), (dy, w), dx);
    }
    match conv.turned() {
        Some(patches) => {
            input_grad_turned(slots, isa, &conv, &patches, args.workspace(), (dy, w, dx))
        }
        None => input_grad_strided(slots, isa, &conv, args.workspace(), (dy, w, dx)),
    }
}

type Tensors<'a, T> = (&'a [T], &'a [T], &'a mut [T]);

fn input_grad_turned<T: Real>(
    slots: usize,
    isa: Isa,
    conv: &Conv,
    patches: &Patches,
    workspace: &mut [u8],
    (dy, w, dx): Tensors<'_, T>,
) -> Result<(), RunError> {
    let sizes = conv.turned_sizes();
    let mut scratch = Scratch::new(workspace);
    let packed = scratch.take::<T>(sizes.whole_elements())?;
    let rest = scratch.take::<T>(sizes.scratch_elements::<T>(slots, isa))?;
    let blocks = T::blocks(isa);
    let taps = conv.taps();
    // Row c, step (o, tap): w[o][c][last − tap].
    let pack_w = |block: Block, out: &mut [T], _: &mut [T]| {
        for (p, to) in out[..block.count * block.depth]
            .chunks_exact_mut(block.count)
            .enumerate()
        {
            let (o, tap) = ((block.from + p) / taps, (block.from + p) % taps);
            let at = ((block.batch * conv.o_group() + o) * sizes.m + block.first) * taps + taps
                - 1
                - tap;
            for (to, &w) in to.iter_mut().zip(w[at..].iter().step_by(taps)) {
                *to = w;
            }
        }
    };
    gemm::pack_whole(slots, isa, &sizes, &pack_w, packed);
    let channels = conv.o_group();
    let pack_dy = |block: Block, out: &mut [T], _: &mut [T]| {
        patches.pack_pixels(dy, block.batch * channels, block, blocks.columns, out);
    };
    let plane = conv.h * conv.w;
    let target = Target {
        memory: Shared::new(dx),
        base: &|group| group * sizes.m * plane,
        row: plane,
        segment: plane,
        apart: conv.c * plane,
    };
    gemm::run(
        slots,
        isa,
        rest,
        &sizes,
        Left::Whole(packed),
        &pack_dy,
        Bias::None,
        &target,
    );
    Ok(())
}

fn input_grad_strided<T: Real>(
    slots: usize,
    isa: Isa,
    conv: &Conv,
    workspace: &mut [u8],
    (dy, w, dx): Tensors<'_, T>,
) -> Result<(), RunError> {
    let sizes = conv.transposed();
    let mut scratch = Scratch::new(workspace);
    let packed = scratch.take::<T>(sizes.whole_elements())?;
    let per_slot = slot_bytes::<T>(isa, &sizes);
    let slots_memory = Shared::new(scratch.take::<u8>(slots * per_slot)?);
    let blocks = T::blocks(isa);
    let (taps, block_channels) = (conv.taps(), conv.channel_block());
    let group_of = |batch: usize| batch * block_channels / conv.c_group();
    // Row (c, tap) of a block, step o: w[o][c][tap], neighbours along rows.
    let row_length = conv.c_group() * taps;
    let pack_w = |block: Block, out: &mut [T], _: &mut [T]| {
        let group = group_of(block.batch);
        let first = block.batch * sizes.m - group * row_length + block.first;
        gemm::pack_across(block.count, block.depth, blocks.rows, true, out, |p| {
            &w[(group * sizes.k + block.from + p) * row_length + first..]
        });
    };
    gemm::pack_whole(slots, isa, &sizes, &pack_w, packed);
    let (pixels, plane) = (conv.pixels(), conv.h * conv.w);
    let columns = gemm::single_columns::<T>(pixels, isa);
    let dx = Shared::new(dx);
    let packed = &*packed;
    par::tasks(slots, conv.n * sizes.batches, &|slot, task| {
        let (n, batch) = (task / sizes.batches, task % sizes.batches);
        // SAFETY: each slot has its own scratch; each task its own channels of one image.
        #[allow(unsafe_code, reason = "disjoint pieces of two slices")]
        let (memory, dx) = unsafe {
            (
                slots_memory.piece(slot * per_slot, per_slot),
                dx.piece(
                    (n * conv.c + batch * block_channels) * plane,
                    block_channels * plane,
                ),
            )
        };
        let mut scratch = Scratch::new(memory);
        let (Ok(c), Ok(b)) = (
            scratch.take::<T>(sizes.m * columns),
            scratch.take::<T>(columns * sizes.k.min(DEPTH)),
        ) else {
            return; // slot_bytes is the sum of exactly these two
        };
        dx.fill(T::ZERO);
        let channel = n * conv.o + group_of(batch) * sizes.k;
        for first in (0..pixels).step_by(columns) {
            let count = columns.min(pixels - first);
            let pack_dy = |block: Block, out: &mut [T], _: &mut [T]| {
                gemm::pack_across(block.count, block.depth, blocks.columns, false, out, |p| {
                    &dy[(channel + block.from + p) * pixels + first..]
                });
            };
            gemm::single(isa, &sizes, batch, count, packed, &pack_dy, (c, columns), b);
            add_patches(conv, c, columns, first..first + count, dx);
        }
    });
    Ok(())
}

/// Adds row (c, tap) of `columns`, which holds the output pixels `range`, to the elements of channel c
/// that the tap reads.
fn add_patches<T: Real>(
    conv: &Conv,
    columns: &[T],
    row_length: usize,
    range: std::ops::Range<usize>,
    dx: &mut [T],
) {
    let [kh, kw] = conv.window.kernel;
    let plane = conv.h * conv.w;
    for (row, columns) in columns.chunks(row_length).enumerate() {
        let (c, tap) = (row / (kh * kw), row % (kh * kw));
        let Some(dx) = dx.get_mut(c * plane..(c + 1) * plane) else {
            return;
        };
        let rows = Axis::new(&conv.window, 0, tap / kw, conv.h, conv.oh);
        let cells = Axis::new(&conv.window, 1, tap % kw, conv.w, conv.ow);
        for o in (range.start / conv.ow).max(rows.first)..rows.end.min(range.end.div_ceil(conv.ow))
        {
            let first = cells.first.max(range.start.saturating_sub(o * conv.ow));
            let end = cells.end.min(range.end - o * conv.ow);
            if first >= end {
                continue;
            }
            let from = o * conv.ow + first - range.start;
            let columns = &columns[from..from + end - first];
            let dx = &mut dx[rows.at(o) * conv.w + cells.at(first)..(rows.at(o) + 1) * conv.w];
            wide(
                #[inline(always)]
                || spread(conv.window.stride[1], dx, columns),
            );
        }
    }
}

/// Bytes of scratch of [`weight_grad`]; shapes of x and dy.
pub fn weight_grad_workspace<T: Real>(
    slots: usize,
    isa: Isa,
    window: &Window,
    groups: usize,
    x: &[usize],
    dy: &[usize],
) -> usize {
    let conv = Conv::new(window, groups, x, dy);
    if conv.is_depthwise() {
        return conv.windows().products_workspace::<T>(slots);
    }
    let sizes = conv.weight_grad();
    scratch::bytes::<T>(parts(&sizes)) + product_workspace::<T>(slots, isa, &sizes)
}

/// Elements of the partial sums.
fn parts(sizes: &Sizes) -> usize {
    if sizes.splits == 1 {
        0
    } else {
        sizes.batches * sizes.splits * sizes.m * sizes.n
    }
}

/// `x, dy -> dw`
pub fn weight_grad<T: Real>(
    slots: usize,
    isa: Isa,
    window: &Window,
    groups: usize,
    args: &Args,
) -> Result<(), RunError> {
    let (x, dy, dw) = (
        args.input::<T>(0)?,
        args.input::<T>(1)?,
        args.output::<T>(0),
    );
    let conv = Conv::new(window, groups, args.input_shape(0), args.input_shape(1));
    if conv.is_depthwise() {
        return depthwise::weight_grad(slots, &conv, args.workspace(), (x, dy), dw);
    }
    let sizes = conv.weight_grad();
    let mut scratch = Scratch::new(args.workspace());
    let partial = scratch.take::<T>(parts(&sizes))?;
    let rest = scratch.take::<T>(sizes.scratch_elements::<T>(slots, isa))?;
    let blocks = T::blocks(isa);
    let pixels = conv.pixels();
    let patches = conv.patches();
    let pack_dy = |block: Block, out: &mut [T], _: &mut [T]| {
        let first = block.batch / sizes.splits * sizes.m + block.first;
        gemm::pack_along_k(block.count, block.depth, blocks.rows, true, out, |r, p| {
            let (n, pixel) = ((block.from + p) / pixels, (block.from + p) % pixels);
            let at = (n * conv.o + first + r) * pixels;
            &dy[at + pixel..at + pixels]
        });
    };
    let pack_x = |block: Block, out: &mut [T], spare: &mut [T]| {
        let channel = block.batch / sizes.splits * conv.c_group();
        patches.pack_taps(x, channel, block, blocks.columns, out, spare);
    };
    let result = if sizes.splits == 1 {
        &mut *dw
    } else {
        &mut *partial
    };
    let target = Target {
        memory: Shared::new(result),
        base: &|batch| batch * sizes.m * sizes.n,
        row: sizes.n,
        segment: sizes.n,
        apart: 0,
    };
    gemm::run(
        slots,
        isa,
        rest,
        &sizes,
        Left::Blocks(&pack_dy),
        &pack_x,
        Bias::None,
        &target,
    );
    if sizes.splits > 1 {
        add_parts(slots, &sizes, partial, dw);
    }
    Ok(())
}

/// dw ← the partial sums of each group, added in order.
fn add_parts<T: Real>(slots: usize, sizes: &Sizes, partial: &[T], dw: &mut [T]) {
    let length = sizes.m * sizes.n;
    par::pieces(slots, dw, 4 * 1024, |start, dw| {
        for (i, dw) in dw.iter_mut().enumerate() {
            let (group, at) = ((start + i) / length, (start + i) % length);
            let mut sum = T::ZERO;
            for part in 0..sizes.splits {
                sum += partial[(group * sizes.splits + part) * length + at];
            }
            *dw = sum;
        }
    });
}

/// Positions of a window along one axis: for kernel element `k`, output `o` reads `o·stride + shift`.
#[derive(Clone, Copy)]
struct Axis {
    stride: usize,
    /// k·dilation − padding
    shift: isize,
    /// The outputs whose input position lies inside: `[first, end)`.
    first: usize,
    end: usize,
}

impl Axis {
    /// Kernel element `k` along `axis`; lengths of input and output there.
    fn new(window: &Window, axis: usize, k: usize, input: usize, output: usize) -> Axis {
        let stride = window.stride[axis];
        let shift = (k * window.dilation[axis]) as isize - window.pad_begin[axis] as isize;
        let first = if shift < 0 {
            ((-shift) as usize).div_ceil(stride)
        } else {
            0
        };
        // o·stride + shift < input
        let room = input as isize - shift;
        let end = if room <= 0 {
            0
        } else {
            (room as usize).div_ceil(stride)
        };
        let end = end.min(output);
        Axis {
            stride,
            shift,
            first: first.min(end),
            end,
        }
    }

    /// The input position of output `o`, which must be in `[first, end)`.
    #[inline(always)]
    fn at(self, o: usize) -> usize {
        ((o * self.stride) as isize + self.shift) as usize
    }
}

/// dx[i·stride] += y[i]
#[inline(always)]
fn spread<T: Real>(stride: usize, dx: &mut [T], y: &[T]) {
    if stride == 1 {
        for (dx, &y) in dx.iter_mut().zip(y) {
            *dx += y;
        }
    } else {
        for (dx, &y) in dx.iter_mut().step_by(stride).zip(y) {
            *dx += y;
        }
    }
}
