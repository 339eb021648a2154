//! Differentiation: from a network to the graph of one training step.
//!
//! 1. `rewrite` expands what training and inference do differently, `loss` appends the loss.
//! 2. `tile` runs parts of it by tiles, if asked.
//! 3. `backward` walks the nodes in reverse and builds the gradients that parameters need, by the
//!    `rules` of each operator.
//! 4. `update` adds the optimizer's nodes and puts each where it can run first.
//! 5. `validate` checks the result once more, as a whole.

mod backward;
mod loss;
mod rules;
mod update;
mod validate;

use std::ops::Range;

use crate::builder::GraphBuilder;
use crate::error::GraphError;
use crate::graph::{Graph, NodeId, TensorId};
use crate::lower::Phases;
use crate::op::Optimizer;
use crate::rewrite::Rewrite;
use crate::tile::{self, Expanded, Rewritten, Tiled, Tiles};

/// What training minimizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Cross entropy of the first output, shape [N,C,..], with an input `labels`, i64[N,..]. If that
    /// output is a softmax or log-softmax over axis 1, the loss is that of its input, which is the
    /// same and needs less memory.
    CrossEntropy,
    /// Mean squared difference of the first output and an input `target` of its shape.
    MeanSquaredError,
    /// The last output, which must have one element.
    Output,
}

/// The graph of one training step: forward, backward, updates, in an order that frees memory early.
#[derive(Clone, Debug)]
pub struct TrainingGraph {
    /// Its outputs are the loss and, without an optimizer, the gradients.
    pub graph: Graph,
    /// Where each node belongs.
    pub phases: Phases,
    /// One element.
    pub loss: TensorId,
    /// What the loss compares with the labels or target; not kept at the end of a step. With
    /// [`Loss::Output`] the first output. None if only tiles of it exist.
    pub predictions: Option<TensorId>,
    /// Parameters with their gradients, by parameter.
    pub gradients: Vec<(TensorId, TensorId)>,
    /// Parameters and state before the step, and the tensors that take their storage: trained
    /// parameters, optimizer state, running statistics.
    pub updates: Vec<(TensorId, TensorId)>,
    /// What is run by tiles.
    pub tiled: Vec<Tiled>,
}

/// Differentiates a network. Without an optimizer the gradients are outputs and nothing but running
/// statistics is updated.
///
/// # Errors
/// A loss that doesn't fit the outputs, an operator without a gradient between a parameter and the
/// loss, no parameter that the loss depends on, an optimizer with a number out of range.
pub fn train(
    graph: &Graph,
    loss: Loss,
    optimizer: Option<Optimizer>,
) -> Result<TrainingGraph, GraphError> {
    train_tiled(graph, loss, optimizer, Tiles::Off)
}

/// The same with a part of the network run by tiles, its loss included. Losses and gradients are those of the
/// network as it is, but for the order in which numbers are added up.
///
/// # Errors
/// As for [`train`]; also a network without a segment that can be cut into tiles, and a tile that lies
/// wholly in padding.
pub fn train_tiled(
    graph: &Graph,
    loss: Loss,
    optimizer: Option<Optimizer>,
    tiles: Tiles,
) -> Result<TrainingGraph, GraphError> {
    let mut rewrite = Rewrite::new(graph)?;
    rewrite.for_training()?;
    let ends = loss::append(&mut rewrite, graph, loss)?;
    let Rewrite {
        builder, updates, ..
    } = rewrite;
    let Forward {
        mut builder,
        ends,
        updates,
        tiled,
        ending,
    } = Forward::new(builder, ends, updates, tiles)?;
    let forward = builder.node_count();
    let backward = backward::run(&mut builder, ends.loss, &ending)?;
    let mut draft = update::Draft {
        builder,
        forward,
        early: update::Early {
            tiles: ending,
            end: backward.ending,
        },
        gradients: backward.gradients,
        updates,
        ends,
        tiled,
    };
    match optimizer {
        Some(optimizer) => draft.add_updates(optimizer)?,
        None => draft.keep_gradients(),
    }
    let training = draft.finish()?;
    training.validate()?;
    Ok(training)
}

/// The forward part with its loss, before it is differentiated.
struct Forward {
    builder: GraphBuilder,
    ends: loss::Ends,
    updates: Vec<(TensorId, TensorId)>,
    tiled: Vec<Tiled>,
    /// The nodes of each tile that can be followed by its gradients; see [`Rewritten::ending`].
    ending: Vec<Range<usize>>,
}

impl Forward {
    fn new(
        builder: GraphBuilder,
        ends: loss::Ends,
        updates: Vec<(TensorId, TensorId)>,
        tiles: Tiles,
    ) -> Result<Forward, GraphError> {
        if tiles == Tiles::Off {
            return Ok(Forward {
                builder,
                ends,
                updates,
                tiled: Vec::new(),
                ending: Vec::new(),
            });
        }
        let order: Vec<NodeId> = builder.nodes().keys().collect();
        let (graph, numbers) = builder.finish_ordered(&order)?;
        let Expanded { graph, map: moved } = tile::expand(&graph)?;
        let Rewritten {
            builder,
            map,
            tiled,
            ending,
        } = tile::rewrite(&graph, &tiles.of(&graph)?)?;
        let find = |id: TensorId| {
            let id = moved[numbers.tensors[id].expand()?].expand()?;
            map[id].expand()
        };
        let kept = |id: TensorId| find(id).expect("losses and states are whole in every rewrite");
        Ok(Forward {
            builder,
            ends: loss::Ends {
                predictions: ends.predictions.and_then(find),
                loss: kept(ends.loss),
            },
            updates: updates
                .into_iter()
                .map(|(old, new)| (kept(old), kept(new)))
                .collect(),
            tiled,
            ending,
        })
    }
}
