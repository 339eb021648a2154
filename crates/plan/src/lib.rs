//! Problems, plans and layouts for planned memory, and the checker that proves them safe.
//!
//! Depends on no other crate of scrimp: the checker can't know a planner.

pub mod ids;
pub mod plan;
pub mod problem;

pub use ids::{BufferId, DeviceId, LinkId, TaskId, ValueId};
pub use plan::{Plan, Step};
pub use problem::{
    Device, Keep, Link, Mode, Origin, Overwrite, Phase, Problem, ProblemParts, Task, Units, Value,
};
