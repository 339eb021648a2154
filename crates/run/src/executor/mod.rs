//! The executor: runs the steps of a checked plan in one arena, each buffer where the checked layout
//! has it.
//!
//! The arena is as large as asked (or as the layout needs, if that is more) and every page of it is touched before the first step. Everything a step needs is
//! prepared when the executor is made: during a step only the kernels run, in the arena, and nothing
//! is allocated.
//!
//! Parameters, state and constants stay where they are from step to step: an updated value lies in
//! the buffer of the old one. Inputs, settings and seeds may be freed during a step and must be set
//! again before the next; outputs can be read until something is set.

mod prepare;

use bytemuck::Pod;
use cranelift_entity::SecondaryMap;
use scrimp_graph::{DType, Graph, Lowered, NodeId, Role, TensorId};
use scrimp_plan::{CheckedLayout, TaskId};
use std::borrow::Cow;
use std::time::Instant;

use crate::arena::Arena;
use crate::compiled::Compiled;
use crate::data::{Data, Memory, arrange, arranged};
use crate::error::RunError;
use crate::job::Job;

/// Most bytes that a step allocates outside the arena: the thread pool may take a block of its queue.
/// Kernels and the executor allocate nothing (a test counts).
pub const FIXED_OVERHEAD_BYTES: u64 = 16 * 1024;

/// How to execute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutorOptions {
    /// Seed of the initial parameters. Equal seeds give equal parameters, whatever the plan.
    pub seed: u64,
    /// Size of the arena; as much as the layout needs, if that is more.
    pub arena_bytes: u64,
    /// Fill buffers with NaN when they are taken and when they are freed, so that reading what isn't
    /// there shows. For tests: it costs a pass over memory.
    pub poison: bool,
}

/// What one step took.
#[derive(Clone, Debug, Default)]
pub struct StepTrace {
    /// Wall-clock time of the whole step.
    pub seconds: f64,
    /// Wall-clock time of each run, in the plan's order.
    pub runs: Vec<RunTrace>,
    /// The most bytes in use at a time: every storage between the run (or the start) that fills it
    /// and the step that frees it, and the workspace that a kernel was handed.
    pub measured_peak_bytes: u64,
}

/// What one run took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunTrace {
    /// Index of the plan's step.
    pub step: usize,
    /// What ran.
    pub task: TaskId,
    /// Wall-clock time from the step's start.
    pub start: f64,
    /// Wall-clock time.
    pub seconds: f64,
    /// Bytes in use while it ran.
    pub bytes: u64,
}

/// A run that has just ended, for an observer.
pub struct RunEvent<'a> {
    /// Index of the plan's step.
    pub step: usize,
    /// What ran.
    pub task: TaskId,
    /// The node it ran.
    pub node: NodeId,
    /// Whether the task had run before in this step.
    pub again: bool,
    graph: &'a Graph,
    prepared: &'a Prepared,
    arena: &'a Arena,
}

impl RunEvent<'_> {
    /// The memory of the node's outputs, without rounding, in the device's format for each.
    pub fn outputs(&self) -> impl Iterator<Item = (TensorId, &[u8])> {
        let tensors = self.graph.node(self.node).outputs.iter();
        tensors
            .zip(&self.prepared.outputs)
            .map(|(&tensor, &offset)| {
                (
                    tensor,
                    self.arena
                        .bytes_at(offset, self.graph.tensor(tensor).bytes()),
                )
            })
    }
}

/// Called after each run.
pub type Observer<'a> = &'a mut (dyn FnMut(&RunEvent<'_>) + Send);

/// A stretch of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    offset: u64,
    bytes: u64,
}

/// A run, ready to go.
#[derive(Debug)]
struct Prepared {
    task: TaskId,
    node: NodeId,
    job: Job,
    /// Offsets of the outputs.
    outputs: Vec<u64>,
    /// Buffers that this run takes.
    fresh: Vec<Range>,
    workspace: Range,
}

#[derive(Debug)]
enum Action {
    Run(Box<Prepared>),
    Free(Range),
}

/// Where a tensor is between steps.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Offset at the start of a step, if it is given.
    given: Option<u64>,
    /// Offset at the end of a step, if it is kept or what overwrote it is.
    last: Option<u64>,
    /// Whether it is given and still there at the end, so that it needn't be set again.
    stays: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Executor<'a> {
    compiled: &'a Compiled<'a>,
    graph: &'a Graph,
    options: ExecutorOptions,
    arena: Arena,
    actions: Vec<Action>,
    given: Vec<Range>,
    places: SecondaryMap<TensorId, Place>,
    /// Given tensors that have contents.
    set: SecondaryMap<TensorId, bool>,
    /// Whether outputs of the last step are still there.
    readable: bool,
    again: SecondaryMap<TaskId, bool>,
    trace: StepTrace,
}

