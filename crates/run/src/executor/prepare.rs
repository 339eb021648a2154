//! What an executor works out once: the arguments of every run as pieces of the arena, and where
//! tensors are between steps.

use cranelift_entity::SecondaryMap;
use scrimp_graph::{Graph, Lowered, TensorId};
use scrimp_plan::{BufferId, CheckedLayout, DeviceId, Step, TaskId, ValueId};

use super::{Action, Place, Prepared, Range, wrong};
use crate::arena::Arena;
use crate::compiled::Compiled;
use crate::error::RunError;
use crate::span::Span;

/// The plan's steps with their memory.
pub(super) fn actions(
    compiled: &Compiled<'_>,
    lowered: &Lowered,
    layout: &CheckedLayout,
    arena: &Arena,
) -> Result<Vec<Action>, RunError> {
    let plan = layout.plan();
    if plan.problem().tasks().len() != lowered.nodes.len()
        || lowered
            .nodes
            .values()
            .any(|&node| !compiled.graph().nodes().is_valid(node))
    {
        return Err(wrong("it has other tasks than the graph has nodes"));
    }
    let preparation = Preparation {
        compiled,
        lowered,
        layout,
        arena,
    };
    (0..plan.steps().len())
        .map(|step| match plan.steps()[step] {
            Step::Run { task, .. } => preparation.run(step, task),
            Step::Free { .. } => Ok(Action::Free(range(layout, plan.binding(step).inputs[0]))),
            Step::Copy { .. } => Err(wrong("it copies between devices")),
        })
        .collect()
}

fn range(layout: &CheckedLayout, buffer: BufferId) -> Range {
    Range {
        offset: layout.offset(buffer),
        bytes: layout.plan().buffers()[buffer].bytes,
    }
}

struct Preparation<'a> {
    compiled: &'a Compiled<'a>,
    lowered: &'a Lowered,
    layout: &'a CheckedLayout,
    arena: &'a Arena,
}

impl Preparation<'_> {
    fn run(&self, step: usize, task: TaskId) -> Result<Action, RunError> {
        let plan = self.layout.plan();
        let (binding, what) = (plan.binding(step), plan.problem().task(task));
        let id = self.lowered.nodes[task];
        let node = self.compiled.graph().node(id);
        let inputs = self.spans(&node.inputs, &what.inputs, &binding.inputs)?;
        let outputs = self.spans(&node.outputs, &what.outputs, &binding.outputs)?;
        let needed = self.compiled.workspace(id);
        let workspace = match binding.workspace {
            None => Range {
                offset: 0,
                bytes: 0,
            },
            Some(buffer) => range(self.layout, buffer),
        };
        if workspace.bytes < needed {
            return Err(wrong(format!(
                "node {:?} has {} bytes of workspace, but {} needs {needed}",
                node.name,
                workspace.bytes,
                self.compiled.processor().signature()
            )));
        }
        let workspace = Range {
            bytes: needed,
            ..workspace
        };
        let scratch = match needed {
            0 => Span::EMPTY,
            _ => self.arena.span(workspace.offset, needed, &node.name)?,
        };
        let fresh = binding
            .outputs
            .iter()
            .filter(|output| !binding.inputs.contains(output));
        let job = self.compiled.job(id, &inputs, &outputs, scratch)?;
        Ok(Action::Run(Box::new(Prepared {
            task,
            node: id,
            job,
            outputs: binding
                .outputs
                .iter()
                .map(|&buffer| self.layout.offset(buffer))
                .collect(),
            fresh: fresh.map(|&buffer| range(self.layout, buffer)).collect(),
            workspace,
        })))
    }

    /// The tensors' memory: each in the buffer of its value.
    fn spans(
        &self,
        tensors: &[TensorId],
        values: &[ValueId],
        buffers: &[BufferId],
    ) -> Result<Vec<Span>, RunError> {
        tensors
            .iter()
            .map(|&tensor| {
                let what = self.compiled.graph().tensor(tensor);
                let value = self
                    .lowered
                    .values
                    .get(tensor)
                    .and_then(|value| value.expand());
                let index = value.and_then(|value| values.iter().position(|&other| other == value));
                let buffer = index.and_then(|index| buffers.get(index)).ok_or_else(|| {
                    wrong(format!(
                        "the task that uses tensor {:?} doesn't use its value",
                        what.name
                    ))
                })?;
                let Range { offset, bytes } = range(self.layout, *buffer);
                self.arena.span(offset, bytes, &what.name)
            })
            .collect()
    }
}

/// The buffers that are held when the plan starts.
pub(super) fn given(layout: &CheckedLayout, device: DeviceId) -> Vec<Range> {
    let plan = layout.plan();
    let values = plan.problem().values().keys();
    values
        .filter_map(|value| plan.given_buffer(value))
        .filter(|&buffer| plan.buffers()[buffer].device == device)
        .map(|buffer| range(layout, buffer))
        .collect()
}

/// Where tensors are at the start and at the end of a step.
///
/// # Errors
/// A kept value that isn't where the next step expects the given value that it continues.
pub(super) fn places(
    graph: &Graph,
    lowered: &Lowered,
    layout: &CheckedLayout,
    device: DeviceId,
) -> Result<SecondaryMap<TensorId, Place>, RunError> {
    let plan = layout.plan();
    let problem = plan.problem();
    let mut places = SecondaryMap::new();
    for (tensor, what) in graph.tensors().iter() {
        let Some(value) = lowered.values.get(tensor).and_then(|value| value.expand()) else {
            continue;
        };
        if !problem.values().is_valid(value) {
            return Err(wrong("it has fewer values than the graph has storages"));
        }
        let given = plan.given_buffer(value).map(|buffer| layout.offset(buffer));
        // What overwrites a given value continues it; what overwrites an activation replaces it.
        let mut end = value;
        while given.is_some()
            && let Some(task) = problem.overwriter(end)
            && let Some(next) = problem.task(task).overwritten_by(end)
        {
            end = next;
        }
        let last = plan
            .final_buffer(end, device)
            .map(|buffer| layout.offset(buffer));
        let stays = given.is_some() && last.is_some();
        if stays && given != last {
            return Err(wrong(format!(
                "tensor {:?} is at another place at the end of a step than at its start",
                what.name
            )));
        }
        places[tensor] = Place { given, last, stays };
    }
    Ok(places)
}
