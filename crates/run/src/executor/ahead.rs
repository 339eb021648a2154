//! A device whose driver is given runs ahead of time: the host goes on, and the driver keeps their order. Runs wait for
//! copies by the driver's events, and the host waits at the end of the step.

#![allow(
    unsafe_code,
    reason = "runs beside copies and other devices, which a checked layout allows"
)]

use scrimp_gpu::Event;

use super::trace::Record;
use crate::error::RunError;
use crate::gpu::{DeviceMemory, Gpu, Launched};
use crate::job::Job;
use crate::span::Span;

/// What the driver was given in this step.
#[derive(Debug)]
pub(super) struct Ahead<'a> {
    device: &'a Gpu,
    memory: &'a DeviceMemory,
    /// What the next command waits for.
    after: Vec<Event>,
    /// The last command.
    last: Option<Event>,
    runs: Vec<Given>,
}

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
    pub fn new(device: &'a Gpu, memory: &'a DeviceMemory) -> Ahead<'a> {
        Ahead {
            device,
            memory,
            after: Vec::new(),
            last: None,
            runs: Vec::new(),
        }
    }

    /// All that follows waits for these events.
    pub fn wait(&mut self, events: Vec<Event>) -> Result<(), RunError> {
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
            self.runs.push(Given {
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

    /// Waits until all is done, and records when it was. An error is that of the first run that failed; `name` gives
    /// the name of its node.
    pub fn end(
        mut self,
        record: &mut Record,
        name: &dyn Fn(usize) -> String,
    ) -> Result<(), RunError> {
        self.memory.flush()?;
        let mut idle_since = 0.0;
        for given in self.runs.drain(..) {
            let done = given.launched.finish();
            done.map_err(|error| RunError::in_node(&name(given.run), error))?;
            let [start, _] = self.memory.seconds(&given.launched.first)?;
            let [_, end] = self.memory.seconds(&given.launched.last)?;
            if given.waited {
                record.waiting += (start - idle_since).max(0.0);
            }
            idle_since = end;
            let trace = &mut record.runs[given.run];
            (trace.start, trace.seconds) = (start.max(0.0), end - start);
        }
        self.after.iter().try_for_each(Event::wait)?;
        Ok(self.last.take().map_or(Ok(()), |event| event.wait())?)
    }
}

/// After an error the device may still work on the step; whoever takes its memory next waits for it.
impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        let _ = self.memory.finish();
    }
}
