//! What can go wrong between us and a solver library.

use std::path::PathBuf;
use thiserror::Error;

use crate::library::Library;

/// Why a solver couldn't be used, or didn't answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SolverError {
    /// Nowhere we look.
    #[error(
        "{library} isn't installed where it is looked for; run `pip install {}` in the active Python environment, or set {} to the path of {}",
        library.wheel(), library.variable(), library.file_name()
    )]
    NotFound {
        /// Which one.
        library: Library,
    },
    /// The path that was asked for doesn't have it. No other place is tried then.
    #[error(
        "{library} isn't at `{}`, which {origin} names; give the path of {} or of the folder it is in",
        path.display(), library.file_name()
    )]
    NotThere {
        /// Which one.
        library: Library,
        /// Where it should be.
        path: PathBuf,
        /// Who said so: an option or an environment variable.
        origin: String,
    },
    /// The file is there but can't be loaded or lacks a function.
    #[error("`{}` can't be used as {library}: {reason}; install it again with `pip install --force-reinstall {}`", path.display(), library.wheel())]
    Unusable {
        /// Which one.
        library: Library,
        /// The file.
        path: PathBuf,
        /// What the loader said.
        reason: String,
    },
    /// Two copies of HiGHS would end up in one process, where their names clash.
    #[error(
        "`{}` can't be loaded beside `{}`: each brings its own HiGHS and a process can hold one; use the copy of HiGHS that comes with ortools for both",
        asked.display(), loaded.display()
    )]
    Conflict {
        /// What was asked for.
        asked: PathBuf,
        /// What the process already has.
        loaded: PathBuf,
    },
    /// The solver refused a call.
    #[error("{library} refused `{call}`; the model or an option is not what it accepts")]
    Refused {
        /// Which one.
        library: Library,
        /// The function.
        call: String,
    },
    /// The solver found the model malformed or stopped by itself.
    #[error("{library} gave up: {reason}")]
    Failed {
        /// Which one.
        library: Library,
        /// What it said.
        reason: String,
    },
    /// More entries than the solver's 32-bit indices count.
    #[error("the model has {count} {what}, more than {library} can index; plan a smaller graph")]
    TooLarge {
        /// Which one.
        library: Library,
        /// Columns, rows, entries or bytes.
        what: &'static str,
        /// How many.
        count: usize,
    },
}
