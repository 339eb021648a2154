//! A graph on a processor: how each tensor is stored and how each node is run. This is worked out once and
//! shared by all who estimate, measure, execute or interpret the graph.

use cranelift_entity::PrimaryMap;
use scrimp_graph::{Graph, NodeId};
use std::sync::Arc;

use crate::error::RunError;
use crate::format::Formats;
use crate::job::{Job, Recipe};
use crate::processor::Processor;
use crate::span::Span;

/// See the module's documentation.
#[derive(Debug)]
pub struct Compiled<'a> {
    graph: &'a Graph,
    processor: Processor<'a>,
    formats: Formats,
    /// `None` for nodes that need no work.
    recipes: PrimaryMap<NodeId, Option<Arc<Recipe>>>,
}

impl<'a> Compiled<'a> {
    /// Chooses formats and kernels for a graph.
    pub fn new(graph: &'a Graph, processor: Processor<'a>) -> Compiled<'a> {
        Compiled::with_formats(graph, processor, processor.formats(graph))
    }

    /// Chooses kernels for tensors in these formats.
    pub(crate) fn with_formats(
        graph: &'a Graph,
        processor: Processor<'a>,
        formats: Formats,
    ) -> Compiled<'a> {
        let nodes = graph.nodes().values();
        let recipes = nodes.map(|node| processor.recipe(graph, &formats, node).map(Arc::new));
        Compiled {
            recipes: recipes.collect(),
            graph,
            processor,
            formats,
        }
    }

    /// The graph.
    pub fn graph(&self) -> &'a Graph {
        self.graph
    }

    /// The processor that runs the graph.
    pub fn processor(&self) -> Processor<'a> {
        self.processor
    }

    /// The format of each tensor.
    pub fn formats(&self) -> &Formats {
        &self.formats
    }

    /// Bytes of scratch that a node needs, a multiple of [`crate::ALIGN`].
    ///
    /// # Panics
    /// The graph has no such node.
    pub fn workspace(&self, node: NodeId) -> u64 {
        let recipe = self.recipes[node].as_ref();
        recipe.map_or(0, |recipe| recipe.workspace())
    }

    /// A node's job on tensors in this memory, with a workspace of [`Compiled::workspace`] bytes.
    ///
    /// # Errors
    /// A piece of memory is too short, or overlaps another where it must not.
    pub(crate) fn job(
        &self,
        node: NodeId,
        inputs: &[Span],
        outputs: &[Span],
        workspace: Span,
    ) -> Result<Job, RunError> {
        let name = &self.graph.node(node).name;
        let Some(recipe) = &self.recipes[node] else {
            return Ok(Job::default());
        };
        recipe
            .job(inputs, outputs, workspace)
            .map_err(|error| RunError::in_node(name, error))
    }
}
