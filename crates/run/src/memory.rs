//! What holds the bytes of a device: one entry for each kind of memory.

use crate::arena::Arena;
use crate::error::RunError;
use crate::processor::Processor;
use crate::span::Span;

/// The memory of one device, of fixed size.
#[derive(Debug)]
pub(crate) enum Memory {
    /// This machine's main memory.
    Ram(Arena),
    /// No memory at all: a size without contents.
    Null(u64),
}

impl Memory {
    /// Reserves memory on which this processor computes or from which it is supplied.
    pub fn new(processor: Processor<'_>, bytes: u64) -> Result<Memory, RunError> {
        Ok(match processor {
            Processor::Cpu(_) => Memory::Ram(Arena::new(bytes)?),
            Processor::Null => Memory::Null(bytes),
        })
    }

    pub fn bytes(&self) -> u64 {
        match self {
            Memory::Ram(arena) => arena.bytes(),
            Memory::Null(bytes) => *bytes,
        }
    }

    /// The contents of a span, which must be inside; `None` if the memory has no contents.
    pub fn read(&self, span: Span) -> Option<&[u8]> {
        match self {
            Memory::Ram(arena) => Some(arena.bytes_at(span.offset, span.bytes)),
            Memory::Null(_) => None,
        }
    }

    /// Like [`Memory::read`], for writing.
    pub fn write(&mut self, span: Span) -> Option<&mut [u8]> {
        match self {
            Memory::Ram(arena) => Some(arena.bytes_at_mut(span.offset, span.bytes)),
            Memory::Null(_) => None,
        }
    }

    /// Copies a span of another memory to a span of this one; both have the same length.
    pub fn copy_from(&mut self, source: &Memory, from: Span, to: Span) {
        match (self, source) {
            (Memory::Ram(here), Memory::Ram(there)) => here
                .bytes_at_mut(to.offset, to.bytes)
                .copy_from_slice(there.bytes_at(from.offset, from.bytes)),
            (Memory::Null(_), _) | (_, Memory::Null(_)) => {}
        }
    }
}
