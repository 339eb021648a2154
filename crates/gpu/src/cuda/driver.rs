//! The loaded driver and its devices.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::c_int;
use std::fmt;
use std::path::{Path, PathBuf};

use super::device::Device;
use super::done;
use super::ffi::{self, driver::Api};
use crate::error::{GpuError, Library};
use crate::loading::Loaded;

/// The least version of CUDA that a driver must have, as it counts them: 12.0.
const LEAST_VERSION: c_int = 12_000;

/// NVIDIA's driver, loaded and initialized. It stays until the process ends.
pub struct Driver {
    pub(super) api: Api,
    path: PathBuf,
    /// Major and minor version of CUDA, the newest that it knows.
    pub version: (u32, u32),
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA's driver {}", self.path.display())
    }
}

static LOADED: Loaded<Driver> = Loaded::none();

impl Driver {
    /// Loads the driver from `explicit`, from the file that [`Library::variable`] names, or from where the system has
    /// it.
    ///
    /// # Errors
    /// It isn't there, can't be loaded, is too old or doesn't start.
    pub fn load(explicit: Option<&Path>) -> Result<&'static Driver, GpuError> {
        LOADED.load(Library::Cuda, explicit, |library, path| {
            let api = Api::of(library)?;
            let mut version = 0;
            // SAFETY: the answer is one number, which may be asked for first.
            let status = unsafe { (api.version)(&mut version) };
            if status != ffi::SUCCESS {
                return Err(format!("it doesn't say its version (status {status})"));
            }
            let (major, minor) = (version / 1000, version % 1000 / 10);
            if version < LEAST_VERSION {
                return Err(format!("it is for CUDA {major}.{minor}"));
            }
            // SAFETY: the flags must be 0.
            let status = unsafe { (api.init)(0) };
            if status != ffi::SUCCESS && status != ffi::NO_DEVICE {
                return Err(format!("`cuInit` failed with status {status}"));
            }
            Ok(Driver {
                api,
                path: path.to_path_buf(),
                version: (major as u32, minor as u32),
            })
        })
    }

    /// The file it was loaded from, or the name by which the system's loader knew it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All devices.
    ///
    /// # Errors
    /// The driver doesn't answer.
    pub fn devices(&'static self) -> Result<Vec<Device>, GpuError> {
        let mut count = 0;
        // SAFETY: the answer is one number.
        match unsafe { (self.api.count)(&mut count) } {
            // What a driver says that found none when it was initialized.
            ffi::NO_DEVICE | ffi::NOT_INITIALIZED => return Ok(Vec::new()),
            status => done("cuDeviceGetCount", status)?,
        }
        (0..count).map(|number| Device::new(self, number)).collect()
    }

    /// The device of this number.
    ///
    /// # Errors
    /// There are fewer devices, or the driver doesn't answer.
    pub fn device(&'static self, number: usize) -> Result<Device, GpuError> {
        let mut devices = self.devices()?;
        if number < devices.len() {
            return Ok(devices.swap_remove(number));
        }
        Err(GpuError::NoDevice {
            library: Library::Cuda,
            number,
            devices: devices.into_iter().map(|device| device.name).collect(),
        })
    }
}
