//! Long work beside a Python thread that stays responsive: progress calls, Ctrl-C.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use scrimp::solve::Progress;

/// How often signals are looked at.
const PATIENCE: Duration = Duration::from_millis(50);

/// The answer of some work, and whether Ctrl-C asked it to stop early.
pub struct Watched<T> {
    pub answer: T,
    pub interrupted: bool,
}

/// Runs `work` on another thread without the interpreter's lock. Calls `progress(elapsed, cost,
/// lower_bound)` with its latest news on this one.
///
/// # Errors
/// What `progress` raises, once the work has stopped; a `KeyboardInterrupt` if it came twice. The
/// first one only asks the work to stop, which is the caller's to tell.
pub fn watched<T: Send>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(Arc<AtomicBool>, Sender<Progress>) -> T + Send,
) -> PyResult<Watched<T>> {
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, mut news) = channel();
    let mut interrupted = false;
    let mut raised: Option<PyErr> = None;
    let mut note = |error: PyErr| {
        let first = !interrupted && error.is_instance_of::<PyKeyboardInterrupt>(py);
        interrupted |= first;
        if !first {
            raised.get_or_insert(error);
        }
        stop.store(true, Ordering::Relaxed);
    };
    let joined = thread::scope(|scope| {
        let for_work = stop.clone();
        let worker = scope.spawn(move || work(for_work, sender));
        loop {
            let mine = &mut news;
            let latest = py.detach(move || match mine.recv_timeout(PATIENCE) {
                Ok(first) => Ok(Some(mine.try_iter().last().unwrap_or(first))),
                Err(RecvTimeoutError::Timeout) => Ok(None),
                Err(RecvTimeoutError::Disconnected) => Err(()),
            });
            if let (Ok(Some(latest)), Some(progress), false) =
                (latest, progress, stop.load(Ordering::Relaxed))
            {
                let told = progress.call1((
                    latest.elapsed.as_secs_f64(),
                    latest.cost,
                    latest.lower_bound,
                ));
                told.map_or_else(&mut note, drop);
            }
            py.check_signals().unwrap_or_else(&mut note);
            if latest.is_err() {
                break py.detach(|| worker.join());
            }
        }
    });
    // Nothing is known to panic; if something does, PyO3 turns it into an exception.
    let answer = joined.unwrap_or_else(|panic| resume_unwind(panic));
    match raised {
        Some(error) => Err(error),
        None => Ok(Watched {
            answer,
            interrupted,
        }),
    }
}
