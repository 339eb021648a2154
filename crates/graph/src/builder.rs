//! Building graphs node by node: names, shapes and limits are checked at every step.
//!
//! Layers made of several nodes or with parameters of their own are in `layers.rs`.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{PrimaryMap, SecondaryMap};
use std::collections::{HashMap, HashSet};

use crate::dtype::DType;
use crate::error::GraphError;
use crate::graph::{Graph, Init, Node, NodeId, Role, Tensor, TensorId};
use crate::op::Op;
use crate::shape::{self, Signature};

/// No graph has more nodes.
pub const MAX_NODES: usize = 1 << 20;

/// The tensors of a graph together are not larger.
pub const MAX_GRAPH_BYTES: u64 = 1 << 48;

/// Builds a [`Graph`] in topological order. Node and tensor names are made unique by a suffix, so
/// that callers can name what matters and leave the rest.
#[derive(Clone, Debug)]
pub struct GraphBuilder {
    name: String,
    tensors: PrimaryMap<TensorId, Tensor>,
    nodes: PrimaryMap<NodeId, Node>,
    outputs: Vec<TensorId>,
    producers: SecondaryMap<TensorId, PackedOption<NodeId>>,
    tensor_names: Names,
    node_names: Names,
    seed: Option<TensorId>,
    hyper: Option<TensorId>,
    bytes: u64,
}

/// Where the tensors and nodes of a builder are in the finished graph, if pruning left them.
pub(crate) struct Renumbering {
    pub(crate) tensors: SecondaryMap<TensorId, PackedOption<TensorId>>,
    pub(crate) nodes: SecondaryMap<NodeId, PackedOption<NodeId>>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> GraphBuilder {
        GraphBuilder {
            name: name.into(),
            tensors: PrimaryMap::new(),
            nodes: PrimaryMap::new(),
            outputs: Vec::new(),
            producers: SecondaryMap::new(),
            tensor_names: Names::default(),
            node_names: Names::default(),
            seed: None,
            hyper: None,
            bytes: 0,
        }
    }

    /// Data that every step brings along.
    pub fn input(
        &mut self,
        name: &str,
        shape: &[usize],
        dtype: DType,
    ) -> Result<TensorId, GraphError> {
        self.tensor(name, shape.to_vec(), dtype, Role::Input)
    }

    /// An f32 tensor that training changes.
    pub fn parameter(
        &mut self,
        name: &str,
        shape: &[usize],
        init: Init,
    ) -> Result<TensorId, GraphError> {
        self.initialized(name, shape, init, Role::Parameter)
    }

    /// An f32 tensor that update nodes change.
    pub fn state(
        &mut self,
        name: &str,
        shape: &[usize],
        init: Init,
    ) -> Result<TensorId, GraphError> {
        self.initialized(name, shape, init, Role::State)
    }

    /// A tensor that never changes: i64 if initialized by [`Init::Ints`], else f32.
    pub fn constant(
        &mut self,
        name: &str,
        shape: &[usize],
        init: Init,
    ) -> Result<TensorId, GraphError> {
        self.initialized(name, shape, init, Role::Constant)
    }

    /// The random seed of the step, i64 of shape `[1]`; always the same tensor.
    pub fn seed(&mut self) -> Result<TensorId, GraphError> {
        if let Some(seed) = self.seed {
            return Ok(seed);
        }
        let seed = self.tensor("seed", vec![1], DType::I64, Role::Seed)?;
        self.seed = Some(seed);
        Ok(seed)
    }

    /// The [learning rate, step number] tensor of update nodes, of this floating-point type; always
    /// the same tensor.
    pub(crate) fn hyper(&mut self, dtype: DType) -> Result<TensorId, GraphError> {
        if let Some(hyper) = self.hyper {
            return Ok(hyper);
        }
        let hyper = self.tensor("hyper", vec![2], dtype, Role::Hyper)?;
        self.hyper = Some(hyper);
        Ok(hyper)
    }

    /// Applies an operator. The outputs are named like the node, with `.0`, `.1` appended if there
    /// are several.
    pub fn add(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[TensorId],
    ) -> Result<Vec<TensorId>, GraphError> {
        let inferred = self.infer(name, &op, inputs)?;
        let single = inferred.len() == 1;
        let named = inferred
            .into_iter()
            .enumerate()
            .map(|(index, (shape, dtype))| {
                let output = if single {
                    name.to_owned()
                } else {
                    format!("{name}.{index}")
                };
                (output, shape, dtype)
            });
        self.push(name, op, inputs, named.collect())
    }

    /// The same with names for the outputs.
    pub(crate) fn add_named(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[TensorId],
        names: Vec<String>,
    ) -> Result<Vec<TensorId>, GraphError> {
        let inferred = self.infer(name, &op, inputs)?;
        let named = names
            .into_iter()
            .zip(inferred)
            .map(|(name, (shape, dtype))| (name, shape, dtype));
        self.push(name, op, inputs, named.collect())
    }