impl<'a> Executor<'a> {
    /// Prepares the plan, reserves the arena and initializes parameters, state and constants.
    ///
    /// # Errors
    /// A plan for another graph, for several devices, or with less workspace than this device's
    /// kernels need (it was made for another machine or number of threads); a value that isn't where
    /// the next step expects it; memory that isn't there.
    pub fn new(
        compiled: &'a Compiled<'a>,
        lowered: &Lowered,
        layout: &CheckedLayout,
        options: ExecutorOptions,
    ) -> Result<Executor<'a>, RunError> {
        let problem = layout.plan().problem();
        let device = problem
            .sole_device()
            .ok_or_else(|| wrong("it runs tasks on several devices"))?;
        let bytes = options.arena_bytes.max(layout.arena_bytes(device));
        let arena = Arena::new(bytes)?;
        let graph = compiled.graph();
        let actions = prepare::actions(compiled, lowered, layout, &arena)?;
        let places = prepare::places(graph, lowered, layout, device)?;
        let runs = actions
            .iter()
            .filter(|action| matches!(action, Action::Run(_)))
            .count();
        let mut executor = Executor {
            compiled,
            graph,
            options,
            arena,
            actions,
            given: prepare::given(layout, device),
            places,
            set: SecondaryMap::new(),
            readable: false,
            again: SecondaryMap::with_capacity(problem.tasks().len()),
            trace: StepTrace {
                runs: Vec::with_capacity(runs),
                ..StepTrace::default()
            },
        };
        executor.again.resize(problem.tasks().len());
        if options.poison {
            let all = executor.arena.bytes();
            executor.arena.bytes_at_mut(0, all).fill(POISON);
        }
        compiled.processor().enter(|| executor.initialize())?;
        Ok(executor)
    }

    fn initialize(&mut self) -> Result<(), RunError> {
        for (tensor, what) in self.graph.given() {
            if !matches!(
                what.role,
                Role::Parameter(_) | Role::State(_) | Role::Constant(_)
            ) {
                continue;
            }
            let Some(offset) = self.places[tensor].given else {
                continue; // nothing reads it
            };
            let memory = self.arena.bytes_at_mut(offset, what.bytes());
            Memory::new(what.dtype, memory).initialize(self.graph, tensor, self.options.seed)?;
            self.arrange(tensor, offset);
            self.set[tensor] = true;
        }
        Ok(())
    }

    /// Size of the arena.
    pub fn arena_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    /// Sets a given tensor for the next step: inputs, settings and seeds before every step, parameters
    /// and state where they should differ from their initial or updated values. What the last step
    /// put out can't be read any more. A tensor that nothing reads is ignored.
    pub fn set(&mut self, tensor: TensorId, data: Data<'_>) -> Result<(), RunError> {
        let what = self.graph.tensor(tensor);
        if what.role == Role::Activation {
            return Err(self.complain(tensor, "is computed by the graph and can't be set"));
        }
        let Some(offset) = self.places[tensor].given else {
            return Ok(());
        };
        self.readable = false;
        let memory = self.arena.bytes_at_mut(offset, what.bytes());
        Memory::new(what.dtype, memory).set(self.graph, tensor, data)?;
        self.arrange(tensor, offset);
        self.set[tensor] = true;
        Ok(())
    }

    /// Puts a tensor that was written in rows into its format on the device.
    fn arrange(&mut self, tensor: TensorId, offset: u64) {
        let what = self.graph.tensor(tensor);
        let memory = self.arena.bytes_at_mut(offset, what.bytes());
        let change = self.compiled.formats().of(tensor).change(&what.shape);
        arrange(change, what.dtype, memory);
    }

    /// Runs the plan once.
    ///
    /// # Errors
    /// A given tensor that hasn't been set since it was last freed; a kernel that refuses its data
    /// (a label out of range). After an error in a kernel, everything must be set again.
    pub fn step(&mut self, observer: Option<Observer<'_>>) -> Result<&StepTrace, RunError> {
        for (tensor, _) in self.graph.given() {
            if self.places[tensor].given.is_some() && !self.set[tensor] {
                return Err(self.complain(tensor, "must be set before the step"));
            }
        }
        for (tensor, _) in self.graph.given() {
            self.set[tensor] = false;
        }
        let processor = self.compiled.processor();
        processor.enter(|| self.run(observer))?;
        for (tensor, _) in self.graph.given() {
            self.set[tensor] = self.places[tensor].stays;
        }
        self.readable = true;
        Ok(&self.trace)
    }

    fn run(&mut self, mut observer: Option<Observer<'_>>) -> Result<(), RunError> {
        let processor = self.compiled.processor();
        let mut in_use: u64 = self.given.iter().map(|range| range.bytes).sum();
        let mut peak = in_use;
        self.again.values_mut().for_each(|again| *again = false);
        self.trace.runs.clear();
        let start = Instant::now();
        for (step, action) in self.actions.iter().enumerate() {
            match action {
                Action::Run(prepared) => {
                    in_use += prepared.fresh.iter().map(|range| range.bytes).sum::<u64>();
                    let bytes = in_use + prepared.job.workspace_bytes();
                    peak = peak.max(bytes);
                    if self.options.poison {
                        for range in prepared.fresh.iter().chain([&prepared.workspace]) {
                            self.arena
                                .bytes_at_mut(range.offset, range.bytes)
                                .fill(POISON);
                        }
                    }
                    let node = self.graph.node(prepared.node);
                    let from = start.elapsed().as_secs_f64();
                    processor
                        .run(&prepared.job, &mut self.arena)
                        .map_err(|error| RunError::in_node(&node.name, error))?;
                    let seconds = start.elapsed().as_secs_f64() - from;
                    let task = prepared.task;
                    self.trace.runs.push(RunTrace {
                        step,
                        task,
                        start: from,
                        seconds,
                        bytes,
                    });
                    if let Some(observer) = &mut observer {
                        observer(&RunEvent {
                            step,
                            task,
                            node: prepared.node,
                            again: self.again[task],
                            graph: self.graph,
                            prepared,
                            arena: &self.arena,
                        });
                    }
                    self.again[task] = true;
                }
                Action::Free(range) => {
                    in_use -= range.bytes;
                    if self.options.poison {
                        self.arena
                            .bytes_at_mut(range.offset, range.bytes)
                            .fill(POISON);
                    }
                }
            }
        }
        self.trace.seconds = start.elapsed().as_secs_f64();
        self.trace.measured_peak_bytes = peak;
        Ok(())
    }

    /// The elements, in rows, of a tensor that is there between steps: parameters and state (also the
    /// tensor that an update overwrote: its storage holds the new value), and kept outputs after a step.
    pub fn bytes(&self, tensor: TensorId) -> Result<Cow<'_, [u8]>, RunError> {
        let what = self.graph.tensor(tensor);
        let place = self.places[tensor];
        let offset = match (place.last, place.given) {
            (Some(last), Some(_)) if self.set[tensor] => last,
            (Some(last), None) if self.readable || self.persists(last) => last,
            (Some(_), None) => {
                return Err(self.complain(
                    tensor,
                    "is an output: read it right after a step, before setting anything",
                ));
            }
            (None, Some(given)) if self.set[tensor] => given,
            (_, Some(_)) => return Err(self.complain(tensor, "has no contents: set it first")),
            (None, None) => {
                return Err(self.complain(tensor, "isn't kept: make it an output of the graph"));
            }
        };
        let stored = self.arena.bytes_at(offset, what.bytes());
        Ok(
            match self.compiled.formats().of(tensor).change(&what.shape) {
                None => Cow::Borrowed(stored),
                Some(change) => Cow::Owned(arranged(&change.back(), what.dtype, stored)),
            },
        )
    }

    /// Whether this is the place of a given tensor that stays.
    fn persists(&self, offset: u64) -> bool {
        self.graph.given().any(|(tensor, _)| {
            let place = self.places[tensor];
            place.stays && place.given == Some(offset) && self.set[tensor]
        })
    }

    /// A tensor's elements as 32-bit floats; see [`Executor::bytes`].
    pub fn read(&self, tensor: TensorId) -> Result<Vec<f32>, RunError> {
        let bytes = self.bytes(tensor)?;
        Ok(match self.graph.tensor(tensor).dtype {
            DType::F32 => elements::<f32>(&bytes).collect(),
            DType::F64 => elements::<f64>(&bytes).map(|x| x as f32).collect(),
            DType::I64 => elements::<i64>(&bytes).map(|x| x as f32).collect(),
        })
    }

    fn complain(&self, tensor: TensorId, problem: &str) -> RunError {
        RunError::Tensor {
            tensor: self.graph.tensor(tensor).name.clone(),
            problem: problem.into(),
        }
    }
}

/// Elements of a tensor, whose bytes needn't be aligned.
fn elements<T: Pod>(bytes: &[u8]) -> impl Iterator<Item = T> {
    let each = bytes.chunks_exact(size_of::<T>());
    each.map(bytemuck::pod_read_unaligned)
}

/// All bits set: NaN in both float types, an index out of every range.
const POISON: u8 = 0xff;

fn wrong(reason: impl Into<String>) -> RunError {
    RunError::WrongPlan {
        reason: reason.into(),
    }
}
