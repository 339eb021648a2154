//! Queues of commands: CUDA's streams.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::context::{Buffer, Context};
use super::done;
use super::event::Event;
use super::ffi::{self, Handle, driver::Api};
use super::program::Kernel;
use super::{PreparedConvolution, PreparedProduct};
use crate::error::{GpuError, within};

/// Commands that run one after the other, beside those of other queues. A command begins after those before it in its
/// queue and after the events that it is given, which are of the same context.
#[derive(Debug)]
pub struct Queue {
    context: Context,
    stream: Stream,
    /// The last command, if what the driver needs after it counts as part of the next launch.
    last: Mutex<Option<Event>>,
}

#[derive(Debug)]
pub(super) struct Stream {
    context: Context,
    handle: Handle,
}

// SAFETY: the driver's functions on streams may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Has an event happen when all before it is done.
    pub fn record(&self, event: Handle) -> Result<(), GpuError> {
        let api = self.context.api()?;
        // SAFETY: both live.
        done("cuEventRecord", unsafe { (api.record)(event, self.handle) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(api) = self.context.api() {
            // SAFETY: this is its only owner. What was given to it is still done.
            let _ = unsafe { (api.destroy_stream)(self.handle) };
        }
    }
}

impl Queue {
    /// A queue whose commands have timestamps.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(context: &Context) -> Result<Queue, GpuError> {
        let (api, mut handle) = (context.api()?, ptr::null_mut());
        // SAFETY: the answer is one handle.
        done("cuStreamCreate", unsafe {
            (api.create_stream)(&mut handle, ffi::NON_BLOCKING)
        })?;
        Ok(Queue {
            stream: Stream {
                context: context.clone(),
                handle,
            },
            context: context.clone(),
            last: Mutex::default(),
        })
    }

    /// The next launch begins when the device comes to it, however long ago the command before it ended.
    pub fn pause(&self) {
        *self.last() = None;
    }

    fn last(&self) -> MutexGuard<'_, Option<Event>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `groups` groups of `items` work items of a kernel on a buffer; the buffer's address is its first argument.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// These are the kernel's arguments, with which it stays within the buffer, and no other command uses at the same
    /// time what it writes.
    pub unsafe fn launch(
        &self,
        kernel: &Kernel,
        buffer: &Buffer,
        arguments: &[Vec<u8>],
        groups: usize,
        items: usize,
        after: &[Event],
    ) -> Result<Event, GpuError> {
        let address = buffer.address.to_ne_bytes();
        let mut starts: Vec<*mut c_void> = [&address[..]]
            .into_iter()
            .chain(arguments.iter().map(Vec::as_slice))
            .map(|bytes| bytes.as_ptr().cast_mut().cast())
            .collect();
        let (groups, items) = (groups as c_uint, items as c_uint);
        self.next(after, |api| {
            // SAFETY: the driver copies the arguments before it returns; the caller promises the rest.
            done("cuLaunchKernel", unsafe {
                (api.launch)(
                    kernel.function(),
                    groups,
                    1,
                    1,
                    items,
                    1,
                    1,
                    0,
                    self.stream.handle,
                    starts.as_mut_ptr(),
                    ptr::null_mut(),
                )
            })
        })
    }

    /// Runs a product; `at` are the places in the buffer of a, b, what is added, c and the workspace.
    ///
    /// # Errors
    /// The library or the driver fails.
    ///
    /// # Safety
    /// The buffer has room for all of it there, aligned as was said when it was prepared, and no other command uses at
    /// the same time what this one writes.
    pub unsafe fn multiply(
        &self,
        product: &PreparedProduct,
        buffer: &Buffer,
        at: [u64; 5],
        after: &[Event],
    ) -> Result<Event, GpuError> {
        // SAFETY: the caller's promise.
        unsafe { product.run(self, buffer, at, after) }
    }

    /// Runs a convolution; `at` are the places in the buffer of its factors (x and w; w and the gradient of y; x and
    /// the gradient of y), of the bias, of the result and of the workspace.
    ///
    /// # Errors
    /// The library or the driver fails.
    ///
    /// # Safety
    /// The buffer has room for all of it there, and no other command uses at the same time what this one writes.
    pub unsafe fn convolve(
        &self,
        convolution: &PreparedConvolution,
        buffer: &Buffer,
        at: [u64; 5],
        after: &[Event],
    ) -> Result<Event, GpuError> {
        // SAFETY: the caller's promise.
        unsafe { convolution.run(self, buffer, at, after) }
    }

    /// Has a library give commands to the queue.
    pub(super) fn external(
        &self,
        after: &[Event],
        command: impl FnOnce(Handle) -> Result<(), GpuError>,
    ) -> Result<Event, GpuError> {
        self.next(after, |_| command(self.stream.handle))
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
        self.unless_empty(to.len(), after, |api| {
            let (to, bytes) = (to.as_mut_ptr().cast(), to.len());
            // SAFETY: `to` has room for the bytes, and the caller promises that it lives.
            done("cuMemcpyDtoHAsync", unsafe {
                (api.read)(to, from.address + start, bytes, self.stream.handle)
            })
        })
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
        self.unless_empty(from.len(), after, |api| {
            let (at, bytes) = (from.as_ptr().cast(), from.len());
            // SAFETY: `from` has that many bytes, and the caller promises that it lives.
            done("cuMemcpyHtoDAsync", unsafe {
                (api.write)(to.address + start, at, bytes, self.stream.handle)
            })
        })
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
        let bytes = bytes as usize;
        self.unless_empty(bytes, after, |api| {
            // SAFETY: the bytes are in the buffer.
            done("cuMemsetD8Async", unsafe {
                (api.fill)(to.address + start, byte, bytes, self.stream.handle)
            })
        })
    }

    /// Waits until all commands are done.
    ///
    /// # Errors
    /// One failed.
    pub fn finish(&self) -> Result<(), GpuError> {
        let api = self.context.api()?;
        // SAFETY: the stream lives.
        done("cuStreamSynchronize", unsafe {
            (api.finish)(self.stream.handle)
        })
    }

    /// Whether commands of this queue may wait for an event: it is of the same context.
    #[must_use]
    pub fn knows(&self, event: &Event) -> bool {
        event.is_of(&self.context)
    }

    fn unless_empty(
        &self,
        bytes: usize,
        after: &[Event],
        command: impl FnOnce(&'static Api) -> Result<(), GpuError>,
    ) -> Result<Option<Event>, GpuError> {
        if bytes == 0 {
            return Ok(None);
        }
        self.command(after, command).map(Some)
    }

    /// Gives a launch to the queue. Unless it waits for events it begins, by the clock, when the command before it ended:
    /// one mark of time between two launches instead of two is time that the device computes.
    fn next(
        &self,
        after: &[Event],
        command: impl FnOnce(&'static Api) -> Result<(), GpuError>,
    ) -> Result<Event, GpuError> {
        let before = self.last().take().filter(|_| after.is_empty());
        self.give(after, before, command)
    }

    /// Gives another command to the queue.
    fn command(
        &self,
        after: &[Event],
        command: impl FnOnce(&'static Api) -> Result<(), GpuError>,
    ) -> Result<Event, GpuError> {
        self.give(after, None, command)
    }

    fn give(
        &self,
        after: &[Event],
        before: Option<Event>,
        command: impl FnOnce(&'static Api) -> Result<(), GpuError>,
    ) -> Result<Event, GpuError> {
        let api = self.context.api()?;
        for event in after {
            // SAFETY: both live.
            done("cuStreamWaitEvent", unsafe {
                (api.wait_event)(self.stream.handle, event.handle(), 0)
            })?;
        }
        let event = Event::of(&self.context, &self.stream, before, || command(api))?;
        *self.last() = Some(event.clone());
        Ok(event)
    }
}
