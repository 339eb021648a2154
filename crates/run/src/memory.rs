//! What holds the bytes of a device: one entry for each kind of memory.

#![allow(
    unsafe_code,
    reason = "copies write a part of a memory while others use other parts"
)]

use std::path::Path;

use crate::arena::Arena;
use crate::conversion::Conversion;
use crate::error::RunError;
use crate::file::FileMemory;
use crate::gpu::DeviceMemory;
use crate::processor::Processor;
use crate::span::{PAGE, Span};

/// The most bytes that pass through main memory at a time.
const STAGED: u64 = 4 << 20;

/// The memory of one device, of fixed size.
#[derive(Debug)]
pub(crate) enum Memory {
    /// This machine's main memory.
    Ram(Arena),
    /// The memory of a GPU.
    Gpu(DeviceMemory),
    /// A file.
    File(FileMemory),
    /// No memory at all: a size without contents.
    Null(u64),
}

impl Memory {
    /// Reserves memory on which this processor computes.
    pub fn of(processor: Processor<'_>, bytes: u64) -> Result<Memory, RunError> {
        Ok(match processor {
            Processor::Cpu(_) => Memory::Ram(Arena::new(bytes)?),
            Processor::Gpu(device) => Memory::Gpu(device.memory(bytes)?),
            Processor::Null => Memory::Null(bytes),
        })
    }

    /// Reserves memory from which this processor is supplied: a file if there is a folder for it.
    pub fn beside(
        processor: Processor<'_>,
        bytes: u64,
        folder: Option<&Path>,
    ) -> Result<Memory, RunError> {
        Ok(match (processor, folder) {
            (Processor::Null, _) => Memory::Null(bytes),
            (_, None) => Memory::Ram(Arena::new(bytes)?),
            (_, Some(folder)) => Memory::File(FileMemory::new(folder, bytes)?),
        })
    }

    /// Locks main memory in its place if copies to a processor need that to run beside everything else.
    pub fn lock_for(&mut self, processor: Processor<'_>) -> Result<(), RunError> {
        match (self, processor) {
            (Memory::Ram(arena), Processor::Gpu(device)) => arena.lock_for(device),
            _ => Ok(()),
        }
    }

    /// Memory of this processor that holds what the arena does.
    pub fn holding(processor: Processor<'_>, arena: Arena) -> Result<Memory, RunError> {
        let Processor::Gpu(device) = processor else {
            return Ok(Memory::Ram(arena));
        };
        let memory = device.memory(arena.bytes())?;
        memory.store(arena.bytes_at(0, arena.bytes()), 0)?;
        Ok(Memory::Gpu(memory))
    }

    /// What it holds, in this machine's main memory.
    pub fn into_arena(self) -> Result<Arena, RunError> {
        let mut arena = match self {
            Memory::Ram(arena) => return Ok(arena),
            _ => Arena::new(self.bytes())?,
        };
        let bytes = arena.bytes();
        self.load(0, arena.bytes_at_mut(0, bytes))?;
        Ok(arena)
    }

    pub fn bytes(&self) -> u64 {
        match self {
            Memory::Ram(arena) => arena.bytes(),
            Memory::Gpu(memory) => memory.bytes(),
            Memory::File(file) => file.bytes(),
            Memory::Null(bytes) => *bytes,
        }
    }

    /// The contents of a span, which must be inside; `None` if the memory has no addresses.
    pub fn read(&self, span: Span) -> Option<&[u8]> {
        match self {
            Memory::Ram(arena) => Some(arena.bytes_at(span.offset, span.bytes)),
            Memory::Gpu(_) | Memory::File(_) | Memory::Null(_) => None,
        }
    }

    /// Like [`Memory::read`], for writing.
    pub fn write(&mut self, span: Span) -> Option<&mut [u8]> {
        match self {
            Memory::Ram(arena) => Some(arena.bytes_at_mut(span.offset, span.bytes)),
            Memory::Gpu(_) | Memory::File(_) | Memory::Null(_) => None,
        }
    }

