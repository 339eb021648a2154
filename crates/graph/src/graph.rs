//! The graph: tensors with shapes and types, and nodes in topological order.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};
use std::collections::HashSet;
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::GraphError;
use crate::op::Op;
use crate::shape::{elements, infer};
use crate::weights::Stored;

/// A tensor of a graph.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(u32);
entity_impl!(TensorId, "tensor");

/// A node of a graph: one operator with its inputs and outputs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);
entity_impl!(NodeId, "node");

/// The first contents of a parameter, state or constant.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// Every element the same.
    Constant(f64),
    /// Independent normal draws with mean 0; the stream is given by the tensor's name, so that a
    /// network and the training graph made from it start from the same numbers.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// Independent uniform draws from [−bound, bound]; the stream as above.
    Uniform {
        /// Not negative.
        bound: f64,
    },
    /// Floating-point contents (f32 or f64 tensors).
    Floats(Arc<[f32]>),
    /// Floating-point contents that are read from a file when a run begins (f32 or f64 tensors).
    Stored(Stored),
    /// Integer contents (i64 tensors).
    Ints(Arc<[i64]>),
}

/// What a tensor is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// Written by a node.
    Activation,
    /// Set anew for every step: data, labels.
    Input,
    /// Trained.
    Parameter(Init),
    /// Kept from step to step and changed by update nodes: running statistics, optimizer state.
    State(Init),
    /// Never changes.
    Constant(Init),
    /// The [learning rate, step number] tensor of update nodes.
    Hyper,
    /// The random seed of the step, `i64[1]`.
    Seed,
}

/// A tensor's type and purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Unique within the graph.
    pub name: String,
    /// Lengths of the axes; empty for a scalar.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Purpose.
    pub role: Role,
}

/// One operator applied to tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Unique within the graph.
    pub name: String,
    /// What it does.
    pub op: Op,
    /// In the order of the operator's documentation.
    pub inputs: Vec<TensorId>,
    /// In the order of the operator's documentation.
    pub outputs: Vec<TensorId>,
}

impl Tensor {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        elements(&self.shape)
    }

    /// Size without rounding.
    pub fn bytes(&self) -> u64 {
        self.elements() as u64 * self.dtype.bytes()
    }
}

/// A neural network. Nodes are in topological order; every tensor has at most one producer, and
/// exactly one if it is an activation. Shapes and element types agree with [`crate::infer`], sizes
/// don't overflow. Build one with [`crate::GraphBuilder`].
#[derive(Clone, Debug)]
pub struct Graph {
    /// For people.
    pub name: String,
    /// What a user who trains the graph should know about the file that it comes from.
    pub remarks: Vec<String>,
    tensors: PrimaryMap<TensorId, Tensor>,
    nodes: PrimaryMap<NodeId, Node>,
    outputs: Vec<TensorId>,
    producers: SecondaryMap<TensorId, PackedOption<NodeId>>,
    consumers: SecondaryMap<TensorId, Vec<NodeId>>,
}

impl Graph {
    /// Puts a graph together from parts that the builder has checked.
    pub(crate) fn assemble(
        name: String,
        tensors: PrimaryMap<TensorId, Tensor>,
        nodes: PrimaryMap<NodeId, Node>,
        outputs: Vec<TensorId>,
    ) -> Graph {
        let mut producers = SecondaryMap::new();
        let mut consumers: SecondaryMap<TensorId, Vec<NodeId>> = SecondaryMap::new();
        for (id, node) in nodes.iter() {
            for &output in &node.outputs {
                producers[output] = id.into();
            }
            for &input in &node.inputs {
                if consumers[input].last() != Some(&id) {
                    consumers[input].push(id);
                }
            }
        }
        Graph {
            name,
            remarks: Vec::new(),
            tensors,
            nodes,
            outputs,
            producers,
            consumers,
        }
    }

    /// All tensors.
    pub fn tensors(&self) -> &PrimaryMap<TensorId, Tensor> {
        &self.tensors
    }

    /// All nodes, in topological order.
    pub fn nodes(&self) -> &PrimaryMap<NodeId, Node> {
        &self.nodes
    }

    /// The tensors that the user asked for, such as predictions and the loss. Each is listed once.
    pub fn outputs(&self) -> &[TensorId] {
        &self.outputs
    }

    /// One tensor.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id]
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// The node that writes the tensor; none if it is given.
    pub fn producer(&self, tensor: TensorId) -> Option<NodeId> {
        self.producers[tensor].expand()
    }

    /// The nodes that read the tensor, ascending, each once.
    pub fn consumers(&self, tensor: TensorId) -> &[NodeId] {
        &self.consumers[tensor]
    }

    /// The tensor of this name.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        self.tensors
            .iter()
            .find(|(_, tensor)| tensor.name == name)
            .map(|(id, _)| id)
    }

    /// The tensors that nodes don't write: inputs, parameters, state and so on.
    pub fn given(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        self.tensors
            .iter()
            .filter(|(_, tensor)| tensor.role != Role::Activation)
    }

    /// The same graph with all floating-point tensors of this type, for checking gradients in f64.
    /// An integer type leaves the graph as it is.
    pub fn with_float(mut self, float: DType) -> Graph {
        if float == DType::I64 {
            return self;
        }
        for tensor in self
            .tensors
            .values_mut()
            .filter(|tensor| tensor.dtype != DType::I64)
        {
            tensor.dtype = float;
        }
        for node in self.nodes.values_mut() {
            if let Op::Fill { dtype, .. } | Op::Read { dtype, .. } = &mut node.op {
                *dtype = float;
            }
        }
        self
    }

    /// Checks everything that the type promises: order, producers, shapes, unique names. Graphs from
    /// a builder are valid; call this after transforming one.
    ///
    /// # Errors
    /// The first promise that doesn't hold, with its node or tensor.
    pub fn validate(&self) -> Result<(), GraphError> {
        let wrong = |reason: String| {
            Err(GraphError::Inconsistent {
                graph: self.name.clone(),
                reason,
            })
        };
        let mut names = HashSet::new();
        if let Some(tensor) = self
            .tensors
            .values()
            .find(|tensor| !names.insert(&tensor.name))
        {
            return wrong(format!("two tensors are named '{}'", tensor.name));
        }
        let mut written: HashSet<TensorId> = self.given().map(|(id, _)| id).collect();
        for node in self.nodes.values() {
            if let Some(&early) = node.inputs.iter().find(|input| !written.contains(input)) {
                let tensor = &self.tensors[early].name;
                return wrong(format!(
                    "node '{}' reads '{tensor}' before it is written",
                    node.name
                ));
            }
            if let Some(&twice) = node.outputs.iter().find(|output| !written.insert(**output)) {
                let tensor = &self.tensors[twice].name;
                return wrong(format!("node '{}' writes '{tensor}' again", node.name));
            }
            let signature = |id: &TensorId| (&*self.tensors[*id].shape, self.tensors[*id].dtype);
            let inputs: Vec<_> = node.inputs.iter().map(signature).collect();
            let inferred = infer(&node.op, &inputs)
                .map_err(|source| GraphError::node(&node.name, &node.op, source))?;
            let inferred = inferred.iter().map(|(shape, dtype)| (&**shape, *dtype));
            if !inferred.eq(node.outputs.iter().map(signature)) {
                return wrong(format!(
                    "the outputs of node '{}' have other shapes",
                    node.name
                ));
            }
        }
        match self.tensors.iter().find(|(id, _)| !written.contains(id)) {
            Some((_, tensor)) => wrong(format!("nothing writes '{}'", tensor.name)),
            None => Ok(()),
        }
    }
}
