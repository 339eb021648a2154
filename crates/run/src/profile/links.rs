//! How fast copies between memory and another memory are: in each direction, alone and both at once, and what
//! they take from the device that computes meanwhile.

#![allow(unsafe_code, reason = "copies in memories of its own")]

use scrimp_graph::{Binary, DType, Op};
use scrimp_plan::LinkSpeed;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::alone::Alone;
use super::typical::typical;
use crate::arena::Arena;
use crate::error::RunError;
use crate::memory::Memory;
use crate::processor::Processor;
use crate::span::{PAGE, Span};

/// Bytes of each of the two memories that measuring uses, if it may.
pub(super) const AREA: u64 = 64 << 20;
/// Sizes of the copies that are measured.
const SIZES: [u64; 5] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// The copies of each size: at least and at most so many.
const LEAST: u64 = 4;
const MOST: u64 = 16;
/// The size of copies where only bytes matter.
const LARGE: u64 = 4 << 20;
/// Time that copies in both directions are watched, and computing with copies and without, each time.
const WATCHED: Duration = Duration::from_millis(60);
/// How often computing is watched with copies and without.
const ROUNDS: usize = 5;

/// What is known of the links between a memory and the device that computes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkProfile {
    /// Bytes per second of copies out, when nothing else copies.
    pub out: f64,
    /// Bytes per second of copies back, when nothing else copies.
    pub back: f64,
    /// Seconds that a copy takes besides.
    pub latency: f64,
    /// Bytes per second of both directions together, when both copy at once.
    pub both: f64,
    /// How many times as long copies take while the device computes; at least 1.
    pub slowed: f64,
    /// The part of its time that the device that computes loses while something is copied.
    pub drag: f64,
}

impl LinkProfile {
    /// The links as a problem has them, beside a device that computes: two queues if both directions at once are
    /// closer to the speed of two links than to that of one.
    #[must_use]
    pub fn speed(&self) -> LinkSpeed {
        let (fastest, sum) = (self.out.max(self.back), self.out + self.back);
        LinkSpeed {
            out: self.out / self.slowed,
            back: self.back / self.slowed,
            latency: self.latency * self.slowed,
            half: self.both < (fastest + sum) / 2.0,
            drag: self.drag,
        }
    }

    pub(super) fn is_sound(&self) -> bool {
        let positive = |number: f64| number.is_finite() && number > 0.0;
        let least = |number: f64| number.is_finite() && number >= 0.0;
        [self.out, self.back, self.both].into_iter().all(positive)
            && least(self.latency)
            && (1.0..).contains(&self.slowed)
            && self.slowed.is_finite()
            && (0.0..=1.0).contains(&self.drag)
    }
}

