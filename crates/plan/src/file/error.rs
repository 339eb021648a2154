//! Errors of reading and writing files.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

use super::Fingerprint;
use crate::problem::ProblemError;

/// Why a file can't be read or written. Where a variant has no path, the caller knows it.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named after what they hold; the message says the rest"
)]
pub enum FileError {
    /// The operating system refused.
    #[error("can't {doing} `{}`: {source}", path.display())]
    Io {
        path: PathBuf,
        doing: &'static str,
        source: io::Error,
    },
    /// More than [`MAX_FILE_BYTES`](super::MAX_FILE_BYTES).
    #[error("the file has {bytes} bytes; at most {limit} are read")]
    TooLarge { bytes: u64, limit: u64 },
    /// Bytes that aren't text.
    #[error("`{}` isn't UTF-8 text, so it isn't JSON", path.display())]
    NotText { path: PathBuf },
    /// Not JSON, or JSON whose fields aren't as they should be.
    #[error("line {line}, column {column}, near `{near}`: {message}")]
    Json {
        line: usize,
        column: usize,
        near: String,
        message: String,
    },
    /// A text of another kind than expected.
    #[error("this is {found}, not {expected}")]
    NotThis {
        expected: &'static str,
        found: &'static str,
    },
    /// An unknown version of a format.
    #[error(
        "the file has version {found} of the format; this program reads version {known}. Write it again with this version, or update the program"
    )]
    Version { found: u64, known: u64 },
    /// Too many of something.
    #[error("the file has {count} {what}; at most {limit} are read")]
    TooMany {
        what: &'static str,
        count: usize,
        limit: usize,
    },
    /// A number outside its range.
    #[error("{at}: `{field}` is {found}, but must be {expected}")]
    Field {
        at: String,
        field: String,
        found: String,
        expected: &'static str,
    },
    /// Lists whose lengths don't agree.
    #[error("{at}: `{field}` has {found} entries, but must have {expected}")]
    Length {
        at: String,
        field: &'static str,
        found: usize,
        expected: usize,
    },
    /// An edge to a node that doesn't exist.
    #[error("edge {edge} is [{from}, {to}], but there are only {nodes} nodes, counted from 0")]
    EdgeRange {
        edge: usize,
        from: u64,
        to: u64,
        nodes: usize,
    },
    /// An edge that contradicts the order of the nodes.
    #[error(
        "edge {edge} is [{from}, {to}], which doesn't lead from a smaller to a larger node; the graph has a cycle or its nodes aren't in an executable order"
    )]
    EdgeOrder { edge: usize, from: u64, to: u64 },
    /// A problem that breaks an invariant.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// A plan for another problem.
    #[error(
        "the plan was made for the problem with fingerprint {found}, but this problem has {expected}; plan again for this one"
    )]
    OtherProblem {
        found: String,
        expected: Fingerprint,
    },
}
