//! An object of a library that is destroyed when its owner is gone.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ptr;

use super::ffi::{Handle, Status};
use crate::error::{GpuError, Library, unless_failed};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Object {
    pub handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> Status,
}

// SAFETY: the objects may be used from any thread, by one at a time; whoever changes them is behind a lock.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// What `create` makes.
    pub fn new(
        library: Library,
        call: &'static str,
        create: impl FnOnce(*mut Handle) -> Status,
        destroy: unsafe extern "C" fn(Handle) -> Status,
    ) -> Result<Object, GpuError> {
        let mut handle = ptr::null_mut();
        unless_failed(library, call, create(&mut handle))?;
        Ok(Object { handle, destroy })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: this is its only owner. There is nothing to do about a failure.
        let _ = unsafe { (self.destroy)(self.handle) };
    }
}
