//! The default search. Its parts build on each other in this order: a state; its repair (pricing and carrying
//! out evictions, and postponing groups of runs); orders to start from; their rearrangement and the tidying
//! of plans; annealing over repairs; squeezing; plans built from the front, by beams or, for small problems, exactly; search from the end;
//! and the schedule.

pub(crate) mod anneal;
pub(crate) mod arrange;
pub(crate) mod backward;
pub(crate) mod beam;
mod belady;
mod contract;
mod crests;
pub(crate) mod driver;
mod elite;
mod epoch;
mod estimate;
mod event;
mod evict;
pub(crate) mod exact;
mod first;
mod front;
mod lean;
mod least;
mod levels;
mod lineage;
mod links;
mod narrow;
mod order;
mod postpone;
mod price;
mod race;
pub(crate) mod repair;
mod rooms;
pub(crate) mod space;
mod squeeze;
mod starts;
pub(crate) mod state;
mod stretch;
pub(crate) mod swap;
pub(crate) mod thin;
mod tidy;
pub(crate) mod ties;
pub(crate) mod timing;
mod walks;
