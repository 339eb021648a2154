//! The contents of a step's inputs: samples of a file in shuffled order, or synthetic ones. Everything
//! follows from a seed and the number of the step, so that a run that is stopped and resumed sees the same
//! samples.

mod contents;
mod feed;
mod npz;
mod rows;
mod save;
mod stream;
mod streamed;
mod synthetic;
mod tiff;

pub use contents::Contents;
pub use feed::Feed;
pub use npz::{Array, Arrays, NpzError};
pub use rows::{DataError, Rows};
pub use save::{Saved, save_npz};
pub use stream::Stream;
pub(crate) use stream::read_exact_at;
pub use streamed::streamed;
