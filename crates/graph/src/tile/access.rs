//! What each operator reads of its inputs for a part of its output, axis by axis. Every operator is named, so
//! that a new one can't be taken for tileable, or for not tileable, by omission.

use super::interval::Reach;
use crate::op::{Norm, Op, Reduction};
use crate::shape::elements;

/// How an axis of an input follows from the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// All of it, whatever part of the output is wanted.
    Whole,
    /// The interval that this axis of the output reaches.
    Along(usize, Reach),
}

/// What an operator reads of its inputs for a part of its output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// By input and axis.
    pub inputs: Vec<Vec<Need>>,
    /// The axes of the output of which a part can be computed by itself.
    pub tileable: Vec<bool>,
    /// For an operator that adds up over its first input: which axis of the first input each axis of
    /// the further inputs goes along with. Such an operator can be applied to parts of that input.
    pub sums: Option<Sums>,
}

/// How results over parts of an input make the result over all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    /// The axes of the first input that may be cut into parts.
    pub over: Vec<usize>,
    /// Whether a part counts by its share of the elements, as in a mean, or fully, as in a sum.
    pub mean: bool,
    /// By further input and axis.
    pub beside: Vec<Vec<Option<usize>>>,
}

/// The table of intervals: section 4.1.1 of SFT (Xu et al., CC 2022) as positions instead of extents.
/// `inputs` and `output` are shapes that fit the operator.
pub fn access(op: &Op, inputs: &[&[usize]], output: &[usize]) -> Access {
    let whole = |slot: usize| vec![Need::Whole; inputs.get(slot).map_or(0, |shape| shape.len())];
    let every = || (0..inputs.len()).map(whole).collect::<Vec<_>>();
    let mut access = Access {
        inputs: every(),
        ..Access::default()
    };
    let mut tileable = vec![false; output.len()];
    match op {
        Op::Conv { window, .. } | Op::MaxPool { window } | Op::AvgPool { window, .. } => {
            let reach = |axis: usize| Reach::Window {
                stride: window.stride[axis],
                span: window.dilation[axis] * (window.kernel[axis] - 1) + 1,
                first: -(window.pad_begin[axis] as isize),
            };
            access.image(reach, !matches!(op, Op::Conv { .. }));
        }
        Op::ConvInputGrad { window, .. } => {
            let reach = |axis: usize| Reach::Spread {
                stride: window.stride[axis],
                span: window.dilation[axis] * (window.kernel[axis] - 1) + 1,
                pad: window.pad_begin[axis],
            };
            access.image(reach, false);
        }
        Op::ResizeNearest { factor } => access.image(|axis| Reach::Repeat(factor[axis]), true),
        Op::MatMul { trans_a, trans_b } => {
            let rank = output.len();
            for slot in 0..2 {
                access.broadcast(slot, inputs[slot], output);
                let lead = inputs[slot].len() - 2;
                let swapped = [*trans_a, *trans_b][slot];
                // Rows of a, columns of b; the other axis is summed over.
                let kept = if (slot == 0) == swapped {
                    lead + 1
                } else {
                    lead
                };
                access.inputs[slot][lead] = Need::Whole;
                access.inputs[slot][lead + 1] = Need::Whole;
                access.inputs[slot][kept] = Need::Along(rank - 2 + slot, Reach::SAME);
            }
            if let Some(addend) = inputs.get(2) {
                access.broadcast(2, addend, output);
            }
        }
        Op::Unary(_) | Op::UnaryGrad(_) | Op::Binary(_) => {
            for (slot, shape) in inputs.iter().enumerate() {
                access.broadcast(slot, shape, output);
            }
        }
        Op::Expand { .. } => {
            access.broadcast(0, inputs[0], output);
            tileable.fill(true);
        }
        Op::Fill { .. } => tileable.fill(true),
        Op::Reduce {
            kind,
            axes,
            keep_dims,
        } => {
            let mut to = 0;
            for axis in 0..inputs[0].len() {
                let reduced = axes.contains(&axis);
                if !reduced {
                    access.inputs[0][axis] = Need::Along(to, Reach::SAME);
                }
                to += usize::from(*keep_dims || !reduced);
            }
            access.sums = Some(Sums {
                over: axes.clone(),
                mean: *kind == Reduction::Mean,
                beside: Vec::new(),
            });
        }
        Op::CrossEntropy => {
            let axes = 0..inputs[0].len();
            access.sums = Some(Sums {
                over: axes.clone().filter(|&axis| axis != 1).collect(),
                mean: true,
                beside: vec![axes.filter(|&axis| axis != 1).map(Some).collect()],
            });
        }
        Op::MeanSquaredError => {
            let axes = 0..inputs[0].len();
            access.sums = Some(Sums {
                over: axes.clone().collect(),
                mean: true,
                beside: vec![axes.map(Some).collect()],
            });
        }
        Op::NormStats { norm } => match statistics(*norm, inputs[0]) {
            Statistics::All => {}
            Statistics::Leading(lead) => {
                for (from, _, reach) in regrouped(lead, &output[1..]) {
                    access.inputs[0][from] = Need::Along(1, reach);
                }
            }
            Statistics::PerSample => {
                access.inputs[0][0] = Need::Along(1, Reach::Repeat(output[1] / inputs[0][0]))
            }
        },
        Op::NormApply { norm, .. } => match statistics(*norm, inputs[0]) {
            Statistics::All => {
                access.same(0);
                access.inputs[0][1] = Need::Whole;
            }
            Statistics::Leading(lead) => {
                for (_, to, reach) in regrouped(&inputs[1][1..], lead) {
                    access.inputs[0][to] = Need::Along(to, Reach::SAME);
                    access.inputs[1][1] = Need::Along(to, reach);
                }
            }
            Statistics::PerSample => {
                let per = inputs[1][1] / inputs[0][0];
                let reach = Reach::Window {
                    stride: per,
                    span: per,
                    first: 0,
                };
                access.inputs[0][0] = Need::Along(0, Reach::SAME);
                access.inputs[1][1] = Need::Along(0, reach);
            }
        },
        Op::Softmax { axis } | Op::LogSoftmax { axis } => {
            access.same(0);
            access.inputs[0][*axis] = Need::Whole;
        }
        Op::Concat { axis } => {
            for slot in 0..inputs.len() {
                access.same(slot);
                access.inputs[slot][*axis] = Need::Whole;
            }
        }
        Op::Slice { start, step, .. } => {
            for axis in 0..output.len() {
                let reach = Reach::Window {
                    stride: step[axis],
                    span: 1,
                    first: start[axis] as isize,
                };
                access.inputs[0][axis] = Need::Along(axis, reach);
            }
        }
        Op::Pad { begin, .. } => {
            for (axis, &begin) in begin.iter().enumerate() {
                let reach = Reach::Window {
                    stride: 1,
                    span: 1,
                    first: -(begin as isize),
                };
                access.inputs[0][axis] = Need::Along(axis, reach);
            }
        }
        Op::Reshape { .. } => {
            for (from, to, reach) in regrouped(inputs[0], output) {
                access.inputs[0][from] = Need::Along(to, reach);
            }
        }
        Op::Transpose { perm } => {
            for (to, &from) in perm.iter().enumerate() {
                access.inputs[0][from] = Need::Along(to, Reach::SAME);
            }
        }
        Op::Gather { axis } => {
            let indices = inputs[1].len();
            for from in 0..inputs[0].len() {
                if from != *axis {
                    let to = if from < *axis {
                        from
                    } else {
                        from + indices - 1
                    };
                    access.inputs[0][from] = Need::Along(to, Reach::SAME);
                }
            }
            for from in 0..indices {
                access.inputs[1][from] = Need::Along(axis + from, Reach::SAME);
            }
        }
        Op::Dropout { place: None, .. } => access.same(0),
        // Not in the forward part of a graph, or changes state.
        Op::Dropout { .. }
        | Op::SumTo { .. }
        | Op::Read { .. }
        | Op::BatchNorm { .. }
        | Op::ConvWeightGrad { .. }
        | Op::MaxPoolGrad { .. }
        | Op::AvgPoolGrad { .. }
        | Op::NormGrad { .. }
        | Op::NormParamGrad { .. }
        | Op::RunningStats { .. }
        | Op::SoftmaxGrad { .. }
        | Op::LogSoftmaxGrad { .. }
        | Op::SliceGrad { .. }
        | Op::ResizeNearestGrad { .. }
        | Op::GatherGrad { .. }
        | Op::CrossEntropyGrad
        | Op::MeanSquaredErrorGrad
        | Op::Update(_) => {}
    }
    for need in access.inputs.iter().flatten() {
        if let Need::Along(axis, _) = need {
            tileable[*axis] = true;
        }
    }
    access.tileable = tileable;
    access
}

