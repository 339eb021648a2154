//! The devices that compute: pools of threads of this machine, each with its library of kernels, and GPUs.
//! Each has an arena of its own.

use std::str::FromStr;

use scrimp_graph::{Costs, Graph, Lowered, Phases, Target};
use scrimp_plan::PerDevice;
use scrimp_run::{Compiled, Cpu, Gpu, Interface, Library, Processor};
use thiserror::Error;

use crate::crossing::Crossing;
use crate::error::Result;
use crate::machine;

/// A device as people write it: `cpu` for all threads, `NAME/THREADS` for some of them, both perhaps with `@LIBRARY`,
/// like `cpu:0/1@onednn`; or `cuda:NUMBER` or `opencl:NUMBER`, the former perhaps
/// with `@vendor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Unique among the devices.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Threads of this machine.
    Cpu {
        /// How many; `None` is as many as a single device has.
        threads: Option<usize>,
        /// Whose kernels run; `None` is as for a single device.
        library: Option<Library>,
    },
    /// A GPU.
    Gpu {
        /// How it is reached.
        interface: Interface,
        /// Its number, as `scrimp doctor` counts those of an interface.
        number: usize,
        /// Whether the vendor's libraries compute what they can, and not only scrimp's own kernels.
        vendor: bool,
    },
}

/// The most threads of one device.
const MOST_THREADS: usize = 1 << 12;

/// Why something isn't a list of devices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// A text that describes no device.
    #[error(
        "`{text}` isn't a device; write cpu, NAME/THREADS (1 to {MOST_THREADS}), cuda:NUMBER or opencl:NUMBER, perhaps with @LIBRARY, like cpu:0/1@onednn or cuda:0@vendor, with a library of auto, native and onednn for a CPU, of native and vendor for a GPU"
    )]
    Syntax {
        /// As given.
        text: String,
    },
    /// A name that occurs twice.
    #[error("device `{name}` is named twice; give every device another name")]
    Twice {
        /// The name.
        name: String,
    },
}

/// The name of a device that is alone.
const ALONE: &str = "cpu";

impl FromStr for DeviceSpec {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<DeviceSpec, DeviceError> {
        spec(text.trim()).ok_or_else(|| DeviceError::Syntax { text: text.into() })
    }
}

fn spec(text: &str) -> Option<DeviceSpec> {
    for interface in Interface::ALL {
        let number = text.strip_prefix(interface.word());
        let Some(number) = number.and_then(|rest| rest.strip_prefix(':')) else {
            continue;
        };
        let (number, vendor) = match number.split_once('@') {
            None => (number, false),
            Some((number, "native")) => (number, false),
            Some((number, "vendor")) if interface == Interface::Cuda => (number, true),
            Some(_) => return None,
        };
        let number: usize = number.parse().ok()?;
        return Some(DeviceSpec {
            name: format!("{}:{number}", interface.word()),
            kind: DeviceKind::Gpu {
                interface,
                number,
                vendor,
            },
        });
    }
    let (text, library) = match text.rsplit_once('@') {
        None => (text, None),
        Some((text, "auto")) => (text, Some(Library::Auto)),
        Some((text, "native")) => (text, Some(Library::Native)),
        Some((text, "onednn")) => (text, Some(Library::OneDnn)),
        Some(_) => return None,
    };
    let (name, threads) = match text.rsplit_once('/') {
        None if text == ALONE => (text, None),
        None => return None,
        Some((name, threads)) => (name, Some(threads.parse().ok()?)),
    };
    let sound = !name.is_empty() && !name.contains(['=', ',']);
    let some = threads.is_none_or(|threads| (1..=MOST_THREADS).contains(&threads));
    (sound && some).then(|| DeviceSpec {
        name: name.into(),
        kind: DeviceKind::Cpu { threads, library },
    })
}

/// A device in use.
#[derive(Debug)]
enum Hardware {
    Cpu(Cpu),
    Gpu(Box<Gpu>),
}

/// The devices that compute, with their names.
#[derive(Debug)]
pub struct Devices(Vec<(String, Hardware)>);

impl Devices {
    /// One device, named `cpu`.
    pub fn one(cpu: Cpu) -> Devices {
        Devices(vec![(ALONE.into(), Hardware::Cpu(cpu))])
    }