    /// Like [`Memory::write`], on a memory of which other parts are in use.
    ///
    /// # Safety
    /// While the slice lives, nothing else uses the span.
    #[allow(
        clippy::mut_from_ref,
        reason = "the caller promises that it is exclusive"
    )]
    pub unsafe fn write_beside(&self, span: Span) -> Option<&mut [u8]> {
        match self {
            Memory::Ram(arena) => {
                let start = arena.pointer(span).as_ptr();
                // SAFETY: the range is in bounds and initialized; the caller promises the rest.
                Some(unsafe { std::slice::from_raw_parts_mut(start, span.bytes as usize) })
            }
            Memory::Gpu(_) | Memory::File(_) | Memory::Null(_) => None,
        }
    }

    /// Fills a span with a byte, unless that would only take time: in a file.
    ///
    /// # Safety
    /// Meanwhile nothing else uses the span.
    pub unsafe fn fill_beside(&self, span: Span, byte: u8) -> Result<(), RunError> {
        if let Memory::Gpu(memory) = self {
            memory.fill(span, byte)?;
        // SAFETY: the caller's promise.
        } else if let Some(memory) = unsafe { self.write_beside(span) } {
            memory.fill(byte);
        }
        Ok(())
    }

    /// Bytes of main memory through which a copy of so many bytes from another memory to this one passes; 0 if the
    /// one memory is copied to the other.
    pub fn staging_bytes(&self, source: &Memory, bytes: u64, converted: bool) -> u64 {
        match (source, self) {
            (Memory::Gpu(_), Memory::Gpu(_) | Memory::File(_))
            | (Memory::File(_), Memory::Gpu(_)) => bytes.min(STAGED).next_multiple_of(PAGE),
            // A format is changed at once.
            (Memory::Gpu(_), Memory::Ram(_)) | (Memory::Ram(_), Memory::Gpu(_)) if converted => {
                bytes
            }
            _ => 0,
        }
    }

    /// Copies a span of another memory to a span of this one; both have the same length. `staging` has at least
    /// [`Memory::staging_bytes`] bytes.
    ///
    /// # Errors
    /// A file or a device fails, or the format changes between memories of which neither has addresses.
    ///
    /// # Safety
    /// Meanwhile nothing else uses the span of this memory, or writes the other span.
    pub unsafe fn copy_from(
        &self,
        source: &Memory,
        from: Span,
        to: Span,
        conversion: Option<&Conversion>,
        staging: &mut Arena,
    ) -> Result<(), RunError> {
        // SAFETY: the caller's promise.
        let here = unsafe { self.write_beside(to) };
        match (here, source.read(from), conversion) {
            _ if matches!((self, source), (Memory::Null(_), _) | (_, Memory::Null(_))) => Ok(()),
            (Some(here), Some(there), None) => {
                here.copy_from_slice(there);
                Ok(())
            }
            (Some(here), Some(there), Some(conversion)) => {
                conversion.copy(there, here);
                Ok(())
            }
            (Some(here), None, None) => source.load(from.offset, here),
            (None, Some(there), None) => self.store(there, to.offset),
            (Some(here), None, Some(conversion)) => {
                let staged = staging.bytes_at_mut(0, from.bytes);
                source.load(from.offset, staged)?;
                conversion.copy(staged, here);
                Ok(())
            }
            (None, Some(there), Some(conversion)) => {
                let staged = staging.bytes_at_mut(0, to.bytes);
                conversion.copy(there, staged);
                self.store(staged, to.offset)
            }
            (None, None, None) => {
                for start in (0..to.bytes).step_by(STAGED as usize) {
                    let staged = staging.bytes_at_mut(0, STAGED.min(to.bytes - start));
                    source.load(from.offset + start, staged)?;
                    self.store(staged, to.offset + start)?;
                }
                Ok(())
            }
            (None, None, Some(_)) => Err(RunError::WrongPlan {
                reason: "it changes a format between two devices or files".into(),
            }),
        }
    }

    /// Reads from a memory without addresses.
    fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), RunError> {
        match self {
            Memory::Gpu(memory) => Ok(memory.load(offset, to)?),
            Memory::File(file) => file.read(offset, to),
            Memory::Ram(_) | Memory::Null(_) => Ok(()),
        }
    }

    /// Writes to a memory without addresses.
    fn store(&self, from: &[u8], offset: u64) -> Result<(), RunError> {
        match self {
            Memory::Gpu(memory) => Ok(memory.store(from, offset)?),
            Memory::File(file) => file.write(offset, from),
            Memory::Ram(_) | Memory::Null(_) => Ok(()),
        }
    }
}
