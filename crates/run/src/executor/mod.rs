//! The executor: runs the steps of a checked plan in one arena for each device, with each buffer where the
//! checked layout puts it.
//!
//! The arena of the first device that computes is as large as asked, or as its layout needs if that is more. The
//! other arenas are as large as their layouts need; each is in memory or a file. Every page is touched, and
//! every file reserved, before the first step. Everything that a step needs is prepared when the executor is
//! made: during a step only kernels and copies run, in the arenas, and nothing is allocated.
//!
//! Each device that computes does its part of the plan in order: the first on the caller's thread, each other
//! one on a thread of its own (see `play`). Copies run beside them, in one thread for each queue of links (see
//! `copiers`). These threads stay until the executor ends (see `crew`). Who waits for whom follows from the plan
//! and its addresses (see `waits`). A copy between devices that store a value differently changes its format (see
//! `conversion`).
//!
//! Parameters, state and constants stay in place from step to step: an updated value lies in the buffer of
//! the old one. Inputs, settings and seeds may be freed during a step and must be set again before the next.
//! Outputs can be read until a tensor is set.

mod ahead;
mod between;
mod copiers;
mod crew;
mod memories;
mod play;
mod progress;
mod schedule;
mod trace;
mod waits;

use cranelift_entity::{PrimaryMap, SecondaryMap};
use scrimp_graph::{Graph, Lowered, Role, TensorId};
use scrimp_plan::{CheckedLayout, DeviceId};
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use self::copiers::Queue;
use self::crew::Crew;
use self::memories::{Location, Memories};
pub use self::play::{Observer, Output, RunEvent};
use self::play::{Player, Stage};
use self::progress::Progress;
use self::schedule::{Schedule, wrong};
use self::trace::Record;
pub use self::trace::{CopyTrace, RunTrace, StepTrace};
use crate::compiled::Compiled;
use crate::data::{Data, Elements, arrange, arranged, gather, scatter};
use crate::error::RunError;
use crate::format::Change;
use crate::memory::Memory;
use crate::random::mix;
use crate::span::Span;

/// The most bytes that a step of one device allocates outside the arena: the thread pool may take a block for
/// its queue. Kernels and the executor allocate nothing (a test counts). Each further device takes a thread.
pub const FIXED_OVERHEAD_BYTES: u64 = 16 * 1024;

/// Options of an executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutorOptions<'a> {
    /// Seed of the initial parameters. Equal seeds give equal parameters, whatever the plan.
    pub seed: u64,
    /// Size in bytes of the arena of the first device that computes; if the layout needs more, the arena is as
    /// large as the layout.
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
    /// One for each device that computes, in their order.
    compiled: &'a [Compiled<'a>],
    graph: &'a Graph,
    seed: u64,
    memories: Memories,
    schedule: Schedule,
    /// The devices that compute, in their order.
    computing: Vec<DeviceId>,
    /// One for each of them; each thread works with its own.
    players: Vec<Mutex<Player>>,
    queues: Vec<Queue>,
    /// A thread for each device that computes but the first, then one for each queue.
    crew: Crew,
    progress: Progress,
    /// The devices that don't compute.
    others: Vec<Record>,
    delays: Option<u64>,
    /// Steps begun so far.
    steps: u64,
    /// A stretch of the first memory that computes in which nothing lies between steps.
    idle: Mutex<Span>,
    /// Whether each given tensor has contents.
    set: SecondaryMap<TensorId, bool>,
    /// Whether the outputs of the last step are still there.
    readable: bool,
    trace: StepTrace,
}

