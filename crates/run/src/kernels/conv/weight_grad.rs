//! The gradient of a convolution with respect to its weights.

use scrimp_graph::Window;

use super::depthwise;
use super::geometry::{Conv, product_workspace};
use crate::args::Args;
use crate::error::RunError;
use crate::kernels::gemm::{self, Bias, Block, Left, Sizes, Target};
use crate::kernels::scratch::{self, Scratch};
use crate::kernels::shape::start_from;
use crate::par::{self, Shared};
use crate::real::Real;
use crate::simd::Isa;

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

fn parts(sizes: &Sizes) -> usize {
    if sizes.splits == 1 {
        0
    } else {
        sizes.batches * sizes.splits * sizes.m * sizes.n
    }
}

/// `x, dy[, sum] -> dw`
pub fn weight_grad<T: Real>(
    slots: usize,
    isa: Isa,
    window: &Window,
    groups: usize,
    args: Args<'_>,
) -> Result<(), RunError> {
    let (x, dy) = (args.inputs.get::<T>(0)?, args.inputs.get::<T>(1)?);
    let [dw] = args.outputs.take::<T, _>()?;
    let conv = Conv::new(window, groups, args.inputs.shape(0), args.inputs.shape(1));
    let sum = match args.inputs.count() {
        2 => Bias::None,
        _ => Bias::Sum,
    };
    if conv.is_depthwise() || matches!(sum, Bias::Sum) {
        start_from(slots, 2, args.inputs, dw)?;
    }
    if conv.is_depthwise() {
        return depthwise::weight_grad(slots, &conv, args.workspace, (x, dy), dw);
    }
    let sizes = conv.weight_grad();
    let mut scratch = Scratch::new(args.workspace);
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
        if sizes.splits == 1 { sum } else { Bias::None },
        &target,
    );
    if sizes.splits > 1 {
        add_parts(slots, &sizes, partial, dw, matches!(sum, Bias::Sum));
    }
    Ok(())
}

/// dw ← the partial sums of each group, added in order, and what dw holds if it `adds`.
fn add_parts<T: Real>(slots: usize, sizes: &Sizes, partial: &[T], dw: &mut [T], adds: bool) {
    let length = sizes.m * sizes.n;
    par::pieces(slots, dw, 4 * 1024, |start, dw| {
        for (i, dw) in dw.iter_mut().enumerate() {
            let (group, at) = ((start + i) / length, (start + i) % length);
            let mut sum = if adds { *dw } else { T::ZERO };
            for part in 0..sizes.splits {
                sum += partial[(group * sizes.splits + part) * length + at];
            }
            *dw = sum;
        }
    });
}
