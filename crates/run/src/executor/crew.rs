//! Threads that stay from step to step. In each step every thread does a part of the work, and the step ends when
//! all have done theirs.

#![allow(
    unsafe_code,
    reason = "threads that outlive a step call a function that the step lends them"
)]

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::error::RunError;

/// What each thread calls with its number. It doesn't panic.
type Work<'a> = &'a (dyn Fn(usize) + Sync);

/// The threads. They end when this is dropped.
pub(super) struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    begun: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Steps begun so far.
    round: u64,
    /// What this step lent; none between steps.
    lent: Option<Work<'static>>,
    /// Threads that still work on this step.
    working: usize,
    quit: bool,
}

impl Crew {
    /// Starts a thread for each name.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn new(names: Vec<String>) -> Result<Crew, RunError> {
        let count = names.len();
        let mut crew = Crew {
            shared: Arc::default(),
            threads: Vec::with_capacity(count),
        };
        for (number, name) in names.into_iter().enumerate() {
            let shared = Arc::clone(&crew.shared);
            let thread = Builder::new().name(name).spawn(move || shared.work(number));
            crew.threads.push(thread.map_err(|error| RunError::Threads {
                threads: count,
                reason: error.to_string(),
            })?);
        }
        Ok(crew)
    }

    /// Calls `work` on every thread and `own` on this one, side by side, and waits until all have returned.
    pub fn run(&self, work: Work<'_>, own: impl FnOnce()) {
        if self.threads.is_empty() {
            return own();
        }
        // SAFETY: only the lifetime changes. Dropping `step` waits until no thread calls the function any more.
        let lent = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        let mut state = self.shared.lock();
        state.round += 1;
        state.lent = Some(lent);
        state.working = self.threads.len();
        drop(state);
        let step = Running(&self.shared);
        self.shared.begun.notify_all();
        own();
        drop(step);
    }
}

/// A step that threads work on. Dropping it waits for them.
struct Running<'a>(&'a Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let (ended, state) = (&self.0.ended, self.0.lock());
        let state = ended.wait_while(state, |state| state.working > 0);
        state.unwrap_or_else(PoisonError::into_inner).lent = None;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works once per step.
    fn work(&self, number: usize) {
        let mut round = 0;
        loop {
            let idle = |state: &mut State| state.round == round && !state.quit;
            let state = self.begun.wait_while(self.lock(), idle);
            let state = state.unwrap_or_else(PoisonError::into_inner);
            if state.quit {
                return;
            }
            round = state.round;
            let lent = state.lent;
            drop(state);
            if let Some(work) = lent {
                work(number);
            }
            let mut state = self.lock();
            state.working -= 1;
            if state.working == 0 {
                self.ended.notify_one();
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.lock().quit = true;
        self.shared.begun.notify_all();
        for thread in self.threads.drain(..) {
            // Work doesn't panic, and nothing is lost if it did.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.threads).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_thread_works_in_every_step() {
        for threads in [0, 1, 3] {
            let names = (0..threads).map(|k| format!("t{k}")).collect();
            let crew = Crew::new(names).expect("threads start");
            let done: Vec<AtomicUsize> = (0..=threads).map(|_| AtomicUsize::new(0)).collect();
            for step in 1..=50 {
                let count = |k: usize| {
                    done[k].fetch_add(1, Ordering::Relaxed);
                };
                crew.run(&count, || count(threads));
                let all = done.iter().map(|count| count.load(Ordering::Relaxed));
                assert!(all.eq(std::iter::repeat_n(step, threads + 1)));
            }
        }
    }
}
