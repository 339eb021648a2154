//! Memories to swap to, as people write them: `ram=8GiB`, `disk:/scratch=50GiB`, `host=64GiB@12GB/s`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use crate::budget::Budget;
use crate::capacities::Capacities;
use crate::ids::DeviceId;
use crate::problem::{Device, Link, Problem, ProblemError};
use crate::units::{UnitError, parse_bytes};

/// How fast values travel between a memory and the devices that compute, in the problem's units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// Bytes per second into the memory.
    pub out: f64,
    /// Bytes per second back from the memory.
    pub back: f64,
    /// Seconds before the first byte of a copy arrives.
    pub latency: f64,
    /// Whether both directions share one queue (half duplex).
    pub half: bool,
    /// Seconds of computing that a second of copying takes.
    pub drag: f64,
}

/// The rate of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Bytes per second.
    Bytes(f64),
    /// The problem's units of memory per unit of cost.
    Units(f64),
}

/// The rates of the links to and from a memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Into the memory.
    pub out: Rate,
    /// Back from the memory.
    pub back: Rate,
    /// Whether both directions share one queue (half duplex).
    pub half: bool,
}

/// A memory to swap to.
#[derive(Clone, Debug, PartialEq)]
pub struct SwapMemory {
    /// The name that the memory's device gets.
    pub name: String,
    /// The folder of a file that is the memory; `None` for RAM.
    pub folder: Option<PathBuf>,
    /// Its capacity: [`Budget::Bytes`] or [`Budget::Units`].
    pub capacity: Budget,
    /// How fast its links are, where that isn't measured.
    pub rates: Option<Rates>,
}

/// Why a memory to swap to can't be read or added.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SwapError {
    /// A text of another form.
    #[error(
        "`{text}` isn't a memory to swap to; write NAME=SIZE like `ram=8GiB` or `disk:/scratch=50GiB`, and where nothing is measured also the speed of its links, like `host=64GiB@12GB/s`"
    )]
    Syntax {
        /// The text.
        text: String,
    },
    /// A speed of another form.
    #[error(
        "`{text}` isn't the speed of a link; write bytes per second like `12GB/s`, `6GB/s/half` if both directions share it, or `170GB/s:411GB/s` for out and back"
    )]
    Rate {
        /// The text.
        text: String,
    },
    /// A size that isn't an amount of memory.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// A percentage or `min` as size.
    #[error("the size of memory `{name}` must be a number of bytes, like `{name}=8GiB`")]
    NotBytes {
        /// The memory.
        name: String,
    },
    /// A memory without a speed where links aren't measured.
    #[error(
        "nothing says how fast copies to memory `{name}` are; add it to its size, like `{name}=64GiB@12GB/s`"
    )]
    NoSpeed {
        /// The memory.
        name: String,
    },
    /// A speed in bytes per second for a problem that counts other units.
    #[error(
        "the problem counts memory in `{memory}` and cost in `{cost}`; write the speed of memory `{name}` as a plain number of `{memory}` per `{cost}`, like `@1.5`"
    )]
    NoUnits {
        /// The memory.
        name: String,
        /// The problem's unit of memory.
        memory: String,
        /// The problem's unit of cost.
        cost: String,
    },
    /// The problem with the memory isn't valid.
    #[error(transparent)]
    Problem(#[from] ProblemError),
}

impl FromStr for Rate {
    type Err = SwapError;

    fn from_str(text: &str) -> Result<Rate, SwapError> {
        let rate = match text.trim().strip_suffix("/s") {
            Some(bytes) => parse_bytes(bytes)
                .ok()
                .map(|bytes| Rate::Bytes(bytes as f64)),
            None => text.trim().parse().ok().map(Rate::Units),
        };
        rate.filter(|rate| rate.amount().is_finite() && rate.amount() > 0.0)
            .ok_or_else(|| SwapError::Rate { text: text.into() })
    }
}

impl Rate {
    fn amount(self) -> f64 {
        let (Rate::Bytes(amount) | Rate::Units(amount)) = self;
        amount
    }
}

impl FromStr for Rates {
    type Err = SwapError;

    fn from_str(text: &str) -> Result<Rates, SwapError> {
        let (both, half) = match text.trim().strip_suffix("/half") {
            Some(both) => (both, true),
            None => (text, false),
        };
        let (out, back) = both.split_once(':').unwrap_or((both, both));
        Ok(Rates {
            out: out.parse()?,
            back: back.parse()?,
            half,
        })
    }
}

impl FromStr for SwapMemory {
    type Err = SwapError;

