//! What copies between devices that compute cost.

use std::collections::BTreeMap;

use scrimp_graph::{Lowered, Roofline, TensorId};
use scrimp_plan::{Device, DeviceId, Link, LinkSpeed, Problem};
use scrimp_run::{
    Compiled, CostCache, FarEnd, LinkProfile, Processor, conversion_seconds, converted,
    profile_link, wake_seconds,
};

use crate::error::Result;

/// What copies between devices cost: those of bytes, and those that change the format of a tensor because the two
/// devices store it differently. The change is part of the copy, as in XEngine (section 3.3), whose costs of copies
/// include it.
#[derive(Clone, Debug)]
pub struct Crossing {
    /// Every ordered pair of devices; each pair is followed by its reverse.
    pairs: Vec<Pair>,
}

/// Copies from one device to another.
#[derive(Clone, Debug)]
struct Pair {
    /// The devices, by their numbers.
    ends: [usize; 2],
    /// The copies from the device of the smaller number, which are those out, and back.
    speed: LinkSpeed,
    /// Seconds of the tensors that the two store differently.
    converted: Vec<(TensorId, f64)>,
}

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
            let converted = converted(from, to).into_iter().map(seconds).collect();
            Pair {
                ends,
                speed,
                converted,
            }
        };
        let pairs = pairs(compiled.len()).map(pair);
        Crossing {
            pairs: pairs.collect(),
        }
    }

    /// Measures what the cache hasn't, with at most `room` bytes for plain copies on each side.
    ///
    /// # Errors
    /// If there isn't enough memory, or a device fails.
    pub fn measure(
        compiled: &[Compiled<'_>],
        room: u64,
        mut cache: Option<&mut CostCache>,
        afresh: bool,
    ) -> Result<Crossing> {
        let kept = cache.as_deref_mut().filter(|_| !afresh);
        let (mut links, mut known): (BTreeMap<_, _>, _) = match kept {
            Some(cache) => (cache.links().into_iter().collect(), cache.conversions()),
            None => (BTreeMap::new(), BTreeMap::new()),
        };
        let before = known.len();
        let processors: Vec<Processor<'_>> = compiled.iter().map(Compiled::processor).collect();
        let mut all = Vec::new();
        for ends in pairs(compiled.len()) {
            let [from, to] = ends.map(|number| &compiled[number]);
            let (near, far) = match ends[0] < ends[1] {
                true => (from.processor(), to.processor()),
                false => (to.processor(), from.processor()),
            };
            let name = cached_name(near, far, &processors);
            let link = match links.get(&name) {
                Some(&link) => link,
                None => {
                    let made = profile_link(near, FarEnd::Device(far), &processors, room)?;
                    // Whoever makes a value wakes the thread that copies, and that one who needs the value.
                    let latency = made.latency + 2.0 * wake_seconds();
                    let link = LinkProfile { latency, ..made };
                    if let Some(cache) = cache.as_deref_mut() {
                        cache.keep_link(&name, &link);
                    }
                    links.insert(name, link);
                    link
                }
            };
            all.push(Pair {
                ends,
                speed: link.speed(),
                converted: conversion_seconds(from, to, room, &mut known)?
                    .into_iter()
                    .map(|(tensor, seconds)| (tensor, seconds * link.slowed))
                    .collect(),
            });
        }
        if let Some(cache) = cache.filter(|_| known.len() > before) {
            cache.keep_conversions(&known);
        }
        Ok(Crossing { pairs: all })
    }

    /// The problem with links between every two devices that compute.
    ///
    /// # Errors
    /// If such a problem has more devices or links than a problem may have.
    pub(crate) fn add(&self, lowered: Lowered) -> Result<Lowered> {
        let Lowered {
            problem,
            nodes,
            values,
        } = lowered;
        let devices = problem.devices().iter();
        let devices = devices.filter(|(_, what): &(DeviceId, &Device)| what.computes);
        let devices: Vec<DeviceId> = devices.map(|(id, _)| id).collect();
        let mut parts = problem.parts();
        for pair in &self.pairs {
            let [from, to] = pair.ends.map(|number| devices[number]);
            let LinkSpeed {
                out,
                back,
                latency,
                half,
                drag,
            } = pair.speed;
            // A pair follows its reverse.
            let (forth, speed) = match from < to {
                true => (None, out),
                false => (parts.links.keys().next_back(), back),
            };
            let value = |&(tensor, seconds): &(TensorId, f64)| {
                let value = values[tensor].expand()?;
                Some((value, latency + seconds))
            };
            parts.links.push(Link {
                seconds: pair.converted.iter().filter_map(value).collect(),
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

/// What the cache calls the links between two devices while all of these compute. All copies within main memory are
/// alike.
fn cached_name(near: Processor<'_>, far: Processor<'_>, computing: &[Processor<'_>]) -> String {
    let ends = match (near, far) {
        (Processor::Cpu(_), Processor::Cpu(_)) => "devices".into(),
        _ => format!("{} and {}", near.signature(), far.signature()),
    };
    let computing = computing.iter().map(|processor| processor.signature());
    let computing: Vec<String> = computing.collect();
    format!("between {ends} while {} compute", computing.join(", "))
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
    fn each_pair_is_followed_by_its_reverse() {
        let all: Vec<_> = pairs(3).collect();
        assert_eq!(all, [[0, 1], [1, 0], [0, 2], [2, 0], [1, 2], [2, 1]]);
    }
}
