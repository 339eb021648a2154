//! The matrix of image patches that a convolution multiplies with. It is read block by block and never
//! stored. Its rows are (channel, kernel row, kernel column), its columns the output pixels of all images.

use super::flat::pick;
use super::gemm::{self, Block};
use crate::real::Real;
use crate::simd::wide;

/// How output pixels read images [N, channels, h, w].
#[derive(Clone, Copy, Debug)]
pub struct Patches {
    /// Channels of an image, in all groups together.
    pub channels: usize,
    pub h: usize,
    pub w: usize,
    pub oh: usize,
    pub ow: usize,
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    /// Padding before the first row and column; negative if the first rows are never read.
    pub pad: [isize; 2],
}

/// Neighbouring output pixels of one row of one image.
#[derive(Clone, Copy, Default)]
struct PixelRun {
    /// First column of the block.
    first: usize,
    length: usize,
    image: usize,
    /// Row and column that kernel element (0, 0) reads for the first pixel.
    top: isize,
    left: isize,
}

/// The most runs of a block: one per pixel.
const MOST: usize = 384;

impl Patches {
    /// The same patches, seen as a single row where a kernel is 1×1 without stride and padding.
    pub fn flattened(self) -> Patches {
        if self.kernel == [1, 1]
            && self.stride == [1, 1]
            && self.pad == [0, 0]
            && self.h == self.oh
            && self.w == self.ow
        {
            let pixels = self.h * self.w;
            return Patches {
                h: 1,
                w: pixels,
                oh: 1,
                ow: pixels,
                ..self
            };
        }
        self
    }

    fn is_flat(&self) -> bool {
        self.kernel == [1, 1]
            && self.h == 1
            && self.oh == 1
            && self.w == self.ow
            && self.pad == [0, 0]
            && self.stride == [1, 1]
    }

    /// Writes the runs of pixels `first..first + count`, cut at every multiple of `width` from the first, and
    /// returns their number.
    fn runs(&self, first: usize, count: usize, width: usize, runs: &mut [PixelRun; MOST]) -> usize {
        let (mut done, mut number) = (0, 0);
        while done < count {
            let pixel = first + done;
            let (row, column) = (pixel / self.ow, pixel % self.ow);
            let (image, row) = (row / self.oh, row % self.oh);
            let length = (self.ow - column)
                .min(count - done)
                .min(width - done % width);
            runs[number] = PixelRun {
                first: done,
                length,
                image,
                top: (row * self.stride[0]) as isize - self.pad[0],
                left: (column * self.stride[1]) as isize - self.pad[1],
            };
            number += 1;
            done += length;
        }
        number
    }

    /// Channel, kernel row and kernel column of row `k`.
    fn row(&self, k: usize) -> [usize; 3] {
        let [kh, kw] = self.kernel;
        [k / (kh * kw), k / kw % kh, k % kw]
    }

    /// Copies what the kernel element reads for a run.
    #[inline(always)]
    fn read<T: Real>(&self, x: &[T], [c, kh, kw]: [usize; 3], run: &PixelRun, to: &mut [T]) {
        let y = run.top + (kh * self.dilation[0]) as isize;
        if y < 0 || y as usize >= self.h {
            to.fill(T::ZERO);
            return;
        }
        let at = ((run.image * self.channels + c) * self.h + y as usize) * self.w;
        let row = &x[at..at + self.w];
        let left = run.left + (kw * self.dilation[1]) as isize;
        let stride = self.stride[1];
        let length = to.len();
        if left >= 0 && left as usize + (length - 1) * stride < self.w {
            pick(stride, &row[left as usize..], to);
            return;
        }
        // Pixel i reads column left + i·stride. The first and the last pixels may read padding.
        let outputs = |columns: isize| match stride {
            1 => columns.max(0) as usize,
            _ => (columns.max(0) as usize).div_ceil(stride),
        };
        let first = outputs(-left).min(length);
        let end = outputs(self.w as isize - left).clamp(first, length);
        for to in to[..first].iter_mut() {
            *to = T::ZERO;
        }
        if first < end {
            let column = (left + (first * stride) as isize) as usize;
            pick(stride, &row[column..], &mut to[first..end]);
        }
        for to in to[end..].iter_mut() {
            *to = T::ZERO;
        }
    }

    /// Packs a block whose panels run over pixels and whose steps of k are rows of the matrix. `channel` is
    /// the first channel of the block's batch.
    pub fn pack_pixels<T: Real>(
        &self,
        x: &[T],
        channel: usize,
        block: Block,
        width: usize,
        out: &mut [T],
    ) {
        let mut runs = [PixelRun::default(); MOST];
        let number = self.runs(block.first, block.count, width, &mut runs);
        let runs = &runs[..number];
        let depth = block.depth;
        let rest = block.count % width;
        if rest != 0 {
            let last = block.count / width * width * depth;
            out[last..last + width * depth].fill(T::ZERO);
        }
        wide(
            #[inline(always)]
            || {
                for p in 0..depth {
                    let [c, kh, kw] = self.row(block.from + p);
                    for run in runs {
                        let at = (run.first / width * depth + p) * width + run.first % width;
                        self.read(x, [channel + c, kh, kw], run, &mut out[at..at + run.length]);
                    }
                }
            },
        );
    }

    /// Packs a block whose panels run over rows of the matrix and whose steps of k are pixels. `spare` holds
    /// a panel.
    pub fn pack_taps<T: Real>(
        &self,
        x: &[T],
        channel: usize,
        block: Block,
        width: usize,
        out: &mut [T],
        spare: &mut [T],
    ) {
        let depth = block.depth;
        if self.is_flat() {
            gemm::pack_along_k(block.count, depth, width, false, out, |r, p| {
                let (image, pixel) = ((block.from + p) / self.w, (block.from + p) % self.w);
                let at = (image * self.channels + channel + block.first + r) * self.w;
                &x[at + pixel..at + self.w]
            });
            return;
        }
        let mut runs = [PixelRun::default(); MOST];
        let number = self.runs(block.from, depth, usize::MAX, &mut runs);
        let runs = &runs[..number];
        for first in (0..block.count).step_by(width) {
            let rows = width.min(block.count - first);
            wide(
                #[inline(always)]
                || {
                    for (r, spare) in spare.chunks_exact_mut(depth).take(rows).enumerate() {
                        let [c, kh, kw] = self.row(block.first + first + r);
                        for run in runs {
                            let to = &mut spare[run.first..run.first + run.length];
                            self.read(x, [channel + c, kh, kw], run, to);
                        }
                    }
                },
            );
            let panel = &mut out[first * depth..(first + width) * depth];
            let spare = &*spare;
            gemm::pack_along_k(rows, depth, width, false, panel, |r, p| {
                &spare[r * depth + p..(r + 1) * depth]
            });
        }
    }
}
