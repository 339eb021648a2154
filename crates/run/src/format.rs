//! How the elements of tensors lie in memory. Tensors are logically NCHW. With oneDNN, images are physically
//! NHWC, for which that library's kernels and our normalizations are faster, and weights of convolutions are
//! in the library's blocks.

use cranelift_entity::SecondaryMap;
use scrimp_graph::{Binary, DType, Graph, Norm, Op, Role, Storages, TensorId};

use crate::blocks::{Blocks, Positions, inverse, permuted};

/// The order of a tensor's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// The last axis is contiguous; the others lie outside of it, in order.
    #[default]
    Rows,
    /// `[N,C,H,W]` stored so that the channels of one pixel lie side by side.
    ChannelsLast,
    /// The parts of the axes are stored in another order.
    Blocks(Blocks),
}

/// Positions of the axes of [N,H,W,C] in [N,C,H,W].
const LAST: [usize; 4] = [0, 2, 3, 1];

/// Positions of the axes of [N,C,H,W] in [N,H,W,C].
const FIRST: [usize; 4] = [0, 3, 1, 2];

impl Format {
    /// Whether a tensor of this shape is stored differently in rows and with channels last.
    pub fn matters(shape: &[usize]) -> bool {
        matches!(shape, &[_, c, h, w] if c > 1 && h * w > 1)
    }

    /// The change from rows to this format for a tensor of this shape; `None` if the two are the same.
    pub(crate) fn change(self, shape: &[usize]) -> Option<Change> {
        match self {
            Format::Rows => None,
            Format::ChannelsLast => Some(Change {
                rows: shape.to_vec(),
                order: LAST.to_vec(),
            }),
            Format::Blocks(blocks) => Some(Change {
                rows: blocks.parts(),
                order: blocks.order(),
            }),
        }
    }
}

/// A change from rows into another format: a transposition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Lengths of the axes, or of their parts, in row order.
    pub rows: Vec<usize>,
    /// For each axis or part in memory, its index in row order.
    pub order: Vec<usize>,
}

impl Change {
    /// Lengths in the order of memory.
    pub fn stored(&self) -> Vec<usize> {
        self.order.iter().map(|&axis| self.rows[axis]).collect()
    }

    /// The change back to rows.
    pub fn back(&self) -> Change {
        Change {
            rows: self.stored(),
            order: inverse(&self.order),
        }
    }

    /// Elements given in row order, in the order in which they are stored.
    pub fn of<T: Copy>(&self, rows: &[T]) -> Vec<T> {
        permuted(rows, &self.rows, &self.order)
    }

    /// The positions at which elements in row order are stored, from the one with index `start` on.
    pub fn positions(&self, start: usize) -> Positions {
        Positions::new(&self.rows, &self.order, start)
    }
}

pub fn channels_last(shape: &[usize]) -> Vec<usize> {
    LAST.iter().map(|&axis| shape[axis]).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand<'a> {
    pub shape: &'a [usize],
    pub dtype: DType,
    pub format: Format,
}

/// With fewer channels than this, a convolution's result isn't worth another format: most lanes of a vector
/// would be empty.
const FEW_CHANNELS: usize = 8;

/// The format of every tensor of a graph.
#[derive(Clone, Debug, Default)]
pub struct Formats {
    formats: SecondaryMap<TensorId, Format>,
}

impl Formats {
    /// Every tensor in rows.
    pub fn rows() -> Formats {
        Formats::default()
    }

    /// Channels last for the results of convolutions and for what elementwise operators or operators on
    /// images make of them. These stay in rows: tensors that are given or read from outside, tensors that are
    /// seen through a view, weights and their gradients.
    pub fn images(graph: &Graph) -> Formats {
        let storages = Storages::new(graph);
        let mut fixed: SecondaryMap<TensorId, bool> = SecondaryMap::new();
        for &output in graph.outputs() {
            fixed[storages.root(output)] = true;
        }
        for node in graph.nodes().values().filter(|node| node.op.is_view()) {
            fixed[storages.root(node.inputs[0])] = true;
        }
        let mut formats = Formats::default();
        for node in graph.nodes().values().filter(|node| !node.op.is_view()) {
            for &output in &node.outputs {
                let what = graph.tensor(output);
                let free = !fixed[output]
                    && what.role == Role::Activation
                    && what.dtype == DType::F32
                    && Format::matters(&what.shape);
                let image = |&input: &TensorId| formats.of(input) == Format::ChannelsLast;
                if free
                    && (makes_images(&node.op, &what.shape)
                        || keeps_format(&node.op) && node.inputs.iter().any(image))
                {
                    formats.formats[output] = Format::ChannelsLast;
                }
            }
        }
        formats
    }

    /// The format of a tensor.
    pub fn of(&self, tensor: TensorId) -> Format {
        self.formats[tensor]
    }

    pub(crate) fn set(&mut self, tensors: &[TensorId], format: Format) {
        for &tensor in tensors {
            self.formats[tensor] = format;
        }
    }

