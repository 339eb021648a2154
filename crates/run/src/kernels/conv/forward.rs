//! The forward direction of a convolution.

use scrimp_graph::Window;

use super::depthwise;
use super::geometry::{Conv, product_workspace};
use crate::args::Args;
use crate::error::RunError;
use crate::kernels::gemm::{self, Bias, Block, Left, Target};
use crate::kernels::scratch::Scratch;
use crate::par::Shared;
use crate::real::Real;
use crate::simd::Isa;

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
    args: Args<'_>,
) -> Result<(), RunError> {
    let conv = Conv::new(window, groups, args.inputs.shape(0), args.outputs.shape(0));
    let (x, w) = (args.inputs.get::<T>(0)?, args.inputs.get::<T>(1)?);
    let bias = args.inputs.optional::<T>(2)?;
    let [y] = args.outputs.take::<T, _>()?;
    if conv.is_depthwise() {
        return depthwise::forward(slots, &conv, args.workspace, (x, w, bias), y);
    }
    let sizes = conv.forward();
    let mut scratch = Scratch::new(args.workspace);
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
