//! The default search. In order: a state, its repair (with the moves of groups that it may postpone),
//! the annealing over repairs, the exact search over states for small problems, the schedule.

pub(crate) mod anneal;
pub(crate) mod beam;
pub(crate) mod driver;
pub(crate) mod exact;
mod order;
mod postpone;
pub(crate) mod repair;
pub(crate) mod rng;
pub(crate) mod space;
pub(crate) mod state;
