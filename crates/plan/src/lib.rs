//! Problems, plans and layouts for planned memory, and the checker that proves them safe.
//!
//! Depends on no other crate of scrimp: the checker can't know a planner.

pub mod budget;
pub mod check;
pub mod ids;
pub mod layout;
pub mod plan;
pub mod problem;
pub mod sequence;
pub mod validate;

pub use budget::{Budget, UnitError, format_bytes, format_seconds, parse_bytes, parse_seconds};
pub use check::{Binding, Buffer, BufferKind, CheckedPlan, Violation, check};
pub use ids::{BufferId, DeviceId, LinkId, TaskId, ValueId};
pub use layout::{CheckedLayout, Layout, LayoutViolation, check_layout};
pub use plan::{Plan, Step};
pub use problem::{
    Device, Keep, Link, Mode, Origin, Overwrite, Phase, Problem, ProblemParts, Task, Units, Value,
};
pub use sequence::SequenceError;
pub use validate::ProblemError;
