//! The solver libraries by name: their wheels, variables and files.

use std::env;
use std::fmt;

/// A solver that is loaded at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// Linear and mixed-integer programs.
    Highs,
    /// Constraint programs: CP-SAT, which is part of OR-tools.
    OrTools,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Library::Highs => "HiGHS",
            Library::OrTools => "CP-SAT",
        })
    }
}

impl Library {
    /// The Python wheel that carries it.
    #[must_use]
    pub fn wheel(self) -> &'static str {
        match self {
            Library::Highs => "highspy",
            Library::OrTools => "ortools",
        }
    }

    /// The environment variable that names its file or folder.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Library::Highs => "SCRIMP_HIGHS",
            Library::OrTools => "SCRIMP_ORTOOLS",
        }
    }

    /// What the file is usually called on this system.
    #[must_use]
    pub fn file_name(self) -> &'static str {
        self.file_names()[0]
    }

    /// Names by which the system's loader may know it, best first.
    pub(crate) fn file_names(self) -> &'static [&'static str] {
        match (self, env::consts::OS) {
            (Library::Highs, "macos") => &["libhighs.1.dylib", "libhighs.dylib"],
            (Library::Highs, "windows") => &["highs.dll", "libhighs.dll"],
            (Library::Highs, _) => &["libhighs.so.1", "libhighs.so"],
            (Library::OrTools, "macos") => &["libortools.9.dylib", "libortools.dylib"],
            (Library::OrTools, "windows") => &["ortools.dll"],
            (Library::OrTools, _) => &["libortools.so.9", "libortools.so"],
        }
    }

    /// Folders of a Python environment's packages that may hold it, best first. The wheel `ortools`
    /// has both solvers, and its HiGHS is the one that can share a process with CP-SAT.
    pub(crate) fn wheel_folders(self) -> &'static [&'static str] {
        match self {
            Library::Highs => &["ortools/.libs", "ortools.libs", "highspy", "highspy.libs"],
            Library::OrTools => &["ortools/.libs", "ortools.libs"],
        }
    }
}
