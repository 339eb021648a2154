//! What an executor works out once: the steps of the plan with their memory, and the places of tensors
//! between steps.

use cranelift_entity::SecondaryMap;
use scrimp_graph::{Graph, Lowered, NodeId, TensorId};
use scrimp_plan::{
    BufferId, CheckedLayout, DeviceId, Keep, LinkId, Problem, Step, TaskId, ValueId,
};
use std::collections::HashMap;
use std::sync::Arc;

use super::memories::Location;
use super::waits::Waits;
use crate::compiled::Compiled;
use crate::conversion::Conversion;
use crate::error::RunError;
use crate::file::aligned;
use crate::job::Job;
use crate::span::{ALIGN, PAGE, Span};

#[derive(Debug)]
pub(super) enum Action {
    Run(Box<Launch>),
    Free(Location),
    Copy(Transfer),
}

impl Action {
    /// The device that it concerns: it runs, gives back or takes bytes.
    pub fn device(&self) -> DeviceId {
        match self {
            Action::Run(launch) => launch.device,
            Action::Free(at) => at.device,
            Action::Copy(transfer) => transfer.to.device,
        }
    }
}

#[derive(Debug)]
pub(super) struct Launch {
    pub task: TaskId,
    pub device: DeviceId,
    pub node: NodeId,
    /// Whether the plan has an earlier run of the task.
    pub again: bool,
    pub job: Job,
    pub outputs: Vec<Location>,
    pub fresh: Vec<Location>,
    pub workspace: Option<Location>,
}

#[derive(Clone, Debug)]
pub(super) struct Transfer {
    pub value: ValueId,
    pub link: LinkId,
    pub from: Location,
    pub to: Location,
    /// How the value changes if the two devices store it differently.
    pub conversion: Option<Arc<Conversion>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Residence {
    /// Its place at the start of a step, if it is given.
    pub given: Option<Location>,
    /// Its place at the end of a step, if it is kept or what overwrote it is kept.
    pub last: Option<Location>,
    /// Whether the tensor is given and still there at the end of a step, so that it needn't be set again.
    pub stays: bool,
}

#[derive(Debug)]
pub(super) struct Schedule {
    pub actions: Vec<Action>,
    pub given: Vec<Location>,
    pub residences: SecondaryMap<TensorId, Residence>,
    /// Where values lie after a step, and where the next step expects them.
    pub moves: Vec<[Location; 2]>,
    pub waits: Waits,
    /// A stretch of the first memory that computes in which nothing lies between steps.
    pub idle: Span,
}

impl Schedule {
    /// The schedule of a plan for the graph on the devices that compute, `computing`. `in_file` says which devices
    /// are files.
    ///
    /// # Errors
    /// The plan is for another graph or has less workspace than the processor needs; a kept value isn't where
    /// the next step expects the given value that it continues; or buffers aren't aligned.
    pub fn new(
        compiled: &[Compiled<'_>],
        lowered: &Lowered,
        layout: &CheckedLayout,
        computing: &[DeviceId],
        in_file: &dyn Fn(DeviceId) -> bool,
    ) -> Result<Schedule, RunError> {
        let (Some(first), Some(&home)) = (compiled.first(), computing.first()) else {
            return Err(wrong("no device computes"));
        };
        let scheduling = Scheduling {
            graph: first.graph(),
            compiled,
            computing,
            lowered,
            layout,
            problem: layout.plan().problem(),
        };
        scheduling.same_tasks()?;
        let actions = scheduling.actions()?;
        let transfers = actions.iter().filter_map(|action| match action {
            Action::Copy(transfer) => Some(transfer.clone()),
            _ => None,
        });
        let transfers: Vec<Transfer> = transfers.collect();
        for transfer in &transfers {
            direct(transfer, in_file)?;
        }
        for (buffer, what) in layout.plan().buffers().iter() {
            let at = scheduling.location(buffer)?;
            if in_file(what.device) && !aligned(at.span.offset | at.span.bytes) {
                return Err(unaligned());
            }
        }
        let mut moves = Vec::new();
        let residences = scheduling.residences(home, &mut moves)?;
        Ok(Schedule {
            actions,
            given: scheduling.given()?,
            waits: Waits::new(layout, computing, &transfers),
            idle: idle(&residences, home, layout.arena_bytes(home)),
            residences,
            moves,
        })
    }
}

/// Whether direct I/O can do a copy between a file and memory.
fn direct(transfer: &Transfer, in_file: &dyn Fn(DeviceId) -> bool) -> Result<(), RunError> {
    let ends = [transfer.from, transfer.to];
    match ends.map(|end| in_file(end.device)) {
        [false, false] => Ok(()),
        [true, true] => Err(wrong("it copies from one file to another")),
        _ if transfer.conversion.is_some() => Err(wrong(
            "it swaps to a file from devices that store values differently, so give all devices the same library",
        )),
        _ if ends
            .iter()
            .all(|end| aligned(end.span.offset | end.span.bytes)) =>
        {
            Ok(())
        }
        _ => Err(unaligned()),
    }
}

fn unaligned() -> RunError {
    wrong(format!(
        "it uses a file, but sizes or offsets of what is copied aren't multiples of {PAGE}"
    ))
}

/// The longest stretch of the device's arena in which no tensor lies between steps, at most to `end`.
fn idle(residences: &SecondaryMap<TensorId, Residence>, home: DeviceId, end: u64) -> Span {
    let places = residences
        .values()
        .flat_map(|residence| [residence.given, residence.last]);
    let places = places.flatten().filter(|at| at.device == home);
    let mut taken: Vec<(u64, u64)> = places
        .map(|at| (at.span.offset, at.span.offset + at.span.bytes))
        .collect();
    taken.push((end, end));
    taken.sort_unstable();
    let (mut free, mut longest) = (0, Span::EMPTY);
    for (start, end) in taken {
        let bytes = start.saturating_sub(free);
        if bytes > longest.bytes {
            longest = Span {
                offset: free,
                bytes,
            };
        }
        free = free.max(end.next_multiple_of(PAGE));
    }
    longest
}

struct Scheduling<'a> {
    graph: &'a Graph,
    compiled: &'a [Compiled<'a>],
    computing: &'a [DeviceId],
    lowered: &'a Lowered,
    layout: &'a CheckedLayout,
    problem: &'a Problem,
}

