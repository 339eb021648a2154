//! Gradients of operators that copy elements, and of pooling.

use super::{Contribution, Rule};
use crate::error::GraphError;
use crate::graph::TensorId;
use crate::op::{Op, Window};

impl Rule<'_> {
    pub(super) fn max_pool(&mut self, window: Window) -> Result<TensorId, GraphError> {
        self.one(
            0,
            Op::MaxPoolGrad { window },
            &[self.node.inputs[0], self.dy],
        )
    }

    pub(super) fn avg_pool(
        &mut self,
        window: Window,
        count_pad: bool,
    ) -> Result<TensorId, GraphError> {
        let shape = self.input_shape(0);
        let input_hw = [shape[2], shape[3]];
        self.one(
            0,
            Op::AvgPoolGrad {
                window,
                count_pad,
                input_hw,
            },
            &[self.dy],
        )
    }

    pub(super) fn avg_pool_adjoint(
        &mut self,
        window: Window,
        count_pad: bool,
    ) -> Result<TensorId, GraphError> {
        self.one(0, Op::AvgPool { window, count_pad }, &[self.dy])
    }

    /// The part of dy that this input became.
    pub(super) fn concat(&mut self, slot: usize, axis: usize) -> Result<TensorId, GraphError> {
        let shape = self.input_shape(slot);
        let mut start = vec![0; shape.len()];
        start[axis] = self.node.inputs[..slot]
            .iter()
            .map(|&input| self.builder.shape(input)[axis])
            .sum();
        self.cut(slot, start, &shape)
    }

    /// Slice of dy in the shape of the input in `slot`.
    fn cut(
        &mut self,
        slot: usize,
        start: Vec<usize>,
        shape: &[usize],
    ) -> Result<TensorId, GraphError> {
        if self.builder.shape(self.dy) == shape {
            return Ok(self.dy);
        }
        let end = start
            .iter()
            .zip(shape)
            .map(|(start, len)| start + len)
            .collect();
        let step = vec![1; shape.len()];
        self.one(slot, Op::Slice { start, end, step }, &[self.dy])
    }

    pub(super) fn slice(
        &mut self,
        start: &[usize],
        step: &[usize],
        sum: Option<TensorId>,
    ) -> Result<Contribution, GraphError> {
        let (start, step, shape) = (start.to_vec(), step.to_vec(), self.input_shape(0));
        let op = Op::SliceGrad { start, step, shape };
        self.added(0, op, &[self.dy], sum)
    }

    /// `x[, sum] -> y`
    pub(super) fn slice_adjoint(
        &mut self,
        slot: usize,
        start: &[usize],
        step: &[usize],
    ) -> Result<TensorId, GraphError> {
        if slot > 0 {
            return Ok(self.dy);
        }
        let shape = self.input_shape(0);
        let last = shape
            .iter()
            .zip(step)
            .map(|(len, step)| (len - 1) * step + 1);
        let end = last.zip(start).map(|(last, start)| last + start).collect();
        let slice = Op::Slice {
            start: start.to_vec(),
            end,
            step: step.to_vec(),
        };
        self.one(slot, slice, &[self.dy])
    }

    pub(super) fn pad(&mut self, begin: &[usize]) -> Result<TensorId, GraphError> {
        let shape = self.input_shape(0);
        self.cut(0, begin.to_vec(), &shape)
    }

    pub(super) fn transpose(&mut self, perm: &[usize]) -> Result<TensorId, GraphError> {
        let mut inverse = vec![0; perm.len()];
        for (to, &from) in perm.iter().enumerate() {
            inverse[from] = to;
        }
        self.one(0, Op::Transpose { perm: inverse }, &[self.dy])
    }

    pub(super) fn gather(
        &mut self,
        axis: usize,
        sum: Option<TensorId>,
    ) -> Result<Contribution, GraphError> {
        let shape = self.input_shape(0);
        let inputs = [self.node.inputs[1], self.dy];
        self.added(0, Op::GatherGrad { axis, shape }, &inputs, sum)
    }

    /// `indices, x[, sum] -> y`
    pub(super) fn gather_adjoint(
        &mut self,
        slot: usize,
        axis: usize,
    ) -> Result<TensorId, GraphError> {
        match slot {
            1 => self.one(slot, Op::Gather { axis }, &[self.dy, self.node.inputs[0]]),
            _ => Ok(self.dy),
        }
    }
}
