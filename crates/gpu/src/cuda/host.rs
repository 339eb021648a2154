//! Main memory that is locked in its place.

#![allow(unsafe_code, reason = "memory that the driver locks and writes")]

use super::Context;
use super::ffi;
use crate::error::GpuError;

/// Keeps main memory locked until it is gone.
#[derive(Debug)]
pub struct Locked {
    context: Context,
    start: *mut u8,
}

// SAFETY: the address is only handed to the driver, from any thread.
unsafe impl Send for Locked {}
// SAFETY: as above.
unsafe impl Sync for Locked {}

impl Locked {
    /// # Safety
    /// The memory lives until the guard is gone.
    pub(super) unsafe fn new(
        context: &Context,
        start: *mut u8,
        bytes: u64,
    ) -> Result<Locked, GpuError> {
        // SAFETY: the caller's promise.
        let status = unsafe {
            let register = context.api()?.register;
            register(start.cast(), bytes as usize, ffi::PORTABLE)
        };
        if status != ffi::SUCCESS {
            return Err(GpuError::NotLocked { bytes, status });
        }
        Ok(Locked {
            context: context.clone(),
            start,
        })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if let Ok(api) = self.context.api() {
            // SAFETY: the memory was locked by this, and still lives.
            let _ = unsafe { (api.unregister)(self.start.cast()) };
        }
    }
}

/// Two numbers in locked main memory, into which a device copies.
#[derive(Debug)]
pub struct Words {
    context: Context,
    at: *mut i64,
}

// SAFETY: it owns its memory.
unsafe impl Send for Words {}
// SAFETY: as above; it is only read through a shared reference.
unsafe impl Sync for Words {}

impl Words {
    pub(super) const BYTES: usize = 2 * size_of::<i64>();
    pub(super) const PER_BLOCK: usize = 256;

    /// # Safety
    /// The memory lives as long as the context, has room, and is nobody else's.
    pub(super) unsafe fn new(context: &Context, at: *mut i64) -> Words {
        let context = context.clone();
        let mut words = Words { context, at };
        words.get_mut().fill(0);
        words
    }

    /// The numbers.
    #[must_use]
    pub fn get(&self) -> &[i64] {
        // SAFETY: room for two numbers, which were set.
        unsafe { std::slice::from_raw_parts(self.at, 2) }
    }

    /// The numbers, for writing.
    pub fn get_mut(&mut self) -> &mut [i64] {
        // SAFETY: room for two numbers; any bytes are numbers.
        unsafe { std::slice::from_raw_parts_mut(self.at, 2) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        self.context.give_back_words(self.at);
    }
}
