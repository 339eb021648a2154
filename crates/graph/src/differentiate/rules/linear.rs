//! Gradients of convolutions and matrix products.

use super::{Contribution, Rule, gradient_name};
use crate::error::GraphError;
use crate::graph::TensorId;
use crate::op::{Op, Reduction, Window};
use crate::shape::elements;

/// Some of the channels that a convolution reads.
pub(in crate::differentiate) struct Channels {
    /// They are this tensor.
    pub(in crate::differentiate) tensor: TensorId,
    /// The first of them, in the convolution's input.
    start: usize,
    /// One past the last of them.
    end: usize,
}

impl Rule<'_> {
    /// What a convolution's input is joined of, where the gradient is better built for each part by
    /// itself: the whole needn't be in memory together with its parts, nor be copied to them. It
    /// takes copies of the weight's parts, so the weight must be the smaller; and nothing else may
    /// read the joined tensor (`readers` is the number of input slots that it is in).
    pub(in crate::differentiate) fn concatenated_input(
        &self,
        slot: usize,
        readers: usize,
    ) -> Option<Vec<Channels>> {
        let (Op::Conv { groups: 1, .. }, 0, 1) = (&self.node.op, slot, readers) else {
            return None;
        };
        let (x, w) = (
            self.builder.get(self.node.inputs[0]),
            self.builder.get(self.node.inputs[1]),
        );
        let producer = self.builder.producer(self.node.inputs[0])?;
        if producer.op != (Op::Concat { axis: 1 }) || w.bytes() > x.bytes() {
            return None;
        }
        let mut end = 0;
        let parts = producer.inputs.iter().map(|&tensor| {
            let start = end;
            end += self.builder.shape(tensor)[1];
            Channels { tensor, start, end }
        });
        Some(parts.collect())
    }

    /// The gradient of some channels of a convolution's input: the convolution's own, with the part
    /// of the weight that reads them.
    pub(in crate::differentiate) fn conv_part(
        &mut self,
        part: &Channels,
    ) -> Result<TensorId, GraphError> {
        let Op::Conv { window, groups } = self.node.op else {
            return Err(self.not_differentiable("only a convolution's input is split"));
        };
        let name = gradient_name(self.builder, part.tensor);
        let shape = self.input_shape(1);
        let slice = Op::Slice {
            start: vec![0, part.start, 0, 0],
            end: vec![shape[0], part.end, shape[2], shape[3]],
            step: vec![1; 4],
        };
        let weight = self
            .builder
            .add1(&format!("{name}.weight"), slice, &[self.node.inputs[1]])?;
        let x = self.builder.shape(part.tensor);
        let op = Op::ConvInputGrad {
            window,
            groups,
            input_hw: [x[2], x[3]],
        };
        self.builder.add1(&name, op, &[self.dy, weight])
    }

    /// `x, w[, b] -> y`
    pub(super) fn conv(
        &mut self,
        slot: usize,
        window: Window,
        groups: usize,
        sum: Option<TensorId>,
    ) -> Result<Contribution, GraphError> {
        let (x, w, dy) = (self.node.inputs[0], self.node.inputs[1], self.dy);
        let part = match slot {
            0 => {
                let shape = self.builder.shape(x);
                let op = Op::ConvInputGrad {
                    window,
                    groups,
                    input_hw: [shape[2], shape[3]],
                };
                self.one(slot, op, &[dy, w])?
            }
            1 => {
                let op = Op::ConvWeightGrad { window, groups };
                return self.added(slot, op, &[x, dy], sum);
            }
            _ => {
                let op = Op::Reduce {
                    kind: Reduction::Sum,
                    axes: vec![0, 2, 3],
                    keep_dims: false,
                };
                self.one(slot, op, &[dy])?
            }
        };
        Ok(Contribution::Part(part))
    }

    /// `x, w -> y` is the adjoint of the convolution of y with w. Hence dx is that convolution of
    /// dy, and dw its weight gradient with y's gradient in place of the convolution's input.
    pub(super) fn conv_transposed(
        &mut self,
        slot: usize,
        window: Window,
        groups: usize,
        sum: Option<TensorId>,
    ) -> Result<Contribution, GraphError> {
        let (x, w, dy) = (self.node.inputs[0], self.node.inputs[1], self.dy);
        match slot {
            0 => self
                .one(slot, Op::Conv { window, groups }, &[dy, w])
                .map(Contribution::Part),
            _ => self.added(slot, Op::ConvWeightGrad { window, groups }, &[dy, x], sum),
        }
    }

    /// `a, b[, addend] -> c` with C = A·B: dA = dC·Bᵀ and dB = Aᵀ·dC, each stored like its operand,
    /// then summed over the leading axes that were broadcast.
    pub(super) fn matmul(
        &mut self,
        slot: usize,
        trans_a: bool,
        trans_b: bool,
        sum: Option<TensorId>,
    ) -> Result<Contribution, GraphError> {
        let (a, b, dc) = (self.node.inputs[0], self.node.inputs[1], self.dy);
        let merged = !trans_a && self.rows_can_merge();
        let (trans_a, trans_b, left, right) = match (slot, trans_a, trans_b) {
            (0, false, _) => (false, !trans_b, dc, b),
            // Aᵀ is stored: its gradient is B·dCᵀ.
            (0, true, _) => (trans_b, true, b, dc),
            (1, _, false) if merged => return self.merged(slot, a, dc, sum),
            (1, _, true) if merged => return self.merged(slot, dc, a, sum),
            (1, _, false) => (!trans_a, false, a, dc),
            // Bᵀ is stored: its gradient is dCᵀ·A.
            (1, _, true) => (true, trans_a, dc, a),
            _ => return self.sum_to(slot, dc).map(Contribution::Part),
        };
        let op = Op::MatMul { trans_a, trans_b };
        let stack = |tensor: TensorId| {
            let shape = self.builder.shape(tensor);
            shape[..shape.len() - 2].to_vec()
        };
        if stack(self.node.inputs[slot]) == stack(dc) {
            return self.added(slot, op, &[left, right], sum);
        }
        let product = self.one(slot, op, &[left, right])?;
        self.sum_to(slot, product).map(Contribution::Part)
    }

    /// Whether one matrix B multiplies a whole stack A: then its gradient is one product over all
    /// rows of the stack, without a stack of gradients in between.
    fn rows_can_merge(&self) -> bool {
        let a = self.builder.shape(self.node.inputs[0]);
        let b = self.builder.shape(self.node.inputs[1]);
        let stacked = a.len() > b.len() || elements(&a[..a.len() - 2]) > 1;
        elements(&b[..b.len() - 2]) == 1 && stacked
    }

    /// `leftᵀ·right`, both as one tall matrix.
    fn merged(
        &mut self,
        slot: usize,
        left: TensorId,
        right: TensorId,
        sum: Option<TensorId>,
    ) -> Result<Contribution, GraphError> {
        let mut tall = |tensor: TensorId| {
            let shape = self.builder.shape(tensor);
            let columns = shape[shape.len() - 1];
            let rows = elements(shape) / columns;
            self.view(slot, tensor, vec![rows, columns])
        };
        let (left, right) = (tall(left)?, tall(right)?);
        let mut shape = self.input_shape(slot);
        shape.drain(..shape.len() - 2);
        let sum = sum.map(|sum| self.view(slot, sum, shape)).transpose()?;
        let product = Op::MatMul {
            trans_a: true,
            trans_b: false,
        };
        let inputs: Vec<TensorId> = [left, right].into_iter().chain(sum).collect();
        let gradient = self.one(slot, product, &inputs)?;
        self.reshape(slot, gradient).map(Contribution::Total)
    }
}