    /// A given tensor of another graph.
    pub(crate) fn copy_tensor(&mut self, tensor: &Tensor) -> Result<TensorId, GraphError> {
        let Tensor {
            name,
            shape,
            dtype,
            role,
        } = tensor.clone();
        let id = self.tensor(&name, shape, dtype, role)?;
        match tensor.role {
            Role::Seed => self.seed = Some(id),
            Role::Hyper => self.hyper = Some(id),
            _ => {}
        }
        Ok(id)
    }

    /// The node that writes a tensor; none if it is given.
    pub fn producer(&self, tensor: TensorId) -> Option<&Node> {
        self.producers[tensor]
            .expand()
            .map(|node| &self.nodes[node])
    }

    pub(crate) fn tensors(&self) -> &PrimaryMap<TensorId, Tensor> {
        &self.tensors
    }

    pub(crate) fn nodes(&self) -> &PrimaryMap<NodeId, Node> {
        &self.nodes
    }

    /// Applies an operator that has one output.
    pub fn add1(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[TensorId],
    ) -> Result<TensorId, GraphError> {
        let outputs = self.add(name, op, inputs)?;
        // Every operator has at least one output.
        Ok(outputs[0])
    }

    /// The shape of a tensor.
    pub fn shape(&self, tensor: TensorId) -> &[usize] {
        &self.tensors[tensor].shape
    }

    /// The element type of a tensor.
    pub fn dtype(&self, tensor: TensorId) -> DType {
        self.tensors[tensor].dtype
    }

    /// A tensor added before.
    pub fn get(&self, tensor: TensorId) -> &Tensor {
        &self.tensors[tensor]
    }

    /// How many nodes there are so far.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Gives a tensor another name, made unique by a suffix if it is taken.
    pub fn rename(&mut self, tensor: TensorId, name: &str) {
        if self.tensors[tensor].name != name {
            self.tensors[tensor].name = self.tensor_names.unique(name);
        }
    }

    /// Marks a tensor as one the user wants. The order of the calls is the order of the outputs; a
    /// tensor counts once.
    pub fn output(&mut self, tensor: TensorId) {
        if !self.outputs.contains(&tensor) {
            self.outputs.push(tensor);
        }
    }

    /// The finished graph, without the nodes and tensors that no output and no update needs.
    pub fn finish(self) -> Result<Graph, GraphError> {
        let order: Vec<NodeId> = self.nodes.keys().collect();
        self.finish_ordered(&order).map(|(graph, _)| graph)
    }

    /// The same with the nodes in another topological order.
    pub(crate) fn finish_ordered(
        self,
        order: &[NodeId],
    ) -> Result<(Graph, Renumbering), GraphError> {
        if self.outputs.is_empty() {
            return Err(GraphError::NoOutputs { graph: self.name });
        }
        for &output in &self.outputs {
            self.check_known("outputs", output)?;
        }
        let (needed_nodes, needed_tensors) = self.needed();
        let mut renumbering = Renumbering {
            tensors: SecondaryMap::new(),
            nodes: SecondaryMap::new(),
        };
        let mut tensors: PrimaryMap<TensorId, Tensor> = PrimaryMap::new();
        for (id, tensor) in self.tensors {
            if needed_tensors.contains(&id) {
                renumbering.tensors[id] = tensors.push(tensor).into();
            }
        }
        let map = |list: &[TensorId]| -> Vec<TensorId> {
            list.iter()
                .filter_map(|&id| renumbering.tensors[id].expand())
                .collect()
        };
        let mut nodes: PrimaryMap<NodeId, Node> = PrimaryMap::new();
        for &id in order.iter().filter(|id| needed_nodes.contains(id)) {
            let Node {
                name,
                op,
                inputs,
                outputs,
            } = &self.nodes[id];
            let (name, op) = (name.clone(), op.clone());
            let (inputs, outputs) = (map(inputs), map(outputs));
            renumbering.nodes[id] = nodes
                .push(Node {
                    name,
                    op,
                    inputs,
                    outputs,
                })
                .into();
        }
        let outputs = map(&self.outputs);
        Ok((
            Graph::assemble(self.name, tensors, nodes, outputs),
            renumbering,
        ))
    }

    /// Nodes that outputs or updates need, and the tensors these nodes touch.
    fn needed(&self) -> (HashSet<NodeId>, HashSet<TensorId>) {
        let mut tensors: HashSet<TensorId> = self.outputs.iter().copied().collect();
        let mut nodes = HashSet::new();
        for (id, node) in self.nodes.iter().rev() {
            let wanted = node.outputs.iter().any(|output| tensors.contains(output));
            if wanted || node.op.changes_state() {
                nodes.insert(id);
                tensors.extend(node.inputs.iter().chain(&node.outputs));
            }
        }
        (nodes, tensors)
    }

