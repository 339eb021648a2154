//! Gradients of elementwise operators, broadcasting and reductions.

use super::Rule;
use crate::error::GraphError;
use crate::graph::TensorId;
use crate::op::{Binary, Op, Reduction, Unary};
use crate::properties::Saves;
use crate::shape::elements;

impl Rule<'_> {
    /// `x -> f(x)`
    pub(super) fn unary(&mut self, f: Unary) -> Result<TensorId, GraphError> {
        let (x, y, dy) = (self.node.inputs[0], self.node.outputs[0], self.dy);
        match f.saves() {
            Saves::Output => self.one(0, Op::UnaryGrad(f), &[y, dy]),
            Saves::Input => self.one(0, Op::UnaryGrad(f), &[x, dy]),
            Saves::Nothing => self.one(0, Op::UnaryGrad(f), &[dy]),
        }
    }

    /// `a, b -> c`, broadcast. A quotient's gradient towards b is −Σ(dc·c)/b, where the sum over
    /// what was broadcast comes before the division.
    pub(super) fn binary(&mut self, f: Binary, slot: usize) -> Result<TensorId, GraphError> {
        let (a, b, c, dc) = (
            self.node.inputs[0],
            self.node.inputs[1],
            self.node.outputs[0],
            self.dy,
        );
        let negative = Op::Unary(Unary::Affine {
            scale: -1.0,
            shift: 0.0,
        });
        let mul = Op::Binary(Binary::Mul);
        match (f, slot) {
            (Binary::Add, _) | (Binary::Sub, 0) => self.sum_to(slot, dc),
            (Binary::Sub, _) => {
                let sum = self.sum_to(slot, dc)?;
                self.one(slot, negative, &[sum])
            }
            (Binary::Mul, _) => {
                let other = if slot == 0 { b } else { a };
                let product = self.one(slot, mul, &[dc, other])?;
                self.sum_to(slot, product)
            }
            (Binary::Div, 0) => {
                let quotient = self.one(slot, Op::Binary(Binary::Div), &[dc, b])?;
                self.sum_to(slot, quotient)
            }
            (Binary::Div, _) => {
                let product = self.one(slot, mul, &[dc, c])?;
                let sum = self.sum_to(slot, product)?;
                let quotient = self.one(slot, Op::Binary(Binary::Div), &[sum, b])?;
                self.one(slot, negative, &[quotient])
            }
        }
    }

    /// Every element that was added up gets the sum's gradient, divided by the count for a mean.
    pub(super) fn reduce(
        &mut self,
        kind: Reduction,
        axes: &[usize],
    ) -> Result<TensorId, GraphError> {
        let shape = self.input_shape(0);
        let mut kept = shape.clone();
        for &axis in axes {
            kept[axis] = 1;
        }
        let scale = match kind {
            Reduction::Sum => 1.0,
            Reduction::Mean => elements(&kept) as f64 / elements(&shape) as f64,
        };
        let dy = self.view(0, self.dy, kept)?;
        self.one(0, Op::Expand { shape, scale }, &[dy])
    }

    pub(super) fn sum_to_rule(&mut self) -> Result<TensorId, GraphError> {
        let shape = self.input_shape(0);
        self.one(0, Op::Expand { shape, scale: 1.0 }, &[self.dy])
    }

    pub(super) fn expand(&mut self, scale: f64) -> Result<TensorId, GraphError> {
        let sum = self.sum_to(0, self.dy)?;
        match scale == 1.0 {
            true => Ok(sum),
            false => self.one(0, Op::Unary(Unary::Affine { scale, shift: 0.0 }), &[sum]),
        }
    }
}
