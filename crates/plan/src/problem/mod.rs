//! The planning problem: devices, links, tasks and values. It knows no operators and no tensor contents.
//!
//! # Vocabulary and units
//!
//! * Memory is in **bytes** (`u64`). Instances may use another unit; the arithmetic is the same, and
//!   [`Units`] names the unit.
//! * Time is in **seconds** (`f64`, finite, not negative), energy in **joules**; again, instances
//!   may use another unit of cost.
//! * Intervals are half-open, `[start, end)`, and counted in steps of a plan.
//!
//! # Invariants, checked by [`Problem::new`]
//!
//! * Ids are in range; every output names its task as origin, every value has one origin.
//! * The index order of tasks is executable as it stands on one device with enough memory: a task
//!   reads only values that are given or produced by a task of smaller index, and an overwritten
//!   value has no reader of larger index than the task that overwrites it. Hence the graph is acyclic.
//! * Costs are finite, not negative and at most [`MAX_COST`]. The bytes that could be on a device at once are
//!   at most [`MAX_BYTES`], so that sums of bytes and their signed differences don't overflow.
//! * There is at least one task and one device that computes; device names are distinct; a link joins
//!   two different devices, and at most one link joins them in that direction.
//! * Links that share a queue name the first of them, which has its own queue; concurrent links share none.
//! * A concurrent device computes.
//! * A task is in at most one group, and some device can run all tasks of a group.
//! * An overwriting task reads the overwritten value and writes the overwriting value, and the two have the
//!   same size. A value is overwritten by at most one task.
//! * An overwritten value isn't kept: every task runs, and the value is gone once its overwriting task has
//!   run.

mod parts;
mod valid;
mod validate;

pub use parts::{
    Device, Keep, Link, Mode, Origin, Overwrite, Phase, ProblemParts, Task, Units, Value,
};
pub use valid::Problem;
pub use validate::{MAX_BYTES, MAX_COST, MAX_DEVICES, ProblemError};