/// The other end of the links of a device that computes.
#[derive(Clone, Copy, Debug)]
pub enum FarEnd<'a> {
    /// This machine's main memory.
    Ram,
    /// A file in a folder.
    File(&'a Path),
    /// The memory of another device that computes.
    Device(Processor<'a>),
}

/// Measures the links between the memory of a device that computes and another one, beside `computing`, all devices that
/// compute in a step: copies may take a core that none of them leaves idle. Takes about a second and, on each side, at
/// most `room` bytes.
///
/// # Errors
/// There isn't enough memory, or no room in the folder, or a device fails.
pub fn profile_link(
    near: Processor<'_>,
    far: FarEnd<'_>,
    computing: &[Processor<'_>],
    room: u64,
) -> Result<LinkProfile, RunError> {
    let area = (room.min(AREA) / PAGE * PAGE).max(LEAST * PAGE);
    let mut link = Measured {
        here: Memory::of(near, area)?,
        there: match far {
            FarEnd::Ram => Memory::beside(near, area, None)?,
            FarEnd::File(folder) => Memory::beside(near, area, Some(folder))?,
            FarEnd::Device(far) => Memory::of(far, area)?,
        },
        area,
    };
    link.there.lock_for(near)?;
    if let FarEnd::Device(far) = far {
        link.here.lock_for(far)?;
    }
    // The first time, a file's blocks are taken.
    link.copies(Direction::Out, link.large(), area / link.large())?;
    let sizes: Vec<u64> = SIZES
        .into_iter()
        .filter(|size| size * LEAST <= area)
        .collect();
    let sizes = if sizes.is_empty() { vec![PAGE] } else { sizes };
    let (mut points, mut latencies) = (Vec::new(), 0.0);
    for direction in [Direction::Out, Direction::Back] {
        let mut line = Vec::new();
        for &size in &sizes {
            let count = (area / size).clamp(LEAST, MOST);
            line.push((size as f64, typical(&link.copies(direction, size, count)?)));
        }
        let (latency, bandwidth) = fitted(&line);
        latencies += latency / 2.0;
        points.push(bandwidth);
    }
    let [out, back] = [points[0], points[1]];
    let (drag, rate) = link.beside(computing)?;
    Ok(LinkProfile {
        out,
        back,
        latency: latencies,
        both: link.both()?,
        slowed: (2.0 / (1.0 / out + 1.0 / back) / rate).max(1.0),
        drag,
    })
}

#[derive(Clone, Copy)]
enum Direction {
    Out,
    Back,
}

/// The middle number of an odd number of them.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// The latency and the bandwidth that make the relative errors smallest, in the sense of least squares.
fn fitted(points: &[(f64, f64)]) -> (f64, f64) {
    // Seconds are latency + bytes · inverse; each equation is divided by its seconds.
    let [mut aa, mut ab, mut bb, mut a, mut b] = [0.0; 5];
    for &(bytes, seconds) in points {
        let (x, y) = (1.0 / seconds, bytes / seconds);
        (aa, ab, bb, a, b) = (aa + x * x, ab + x * y, bb + y * y, a + x, b + y);
    }
    let determinant = aa * bb - ab * ab;
    let latency = (a * bb - b * ab) / determinant;
    if points.len() > 1 && latency > 0.0 && aa * b > ab * a {
        (latency, determinant / (aa * b - ab * a))
    } else {
        (0.0, bb / b)
    }
}

struct Measured {
    here: Memory,
    there: Memory,
    area: u64,
}

impl Measured {
    fn large(&self) -> u64 {
        LARGE.min(self.area / LEAST / PAGE * PAGE)
    }

    /// Copies spans of one size one after the other, and gives the seconds of each.
    fn copies(&self, direction: Direction, size: u64, count: u64) -> Result<Vec<f64>, RunError> {
        let slots = self.area / size;
        let mut staging = self.staging(size)?;
        let mut one = |k: u64| {
            let span = Span {
                offset: k % slots * size,
                bytes: size,
            };
            let start = Instant::now();
            self.copy(direction, span, &mut staging)?;
            Ok(start.elapsed().as_secs_f64())
        };
        (0..count).map(&mut one).collect()
    }

    /// What copies of this size in either direction pass through.
    fn staging(&self, size: u64) -> Result<Arena, RunError> {
        let out = self.there.staging_bytes(&self.here, size, false);
        Arena::new(out.max(self.here.staging_bytes(&self.there, size, false)))
    }

    fn copy(&self, direction: Direction, span: Span, staging: &mut Arena) -> Result<(), RunError> {
        let (to, from) = match direction {
            Direction::Out => (&self.there, &self.here),
            Direction::Back => (&self.here, &self.there),
        };
        // SAFETY: the memories are this measurement's own, and whoever copies at the same time uses other
        // spans.
        unsafe { to.copy_from(from, span, span, None, staging) }
    }

    /// Copies in these directions in turn until told to stop, through a part of the memories, and gives the bytes copied.
    fn until(
        &self,
        directions: &[Direction],
        part: Range<u64>,
        stop: &AtomicBool,
    ) -> Result<u64, RunError> {
        let size = self.large();
        let slots = (part.end - part.start) / size;
        let (mut copies, mut staging) = (0, self.staging(size)?);
        while !stop.load(Ordering::Relaxed) {
            let direction = directions[copies as usize % directions.len()];
            let offset = part.start + copies % slots * size;
            let span = Span {
                offset,
                bytes: size,
            };
            self.copy(direction, span, &mut staging)?;
            copies += 1;
        }
        Ok(copies * size)
    }

    /// Bytes per second when both directions copy at once.
    fn both(&self) -> Result<f64, RunError> {
        let stop = AtomicBool::new(false);
        let half = self.area / 2 / PAGE * PAGE;
        let parts = [
            (Direction::Out, 0..half),
            (Direction::Back, half..self.area),
        ];
        let start = Instant::now();
        let bytes = std::thread::scope(|scope| {
            let others = parts.map(|(direction, part)| {
                scope.spawn({
                    let stop = &stop;
                    move || self.until(&[direction], part, stop)
                })
            });
            std::thread::sleep(WATCHED);
            stop.store(true, Ordering::Relaxed);
            others.into_iter().try_fold(0, |sum, thread| {
                Ok::<u64, RunError>(sum + thread.join().unwrap_or(Ok(0))?)
            })
        })?;
        Ok(bytes as f64 / start.elapsed().as_secs_f64())
    }

    /// The part of its time that computing loses while something is copied, and the bytes per second that are
    /// copied meanwhile. All devices compute.
    fn beside(&self, devices: &[Processor<'_>]) -> Result<(f64, f64), RunError> {
        let works = devices.iter().map(|&device| Work::new(device));
        let mut works = works.collect::<Result<Vec<Work<'_>>, RunError>>()?;
        paces(&mut works)?; // warms up
        let (mut lost, mut seconds_per_byte) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let alone = paces(&mut works)?;
            let stop = AtomicBool::new(false);
            let start = Instant::now();
            let (beside, bytes) = std::thread::scope(|scope| {
                let directions = [Direction::Out, Direction::Back];
                let stop = &stop;
                let copies = scope.spawn(move || self.until(&directions, 0..self.area, stop));
                let beside = paces(&mut works);
                stop.store(true, Ordering::Relaxed);
                let bytes = copies.join().unwrap_or(Ok(0))?;
                Ok::<_, RunError>((beside?, bytes))
            })?;
            let shares = beside
                .iter()
                .zip(&alone)
                .map(|(beside, alone)| beside / alone);
            let kept = shares.sum::<f64>() / alone.len().max(1) as f64;
            lost.push((1.0 - kept).max(0.0));
            let bytes = bytes.max(self.large()) as f64;
            seconds_per_byte.push(start.elapsed().as_secs_f64() / bytes);
        }
        Ok((median(&mut lost), 1.0 / median(&mut seconds_per_byte)))
    }
}

/// Rounds of work per second of each device while all of them compute.
fn paces(works: &mut [Work<'_>]) -> Result<Vec<f64>, RunError> {
    std::thread::scope(|scope| {
        let threads = works.iter_mut().map(|work| scope.spawn(|| work.pace()));
        let threads: Vec<_> = threads.collect();
        let paces = threads.into_iter().map(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| {
                Err(RunError::Threads {
                    threads: 1,
                    reason: "it ended early".into(),
                })
            })
        });
        paces.collect()
    })
}

/// Operators like a network's: a product of matrices and a sum of tensors.
struct Work<'a>([Alone<'a>; 2]);

