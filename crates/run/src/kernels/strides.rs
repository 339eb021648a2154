//! Walks tensors of any rank: axes are merged where possible, and each row has an offset.

use scrimp_graph::shape::MAX_RANK;

/// Lengths of the axes of an iteration space and, for each of `N` operands, the step in elements along each
/// axis. Axes of length 1 are removed, and axes that all operands walk through together are merged, so that
/// the last axis (the row) is as long as possible.
#[derive(Clone, Copy, Debug)]
pub struct Strided<const N: usize> {
    rank: usize,
    lengths: [usize; MAX_RANK],
    steps: [[usize; MAX_RANK]; N],
}

impl<const N: usize> Strided<N> {
    /// Merges axes, given the lengths of all axes and each operand's steps along them.
    pub fn new(shape: &[usize], steps: [&[usize]; N]) -> Self {
        let mut out = Strided {
            rank: 0,
            lengths: [1; MAX_RANK],
            steps: [[0; MAX_RANK]; N],
        };
        for (axis, &length) in shape.iter().enumerate() {
            if length == 1 {
                continue;
            }
            let merges = out.rank > 0
                && (0..N).all(|n| out.steps[n][out.rank - 1] == steps[n][axis] * length);
            if !merges {
                out.rank += 1;
                out.lengths[out.rank - 1] = 1;
            }
            out.lengths[out.rank - 1] *= length;
            for (out_steps, steps) in out.steps.iter_mut().zip(steps) {
                out_steps[out.rank - 1] = steps[axis];
            }
        }
        out.rank = out.rank.max(1);
        out
    }

    /// Number of axes, at least 1.
    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn length(&self, axis: usize) -> usize {
        self.lengths[axis]
    }

    pub fn step(&self, operand: usize, axis: usize) -> usize {
        self.steps[operand][axis]
    }

    pub fn row(&self) -> usize {
        self.lengths[self.rank - 1]
    }

    pub fn inner(&self) -> [usize; N] {
        std::array::from_fn(|n| self.steps[n][self.rank - 1])
    }

    pub fn count(&self) -> usize {
        self.lengths[..self.rank - 1].iter().product()
    }

    /// Offset of row `index` in each operand, with rows in row-major order.
    pub fn offsets(&self, mut index: usize) -> [usize; N] {
        let mut at = [0; N];
        for axis in (0..self.rank - 1).rev() {
            let i = index % self.lengths[axis];
            index /= self.lengths[axis];
            for (at, steps) in at.iter_mut().zip(&self.steps) {
                *at += i * steps[axis];
            }
        }
        at
    }
}

pub fn contiguous(shape: &[usize]) -> [usize; MAX_RANK] {
    let mut steps = [0; MAX_RANK];
    let mut step = 1;
    for (axis, &length) in shape.iter().enumerate().rev() {
        steps[axis] = step;
        step *= length;
    }
    steps
}

/// Steps of a contiguous tensor broadcast to `rank` axes: 0 along axes where its length is 1 or that it
/// lacks.
pub fn broadcast_steps(shape: &[usize], rank: usize) -> [usize; MAX_RANK] {
    let steps = contiguous(shape);
    let missing = rank - shape.len();
    let mut out = [0; MAX_RANK];
    for (axis, &length) in shape.iter().enumerate() {
        out[missing + axis] = if length == 1 { 0 } else { steps[axis] };
    }
    out
}

/// `N` operands that are broadcast to an output, which is written row by row.
pub struct Broadcast<const N: usize>(Strided<N>);

impl<const N: usize> Broadcast<N> {
    pub fn new(output: &[usize], operands: [&[usize]; N]) -> Self {
        let rank = output.len();
        let steps = operands.map(|shape| broadcast_steps(shape, rank));
        Broadcast(Strided::new(
            output,
            std::array::from_fn(|n| &steps[n][..rank]),
        ))
    }

    /// Length of a row; operands walk it with step 0 or 1.
    pub fn row(&self) -> usize {
        self.0.row()
    }

    pub fn inner(&self) -> [usize; N] {
        self.0.inner()
    }

    pub fn offsets(&self, index: usize) -> [usize; N] {
        self.0.offsets(index)
    }
}
