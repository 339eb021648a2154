//! Reverse mode: nodes in reverse order, contributions to one gradient added up as they come.
//!
//! Only what a parameter needs is built. For each node, gradients of tensors that don't depend on
//! data (weights) come before those of activations: afterwards the saved activation can die while
//! the gradient of the next layer takes its place. A second contribution to a gradient is added as
//! soon as it is there, in the order in which the walk meets them; the sum has no other reader and
//! is overwritten in place.

use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;

use super::rules::{self, Contribution, gradient_name};
use crate::builder::GraphBuilder;
use crate::dtype::DType;
use crate::error::GraphError;
use crate::graph::{Node, NodeId, Role, TensorId};
use crate::op::{Binary, Op};

/// Appends the backward part. Returns the parameters that the loss depends on, with their gradients.
pub(super) fn run(
    builder: &mut GraphBuilder,
    loss: TensorId,
) -> Result<Vec<(TensorId, TensorId)>, GraphError> {
    let flow = Flow::new(builder);
    if !flow.wanted[loss] {
        return Err(GraphError::NoGradient {
            loss: builder.get(loss).name.clone(),
        });
    }
    let forward: Vec<(NodeId, Node)> = builder
        .nodes()
        .iter()
        .map(|(id, node)| (id, node.clone()))
        .collect();
    let mut sums = Sums::new();
    let one = Op::Fill {
        shape: builder.shape(loss).to_vec(),
        value: 1.0,
        dtype: builder.dtype(loss),
    };
    sums[loss] = builder
        .add1(&gradient_name(builder, loss), one, &[])?
        .into();
    for (_, node) in forward.iter().rev() {
        // No differentiable operator has several outputs; the rules say so if one comes up.
        let Some(dy) = node
            .outputs
            .iter()
            .find_map(|&output| sums[output].expand())
        else {
            continue;
        };
        let slots = flow.slots(node);
        let mut rule = rules::Rule::new(builder, node, dy, &slots);
        for &slot in &slots {
            let input = node.inputs[slot];
            if let Some(parts) = rule.concatenated_input(slot, flow.readers[input]) {
                for part in parts.into_iter().filter(|part| flow.wanted[part.tensor]) {
                    let gradient = rule.conv_part(&part)?;
                    add(
                        rule.builder,
                        &mut sums,
                        part.tensor,
                        Contribution::Part(gradient),
                    )?;
                }
                continue;
            }
            let contribution = rule.gradient(slot, sums[input].expand())?;
            add(rule.builder, &mut sums, input, contribution)?;
        }
    }
    let parameters = builder
        .tensors()
        .iter()
        .filter_map(|(id, tensor)| match tensor.role {
            Role::Parameter(_) => sums[id].expand().map(|gradient| (id, gradient)),
            _ => None,
        });
    Ok(parameters.collect())
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
