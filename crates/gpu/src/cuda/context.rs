//! A device in use, and memory on it.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::c_uint;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::device::Device;
use super::event::Clock;
use super::ffi::{self, Address, Handle, driver::Api};
use super::host::Words;
use super::{Locked, done};
use crate::error::GpuError;

/// A device in use: its primary context. Clones are the same.
#[derive(Clone, Debug)]
pub struct Context(Arc<Owned>);

/// A device that is in use as long as others use it.
#[derive(Debug)]
pub(super) struct WeakContext(Weak<Owned>);

impl WeakContext {
    pub fn upgrade(&self) -> Option<Context> {
        self.0.upgrade().map(Context)
    }
}

#[derive(Debug)]
struct Owned {
    device: Device,
    handle: Handle,
    /// Events that nobody uses now.
    events: Mutex<Vec<Handle>>,
    /// Parts of locked main memory that nobody uses now, and the blocks that they are of.
    words: Mutex<(Vec<*mut i64>, Vec<*mut i64>)>,
    clock: Clock,
}

// SAFETY: the driver's functions may be called from any thread in which the context is current, as `Context::api` makes
// it; lists are behind locks.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        let api = &self.device.driver.api;
        let (events, words) = (self.events.get_mut(), self.words.get_mut());
        let events = events.unwrap_or_else(PoisonError::into_inner);
        let (_, blocks) = words.unwrap_or_else(PoisonError::into_inner);
        // SAFETY: nobody else has these any more, since everything that is made on a context holds it. There is nothing
        // to do about a failure.
        unsafe {
            let _ = (api.set_current)(self.handle);
            for &event in events.iter().chain(&self.clock.last()) {
                let _ = (api.destroy_event)(event);
            }
            for &block in &*blocks {
                let _ = (api.free_host)(block.cast());
            }
            let _ = (api.release)(self.device.id);
        }
    }
}

impl Context {
    /// Takes a device into use.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(device: &Device) -> Result<Context, GpuError> {
        let mut handle = ptr::null_mut();
        // SAFETY: the device is one that the driver named.
        let status = unsafe { (device.driver.api.retain)(&mut handle, device.id) };
        match status {
            ffi::OUT_OF_MEMORY => return Err(GpuError::OutOfMemory { bytes: 0 }),
            status => done("cuDevicePrimaryCtxRetain", status)?,
        }
        Ok(Context(Arc::new(Owned {
            device: device.clone(),
            handle,
            events: Mutex::default(),
            words: Mutex::default(),
            clock: Clock::default(),
        })))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Whether both are the same device in use.
    #[must_use]
    pub fn is(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The driver's functions, for this context in this thread.
    pub(super) fn api(&self) -> Result<&'static Api, GpuError> {
        let api = &self.0.device.driver.api;
        // SAFETY: the context lives as long as this.
        done("cuCtxSetCurrent", unsafe {
            (api.set_current)(self.0.handle)
        })?;
        Ok(api)
    }

    pub(super) fn weak(&self) -> WeakContext {
        WeakContext(Arc::downgrade(&self.0))
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Reserves memory with arbitrary contents.
    ///
    /// # Errors
    /// The device has no room.
    pub fn buffer(&self, bytes: u64) -> Result<Buffer, GpuError> {
        let full = GpuError::OutOfMemory { bytes };
        let size = usize::try_from(bytes.max(1)).map_err(|_| full.clone())?;
        let (api, mut address) = (self.api()?, 0);
        // SAFETY: the answer is one address.
        match unsafe { (api.allocate)(&mut address, size) } {
            ffi::OUT_OF_MEMORY => return Err(full),
            status => done("cuMemAlloc", status)?,
        }
        Ok(Buffer {
            context: self.clone(),
            address,
            bytes,
        })
    }

    /// Locks main memory in its place, so that copies from and to it run beside the host and beside kernels.
    ///
    /// # Errors
    /// The system doesn't lock that much.
    ///
    /// # Safety
    /// The memory lives until the guard is gone.
    pub unsafe fn lock(&self, start: *mut u8, bytes: u64) -> Result<Locked, GpuError> {
        // SAFETY: the caller's promise.
        unsafe { Locked::new(self, start, bytes) }
    }

    /// Two numbers in locked main memory, both 0.
    ///
    /// # Errors
    /// The system doesn't lock more memory.
    pub fn words(&self) -> Result<Words, GpuError> {
        let mut words = self.0.words.lock().unwrap_or_else(PoisonError::into_inner);
        let (free, blocks) = &mut *words;
        if free.is_empty() {
            let mut block = ptr::null_mut();
            let bytes = Words::PER_BLOCK * Words::BYTES;
            // SAFETY: the answer is one address.
            let status = unsafe { (self.api()?.allocate_host)(&mut block, bytes, ffi::PORTABLE) };
            let bytes = bytes as u64;
            done("cuMemHostAlloc", status).map_err(|_| GpuError::NotLocked { bytes, status })?;
            let block = block.cast::<i64>();
            blocks.push(block);
            let each = Words::BYTES / size_of::<i64>();
            // SAFETY: these are inside of the block.
            free.extend((0..Words::PER_BLOCK).map(|i| unsafe { block.add(i * each) }));
        }
        let at = free.pop().unwrap_or(ptr::null_mut());
        // SAFETY: a part of a block that lives as long as the context, and nobody else has it.
        Ok(unsafe { Words::new(self, at) })
    }

    pub(super) fn give_back_words(&self, at: *mut i64) {
        let mut words = self.0.words.lock().unwrap_or_else(PoisonError::into_inner);
        words.0.push(at);
    }

    /// An event, used before or new.
    pub(super) fn event(&self) -> Result<Handle, GpuError> {
        let mut events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = events.pop() {
            return Ok(event);
        }
        let (api, mut event) = (self.api()?, ptr::null_mut());
        let flags: c_uint = ffi::BLOCKING_SYNC;
        // SAFETY: the answer is one handle.
        done("cuEventCreate", unsafe {
            (api.create_event)(&mut event, flags)
        })?;
        Ok(event)
    }

    pub(super) fn give_back_event(&self, event: Handle) {
        let mut events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push(event);
    }
}

/// Memory of a device.
#[derive(Debug)]
pub struct Buffer {
    context: Context,
    pub(super) address: Address,
    bytes: u64,
}

impl Buffer {
    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Ok(api) = self.context.api() {
            // SAFETY: this is its only owner. Freeing waits for what the device still does.
            let _ = unsafe { (api.free)(self.address) };
        }
    }
}
