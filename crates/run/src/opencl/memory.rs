//! Memory of an OpenCL device, and what its driver was given to do there and may not have done yet.

#![allow(unsafe_code, reason = "the host goes on while commands use its memory")]

use scrimp_opencl::{Buffer, Context, Event, OpenClError, Queue, Times};
use std::sync::{Mutex, PoisonError};

use super::program::Complaint;
use crate::error::RunError;
use crate::span::Span;

/// Memory of an OpenCL device with three queues: kernels run in one, and copies in each direction have one of their
/// own.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(super) buffer: Buffer,
    pub(super) compute: Queue,
    in_queue: Queue,
    out_queue: Queue,
    /// A moment of a step: nanoseconds of the device's clock, and seconds since the step began.
    moment: Mutex<Option<(u64, f64)>>,
}

impl DeviceMemory {
    pub fn new(context: &Context, bytes: u64) -> Result<DeviceMemory, OpenClError> {
        Ok(DeviceMemory {
            buffer: context.buffer(bytes)?,
            compute: Queue::new(context)?,
            in_queue: Queue::new(context)?,
            out_queue: Queue::new(context)?,
            moment: Mutex::new(None),
        })
    }

    pub fn bytes(&self) -> u64 {
        self.buffer.bytes()
    }

    /// Copies bytes to the device, and waits until they are there.
    pub fn store(&self, from: &[u8], offset: u64) -> Result<(), OpenClError> {
        self.in_queue.write(from, &self.buffer, offset)
    }

    /// Copies bytes from the device.
    pub fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), OpenClError> {
        self.out_queue.read(&self.buffer, offset, to)
    }

    /// Copies bytes from the device after all kernels that were launched.
    pub fn load_results(&self, offset: u64, to: &mut [u8]) -> Result<(), OpenClError> {
        self.compute.read(&self.buffer, offset, to)
    }

    /// Fills a span with a byte after all kernels that were launched, and waits until that is done.
    pub fn fill(&self, span: Span, byte: u8) -> Result<(), OpenClError> {
        self.compute
            .fill(&self.buffer, span.offset, span.bytes, byte)
    }

    /// Begins to fill a span with a byte, after all kernels that were launched and these events.
    pub fn begin_fill(
        &self,
        span: Span,
        byte: u8,
        after: &[Event],
    ) -> Result<Option<Event>, OpenClError> {
        let Span { offset, bytes } = span;
        self.compute
            .begin_fill(&self.buffer, offset, bytes, byte, after)
    }

    /// Begins to copy bytes to the device, after these events.
    ///
    /// # Safety
    /// Until the command is done, `from` lives and nobody writes it.
    pub unsafe fn begin_store(
        &self,
        from: &[u8],
        offset: u64,
        after: &[Event],
    ) -> Result<Option<Event>, OpenClError> {
        // SAFETY: the caller's promise.
        let event = unsafe {
            self.in_queue
                .begin_write(from, &self.buffer, offset, after)?
        };
        self.in_queue.flush()?;
        Ok(event)
    }

    /// Begins to copy bytes from the device, after these events.
    ///
    /// # Safety
    /// Until the command is done, `to` lives and nobody else uses it.
    pub unsafe fn begin_load(
        &self,
        offset: u64,
        to: &mut [u8],
        after: &[Event],
    ) -> Result<Option<Event>, OpenClError> {
        // SAFETY: the caller's promise.
        let event = unsafe { self.out_queue.begin_read(&self.buffer, offset, to, after)? };
        self.out_queue.flush()?;
        Ok(event)
    }

    /// Whether commands here may wait for an event: it is of the same device in use.
    pub fn knows(&self, event: &Event) -> bool {
        self.compute.knows(event)
    }

    /// Waits until all that was launched is done.
    pub fn finish(&self) -> Result<(), OpenClError> {
        self.compute.finish()
    }

    /// Hands everything to the device that was launched.
    pub fn flush(&self) -> Result<(), OpenClError> {
        self.compute.flush()
    }

    /// A step begins, and with it the count of its seconds.
    pub fn begin_step(&self) {
        *self.moment.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// When a command that is done began and ended, in seconds since the step began. It was given to its queue at
    /// second `given`.
    pub fn seconds(&self, event: &Event, given: f64) -> Result<[f64; 2], OpenClError> {
        let Times { queued, start, end } = event.times()?;
        let mut moment = self.moment.lock().unwrap_or_else(PoisonError::into_inner);
        let (zero, seconds) = *moment.get_or_insert((queued, given));
        let since = |time: u64| seconds + (i128::from(time) - i128::from(zero)) as f64 * 1e-9;
        Ok([since(start), since(end)])
    }
}

/// The launches of a program that the device was given.
#[derive(Debug)]
pub(crate) struct Launched {
    pub first: Event,
    pub last: Event,
    /// Where the device writes whether there is a complaint and its index.
    pub(super) answer: Vec<i64>,
    pub(super) complaint: Option<Complaint>,
}

impl Launched {
    /// Waits until all of it is done. The queue was flushed.
    pub fn finish(&self) -> Result<(), RunError> {
        self.last.wait()?;
        match (self.complaint, &self.answer[..]) {
            (Some(Complaint { op, length }), &[told, index]) if told != 0 => {
                Err(RunError::IndexOutOfRange { op, index, length })
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Launched {
    /// The device may still write the answer.
    fn drop(&mut self) {
        if self.complaint.is_some() {
            let _ = self.last.wait();
        }
    }
}
