//! A device in use, and memory on it.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ptr;
use std::sync::Arc;

use super::device::Device;
use super::done;
use super::ffi::{self, Api, Handle};
use crate::error::GpuError;

/// A device in use. Clones are the same context.
#[derive(Clone, Debug)]
pub struct Context(pub(crate) Arc<Owned>);

/// An object of the library that is released when its last owner is gone.
#[derive(Debug)]
pub(crate) struct Owned {
    pub device: Arc<Device>,
    pub handle: Handle,
    release: unsafe extern "C" fn(Handle) -> ffi::Status,
}

// SAFETY: the library's functions may be called from any thread; those that aren't safe at the same time on
// one object (setting a kernel's arguments) are called under a lock.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    pub fn new(
        device: &Arc<Device>,
        handle: Handle,
        release: impl Fn(&Api) -> unsafe extern "C" fn(Handle) -> ffi::Status,
    ) -> Owned {
        Owned {
            device: Arc::clone(device),
            handle,
            release: release(&device.library.api),
        }
    }

    pub fn api(&self) -> &'static Api {
        &self.device.library.api
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: this is the object's only owner, and its kind's function. There is nothing to do about a
        // failure.
        let _ = unsafe { (self.release)(self.handle) };
    }
}

impl Context {
    /// Takes a device into use.
    ///
    /// # Errors
    /// The device lacks something ([`Device::missing`]), or the driver refuses.
    pub fn new(device: &Device) -> Result<Context, GpuError> {
        let missing = device.missing();
        if !missing.is_empty() {
            let (device, missing) = (device.name.clone(), format!("it {}", missing.join(" and ")));
            return Err(GpuError::Lacking { device, missing });
        }
        let mut status = 0;
        // SAFETY: one device, no properties and no callback.
        let handle = unsafe {
            let create = device.library.api.create_context;
            create(
                ptr::null(),
                1,
                &device.id,
                ptr::null(),
                ptr::null_mut(),
                &mut status,
            )
        };
        done("clCreateContext", status)?;
        let device = Arc::new(device.clone());
        let owned = Owned::new(&device, handle, |api| api.release_context);
        Ok(Context(Arc::new(owned)))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Reserves memory with arbitrary contents.
    ///
    /// # Errors
    /// The device has no room, or no buffer can be that large.
    pub fn buffer(&self, bytes: u64) -> Result<Buffer, GpuError> {
        let full = GpuError::OutOfMemory { bytes };
        // Not every driver refuses such a size before the buffer is used.
        if bytes > self.0.device.memory_bytes {
            return Err(full);
        }
        let size = usize::try_from(bytes.max(1)).map_err(|_| full.clone())?;
        let mut status = 0;
        // SAFETY: no memory of the host is given.
        let handle = unsafe {
            let create = self.0.api().create_buffer;
            create(
                self.0.handle,
                ffi::MEM_READ_WRITE,
                size,
                ptr::null_mut(),
                &mut status,
            )
        };
        match status {
            ffi::MEM_OBJECT_ALLOCATION_FAILURE
            | ffi::OUT_OF_RESOURCES
            | ffi::OUT_OF_HOST_MEMORY
            | ffi::INVALID_BUFFER_SIZE => return Err(full),
            status => done("clCreateBuffer", status)?,
        }
        let owned = Owned::new(&self.0.device, handle, |api| api.release_buffer);
        Ok(Buffer { owned, bytes })
    }
}

/// Memory of a device.
#[derive(Debug)]
pub struct Buffer {
    pub(crate) owned: Owned,
    bytes: u64,
}

impl Buffer {
    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
