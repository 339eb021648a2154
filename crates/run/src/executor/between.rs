//! Contents of tensors between steps, wherever they are. A tensor in a file passes through a stretch of the
//! arena in which nothing lies between steps or, if that is too short, through memory of its own.

#![allow(
    unsafe_code,
    reason = "an idle stretch of the arena is used between steps"
)]

use std::sync::PoisonError;

use super::Executor;
use super::memories::Location;
use crate::arena::Arena;
use crate::error::RunError;
use crate::file::FileMemory;
use crate::memory::Memory;
use crate::span::{PAGE, Span};

impl Executor<'_> {
    /// Changes a tensor's memory; nothing happens if it has no contents.
    pub(super) fn change<E: From<RunError>>(
        &mut self,
        at: Location,
        change: &mut dyn FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(memory) = self.memories.write(at) {
            return change(memory);
        }
        let there = self.memories.of(at.device);
        if let Memory::Null(_) = there {
            return Ok(());
        }
        self.staged(at.span.bytes, &mut |memory| {
            let bytes = at.span.bytes as usize;
            change(&mut memory[..bytes])?;
            match there {
                Memory::File(file) => file.write(at.span.offset, memory)?,
                Memory::Gpu(device) => {
                    device
                        .store(&memory[..bytes], at.span.offset)
                        .map_err(RunError::from)?;
                }
                Memory::Ram(_) | Memory::Null(_) => {}
            }
            Ok(())
        })
    }

    /// Hands out a tensor's memory.
    pub(super) fn look<E: From<RunError>>(
        &self,
        at: Location,
        look: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        if let Some(memory) = self.memories.read(at) {
            return look(memory).map(|()| true);
        }
        let there = self.memories.of(at.device);
        if let Memory::Null(_) = there {
            return Ok(false);
        }
        self.staged(at.span.bytes, &mut |memory| {
            let bytes = at.span.bytes as usize;
            match there {
                Memory::File(file) => FileMemory::read(file, at.span.offset, memory)?,
                Memory::Gpu(device) => {
                    device
                        .load(at.span.offset, &mut memory[..bytes])
                        .map_err(RunError::from)?;
                }
                Memory::Ram(_) | Memory::Null(_) => {}
            }
            look(&memory[..bytes])
        })?;
        Ok(true)
    }

    /// Moves values to where the next step expects them.
    pub(super) fn settle(&self) -> Result<(), RunError> {
        for &[from, to] in &self.schedule.moves {
            self.staged(from.span.bytes, &mut |memory| {
                let memory = &mut memory[..from.span.bytes as usize];
                match self.memories.of(from.device) {
                    Memory::File(file) => {
                        file.read(from.span.offset, memory)?;
                        file.write(to.span.offset, memory)
                    }
                    Memory::Gpu(device) => {
                        device.load(from.span.offset, memory)?;
                        Ok(device.store(memory, to.span.offset)?)
                    }
                    other => {
                        if let Some(bytes) = other.read(from.span) {
                            memory.copy_from_slice(bytes);
                        }
                        // SAFETY: no step runs, and nothing lies in this place now.
                        if let Some(place) = unsafe { other.write_beside(to.span) } {
                            place.copy_from_slice(memory);
                        }
                        Ok(())
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Lends memory that starts at a page and has at least this many bytes, in whole pages.
    fn staged<E: From<RunError>>(
        &self,
        bytes: u64,
        f: &mut dyn FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = bytes.next_multiple_of(PAGE);
        let idle = self.idle.lock();
        let idle = idle.unwrap_or_else(PoisonError::into_inner);
        match (idle.prefix(bytes), self.memories.of(self.home())) {
            (Some(span), home @ Memory::Ram(_)) => {
                // SAFETY: no step runs, since it would have borrowed the executor exclusively, and no tensor
                // lies in the stretch. Whoever uses it holds its lock.
                let memory = unsafe { home.write_beside(span) };
                memory.map_or(Ok(()), f)
            }
            _ => f(Arena::new(bytes)?.bytes_at_mut(0, bytes)),
        }
    }

    /// The whole arena, in which nothing lies before the first tensor is set.
    pub(super) fn everything(&self) -> Span {
        Span {
            offset: 0,
            bytes: self.memories.bytes(self.home()),
        }
    }
}