impl<'a> Executor<'a> {
    /// Prepares the plan, reserves the arenas and initializes parameters, state and constants. `compiled` has the
    /// graph on each device that computes, in the order of the problem's devices.
    ///
    /// # Errors
    /// The plan is for another graph or number of devices, or has less workspace than the kernels need (it was
    /// made for another machine or number of threads); a value isn't where the next step expects it; or there
    /// isn't enough memory.
    pub fn new(
        compiled: &'a [Compiled<'a>],
        lowered: &Lowered,
        layout: &CheckedLayout,
        options: ExecutorOptions<'_>,
    ) -> Result<Executor<'a>, RunError> {
        let problem = layout.plan().problem();
        let devices = problem.devices().iter();
        let (computing, others): (Vec<_>, Vec<_>) = devices.partition(|(_, what)| what.computes);
        let computing: Vec<DeviceId> = computing.into_iter().map(|(device, _)| device).collect();
        let (Some(first), true) = (compiled.first(), compiled.len() == computing.len()) else {
            return Err(wrong(format!(
                "its tasks run on {} devices instead of {}",
                computing.len(),
                compiled.len()
            )));
        };
        let folder = |device| {
            let mut files = options.files.iter();
            files.find(|file| file.0 == device).map(|file| file.1)
        };
        let in_file = |device| folder(device).is_some();
        let mut schedule = Schedule::new(compiled, lowered, layout, &computing, &in_file)?;
        let queues = std::mem::take(&mut schedule.waits.queues);
        let name = |device: &DeviceId| problem.devices()[*device].name.as_str();
        let devices = computing.iter().skip(1);
        let devices = devices.map(|device| format!("scrimp-{}", name(device)));
        let copiers = (0..queues.len()).map(|queue| format!("scrimp-copy-{queue}"));
        let crew = Crew::new(devices.chain(copiers).collect())?;
        let size = |device| {
            let asked = match device == computing[0] {
                true => options.arena_bytes,
                false => 0,
            };
            asked.max(layout.arena_bytes(device))
        };
        let player = |(number, device): (usize, &DeviceId)| {
            Mutex::new(Player::new(
                number,
                name(device),
                Record::new(*device, &schedule),
            ))
        };
        let others = others.iter();
        let processor = first.processor();
        let mut memories = PrimaryMap::new();
        for device in problem.devices().keys() {
            let number = computing.iter().position(|&other| other == device);
            memories.push(match number {
                Some(number) => Memory::of(compiled[number].processor(), size(device))?,
                None => Memory::beside(processor, size(device), folder(device))?,
            });
        }
        for compiled in compiled {
            for memory in memories.values_mut() {
                Memory::lock_for(memory, compiled.processor())?;
            }
        }
        let memories = Memories::new(memories, options.poison)?;
        let queues = queues.into_iter().enumerate();
        let queue = |(queue, errands)| Queue::new(computing.len() + queue, errands, &memories);
        let queues: Vec<Queue> = queues.map(queue).collect::<Result<_, _>>()?;
        let mut executor = Executor {
            compiled,
            graph: first.graph(),
            seed: options.seed,
            memories,
            players: computing.iter().enumerate().map(player).collect(),
            others: others
                .map(|&(device, _)| Record::new(device, &schedule))
                .collect(),
            schedule,
            progress: Progress::new(computing.len() + queues.len()),
            computing,
            queues,
            crew,
            delays: options.delays,
            steps: 0,
            idle: Mutex::new(Span::EMPTY),
            set: SecondaryMap::new(),
            readable: false,
            trace: StepTrace::with_room_for(layout.plan()),
        };
        processor.enter(|| executor.initialize())?;
        Ok(executor)
    }

    /// The first device that computes.
    fn home(&self) -> DeviceId {
        self.computing[0]
    }

    /// How a tensor differs from rows where it lies; `None` if it doesn't.
    fn change_at(&self, tensor: TensorId, at: Location) -> Option<Change> {
        let mut computing = self.computing.iter();
        let number = computing.position(|&device| device == at.device);
        let format = self.compiled[number.unwrap_or(0)].formats().of(tensor);
        format.change(&self.graph.tensor(tensor).shape)
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
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            given.partition(|(_, at)| at.device == self.home());
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
        let (what, change) = (self.graph.tensor(tensor), self.change_at(tensor, at));
        self.change::<RunError>(at, &mut |memory| {
            fill(Elements::new(what.dtype, memory))?;
            arrange(change.as_ref(), what.dtype, memory);
            Ok(())
        })?;
        self.set[tensor] = true;
        Ok(())
    }

    /// Size of the arenas of all devices that compute.
    pub fn arena_bytes(&self) -> u64 {
        let devices = self.computing.iter();
        devices.map(|&device| self.memories.bytes(device)).sum()
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
        let change = self.change_at(tensor, at);
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
        self.play(observer)?;
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

    fn play(&mut self, observer: Option<Observer<'_>>) -> Result<(), RunError> {
        self.trace.clear();
        self.progress.begin();
        self.steps += 1;
        let observer = observer.map(Mutex::new);
        let stage = Stage {
            compiled: self.compiled,
            memories: &self.memories,
            schedule: &self.schedule,
            start: Instant::now(),
            progress: &self.progress,
            delays: self.delays.map(|seed| mix(seed ^ self.steps << 40)),
            observer: observer.as_ref(),
        };
        self.memories.begin_step(&|| stage.now())?;
        let play = |number: usize| match self.players.get(number) {
            Some(player) => player
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .play(&stage),
            None => self.queues[number - self.players.len()].play(&stage),
        };
        self.crew.run(&|thread| play(thread + 1), || play(0));
        self.trace.seconds = stage.now();
        self.progress.ended()?;
        for queue in &mut self.queues {
            queue.trace(&mut self.trace.copies);
        }
        for record in &mut self.others {
            record.count(&self.schedule);
        }
        let steps = self.schedule.actions.len();
        for player in &mut self.players {
            let player = player.get_mut().unwrap_or_else(PoisonError::into_inner);
            self.trace.add(&player.record, steps);
        }
        for record in &self.others {
            self.trace.add(record, steps);
        }
        self.trace.sort();
        Ok(())
    }

    /// The elements, in row order, of a tensor that is there between steps: parameters and state (also by the
    /// tensor that an update overwrote, whose storage holds the new value), and kept outputs after a step.
    pub fn bytes(&self, tensor: TensorId) -> Result<Cow<'_, [u8]>, RunError> {
        let (what, at) = (self.graph.tensor(tensor), self.residence(tensor)?);
        let change = self.change_at(tensor, at);
        let stored = self.memories.read(at);
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
        let change = self.change_at(tensor, self.residence(tensor)?);
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

    /// A stretch of the memory of the first device that computes; `None` if that memory has no contents.
    pub(crate) fn memory(&self, span: Span) -> Option<&[u8]> {
        let device = self.home();
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
