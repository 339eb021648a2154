//! The loaded library and its devices.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::c_void;
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use super::device::{Device, Kind};
use super::done;
use super::ffi::{self, Api, Handle, Status};
use crate::error::{GpuError, Library};
use crate::loading::Loaded;

/// OpenCL's loader or a driver, loaded. It stays until the process ends.
pub struct Driver {
    pub(crate) api: Api,
    path: PathBuf,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenCL of {}", self.path.display())
    }
}

static LOADED: Loaded<Driver> = Loaded::none();

/// Held while devices are asked for: pocl sets them up at the first question, and a second thread that asks at the
/// same time finds them half made.
static ASKING: Mutex<()> = Mutex::new(());

impl Driver {
    /// Loads the library from `explicit`, from the file that [`Library::variable`] names, or from where the system
    /// has it.
    ///
    /// # Errors
    /// It isn't there, can't be loaded, or lacks a function of OpenCL 1.2.
    pub fn load(explicit: Option<&Path>) -> Result<&'static Driver, GpuError> {
        LOADED.load(Library::OpenCl, explicit, |library, path| {
            let (api, path) = (Api::of(library)?, path.to_path_buf());
            Ok(Driver { api, path })
        })
    }

    /// The file it was loaded from, or the name by which the system's loader knew it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All devices of all platforms, GPUs first and the host's processors last; none if no driver is installed.
    ///
    /// # Errors
    /// A driver doesn't answer.
    pub fn devices(&'static self) -> Result<Vec<Device>, GpuError> {
        let _alone = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
        let platforms = list(
            "clGetPlatformIDs",
            ffi::PLATFORM_NOT_FOUND,
            |n, ids, count| {
                // SAFETY: `ids` has room for `n` platforms.
                unsafe { (self.api.platforms)(n, ids, count) }
            },
        )?;
        let mut devices = Vec::new();
        for platform in platforms {
            let name = text("clGetPlatformInfo", |bytes, to, length| {
                // SAFETY: `to` has room for `bytes` bytes.
                unsafe { (self.api.platform_info)(platform, ffi::PLATFORM_NAME, bytes, to, length) }
            })?;
            let ids = list("clGetDeviceIDs", ffi::DEVICE_NOT_FOUND, |n, ids, count| {
                // SAFETY: `ids` has room for `n` devices.
                unsafe { (self.api.devices)(platform, ffi::TYPE_ALL, n, ids, count) }
            })?;
            for id in ids {
                devices.push(Device::new(self, id, name.clone())?);
            }
        }
        devices.sort_by_key(|device| match device.kind {
            Kind::Gpu => 0,
            Kind::Other => 1,
            Kind::Cpu => 2,
        });
        Ok(devices)
    }

    /// The device of this number among [`Driver::devices`].
    ///
    /// # Errors
    /// There are fewer devices, or a driver doesn't answer.
    pub fn device(&'static self, number: usize) -> Result<Device, GpuError> {
        let mut devices = self.devices()?;
        if number < devices.len() {
            return Ok(devices.swap_remove(number));
        }
        let devices = devices.into_iter().map(|device| device.name).collect();
        Err(GpuError::NoDevice {
            library: Library::OpenCl,
            number,
            devices,
        })
    }
}

/// What a function lists that is first asked for the number; nothing if it answers `none`.
fn list(
    call: &'static str,
    none: Status,
    ask: impl Fn(u32, *mut Handle, *mut u32) -> Status,
) -> Result<Vec<Handle>, GpuError> {
    let mut count = 0;
    match ask(0, ptr::null_mut(), &mut count) {
        status if status == none => return Ok(Vec::new()),
        status => done(call, status)?,
    }
    let mut ids = vec![ptr::null_mut(); count as usize];
    if count > 0 {
        done(call, ask(count, ids.as_mut_ptr(), ptr::null_mut()))?;
    }
    Ok(ids)
}

/// The bytes that a function answers that is first asked for their number.
pub(crate) fn bytes(
    call: &'static str,
    ask: impl Fn(usize, *mut c_void, *mut usize) -> Status,
) -> Result<Vec<u8>, GpuError> {
    let mut length = 0;
    done(call, ask(0, ptr::null_mut(), &mut length))?;
    let mut bytes = vec![0u8; length];
    done(
        call,
        ask(length, bytes.as_mut_ptr().cast(), ptr::null_mut()),
    )?;
    Ok(bytes)
}

/// Like [`bytes`], for text that a zero ends.
pub(crate) fn text(
    call: &'static str,
    ask: impl Fn(usize, *mut c_void, *mut usize) -> Status,
) -> Result<String, GpuError> {
    let bytes = bytes(call, ask)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.trim_end_matches('\0').trim().to_string())
}
