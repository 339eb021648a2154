//! Making windows: the common geometries of convolutions and poolings.

use crate::op::Window;

impl Window {
    /// A square kernel, stride 1, dilation 1, no padding.
    pub const fn square(kernel: usize) -> Window {
        Window::rect(kernel, kernel)
    }

    /// A kernel of `height` × `width`, stride 1, dilation 1, no padding.
    pub const fn rect(height: usize, width: usize) -> Window {
        Window {
            kernel: [height, width],
            stride: [1, 1],
            dilation: [1, 1],
            pad_begin: [0, 0],
            pad_end: [0, 0],
        }
    }

    /// This stride on both axes.
    pub const fn stride(mut self, stride: usize) -> Window {
        self.stride = [stride, stride];
        self
    }

    /// This dilation on both axes.
    pub const fn dilation(mut self, dilation: usize) -> Window {
        self.dilation = [dilation, dilation];
        self
    }

    /// This padding on all four sides.
    pub const fn pad(self, pad: usize) -> Window {
        self.pad_hw(pad, pad)
    }

    /// This padding above and below, and left and right.
    pub const fn pad_hw(mut self, height: usize, width: usize) -> Window {
        self.pad_begin = [height, width];
        self.pad_end = [height, width];
        self
    }

    /// The padding that keeps height and width with stride 1; a kernel that spans an even number
    /// of elements gets the odd one at the end.
    pub const fn same(mut self) -> Window {
        let mut axis = 0;
        while axis < 2 {
            let total = self.kernel[axis]
                .saturating_sub(1)
                .saturating_mul(self.dilation[axis]);
            self.pad_begin[axis] = total / 2;
            self.pad_end[axis] = total - total / 2;
            axis += 1;
        }
        self
    }

    /// Whether every element of the padded input up to the end of the last window is in one window.
    pub fn tiles(&self) -> bool {
        self.stride == self.kernel && self.dilation == [1, 1]
    }
}
