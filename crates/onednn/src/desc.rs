//! Descriptors of memory: the shape of a tensor and how it lies.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ptr::null_mut;

use crate::error::{OneDnnError, done};
use crate::ffi::{Dims, Handle, MAX_RANK};
use crate::library::Library;

/// Shape and memory format of a tensor of 32-bit floats.
pub struct Desc {
    pub(crate) library: &'static Library,
    pub(crate) handle: Handle,
}

// SAFETY: a descriptor is a plain record that nothing changes after it was made.
unsafe impl Send for Desc {}
// SAFETY: as above.
unsafe impl Sync for Desc {}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.library.api.desc_destroy)(self.handle) };
    }
}

impl PartialEq for Desc {
    fn eq(&self, other: &Desc) -> bool {
        // SAFETY: both are alive.
        unsafe { (self.library.api.desc_equal)(self.handle, other.handle) != 0 }
    }
}

impl std::fmt::Debug for Desc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes())
    }
}

impl Desc {
    /// Bytes of memory that it describes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // SAFETY: the descriptor is alive.
        unsafe { (self.library.api.desc_size)(self.handle) }
    }

    /// Another one like it.
    ///
    /// # Errors
    /// The library has no memory left.
    pub fn duplicate(&self) -> Result<Desc, OneDnnError> {
        Desc::copy(self.library, self.handle)
    }

    /// A copy of a descriptor that something else owns.
    pub(crate) fn copy(library: &'static Library, of: Handle) -> Result<Desc, OneDnnError> {
        let mut handle = null_mut();
        // SAFETY: `of` is alive.
        done("dnnl_memory_desc_clone", unsafe {
            (library.api.desc_clone)(&raw mut handle, of)
        })?;
        Ok(Desc { library, handle })
    }
}

/// A list of at most [`MAX_RANK`] numbers as the library takes it.
pub(crate) fn dims(values: &[usize]) -> Dims {
    let mut dims = [0; MAX_RANK];
    for (to, &value) in dims.iter_mut().zip(values) {
        *to = value as i64;
    }
    dims
}
