//! Memory: the arena, and the arguments of one operator as typed, shaped pieces of memory.
//!
//! [`Args`] is where bytes become slices. Its constructor verifies that no output and no workspace
//! overlaps anything else of the same operator, except an input that is exactly its output (in
//! place), so the accessors can hand out shared inputs and exclusive outputs.

#![allow(
    unsafe_code,
    reason = "one allocation holds every buffer of a plan; Args proves them disjoint"
)]

use bytemuck::Pod;
use scrimp_graph::DType;
use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use crate::error::RunError;

/// Bytes that every buffer and workspace is aligned to.
pub const ALIGN: usize = 64;

const PAGE: usize = 4096;
/// A page with which addresses of large arenas are found sooner, where the system has such.
const HUGE_PAGE: usize = 2 << 20;

/// One block of memory of fixed size, every page of it touched.
#[derive(Debug)]
pub struct Arena {
    pointer: NonNull<u8>,
    layout: Layout,
    bytes: usize,
}

// SAFETY: the arena owns its memory; access goes through `&mut Arena` or an executor that holds it.
unsafe impl Send for Arena {}

impl Arena {
    /// Reserves and touches `bytes` bytes.
    pub fn new(bytes: u64) -> Result<Arena, RunError> {
        let failed = RunError::OutOfMemory { bytes };
        let size = usize::try_from(bytes).map_err(|_| failed.clone())?;
        let align = if size < HUGE_PAGE { PAGE } else { HUGE_PAGE };
        let layout = Layout::from_size_align(size.max(1), align).map_err(|_| failed.clone())?;
        // SAFETY: the layout's size isn't zero.
        let pointer = NonNull::new(unsafe { alloc(layout) }).ok_or(failed)?;
        advise_huge_pages(pointer, size);
        // SAFETY: the allocation has that many bytes. They are really there once they are written.
        unsafe { pointer.as_ptr().write_bytes(0, layout.size()) };
        Ok(Arena {
            pointer,
            layout,
            bytes: size,
        })
    }

    /// Size.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The range as memory for arguments.
    pub fn piece(&mut self, offset: u64, bytes: u64, what: &str) -> Result<Piece, RunError> {
        let end = offset
            .checked_add(bytes)
            .filter(|&end| end <= self.bytes as u64);
        if end.is_none() {
            return Err(RunError::WrongSize {
                what: format!("the arena, for {what} at offset {offset},"),
                found: self.bytes as u64,
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
        // SAFETY: in bounds.
        let pointer = unsafe { self.pointer.as_ptr().add(offset as usize) };
        Ok(Piece {
            pointer,
            bytes: bytes as usize,
        })
    }
}

impl Arena {
    /// Reads a range; panics if it isn't inside.
    pub(crate) fn bytes_at(&self, offset: u64, bytes: u64) -> &[u8] {
        assert!(
            offset
                .checked_add(bytes)
                .is_some_and(|end| end <= self.bytes as u64),
            "outside the arena"
        );
        // SAFETY: in bounds and initialized. Kernels write through `Args`, whose owners don't read
        // the arena while one runs.
        unsafe {
            std::slice::from_raw_parts(self.pointer.as_ptr().add(offset as usize), bytes as usize)
        }
    }

    /// Writes a range; panics if it isn't inside.
    pub(crate) fn bytes_at_mut(&mut self, offset: u64, bytes: u64) -> &mut [u8] {
        assert!(
            offset
                .checked_add(bytes)
                .is_some_and(|end| end <= self.bytes as u64),
            "outside the arena"
        );
        // SAFETY: in bounds; exclusive because the arena is.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.pointer.as_ptr().add(offset as usize),
                bytes as usize,
            )
        }
    }
}

/// Asks for huge pages, for as much of the memory as whole ones cover: the rest would take more than was asked for.
/// It is advice: without them everything works, but slower.
#[cfg(target_os = "linux")]
fn advise_huge_pages(pointer: NonNull<u8>, size: usize) {
    let whole = size / HUGE_PAGE * HUGE_PAGE;
    if whole > 0 {
        let advice = rustix::mm::Advice::LinuxHugepage;
        // SAFETY: the memory is the caller's own, aligned to a huge page; contents don't change.
        let _ = unsafe { rustix::mm::madvise(pointer.as_ptr().cast(), whole, advice) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_: NonNull<u8>, _: usize) {}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.pointer.as_ptr(), self.layout) };
    }
}

