//! Reverse mode: nodes in reverse order, contributions to one gradient added up as they come.
//!
//! Only what a parameter needs is built. For each node, gradients of tensors that don't depend on
//! data (weights) come before those of activations: afterwards the saved activation can die while
//! the gradient of the next layer takes its place. A second contribution to a gradient is added as
//! soon as it is there, in the order in which the walk meets them; the sum has no other reader and
//! is overwritten in place.
//!
//! Tiles that meet only in the loss are walked in their own order, the first tile first: each one's gradients can
//! then follow it, while what it made is still there.

use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;
use std::ops::Range;

use super::rules::{self, Contribution, gradient_name};
use crate::builder::GraphBuilder;
use crate::dtype::DType;
use crate::error::GraphError;
use crate::graph::{Node, Role, TensorId};
use crate::op::{Binary, Op};

/// What the backward part is.
pub(super) struct Backward {
    /// The parameters that the loss depends on, with their gradients.
    pub(super) gradients: Vec<(TensorId, TensorId)>,
    /// How many nodes the builder had when the `ending` had been walked.
    pub(super) ending: usize,
}

/// Appends the backward part. `ending` are the nodes of tiles that follow each other and meet only in what is
/// after them.
pub(super) fn run(
    builder: &mut GraphBuilder,
    loss: TensorId,
    ending: &[Range<usize>],
) -> Result<Backward, GraphError> {
    let flow = Flow::new(builder);
    if !flow.wanted[loss] {
        return Err(GraphError::NoGradient {
            loss: builder.get(loss).name.clone(),
        });
    }
    let forward: Vec<Node> = builder.nodes().values().cloned().collect();
    let mut sums = Sums::new();
    let one = Op::Fill {
        shape: builder.shape(loss).to_vec(),
        value: 1.0,
        dtype: builder.dtype(loss),
    };
    sums[loss] = builder
        .add1(&gradient_name(builder, loss), one, &[])?
        .into();
    let start = ending.first().map_or(0, |first| first.start);
    let end = ending.last().map_or(0, |last| last.end);
    let tiles = ending.iter().flat_map(|tile| tile.clone().rev());
    for index in (end..forward.len()).rev().chain(tiles) {
        visit(builder, &flow, &mut sums, &forward[index])?;
    }
    let ending = builder.node_count();
    for index in (0..start).rev() {
        visit(builder, &flow, &mut sums, &forward[index])?;
    }
    let parameters = builder
        .tensors()
        .iter()
        .filter_map(|(id, tensor)| match tensor.role {
            Role::Parameter(_) => sums[id].expand().map(|gradient| (id, gradient)),
            _ => None,
        });
    Ok(Backward {
        gradients: parameters.collect(),
        ending,
    })
}

/// Appends what a node contributes to the gradients of its inputs.
fn visit(
    builder: &mut GraphBuilder,
    flow: &Flow,
    sums: &mut Sums,
    node: &Node,
) -> Result<(), GraphError> {
    // No differentiable operator has several outputs; the rules say so if one comes up.
    let gradient = |&output: &TensorId| sums[output].expand();
    let Some(dy) = node.outputs.iter().find_map(gradient) else {
        return Ok(());
    };
    let slots = flow.slots(node);
    let mut rule = rules::Rule::new(builder, node, dy, &slots);
    for &slot in &slots {
        let input = node.inputs[slot];
        if let Some(parts) = rule.concatenated_input(slot, flow.readers[input]) {
            for part in parts.into_iter().filter(|part| flow.wanted[part.tensor]) {
                let gradient = Contribution::Part(rule.conv_part(&part)?);
                add(rule.builder, sums, part.tensor, gradient)?;
            }
            continue;
        }
        let contribution = rule.gradient(slot, sums[input].expand())?;
        add(rule.builder, sums, input, contribution)?;
    }
    Ok(())
}

type Sums = SecondaryMap<TensorId, PackedOption<TensorId>>;

/// Adds a contribution to the gradient of a tensor.
fn add(
    builder: &mut GraphBuilder,
    sums: &mut Sums,
    tensor: TensorId,
    contribution: Contribution,
) -> Result<(), GraphError> {
    let total = match (contribution, sums[tensor].expand()) {
        (Contribution::Nothing, _) => return Ok(()),
        (Contribution::Part(part), None) | (Contribution::Total(part), _) => part,
        (Contribution::Part(part), Some(sum)) => {
            let name = format!("{}.sum", gradient_name(builder, tensor));
            builder.add1(&name, Op::Binary(Binary::Add), &[sum, part])?
        }
    };
    sums[tensor] = total.into();
    Ok(())
}

/// What depends on parameters, and what on data.
struct Flow {
    /// A gradient towards it is needed: it is a parameter, or depends on one differentiably.
    wanted: SecondaryMap<TensorId, bool>,
    /// It depends on what a step brings along.
    data: SecondaryMap<TensorId, bool>,
    /// How many input slots of nodes it is in.
    readers: SecondaryMap<TensorId, usize>,
}

impl Flow {
    fn new(builder: &GraphBuilder) -> Flow {
        let mut flow = Flow {
            wanted: SecondaryMap::new(),
            data: SecondaryMap::new(),
            readers: SecondaryMap::new(),
        };
        for (id, tensor) in builder.tensors().iter() {
            flow.wanted[id] = matches!(tensor.role, Role::Parameter(_));
            flow.data[id] = matches!(tensor.role, Role::Input | Role::Seed);
        }
        for node in builder.nodes().values() {
            let wanted = (0..node.inputs.len()).any(|slot| flow.passes(node, slot));
            let data = node.inputs.iter().any(|&input| flow.data[input]);
            for &input in &node.inputs {
                flow.readers[input] += 1;
            }
            for &output in &node.outputs {
                flow.wanted[output] = wanted && builder.dtype(output) != DType::I64;
                flow.data[output] = data;
            }
        }
        flow
    }

    fn passes(&self, node: &Node, slot: usize) -> bool {
        self.wanted[node.inputs[slot]] && rules::differentiable(&node.op, slot)
    }

    /// The inputs of a node that need gradients, weights before activations.
    fn slots(&self, node: &Node) -> Vec<usize> {
        let mut slots: Vec<usize> = (0..node.inputs.len())
            .filter(|&slot| self.passes(node, slot))
            .collect();
        slots.sort_by_key(|&slot| self.data[node.inputs[slot]]);
        slots
    }
}
