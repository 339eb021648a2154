//! What the inputs of a step are: samples of an npz file in a shuffled order, or synthetic ones.
//! Everything follows from a seed and the number of the step, so that a run that is stopped and
//! goes on sees the same samples.

mod contents;
mod feed;
mod npz;
mod synthetic;

pub use contents::Contents;
pub use feed::{DataError, Feed, Samples};
pub use npz::{Dataset, NpzError};
