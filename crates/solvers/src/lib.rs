//! HiGHS (linear and mixed-integer programs) and CP-SAT (constraint programs) behind small safe
//! layers. Neither is linked: both are loaded at run time from where they are installed, and
//! [`SolverError`] says in a sentence how to get the one that isn't there.
//!
//! All calls into foreign code are here. A solve runs on a thread of its own, so that a solver that
//! overruns its time limit can be left behind: the caller gets the best answer so far, and the thread
//! ends when the solver notices that it was told to stop.

pub mod cpsat;
mod error;
pub mod highs;
mod library;
mod load;
mod locate;

pub use cpsat::CpSat;
pub use error::SolverError;
pub use highs::Highs;
pub use library::Library;
pub use load::{Installed, installed};
