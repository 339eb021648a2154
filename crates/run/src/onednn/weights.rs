//! Which weights lie in the library's blocks.
//!
//! A convolution, the gradient of its input and the gradient of its weights each want the weights in blocks
//! of their own, so weights in rows change their format three times in a step. If they are kept in the blocks
//! in which their gradient is written, they change it only twice, and changes between blocks take less time
//! than changes from rows. In ResNet-50's step of 780 ms, the three changes took 46 ms, the two take 19. The
//! blocks that the forward convolution reads mostly have padding.

use cranelift_entity::SecondaryMap;
use scrimp_graph::{DType, Graph, NodeId, Op, Role, TensorId};

use super::OneDnn;
use crate::format::{Format, Formats};

/// The formats of a graph's tensors: those of images are chosen first, then those of weights.
pub fn formats(onednn: &OneDnn, graph: &Graph) -> Formats {
    let mut formats = Formats::images(graph);
    choose(onednn, graph, &mut formats);
    formats
}

/// Puts the weights that only convolutions and updates use into the blocks in which their gradient is written
/// (the last one, if several add up) or, if there is no gradient, into those that their first convolution reads. The gradient and the
/// optimizer's state follow. Tensors that would have padding in these blocks stay in rows.
fn choose(onednn: &OneDnn, graph: &Graph, formats: &mut Formats) {
    let uses = Uses::new(graph);
    for (weights, what) in graph.given() {
        if !matches!(what.role, Role::Parameter(_)) || what.dtype != DType::F32 {
            continue;
        }
        let Some(family) = uses.family(weights) else {
            continue;
        };
        let program = |formats: &Formats, node: NodeId| {
            let node = graph.node(node);
            let inputs = formats.operands(graph, &node.inputs);
            let outputs = formats.operands(graph, &node.outputs);
            onednn.program(&node.op, &inputs, &outputs).ok().flatten()
        };
        let asked = program(formats, family.asked);
        let Some(blocks) = asked.and_then(|program| onednn.weights(&program)) else {
            continue;
        };
        formats.set(&family.tensors, blocks);
        let changes = |&node: &NodeId| program(formats, node).is_some();
        if !family.convolutions.iter().all(changes) {
            formats.set(&family.tensors, Format::Rows);
        }
    }
}

/// Tensors that share one format, and the nodes that use them.
struct Family {
    /// The weights, their gradient, the updated weights, and the optimizer's state before and after the
    /// update.
    tensors: Vec<TensorId>,
    /// All nodes that use them except the update.
    convolutions: Vec<NodeId>,
    /// The node among them that decides the format.
    asked: NodeId,
}

/// The readers of each tensor, and as which input each reads it.
struct Uses<'a> {
    graph: &'a Graph,
    readers: SecondaryMap<TensorId, Vec<(NodeId, usize)>>,
}

impl<'a> Uses<'a> {
    fn new(graph: &'a Graph) -> Self {
        let mut readers: SecondaryMap<TensorId, Vec<(NodeId, usize)>> = SecondaryMap::new();
        for (id, node) in graph.nodes().iter() {
            for (i, &input) in node.inputs.iter().enumerate() {
                readers[input].push((id, i));
            }
        }
        Uses { graph, readers }
    }

