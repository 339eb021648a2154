//! The gradient of each operator, one input at a time, made of operators.
//!
//! The files follow the kinds of operators: `linear` (convolution, matrix products), `elementwise`
//! (with broadcasting and reductions), `normalize` (with softmax and losses), `movement` (copies and
//! pooling).

mod elementwise;
mod linear;
mod movement;
mod normalize;

use crate::builder::GraphBuilder;
use crate::error::GraphError;
use crate::graph::{Node, TensorId};
use crate::op::Op;
use crate::shape::elements;

/// What a node adds to the gradient of one of its inputs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Contribution {
    /// To be added to what is there.
    Part(TensorId),
    /// With what was there added already.
    Total(TensorId),
    /// Accounted for elsewhere.
    Nothing,
}

/// The gradients of one node.
pub(super) struct Rule<'a> {
    pub(super) builder: &'a mut GraphBuilder,
    node: &'a Node,
    /// The gradient of the output.
    dy: TensorId,
    /// The inputs that need gradients.
    slots: &'a [usize],
    /// The gradients of a normalization's input, scale and shift, once they are built.
    norm_gradients: Option<[Option<TensorId>; 3]>,
}

/// The name of the nodes and tensors that make up the gradient of a tensor.
pub(in crate::differentiate) fn gradient_name(builder: &GraphBuilder, tensor: TensorId) -> String {
    format!("grad({})", builder.get(tensor).name)
}

/// Whether the outputs depend on this input by a differentiable function. Labels, indices and seeds
/// select; they have no gradient.
pub(super) fn differentiable(op: &Op, slot: usize) -> bool {
    match op {
        Op::Gather { .. } | Op::Dropout { .. } | Op::CrossEntropy => slot == 0,
        Op::GatherGrad { .. } => slot > 0,
        _ => true,
    }
}

