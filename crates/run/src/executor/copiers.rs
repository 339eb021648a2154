//! Copies beside compute: each queue of links does its copies in the plan's order, each as soon as what it waits for
//! has happened. Copies between main memory and a device with a driver are given to the driver; the host goes on, and
//! waits at the end of the step.

#![allow(unsafe_code, reason = "copies are done beside compute")]

use scrimp_gpu::Event;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::memories::Memories;
use super::play::Stage;
use super::schedule::Transfer;
use super::trace::CopyTrace;
use super::waits::Errand;
use crate::arena::Arena;
use crate::error::{RunError, unless_panicked};
use crate::gpu::DeviceMemory;
use crate::memory::Memory;
use crate::random::mix;
use crate::span::{PAGE, Span};

/// The longest sleep that delays copies in tests.
const LONGEST_DELAY_MICROSECONDS: u64 = 300;

/// A queue of links and its copies.
#[derive(Debug)]
pub(super) struct Queue {
    /// The number of its counter.
    counter: usize,
    errands: Vec<Errand>,
    work: Mutex<Work>,
}

#[derive(Debug)]
struct Work {
    /// The copies of this step so far.
    done: Vec<CopyTrace>,
    /// Main memory through which those copies pass that can't be done directly.
    staging: Arena,
}

impl Queue {
    /// Takes what its copies need beside the memories between which they are.
    ///
    /// # Errors
    /// There isn't enough memory.
    pub fn new(
        counter: usize,
        errands: Vec<Errand>,
        memories: &Memories,
    ) -> Result<Queue, RunError> {
        let staged = errands.iter().map(|errand| {
            let Transfer {
                from,
                to,
                conversion,
                ..
            } = &errand.transfer;
            let (source, bytes) = (memories.of(from.device), to.span.bytes);
            let destination = memories.of(to.device);
            destination.staging_bytes(source, bytes, conversion.is_some())
        });
        let work = Work {
            staging: Arena::new(staged.max().unwrap_or(0))?,
            done: Vec::with_capacity(errands.len()),
        };
        Ok(Queue {
            counter,
            work: Mutex::new(work),
            errands,
        })
    }

    /// Does the copies of a step. If that fails, the step ends for all.
    pub fn play(&self, stage: &Stage<'_, '_>) {
        if let Err(error) = unless_panicked("a copy", || self.copy_all(stage)) {
            stage.progress.fail(error);
        }
    }

    fn copy_all(&self, stage: &Stage<'_, '_>) -> Result<(), RunError> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let Work { done, staging } = &mut *work;
        done.clear();
        let mut begun: Vec<Begun<'_>> = Vec::new();
        for (index, errand) in self.errands.iter().enumerate() {
            let mut events = stage.progress.let_copier_wait(&errand.after)?;
            // Copies of a queue are done one after the other.
            events.extend(begun.last().map(|copy| copy.event.clone()));
            let start = stage.now();
            let delay = stage.delays.map(|seed| seed ^ (errand.step as u64) << 8);
            let given = match delay {
                // SAFETY: nothing else writes the source or uses the destination until the copy is done, as `Waits`
                // and the checked layout make sure.
                None => unsafe { begin(stage.memories, errand, &mut events)? },
                Some(_) => None,
            };
            let told = match given {
                Some((memory, event)) => {
                    let told = vec![event.clone()];
                    begun.push(Begun {
                        number: index,
                        memory,
                        event,
                    });
                    told
                }
                None => {
                    events.iter().try_for_each(Event::wait)?;
                    // SAFETY: as above.
                    unsafe { copy(stage.memories, errand, delay, staging)? };
                    Vec::new()
                }
            };
            done.push(CopyTrace {
                step: errand.step,
                value: errand.transfer.value,
                link: errand.transfer.link,
                start,
                seconds: stage.now() - start,
            });
            stage.progress.copied(self.counter, index + 1, told);
        }
        for copy in &begun {
            copy.event.wait()?;
            let [start, end] = copy.memory.seconds(&copy.event)?;
            let trace = &mut done[copy.number];
            (trace.start, trace.seconds) = (start.max(0.0), end - start);
        }
        Ok(())
    }

    /// Adds the copies of the last step to a trace.
    pub fn trace(&mut self, trace: &mut Vec<CopyTrace>) {
        let work = self.work.get_mut();
        trace.extend_from_slice(&work.unwrap_or_else(PoisonError::into_inner).done);
    }
}

/// A copy that a driver was given.
struct Begun<'a> {
    /// Its number in the queue.
    number: usize,
    memory: &'a DeviceMemory,
    event: Event,
}

/// The driver uses the memories until it is done.
impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let _ = self.event.wait();
    }
}

/// Gives a driver a copy that it does after these events, if there is one that can. Afterwards only those events are
/// left of which it knows.
///
/// # Safety
/// Until the copy is done, nothing else writes the source or uses the destination but what the events are of.
unsafe fn begin<'a>(
    memories: &'a Memories,
    errand: &Errand,
    events: &mut Vec<Event>,
) -> Result<Option<(&'a DeviceMemory, Event)>, RunError> {
    let Transfer {
        from,
        to,
        conversion: None,
        ..
    } = &errand.transfer
    else {
        return Ok(None);
    };
    let (source, destination) = (memories.of(from.device), memories.of(to.device));
    let memory = match (source, destination) {
        (Memory::Gpu(memory), Memory::Ram(_)) | (Memory::Ram(_), Memory::Gpu(memory)) => memory,
        _ => return Ok(None),
    };
    for event in events.extract_if(.., |event| !memory.knows(event)) {
        event.wait()?;
    }
    // SAFETY: the caller's promise.
    let here = unsafe { destination.write_beside(to.span) };
    let event = match (here, source.read(from.span)) {
        // SAFETY: as above; memories live as long as the executor, and no step ends before its copies.
        (Some(here), _) => unsafe { memory.begin_load(from.span.offset, here, events)? },
        // SAFETY: as above.
        (_, Some(there)) => unsafe { memory.begin_store(there, to.span.offset, events)? },
        (None, None) => None,
    };
    Ok(event.map(|event| (memory, event)))
}

/// Does one copy; with a seed, in two parts, with random delays before, between and after them.
///
/// # Safety
/// Nothing else writes the source or uses the destination.
unsafe fn copy(
    memories: &Memories,
    errand: &Errand,
    delay: Option<u64>,
    staging: &mut Arena,
) -> Result<(), RunError> {
    let (from, to) = (errand.transfer.from, errand.transfer.to);
    let (source, destination) = (memories.of(from.device), memories.of(to.device));
    let conversion = errand.transfer.conversion.as_deref();
    // SAFETY: the caller's promise.
    let mut copy =
        |from, to| unsafe { destination.copy_from(source, from, to, conversion, staging) };
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
