//! What is said once for the device that computes, or for several devices by name: `2GiB`, or
//! `cpu=4GiB,gpu=2GiB`.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

use crate::capacities::UnknownDeviceName;
use crate::ids::DeviceId;
use crate::problem::Problem;

/// Something for each of some devices.
#[derive(Clone, Debug, PartialEq)]
pub enum PerDevice<T> {
    /// For the device that computes, where there is one.
    Sole(T),
    /// By the names of devices, each at most once, in the order given.
    Named(Vec<(String, T)>),
}

/// Why a text isn't for devices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PerDeviceError<E> {
    /// What is said isn't what it should be.
    #[error(transparent)]
    What(E),
    /// An entry of a list without a name.
    #[error("`{entry}` doesn't say for which device it is; write NAME={entry}")]
    NoName {
        /// The entry.
        entry: String,
    },
    /// A name twice.
    #[error("device `{name}` is there twice; name it once")]
    Twice {
        /// The name.
        name: String,
    },
}

/// Why there is no device for what was said.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoDevice {
    /// A name that no device has.
    #[error(transparent)]
    Unknown(#[from] UnknownDeviceName),
    /// One for all of several devices that compute.
    #[error("several devices compute: {known}; say which is meant, like `{first}=…`")]
    Several {
        /// Their names.
        known: String,
        /// The first name.
        first: String,
    },
}

impl<T: FromStr> FromStr for PerDevice<T> {
    type Err = PerDeviceError<T::Err>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = |text: &str| text.trim().parse::<T>().map_err(PerDeviceError::What);
        if !text.contains('=') {
            return Ok(PerDevice::Sole(read(text)?));
        }
        let mut named: Vec<(String, T)> = Vec::new();
        for entry in text.split(',') {
            let Some((name, what)) = entry.split_once('=') else {
                let entry = entry.trim().to_owned();
                return Err(PerDeviceError::NoName { entry });
            };
            let name = name.trim().to_owned();
            if named.iter().any(|(other, _)| *other == name) {
                return Err(PerDeviceError::Twice { name });
            }
            named.push((name, read(what)?));
        }
        Ok(PerDevice::Named(named))
    }
}

impl<T: fmt::Display> fmt::Display for PerDevice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PerDevice::Sole(what) => what.fmt(f),
            PerDevice::Named(named) => {
                for (i, (name, what)) in named.iter().enumerate() {
                    let comma = if i > 0 { "," } else { "" };
                    write!(f, "{comma}{name}={what}")?;
                }
                Ok(())
            }
        }
    }
}

impl<T> PerDevice<T> {
    /// What is said for a device of this name, or for the only one that computes.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&T> {
        match self {
            PerDevice::Sole(what) => Some(what),
            PerDevice::Named(named) => {
                let mut named = named.iter();
                named.find(|(other, _)| other == name).map(|(_, what)| what)
            }
        }
    }

    /// The devices of a problem that something is said for.
    ///
    /// # Errors
    /// A name that no device has, or no name where several devices compute.
    pub fn of(&self, problem: &Problem) -> Result<Vec<(DeviceId, &T)>, NoDevice> {
        match self {
            PerDevice::Named(named) => named
                .iter()
                .map(|(name, what)| Ok((problem.device_named(name)?, what)))
                .collect(),
            PerDevice::Sole(what) => match problem.sole_device() {
                Some(device) => Ok(vec![(device, what)]),
                None => {
                    let computing = problem.devices().values().filter(|device| device.computes);
                    let names: Vec<&str> = computing.map(|device| device.name.as_str()).collect();
                    Err(NoDevice::Several {
                        known: names.join(", "),
                        first: names.first().copied().unwrap_or_default().into(),
                    })
                }
            },
        }
    }
}
