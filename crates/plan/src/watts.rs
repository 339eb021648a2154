//! Power: what devices and links draw while they work, as people write it: `cpu=15,gpu=120,cpu-gpu=5`.

use std::str::FromStr;

use thiserror::Error;

use crate::ids::{DeviceId, LinkId};
use crate::per_device::{NoDevice, PerDevice};
use crate::problem::{Problem, ProblemError};
use crate::units::{Decimal, UnitError};

/// Parses power as a number of watts: `15` or `15W`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Watts(pub f64);

impl FromStr for Watts {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Watts, UnitError> {
        let number = text.trim();
        let number = number.strip_suffix('W').unwrap_or(number).trim_end();
        let number = Decimal::parse(number).ok_or_else(|| UnitError::Syntax {
            text: text.into(),
            what: "a power",
            examples: "watts like `15` or `0.5`",
        })?;
        Ok(Watts(number.value()))
    }
}

/// Why joules don't follow from watts.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum WattsError {
    /// A name that neither a device nor a link has, or power without a name where several devices compute.
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
    /// A problem whose costs aren't times.
    #[error(
        "the problem counts cost in `{unit}`, which is no time; state joules in its file instead"
    )]
    NoTime {
        /// The unit.
        unit: String,
    },
    /// A link whose copies take stated times.
    #[error(
        "the seconds of copies over `{link}` are stated value by value; state its joules in the file instead"
    )]
    Stated {
        /// The link.
        link: String,
    },
    /// Numbers that are too large.
    #[error(transparent)]
    Problem(#[from] ProblemError),
}

impl Problem {
    /// A link by the names of both devices: `cpu-gpu`.
    fn link_named(&self, name: &str) -> Option<LinkId> {
        let end = |device: DeviceId| &self.devices()[device].name;
        let mut links = self.links().iter();
        let found = links.find(|(_, link)| format!("{}-{}", end(link.from), end(link.to)) == name);
        found.map(|(id, _)| id)
    }

    /// The problem in which runs and copies take power · seconds of energy. Where a device or link isn't named, its
    /// joules stay as they are.
    ///
    /// # Errors
    /// If a name is unknown, or seconds aren't known.
    pub fn with_watts(&self, watts: &PerDevice<Watts>) -> Result<Problem, WattsError> {
        let unit = self.units().seconds_per_unit();
        let unit = unit.ok_or_else(|| WattsError::NoTime {
            unit: self.units().cost.clone(),
        })?;
        let mut parts = self.parts();
        let (mut devices, mut links) = (Vec::new(), Vec::new());
        match watts {
            PerDevice::Sole(_) => devices = watts.of(self).map_err(WattsError::from)?,
            PerDevice::Named(named) => {
                for (name, power) in named {
                    match (self.device_named(name), self.link_named(name)) {
                        (Ok(device), _) => devices.push((device, power)),
                        (Err(_), Some(link)) => links.push((link, name, power)),
                        (Err(unknown), None) => return Err(NoDevice::from(unknown).into()),
                    }
                }
            }
        }
        for (device, power) in devices {
            let modes = parts.tasks.values_mut().flat_map(|task| &mut task.modes);
            for mode in modes.filter(|mode| mode.device == device) {
                mode.joules = power.0 * mode.seconds * unit;
            }
        }
        for (link, name, power) in links {
            let link = &mut parts.links[link];
            if !link.seconds.is_empty() {
                return Err(WattsError::Stated { link: name.clone() });
            }
            link.joules = power.0 * link.latency * unit;
            link.joules_per_byte = power.0 / link.bandwidth * unit;
        }
        Ok(Problem::new(parts)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Device, Link, Mode, Phase, ProblemParts, Task};

    fn problem() -> Problem {
        let mut parts = ProblemParts::default();
        let cpu = parts.devices.push(Device::computing("cpu"));
        let gpu = parts.devices.push(Device::computing("gpu"));
        parts.links.push(Link::new(cpu, gpu, 4.0, 0.5));
        let mode = |device, seconds| Mode {
            device,
            seconds,
            joules: 1.0,
            workspace: 0,
            resident: 0,
        };
        parts.tasks.push(Task {
            name: "task".into(),
            phase: Phase::Forward,
            inputs: Vec::new(),
            outputs: Vec::new(),
            overwrites: Vec::new(),
            modes: vec![mode(cpu, 2.0), mode(gpu, 3.0)],
            rerunnable: true,
        });
        parts.units.cost = "ms".into();
        Problem::new(parts).expect("valid")
    }

    fn with(text: &str) -> Result<Problem, WattsError> {
        problem().with_watts(&text.parse().expect("watts"))
    }

    #[test]
    fn energy_is_power_times_time() {
        let made = with("cpu=5W,cpu-gpu=8").expect("valid");
        let joules: Vec<f64> = made
            .tasks()
            .values()
            .next()
            .expect("a task")
            .modes
            .iter()
            .map(|mode| mode.joules)
            .collect();
        assert_eq!(joules, [0.01, 1.0]);
        let link = made.links().values().next().expect("a link");
        assert_eq!((link.joules, link.joules_per_byte), (0.004, 0.002));
    }

    #[test]
    fn what_has_no_power_is_told() {
        for (text, part) in [
            ("npu=5", "npu"),
            ("gpu-cpu=5", "gpu-cpu"),
            ("5", "several devices compute"),
        ] {
            let told = with(text).expect_err(text).to_string();
            assert!(told.contains(part), "{told}");
        }
        for text in ["", "-5", "5J", "W", "1e400", "5 V"] {
            assert!(text.parse::<Watts>().is_err(), "{text}");
        }
    }
}
