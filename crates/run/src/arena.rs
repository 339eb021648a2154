//! The arena: one block of memory in which every buffer of a plan lies.

#![allow(unsafe_code, reason = "one allocation holds every buffer of a plan")]

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use scrimp_gpu::Locked;

use crate::error::RunError;
use crate::gpu::Gpu;
use crate::span::{ALIGN, PAGE, Span};

/// A huge page, which makes address translation in large arenas faster where the system supports it.
const HUGE_PAGE: usize = 2 << 20;

/// One block of memory of fixed size; every page of it has been touched.
#[derive(Debug)]
pub struct Arena {
    pointer: NonNull<u8>,
    layout: Layout,
    bytes: usize,
    locked: Option<Locked>,
}

// SAFETY: the arena owns its memory.
unsafe impl Send for Arena {}
// SAFETY: what is read or written through a shared arena is a span that nothing else writes meanwhile: either
// nothing runs, or the steps of a checked layout do, whose spans are disjoint wherever one is written.
unsafe impl Sync for Arena {}

impl Arena {
    pub fn new(bytes: u64) -> Result<Arena, RunError> {
        let failed = RunError::OutOfMemory { bytes };
        let size = usize::try_from(bytes).map_err(|_| failed.clone())?;
        let align = if size < HUGE_PAGE {
            PAGE as usize
        } else {
            HUGE_PAGE
        };
        let layout = Layout::from_size_align(size.max(1), align).map_err(|_| failed.clone())?;
        // SAFETY: the layout's size isn't zero.
        let pointer = NonNull::new(unsafe { alloc(layout) }).ok_or(failed)?;
        advise_huge_pages(pointer, size);
        // SAFETY: the allocation has that many bytes. Writing them makes the system provide their pages.
        unsafe { pointer.as_ptr().write_bytes(0, layout.size()) };
        Ok(Arena {
            pointer,
            layout,
            bytes: size,
            locked: None,
        })
    }

    /// Locks it in its place if copies to this device need that to run beside everything else.
    pub fn lock_for(&mut self, device: &Gpu) -> Result<(), RunError> {
        if self.locked.is_none() {
            // SAFETY: dropping the arena unlocks it before its memory is given back.
            self.locked = unsafe { device.lock(self.pointer.as_ptr(), self.bytes())? };
        }
        Ok(())
    }

    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The range as memory for an argument.
    ///
    /// # Errors
    /// The range isn't inside the arena or isn't aligned.
    pub fn span(&self, offset: u64, bytes: u64, what: &str) -> Result<Span, RunError> {
        let span = Span { offset, bytes };
        if span.end().is_none_or(|end| end > self.bytes()) {
            return Err(RunError::WrongSize {
                what: format!("the arena, for {what} at offset {offset},"),
                found: self.bytes(),
                expected: offset.saturating_add(bytes),
            });
        }
        if !offset.is_multiple_of(ALIGN as u64) {
            return Err(RunError::WrongPlan {
                reason: format!(
                    "the layout puts a buffer of {what} at offset {offset}, which isn't a multiple of {ALIGN}"
                ),
            });
        }
        Ok(span)
    }

    /// The arena's first byte, aligned to a page.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.pointer
    }

    /// The first byte of a range; panics if the range isn't inside the arena.
    pub(crate) fn pointer(&self, span: Span) -> NonNull<u8> {
        assert!(
            span.end().is_some_and(|end| end <= self.bytes as u64),
            "outside the arena"
        );
        // SAFETY: the range is in bounds.
        unsafe { self.pointer.add(span.offset as usize) }
    }

    /// Reads a range; panics if the range isn't inside the arena.
    pub(crate) fn bytes_at(&self, offset: u64, bytes: u64) -> &[u8] {
        let start = self.pointer(Span { offset, bytes });
        // SAFETY: the range is in bounds and initialized. Kernels and copies write through pointers of their
        // own, and who reads the arena beside them reads only what none of them writes.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes as usize) }
    }

    /// Borrows a range for writing; panics if the range isn't inside the arena.
    pub(crate) fn bytes_at_mut(&mut self, offset: u64, bytes: u64) -> &mut [u8] {
        let start = self.pointer(Span { offset, bytes });
        // SAFETY: the range is in bounds, and access is exclusive because the arena is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes as usize) }
    }
}

/// Asks for huge pages, but only for the part of the memory that whole huge pages cover: more would take
/// memory beyond what was asked for. This is advice to the system. Everything works without it, only slower.
#[cfg(target_os = "linux")]
fn advise_huge_pages(pointer: NonNull<u8>, size: usize) {
    let whole = size / HUGE_PAGE * HUGE_PAGE;
    if whole > 0 {
        let advice = rustix::mm::Advice::LinuxHugepage;
        // SAFETY: the memory is the caller's own and aligned to a huge page, and the call doesn't change its
        // contents.
        let _ = unsafe { rustix::mm::madvise(pointer.as_ptr().cast(), whole, advice) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_: NonNull<u8>, _: usize) {}

impl Drop for Arena {
    fn drop(&mut self) {
        self.locked = None;
        // SAFETY: the memory was allocated with this layout.
        unsafe { dealloc(self.pointer.as_ptr(), self.layout) };
    }
}