    fn from_str(text: &str) -> Result<SwapMemory, SwapError> {
        let syntax = || SwapError::Syntax { text: text.into() };
        // A folder may contain any character but the size can't contain `=`.
        let (place, size) = text.rsplit_once('=').ok_or_else(syntax)?;
        let (name, folder) = match place.split_once(':') {
            Some((name, folder)) => (name.trim(), Some(PathBuf::from(folder))),
            None => (place.trim(), None),
        };
        let folder_is_empty = folder.as_ref().is_some_and(|f| f.as_os_str().is_empty());
        if name.is_empty() || folder_is_empty {
            return Err(syntax());
        }
        let (size, rates) = match size.split_once('@') {
            Some((size, rates)) => (size, Some(rates.parse()?)),
            None => (size, None),
        };
        let capacity: Budget = size.parse()?;
        if !matches!(capacity, Budget::Bytes(_) | Budget::Units(_)) {
            return Err(SwapError::NotBytes { name: name.into() });
        }
        Ok(SwapMemory {
            name: name.into(),
            folder,
            capacity,
            rates,
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Bytes(bytes) => write!(f, "{bytes}B/s"),
            Rate::Units(units) => write!(f, "{units}"),
        }
    }
}

impl SwapMemory {
    /// The problem and its capacities with this memory, whose links have the stated speed.
    ///
    /// # Errors
    /// If no speed is stated, the problem's units don't fit it, or the problem has a device of this name.
    pub fn add(
        &self,
        problem: &Problem,
        capacities: &Capacities,
    ) -> Result<(Problem, Capacities), SwapError> {
        let speed = self.speed(problem)?;
        self.add_with(problem, capacities, &speed)
    }

    /// The problem and its capacities with this memory, whose links have another speed than the stated one.
    ///
    /// # Errors
    /// If the size is in bytes and the problem's unit isn't, or the problem has a device of this name.
    pub fn add_with(
        &self,
        problem: &Problem,
        capacities: &Capacities,
        speed: &LinkSpeed,
    ) -> Result<(Problem, Capacities), SwapError> {
        let (problem, memory) = problem.with_memory(&self.name, speed)?;
        let bytes = self.capacity.bytes(&problem, memory, 0)?;
        let capacities = capacities.clone().with_bytes(memory, bytes);
        Ok((problem, capacities))
    }

    /// The stated speed in the problem's units.
    fn speed(&self, problem: &Problem) -> Result<LinkSpeed, SwapError> {
        let rates = self.rates.ok_or_else(|| SwapError::NoSpeed {
            name: self.name.clone(),
        })?;
        let units = problem.units();
        let convert = |rate: Rate| match (rate, units.bytes_per_unit(), units.seconds_per_unit()) {
            (Rate::Units(rate), _, _) => Ok(rate),
            (Rate::Bytes(rate), Some(bytes), Some(seconds)) => Ok(rate / bytes as f64 * seconds),
            (Rate::Bytes(_), _, _) => Err(SwapError::NoUnits {
                name: self.name.clone(),
                memory: units.memory.clone(),
                cost: units.cost.clone(),
            }),
        };
        Ok(LinkSpeed {
            out: convert(rates.out)?,
            back: convert(rates.back)?,
            latency: 0.0,
            half: rates.half,
            drag: 0.0,
        })
    }
}

impl Problem {
    /// This problem with one more memory, which doesn't compute, and links between it and every device that
    /// does; and the memory's device.
    ///
    /// # Errors
    /// If there is a device of this name, or a speed isn't positive.
    pub fn with_memory(
        &self,
        name: &str,
        speed: &LinkSpeed,
    ) -> Result<(Problem, DeviceId), ProblemError> {
        let mut parts = self.parts();
        let computing = self.devices().iter().filter(|(_, device)| device.computes);
        let computing: Vec<_> = computing.map(|(id, _)| id).collect();
        let memory = parts.devices.push(Device::memory(name));
        for device in computing {
            let out = parts
                .links
                .push(Link::new(device, memory, speed.out, speed.latency));
            let back = parts
                .links
                .push(Link::new(memory, device, speed.back, speed.latency));
            parts.links[back].queue = speed.half.then_some(out);
            for link in [out, back] {
                parts.links[link].drag = speed.drag;
            }
        }
        Ok((Problem::new(parts)?, memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> SwapMemory {
        text.parse().unwrap()
    }

    #[test]
    fn memories_are_read() {
        let ram = read("ram=8GiB");
        assert_eq!((ram.name.as_str(), ram.folder), ("ram", None));
        assert_eq!((ram.capacity, ram.rates), (Budget::Bytes(8 << 30), None));
        let disk = read("disk:/a=b:c=50GB");
        assert_eq!(disk.folder, Some(PathBuf::from("/a=b:c")));
        assert_eq!(disk.capacity, Budget::Bytes(50_000_000_000));
        let rates = read("host=64GiB@6GB/s/half").rates.unwrap();
        assert!(rates.half);
        assert_eq!([rates.out, rates.back], [Rate::Bytes(6e9); 2]);
        let rates = read("host=64@1.5:3").rates.unwrap();
        assert_eq!(
            [rates.out, rates.back],
            [Rate::Units(1.5), Rate::Units(3.0)]
        );
    }

    #[test]
    fn what_is_no_memory_is_told() {
        for text in [
            "",
            "8GiB",
            "=8GiB",
            "disk:=8GiB",
            "ram=",
            "ram=60%",
            "ram=min",
        ] {
            assert!(text.parse::<SwapMemory>().is_err(), "{text}");
        }
        for rate in [
            "",
            "12",
            "12GB",
            "-1",
            "0",
            "NaN",
            "inf",
            "12G/s",
            "0GB/s",
            "1:",
            "1/half/half",
        ] {
            let read = format!("ram=8GiB@{rate}").parse::<SwapMemory>();
            assert_eq!(read.is_ok(), rate == "12", "{rate}: {read:?}");
        }
    }
}
