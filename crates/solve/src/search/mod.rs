//! The default search. In order: a state, its repair (with the moves of groups that it may postpone),
//! orders to start from and their rearrangement, the annealing over repairs, the schedule.

pub(crate) mod anneal;
pub(crate) mod arrange;
pub(crate) mod driver;
mod order;
mod postpone;
pub(crate) mod repair;
pub(crate) mod rng;
pub(crate) mod state;
