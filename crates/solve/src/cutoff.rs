//! When work must end: at a given moment, or as soon as a flag is set.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// When work must end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cutoff<'a> {
    deadline: Option<Instant>,
    stop: Option<&'a AtomicBool>,
}

impl<'a> Cutoff<'a> {
    /// The work never has to end.
    pub const NEVER: Cutoff<'static> = Cutoff {
        deadline: None,
        stop: None,
    };

    /// The work must end as soon as the flag is set.
    #[must_use]
    pub fn on(stop: &'a AtomicBool) -> Cutoff<'a> {
        Cutoff {
            stop: Some(stop),
            ..Cutoff::NEVER
        }
    }

    /// The work must end as soon as the flag is set, if there is one.
    pub(crate) fn on_any(stop: Option<&'a AtomicBool>) -> Cutoff<'a> {
        Cutoff {
            stop,
            ..Cutoff::NEVER
        }
    }

    /// The same cutoff, but no later than a moment, if there is one.
    #[must_use]
    pub fn by(self, moment: Option<Instant>) -> Cutoff<'a> {
        let deadline = match (self.deadline, moment) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Cutoff { deadline, ..self }
    }

    /// The same cutoff, but no earlier than this time from now unless the flag is set.
    pub(crate) fn not_within(self, time: Duration) -> Cutoff<'a> {
        let soonest = Instant::now() + time;
        Cutoff {
            deadline: self.deadline.map(|deadline| deadline.max(soonest)),
            ..self
        }
    }

    /// Whether work must end now.
    #[must_use]
    pub fn reached(&self) -> bool {
        self.stopped() || self.deadline.is_some_and(|at| Instant::now() >= at)
    }

    /// Whether the flag is set.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// The time left until the moment; a long time if there is none.
    pub fn left(&self) -> Duration {
        self.deadline
            .map_or(Duration::from_secs(u64::from(u32::MAX)), |at| {
                at.saturating_duration_since(Instant::now())
            })
    }
}