impl Access {
    /// An operator over the last two axes of [N,C,H,W]; whether channels go along with channels.
    fn image(&mut self, reach: impl Fn(usize) -> Reach, channels: bool) {
        let x = &mut self.inputs[0];
        x[0] = Need::Along(0, Reach::SAME);
        if channels {
            x[1] = Need::Along(1, Reach::SAME);
        }
        x[2] = Need::Along(2, reach(0));
        x[3] = Need::Along(3, reach(1));
    }

    /// Each axis goes along with the output's.
    fn same(&mut self, slot: usize) {
        for (axis, need) in self.inputs[slot].iter_mut().enumerate() {
            *need = Need::Along(axis, Reach::SAME);
        }
    }

    /// Each axis that isn't copied goes along with the output's, aligned at the end.
    fn broadcast(&mut self, slot: usize, shape: &[usize], output: &[usize]) {
        let skipped = output.len() - shape.len();
        for (axis, &length) in shape.iter().enumerate() {
            if length == output[skipped + axis] {
                self.inputs[slot][axis] = Need::Along(skipped + axis, Reach::SAME);
            }
        }
    }
}

/// What each of a normalization's statistics is of.
enum Statistics<'a> {
    /// A channel of all samples.
    All,
    /// A position of these axes, the first of the tensor's.
    Leading(&'a [usize]),
    /// Some channels of a sample.
    PerSample,
}