impl<'a> Rule<'a> {
    pub(super) fn new(
        builder: &'a mut GraphBuilder,
        node: &'a Node,
        dy: TensorId,
        slots: &'a [usize],
    ) -> Rule<'a> {
        Rule {
            builder,
            node,
            dy,
            slots,
            norm_gradients: None,
        }
    }

    /// The name of the gradient of an input.
    pub(super) fn name(&self, slot: usize) -> String {
        gradient_name(self.builder, self.node.inputs[slot])
    }

    /// The gradient of the input in this slot. `sum` is what other nodes have contributed.
    pub(super) fn gradient(
        &mut self,
        slot: usize,
        sum: Option<TensorId>,
    ) -> Result<Contribution, GraphError> {
        let node = self.node;
        let part = match &node.op {
            Op::Conv { window, groups } => return self.conv(slot, *window, *groups, sum),
            Op::ConvInputGrad { window, groups, .. } => {
                return self.conv_transposed(slot, *window, *groups, sum);
            }
            Op::MatMul { trans_a, trans_b } => {
                return self.matmul(slot, *trans_a, *trans_b, sum);
            }
            Op::Unary(f) => self.unary(*f)?,
            Op::Binary(f) => self.binary(*f, slot)?,
            Op::Reduce { kind, axes, .. } => self.reduce(*kind, axes)?,
            Op::SumTo { .. } => self.sum_to_rule()?,
            Op::Expand { scale, .. } => self.expand(*scale)?,
            Op::MaxPool { window } => self.max_pool(*window)?,
            Op::AvgPool { window, count_pad } => self.avg_pool(*window, *count_pad)?,
            Op::AvgPoolGrad { window, count_pad, .. } => {
                self.avg_pool_adjoint(*window, *count_pad)?
            }
            Op::ResizeNearest { factor } => {
                self.one(slot, Op::ResizeNearestGrad { factor: *factor }, &[self.dy])?
            }
            Op::ResizeNearestGrad { factor } => {
                self.one(slot, Op::ResizeNearest { factor: *factor }, &[self.dy])?
            }
            Op::NormStats { .. } => return Err(self.not_differentiable(
                "its statistics are used by something other than the normalization of its own input",
            )),
            Op::NormApply { norm, epsilon, activation } => {
                return self.normalize(slot, *norm, *epsilon, *activation);
            }
            Op::Softmax { axis } => self.by_output(Op::SoftmaxGrad { axis: *axis })?,
            Op::LogSoftmax { axis } => self.by_output(Op::LogSoftmaxGrad { axis: *axis })?,
            Op::Dropout { .. } => {
                self.one(slot, node.op.clone(), &[self.dy, node.inputs[1]])?
            }
            Op::Concat { axis } => self.concat(slot, *axis)?,
            Op::Slice { start, step, .. } => return self.slice(start, step, sum),
            Op::SliceGrad { start, step, .. } => self.slice_adjoint(slot, start, step)?,
            Op::Pad { begin, .. } => self.pad(begin)?,
            Op::Reshape { .. } => {
                let shape = self.input_shape(slot);
                self.one(slot, Op::Reshape { shape }, &[self.dy])?
            }
            Op::Transpose { perm } => self.transpose(perm)?,
            Op::Gather { axis } => return self.gather(*axis, sum),
            Op::GatherGrad { axis, .. } => self.gather_adjoint(slot, *axis)?,
            Op::CrossEntropy => self.loss(Op::CrossEntropyGrad, [0, 1])?,
            Op::MeanSquaredError if slot == 0 => self.loss(Op::MeanSquaredErrorGrad, [0, 1])?,
            Op::MeanSquaredError => self.loss(Op::MeanSquaredErrorGrad, [1, 0])?,
            Op::Fill { .. }
            | Op::Read { .. }
            | Op::ConvWeightGrad { .. }
            | Op::UnaryGrad(_)
            | Op::MaxPoolGrad { .. }
            | Op::BatchNorm { .. }
            | Op::NormParamGrad { .. }
            | Op::NormGrad { .. }
            | Op::RunningStats { .. }
            | Op::SoftmaxGrad { .. }
            | Op::LogSoftmaxGrad { .. }
            | Op::CrossEntropyGrad
            | Op::MeanSquaredErrorGrad
            | Op::Update(_) => {
                return Err(self.not_differentiable("there is no gradient for this operator"));
            }
        };
        Ok(Contribution::Part(part))
    }

    fn not_differentiable(&self, reason: &'static str) -> GraphError {
        GraphError::NotDifferentiable {
            node: self.node.name.clone(),
            op: self.node.op.kind(),
            reason,
        }
    }

    /// Adds a node with one output to the gradient of the input in `slot`.
    fn one(&mut self, slot: usize, op: Op, inputs: &[TensorId]) -> Result<TensorId, GraphError> {
        let name = self.name(slot);
        self.builder.add1(&name, op, inputs)
    }

    /// Adds a node that adds to a sum, if there is one, which is its last input.
    fn added(
        &mut self,
        slot: usize,
        op: Op,
        inputs: &[TensorId],
        sum: Option<TensorId>,
    ) -> Result<Contribution, GraphError> {
        let inputs: Vec<TensorId> = inputs.iter().copied().chain(sum).collect();
        self.one(slot, op, &inputs).map(Contribution::Total)
    }

    fn input_shape(&self, slot: usize) -> Vec<usize> {
        self.builder.shape(self.node.inputs[slot]).to_vec()
    }

    /// A view in the shape of the input in `slot`; the tensor itself if it has that shape.
    fn reshape(&mut self, slot: usize, x: TensorId) -> Result<TensorId, GraphError> {
        let shape = self.input_shape(slot);
        self.view(slot, x, shape)
    }

    fn view(
        &mut self,
        slot: usize,
        x: TensorId,
        shape: Vec<usize>,
    ) -> Result<TensorId, GraphError> {
        match self.builder.shape(x) == shape {
            true => Ok(x),
            false => {
                let name = format!("{}.view", self.name(slot));
                self.builder.add1(&name, Op::Reshape { shape }, &[x])
            }
        }
    }

    /// Sums over what broadcasting copied; the tensor itself, in its shape, if nothing was.
    fn sum_to(&mut self, slot: usize, x: TensorId) -> Result<TensorId, GraphError> {
        let shape = self.input_shape(slot);
        match elements(self.builder.shape(x)) == elements(&shape) {
            true => self.view(slot, x, shape),
            false => self.one(slot, Op::SumTo { shape }, &[x]),
        }
    }
}
