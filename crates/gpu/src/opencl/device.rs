//! A device and what it says of itself.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::fmt;

use super::done;
use super::driver::{Driver, text};
use super::ffi::{self, Handle};
use crate::error::GpuError;

/// Work items of a group that a device must have at least.
pub const LEAST_GROUP_ITEMS: u64 = 256;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A graphics processor.
    Gpu,
    /// The host's processor.
    Cpu,
    /// Anything else.
    Other,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Gpu => "GPU",
            Kind::Cpu => "CPU",
            Kind::Other => "accelerator",
        })
    }
}

/// A device.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) library: &'static Driver,
    pub(crate) id: Handle,
    /// Its name.
    pub name: String,
    /// Who made it.
    pub vendor: String,
    /// Whose driver it is.
    pub platform: String,
    /// Version of the driver.
    pub driver: String,
    /// Major and minor version of OpenCL.
    pub version: (u32, u32),
    /// What it is.
    pub kind: Kind,
    /// Its memory.
    pub memory_bytes: u64,
    /// The largest buffer, and so the largest arena.
    pub largest_buffer_bytes: u64,
    /// Memory that a group of work items shares.
    pub local_bytes: u64,
    /// Work items of the largest group.
    pub group_items: u64,
    /// Groups that compute at once.
    pub units: u32,
    /// Alignment of buffers and their parts.
    pub alignment_bytes: u64,
    /// Whether it computes in 64 bits.
    pub double: bool,
    little_endian: bool,
    available: bool,
    compiler: bool,
}

// SAFETY: a device's handle is a constant of its driver, whose functions may be called from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn new(
        library: &'static Driver,
        id: Handle,
        platform: String,
    ) -> Result<Device, GpuError> {
        let ask = Ask { library, id };
        let kind = match ask.number::<u64>(ffi::DEVICE_TYPE)? {
            kind if kind & ffi::TYPE_GPU != 0 => Kind::Gpu,
            kind if kind & ffi::TYPE_CPU != 0 => Kind::Cpu,
            _ => Kind::Other,
        };
        let yes = |what| Ok::<_, GpuError>(ask.number::<u32>(what)? != 0);
        // The answer has the width of the host's words.
        let group_items = ask.number::<usize>(ffi::DEVICE_MAX_WORK_GROUP_SIZE)? as u64;
        Ok(Device {
            library,
            id,
            name: ask.text(ffi::DEVICE_NAME)?,
            vendor: ask.text(ffi::DEVICE_VENDOR)?,
            platform,
            driver: ask.text(ffi::DRIVER_VERSION)?,
            version: version(&ask.text(ffi::DEVICE_VERSION)?),
            kind,
            memory_bytes: ask.number(ffi::DEVICE_GLOBAL_MEM_SIZE)?,
            largest_buffer_bytes: ask.number(ffi::DEVICE_MAX_MEM_ALLOC_SIZE)?,
            local_bytes: ask.number(ffi::DEVICE_LOCAL_MEM_SIZE)?,
            group_items,
            units: ask.number(ffi::DEVICE_MAX_COMPUTE_UNITS)?,
            alignment_bytes: u64::from(ask.number::<u32>(ffi::DEVICE_MEM_BASE_ADDR_ALIGN)? / 8),
            // Older drivers don't know the question.
            double: ask.number::<u64>(ffi::DEVICE_DOUBLE_FP_CONFIG).unwrap_or(0) != 0,
            little_endian: yes(ffi::DEVICE_ENDIAN_LITTLE)?,
            available: yes(ffi::DEVICE_AVAILABLE)?,
            compiler: yes(ffi::DEVICE_COMPILER_AVAILABLE)?,
        })
    }

    /// What it lacks to run kernels for us, each as the end of "it …".
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let (major, minor) = self.version;
        let items = self.group_items;
        [
            (!self.available, "isn't available".to_string()),
            (
                self.version < (1, 2),
                format!("has OpenCL {major}.{minor} and needs 1.2"),
            ),
            (!self.compiler, "has no compiler".to_string()),
            (!self.little_endian, "is big-endian".to_string()),
            (
                items < LEAST_GROUP_ITEMS,
                format!("has groups of {items} work items and needs {LEAST_GROUP_ITEMS}"),
            ),
        ]
        .into_iter()
        .filter_map(|(lacks, what)| lacks.then_some(what))
        .collect()
    }
}

struct Ask {
    library: &'static Driver,
    id: Handle,
}

/// The types of answers that are numbers.
trait Number: Default {}
impl Number for u32 {}
impl Number for u64 {}
impl Number for usize {}

impl Ask {
    fn number<T: Number>(&self, what: u32) -> Result<T, GpuError> {
        let mut answer = T::default();
        let to = (&raw mut answer).cast();
        // SAFETY: the answer has room for that many bytes, and any bytes are a number.
        let status = unsafe {
            (self.library.api.device_info)(self.id, what, size_of::<T>(), to, std::ptr::null_mut())
        };
        done("clGetDeviceInfo", status)?;
        Ok(answer)
    }

    fn text(&self, what: u32) -> Result<String, GpuError> {
        text("clGetDeviceInfo", |bytes, to, length| {
            // SAFETY: `to` has room for `bytes` bytes.
            unsafe { (self.library.api.device_info)(self.id, what, bytes, to, length) }
        })
    }
}

/// The numbers in "OpenCL 3.0 …"; (0, 0) if there are none.
fn version(text: &str) -> (u32, u32) {
    let numbers = text
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.split_once('.'));
    let parsed =
        numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parsed.unwrap_or((0, 0))
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_are_read() {
        assert_eq!(super::version("OpenCL 3.0 pocl"), (3, 0));
        assert_eq!(super::version("OpenCL 1.1"), (1, 1));
        assert_eq!(super::version("something else"), (0, 0));
    }
}