fn statistics(norm: Norm, shape: &[usize]) -> Statistics<'_> {
    match norm {
        Norm::Batch => Statistics::All,
        Norm::Layer { axis } => Statistics::Leading(&shape[..axis]),
        Norm::Instance | Norm::Group { .. } => Statistics::PerSample,
    }
}

/// Where axes of one shape are axes of another with the same elements in the same order: (axis of `from`,
/// axis of `to`, how the first follows from the second). Of axes that are merged or split only the outermost
/// can be cut, and only where one is a multiple of the other.
fn regrouped(from: &[usize], to: &[usize]) -> Vec<(usize, usize, Reach)> {
    let mut pairs = Vec::new();
    let (mut i, mut j) = (0, 0);
    loop {
        // Axes of length 1 have nothing to cut.
        while from.get(i) == Some(&1) {
            i += 1;
        }
        while to.get(j) == Some(&1) {
            j += 1;
        }
        let (Some(&a), Some(&b)) = (from.get(i), to.get(j)) else {
            return pairs;
        };
        let (first_i, first_j, mut left, mut right) = (i, j, a, b);
        (i, j) = (i + 1, j + 1);
        while left != right {
            if left < right {
                left *= from[i];
                i += 1;
            } else {
                right *= to[j];
                j += 1;
            }
        }
        let (inner_from, inner_to) = (
            elements(&from[first_i + 1..i]),
            elements(&to[first_j + 1..j]),
        );
        if inner_to.is_multiple_of(inner_from) {
            let ratio = inner_to / inner_from;
            let reach = Reach::Window {
                stride: ratio,
                span: ratio,
                first: 0,
            };
            pairs.push((first_i, first_j, reach));
        } else if inner_from.is_multiple_of(inner_to) {
            pairs.push((first_i, first_j, Reach::Repeat(inner_from / inner_to)));
        }
    }
}
