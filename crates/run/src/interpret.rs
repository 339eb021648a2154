//! Runs a graph node by node, with a buffer of its own for every tensor: no plan, no reuse of memory. Planned
//! executions are compared with this, and small graphs can be evaluated with it.

use cranelift_entity::SecondaryMap;
use scrimp_graph::{DType, Graph, TensorId};

use crate::arena::Arena;
use crate::compiled::Compiled;
use crate::data::{Data, Elements, arrange};
use crate::error::RunError;
use crate::format::Formats;
use crate::memory::Memory;
use crate::span::{ALIGN, Span};

/// Every tensor of a graph after a run, as its own operator wrote it.
pub struct Tensors {
    arena: Arena,
    formats: Formats,
    offsets: SecondaryMap<TensorId, (u64, u64)>,
}

impl Tensors {
    /// A tensor's elements as 64-bit floats, in the order of its axes.
    pub fn floats(&self, graph: &Graph, tensor: TensorId) -> Vec<f64> {
        let bytes = self.bytes(tensor);
        let stored: Vec<f64> = match graph.tensor(tensor).dtype {
            DType::F32 => bytemuck::cast_slice::<u8, f32>(bytes)
                .iter()
                .map(|&x| f64::from(x))
                .collect(),
            DType::F64 => bytemuck::cast_slice(bytes).to_vec(),
            DType::I64 => bytemuck::cast_slice::<u8, i64>(bytes)
                .iter()
                .map(|&x| x as f64)
                .collect(),
        };
        match self.formats.of(tensor).change(&graph.tensor(tensor).shape) {
            None => stored,
            Some(change) => change.back().of(&stored),
        }
    }

    /// Bytes of all tensors and of the largest workspace.
    pub fn arena_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    /// A tensor's memory in the device's format for it, aligned to [`ALIGN`].
    pub fn bytes(&self, tensor: TensorId) -> &[u8] {
        let (offset, bytes) = self.offsets[tensor];
        self.arena.bytes_at(offset, bytes)
    }
}

/// Runs all nodes in order. Given tensors that `inputs` doesn't set are initialized from `seed` (parameters,
/// state, constants) or set to zero (inputs, settings, seeds). Updates don't overwrite: the result has both
/// the old and the new values.
///
/// # Errors
/// An operator has no kernel, data has the wrong size or type, or there isn't enough memory.
pub fn interpret(
    compiled: &Compiled<'_>,
    inputs: &[(TensorId, Data<'_>)],
    seed: u64,
) -> Result<Tensors, RunError> {
    let (graph, processor) = (compiled.graph(), compiled.processor());
    let mut offsets = SecondaryMap::new();
    let mut end = 0;
    for (id, tensor) in graph.tensors().iter() {
        offsets[id] = (end, tensor.bytes());
        end += tensor.bytes().next_multiple_of(ALIGN as u64);
    }
    let workspaces = graph.nodes().keys().map(|node| compiled.workspace(node));
    let workspace = workspaces.max().unwrap_or(0);
    let mut arena = Arena::new(end + workspace)?;
    for (id, tensor) in graph.given() {
        let (offset, bytes) = offsets[id];
        let memory = Elements::new(tensor.dtype, arena.bytes_at_mut(offset, bytes));
        match inputs.iter().find(|(input, _)| *input == id) {
            Some((_, data)) => memory.set(graph, id, *data)?,
            None => processor.enter(|| memory.initialize(graph, id, seed))?,
        }
        let change = compiled.formats().of(id).change(&tensor.shape);
        arrange(
            change.as_ref(),
            tensor.dtype,
            arena.bytes_at_mut(offset, bytes),
        );
    }
    let mut jobs = Vec::with_capacity(graph.nodes().len());
    for (id, node) in graph.nodes().iter() {
        let spans = |tensors: &[TensorId]| -> Result<Vec<Span>, RunError> {
            let span = |&tensor: &TensorId| {
                let (offset, bytes) = offsets[tensor];
                arena.span(offset, bytes, &graph.tensor(tensor).name)
            };
            tensors.iter().map(span).collect()
        };
        let (reads, writes) = (spans(&node.inputs)?, spans(&node.outputs)?);
        let workspace = match compiled.workspace(id) {
            0 => Span::EMPTY,
            bytes => arena.span(end, bytes, "workspace")?,
        };
        jobs.push((node, compiled.job(id, &reads, &writes, workspace)?));
    }
    let mut memory = Memory::holding(processor, arena)?;
    for (node, job) in &jobs {
        processor
            .enter(|| processor.run(job, &mut memory))
            .map_err(|error| RunError::in_node(&node.name, error))?;
    }
    Ok(Tensors {
        arena: memory.into_arena()?,
        formats: compiled.formats().clone(),
        offsets,
    })
}
