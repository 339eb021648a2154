//! Gradients of normalizations, softmax and losses.

use super::{Contribution, Rule};
use crate::error::GraphError;
use crate::graph::TensorId;
use crate::op::{Norm, Op, Unary};

impl Rule<'_> {
    /// `x, stats, scale, shift -> y`. The gradient towards x goes through the statistics, which must
    /// therefore be x's own.
    pub(super) fn normalize(
        &mut self,
        slot: usize,
        norm: Norm,
        epsilon: f64,
        activation: Option<Unary>,
    ) -> Result<Contribution, GraphError> {
        let &[x, stats, scale, shift] = &self.node.inputs[..] else {
            return Err(self.not_differentiable("it needs four inputs"));
        };
        if slot < 2 && !self.own_statistics(x, stats, norm) {
            return Err(self.not_differentiable(
                "its statistics are not those of its own input; train a graph with BatchNorm nodes instead",
            ));
        }
        if slot == 1 {
            return Ok(Contribution::Nothing);
        }
        let gradients = match self.norm_gradients {
            Some(gradients) => gradients,
            None => self.norm_gradients([x, stats, scale, shift], norm, epsilon, activation)?,
        };
        self.norm_gradients = Some(gradients);
        let of_slot = [gradients[0], None, gradients[1], gradients[2]];
        match of_slot[slot] {
            Some(gradient) => Ok(Contribution::Part(gradient)),
            None => Err(self.not_differentiable("its input was taken not to need a gradient")),
        }
    }

    fn own_statistics(&self, x: TensorId, stats: TensorId, norm: Norm) -> bool {
        self.builder
            .producer(stats)
            .is_some_and(|node| node.op == Op::NormStats { norm } && node.inputs[0] == x)
    }

    /// The gradients of x, if it needs one, scale and shift: one node makes them all.
    fn norm_gradients(
        &mut self,
        [x, stats, scale, shift]: [TensorId; 4],
        norm: Norm,
        epsilon: f64,
        activation: Option<Unary>,
    ) -> Result<[Option<TensorId>; 3], GraphError> {
        let name = &self.node.name;
        let (name, op, mut inputs) = match self.slots.contains(&0) {
            true => (
                format!("grad({name}.x,scale,shift)"),
                Op::NormGrad {
                    norm,
                    epsilon,
                    activation,
                },
                vec![x, stats, scale, self.dy],
            ),
            false => (
                format!("grad({name}.scale,shift)"),
                Op::NormParamGrad {
                    norm,
                    epsilon,
                    activation,
                },
                vec![x, stats, self.dy],
            ),
        };
        match (activation, &op) {
            (None, _) => {}
            (Some(_), Op::NormGrad { .. }) => inputs.push(shift),
            (Some(_), _) => inputs.extend([scale, shift]),
        }
        let made = self.builder.add(&name, op, &inputs)?;
        let (of_x, of_params) = made.split_at(made.len() - 2);
        let gradients = [
            of_x.first().copied(),
            Some(of_params[0]),
            Some(of_params[1]),
        ];
        for (slot, gradient) in [0, 2, 3].into_iter().zip(gradients) {
            if let Some(gradient) = gradient {
                let name = self.name(slot);
                self.builder.rename(gradient, &name);
            }
        }
        Ok(gradients)
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
