//! How the elements that a descriptor describes lie in memory.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_int, c_void};
use std::ptr::{from_mut, null};

use crate::desc::Desc;
use crate::error::{OneDnnError, done};
use crate::ffi::{self, Dims, MAX_RANK};

/// A tensor in blocks: its axes are cut into inner blocks, one after another from the outermost block
/// to the innermost one, whose elements are neighbours; strides are those of what is left outside of
/// the blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Lengths of the axes.
    pub shape: Vec<usize>,
    /// The same, rounded up to whole blocks.
    pub padded: Vec<usize>,
    /// Steps of each axis' outer part, in elements.
    pub strides: Vec<usize>,
    /// Axis and length of each inner block, from the outermost to the innermost.
    pub inner: Vec<(usize, usize)>,
}

impl Desc {
    /// The layout; `None` where it is another thing than blocks with strides.
    ///
    /// # Errors
    /// The library doesn't answer.
    pub fn layout(&self) -> Result<Option<Layout>, OneDnnError> {
        if self.number(ffi::QUERY_FORMAT_KIND)? != ffi::BLOCKED {
            return Ok(None);
        }
        let rank = self.number(ffi::QUERY_RANK)?;
        let blocks = self.number(ffi::QUERY_BLOCK_COUNT)?;
        let lengths = self.list(ffi::QUERY_BLOCKS, blocks)?;
        let axes = self.list(ffi::QUERY_BLOCK_AXES, blocks)?;
        Ok(Some(Layout {
            shape: self.list(ffi::QUERY_SHAPE, rank)?,
            padded: self.list(ffi::QUERY_PADDED_SHAPE, rank)?,
            strides: self.list(ffi::QUERY_STRIDES, rank)?,
            inner: axes.into_iter().zip(lengths).collect(),
        }))
    }

    fn query(&self, what: c_int, answer: *mut c_void) -> Result<(), OneDnnError> {
        // SAFETY: the descriptor is alive; callers give a place for what the query writes.
        done("dnnl_memory_desc_query", unsafe {
            (self.library.api.desc_query)(self.handle, what, answer)
        })
    }

    fn number(&self, what: c_int) -> Result<c_int, OneDnnError> {
        let mut number: c_int = 0;
        self.query(what, from_mut(&mut number).cast())?;
        Ok(number)
    }

    /// The first elements of an array of the descriptor.
    fn list(&self, what: c_int, count: c_int) -> Result<Vec<usize>, OneDnnError> {
        let mut list: *const Dims = null();
        self.query(what, from_mut(&mut list).cast())?;
        // SAFETY: null, or an array in the descriptor, which is alive.
        let list = unsafe { list.as_ref() };
        let count = usize::try_from(count).unwrap_or(0).min(MAX_RANK);
        let list = list.map_or(&[][..], |list| &list[..count]);
        Ok(list
            .iter()
            .map(|&value| usize::try_from(value).unwrap_or(0))
            .collect())
    }
}
