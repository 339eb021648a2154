//! The devices that compute: pools of threads of this machine, each with its library of kernels and an arena of
//! its own, and what copies between them cost.

use std::collections::BTreeMap;
use std::str::FromStr;

use scrimp_graph::{Costs, Graph, Lowered, Phases, Roofline, Target, TensorId};
use scrimp_plan::{Device, DeviceId, Link, LinkSpeed, PerDevice, Problem};
use scrimp_run::{
    Compiled, CostCache, Cpu, Library, LinkProfile, Processor, conversion_seconds, converted,
    profile_link, wake_seconds,
};
use thiserror::Error;

use crate::error::Result;

/// A device as people write it: `NAME/THREADS`, like `cpu:0/1`, or `NAME/THREADS@LIBRARY`, like
/// `cpu:0/1@onednn`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Unique among the devices.
    pub name: String,
    /// Threads that compute.
    pub threads: usize,
    /// Whose kernels run; `None` is as for a single device.
    pub library: Option<Library>,
}

/// The most threads of one device.
const MOST_THREADS: usize = 1 << 12;

/// Why something isn't a list of devices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// A text that describes no device.
    #[error(
        "`{text}` isn't a device; write NAME/THREADS or NAME/THREADS@LIBRARY, like cpu:0/1@onednn, with a library of auto, native and onednn"
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

impl FromStr for DeviceSpec {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<DeviceSpec, DeviceError> {
        let read = || {
            let (name, rest) = text.trim().rsplit_once('/')?;
            let (threads, library) = match rest.split_once('@') {
                None => (rest, None),
                Some((threads, "auto")) => (threads, Some(Library::Auto)),
                Some((threads, "native")) => (threads, Some(Library::Native)),
                Some((threads, "onednn")) => (threads, Some(Library::OneDnn)),
                Some(_) => return None,
            };
            let threads = threads.parse().ok()?;
            let sound = !name.is_empty() && !name.contains(['=', ',']);
            (sound && (1..=MOST_THREADS).contains(&threads)).then(|| DeviceSpec {
                name: name.into(),
                threads,
                library,
            })
        };
        read().ok_or_else(|| DeviceError::Syntax { text: text.into() })
    }
}

/// The name of a device that is alone.
const ALONE: &str = "cpu";

/// The devices that compute, with their names.
#[derive(Debug)]
pub struct Devices(Vec<(String, Cpu)>);

impl Devices {
    /// One device, named `cpu`.
    pub fn one(cpu: Cpu) -> Devices {
        Devices(vec![(ALONE.into(), cpu)])
    }

    /// Starts these devices. `usual` is the library of those that name none.
    ///
    /// # Errors
    /// If two have one name, threads don't start, or a library isn't there.
    pub fn start(specs: &[DeviceSpec], usual: Library) -> Result<Devices> {
        let mut devices: Vec<(String, Cpu)> = Vec::new();
        for DeviceSpec {
            name,
            threads,
            library,
        } in specs
        {
            if devices.iter().any(|(other, _)| other == name) {
                return Err(DeviceError::Twice { name: name.clone() }.into());
            }
            let cpu = Cpu::with_library(*threads, library.unwrap_or(usual))?;
            devices.push((name.clone(), cpu));
        }
        Ok(Devices(devices))
    }

    /// Names and devices, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Cpu)> {
        self.0.iter().map(|(name, cpu)| (name.as_str(), cpu))
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
    pub fn first(&self) -> &Cpu {
        &self.0[0].1
    }

    /// A graph on each of them.
    pub fn compiled<'a>(&'a self, graph: &'a Graph) -> Vec<Compiled<'a>> {
        let each = self.iter();
        each.map(|(_, cpu)| Compiled::new(graph, Processor::Cpu(cpu)))
            .collect()
    }

