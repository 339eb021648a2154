//! Planners: the function [`solve`], whose options choose the method, and placement, [`place`].
//!
//! Every plan that leaves this crate has passed [`fn@scrimp_plan::check`].

pub use scrimp_solvers as solvers;

mod bound;
mod checked;
mod copies;
mod cut;
mod cutoff;
mod devices;
mod divisor;
mod energy;
mod error;
mod exact;
mod flow;
mod frontier;
mod ids;
mod method;
mod model;
mod options;
mod outside;
mod place;
mod proof;
pub mod published;
mod random;
mod routes;
mod search;
mod solve;
mod staircase;
mod sweep;
mod variants;

pub use bound::devices::cost as lower_bound;
pub use checked::sequence_of;
pub use cutoff::Cutoff;
pub use error::{Shortage, SolveError};
pub use frontier::{Frontier, solve_frontier};
pub use method::{
    Candidates, Formulation, Method, Objective, Offload, Order, Placing, Precedence, Published,
    Reading, Rounding, UnknownName, Wording,
};
pub use options::{Options, Others, Progress, Solved};
pub use place::{
    Overflow, PlaceAny, PlaceError, Placement, place, place_by, place_intervals, place_reordered,
    place_thinned, smallest_thinned,
};
pub use published::Layer;
pub use solve::{floor_bytes, leanest, share_needed, solve};
pub use sweep::{Outcomes, solve_sweep};
pub use variants::solve_variants;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
