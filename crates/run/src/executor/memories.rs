//! The memories of all devices of a plan, and how many bytes of each are in use.

use cranelift_entity::PrimaryMap;
use scrimp_plan::DeviceId;

use crate::arena::Arena;
use crate::error::RunError;
use crate::memory::Memory;
use crate::processor::Processor;
use crate::span::Span;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub device: DeviceId,
    pub span: Span,
}

/// All bits set: NaN in both float types, an index out of every range.
const POISON: u8 = 0xff;

#[derive(Debug)]
pub(super) struct Memories {
    memories: PrimaryMap<DeviceId, Memory>,
    in_use: PrimaryMap<DeviceId, u64>,
    /// Whether spans are filled with NaN when they are taken and when they are given back.
    poison: bool,
}

impl Memories {
    pub fn new(
        processor: Processor<'_>,
        sizes: impl Iterator<Item = u64>,
        poison: bool,
    ) -> Result<Memories, RunError> {
        let mut memories = PrimaryMap::new();
        for bytes in sizes {
            memories.push(Memory::new(processor, bytes)?);
        }
        let mut all = Memories {
            in_use: memories.values().map(|_| 0).collect(),
            memories,
            poison,
        };
        for device in all.memories.keys() {
            let span = Span {
                offset: 0,
                bytes: all.memories[device].bytes(),
            };
            all.spoil(Location { device, span });
        }
        Ok(all)
    }

    pub fn bytes(&self, device: DeviceId) -> u64 {
        self.memories[device].bytes()
    }

    /// The contents of a place; `None` if its memory has no contents.
    pub fn read(&self, at: Location) -> Option<&[u8]> {
        self.memories[at.device].read(at.span)
    }

    /// Like [`Memories::read`], for writing.
    pub fn write(&mut self, at: Location) -> Option<&mut [u8]> {
        self.memories[at.device].write(at.span)
    }

    /// The arena of a device; `None` if its memory has no contents.
    pub fn arena(&mut self, device: DeviceId) -> Option<&mut Arena> {
        match &mut self.memories[device] {
            Memory::Ram(arena) => Some(arena),
            Memory::Null(_) => None,
        }
    }

    pub fn in_use(&self, device: DeviceId) -> u64 {
        self.in_use[device]
    }

    pub fn begin(&mut self, given: &[Location]) {
        self.in_use.values_mut().for_each(|bytes| *bytes = 0);
        for at in given {
            self.in_use[at.device] += at.span.bytes;
        }
    }

    pub fn take(&mut self, at: Location) {
        self.in_use[at.device] += at.span.bytes;
        self.spoil(at);
    }

    pub fn give_back(&mut self, at: Location) {
        self.in_use[at.device] -= at.span.bytes;
        self.spoil(at);
    }

    /// Overwrites a place with NaN, if that is asked for.
    pub fn spoil(&mut self, at: Location) {
        if self.poison
            && let Some(bytes) = self.write(at)
        {
            bytes.fill(POISON);
        }
    }

    pub fn copy(&mut self, from: Location, to: Location) {
        let both = self.memories.get_disjoint_mut([from.device, to.device]);
        if let Ok([source, destination]) = both {
            destination.copy_from(source, from.span, to.span);
        }
    }
}
