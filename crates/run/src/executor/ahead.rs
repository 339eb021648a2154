//! A device whose driver is given runs ahead of time: the host goes on, and the driver keeps their order. Runs wait for
//! copies by the driver's events, and the host waits at the end of the step.

#![allow(
    unsafe_code,
    reason = "runs beside copies and other devices, which a checked layout allows"
)]

use scrimp_gpu::Event;
use std::collections::VecDeque;

use super::trace::Record;
use crate::error::RunError;
use crate::gpu::{DeviceMemory, Gpu, Launched};
use crate::job::Job;
use crate::span::Span;

/// What the driver was given in this step.
pub(super) struct Ahead<'a> {
    device: &'a Gpu,
    memory: &'a DeviceMemory,
    /// What the next command waits for.
    after: Vec<Event>,
    /// The last command.
    last: Option<Event>,
    /// The runs that aren't recorded yet.
    runs: VecDeque<Given>,
    /// When the last one that is recorded ended.
    idle_since: f64,
    /// The name of a step's node.
    name: &'a (dyn Fn(usize) -> String + Sync),
}

/// After this many runs the host looks which ones are done.
const LOOKS_EVERY: usize = 16;

/// A run that the driver was given.
#[derive(Debug)]
struct Given {
    /// Its number among the device's runs.
    run: usize,
    /// Whether it waited for copies.
    waited: bool,
    launched: Launched,
}

impl<'a> Ahead<'a> {
    pub fn new(
        device: &'a Gpu,
        memory: &'a DeviceMemory,
        name: &'a (dyn Fn(usize) -> String + Sync),
    ) -> Ahead<'a> {
        Ahead {
            device,
            memory,
            after: Vec::new(),
            last: None,
            runs: VecDeque::new(),
            idle_since: 0.0,
            name,
        }
    }

    /// All that follows waits for these events.
    pub fn wait(&mut self, events: Vec<Event>) -> Result<(), RunError> {
        self.memory.pause();
        for event in events {
            match self.memory.knows(&event) {
                true => self.after.push(event),
                false => event.wait()?,
            }
        }
        Ok(())
    }

    /// What must be done until everything is that was given so far.
    pub fn so_far(&self) -> Result<Vec<Event>, RunError> {
        self.memory.flush()?;
        Ok(self.after.iter().chain(&self.last).cloned().collect())
    }

    /// Gives the device a run, the one of this number.
    ///
    /// # Safety
    /// As for [`Job::begin_on_gpu`].
    pub unsafe fn run(&mut self, job: &Job, run: usize) -> Result<(), RunError> {
        // SAFETY: the caller's promise.
        let launched = unsafe { job.begin_on_gpu(self.device, self.memory, &self.after)? };
        if let Some(launched) = launched {
            self.last = Some(launched.last.clone());
            self.runs.push_back(Given {
                run,
                waited: !self.after.is_empty(),
                launched,
            });
            self.after.clear();
            self.memory.flush()?;
        }
        Ok(())
    }

    /// Fills a span with a byte.
    pub fn fill(&mut self, span: Span, byte: u8) -> Result<(), RunError> {
        if let Some(event) = self.memory.begin_fill(span, byte, &self.after)? {
            self.last = Some(event);
            self.after.clear();
        }
        Ok(())
    }

    /// Records the runs that are done, from time to time, so that fewer are left for the end of the step.
    pub fn look(&mut self, record: &mut Record) -> Result<(), RunError> {
        if !record.runs.len().is_multiple_of(LOOKS_EVERY) {
            return Ok(());
        }
        while let Some(given) = self.runs.front() {
            // What failed is told below.
            if let Ok(false) = given.launched.last.is_done() {
                break;
            }
            if let Some(given) = self.runs.pop_front() {
                self.record(&given, record)?;
            }
        }
        Ok(())
    }

    /// Waits until all is done, and records when it was. An error is that of the first run that failed.
    pub fn end(mut self, record: &mut Record) -> Result<(), RunError> {
        self.memory.flush()?;
        while let Some(given) = self.runs.pop_front() {
            self.record(&given, record)?;
        }
        self.after.iter().try_for_each(Event::wait)?;
        Ok(self.last.take().map_or(Ok(()), |event| event.wait())?)
    }

    /// Waits until a run is done, and records when it was.
    fn record(&mut self, given: &Given, record: &mut Record) -> Result<(), RunError> {
        let trace = &mut record.runs[given.run];
        let done = given.launched.finish();
        done.map_err(|error| RunError::in_node(&(self.name)(trace.step), error))?;
        let [start, _] = self.memory.seconds(&given.launched.first)?;
        let [_, end] = self.memory.seconds(&given.launched.last)?;
        if given.waited {
            record.waiting += (start - self.idle_since).max(0.0);
        }
        self.idle_since = end;
        (trace.start, trace.seconds) = (start.max(0.0), end - start);
        Ok(())
    }
}

/// After an error the device may still work on the step; whoever takes its memory next waits for it.
impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        let _ = self.memory.finish();
    }
}