    pub(crate) fn operands<'g>(&self, graph: &'g Graph, tensors: &[TensorId]) -> Vec<Operand<'g>> {
        let operand = |&tensor: &TensorId| Operand {
            shape: &graph.tensor(tensor).shape,
            dtype: graph.tensor(tensor).dtype,
            format: self.of(tensor),
        };
        tensors.iter().map(operand).collect()
    }
}

fn makes_images(op: &Op, shape: &[usize]) -> bool {
    matches!(op, Op::Conv { .. } | Op::ConvInputGrad { .. }) && shape[1] >= FEW_CHANNELS
}

/// Whether an operator works on images with channels last as well as on rows.
fn keeps_format(op: &Op) -> bool {
    match op {
        Op::Unary(_)
        | Op::UnaryGrad(_)
        | Op::Binary(Binary::Add | Binary::Sub | Binary::Mul | Binary::Div)
        | Op::MaxPool { .. }
        | Op::MaxPoolGrad { .. }
        | Op::AvgPool { .. }
        | Op::AvgPoolGrad { .. }
        | Op::Concat { .. }
        | Op::Slice { .. }
        | Op::SliceGrad { .. }
        | Op::Pad { .. }
        | Op::ResizeNearest { .. }
        | Op::ResizeNearestGrad { .. } => true,
        Op::NormApply { norm, .. } | Op::NormGrad { norm, .. } => {
            matches!(norm, Norm::Batch | Norm::Instance)
        }
        _ => false,
    }
}

