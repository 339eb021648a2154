//! Sizes of a convolution and of the matrix products that compute it and its gradients.

use scrimp_graph::Window;

use crate::kernels::gemm::{DEPTH, Sizes};
use crate::kernels::patches::Patches;
use crate::kernels::scratch;
use crate::kernels::shape::dims;
use crate::kernels::windows::Windows;
use crate::real::Real;
use crate::simd::Isa;

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

    pub fn c_group(&self) -> usize {
        self.c / self.groups
    }

    pub fn o_group(&self) -> usize {
        self.o / self.groups
    }

    pub fn taps(&self) -> usize {
        self.window.kernel[0] * self.window.kernel[1]
    }

    pub fn pixels(&self) -> usize {
        self.oh * self.ow
    }

    pub fn windows(&self) -> Windows {
        Windows {
            window: self.window,
            h: self.h,
            w: self.w,
            oh: self.oh,
            ow: self.ow,
        }
    }

    /// Whether each output channel reads one input channel and each input channel is read by one output
    /// channel.
    pub fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.c && self.groups == self.o
    }

    pub fn forward(&self) -> Sizes {
        Sizes {
            batches: self.groups,
            m: self.o_group(),
            n: self.n * self.pixels(),
            k: self.c_group() * self.taps(),
            splits: 1,
            whole: true,
        }
    }

    /// The convolution that computes dx from dy for stride 1; `None` if there is none. Its padding is what is
    /// left of the kernel.
    pub fn turned(&self) -> Option<Patches> {
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

    pub fn turned_sizes(&self) -> Sizes {
        Sizes {
            batches: self.groups,
            m: self.c_group(),
            n: self.n * self.h * self.w,
            k: self.o_group() * self.taps(),
            splits: 1,
            whole: true,
        }
    }

    /// Channels per task of the strided input gradient, a divisor of the group's channels.
    pub fn channel_block(&self) -> usize {
        const MOST_ROWS: usize = 512;
        let channels = self.c_group();
        let most = (MOST_ROWS / self.taps()).clamp(1, channels);
        (1..=most)
            .rev()
            .find(|&block| channels.is_multiple_of(block))
            .unwrap_or(1)
    }

    /// The product Wᵀ·dy of one image, one block of channels after another.
    pub fn transposed(&self) -> Sizes {
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

    pub fn weight_grad(&self) -> Sizes {
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

    pub fn patches(&self) -> Patches {
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

pub(super) fn product_workspace<T: Real>(slots: usize, isa: Isa, sizes: &Sizes) -> usize {
    let whole = if sizes.whole {
        sizes.whole_elements()
    } else {
        0
    };
    scratch::bytes::<T>(whole) + scratch::bytes::<T>(sizes.scratch_elements::<T>(slots, isa))
}
