//! An operator on a part of its output: which parts of its inputs it reads, and with which attributes.

use std::ops::Range;

use super::access::{Need, access};
use super::interval::Reach;
use crate::op::{Op, Place, Window};

/// A part of a tensor: an interval per axis.
pub type Region = Vec<Range<usize>>;

/// All of a tensor.
pub fn all(shape: &[usize]) -> Region {
    shape.iter().map(|&length| 0..length).collect()
}

/// The lengths of a part's axes.
pub fn extents(region: &[Range<usize>]) -> Vec<usize> {
    region.iter().map(ExactSizeIterator::len).collect()
}

/// What computes a part of an operator's output.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The operator on parts of the inputs.
    pub op: Op,
    /// These parts.
    pub inputs: Vec<Region>,
    /// The part that comes out: what was wanted, or more where elements come in groups.
    pub made: Region,
}

/// The operator that computes the `wanted` part of an output of an operator; none if the part can't be computed
/// by itself, or is made of nothing but padding. Padding is only where the whole has it.
pub fn part(
    op: &Op,
    inputs: &[&[usize]],
    output: &[usize],
    wanted: &[Range<usize>],
) -> Option<Part> {
    let access = access(op, inputs, output);
    let cut = |axis: usize| wanted[axis] != (0..output[axis]);
    if (0..output.len()).any(|axis| cut(axis) && !access.tileable[axis]) {
        return None;
    }
    let mut made = wanted.to_vec();
    let mut parts = Vec::new();
    for (needs, shape) in access.inputs.iter().zip(inputs) {
        let mut region = all(shape);
        for ((need, part), &length) in needs.iter().zip(&mut region).zip(*shape) {
            if let Need::Along(axis, reach) = *need {
                *part = reach.slice(&wanted[axis], length);
                if let Reach::Repeat(count) = reach {
                    made[axis] = part.start * count..part.end * count;
                }
            }
        }
        if region.iter().any(Range::is_empty) {
            return None;
        }
        parts.push(region);
    }
    let reach = |axis: usize| match access.inputs[0].get(axis) {
        Some(&Need::Along(to, reach)) => reach.unclipped(&wanted[to]),
        _ => 0..0,
    };
    let shape = extents(&made);
    let op = match op {
        Op::Conv { window, groups } => Op::Conv {
            window: padded(window, [reach(2), reach(3)], inputs[0]),
            groups: *groups,
        },
        Op::MaxPool { window } => Op::MaxPool {
            window: padded(window, [reach(2), reach(3)], inputs[0]),
        },
        Op::AvgPool { window, count_pad } => Op::AvgPool {
            window: padded(window, [reach(2), reach(3)], inputs[0]),
            count_pad: *count_pad,
        },
        Op::ConvInputGrad { window, groups, .. } => Op::ConvInputGrad {
            window: spread(window, &parts[0][2..], &wanted[2..]),
            groups: *groups,
            input_hw: [shape[2], shape[3]],
        },
        Op::Expand { scale, .. } => Op::Expand {
            shape,
            scale: *scale,
        },
        Op::Fill { value, dtype, .. } => Op::Fill {
            shape,
            value: *value,
            dtype: *dtype,
        },
        Op::Reshape { .. } => Op::Reshape { shape },
        Op::Slice { step, .. } => Op::Slice {
            start: vec![0; shape.len()],
            end: extents(&parts[0]),
            step: step.clone(),
        },
        Op::Pad { value, .. } => {
            let (mut begin, mut end) = (Vec::new(), Vec::new());
            for (axis, &length) in inputs[0].iter().enumerate() {
                let Range { start, end: stop } = reach(axis);
                begin.push(start.min(0).unsigned_abs());
                end.push((stop - length as isize).max(0) as usize);
            }
            Op::Pad {
                begin,
                end,
                value: *value,
            }
        }
        Op::Dropout { p, stream, .. } => Op::Dropout {
            p: *p,
            stream: *stream,
            place: Some(Place {
                start: parts[0].iter().map(|interval| interval.start).collect(),
                shape: inputs[0].to_vec(),
            }),
        },
        other => other.clone(),
    };
    Some(Part {
        op,
        inputs: parts,
        made,
    })
}

/// The window on the elements that it reaches: padding is what lies outside of the whole input.
fn padded(window: &Window, reach: [Range<isize>; 2], input: &[usize]) -> Window {
    let mut window = *window;
    for (axis, Range { start, end }) in reach.into_iter().enumerate() {
        window.pad_begin[axis] = start.min(0).unsigned_abs();
        window.pad_end[axis] = (end - input[2 + axis] as isize).max(0) as usize;
    }
    window
}

/// The window of the convolution from the `wanted` part of a transposed convolution's output to the part of its
/// input that is spread to it.
fn spread(window: &Window, input: &[Range<usize>], wanted: &[Range<usize>]) -> Window {
    let mut window = *window;
    for axis in 0..2 {
        let stride = window.stride[axis];
        let span = window.dilation[axis] * (window.kernel[axis] - 1) + 1;
        let begin = wanted[axis].start + window.pad_begin[axis] - input[axis].start * stride;
        let reached = (input[axis].len() - 1) * stride + span;
        window.pad_begin[axis] = begin;
        window.pad_end[axis] = reached.saturating_sub(begin + wanted[axis].len());
    }
    window
}
