//! Normalizations as sums that tiles can make: a tile's own statistics would be others than those of the whole. In
//! training, the statistics of an image are two means, one after the other: of the elements, then of the squares of
//! their differences from the first. Each is a sum of tiles, complete before the next begins, so that
//! statistics, results and gradients are those of the whole but for the order of sums.

use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;
use std::collections::HashMap;

use crate::builder::GraphBuilder;
use crate::error::GraphError;
use crate::graph::{Graph, Node, TensorId};
use crate::op::{Binary, Norm, Op, Reduction, Unary};

/// A graph, and where the source's tensors are in it.
pub(crate) struct Expanded {
    pub(crate) graph: Graph,
    pub(crate) map: SecondaryMap<TensorId, PackedOption<TensorId>>,
}

/// The graph with batch, instance and group normalizations of images as means and elementwise operators, where the
/// statistics are those of what is normalized.
///
/// # Errors
/// A graph that grows too large.
pub(crate) fn expand(source: &Graph) -> Result<Expanded, GraphError> {
    let mut expansion = Expansion {
        source,
        builder: GraphBuilder::new(source.name.clone()),
        map: SecondaryMap::new(),
        of: HashMap::new(),
    };
    for (id, tensor) in source.given() {
        expansion.map[id] = expansion.builder.copy_tensor(tensor)?.into();
    }
    for node in source.nodes().values() {
        expansion.node(node)?;
    }
    for &output in source.outputs() {
        let output = expansion.get(output);
        expansion.builder.output(output);
    }
    let order: Vec<_> = expansion.builder.nodes().keys().collect();
    let (graph, numbers) = expansion.builder.finish_ordered(&order)?;
    let mut map = expansion.map;
    for id in source.tensors().keys() {
        map[id] = map[id]
            .expand()
            .and_then(|id| numbers.tensors[id].expand())
            .into();
    }
    Ok(Expanded { graph, map })
}

/// What stands for the statistics of a tensor.
#[derive(Clone, Copy)]
struct Moments {
    /// The tensor minus its means.
    centered: TensorId,
    /// The means of the squares of that, with axes of length 1 in place of those that are reduced.
    variance: TensorId,
}

struct Expansion<'a> {
    source: &'a Graph,
    builder: GraphBuilder,
    map: SecondaryMap<TensorId, PackedOption<TensorId>>,
    /// By the source's statistics.
    of: HashMap<TensorId, Moments>,
}