    /// The family of a parameter; `None` if any other node reads one of its tensors.
    fn family(&self, weights: TensorId) -> Option<Family> {
        let mut convolutions = Vec::new();
        let mut tensors = vec![weights];
        let mut update = None;
        for &(node, input) in &self.readers[weights] {
            match (&self.graph.node(node).op, input) {
                (Op::Conv { .. } | Op::ConvInputGrad { .. }, 1) => convolutions.push(node),
                (Op::Update(_), 0) => update = Some(node),
                _ => return None,
            }
        }
        let mut asked = *convolutions.first()?;
        if let Some(update) = update {
            let node = self.graph.node(update);
            let (states, after) = (&node.inputs[3..], &node.outputs);
            let only = |tensor: TensorId, reader: NodeId| matches!(self.readers[tensor][..], [(node, _)] if node == reader);
            let alone = |&tensor: &TensorId| only(tensor, update);
            let unread = |&tensor: &TensorId| self.readers[tensor].is_empty();
            let given = |&tensor: &TensorId| self.graph.producer(tensor).is_none();
            asked = self.graph.producer(node.inputs[1])?;
            let (mut gradient, mut reader) = (Some(node.inputs[1]), update);
            while let Some(sum) = gradient {
                let node = self.graph.producer(sum)?;
                if !matches!(self.graph.node(node).op, Op::ConvWeightGrad { .. })
                    || !only(sum, reader)
                {
                    return None;
                }
                tensors.push(sum);
                convolutions.push(node);
                (gradient, reader) = (self.graph.node(node).inputs.get(2).copied(), node);
            }
            if !states.iter().all(|t| alone(t) && given(t)) || !after.iter().all(unread) {
                return None;
            }
            tensors.extend(states.iter().chain(after));
        }
        let kept = |tensor: &TensorId| self.graph.outputs().contains(tensor);
        (!tensors.iter().any(kept)).then_some(Family {
            tensors,
            convolutions,
            asked,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiled::Compiled;
    use crate::conformance::device::onednn;
    use crate::data::Data;
    use crate::interpret::interpret;
    use crate::processor::Processor;
    use scrimp_graph::{Binary, GraphBuilder, Loss, Optimizer, Window, train};

    /// Convolutions with 32, 21 and 48 channels, one with groups, then a linear layer.
    fn network() -> Graph {
        let mut b = GraphBuilder::new("t");
        let mut x = b.input("x", &[2, 3, 12, 12], DType::F32).expect("valid");
        let square = Window::square(3).pad(1);
        for (name, channels, groups) in [
            ("first", 32, 1),
            ("groups", 32, 32),
            ("narrow", 21, 1),
            ("last", 48, 1),
            ("same", 48, 1),
        ] {
            let y = b.conv(name, x, channels, square, groups, true);
            let y = b.relu(&format!("{name}.relu"), y.expect("valid"));
            x = y.expect("valid");
        }
        let y = b.global_avg_pool("pool", x).expect("valid");
        let y = b.reshape("flat", y, &[2, 48]).expect("valid");
        let y = b.linear("fc", y, 10, true).expect("valid");
        b.output(y);
        b.finish().expect("valid")
    }

    fn trained(graph: &Graph) -> Graph {
        let adam = Optimizer::Adam {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
        };
        let training = train(graph, Loss::CrossEntropy, Some(adam));
        training.expect("differentiable").graph
    }

    fn named(graph: &Graph, name: &str) -> TensorId {
        let found = graph.tensors().iter().find(|(_, what)| what.name == name);
        found.unwrap_or_else(|| panic!("no {name}")).0
    }

    #[test]
    fn weights_and_all_that_is_theirs_have_one_format() {
        let Some(cpu) = onednn(2) else {
            return;
        };
        let graph = trained(&network());
        let formats = cpu.formats(&graph);
        let of = |name: &str| formats.of(named(&graph, name));
        for name in ["first", "groups", "same"] {
            let weights = of(&format!("{name}.weight"));
            assert!(matches!(weights, Format::Blocks(_)), "{name}: {weights:?}");
            let update = named(&graph, &format!("{name}.weight'"));
            let update = graph.node(graph.producer(update).expect("an update"));
            let tensors = update.inputs.iter().chain(&update.outputs);
            let family = tensors.filter(|&&tensor| graph.tensor(tensor).shape.len() == 4);
            let family: Vec<Format> = family.map(|&tensor| formats.of(tensor)).collect();
            assert_eq!(family, [weights; 7], "{name}: before, after, gradient");
        }
        // 21 channels would be padded, and only convolutions have blocks.
        for name in ["narrow.weight", "last.weight", "fc.weight", "same.bias"] {
            assert_eq!(of(name), Format::Rows, "{name}");
        }
        // A tensor that is read from outside is in rows, and so is one that another operator reads.
        let inference = network();
        let weights = named(&inference, "same.weight");
        assert!(matches!(
            cpu.formats(&inference).of(weights),
            Format::Blocks(_)
        ));
        let without_updates = train(&inference, Loss::CrossEntropy, None).expect("differentiable");
        let formats = cpu.formats(&without_updates.graph);
        for &(_, gradient) in &without_updates.gradients {
            assert_eq!(formats.of(gradient), Format::Rows);
        }
    }

    /// Runs one step on tensors in rows, on images with channels last and on weights in blocks: the format
    /// doesn't affect the result.
    #[test]
    fn blocks_change_no_bit() {
        let Some(cpu) = onednn(2) else {
            return;
        };
        let graph = trained(&network());
        let data: Vec<f32> = (0..2 * 3 * 144)
            .map(|i| (i % 17) as f32 / 8.0 - 1.0)
            .collect();
        let hyper: Vec<(TensorId, Data<'_>)> = graph
            .given()
            .filter_map(|(id, what)| match what.role {
                Role::Hyper => Some((id, Data::F32(&[1e-2, 1.0]))),
                Role::Input if what.dtype == DType::F32 => Some((id, Data::F32(&data))),
                _ => None,
            })
            .collect();
        let run = |formats| {
            let compiled = Compiled::with_formats(&graph, Processor::Cpu(&cpu), formats);
            interpret(&compiled, &hyper, 3).expect("it runs")
        };
        let (rows, blocks) = (run(Formats::images(&graph)), run(cpu.formats(&graph)));
        let mut stored_otherwise = 0;
        for (id, what) in graph.tensors().iter() {
            let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
            let (a, b) = (rows.floats(&graph, id), blocks.floats(&graph, id));
            assert_eq!(bits(a), bits(b), "{}", what.name);
            stored_otherwise += usize::from(rows.bytes(id) != blocks.bytes(id));
        }
        assert!(stored_otherwise > 0);
    }

    /// Our kernels don't know blocks: if they get them anyway, they see rows.
    #[test]
    fn other_operators_change_their_arguments() {
        let Some(cpu) = onednn(2) else {
            return;
        };
        let trained = trained(&network());
        let blocks = cpu.formats(&trained).of(named(&trained, "same.weight"));
        assert!(matches!(blocks, Format::Blocks(_)));
        let mut b = GraphBuilder::new("t");
        let x = b.input("x", &[48, 48, 3, 3], DType::F32).expect("valid");
        let y = b.relu("y", x).expect("valid");
        let z = b.binary("z", Binary::Mul, x, y).expect("valid");
        b.output(z);
        let graph = b.finish().expect("valid");
        let (x, z) = (named(&graph, "x"), named(&graph, "z"));
        let data: Vec<f32> = (0..48 * 48 * 9)
            .map(|i| (i % 1001) as f32 - 500.0)
            .collect();
        let run = |formats| {
            let inputs = [(x, Data::F32(&data[..]))];
            let compiled = Compiled::with_formats(&graph, Processor::Cpu(&cpu), formats);
            let tensors = interpret(&compiled, &inputs, 3).expect("it runs");
            (tensors.floats(&graph, z), tensors.bytes(z).to_vec())
        };
        let mut mixed = Formats::rows();
        mixed.set(&[x, z], blocks);
        let (rows, changed) = (run(Formats::rows()), run(mixed));
        assert_eq!(rows.0, changed.0);
        assert_ne!(rows.1, changed.1);
    }
}
