//! The memories of all devices of a plan.

#![allow(
    unsafe_code,
    reason = "runs and copies use disjoint parts of one memory at the same time"
)]

use cranelift_entity::PrimaryMap;
use scrimp_plan::DeviceId;

use crate::error::RunError;
use crate::memory::Memory;
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
    /// `poison` has all of them filled with NaN.
    pub fn new(memories: PrimaryMap<DeviceId, Memory>, poison: bool) -> Result<Memories, RunError> {
        for memory in memories.values().filter(|_| poison) {
            let bytes = memory.bytes();
            // SAFETY: nothing uses the memory yet.
            unsafe { memory.fill_beside(Span { offset: 0, bytes }, POISON)? };
        }
        Ok(Memories { memories, poison })
    }

    /// A step begins; `now` gives its seconds.
    pub fn begin_step(&self, now: &dyn Fn() -> f64) -> Result<(), RunError> {
        for memory in self.memories.values() {
            if let Memory::Gpu(memory) = memory {
                memory.begin_step(now)?;
            }
        }
        Ok(())
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

    /// The byte with which places are overwritten, if that is asked for.
    pub fn poison(&self) -> Option<u8> {
        self.poison.then_some(POISON)
    }
}