    /// Starts these devices. `threads` and `library` are those of CPUs that name none; 0 threads are as many as there
    /// are. Compiled kernels are kept in the user's cache.
    ///
    /// # Errors
    /// If two have one name, threads don't start, a library isn't there, or there is no such GPU.
    pub fn start(specs: &[DeviceSpec], threads: usize, library: Library) -> Result<Devices> {
        let mut devices: Vec<(String, Hardware)> = Vec::new();
        for DeviceSpec { name, kind } in specs {
            if devices.iter().any(|(other, _)| other == name) {
                return Err(DeviceError::Twice { name: name.clone() }.into());
            }
            let hardware = match *kind {
                DeviceKind::Cpu {
                    threads: own,
                    library: kernels,
                } => {
                    let (threads, library) = (own.unwrap_or(threads), kernels.unwrap_or(library));
                    Hardware::Cpu(Cpu::with_library(threads, library)?)
                }
                DeviceKind::Gpu {
                    interface,
                    number,
                    vendor,
                } => {
                    let device = Gpu::new(interface, number, machine::cache_folder(), vendor);
                    Hardware::Gpu(Box::new(device.map_err(scrimp_run::RunError::from)?))
                }
            };
            devices.push((name.clone(), hardware));
        }
        Ok(Devices(devices))
    }

    /// Names and devices, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Processor<'_>)> {
        self.0.iter().map(|(name, hardware)| {
            let processor = match hardware {
                Hardware::Cpu(cpu) => Processor::Cpu(cpu),
                Hardware::Gpu(device) => Processor::Gpu(device),
            };
            (name.as_str(), processor)
        })
    }

    /// The same for each of them.
    pub fn all<T: Clone>(&self, what: T) -> PerDevice<T> {
        let each = self.iter();
        PerDevice::Named(each.map(|(name, _)| (name.into(), what.clone())).collect())
    }

    /// The first of them.
    ///
    /// # Panics
    /// The list is empty.
    pub fn first(&self) -> Processor<'_> {
        self.iter().next().expect("there is a device").1
    }

    /// A graph on each of them.
    pub fn compiled<'a>(&'a self, graph: &'a Graph) -> Vec<Compiled<'a>> {
        let each = self.iter();
        each.map(|(_, processor)| Compiled::new(graph, processor))
            .collect()
    }

    /// What times, workspaces and results depend on, for plan files.
    pub fn signature(&self) -> String {
        match self.0.len() {
            1 => self.first().signature(),
            _ => {
                let each = self.iter();
                let each = each.map(|(name, device)| format!("{name}={}", device.signature()));
                each.collect::<Vec<_>>().join(" ")
            }
        }
    }

    /// Stage 4, lower, for these devices: the planning problem, with links between every two of them. `phases` says
    /// where the nodes belong.
    ///
    /// # Errors
    /// If the graph can't be planned; see [`scrimp_graph::lower_onto()`].
    pub fn lower(
        &self,
        graph: &Graph,
        phases: &Phases,
        costs: &[Costs],
        crossing: &Crossing,
    ) -> Result<Lowered> {
        let signatures: Vec<String> = self.iter().map(|(_, device)| device.signature()).collect();
        let each = self.iter().zip(&signatures).zip(costs);
        let targets = each.map(|(((name, _), signature), costs)| Target {
            name,
            // As without a list of devices.
            arithmetic: if self.0.len() == 1 { name } else { signature },
            costs,
        });
        let targets: Vec<Target<'_>> = targets.collect();
        let lowered = scrimp_graph::lower_onto(graph, phases, &targets)?;
        crossing.add(lowered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read() {
        let spec = |name: &str, threads, library| DeviceSpec {
            name: name.into(),
            kind: DeviceKind::Cpu { threads, library },
        };
        for (text, device) in [
            ("cpu:0/1", spec("cpu:0", Some(1), None)),
            (
                "a/b/12@onednn",
                spec("a/b", Some(12), Some(Library::OneDnn)),
            ),
            (" x/2@native ", spec("x", Some(2), Some(Library::Native))),
            ("cpu", spec("cpu", None, None)),
            ("cpu@onednn", spec("cpu", None, Some(Library::OneDnn))),
            (
                "opencl:01",
                DeviceSpec {
                    name: "opencl:1".into(),
                    kind: DeviceKind::Gpu {
                        interface: Interface::OpenCl,
                        number: 1,
                        vendor: false,
                    },
                },
            ),
        ] {
            assert_eq!(text.parse(), Ok(device));
        }
        for text in [
            "",
            "gpu",
            "opencl",
            "opencl:",
            "opencl:-1",
            "opencl:0/2",
            "cpu/",
            "/1",
            "cpu/0",
            "cpu/-1",
            "cpu/1@mkl",
            "a=b/1",
            "cpu/99999",
        ] {
            assert!(text.parse::<DeviceSpec>().is_err(), "{text}");
        }
        let two = ["x/1", "x/2"].map(|text| text.parse().expect("a device"));
        assert!(Devices::start(&two, 1, Library::Native).is_err());
    }
}
