//! Convolutions and their gradients, as products of matrices that read images in place of a matrix
//! of patches; depthwise convolutions go to `depthwise.rs`.
//!
//! * Forward: y = W·patches(x), columns are the output pixels of all images.
//! * Input gradient, stride 1: the forward convolution of dy with the weights turned around.
//! * Input gradient, other strides: Wᵀ·dy per image and block of channels, each column then added to
//!   the elements its patch came from.
//! * Weight gradient: dy·patches(x)ᵀ, summed over the pixels of all images; where the result is small
//!   the sum is cut into parts, by shape alone, so that threads have enough to do.

mod input_grad;
mod weight_grad;

use scrimp_graph::Window;

use super::depthwise;
use super::gemm::{self, Bias, Block, DEPTH, Left, Sizes, Target};
use super::patches::Patches;
use super::scratch::{self, Scratch};
use super::shape::dims;
use crate::args::Args;
use crate::error::RunError;
use crate::par::Shared;
use crate::real::Real;
use crate::simd::Isa;
pub use input_grad::{input_grad, input_grad_workspace};
pub use weight_grad::{weight_grad, weight_grad_workspace};

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
