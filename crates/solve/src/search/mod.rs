//! The default search. In order: a state, its repair (with the price and the doing of evictions, and the moves of groups that it may postpone),
//! orders to start from, their rearrangement and the tidying of plans, the annealing over repairs, plans built from the
//! front by beams and, for small problems, exactly, the schedule.

pub(crate) mod anneal;
pub(crate) mod arrange;
pub(crate) mod beam;
pub(crate) mod driver;
mod estimate;
mod event;
mod evict;
pub(crate) mod exact;
mod first;
mod links;
mod order;
mod postpone;
mod price;
pub(crate) mod repair;
pub(crate) mod space;
pub(crate) mod state;
mod tidy;
mod walks;