    pub(crate) fn tensor(
        &mut self,
        name: &str,
        shape: Vec<usize>,
        dtype: DType,
        role: Role,
    ) -> Result<TensorId, GraphError> {
        let bytes = shape::checked_bytes(&shape, dtype).map_err(|source| GraphError::Tensor {
            tensor: name.to_owned(),
            source: Box::new(source),
        })?;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > MAX_GRAPH_BYTES {
            return Err(self.too_large("more bytes", MAX_GRAPH_BYTES));
        }
        let name = self.tensor_names.unique(name);
        Ok(self.tensors.push(Tensor {
            name,
            shape,
            dtype,
            role,
        }))
    }

    fn too_large(&self, what: &'static str, limit: u64) -> GraphError {
        GraphError::GraphTooLarge {
            graph: self.name.clone(),
            what,
            limit,
        }
    }

    fn initialized(
        &mut self,
        name: &str,
        shape: &[usize],
        init: Init,
        role: fn(Init) -> Role,
    ) -> Result<TensorId, GraphError> {
        let dtype = if matches!(init, Init::Ints(_)) {
            DType::I64
        } else {
            DType::F32
        };
        let id = self.tensor(name, shape.to_vec(), dtype, Role::Activation)?;
        check_init(&self.tensors[id], &init)?;
        let role = role(init);
        if dtype == DType::I64 && !matches!(role, Role::Constant(_)) {
            return Err(GraphError::Init {
                tensor: name.to_owned(),
                shape: shape.to_vec(),
                reason: "only constants can be integers; make it a constant".into(),
            });
        }
        self.tensors[id].role = role;
        Ok(id)
    }

    fn check_known(&self, node: &str, tensor: TensorId) -> Result<(), GraphError> {
        match self.tensors.is_valid(tensor) {
            true => Ok(()),
            false => Err(GraphError::UnknownTensor {
                node: node.to_owned(),
                tensor: tensor.to_string(),
            }),
        }
    }

    fn infer(
        &self,
        name: &str,
        op: &Op,
        inputs: &[TensorId],
    ) -> Result<Vec<shape::Inferred>, GraphError> {
        for &input in inputs {
            self.check_known(name, input)?;
        }
        let signature: Vec<Signature<'_>> = inputs
            .iter()
            .map(|&id| (&*self.tensors[id].shape, self.tensors[id].dtype))
            .collect();
        shape::infer(op, &signature).map_err(|source| GraphError::node(name, op, source))
    }

    /// Adds a node whose output shapes are inferred already.
    fn push(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[TensorId],
        outputs: Vec<(String, Vec<usize>, DType)>,
    ) -> Result<Vec<TensorId>, GraphError> {
        if self.nodes.len() >= MAX_NODES {
            return Err(self.too_large("more nodes", MAX_NODES as u64));
        }
        let outputs = outputs
            .into_iter()
            .map(|(name, shape, dtype)| self.tensor(&name, shape, dtype, Role::Activation))
            .collect::<Result<Vec<_>, _>>()?;
        let node = self.nodes.push(Node {
            name: self.node_names.unique(name),
            op,
            inputs: inputs.to_vec(),
            outputs: outputs.clone(),
        });
        for &output in &outputs {
            self.producers[output] = node.into();
        }
        Ok(outputs)
    }
}

fn check_init(tensor: &Tensor, init: &Init) -> Result<(), GraphError> {
    let elements = tensor.elements();
    let wrong_count = |found: usize| {
        (found != elements)
            .then(|| format!("it needs {elements} elements but {found} are given; give as many"))
    };
    let bad_number = |field: &str, value: f64| {
        let bad = !(value >= 0.0 && value.is_finite());
        bad.then(|| format!("{field} is {value}; it must be finite and not negative"))
    };
    let reason = match init {
        Init::Constant(_) => None,
        Init::Normal { std } => bad_number("std", *std),
        Init::Uniform { bound } => bad_number("bound", *bound),
        Init::Floats(values) => wrong_count(values.len()),
        Init::Stored(values) => wrong_count(values.len()),
        Init::Ints(values) => wrong_count(values.len()),
    };
    match reason {
        None => Ok(()),
        Some(reason) => Err(GraphError::Init {
            tensor: tensor.name.clone(),
            shape: tensor.shape.clone(),
            reason,
        }),
    }
}

/// Names in use, and how often a name has been asked for.
#[derive(Clone, Debug, Default)]
struct Names {
    taken: HashSet<String>,
    next: HashMap<String, usize>,
}

impl Names {
    /// The name itself, or the first free of `name_1`, `name_2`, …
    fn unique(&mut self, name: &str) -> String {
        if self.taken.insert(name.to_owned()) {
            return name.to_owned();
        }
        let next = self.next.entry(name.to_owned()).or_insert(1);
        loop {
            let candidate = format!("{name}_{next}");
            *next += 1;
            if self.taken.insert(candidate.clone()) {
                return candidate;
            }
        }
    }
}
