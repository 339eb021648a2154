//! The gradient of a convolution with respect to its input.

use scrimp_graph::Window;

use super::depthwise;
use super::geometry::{Conv, product_workspace};
use crate::args::Args;
use crate::error::RunError;
use crate::kernels::gemm::{self, Bias, Block, DEPTH, Left, Sizes, Target};
use crate::kernels::patches::Patches;
use crate::kernels::scratch::{self, Scratch};
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::{Isa, wide};

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

/// Scratch per thread of the strided input gradient: for a block of columns and for a block of dy.
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
    args: Args<'_>,
) -> Result<(), RunError> {
    let conv = Conv::new(window, groups, args.outputs.shape(0), args.inputs.shape(0));
    let (dy, w) = (args.inputs.get::<T>(0)?, args.inputs.get::<T>(1)?);
    let [dx] = args.outputs.take::<T, _>()?;
    if conv.is_depthwise() {
        return depthwise::input_grad(slots, &conv, args.workspace, (dy, w), dx);
    }
    match conv.turned() {
        Some(patches) => {
            input_grad_turned(slots, isa, &conv, &patches, args.workspace, (dy, w, dx))
        }
        None => input_grad_strided(slots, isa, &conv, args.workspace, (dy, w, dx)),
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
    // Row c at step (o, tap) is w[o][c][last − tap].
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
    // Row (c, tap) of a block at step o is w[o][c][tap]; elements along rows are neighbours.
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
        // SAFETY: each slot has its own scratch, each task its own channels of one image.
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

/// Adds row (c, tap) of `columns`, which holds the output pixels `range`, to the elements of channel c that
/// the tap reads.
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

/// Positions of a window along one axis: for kernel element `k`, output `o` reads `o·stride + shift`.
#[derive(Clone, Copy)]
struct Axis {
    stride: usize,
    /// k·dilation − padding
    shift: isize,
    /// The outputs whose input position is inside: `[first, end)`.
    first: usize,
    end: usize,
}

impl Axis {
    /// Kernel element `k` along `axis`, where the input and output have these lengths.
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
