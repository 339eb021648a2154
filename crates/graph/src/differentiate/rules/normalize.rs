//! Gradients of normalizations, softmax and losses.

use super::{Contribution, Rule};
use crate::error::GraphError;
use crate::graph::TensorId;
use crate::op::{Norm, Op};

impl Rule<'_> {
    /// `x, stats, scale, shift -> y`. The gradient towards x goes through the statistics, which must
    /// therefore be x's own.
    pub(super) fn normalize(
        &mut self,
        slot: usize,
        norm: Norm,
        epsilon: f64,
    ) -> Result<Contribution, GraphError> {
        let &[x, stats, scale, _] = &self.node.inputs[..] else {
            return Err(self.not_differentiable("it needs four inputs"));
        };
        Ok(Contribution::Part(match slot {
            0 | 1 if !self.own_statistics(x, stats, norm) => {
                return Err(self.not_differentiable(
                    "its statistics are not those of its own input; train a graph with BatchNorm nodes instead",
                ));
            }
            0 => {
                let mut inputs = vec![x, stats, scale, self.dy];
                if norm == Norm::Batch {
                    let (dscale, dshift) = self.norm_sums(norm, epsilon)?;
                    inputs.extend([dscale, dshift]);
                }
                self.one(slot, Op::NormInputGrad { norm, epsilon }, &inputs)?
            }
            1 => return Ok(Contribution::Nothing),
            2 => self.norm_sums(norm, epsilon)?.0,
            _ => self.norm_sums(norm, epsilon)?.1,
        }))
    }

    fn own_statistics(&self, x: TensorId, stats: TensorId, norm: Norm) -> bool {
        self.builder
            .producer(stats)
            .is_some_and(|node| node.op == Op::NormStats { norm } && node.inputs[0] == x)
    }

    /// The gradients of scale and shift, built once for all that need them.
    fn norm_sums(&mut self, norm: Norm, epsilon: f64) -> Result<(TensorId, TensorId), GraphError> {
        if let Some(sums) = self.norm_sums {
            return Ok(sums);
        }
        let (x, stats) = (self.node.inputs[0], self.node.inputs[1]);
        let name = format!("grad({}.scale,shift)", self.node.name);
        let op = Op::NormParamGrad { norm, epsilon };
        let sums = self.builder.add(&name, op, &[x, stats, self.dy])?;
        for (slot, &sum) in [2, 3].into_iter().zip(&sums) {
            let name = self.name(slot);
            self.builder.rename(sum, &name);
        }
        let sums = (sums[0], sums[1]);
        self.norm_sums = Some(sums);
        Ok(sums)
    }

    /// `y, dy -> dx`
    pub(super) fn by_output(&mut self, op: Op) -> Result<TensorId, GraphError> {
        self.one(0, op, &[self.node.outputs[0], self.dy])
    }

    /// The gradient towards the first of `slots`, with the other's value at hand.
    pub(super) fn loss(&mut self, op: Op, slots: [usize; 2]) -> Result<TensorId, GraphError> {
        let [this, other] = slots.map(|slot| self.node.inputs[slot]);
        self.one(slots[0], op, &[this, other, self.dy])
    }
}