impl Scheduling<'_> {
    /// The graph on a device. What lies in a memory that doesn't compute is stored as on the first device that
    /// does.
    fn compiled(&self, device: DeviceId) -> &Compiled<'_> {
        let number = self.computing.iter().position(|&other| other == device);
        &self.compiled[number.unwrap_or(0)]
    }

    fn same_tasks(&self) -> Result<(), RunError> {
        let known = |&node: &NodeId| self.graph.nodes().is_valid(node);
        let nodes = &self.lowered.nodes;
        match self.problem.tasks().len() == nodes.len() && nodes.values().all(known) {
            true => Ok(()),
            false => Err(wrong("it has other tasks than the graph has nodes")),
        }
    }

    fn actions(&self) -> Result<Vec<Action>, RunError> {
        let plan = self.layout.plan();
        let mut ran: SecondaryMap<TaskId, bool> = SecondaryMap::new();
        let mut conversions = HashMap::new();
        let roots = self.roots();
        let steps = plan.steps().iter().enumerate();
        let action = |(index, step): (usize, &Step)| {
            let binding = plan.binding(index);
            Ok(match *step {
                Step::Run { task, device } => {
                    let again = std::mem::replace(&mut ran[task], true);
                    Action::Run(Box::new(self.launch(index, task, device, again)?))
                }
                Step::Free { .. } => Action::Free(self.location(binding.inputs[0])?),
                Step::Copy { value, from, to } => Action::Copy(Transfer {
                    value,
                    link: self
                        .problem
                        .link_between(from, to)
                        .ok_or_else(|| wrong("it copies between devices that no link connects"))?,
                    from: self.location(binding.inputs[0])?,
                    to: self.location(binding.outputs[0])?,
                    conversion: conversions
                        .entry((value, from, to))
                        .or_insert_with(|| self.conversion(roots[value]?, [from, to]))
                        .clone(),
                }),
            })
        };
        steps.map(action).collect()
    }

    /// The tensor of each value that the others are views of.
    fn roots(&self) -> SecondaryMap<ValueId, Option<TensorId>> {
        let mut roots = SecondaryMap::new();
        for tensor in self.graph.tensors().keys() {
            if let Some(value) = self.value(tensor) {
                let root: &mut Option<TensorId> = &mut roots[value];
                root.get_or_insert(tensor);
            }
        }
        roots
    }

    fn conversion(&self, root: TensorId, ends: [DeviceId; 2]) -> Option<Arc<Conversion>> {
        let [from, to] = ends.map(|device| self.compiled(device).formats().of(root));
        Conversion::new(self.graph.tensor(root), from, to).map(Arc::new)
    }

    /// The place of a buffer. A buffer of no bytes may be anywhere.
    fn location(&self, buffer: BufferId) -> Result<Location, RunError> {
        let what = &self.layout.plan().buffers()[buffer];
        let offset = match what.bytes {
            0 => 0,
            _ => self.layout.offset(buffer),
        };
        if !offset.is_multiple_of(ALIGN as u64) {
            return Err(wrong(format!(
                "the layout puts a buffer at offset {offset}, which isn't a multiple of {ALIGN}"
            )));
        }
        let bytes = what.bytes;
        Ok(Location {
            device: what.device,
            span: Span { offset, bytes },
        })
    }

    fn launch(
        &self,
        step: usize,
        task: TaskId,
        device: DeviceId,
        again: bool,
    ) -> Result<Launch, RunError> {
        let (binding, what) = (self.layout.plan().binding(step), self.problem.task(task));
        let id = self.lowered.nodes[task];
        let node = self.graph.node(id);
        let inputs = self.arguments(&node.inputs, &what.inputs, &binding.inputs)?;
        let outputs = self.arguments(&node.outputs, &what.outputs, &binding.outputs)?;
        let spans = |all: &[Location]| all.iter().map(|at| at.span).collect::<Vec<_>>();
        let workspace = binding.workspace.map(|buffer| self.location(buffer));
        let workspace = workspace.transpose()?;
        let compiled = self.compiled(device);
        let scratch = scratch(compiled, id, workspace)?;
        let fresh = binding.outputs.iter();
        let fresh = fresh.filter(|buffer| !binding.inputs.contains(buffer));
        let fresh = fresh.map(|&buffer| self.location(buffer));
        Ok(Launch {
            task,
            device,
            node: id,
            again,
            job: compiled.job(id, &spans(&inputs), &spans(&outputs), scratch)?,
            outputs,
            fresh: fresh.collect::<Result<_, _>>()?,
            workspace,
        })
    }

    /// The places of tensors, each in the buffer of its value.
    fn arguments(
        &self,
        tensors: &[TensorId],
        values: &[ValueId],
        buffers: &[BufferId],
    ) -> Result<Vec<Location>, RunError> {
        let argument = |&tensor: &TensorId| {
            let value = self.value(tensor);
            let index = value.and_then(|value| values.iter().position(|&other| other == value));
            let buffer = index.and_then(|index| buffers.get(index)).ok_or_else(|| {
                let name = &self.graph.tensor(tensor).name;
                wrong(format!(
                    "the task that uses tensor {name:?} doesn't use its value"
                ))
            })?;
            self.tensor(tensor, *buffer)
        };
        tensors.iter().map(argument).collect()
    }

    /// The place of a tensor at the start of a buffer, which may be longer (storages are rounded up).
    fn tensor(&self, tensor: TensorId, buffer: BufferId) -> Result<Location, RunError> {
        let Location { device, span } = self.location(buffer)?;
        let what = self.graph.tensor(tensor);
        let span = span.prefix(what.bytes()).ok_or_else(|| {
            wrong(format!(
                "tensor {:?} has {} bytes, but its value has only {}",
                what.name,
                what.bytes(),
                span.bytes
            ))
        })?;
        Ok(Location { device, span })
    }

    fn value(&self, tensor: TensorId) -> Option<ValueId> {
        self.lowered.values.get(tensor)?.expand()
    }

    fn given(&self) -> Result<Vec<Location>, RunError> {
        let plan = self.layout.plan();
        let values = self.problem.values().keys();
        values
            .filter_map(|value| plan.given_buffer(value))
            .map(|buffer| self.location(buffer))
            .collect()
    }

    fn residences(
        &self,
        home: DeviceId,
        moves: &mut Vec<[Location; 2]>,
    ) -> Result<SecondaryMap<TensorId, Residence>, RunError> {
        let mut residences = SecondaryMap::new();
        for tensor in self.graph.tensors().keys() {
            if let Some(value) = self.value(tensor) {
                residences[tensor] = self.residence(tensor, value, home, moves)?;
            }
        }
        Ok(residences)
    }

    /// Whether nothing else lies in the place of a given value at the end of a step, so that it can be moved
    /// back there.
    fn free_at_end(&self, value: ValueId) -> bool {
        let plan = self.layout.plan();
        let Some(given) = plan.given_buffer(value) else {
            return false;
        };
        let place = |buffer: BufferId| Span {
            offset: self.layout.offset(buffer),
            bytes: plan.buffers()[buffer].bytes,
        };
        let device = plan.buffers()[given].device;
        let mut others = self
            .problem
            .values()
            .keys()
            .filter_map(|value| plan.final_buffer(value, device));
        others.all(|other| other == given || !place(other).overlaps(place(given)))
    }

    fn residence(
        &self,
        tensor: TensorId,
        value: ValueId,
        home: DeviceId,
        moves: &mut Vec<[Location; 2]>,
    ) -> Result<Residence, RunError> {
        let (plan, problem) = (self.layout.plan(), self.problem);
        if !problem.values().is_valid(value) {
            return Err(wrong("it has fewer values than the graph has storages"));
        }
        let at = |buffer: Option<BufferId>| {
            let there = buffer.map(|buffer| self.tensor(tensor, buffer));
            there.transpose()
        };
        let given = at(plan.given_buffer(value))?;
        // A value that overwrites a given value continues it; one that overwrites an activation replaces it.
        let end = match given {
            Some(_) => problem.chain(value).last().unwrap_or(value),
            None => value,
        };
        let start = given.map_or(home, |at| at.device);
        let devices = [start, home].into_iter().chain(problem.devices().keys());
        let last = at(devices
            .filter_map(|device| plan.final_buffer(end, device))
            .next())?;
        // What needn't be kept may end anywhere, and is set again before the next step.
        let kept = problem.value(end).keep != Keep::No;
        let last = last.filter(|_| kept || given.is_none() || given == last);
        let stays = given.is_some() && last.is_some();
        if let (Some(given), Some(last)) = (given, last)
            && given != last
        {
            let buffers = [
                plan.final_buffer(end, last.device),
                plan.given_buffer(value),
            ];
            let whole = buffers.map(|buffer| buffer.map(|buffer| self.location(buffer)));
            match whole {
                [Some(from), Some(to)] if self.free_at_end(value) => {
                    let step = [from?, to?];
                    if !moves.contains(&step) {
                        moves.push(step);
                    }
                }
                _ => {
                    return Err(wrong(format!(
                        "tensor {:?} is at another place at the end of a step than at its start",
                        self.graph.tensor(tensor).name
                    )));
                }
            }
            let last = Some(given);
            return Ok(Residence {
                given: last,
                last,
                stays,
            });
        }
        Ok(Residence { given, last, stays })
    }
}

pub(super) fn wrong(reason: impl Into<String>) -> RunError {
    RunError::WrongPlan {
        reason: reason.into(),
    }
}

/// The part of a run's workspace that its node needs on this processor.
fn scratch(
    compiled: &Compiled<'_>,
    node: NodeId,
    workspace: Option<Location>,
) -> Result<Span, RunError> {
    let needed = compiled.workspace(node);
    let there = workspace.map_or(Span::EMPTY, |at| at.span);
    there.prefix(needed).ok_or_else(|| {
        wrong(format!(
            "node {:?} has {} bytes of workspace, but {} needs {needed}",
            compiled.graph().node(node).name,
            there.bytes,
            compiled.processor().signature()
        ))
    })
}