/// An operator's arguments, with the images among them in this format. Weights aren't images, and neither are
/// the arguments of operators that don't work on images.
pub fn arguments<'a>(
    op: &Op,
    inputs: &[(&'a [usize], DType)],
    outputs: &[(&'a [usize], DType)],
    format: Format,
) -> (Vec<Operand<'a>>, Vec<Operand<'a>>) {
    let convolves = matches!(op, Op::Conv { .. } | Op::ConvInputGrad { .. });
    let weighs = matches!(op, Op::ConvWeightGrad { .. });
    let sums = matches!(
        op,
        Op::Reduce { .. } | Op::NormStats { .. } | Op::NormParamGrad { .. }
    );
    let images = convolves || weighs || sums || keeps_format(op);
    let operand = |&(shape, dtype): &(&'a [usize], DType), weights: bool| Operand {
        shape,
        dtype,
        format: match images && !weights && Format::matters(shape) && shape[1] >= FEW_CHANNELS {
            true => format,
            false => Format::Rows,
        },
    };
    let each = inputs.iter().enumerate();
    let weights = |i: usize| convolves && i == 1 || weighs && i == 2;
    let inputs = each.map(|(i, input)| operand(input, weights(i)));
    let outputs = outputs.iter().map(|output| operand(output, weighs));
    (inputs.collect(), outputs.collect())
}

/// How an operator works on images with channels last: as an equivalent operator on other shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The same operator with its attributes for the physical axes.
    pub op: Op,
    /// Shapes of the inputs as this operator sees them.
    pub inputs: Vec<Vec<usize>>,
    pub outputs: Vec<Vec<usize>>,
    /// Whether it is a normalization of [`crate::kernels::norm::Layout::ChannelsLast`].
    pub columns: bool,
}

impl View {
    /// The view of an operator with one input and one output.
    fn plain(op: Op, input: Vec<usize>, output: Vec<usize>) -> View {
        View {
            op,
            inputs: vec![input],
            outputs: vec![output],
            columns: false,
        }
    }
}

/// With channels last, repeating pixels by whole factors is broadcasting: the smaller image has the shape
/// [N·H,1,W,1,C] and the larger one [N·H,fh,W,fw,C].
fn repetition(small: &[usize], factor: [usize; 2]) -> (Vec<usize>, Vec<usize>) {
    let (rows, width, channels) = (small[0] * small[2], small[3], small[1]);
    (
        vec![rows, 1, width, 1, channels],
        vec![rows, factor[0], width, factor[1], channels],
    )
}

/// The view of an operator whose images have channels last; `None` if the operator needs rows.
pub fn view(op: &Op, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Option<View> {
    let axis_of = |axis: usize| FIRST[axis];
    let permuted = |values: &[usize]| channels_last(values);
    let mut columns = false;
    let four = |operand: &&Operand<'_>| operand.shape.len() == 4;
    let image = inputs.iter().chain(outputs).find(four)?;
    let all_images = inputs.iter().chain(outputs).all(|o| o.shape.len() == 4);
    let op = match op {
        Op::Unary(_) | Op::UnaryGrad(_) => op.clone(),
        Op::ResizeNearest { factor } => {
            let (small, large) = repetition(inputs[0].shape, *factor);
            let op = Op::Expand {
                shape: large.clone(),
                scale: 1.0,
            };
            return Some(View::plain(op, small, large));
        }
        Op::ResizeNearestGrad { factor } => {
            let (small, large) = repetition(outputs[0].shape, *factor);
            let op = Op::SumTo {
                shape: small.clone(),
            };
            return Some(View::plain(op, large, small));
        }
        Op::Binary(_) => return broadcast(op, inputs, outputs),
        Op::Expand { shape, scale } if shape.len() == 4 => {
            let op = Op::Expand {
                shape: permuted(shape),
                scale: *scale,
            };
            return broadcast(&op, inputs, outputs);
        }
        Op::SumTo { .. } if image.shape == inputs[0].shape => {
            return broadcast(op, inputs, outputs).map(|view| View {
                op: Op::SumTo {
                    shape: view.outputs[0].clone(),
                },
                ..view
            });
        }
        Op::Reduce {
            kind,
            axes,
            keep_dims,
        } => {
            // The axes that remain must be in the same order.
            let left = |axis: usize| !axes.contains(&axis);
            if !keep_dims && left(1) && (left(2) || left(3)) {
                return None;
            }
            let mut axes: Vec<usize> = axes.iter().map(|&axis| axis_of(axis)).collect();
            axes.sort_unstable();
            Op::Reduce {
                kind: *kind,
                axes,
                keep_dims: *keep_dims,
            }
        }
        Op::Concat { axis } => Op::Concat {
            axis: axis_of(*axis),
        },
        Op::Slice { start, end, step } => Op::Slice {
            start: permuted(start),
            end: permuted(end),
            step: permuted(step),
        },
        Op::SliceGrad { start, step, shape } => Op::SliceGrad {
            start: permuted(start),
            step: permuted(step),
            shape: permuted(shape),
        },
        Op::Pad { begin, end, value } => Op::Pad {
            begin: permuted(begin),
            end: permuted(end),
            value: *value,
        },
        Op::Softmax { axis } => Op::Softmax {
            axis: axis_of(*axis),
        },
        Op::SoftmaxGrad { axis } => Op::SoftmaxGrad {
            axis: axis_of(*axis),
        },
        Op::LogSoftmax { axis } => Op::LogSoftmax {
            axis: axis_of(*axis),
        },
        Op::LogSoftmaxGrad { axis } => Op::LogSoftmaxGrad {
            axis: axis_of(*axis),
        },
        Op::NormStats {
            norm: Norm::Batch | Norm::Instance,
        }
        | Op::NormApply {
            norm: Norm::Batch | Norm::Instance,
            ..
        }
        | Op::NormParamGrad {
            norm: Norm::Batch | Norm::Instance,
            ..
        }
        | Op::NormGrad {
            norm: Norm::Batch | Norm::Instance,
            ..
        } => {
            columns = true;
            op.clone()
        }
        _ => return None,
    };
    let reduces = matches!(op, Op::Reduce { .. });
    if !columns && !reduces && !all_images {
        return None;
    }
    let shape = |operand: &Operand<'_>| match operand.shape.len() {
        4 => channels_last(operand.shape),
        _ => operand.shape.to_vec(),
    };
    Some(View {
        op,
        inputs: inputs.iter().map(shape).collect(),
        outputs: outputs.iter().map(shape).collect(),
        columns,
    })
}

/// The view of an operator that broadcasts: each shape gets four axes, which are then permuted. A shape with
/// fewer axes has no view if permuting them would move elements.
fn broadcast(op: &Op, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Option<View> {
    let shape = |operand: &Operand<'_>| {
        let missing = 4usize.checked_sub(operand.shape.len())?;
        let mut shape = vec![1; missing];
        shape.extend(operand.shape);
        (missing == 0 || !Format::matters(&shape)).then(|| channels_last(&shape))
    };
    Some(View {
        op: op.clone(),
        inputs: inputs.iter().map(shape).collect::<Option<_>>()?,
        outputs: outputs.iter().map(shape).collect::<Option<_>>()?,
        columns: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use scrimp_graph::{GraphBuilder, Window};

    #[test]
    fn images_keep_their_channels_last_where_they_grow() {
        let mut b = GraphBuilder::new("t");
        let x = b.input("x", &[2, 3, 4, 5], DType::F32).expect("valid");
        let window = Window::square(3).pad(1);
        let y = b.conv("before", x, 16, window, 1, false).expect("valid");
        let op = Op::ResizeNearest { factor: [2, 3] };
        let z = b.add("larger", op, &[y]).expect("valid")[0];
        let z = b.conv("after", z, 8, window, 1, false).expect("valid");
        b.output(z);
        let graph = b.finish().expect("valid");
        let formats = Formats::images(&graph);
        let mut nodes = graph.nodes().values();
        let resize = nodes.find(|node| matches!(node.op, Op::ResizeNearest { .. }));
        let resize = resize.expect("it is there");
        assert_eq!(formats.of(resize.outputs[0]), Format::ChannelsLast);
        assert_eq!(formats.of(graph.outputs()[0]), Format::Rows);
        let view = view(
            &resize.op,
            &formats.operands(&graph, &resize.inputs),
            &formats.operands(&graph, &resize.outputs),
        );
        let view = view.expect("it has one");
        assert_eq!(view.inputs, [[8, 1, 5, 1, 16]]);
        assert_eq!(view.outputs, [[8, 2, 5, 3, 16]]);
    }
}
