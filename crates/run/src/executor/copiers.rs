//! Copies beside compute: one thread for each queue of links, which does the queue's copies in the plan's
//! order, each as soon as what it waits for has happened. Here devices and queues also tell each other how far
//! they are. Nobody polls: a thread that waits sleeps until it is woken.

#![allow(
    unsafe_code,
    reason = "threads copy in memories that a step lends them"
)]

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::memories::Memories;
use super::trace::CopyTrace;
use super::waits::{Clock, Errand};
use crate::error::{RunError, unless_panicked};
use crate::random::mix;
use crate::span::{PAGE, Span};

/// The longest sleep that delays copies in tests.
const LONGEST_DELAY_MICROSECONDS: u64 = 300;

/// The threads that copy. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Copiers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// How many devices compute.
    computing: usize,
    queues: Vec<Vec<Errand>>,
    delays: Option<u64>,
    state: Mutex<State>,
    for_copiers: Condvar,
    for_devices: Condvar,
}

#[derive(Debug)]
struct State {
    /// Steps begun so far.
    round: u64,
    /// What this step lent; null between steps.
    lent: Lent,
    start: Instant,
    /// How far each device that computes is in the plan, then how many copies each queue has done.
    counters: Vec<usize>,
    /// When each copy began and how long it took, in seconds.
    times: Vec<Vec<(f64, f64)>>,
    /// Threads that still work on this step.
    working: usize,
    /// Whether the step ends early.
    halted: bool,
    error: Option<RunError>,
    quit: bool,
}

#[derive(Clone, Copy, Debug)]
struct Lent(*const Memories);

// SAFETY: the memories may be shared with other threads, and whoever lends them waits until no thread uses
// them any more.
unsafe impl Send for Lent {}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the step early for all threads, perhaps because of an error.
    fn halt(&self, state: &mut State, error: Option<RunError>) {
        if state.error.is_none() {
            state.error = error;
        }
        state.halted = true;
        self.for_copiers.notify_all();
        self.for_devices.notify_all();
    }

    /// Goes through a queue once per step.
    fn work(&self, queue: usize) {
        let mut round = 0;
        loop {
            let state = self
                .for_copiers
                .wait_while(self.lock(), |state| state.round == round && !state.quit);
            let state = state.unwrap_or_else(PoisonError::into_inner);
            if state.quit {
                return;
            }
            round = state.round;
            let (lent, start) = (state.lent, state.start);
            drop(state);
            let copy_all = || self.copy_all(queue, round, lent, start);
            let done = unless_panicked("a copy", copy_all);
            let mut state = self.lock();
            if let Err(error) = done {
                self.halt(&mut state, Some(error));
            }
            state.working -= 1;
            self.for_devices.notify_all();
        }
    }

    fn copy_all(
        &self,
        queue: usize,
        round: u64,
        lent: Lent,
        start: Instant,
    ) -> Result<(), RunError> {
        for (index, errand) in self.queues[queue].iter().enumerate() {
            let state = self.for_copiers.wait_while(self.lock(), |state| {
                !state.halted && !errand.after.reached(&state.counters)
            });
            let state = state.unwrap_or_else(PoisonError::into_inner);
            if state.halted {
                return Ok(());
            }
            drop(state);
            let began = start.elapsed();
            let seed = self
                .delays
                .map(|seed| mix(seed ^ round << 40) ^ (errand.step as u64) << 8);
            // SAFETY: the step that lent the memories waits for this thread. Nothing else writes the source
            // or uses the destination now, as `Waits` and the checked layout make sure.
            unsafe { copy(&*lent.0, errand, seed)? };
            let took = start.elapsed() - began;
            let mut state = self.lock();
            state.times[queue][index] = (began.as_secs_f64(), took.as_secs_f64());
            state.counters[self.computing + queue] = index + 1;
            self.for_copiers.notify_all();
            self.for_devices.notify_all();
        }
        Ok(())
    }
}

/// Does one copy; with a seed, in two parts, with random delays before, between and after them.
///
/// # Safety
/// Nothing else writes the source or uses the destination.
unsafe fn copy(memories: &Memories, errand: &Errand, delay: Option<u64>) -> Result<(), RunError> {
    let (from, to) = (errand.transfer.from, errand.transfer.to);
    let (source, destination) = (memories.of(from.device), memories.of(to.device));
    let conversion = errand.transfer.conversion.as_deref();
    // SAFETY: the caller's promise.
    let copy = |from, to| unsafe { destination.copy_from(source, from, to, conversion) };
    let Some(seed) = delay else {
        return copy(from.span, to.span);
    };
    let sleep = |which: u64| {
        let random = mix(seed ^ which) % (LONGEST_DELAY_MICROSECONDS + 1);
        std::thread::sleep(Duration::from_micros(random));
    };
    // What changes its format is copied at once.
    let half = match conversion {
        None => to.span.bytes / 2 / PAGE * PAGE,
        Some(_) => to.span.bytes,
    };
    let parts = |span: Span| {
        let (first, offset) = (span.prefix(half).unwrap_or(span), span.offset + half);
        let bytes = span.bytes - half;
        [first, Span { offset, bytes }]
    };
    sleep(0);
    for (k, (from, to)) in parts(from.span).into_iter().zip(parts(to.span)).enumerate() {
        if k == 0 || conversion.is_none() {
            copy(from, to)?;
        }
        sleep(k as u64 + 1);
    }
    Ok(())
}

