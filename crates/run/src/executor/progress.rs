//! How far devices and queues of links are in a step. Nobody polls: a thread that waits sleeps until it is woken.
//!
//! What is told here as done may be a command that a driver was given; its events come with it, and who waits for it
//! waits for them, too.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use scrimp_gpu::Event;

use super::waits::Clock;
use crate::error::RunError;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: Mutex<State>,
    for_copiers: Condvar,
    for_devices: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How far each device that computes is in the plan, then how many copies each queue has done.
    counters: Vec<usize>,
    /// The events of counts that drivers have yet to reach.
    events: BTreeMap<(usize, usize), Vec<Event>>,
    /// Why the step ends early.
    error: Option<RunError>,
}

impl Progress {
    /// For this many devices and queues together.
    pub fn new(counters: usize) -> Progress {
        let state = State {
            counters: vec![0; counters],
            ..State::default()
        };
        Progress {
            state: Mutex::new(state),
            ..Progress::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step begins.
    pub fn begin(&self) {
        let mut state = self.lock();
        state.counters.fill(0);
        state.events.clear();
        state.error = None;
    }

    /// Tells that a device has done its part of this many steps of the plan, as soon as these events have happened.
    /// Only copies wait for devices.
    pub fn stepped(&self, device: usize, steps: usize, events: Vec<Event>) {
        self.reached(device, steps, events);
        self.for_copiers.notify_all();
    }

    /// Tells that a queue has done this many copies, as soon as these events have happened.
    pub fn copied(&self, counter: usize, copies: usize, events: Vec<Event>) {
        self.reached(counter, copies, events);
        self.for_copiers.notify_all();
        self.for_devices.notify_all();
    }

    fn reached(&self, counter: usize, count: usize, events: Vec<Event>) {
        let mut state = self.lock();
        state.counters[counter] = count;
        if !events.is_empty() {
            state.events.insert((counter, count), events);
        }
    }

    /// Ends the step for all. The first error counts.
    pub fn fail(&self, error: RunError) {
        self.lock().error.get_or_insert(error);
        self.for_copiers.notify_all();
        self.for_devices.notify_all();
    }

    /// Keeps a device until others are as far as the clock says, but for these events.
    ///
    /// # Errors
    /// The step ends early.
    pub fn let_device_wait(&self, clock: &Clock) -> Result<Vec<Event>, RunError> {
        self.wait(&self.for_devices, clock)
    }

    /// Keeps a queue until others are as far as the clock says, but for these events.
    ///
    /// # Errors
    /// The step ends early.
    pub fn let_copier_wait(&self, clock: &Clock) -> Result<Vec<Event>, RunError> {
        self.wait(&self.for_copiers, clock)
    }

    fn wait(&self, turn: &Condvar, clock: &Clock) -> Result<Vec<Event>, RunError> {
        let early = |state: &mut State| state.error.is_none() && !clock.reached(&state.counters);
        let state = turn.wait_while(self.lock(), early);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        match &state.error {
            Some(error) => Err(error.clone()),
            None => Ok(clock
                .marks()
                .filter_map(|mark| state.events.get(&mark))
                .flatten()
                .cloned()
                .collect()),
        }
    }

    /// How the step ended.
    ///
    /// # Errors
    /// It ended early.
    pub fn ended(&self) -> Result<(), RunError> {
        self.lock().error.take().map_or(Ok(()), Err)
    }
}
