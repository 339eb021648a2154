//! Queues of commands, and the events that tell when one is done.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ptr;
use std::sync::Arc;

use super::context::{Buffer, Context, Owned};
use super::done;
use super::ffi::{self, Handle, Status};
use super::program::{Kernel, Value};
use crate::error::{GpuError, within};

/// Commands that run one after the other, beside those of other queues. A command begins after those before it in its
/// queue and after the events that it is given, which are of the same context.
#[derive(Debug)]
pub struct Queue(Owned);

/// A command that was given to a queue. Clones are the same command.
#[derive(Clone, Debug)]
pub struct Event(Arc<Owned>);

impl Queue {
    /// A queue whose commands have timestamps.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(context: &Context) -> Result<Queue, GpuError> {
        let (owner, device) = (&context.0, &context.0.device);
        let mut status = 0;
        // SAFETY: the device is the context's.
        let handle = unsafe {
            let create = owner.api().create_queue;
            create(owner.handle, device.id, ffi::QUEUE_PROFILING, &mut status)
        };
        done("clCreateCommandQueue", status)?;
        Ok(Queue(Owned::new(device, handle, |api| api.release_queue)))
    }

    /// Runs `groups` groups of `items` work items of a kernel.
    ///
    /// # Errors
    /// The driver refuses, or the kernel takes other arguments.
    ///
    /// # Safety
    /// With these arguments the kernel stays within its buffers, and no other command uses at the same time
    /// what it writes.
    pub unsafe fn launch(
        &self,
        kernel: &Kernel,
        arguments: &[Value<'_>],
        groups: usize,
        items: usize,
        after: &[Event],
    ) -> Result<Event, GpuError> {
        let _arguments = kernel.bind(arguments)?;
        let function = kernel.owned.handle;
        let global = groups.saturating_mul(items);
        self.command("clEnqueueNDRangeKernel", after, |count, events, event| {
            // SAFETY: one dimension with its sizes; the caller promises the rest.
            unsafe {
                (self.0.api().launch)(
                    self.0.handle,
                    function,
                    1,
                    ptr::null(),
                    &global,
                    &items,
                    count,
                    events,
                    event,
                )
            }
        })
    }

    /// Begins to copy a buffer's bytes from `start` on to the host. There is no command for no bytes.
    ///
    /// # Errors
    /// The buffer has fewer bytes, or the driver fails.
    ///
    /// # Safety
    /// Until the command is done, `to` lives and nobody else uses it.
    pub unsafe fn begin_read(
        &self,
        from: &Buffer,
        start: u64,
        to: &mut [u8],
        after: &[Event],
    ) -> Result<Option<Event>, GpuError> {
        within(from.bytes(), start, to.len() as u64)?;
        let (buffer, bytes, to) = (from.owned.handle, to.len(), to.as_mut_ptr().cast());
        if bytes == 0 {
            return Ok(None);
        }
        let enqueue = |count, events, event| {
            // SAFETY: `to` has room for the bytes, and the caller promises that it lives.
            unsafe {
                (self.0.api().read)(
                    self.0.handle,
                    buffer,
                    0,
                    start as usize,
                    bytes,
                    to,
                    count,
                    events,
                    event,
                )
            }
        };
        self.command("clEnqueueReadBuffer", after, enqueue)
            .map(Some)
    }

    /// Begins to copy bytes of the host to a buffer's bytes from `start` on. There is no command for no bytes.
    ///
    /// # Errors
    /// As for [`Queue::begin_read`].
    ///
    /// # Safety
    /// Until the command is done, `from` lives and nobody writes it.
    pub unsafe fn begin_write(
        &self,
        from: &[u8],
        to: &Buffer,
        start: u64,
        after: &[Event],
    ) -> Result<Option<Event>, GpuError> {
        within(to.bytes(), start, from.len() as u64)?;
        let (buffer, bytes, from) = (to.owned.handle, from.len(), from.as_ptr().cast());
        if bytes == 0 {
            return Ok(None);
        }
        let enqueue = |count, events, event| {
            // SAFETY: `from` has that many bytes, and the caller promises that it lives.
            unsafe {
                (self.0.api().write)(
                    self.0.handle,
                    buffer,
                    0,
                    start as usize,
                    bytes,
                    from,
                    count,
                    events,
                    event,
                )
            }
        };
        self.command("clEnqueueWriteBuffer", after, enqueue)
            .map(Some)
    }

    /// Begins to fill so many bytes of a buffer from `start` on. There is no command for no bytes.
    ///
    /// # Errors
    /// The buffer has fewer bytes, or the driver fails.
    pub fn begin_fill(
        &self,
        to: &Buffer,
        start: u64,
        bytes: u64,
        byte: u8,
        after: &[Event],
    ) -> Result<Option<Event>, GpuError> {
        within(to.bytes(), start, bytes)?;
        if bytes == 0 {
            return Ok(None);
        }
        let enqueue = |count, events, event| {
            let pattern = (&raw const byte).cast();
            // SAFETY: the pattern is one byte, which the call copies.
            unsafe {
                (self.0.api().fill)(
                    self.0.handle,
                    to.owned.handle,
                    pattern,
                    1,
                    start as usize,
                    bytes as usize,
                    count,
                    events,
                    event,
                )
            }
        };
        self.command("clEnqueueFillBuffer", after, enqueue)
            .map(Some)
    }

    /// Hands all commands to the device, which commands of other queues that wait for them need.
    ///
    /// # Errors
    /// The driver fails.
    pub fn flush(&self) -> Result<(), GpuError> {
        // SAFETY: the queue is alive.
        done("clFlush", unsafe { (self.0.api().flush)(self.0.handle) })
    }

    /// Waits until all commands are done.
    ///
    /// # Errors
    /// One failed.
    pub fn finish(&self) -> Result<(), GpuError> {
        // SAFETY: the queue is alive.
        done("clFinish", unsafe { (self.0.api().finish)(self.0.handle) })
    }

    /// Gives a command to the queue; `enqueue` gets the number of events to wait for, the events, and where the new
    /// one goes.
    fn command(
        &self,
        call: &'static str,
        after: &[Event],
        enqueue: impl FnOnce(u32, *const Handle, *mut Handle) -> Status,
    ) -> Result<Event, GpuError> {
        let events: Vec<Handle> = after.iter().map(|event| event.0.handle).collect();
        let list = match events.is_empty() {
            true => ptr::null(),
            false => events.as_ptr(),
        };
        let mut event = ptr::null_mut();
        done(call, enqueue(events.len() as u32, list, &mut event))?;
        let owned = Owned::new(&self.0.device, event, |api| api.release_event);
        Ok(Event(Arc::new(owned)))
    }

    /// Whether commands of this queue may wait for an event: it is of the same context.
    #[must_use]
    pub fn knows(&self, event: &Event) -> bool {
        Arc::ptr_eq(&self.0.device, &event.0.device)
    }
}

impl Event {
    /// Waits until the command is done. Its queue was flushed.
    ///
    /// # Errors
    /// It failed.
    pub fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: one event, which is alive.
        done("clWaitForEvents", unsafe {
            (self.0.api().wait)(1, &self.0.handle)
        })
    }

    /// When it began and ended, in nanoseconds of the device's clock. Only after it is done.
    ///
    /// # Errors
    /// It isn't done, or the driver keeps no times.
    pub fn times(&self) -> Result<[u64; 2], GpuError> {
        let ask = |what| {
            let mut time = 0u64;
            // SAFETY: the answer has 8 bytes.
            let status = unsafe {
                let ask = self.0.api().profiling;
                let to = (&raw mut time).cast();
                ask(self.0.handle, what, 8, to, ptr::null_mut())
            };
            done("clGetEventProfilingInfo", status).map(|()| time)
        };
        Ok([ask(ffi::PROFILING_START)?, ask(ffi::PROFILING_END)?])
    }
}