/// A range of an arena. Valid while the arena lives; whoever stores one also holds the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pointer: *mut u8,
    bytes: usize,
}

impl Piece {
    /// No memory.
    pub const EMPTY: Piece = Piece {
        pointer: ALIGN as *mut u8,
        bytes: 0,
    };

    /// The first `bytes` bytes, or `None` if there are fewer.
    pub fn prefix(self, bytes: usize) -> Option<Piece> {
        (bytes <= self.bytes).then_some(Piece { bytes, ..self })
    }

    /// The first `bytes` bytes and the rest, or `None` if there are fewer.
    pub fn split(self, bytes: usize) -> Option<(Piece, Piece)> {
        let first = self.prefix(bytes)?;
        let rest = Piece {
            // SAFETY: within the piece or at its end.
            pointer: unsafe { self.pointer.add(bytes) },
            bytes: self.bytes - bytes,
        };
        Some((first, rest))
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn overlaps(&self, other: &Piece) -> bool {
        let (a, b) = (self.pointer as usize, other.pointer as usize);
        self.bytes > 0 && other.bytes > 0 && a < b + other.bytes && b < a + self.bytes
    }

    /// Reads the piece.
    ///
    /// # Safety
    /// The arena is alive and nothing writes the piece while the slice lives.
    pub(crate) unsafe fn read<'a, T: Pod>(self) -> &'a [T] {
        let length = self.length::<T>();
        // SAFETY: aligned (checked by `length`), in bounds, initialized at allocation; no writer by
        // the caller's promise.
        unsafe { std::slice::from_raw_parts(self.pointer.cast(), length) }
    }

    /// Writes the piece.
    ///
    /// # Safety
    /// The arena is alive and nothing else accesses the piece while the slice lives.
    pub(crate) unsafe fn write<'a, T: Pod>(self) -> &'a mut [T] {
        let length = self.length::<T>();
        // SAFETY: as in `read`, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.cast(), length) }
    }

    fn length<T>(self) -> usize {
        assert!(
            (self.pointer as usize).is_multiple_of(align_of::<T>()),
            "a buffer isn't aligned"
        );
        self.bytes / size_of::<T>()
    }
}

// SAFETY: a piece is an address; access goes through `Args`, whose runs borrow the arena exclusively.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

/// A tensor in memory.
#[derive(Clone, Debug)]
pub struct Arg {
    /// Element type.
    pub dtype: DType,
    /// Lengths of the axes.
    pub shape: Vec<usize>,
    piece: Piece,
}

impl Arg {
    /// The tensor at the start of `piece`, which may be longer (storages are rounded up).
    pub fn new(dtype: DType, shape: &[usize], piece: Piece, what: &str) -> Result<Arg, RunError> {
        let elements: usize = shape.iter().product();
        let expected = elements * dtype.bytes() as usize;
        let piece = piece.prefix(expected).ok_or_else(|| RunError::WrongSize {
            what: what.to_string(),
            found: piece.bytes as u64,
            expected: expected as u64,
        })?;
        Ok(Arg {
            dtype,
            shape: shape.to_vec(),
            piece,
        })
    }
}

/// An input of an elementwise kernel.
pub enum Source<'a, T> {
    /// Elsewhere.
    From(&'a [T]),
    /// It is the output's memory, which holds the input's elements before it is written.
    InPlace,
}

impl<T> Clone for Source<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Source<'_, T> {}

impl<'a, T> Source<'a, T> {
    /// These elements, unless they are in the output's memory.
    pub fn part(self, range: std::ops::Range<usize>) -> Option<&'a [T]> {
        match self {
            Source::From(x) => Some(&x[range]),
            Source::InPlace => None,
        }
    }
}

/// The arguments of one operator, proved not to overlap.
#[derive(Debug)]
pub struct Args {
    /// The arena that all pieces are in.
    home: *mut u8,
    inputs: Vec<Arg>,
    /// Which output each input shares its memory with.
    in_place: Vec<Option<usize>>,
    outputs: Vec<Arg>,
    workspace: Piece,
}

// SAFETY: as for `Piece`.
unsafe impl Send for Args {}
// SAFETY: as for `Piece`; kernels' threads write disjoint parts of the outputs.
unsafe impl Sync for Args {}

