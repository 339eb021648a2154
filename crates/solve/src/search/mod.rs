//! The default search. In order: a state, its repair (with the moves of groups that it may postpone),
//! the annealing over repairs, the schedule.

pub(crate) mod anneal;
pub(crate) mod driver;
mod order;
mod postpone;
pub(crate) mod repair;
pub(crate) mod rng;
pub(crate) mod state;