impl<'a> Work<'a> {
    fn new(device: Processor<'a>) -> Result<Work<'a>, RunError> {
        let matrix = (&[512, 512][..], DType::F32);
        let tensor = (&[1 << 20][..], DType::F32);
        let product = Op::MatMul {
            trans_a: false,
            trans_b: false,
        };
        Ok(Work([
            Alone::new(device, &product, &[matrix, matrix])?,
            Alone::new(device, &Op::Binary(Binary::Add), &[tensor, tensor])?,
        ]))
    }

    /// Rounds of work per second.
    fn pace(&mut self) -> Result<f64, RunError> {
        let start = Instant::now();
        let mut rounds = 0.0;
        while start.elapsed() < WATCHED {
            self.0.iter_mut().try_for_each(Alone::run)?;
            rounds += 1.0;
        }
        Ok(rounds / start.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Cpu;

    #[test]
    fn a_line_is_found_again() {
        let line = |latency: f64, rate: f64| SIZES.map(|s| (s as f64, latency + s as f64 / rate));
        let (latency, bandwidth) = fitted(&line(1e-4, 1e9));
        assert!((latency / 1e-4 - 1.0).abs() < 1e-6 && (bandwidth / 1e9 - 1.0).abs() < 1e-6);
        // Small copies that are faster than large ones mean no latency, not a negative one.
        let (latency, bandwidth) = fitted(&line(-1e-5, 1e9));
        assert!(
            latency == 0.0 && (0.9..2.0).contains(&(bandwidth / 1e9)),
            "{bandwidth}"
        );
    }

    #[test]
    fn links_are_measured() {
        let cpu = Cpu::new(1).expect("threads start");
        let folder = tempfile::tempdir().expect("a folder");
        let cpu = Processor::Cpu(&cpu);
        for (far, computing) in [
            (FarEnd::Ram, &[cpu][..]),
            (FarEnd::File(folder.path()), &[cpu]),
            (FarEnd::Device(cpu), &[cpu, cpu]),
        ] {
            for room in [0, 8 << 20] {
                let profile = profile_link(cpu, far, computing, room).expect("room");
                assert!(profile.is_sound(), "{profile:?}");
            }
        }
    }

    #[test]
    fn half_duplex_is_recognized() {
        let profile = |both| LinkProfile {
            out: 1e9,
            back: 2e9,
            latency: 0.0,
            both,
            slowed: 1.0,
            drag: 0.0,
        };
        assert!(profile(1.9e9).speed().half && !profile(2.8e9).speed().half);
    }
}
