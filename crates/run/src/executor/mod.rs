//! The executor: runs the steps of a checked plan in one arena for each device, with each buffer where the
//! checked layout puts it.
//!
//! The arena of the device that computes is as large as asked, or as its layout needs if that is more. The
//! other arenas are as large as their layouts need; each is in memory or a file. Every page is touched, and
//! every file reserved, before the first step. Everything that a step needs is prepared when the executor is
//! made: during a step only kernels and copies run, in the arenas, and nothing is allocated.
//!
//! Runs are done one after the other in the plan's order. Copies run beside them, in one thread for each queue
//! of links (see `copiers`); who waits for whom follows from the plan and its addresses (see `waits`).
//!
//! Parameters, state and constants stay in place from step to step: an updated value lies in the buffer of
//! the old one. Inputs, settings and seeds may be freed during a step and must be set again before the next.
//! Outputs can be read until a tensor is set.

mod between;
mod copiers;
mod memories;
mod play;
mod schedule;
mod trace;
mod waits;

use cranelift_entity::SecondaryMap;
use scrimp_graph::{Graph, Lowered, Role, TensorId};
use scrimp_plan::{CheckedLayout, DeviceId, TaskId};
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use self::copiers::Copiers;
use self::memories::{InUse, Location, Memories};
use self::play::Play;
pub use self::play::{Observer, RunEvent};
use self::schedule::{Action, Schedule, wrong};
pub use self::trace::{CopyTrace, RunTrace, StepTrace};
use crate::compiled::Compiled;
use crate::data::{Data, Elements, arrange, arranged, gather, scatter};
use crate::error::RunError;
use crate::span::Span;

/// The most bytes that a step allocates outside the arena: the thread pool may take a block for its queue.
/// Kernels and the executor allocate nothing (a test counts).
pub const FIXED_OVERHEAD_BYTES: u64 = 16 * 1024;

/// Options of an executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutorOptions<'a> {
    /// Seed of the initial parameters. Equal seeds give equal parameters, whatever the plan.
    pub seed: u64,
    /// Size of the arena in bytes; if the layout needs more, the arena is as large as the layout.
    pub arena_bytes: u64,
    /// Fill buffers with NaN when they are taken and when they are freed, so that reading a value that isn't
    /// there shows. For tests: it costs a pass over memory.
    pub poison: bool,
    /// Devices whose memory is a file without a name in a folder.
    pub files: &'a [(DeviceId, &'a Path)],
    /// Seed of random delays before, in and after every copy. For tests: results don't depend on when copies
    /// take place.
    pub delays: Option<u64>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Executor<'a> {
    compiled: &'a Compiled<'a>,
    graph: &'a Graph,
    seed: u64,
    /// The device that computes.
    home: DeviceId,
    memories: Memories,
    in_use: InUse,
    schedule: Schedule,
    /// Declared after what they copy in, and idle between steps; none for a plan without copies.
    copiers: Option<Copiers>,
    /// A stretch of the memory that computes in which nothing lies between steps.
    idle: Mutex<Span>,
    /// Whether each given tensor has contents.
    set: SecondaryMap<TensorId, bool>,
    /// Whether the outputs of the last step are still there.
    readable: bool,
    again: SecondaryMap<TaskId, bool>,
    trace: StepTrace,
}

