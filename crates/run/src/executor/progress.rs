//! How far devices and queues of links are in a step. Nobody polls: a thread that waits sleeps until it is woken.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

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
    /// Why the step ends early.
    error: Option<RunError>,
}

impl Progress {
    /// For this many devices and queues together.
    pub fn new(counters: usize) -> Progress {
        let state = State {
            counters: vec![0; counters],
            error: None,
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
        state.error = None;
    }

    /// Tells that a device has done its part of this many steps of the plan. Only copies wait for devices.
    pub fn stepped(&self, device: usize, steps: usize) {
        self.lock().counters[device] = steps;
        self.for_copiers.notify_all();
    }

    /// Tells that a queue has done this many copies.
    pub fn copied(&self, counter: usize, copies: usize) {
        self.lock().counters[counter] = copies;
        self.for_copiers.notify_all();
        self.for_devices.notify_all();
    }

    /// Ends the step for all. The first error counts.
    pub fn fail(&self, error: RunError) {
        self.lock().error.get_or_insert(error);
        self.for_copiers.notify_all();
        self.for_devices.notify_all();
    }

    /// Keeps a device until others are as far as the clock says.
    ///
    /// # Errors
    /// The step ends early.
    pub fn let_device_wait(&self, clock: &Clock) -> Result<(), RunError> {
        self.wait(&self.for_devices, clock)
    }

    /// Keeps a queue until others are as far as the clock says.
    ///
    /// # Errors
    /// The step ends early.
    pub fn let_copier_wait(&self, clock: &Clock) -> Result<(), RunError> {
        self.wait(&self.for_copiers, clock)
    }

    fn wait(&self, turn: &Condvar, clock: &Clock) -> Result<(), RunError> {
        let early = |state: &mut State| state.error.is_none() && !clock.reached(&state.counters);
        let state = turn.wait_while(self.lock(), early);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        state.error.clone().map_or(Ok(()), Err)
    }

    /// How the step ended.
    ///
    /// # Errors
    /// It ended early.
    pub fn ended(&self) -> Result<(), RunError> {
        self.lock().error.take().map_or(Ok(()), Err)
    }
}