impl Expansion<'_> {
    fn get(&self, tensor: TensorId) -> TensorId {
        self.map[tensor].expect("nodes are expanded in order, so what they read is there")
    }

    fn node(&mut self, node: &Node) -> Result<(), GraphError> {
        match node.op {
            Op::NormStats { norm } if self.is_of_image(node, norm) => self.statistics(node, norm),
            Op::NormApply {
                epsilon,
                activation,
                ..
            } if self.of.contains_key(&node.inputs[1]) => self.apply(node, epsilon, activation),
            _ => {
                let inputs: Vec<_> = node.inputs.iter().map(|&input| self.get(input)).collect();
                let name = |id: &TensorId| self.source.tensor(*id).name.clone();
                let names = node.outputs.iter().map(name).collect();
                let made = self
                    .builder
                    .add_named(&node.name, node.op.clone(), &inputs, names)?;
                for (&old, new) in node.outputs.iter().zip(made) {
                    self.map[old] = new.into();
                }
                Ok(())
            }
        }
    }

    /// Whether these are statistics of height and width, of what they are then applied to and, for batches,
    /// of running statistics.
    fn is_of_image(&self, node: &Node, norm: Norm) -> bool {
        let [x, stats] = [node.inputs[0], node.outputs[0]];
        let mut readers = self.source.consumers(stats).iter();
        let known = readers.all(|&reader| match &self.source.node(reader).op {
            Op::NormApply { norm: applied, .. } => {
                *applied == norm && self.source.node(reader).inputs[0] == x
            }
            Op::RunningStats { .. } => true,
            _ => false,
        });
        let shape = &self.source.tensor(x).shape;
        known
            && !matches!(norm, Norm::Layer { .. })
            && !self.source.outputs().contains(&stats)
            && matches!(shape[..], [_, _, h, w] if h * w > 1)
    }

    fn statistics(&mut self, node: &Node, norm: Norm) -> Result<(), GraphError> {
        let (x, name) = (self.get(node.inputs[0]), &node.name);
        let mean = self.mean(&format!("{name}.mean"), x, norm)?;
        let builder = &mut self.builder;
        let centered = builder.binary(&format!("{name}.centered"), Binary::Sub, x, mean)?;
        let square = Unary::Pow { exponent: 2.0 };
        let squares = builder.unary(&format!("{name}.squares"), square, centered)?;
        let variance = self.mean(&format!("{name}.variance"), squares, norm)?;
        let moments = Moments { centered, variance };
        self.of.insert(node.outputs[0], moments);
        if norm == Norm::Batch {
            let channels = self.builder.shape(x)[1];
            let mut rows = Vec::new();
            for (row, moment) in [("means", mean), ("variances", variance)] {
                let row = format!("{name}.{row}");
                rows.push(self.builder.reshape(&row, moment, &[1, channels])?);
            }
            let stats = self.builder.concat(name, 0, &rows)?;
            self.map[node.outputs[0]] = stats.into();
        }
        Ok(())
    }

    /// The means of what shares statistics: [1,C,1,1] for a batch, else [N,C,1,1].
    fn mean(&mut self, name: &str, x: TensorId, norm: Norm) -> Result<TensorId, GraphError> {
        let axes = match norm {
            Norm::Batch => vec![0, 2, 3],
            _ => vec![2, 3],
        };
        let mean = |axes| Op::Reduce {
            kind: Reduction::Mean,
            axes,
            keep_dims: true,
        };
        let builder = &mut self.builder;
        let of_channels = builder.add1(name, mean(axes), &[x])?;
        let Norm::Group { groups } = norm else {
            return Ok(of_channels);
        };
        let whole = builder.shape(of_channels).to_vec();
        let split = [whole[0], groups, whole[1] / groups];
        let grouped = builder.reshape(&format!("{name}.split"), of_channels, &split)?;
        let of_groups = builder.add1(&format!("{name}.groups"), mean(vec![2]), &[grouped])?;
        let copied = Op::Expand {
            shape: split.to_vec(),
            scale: 1.0,
        };
        let copied = builder.add1(&format!("{name}.copied"), copied, &[of_groups])?;
        builder.reshape(&format!("{name}.joined"), copied, &whole)
    }

    /// centered / √(variance + ε) · scale + shift.
    fn apply(
        &mut self,
        node: &Node,
        epsilon: f64,
        activation: Option<Unary>,
    ) -> Result<(), GraphError> {
        let Moments { centered, variance } = self.of[&node.inputs[1]];
        let [scale, shift] = [2, 3].map(|slot| self.get(node.inputs[slot]));
        let (builder, name) = (&mut self.builder, &node.name);
        let channels = [1, builder.shape(scale)[0], 1, 1];
        let scale = builder.reshape(&format!("{name}.scale"), scale, &channels)?;
        let shift = builder.reshape(&format!("{name}.shift"), shift, &channels)?;
        let steady = Unary::Affine {
            scale: 1.0,
            shift: epsilon,
        };
        let steady = builder.unary(&format!("{name}.steady"), steady, variance)?;
        let root = Unary::Pow { exponent: -0.5 };
        let inverse = builder.unary(&format!("{name}.inverse"), root, steady)?;
        let factor = builder.binary(&format!("{name}.factor"), Binary::Mul, inverse, scale)?;
        let scaled = builder.binary(&format!("{name}.scaled"), Binary::Mul, centered, factor)?;
        let mut y = builder.binary(&format!("{name}.shifted"), Binary::Add, scaled, shift)?;
        if let Some(activation) = activation {
            y = builder.unary(&format!("{name}.active"), activation, y)?;
        }
        let output = &self.source.tensor(node.outputs[0]).name;
        self.builder.rename(y, output);
        self.map[node.outputs[0]] = y.into();
        Ok(())
    }
}