impl Args {
    /// Checks that outputs and workspace are disjoint from everything else, except an input that is
    /// exactly an output's memory.
    ///
    /// All pieces come from `arena`.
    pub fn new(
        arena: &Arena,
        inputs: Vec<Arg>,
        outputs: Vec<Arg>,
        workspace: Piece,
    ) -> Result<Args, RunError> {
        let overlap = |what: String| Err(RunError::Overlap { what });
        let mut in_place = vec![None; inputs.len()];
        for (o, output) in outputs.iter().enumerate() {
            for (i, input) in inputs.iter().enumerate() {
                if input.piece == output.piece && input.piece.bytes > 0 {
                    in_place[i] = Some(o);
                } else if input.piece.overlaps(&output.piece) {
                    return overlap(format!("output {o}"));
                }
            }
            if outputs[..o]
                .iter()
                .any(|other| other.piece.overlaps(&output.piece))
            {
                return overlap(format!("output {o}"));
            }
            if workspace.overlaps(&output.piece) {
                return overlap("the workspace".into());
            }
        }
        if inputs.iter().any(|input| workspace.overlaps(&input.piece)) {
            return overlap("the workspace".into());
        }
        Ok(Args {
            home: arena.pointer.as_ptr(),
            inputs,
            in_place,
            outputs,
            workspace,
        })
    }

    /// Panics unless the pieces are of this arena, which whoever runs a kernel borrows exclusively.
    pub fn assert_in(&self, arena: &mut Arena) {
        assert!(
            self.home == arena.pointer.as_ptr(),
            "the arguments belong to another arena"
        );
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Shape of an input.
    pub fn input_shape(&self, i: usize) -> &[usize] {
        &self.inputs[i].shape
    }

    /// Element type of an input.
    pub fn input_type(&self, i: usize) -> DType {
        self.inputs[i].dtype
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Shape of an output.
    pub fn output_shape(&self, o: usize) -> &[usize] {
        &self.outputs[o].shape
    }

    /// Element type of an output.
    pub fn output_type(&self, o: usize) -> DType {
        self.outputs[o].dtype
    }

    /// An input that no output overwrites; an error otherwise, so that a kernel which can't work in
    /// place refuses to.
    pub(crate) fn input<T: Pod>(&self, i: usize) -> Result<&[T], RunError> {
        if self.in_place[i].is_some() {
            return Err(RunError::Overlap {
                what: format!("input {i}, which this operator can't overwrite,"),
            });
        }
        // SAFETY: `new` found no overlap with outputs or workspace, and the run holds the arena exclusively.
        Ok(unsafe { self.inputs[i].piece.read() })
    }

    /// An input that may be overwritten by output 0 (by another one: an error).
    pub(crate) fn source<T: Pod>(&self, i: usize) -> Result<Source<'_, T>, RunError> {
        match self.in_place[i] {
            Some(0) => Ok(Source::InPlace),
            _ => Ok(Source::From(self.input(i)?)),
        }
    }

    /// An output. A kernel takes each output once.
    #[allow(
        clippy::mut_from_ref,
        reason = "each output is taken once per run of a kernel"
    )]
    pub(crate) fn output<T: Pod>(&self, o: usize) -> &mut [T] {
        // SAFETY: disjoint from the other arguments (an in-place input is only read through this
        // slice); kernels take each output once;
        // the run holds the arena exclusively.
        unsafe { self.outputs[o].piece.write() }
    }

    /// The memory of an output that is to start as a copy of input `i`: nothing is copied if that is
    /// already so.
    pub(crate) fn copied<T: Pod>(&self, i: usize, o: usize) -> Result<&mut [T], RunError> {
        let in_place = self.in_place[i] == Some(o);
        let output = self.output::<T>(o);
        if !in_place {
            output.copy_from_slice(self.input(i)?);
        }
        Ok(output)
    }

    /// The workspace. A kernel takes it once.
    #[allow(
        clippy::mut_from_ref,
        reason = "the workspace is taken once per run of a kernel"
    )]
    pub(crate) fn workspace(&self) -> &mut [u8] {
        // SAFETY: disjoint from every argument; taken once.
        unsafe { self.workspace.write() }
    }
}
