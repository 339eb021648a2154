//! Queues of commands, and the events that tell when one is done.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ptr;

use crate::context::{Buffer, Context, Owned};
use crate::error::{OpenClError, done};
use crate::ffi::{self, Handle, Status};
use crate::program::{Kernel, Value};

/// Commands that run one after the other, beside those of other queues.
#[derive(Debug)]
pub struct Queue(Owned);

/// A command that was given to a queue.
#[derive(Debug)]
pub struct Event(Owned);

impl Queue {
    /// A queue whose commands have timestamps.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(context: &Context) -> Result<Queue, OpenClError> {
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
    ) -> Result<Event, OpenClError> {
        let _arguments = kernel.bind(arguments)?;
        let function = kernel.owned.handle;
        let global = groups.saturating_mul(items);
        self.command("clEnqueueNDRangeKernel", |event| {
            // SAFETY: one dimension with its sizes; the caller promises the rest.
            unsafe {
                let launch = self.0.api().launch;
                launch(
                    self.0.handle,
                    function,
                    1,
                    ptr::null(),
                    &global,
                    &items,
                    0,
                    ptr::null(),
                    event,
                )
            }
        })
    }

    /// Copies a buffer's bytes from `start` on to the host, and waits until they are there.
    ///
    /// # Errors
    /// The buffer has fewer bytes, or the driver fails.
    pub fn read(&self, from: &Buffer, start: u64, to: &mut [u8]) -> Result<(), OpenClError> {
        from.has(start, to.len() as u64)?;
        let (buffer, start, bytes) = (from.owned.handle, start as usize, to.len());
        if bytes == 0 {
            return Ok(());
        }
        done("clEnqueueReadBuffer", {
            // SAFETY: the call returns when the bytes are in `to`, which has room for them.
            unsafe {
                let read = self.0.api().read;
                let to = to.as_mut_ptr().cast();
                read(
                    self.0.handle,
                    buffer,
                    1,
                    start,
                    bytes,
                    to,
                    0,
                    ptr::null(),
                    ptr::null_mut(),
                )
            }
        })
    }

    /// Copies bytes of the host to a buffer's bytes from `start` on, and waits until they are there.
    ///
    /// # Errors
    /// As for [`Queue::read`].
    pub fn write(&self, from: &[u8], to: &Buffer, start: u64) -> Result<(), OpenClError> {
        to.has(start, from.len() as u64)?;
        let (buffer, start, bytes) = (to.owned.handle, start as usize, from.len());
        if bytes == 0 {
            return Ok(());
        }
        done("clEnqueueWriteBuffer", {
            // SAFETY: the call returns when the bytes of `from` were read.
            unsafe {
                let write = self.0.api().write;
                let from = from.as_ptr().cast();
                write(
                    self.0.handle,
                    buffer,
                    1,
                    start,
                    bytes,
                    from,
                    0,
                    ptr::null(),
                    ptr::null_mut(),
                )
            }
        })
    }

    /// Fills so many bytes of a buffer from `start` on, and waits until that is done.
    ///
    /// # Errors
    /// The buffer has fewer bytes, or the driver fails.
    pub fn fill(&self, to: &Buffer, start: u64, bytes: u64, byte: u8) -> Result<(), OpenClError> {
        to.has(start, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let (buffer, start, bytes) = (to.owned.handle, start as usize, bytes as usize);
        let event = self.command("clEnqueueFillBuffer", |event| {
            // SAFETY: the pattern is one byte, which the call copies.
            unsafe {
                let fill = self.0.api().fill;
                let byte = (&raw const byte).cast();
                fill(
                    self.0.handle,
                    buffer,
                    byte,
                    1,
                    start,
                    bytes,
                    0,
                    ptr::null(),
                    event,
                )
            }
        })?;
        event.wait()
    }

    /// Waits until all commands are done.
    ///
    /// # Errors
    /// One failed.
    pub fn finish(&self) -> Result<(), OpenClError> {
        // SAFETY: the queue is alive.
        done("clFinish", unsafe { (self.0.api().finish)(self.0.handle) })
    }

    fn command(
        &self,
        call: &'static str,
        enqueue: impl FnOnce(*mut Handle) -> Status,
    ) -> Result<Event, OpenClError> {
        let mut event = ptr::null_mut();
        done(call, enqueue(&mut event))?;
        Ok(Event(Owned::new(&self.0.device, event, |api| {
            api.release_event
        })))
    }
}

impl Event {
    /// Waits until the command is done.
    ///
    /// # Errors
    /// It failed.
    pub fn wait(&self) -> Result<(), OpenClError> {
        // SAFETY: one event, which is alive.
        done("clWaitForEvents", unsafe {
            (self.0.api().wait)(1, &self.0.handle)
        })
    }

    /// When the command began and ended by the device's clock, in nanoseconds. Only after it is done.
    ///
    /// # Errors
    /// It isn't done, or the driver keeps no times.
    pub fn times(&self) -> Result<[u64; 2], OpenClError> {
        let mut times = [0u64; 2];
        for (time, what) in times
            .iter_mut()
            .zip([ffi::PROFILING_START, ffi::PROFILING_END])
        {
            // SAFETY: the answer has 8 bytes.
            let status = unsafe {
                let ask = self.0.api().profiling;
                ask(
                    self.0.handle,
                    what,
                    8,
                    (&raw mut *time).cast(),
                    ptr::null_mut(),
                )
            };
            done("clGetEventProfilingInfo", status)?;
        }
        Ok(times)
    }
}
