//! Cuts a workspace into typed pieces, and tells beforehand how large it must be.

#![allow(unsafe_code, reason = "threads have disjoint pieces of one slice")]

use bytemuck::Pod;

use crate::error::RunError;
use crate::par::Shared;
use crate::span::ALIGN;

/// Bytes of `count` elements of `T`, rounded up to the alignment.
pub fn bytes<T>(count: usize) -> usize {
    (count * size_of::<T>()).next_multiple_of(ALIGN)
}

/// The rest of a workspace.
pub struct Scratch<'a> {
    rest: &'a mut [u8],
}

impl<'a> Scratch<'a> {
    pub fn new(workspace: &'a mut [u8]) -> Self {
        Scratch { rest: workspace }
    }

    /// The next `count` elements, with arbitrary contents.
    pub fn take<T: Pod>(&mut self, count: usize) -> Result<&'a mut [T], RunError> {
        let expected = bytes::<T>(count);
        if expected > self.rest.len() {
            return Err(RunError::WrongSize {
                what: "what is left of the workspace".into(),
                found: self.rest.len() as u64,
                expected: expected as u64,
            });
        }
        let (piece, rest) = std::mem::take(&mut self.rest).split_at_mut(expected);
        self.rest = rest;
        let used = &mut piece[..count * size_of::<T>()];
        bytemuck::try_cast_slice_mut(used).map_err(|_| RunError::Overlap {
            what: "a workspace that isn't aligned".into(),
        })
    }
}

/// A piece of scratch for each slot of a parallel loop.
pub struct PerSlot<'a, T> {
    memory: Shared<'a, T>,
    each: usize,
}

impl<'a, T: Pod> PerSlot<'a, T> {
    pub fn bytes(slots: usize, each: usize) -> usize {
        bytes::<T>(slots * each)
    }

    pub fn take(scratch: &mut Scratch<'a>, slots: usize, each: usize) -> Result<Self, RunError> {
        let memory = Shared::new(scratch.take::<T>(slots * each)?);
        Ok(PerSlot { memory, each })
    }

    /// The slot's piece.
    ///
    /// # Safety
    /// A slot runs one task at a time, and each task takes its piece only once.
    pub unsafe fn of(&self, slot: usize) -> &'a mut [T] {
        // SAFETY: pieces of different slots are disjoint; the caller promises the rest.
        unsafe { self.memory.piece(slot * self.each, self.each) }
    }
}
