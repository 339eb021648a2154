//! The contents of inputs, and the random numbers that all data are made from.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::npz::NpzError;
use super::stream::Stream;
use crate::dtype::DType;
use crate::graph::TensorId;

/// The contents of an input: floats or integers, in memory or in a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Contents {
    /// For f32 and f64 tensors.
    Floats(Vec<f32>),
    /// For i64 tensors.
    Ints(Vec<i64>),
    /// For f32 and f64 tensors: the current batch of an array in a file.
    Stored(Stream),
}

impl Contents {
    /// The given rows of `width` elements, one after another.
    pub(super) fn rows(&self, width: usize, rows: &[usize]) -> Contents {
        let range = |&row: &usize| row * width..(row + 1) * width;
        match self {
            Contents::Floats(v) => Contents::Floats(
                rows.iter()
                    .flat_map(|row| &v[range(row)])
                    .copied()
                    .collect(),
            ),
            Contents::Ints(v) => Contents::Ints(
                rows.iter()
                    .flat_map(|row| &v[range(row)])
                    .copied()
                    .collect(),
            ),
            Contents::Stored(stream) => Contents::Stored(stream.selected(rows)),
        }
    }

    /// All of the array as integers, which may take `room` bytes of memory if they are still in a file; `None` if they are
    /// floating-point numbers.
    ///
    /// # Errors
    /// If the file can't be read, or they take more memory.
    pub fn into_ints(self, room: u64) -> Result<Option<Vec<i64>>, NpzError> {
        match self {
            Contents::Floats(_) => Ok(None),
            Contents::Ints(ints) => Ok(Some(ints)),
            Contents::Stored(stream) => stream.ints(room),
        }
    }

    /// The contents in an element type. Integers may become floats, but not the other way round, and integers of a
    /// file are in memory ([`Stream::ints`]).
    pub(super) fn into_type(self, dtype: DType) -> Option<Contents> {
        match (self, dtype) {
            (Contents::Ints(v), DType::F32 | DType::F64) => {
                Some(Contents::Floats(v.into_iter().map(|i| i as f32).collect()))
            }
            (Contents::Floats(_) | Contents::Stored(_), DType::I64) => None,
            (contents, _) => Some(contents),
        }
    }
}

/// An input of the graph that is filled with data.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) tensor: TensorId,
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
    /// One more than the largest valid integer, if the graph shows it.
    pub(super) limit: Option<usize>,
}

/// A random number generator for one part of the data.
pub(super) fn stream(seed: u64, major: u64, minor: u64) -> SplitMix64 {
    let mut mixed = seed;
    for part in [major, minor] {
        mixed = SplitMix64::seed_from_u64(mixed ^ part.rotate_left(32)).next_u64();
    }
    SplitMix64::seed_from_u64(mixed)
}

/// A uniform number in 0..n; the bias is below n/2⁶⁴.
pub(super) fn below(random: &mut SplitMix64, n: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(n)) >> 64) as u64
}
