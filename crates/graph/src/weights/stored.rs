//! Weights that stay in their file until they are wanted.

use safetensors::tensor::Dtype;
use std::fs::File;
use std::io;
use std::sync::Arc;

use super::PIECE;
use super::read::floats;
use crate::data::read_exact_at;

/// Floats in a file. Reading them takes no memory that grows with their number.
#[derive(Clone, Debug)]
pub struct Stored {
    file: Arc<File>,
    start: u64,
    count: usize,
    dtype: Dtype,
}

impl Stored {
    /// The caller has found out that the file has these elements, which are of a float type.
    pub(crate) fn new(file: Arc<File>, start: u64, count: usize, dtype: Dtype) -> Stored {
        Stored {
            file,
            start,
            count,
            dtype,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Fills a slice with the elements from `first` on.
    ///
    /// # Errors
    /// If the file can't be read, or there are fewer elements.
    pub fn read(&self, first: usize, into: &mut [f32]) -> io::Result<()> {
        if self.count.saturating_sub(first) < into.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let size = self.dtype.bitsize() / 8;
        let mut bytes = vec![0; into.len().min(PIECE) * size];
        let mut at = self.start + (first * size) as u64;
        for piece in into.chunks_mut(PIECE) {
            let bytes = &mut bytes[..piece.len() * size];
            read_exact_at(&self.file, bytes, at)?;
            at += bytes.len() as u64;
            floats(self.dtype, bytes, piece);
        }
        Ok(())
    }

    /// Whether all elements pass a test.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn all(&self, test: impl Fn(f32) -> bool) -> io::Result<bool> {
        let mut piece = vec![0.0; self.count.min(PIECE)];
        for first in (0..self.count).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(self.count - first)];
            self.read(first, piece)?;
            if !piece.iter().all(|&x| test(x)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether all elements are the same number.
    ///
    /// # Errors
    /// If the file can't be read, or there are no elements.
    pub fn is_uniform(&self) -> io::Result<bool> {
        let mut first = [0.0];
        self.read(0, &mut first)?;
        self.all(|x| x == first[0])
    }
}

/// Elements of one place in one file.
impl PartialEq for Stored {
    fn eq(&self, other: &Stored) -> bool {
        Arc::ptr_eq(&self.file, &other.file)
            && (self.start, self.count, self.dtype) == (other.start, other.count, other.dtype)
    }
}
