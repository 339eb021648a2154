//! Planners: one function, [`solve`], whose method is an option, and placement, [`place`].
//!
//! Every plan that leaves this crate has been through [`fn@scrimp_plan::check`].

pub use scrimp_solvers as solvers;

mod bound;
mod ids;
mod model;
mod options;
mod place;
pub mod published;
mod random;
mod search;
mod solve;
mod sweep;

pub use options::{Method, Options, Order, Progress, SolveError, Solved};
pub use place::{PlaceError, Placement, place, place_intervals, place_reordered};
pub use solve::{floor_bytes, solve};
pub use sweep::solve_sweep;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