    /// What times, workspaces and results depend on, for plan files.
    pub fn signature(&self) -> String {
        match &self.0[..] {
            [(_, cpu)] => cpu.signature(),
            all => {
                let each = all.iter();
                let each = each.map(|(name, cpu)| format!("{name}={}", cpu.signature()));
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
        let signatures: Vec<String> = self.iter().map(|(_, cpu)| cpu.signature()).collect();
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

/// What copies between devices cost: those of bytes, and those that change the format of a tensor because the two
/// devices store it differently. The change is part of the copy, as in XEngine (section 3.3), whose costs of copies
/// include it.
#[derive(Clone, Debug)]
pub struct Crossing {
    speed: LinkSpeed,
    /// What was measured of plain copies.
    pub profile: Option<LinkProfile>,
    /// For every two devices, by their numbers.
    converted: Vec<Converted>,
}

/// Two devices, and the seconds of the tensors that they store differently.
type Converted = ([usize; 2], Vec<(TensorId, f64)>);

/// An estimated change of format moves this part of the bytes per second that a plain copy does.
const CONVERTED: f64 = 0.25;

impl Crossing {
    /// Costs by the static model, which is the same on every machine: a copy reads and writes each byte once.
    pub fn estimate(compiled: &[Compiled<'_>]) -> Crossing {
        let Roofline {
            bytes_per_second,
            overhead,
            ..
        } = Roofline::default();
        let speed = LinkSpeed {
            out: bytes_per_second / 2.0,
            back: bytes_per_second / 2.0,
            latency: overhead,
            half: false,
            drag: 0.0,
        };
        let pair = |ends: [usize; 2]| {
            let [from, to] = ends.map(|number| &compiled[number]);
            let seconds = |tensor| {
                let bytes = from.graph().tensor(tensor).bytes() as f64;
                (tensor, bytes / (speed.out * CONVERTED))
            };
            let tensors = converted(from, to).into_iter();
            (ends, tensors.map(seconds).collect())
        };
        Crossing {
            speed,
            profile: None,
            converted: pairs(compiled.len()).map(pair).collect(),
        }
    }

    /// Measures what the cache hasn't, with at most `room` bytes for plain copies on each side.
    ///
    /// # Errors
    /// If there isn't enough memory.
    pub fn measure(
        devices: &Devices,
        compiled: &[Compiled<'_>],
        room: u64,
        mut cache: Option<&mut CostCache>,
        afresh: bool,
    ) -> Result<Crossing> {
        if compiled.len() < 2 {
            return Ok(Crossing::estimate(compiled));
        }
        let name = "between devices";
        let kept = cache.as_deref_mut().filter(|_| !afresh);
        let (link, mut known) = match kept {
            Some(cache) => (cache.find_link(name), cache.conversions()),
            None => (None, BTreeMap::new()),
        };
        let profile = match link {
            Some(profile) => profile,
            None => {
                let profile = profile_link(devices.first(), None, room)?;
                // Whoever makes a value wakes the thread that copies, and that one who needs the value.
                let latency = profile.latency + 2.0 * wake_seconds();
                LinkProfile { latency, ..profile }
            }
        };
        let before = known.len();
        let pair = |ends: [usize; 2]| {
            let [from, to] = ends.map(|number| &compiled[number]);
            Ok((ends, conversion_seconds(from, to, &mut known)?))
        };
        let converted = pairs(compiled.len()).map(pair).collect::<Result<_>>()?;
        if let Some(cache) = cache {
            if link.is_none() {
                cache.keep_link(name, &profile);
            }
            if known.len() > before {
                cache.keep_conversions(&known);
            }
        }
        Ok(Crossing {
            speed: profile.speed(),
            profile: Some(profile),
            converted,
        })
    }

    /// The problem with links between every two devices that compute.
    fn add(&self, lowered: Lowered) -> Result<Lowered> {
        let Lowered {
            problem,
            nodes,
            values,
        } = lowered;
        let devices = problem.devices().iter();
        let devices = devices.filter(|(_, what): &(DeviceId, &Device)| what.computes);
        let devices: Vec<DeviceId> = devices.map(|(id, _)| id).collect();
        let mut parts = problem.parts();
        let LinkSpeed {
            latency,
            half,
            drag,
            ..
        } = self.speed;
        for (ends, seconds) in &self.converted {
            let [from, to] = ends.map(|number| devices[number]);
            // A pair follows its reverse.
            let (forth, speed) = match from < to {
                true => (None, self.speed.out),
                false => (parts.links.keys().next_back(), self.speed.back),
            };
            let value = |&(tensor, seconds): &(TensorId, f64)| {
                let value = values[tensor].expand()?;
                Some((value, latency + seconds))
            };
            parts.links.push(Link {
                seconds: seconds.iter().filter_map(value).collect(),
                queue: forth.filter(|_| half),
                drag,
                ..Link::new(from, to, speed, latency)
            });
        }
        let problem = Problem::new(parts).map_err(scrimp_graph::GraphError::from)?;
        Ok(Lowered {
            problem,
            nodes,
            values,
        })
    }
}

/// Every ordered pair of this many devices; each pair is followed by its reverse.
fn pairs(count: usize) -> impl Iterator<Item = [usize; 2]> {
    let both = |first: usize, second: usize| [[first, second], [second, first]];
    (0..count).flat_map(move |first| (first + 1..count).flat_map(move |second| both(first, second)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read() {
        let spec = |name: &str, threads, library| DeviceSpec {
            name: name.into(),
            threads,
            library,
        };
        for (text, device) in [
            ("cpu:0/1", spec("cpu:0", 1, None)),
            ("a/b/12@onednn", spec("a/b", 12, Some(Library::OneDnn))),
            (" x/2@native ", spec("x", 2, Some(Library::Native))),
        ] {
            assert_eq!(text.parse(), Ok(device));
        }
        for text in [
            "",
            "cpu",
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
        assert!(Devices::start(&two, Library::Native).is_err());
    }

    #[test]
    fn each_pair_is_followed_by_its_reverse() {
        let all: Vec<_> = pairs(3).collect();
        assert_eq!(all, [[0, 1], [1, 0], [0, 2], [2, 0], [1, 2], [2, 1]]);
    }
}
