//! The memories of all devices of a plan.

#![allow(
    unsafe_code,
    reason = "runs and copies use disjoint parts of one memory at the same time"
)]

use cranelift_entity::PrimaryMap;
use scrimp_plan::DeviceId;
use std::path::Path;

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
    /// Whether spans are filled with NaN when they are taken and when they are given back.
    poison: bool,
}

impl Memories {
    pub fn new<'p>(
        processor: Processor<'_>,
        sizes: impl Iterator<Item = (u64, Option<&'p Path>)>,
        poison: bool,
    ) -> Result<Memories, RunError> {
        let mut memories = PrimaryMap::new();
        for (bytes, folder) in sizes {
            let mut memory = Memory::new(processor, bytes, folder)?;
            let span = Span { offset: 0, bytes };
            if let Some(all) = memory.write(span).filter(|_| poison) {
                all.fill(POISON);
            }
            memories.push(memory);
        }
        Ok(Memories { memories, poison })
    }

    pub fn bytes(&self, device: DeviceId) -> u64 {
        self.memories[device].bytes()
    }

    pub fn of(&self, device: DeviceId) -> &Memory {
        &self.memories[device]
    }

    /// The contents of a place; `None` if its memory has no addresses.
    pub fn read(&self, at: Location) -> Option<&[u8]> {
        self.memories[at.device].read(at.span)
    }

    /// Like [`Memories::read`], for writing.
    pub fn write(&mut self, at: Location) -> Option<&mut [u8]> {
        self.memories[at.device].write(at.span)
    }

    /// The arena of a device; `None` if its memory has no contents.
    pub fn arena(&self, device: DeviceId) -> Option<&Arena> {
        match &self.memories[device] {
            Memory::Ram(arena) => Some(arena),
            Memory::File(_) | Memory::Null(_) => None,
        }
    }

    /// Overwrites a place with NaN, if that is asked for.
    ///
    /// # Safety
    /// Nothing else uses the place.
    pub unsafe fn spoil(&self, at: Location) {
        // SAFETY: the caller's promise.
        let memory = unsafe { self.memories[at.device].write_beside(at.span) };
        if let Some(memory) = memory.filter(|_| self.poison) {
            memory.fill(POISON);
        }
    }
}
