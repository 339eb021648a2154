//! What can go wrong between us and oneDNN.

use std::path::PathBuf;

use crate::ffi::{self, Status};
use crate::names::{FILE_NAME, VARIABLE, WHEEL};

/// Why oneDNN couldn't be used, or didn't do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OneDnnError {
    /// Nowhere we look.
    #[error(
        "oneDNN isn't installed where it is looked for; run `pip install {WHEEL}` in the active Python environment, or set {VARIABLE} to the path of {FILE_NAME}"
    )]
    NotFound,
    /// The path that was asked for doesn't have it. No other place is tried then.
    #[error(
        "oneDNN isn't at `{}`, which {origin} names; give the path of {FILE_NAME} or of the folder it is in",
        path.display()
    )]
    NotThere {
        /// Where it should be.
        path: PathBuf,
        /// Who said so: an option or an environment variable.
        origin: String,
    },
    /// The file is there but can't be loaded, lacks a function or was built in another way.
    #[error(
        "`{}` can't be used as oneDNN: {reason}; `pip install {WHEEL}` gets one that can",
        path.display()
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What the loader said, or what is missing.
        reason: String,
    },
    /// Another file was loaded before.
    #[error(
        "`{}` can't be loaded beside `{}`: a process holds one oneDNN",
        asked.display(), loaded.display()
    )]
    Conflict {
        /// What was asked for.
        asked: PathBuf,
        /// What the process already has.
        loaded: PathBuf,
    },
    /// A call failed.
    #[error("oneDNN's `{call}` failed with status {status}{}", meaning(*status))]
    Failed {
        /// The function.
        call: &'static str,
        /// The library's status.
        status: i32,
    },
    /// The memory handed to a primitive isn't what it was made for.
    #[error("oneDNN's {primitive} needs {expected} bytes as {argument}, but got {found}")]
    Buffer {
        /// Name of the implementation.
        primitive: String,
        /// Which argument.
        argument: &'static str,
        /// Bytes needed.
        expected: usize,
        /// Bytes that were there; 0 where nothing was, or nothing that may be written.
        found: usize,
    },
    /// A tensor that oneDNN can't describe.
    #[error(
        "oneDNN can't describe a tensor of {rank} axes; it takes 1 to {}",
        ffi::MAX_RANK
    )]
    Rank {
        /// Number of axes.
        rank: usize,
    },
}

/// Turns a status into a result.
pub(crate) fn done(call: &'static str, status: Status) -> Result<(), OneDnnError> {
    match status {
        ffi::SUCCESS => Ok(()),
        status => Err(OneDnnError::Failed { call, status }),
    }
}

fn meaning(status: i32) -> &'static str {
    match status {
        1 => " (out of memory)",
        2 => " (invalid arguments)",
        3 => " (not implemented)",
        5 => " (runtime error)",
        6 => " (not required)",
        _ => "",
    }
}