impl<'a> Executor<'a> {
    /// Prepares the plan, reserves the arenas and initializes parameters, state and constants.
    ///
    /// # Errors
    /// The plan is for another graph, computes on several devices, or has less workspace than this
    /// processor's kernels need (it was made for another machine or number of threads); a value isn't where
    /// the next step expects it; or there isn't enough memory.
    pub fn new(
        compiled: &'a Compiled<'a>,
        lowered: &Lowered,
        layout: &CheckedLayout,
        options: ExecutorOptions<'_>,
    ) -> Result<Executor<'a>, RunError> {
        let problem = layout.plan().problem();
        let home = problem
            .sole_device()
            .ok_or_else(|| wrong("it runs tasks on several devices"))?;
        let folder = |device| {
            let mut files = options.files.iter();
            files.find(|file| file.0 == device).map(|file| file.1)
        };
        let in_file = |device| folder(device).is_some();
        let mut schedule = Schedule::new(compiled, lowered, layout, home, &in_file)?;
        let queues = std::mem::take(&mut schedule.waits.queues);
        let copiers = match queues.is_empty() {
            true => None,
            false => Some(Copiers::new(queues, options.delays)?),
        };
        let size = |device| {
            let asked = if device == home {
                options.arena_bytes
            } else {
                0
            };
            (asked.max(layout.arena_bytes(device)), folder(device))
        };
        let sizes = problem.devices().keys().map(size);
        let processor = compiled.processor();
        let mut executor = Executor {
            compiled,
            graph: compiled.graph(),
            seed: options.seed,
            home,
            memories: Memories::new(processor, sizes, options.poison)?,
            in_use: InUse(problem.devices().keys().map(|_| 0).collect()),
            schedule,
            copiers,
            idle: Mutex::new(Span::EMPTY),
            set: SecondaryMap::new(),
            readable: false,
            again: SecondaryMap::with_capacity(problem.tasks().len()),
            trace: StepTrace::with_room_for(layout.plan()),
        };
        executor.again.resize(problem.tasks().len());
        processor.enter(|| executor.initialize())?;
        Ok(executor)
    }

    /// Fills the tensors in other memories first, one by one, while the arena is empty.
    fn initialize(&mut self) -> Result<(), RunError> {
        self.idle = Mutex::new(self.everything());
        let given = self.graph.given().filter_map(|(tensor, what)| {
            let at = self.schedule.residences[tensor].given?; // else nothing reads it
            let role = &what.role;
            let kept = matches!(
                role,
                Role::Parameter(_) | Role::State(_) | Role::Constant(_)
            );
            kept.then_some((tensor, at))
        });
        let (here, elsewhere): (Vec<_>, Vec<_>) = given.partition(|(_, at)| at.device == self.home);
        for (tensor, at) in elsewhere.into_iter().chain(here) {
            let (graph, seed) = (self.graph, self.seed);
            self.fill(tensor, at, &mut |memory| {
                memory.initialize(graph, tensor, seed)
            })?;
        }
        self.idle = Mutex::new(self.schedule.idle);
        Ok(())
    }

    /// Fills a given tensor in row order, then puts it into its format on the device.
    fn fill(
        &mut self,
        tensor: TensorId,
        at: Location,
        fill: &mut dyn FnMut(Elements<'_>) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let (what, compiled) = (self.graph.tensor(tensor), self.compiled);
        self.change::<RunError>(at, &mut |memory| {
            fill(Elements::new(what.dtype, memory))?;
            let change = compiled.formats().of(tensor).change(&what.shape);
            arrange(change, what.dtype, memory);
            Ok(())
        })?;
        self.set[tensor] = true;
        Ok(())
    }

    /// Size of the arena of the device that computes.
    pub fn arena_bytes(&self) -> u64 {
        self.memories.bytes(self.home)
    }

    /// Sets a given tensor for the next step: inputs, settings and seeds before every step, parameters and
    /// state where they should differ from their initial or updated values. After that, outputs of the last
    /// step can't be read any more. A tensor that nothing reads is ignored.
    pub fn set(&mut self, tensor: TensorId, data: Data<'_>) -> Result<(), RunError> {
        let what = self.graph.tensor(tensor);
        if what.role == Role::Activation {
            return Err(self.complain(tensor, "is computed by the graph and can't be set"));
        }
        let Some(at) = self.schedule.residences[tensor].given else {
            return Ok(());
        };
        self.readable = false;
        let graph = self.graph;
        self.fill(tensor, at, &mut |memory| memory.set(graph, tensor, data))
    }

    /// Sets a given tensor as [`Executor::set`] does, to floats that come in row order: `next` fills one
    /// piece of them after another. This takes no memory that grows with the tensor.
    ///
    /// # Errors
    /// `next` fails, after which the tensor has no contents, or the tensor holds integers.
    pub fn set_pieces<E: From<RunError>>(
        &mut self,
        tensor: TensorId,
        next: &mut dyn FnMut(&mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let what = self.graph.tensor(tensor);
        if what.role == Role::Activation {
            return Err(self
                .complain(tensor, "is computed by the graph and can't be set")
                .into());
        }
        let Some(at) = self.schedule.residences[tensor].given else {
            return Ok(());
        };
        self.readable = false;
        self.set[tensor] = false;
        let change = self.compiled.formats().of(tensor).change(&what.shape);
        self.change(at, &mut |memory| {
            let elements = Elements::new(what.dtype, memory);
            scatter(elements, what, change.as_ref(), next)
        })?;
        self.set[tensor] = true;
        Ok(())
    }

    /// Runs the plan once.
    ///
    /// # Errors
    /// A given tensor hasn't been set since it was last freed, or a kernel refuses its data (a label out of
    /// range). After an error in a kernel, everything must be set again.
    pub fn step(&mut self, observer: Option<Observer<'_>>) -> Result<&StepTrace, RunError> {
        let residences = &self.schedule.residences;
        for (tensor, _) in self.graph.given() {
            if residences[tensor].given.is_some() && !self.set[tensor] {
                return Err(self.complain(tensor, "must be set before the step"));
            }
        }
        for (tensor, _) in self.graph.given() {
            self.set[tensor] = false;
        }
        let processor = self.compiled.processor();
        processor.enter(|| self.play(observer))?;
        if !self.schedule.moves.is_empty() {
            let start = Instant::now();
            self.settle()?;
            self.trace.seconds += start.elapsed().as_secs_f64();
        }
        for (tensor, _) in self.graph.given() {
            self.set[tensor] = self.schedule.residences[tensor].stays;
        }
        self.readable = true;
        Ok(&self.trace)
    }

    fn play(&mut self, mut observer: Option<Observer<'_>>) -> Result<(), RunError> {
        self.again.values_mut().for_each(|again| *again = false);
        let (home, schedule) = (self.home, &self.schedule);
        let mut play = Play::begin(
            self.compiled,
            &self.memories,
            &mut self.in_use,
            &schedule.given,
            &mut self.trace,
            self.copiers
                .as_ref()
                .map(|copiers| (copiers, &schedule.waits)),
        );
        for (step, action) in schedule.actions.iter().enumerate() {
            play.before(step)?;
            match action {
                Action::Run(launch) => {
                    play.run(step, launch)?;
                    let again = std::mem::replace(&mut self.again[launch.task], true);
                    if let Some(observer) = &mut observer {
                        observer(&play.event(step, launch, again));
                    }
                }
                Action::Free(at) => play.free(*at, home),
                Action::Copy(transfer) => play.copy(transfer, home),
            }
            play.after(step);
        }
        play.end()
    }

    /// The elements, in row order, of a tensor that is there between steps: parameters and state (also by the
    /// tensor that an update overwrote, whose storage holds the new value), and kept outputs after a step.
    pub fn bytes(&self, tensor: TensorId) -> Result<Cow<'_, [u8]>, RunError> {
        let what = self.graph.tensor(tensor);
        let change = self.compiled.formats().of(tensor).change(&what.shape);
        let stored = self.memories.read(self.residence(tensor)?);
        if let (None, Some(stored)) = (&change, stored) {
            return Ok(Cow::Borrowed(stored));
        }
        let mut bytes = Vec::new();
        self.stored::<RunError>(tensor, &mut |stored| {
            bytes = match &change {
                None => stored.to_vec(),
                Some(change) => arranged(&change.back(), what.dtype, stored),
            };
            Ok(())
        })?;
        Ok(Cow::Owned(bytes))
    }

    /// Hands out the elements of a tensor that is there between steps, in row order, as 32-bit floats and
    /// piece by piece. This takes no memory that grows with the tensor.
    ///
    /// # Errors
    /// The tensor isn't there (see [`Executor::bytes`]) or has fewer elements, or `take` fails.
    pub fn read_pieces<E: From<RunError>>(
        &self,
        tensor: TensorId,
        elements: Range<usize>,
        take: &mut dyn FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let what = self.graph.tensor(tensor);
        if elements.end > what.elements() {
            return Err(self.complain(tensor, "has fewer elements").into());
        }
        let change = self.compiled.formats().of(tensor).change(&what.shape);
        self.stored(tensor, &mut |stored| {
            let elements = elements.clone();
            gather(stored, what.dtype, change.as_ref(), elements, take)
        })
    }

    /// Hands out the memory of a tensor that is there between steps, as the device stores it.
    fn stored<E: From<RunError>>(
        &self,
        tensor: TensorId,
        look: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.look(self.residence(tensor)?, look)? {
            true => Ok(()),
            false => Err(self
                .complain(tensor, "has no contents: nothing is computed here")
                .into()),
        }
    }

    /// A stretch of the memory of the device that computes; `None` if that memory has no contents.
    pub(crate) fn memory(&self, span: Span) -> Option<&[u8]> {
        let device = self.home;
        self.memories.read(Location { device, span })
    }

    fn residence(&self, tensor: TensorId) -> Result<Location, RunError> {
        let residence = self.schedule.residences[tensor];
        match (residence.last, residence.given) {
            (Some(last), Some(_)) if self.set[tensor] => Ok(last),
            (Some(last), None) if self.readable || self.persists(last) => Ok(last),
            (Some(_), None) => Err(self.complain(
                tensor,
                "is an output: read it right after a step, before setting anything",
            )),
            (None, Some(given)) if self.set[tensor] => Ok(given),
            (_, Some(_)) => Err(self.complain(tensor, "has no contents: set it first")),
            (None, None) => {
                Err(self.complain(tensor, "isn't kept: make it an output of the graph"))
            }
        }
    }

    /// Whether this is the place of a given tensor that stays there.
    fn persists(&self, at: Location) -> bool {
        self.graph.given().any(|(tensor, _)| {
            let residence = self.schedule.residences[tensor];
            residence.stays && residence.given == Some(at) && self.set[tensor]
        })
    }

    /// A tensor's elements as 32-bit floats; see [`Executor::bytes`].
    pub fn read(&self, tensor: TensorId) -> Result<Vec<f32>, RunError> {
        let count = self.graph.tensor(tensor).elements();
        let mut floats = Vec::with_capacity(count);
        self.read_pieces(tensor, 0..count, &mut |piece| {
            floats.extend(piece);
            Ok::<(), RunError>(())
        })?;
        Ok(floats)
    }

    fn complain(&self, tensor: TensorId, problem: &str) -> RunError {
        RunError::Tensor {
            tensor: self.graph.tensor(tensor).name.clone(),
            problem: problem.into(),
        }
    }
}
