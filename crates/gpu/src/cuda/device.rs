//! A device and what the driver says of it.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, c_char, c_int};

use super::driver::Driver;
use super::{done, ffi};
use crate::error::GpuError;

/// The longest name of a device.
const NAME_BYTES: usize = 256;

/// A device.
#[derive(Clone, Debug)]
pub struct Device {
    pub(super) driver: &'static Driver,
    pub(super) id: c_int,
    /// Its name.
    pub name: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Memory that a group of work items shares.
    pub local_bytes: u64,
    /// Work items of the largest group.
    pub group_items: u64,
    /// Multiprocessors.
    pub units: u32,
    /// Major and minor compute capability, the version of its instructions.
    pub capability: (u32, u32),
}

impl Device {
    pub(super) fn new(driver: &'static Driver, number: c_int) -> Result<Device, GpuError> {
        let api = &driver.api;
        let (mut id, mut memory) = (0, 0);
        let mut name: [c_char; NAME_BYTES] = [0; NAME_BYTES];
        // SAFETY: answers have room, the name's with its length.
        unsafe {
            done("cuDeviceGet", (api.device)(&mut id, number))?;
            let length = NAME_BYTES as c_int;
            done("cuDeviceGetName", (api.name)(name.as_mut_ptr(), length, id))?;
            done("cuDeviceTotalMem", (api.memory)(&mut memory, id))?;
        }
        let ask = |what| {
            let mut answer = 0;
            // SAFETY: the answer is one number.
            let status = unsafe { (api.attribute)(&mut answer, what, id) };
            done("cuDeviceGetAttribute", status).map(|()| answer.max(0) as u32)
        };
        // SAFETY: the driver ends the name with a zero within its length, and the last byte is one.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Ok(Device {
            driver,
            id,
            name: name.to_string_lossy().trim().to_string(),
            memory_bytes: memory as u64,
            local_bytes: u64::from(ask(ffi::MAX_SHARED_MEMORY_PER_BLOCK)?),
            group_items: u64::from(ask(ffi::MAX_THREADS_PER_BLOCK)?),
            units: ask(ffi::MULTIPROCESSOR_COUNT)?,
            capability: (
                ask(ffi::COMPUTE_CAPABILITY_MAJOR)?,
                ask(ffi::COMPUTE_CAPABILITY_MINOR)?,
            ),
        })
    }

    /// The driver's version of CUDA.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.driver.version
    }
}
