//! Settings that apply to the device that computes, or to several devices by name: `2GiB`, or
//! `cpu=4GiB,gpu=2GiB`.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

use crate::capacities::UnknownDeviceName;
use crate::ids::DeviceId;
use crate::problem::Problem;

/// A setting for one or several devices.
#[derive(Clone, Debug, PartialEq)]
pub enum PerDevice<T> {
    /// For the only device that computes.
    Sole(T),
    /// By the names of devices, each at most once, in the given order.
    Named(Vec<(String, T)>),
}

/// Why a text isn't a setting for devices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PerDeviceError<E> {
    /// The setting itself isn't valid.
    #[error(transparent)]
    What(E),
    /// An entry of a list without a name.
    #[error("`{entry}` doesn't say for which device it is; write NAME={entry}")]
    NoName {
        /// The entry.
        entry: String,
    },
    /// A name that occurs twice.
    #[error("device `{name}` is named twice; name it once")]
    Twice {
        /// The name.
        name: String,
    },
}

/// Why a setting belongs to no device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoDevice {
    /// A name that no device has.
    #[error(transparent)]
    Unknown(#[from] UnknownDeviceName),
    /// A setting without a name where several devices compute.
    #[error("several devices compute: {known}; say what each gets, like `{example}`")]
    Several {
        /// Their names.
        known: String,
        /// A setting for each.
        example: String,
    },
}

impl NoDevice {
    /// The error of a setting without a name where devices with these names compute.
    #[must_use]
    pub fn several(names: &[&str]) -> NoDevice {
        NoDevice::Several {
            known: names.join(", "),
            example: names.join("=…,") + "=…",
        }
    }
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
    /// The setting for the device of this name, or for the only one that computes.
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

    /// The devices of a problem that have a setting, with their settings.
    ///
    /// # Errors
    /// If no device has one of the names, or a setting has no name and several devices compute.
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
                    Err(NoDevice::several(&names))
                }
            },
        }
    }
}
