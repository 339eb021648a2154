//! What a plan may use of each device. Capacities aren't part of a problem, because the same problem is
//! planned under many capacities.

use cranelift_entity::SecondaryMap;
use thiserror::Error;

use crate::ids::DeviceId;
use crate::problem::Problem;

/// What a plan may use of one device. `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capacity {
    /// Bytes in use at any time, including resident bytes.
    pub bytes: Option<u64>,
    /// Energy of all runs on the device.
    pub joules: Option<f64>,
}

/// What a plan may use of each device; a device that isn't mentioned is unlimited.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Capacities {
    of: SecondaryMap<DeviceId, Capacity>,
}

/// A name that no device has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no device `{name}`; the devices are {known}")]
pub struct UnknownDeviceName {
    /// The name that was asked for.
    pub name: String,
    /// The names of all devices.
    pub known: String,
}

impl Capacities {
    /// No limit anywhere.
    #[must_use]
    pub fn unlimited() -> Capacities {
        Capacities::default()
    }

    /// At most this many bytes of one device, no limit elsewhere.
    #[must_use]
    pub fn bytes_of(device: DeviceId, bytes: u64) -> Capacities {
        Capacities::default().with_bytes(device, Some(bytes))
    }

    /// These capacities with another limit on the bytes of one device.
    #[must_use]
    pub fn with_bytes(mut self, device: DeviceId, bytes: Option<u64>) -> Capacities {
        self.of[device].bytes = bytes;
        self
    }

    /// These capacities with another limit on the joules of one device.
    #[must_use]
    pub fn with_joules(mut self, device: DeviceId, joules: Option<f64>) -> Capacities {
        self.of[device].joules = joules;
        self
    }

    /// The most bytes that may be in use on a device at any time.
    #[must_use]
    pub fn bytes(&self, device: DeviceId) -> Option<u64> {
        self.of[device].bytes
    }

    /// The most joules that the runs on a device may take.
    #[must_use]
    pub fn joules(&self, device: DeviceId) -> Option<f64> {
        self.of[device].joules
    }
}

impl Problem {
    /// The device with this name.
    ///
    /// # Errors
    /// If no device has this name.
    pub fn device_named(&self, name: &str) -> Result<DeviceId, UnknownDeviceName> {
        let mut devices = self.devices().iter();
        let found = devices.find(|(_, device)| device.name == name);
        found.map(|(id, _)| id).ok_or_else(|| {
            let known: Vec<&str> = self.devices().values().map(|d| d.name.as_str()).collect();
            UnknownDeviceName {
                name: name.into(),
                known: known.join(", "),
            }
        })
    }
}