impl Copiers {
    /// Starts a thread for each queue. `computing` is the number of devices that compute, `delays` the seed of
    /// random delays.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn new(
        computing: usize,
        queues: Vec<Vec<Errand>>,
        delays: Option<u64>,
    ) -> Result<Copiers, RunError> {
        let state = State {
            round: 0,
            lent: Lent(std::ptr::null()),
            start: Instant::now(),
            counters: vec![0; computing + queues.len()],
            times: queues
                .iter()
                .map(|queue| vec![(0.0, 0.0); queue.len()])
                .collect(),
            working: 0,
            halted: false,
            error: None,
            quit: false,
        };
        let count = queues.len();
        let mut copiers = Copiers {
            shared: Arc::new(Shared {
                computing,
                queues,
                delays,
                state: Mutex::new(state),
                for_copiers: Condvar::new(),
                for_devices: Condvar::new(),
            }),
            threads: Vec::with_capacity(count),
        };
        for queue in 0..count {
            let shared = copiers.shared.clone();
            let thread = std::thread::Builder::new().name(format!("scrimp-copy-{queue}"));
            let thread = thread.spawn(move || shared.work(queue));
            copiers
                .threads
                .push(thread.map_err(|error| RunError::Threads {
                    threads: count,
                    reason: error.to_string(),
                })?);
        }
        Ok(copiers)
    }

    /// Begins a step in these memories, which are lent until the result is dropped.
    pub fn begin<'a>(&'a self, memories: &'a Memories, start: Instant) -> Copying<'a> {
        let mut state = self.shared.lock();
        state.round += 1;
        state.lent = Lent(memories);
        state.start = start;
        state.counters.fill(0);
        state.working = self.threads.len();
        state.halted = false;
        state.error = None;
        self.shared.for_copiers.notify_all();
        Copying {
            shared: &self.shared,
        }
    }
}

impl Drop for Copiers {
    fn drop(&mut self) {
        self.shared.lock().quit = true;
        self.shared.for_copiers.notify_all();
        for thread in self.threads.drain(..) {
            // A copier doesn't panic, and nothing is lost if it did.
            let _ = thread.join();
        }
    }
}

/// The copies of the step that is running. Dropping this ends the step early if it hasn't ended.
#[derive(Debug)]
pub(super) struct Copying<'a> {
    shared: &'a Shared,
}

impl Copying<'_> {
    /// Tells that a device has done its part of this many steps of the plan.
    pub fn advance(&self, device: usize, steps: usize) {
        self.shared.lock().counters[device] = steps;
        self.shared.for_copiers.notify_all();
    }

    /// Tells that a device failed, which ends the step for all.
    pub fn fail(&self, error: RunError) {
        let mut state = self.shared.lock();
        self.shared.halt(&mut state, Some(error));
    }

    /// Waits until copies are as far as the clock says.
    ///
    /// # Errors
    /// A copy or another device failed.
    pub fn wait(&self, clock: &Clock) -> Result<(), RunError> {
        let state = self
            .shared
            .for_devices
            .wait_while(self.shared.lock(), |state| {
                !state.halted && !clock.reached(&state.counters)
            });
        let state = state.unwrap_or_else(PoisonError::into_inner);
        state.error.clone().map_or(Ok(()), Err)
    }

    /// Waits until all copies are done, and notes when each took place.
    ///
    /// # Errors
    /// A copy or a device failed.
    pub fn end(self, trace: &mut Vec<CopyTrace>) -> Result<(), RunError> {
        let state = self.idle();
        for (errands, times) in self.shared.queues.iter().zip(&state.times) {
            for (errand, &(start, seconds)) in errands.iter().zip(times) {
                trace.push(CopyTrace {
                    step: errand.step,
                    value: errand.transfer.value,
                    link: errand.transfer.link,
                    start,
                    seconds,
                });
            }
        }
        trace.sort_unstable_by_key(|copy| copy.step);
        state.error.clone().map_or(Ok(()), Err)
    }

    fn idle(&self) -> MutexGuard<'_, State> {
        let (device, state) = (&self.shared.for_devices, self.shared.lock());
        let state = device.wait_while(state, |state| state.working > 0);
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        self.shared.halt(&mut state, None);
        drop(state);
        self.idle().lent = Lent(std::ptr::null());
    }
}
