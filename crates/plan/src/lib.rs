//! Problems, plans and layouts for planned memory, and the checker that proves them safe.
//!
//! This crate depends on no other crate of scrimp, so the checker can't know a planner.

pub mod budget;
pub mod capacities;
pub mod check;
pub mod file;
pub mod ids;
pub mod layout;
pub mod per_device;
mod placed;
pub mod plan;
pub mod problem;
pub mod sequence;
pub mod simulate;
pub mod swap;
#[cfg(feature = "testing")]
pub mod testing;
pub mod units;
pub mod watts;

pub use budget::Budget;
pub use capacities::{Capacities, Capacity, UnknownDeviceName};
pub use check::{Binding, Buffer, BufferKind, CheckedPlan, Copied, Excess, Violation, check};
pub use file::{
    AllocationInstance, FileError, Instance, SavedPlan, plan_from_json, plan_to_json,
    problem_from_json, problem_to_json, read_allocation_instance, read_instance,
    saved_plan_from_json,
};
pub use ids::{BufferId, DeviceId, LinkId, TaskId, ValueId};
pub use layout::{
    CheckedLayout, Interval, Layout, LayoutViolation, OffsetViolation, check_layout, check_offsets,
};
pub use per_device::{NoDevice, PerDevice, PerDeviceError};
pub use plan::{Plan, Step};
pub use problem::{
    Device, Keep, Link, Mode, Origin, Overwrite, Phase, Problem, ProblemError, ProblemParts, Task,
    Units, Value,
};
pub use sequence::{Move, Sequence, SequenceError};
pub use simulate::{Lane, Span, Timeline, simulate, simulate_with};
pub use swap::{LinkSpeed, Rate, Rates, SwapError, SwapMemory};
pub use units::{Joules, UnitError, format_bytes, format_seconds, parse_bytes, parse_seconds};
pub use watts::{Watts, WattsError};
