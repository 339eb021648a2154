//! The loss at the end of the forward part.

use super::Loss;
use crate::dtype::DType;
use crate::error::GraphError;
use crate::graph::{Graph, TensorId};
use crate::op::Op;
use crate::rewrite::Rewrite;

/// The two tensors that a training step is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) predictions: Option<TensorId>,
    pub(super) loss: TensorId,
}

/// Adds the loss to the rewritten graph and marks it as output.
pub(super) fn append(
    rewrite: &mut Rewrite<'_>,
    graph: &Graph,
    loss: Loss,
) -> Result<Ends, GraphError> {
    let (&[first, ..], &[.., last]) = (graph.outputs(), graph.outputs()) else {
        return Err(GraphError::NoOutputs {
            graph: graph.name.clone(),
        });
    };
    let ends = match loss {
        Loss::CrossEntropy => {
            let predictions = rewrite.get(before_softmax(graph, first));
            let builder = &mut rewrite.builder;
            let mut shape = builder.shape(predictions).to_vec();
            if shape.len() >= 2 {
                shape.remove(1);
            }
            let labels = builder.input("labels", &shape, DType::I64)?;
            let loss = builder.add1("loss", Op::CrossEntropy, &[predictions, labels])?;
            Ends {
                predictions: Some(predictions),
                loss,
            }
        }
        Loss::MeanSquaredError => {
            let predictions = rewrite.get(first);
            let builder = &mut rewrite.builder;
            let shape = builder.shape(predictions).to_vec();
            let target = builder.input("target", &shape, builder.dtype(predictions))?;
            let loss = builder.add1("loss", Op::MeanSquaredError, &[predictions, target])?;
            Ends {
                predictions: Some(predictions),
                loss,
            }
        }
        Loss::Output => {
            let tensor = graph.tensor(last);
            if tensor.elements() != 1 || tensor.dtype == DType::I64 {
                return Err(GraphError::LossShape {
                    output: tensor.name.clone(),
                    shape: tensor.shape.clone(),
                    dtype: tensor.dtype,
                });
            }
            Ends {
                predictions: Some(rewrite.get(first)),
                loss: rewrite.get(last),
            }
        }
    };
    rewrite.builder.output(ends.loss);
    if let (Loss::Output, Some(predictions)) = (loss, ends.predictions) {
        rewrite.builder.output(predictions);
    }
    Ok(ends)
}

/// The input of the (log-)softmax over axis 1 that ends in this output, else the output itself.
/// log softmax is idempotent, and the loss takes it, so both give the same loss.
fn before_softmax(graph: &Graph, output: TensorId) -> TensorId {
    let producer = graph.producer(output).map(|node| graph.node(node));
    match producer.map(|node| (&node.op, node)) {
        Some((Op::Softmax { axis: 1 } | Op::LogSoftmax { axis: 1 }, node)) => node.inputs[0],
        _ => output,
    }
}
