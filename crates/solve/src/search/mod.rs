//! The default search. In order: a state, its repair, the annealing over repairs.

pub(crate) mod anneal;
pub(crate) mod driver;
pub(crate) mod repair;
pub(crate) mod rng;
pub(crate) mod state;
