//! Memory of a GPU, and what its driver was given to do there and may not have done yet.

#![allow(unsafe_code, reason = "the host goes on while commands use its memory")]

use scrimp_gpu::{Answer, Buffer, Context, Event, GpuError, Queue};
use std::sync::{Mutex, PoisonError};

use super::program::Complaint;
use crate::error::RunError;
use crate::span::Span;

/// Memory of a GPU with three queues: kernels run in one, and copies in each direction have one of their
/// own.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(super) buffer: Buffer,
    pub(super) compute: Queue,
    in_queue: Queue,
    out_queue: Queue,
    /// A moment of a step: nanoseconds of the device's clock, and seconds since the step began.
    moment: Mutex<Option<(i64, f64)>>,
}

impl DeviceMemory {
    /// Reserves the memory, every byte of it.
    pub fn new(context: &Context, bytes: u64) -> Result<DeviceMemory, GpuError> {
        let memory = DeviceMemory {
            buffer: context.buffer(bytes)?,
            compute: context.queue()?,
            in_queue: context.queue()?,
            out_queue: context.queue()?,
            moment: Mutex::new(None),
        };
        // A driver may find room for a buffer only when it is first used.
        match memory.fill(Span { offset: 0, bytes }, 0) {
            Err(error) if error.may_be_no_room() => Err(GpuError::OutOfMemory { bytes }),
            result => result.map(|()| memory),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.buffer.bytes()
    }

    /// Copies bytes to the device, and waits until they are there.
    pub fn store(&self, from: &[u8], offset: u64) -> Result<(), GpuError> {
        self.in_queue.write(from, &self.buffer, offset)
    }

    /// Copies bytes from the device.
    pub fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), GpuError> {
        self.out_queue.read(&self.buffer, offset, to)
    }

    /// Copies bytes from the device after all kernels that were launched.
    pub fn load_results(&self, offset: u64, to: &mut [u8]) -> Result<(), GpuError> {
        self.compute.read(&self.buffer, offset, to)
    }

    /// Fills a span with a byte after all kernels that were launched, and waits until that is done.
    pub fn fill(&self, span: Span, byte: u8) -> Result<(), GpuError> {
        self.compute
            .fill(&self.buffer, span.offset, span.bytes, byte)
    }

    /// Begins to fill a span with a byte, after all kernels that were launched and these events.
    pub fn begin_fill(
        &self,
        span: Span,
        byte: u8,
        after: &[Event],
    ) -> Result<Option<Event>, GpuError> {
        let Span { offset, bytes } = span;
        self.compute
            .begin_fill(&self.buffer, offset, bytes, byte, after)
    }

    /// Begins to copy bytes to the device, after these events. They may be what other commands write, which the events
    /// are of.
    ///
    /// # Safety
    /// Until the command is done, `from` lives and nobody writes it.
    pub unsafe fn begin_store(
        &self,
        from: &[u8],
        offset: u64,
        after: &[Event],
    ) -> Result<Option<Event>, GpuError> {
        // What `from` holds may be on its way there: an event tells when it is.
        let after = match self.in_queue.reads_at_once() {
            true => {
                after.iter().try_for_each(Event::wait)?;
                &[]
            }
            false => after,
        };
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
    ) -> Result<Option<Event>, GpuError> {
        // SAFETY: the caller's promise.
        let event = unsafe { self.out_queue.begin_read(&self.buffer, offset, to, after)? };
        self.out_queue.flush()?;
        Ok(event)
    }

    /// Whether commands here may wait for an event: it is of the same device in use.
    pub fn knows(&self, event: &Event) -> bool {
        self.compute.knows(event)
    }

    /// The host waited: the next kernel begins when the device comes to it, not when the last one ended.
    pub fn pause(&self) {
        self.compute.pause();
    }

    /// Waits until all that was launched is done.
    pub fn finish(&self) -> Result<(), GpuError> {
        self.compute.finish()
    }

    /// Hands everything to the device that was launched.
    pub fn flush(&self) -> Result<(), GpuError> {
        self.compute.flush()
    }

    /// A step begins: finds out what the device's clock says at a second of the step.
    pub fn begin_step(&self, now: &dyn Fn() -> f64) -> Result<(), GpuError> {
        let mut byte = [0];
        let room = self.bytes().min(1) as usize;
        // SAFETY: the byte lives until the command is done, which is waited for.
        let event = unsafe {
            self.compute
                .begin_read(&self.buffer, 0, &mut byte[..room], &[])?
        };
        let mut moment = None;
        if let Some(event) = event {
            let flushed = self.compute.flush();
            event.wait().and(flushed)?;
            let second = now();
            let [_, end] = event.times()?;
            moment = Some((end, second));
        }
        *self.moment.lock().unwrap_or_else(PoisonError::into_inner) = moment;
        Ok(())
    }

    /// When a command that is done began and ended, in seconds since the step began.
    pub fn seconds(&self, event: &Event) -> Result<[f64; 2], GpuError> {
        let moment = *self.moment.lock().unwrap_or_else(PoisonError::into_inner);
        let (zero, second) = moment.unwrap_or_default();
        let since = |time: i64| second + (time - zero) as f64 * 1e-9;
        Ok(event.times()?.map(since))
    }
}

/// The launches of a program that the device was given.
#[derive(Debug)]
pub(crate) struct Launched {
    pub first: Event,
    pub last: Event,
    /// What may be complained of, and where the device writes whether it is and the index.
    pub(super) complaint: Option<(Complaint, Box<Answer>)>,
}

impl Launched {
    /// Waits until all of it is done. The queue was flushed.
    pub fn finish(&self) -> Result<(), RunError> {
        self.last.wait()?;
        let Some((Complaint { op, length }, answer)) = &self.complaint else {
            return Ok(());
        };
        match answer.numbers() {
            &[told, index] if told != 0 => Err(RunError::IndexOutOfRange {
                op,
                index,
                length: *length,
            }),
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
