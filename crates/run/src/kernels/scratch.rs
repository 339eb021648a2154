//! Cutting a workspace into typed pieces, and saying beforehand how large it must be.

use bytemuck::Pod;

use crate::arena::ALIGN;
use crate::error::RunError;

/// Bytes of `count` elements of `T`, rounded up to the alignment.
pub fn bytes<T>(count: usize) -> usize {
    (count * size_of::<T>()).next_multiple_of(ALIGN)
}

/// What is left of a workspace.
pub struct Scratch<'a> {
    rest: &'a mut [u8],
}

impl<'a> Scratch<'a> {
    /// All of it.
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
