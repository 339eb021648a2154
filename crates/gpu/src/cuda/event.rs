//! Events, which tell when a command began and ended, and the clock that they are read by.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::context::{Context, WeakContext};
use super::done;
use super::ffi::{self, Handle};
use super::queue::Stream;
use crate::error::GpuError;

/// A command that was given to a queue. Clones are the same command.
#[derive(Clone, Debug)]
pub struct Event(Arc<Recorded>);

#[derive(Debug)]
struct Recorded {
    start: Arc<Moment>,
    end: Arc<Moment>,
}

/// One of the driver's events, recorded where a command of a stream ends or begins.
#[derive(Debug)]
struct Moment {
    context: Context,
    mark: Arc<Mark>,
    handle: Handle,
    /// In nanoseconds of the device's clock, once somebody asked.
    time: OnceLock<i64>,
}

// SAFETY: the driver's functions on events may be called from any thread.
unsafe impl Send for Moment {}
// SAFETY: as above.
unsafe impl Sync for Moment {}

impl Moment {
    /// When all before it on a stream is done.
    fn on(stream: &Stream, context: &Context) -> Result<Arc<Moment>, GpuError> {
        let moment = Moment {
            mark: context.clock().mark(context, stream)?,
            handle: context.event()?,
            context: context.clone(),
            time: OnceLock::new(),
        };
        stream.record(moment.handle)?;
        Ok(Arc::new(moment))
    }

    /// In nanoseconds of the device's clock. Waits until it has come.
    fn time(&self) -> Result<i64, GpuError> {
        if let Some(&time) = self.time.get() {
            return Ok(time);
        }
        let time = self.mark.until(&self.context, self.handle)?;
        Ok(*self.time.get_or_init(|| time))
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        self.context.give_back_event(self.handle);
    }
}

/// The driver tells how much time passed between two events, as a float that a second makes inexact. So it is asked for
/// the time since a mark that is at most this old, and the marks' times are added up.
const MARK_LASTS: Duration = Duration::from_millis(500);

/// How long whoever waits for an event looks for it before it sleeps.
const SPINS_FOR: Duration = Duration::from_micros(100);

/// Where the newest mark is.
#[derive(Debug, Default)]
pub(super) struct Clock(Mutex<Option<(Instant, Arc<Mark>)>>);

/// An event whose time is known once it has happened.
#[derive(Debug)]
struct Mark {
    event: MarkEvent,
    since: Mutex<Since>,
}

/// Given back when nobody needs the mark any more. The context holds the newest one, so it isn't held in return.
#[derive(Debug)]
struct MarkEvent {
    context: WeakContext,
    handle: Handle,
}

impl Drop for MarkEvent {
    fn drop(&mut self) {
        if let Some(context) = self.context.upgrade() {
            context.give_back_event(self.handle);
        }
    }
}

// SAFETY: as for `Moment`.
unsafe impl Send for MarkEvent {}
// SAFETY: as above.
unsafe impl Sync for MarkEvent {}

#[derive(Debug)]
enum Since {
    /// Nanoseconds since the first mark.
    Known(i64),
    /// It is this long after another mark.
    After(Arc<Mark>),
}

impl Clock {
    /// The newest mark, made on this stream if it is too old.
    fn mark(&self, context: &Context, stream: &Stream) -> Result<Arc<Mark>, GpuError> {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let before = match &*newest {
            Some((made, mark)) if now.duration_since(*made) < MARK_LASTS => return Ok(mark.clone()),
            Some((_, mark)) => Since::After(mark.clone()),
            None => Since::Known(0),
        };
        let event = context.event()?;
        stream.record(event)?;
        let mark = Arc::new(Mark {
            event: MarkEvent {
                context: context.weak(),
                handle: event,
            },
            since: Mutex::new(before),
        });
        *newest = Some((now, mark.clone()));
        Ok(mark)
    }

    /// The newest mark's event.
    pub(super) fn last(&self) -> Option<Handle> {
        let newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        newest.as_ref().map(|(_, mark)| mark.event.handle)
    }
}

impl Mark {
    /// Nanoseconds since the first mark. Waits until this one has happened.
    fn nanoseconds(&self, context: &Context) -> Result<i64, GpuError> {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let nanoseconds = match &*since {
            Since::Known(nanoseconds) => *nanoseconds,
            Since::After(before) => before.until(context, self.event.handle)?,
        };
        // What was before isn't needed any more.
        *since = Since::Known(nanoseconds);
        Ok(nanoseconds)
    }

    /// Nanoseconds from the first mark to an event, which has happened or is waited for.
    fn until(&self, context: &Context, event: Handle) -> Result<i64, GpuError> {
        let zero = self.nanoseconds(context)?;
        let (api, mut milliseconds) = (context.api()?, 0f32);
        // SAFETY: both events live and were recorded.
        let mut elapsed = || unsafe { (api.elapsed)(&mut milliseconds, self.event.handle, event) };
        let mut status = elapsed();
        if status == ffi::NOT_READY {
            // SAFETY: as above.
            unsafe {
                done("cuEventSynchronize", (api.synchronize)(self.event.handle))?;
                done("cuEventSynchronize", (api.synchronize)(event))?;
            }
            status = elapsed();
        }
        done("cuEventElapsedTime", status)?;
        Ok(zero + (f64::from(milliseconds) * 1e6).round() as i64)
    }
}

impl Event {
    /// Gives a command to a stream. It begins where the command before it ended, if that is given here, and otherwise
    /// when the stream comes to it.
    pub(super) fn of(
        context: &Context,
        stream: &Stream,
        before: Option<Event>,
        command: impl FnOnce() -> Result<(), GpuError>,
    ) -> Result<Event, GpuError> {
        let start = match before {
            Some(Event(before)) => before.end.clone(),
            None => Moment::on(stream, context)?,
        };
        command()?;
        let end = Moment::on(stream, context)?;
        Ok(Event(Arc::new(Recorded { start, end })))
    }

    pub(super) fn handle(&self) -> Handle {
        self.0.end.handle
    }

    fn context(&self) -> &Context {
        &self.0.end.context
    }

    /// Whether it is of this context.
    pub(super) fn is_of(&self, context: &Context) -> bool {
        self.context().is(context)
    }

    /// Whether the command is done.
    ///
    /// # Errors
    /// It failed, or one before it.
    pub fn is_done(&self) -> Result<bool, GpuError> {
        let api = self.context().api()?;
        // SAFETY: the event lives and was recorded.
        match unsafe { (api.query)(self.handle()) } {
            ffi::NOT_READY => Ok(false),
            status => done("cuEventQuery", status).map(|()| true),
        }
    }

    /// Waits until the command is done.
    ///
    /// # Errors
    /// It failed, or one before it.
    pub fn wait(&self) -> Result<(), GpuError> {
        // To fall asleep and be woken takes longer than a small command.
        let start = Instant::now();
        while start.elapsed() < SPINS_FOR {
            if self.is_done()? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let api = self.context().api()?;
        // SAFETY: the event lives and was recorded.
        done("cuEventSynchronize", unsafe {
            (api.synchronize)(self.handle())
        })
    }

    /// When the command began and ended, in nanoseconds of the device's clock. Waits until it is done.
    ///
    /// # Errors
    /// It failed, or one before it.
    pub fn times(&self) -> Result<[i64; 2], GpuError> {
        Ok([self.0.start.time()?, self.0.end.time()?])
    }
}
