//! Files: versioned JSON for problems and plans, and the neutral format of published instances. All readers
//! are strict and bounded, and no input makes them panic.
//!
//! In our own files the field `format` names the kind of file and `version` the version of its format. The
//! schemas are in `docs/schema`.

mod allocation;
mod disk;
mod draft;
mod error;
mod fingerprint;
mod instance;
mod json;
mod output;
mod paging;
mod partitioning;
mod plan;
mod problem;
mod raw;
mod several;
mod system;

use crate::capacities::Capacities;
use crate::problem::Problem;

pub use allocation::{AllocationInstance, read_allocation_instance};
pub use disk::{open_regular, read_regular_text, read_text};
pub use error::FileError;
pub use fingerprint::Fingerprint;
pub use instance::{Instance, read_instance};
pub use output::{Output, write_bytes, write_text};
pub use plan::{SavedPlan, plan_from_json, plan_to_json, saved_plan_from_json};
pub use problem::{problem_from_json, problem_to_json};
pub use raw::InstanceStats;
pub use system::FileIdentity;

/// The largest file that is read.
pub const MAX_FILE_BYTES: u64 = 1 << 28;
/// The most tasks of a problem, or nodes of an instance.
pub const MAX_TASKS: usize = 1 << 20;
/// The most values of a problem.
pub const MAX_VALUES: usize = 1 << 22;
/// The most reads and writes of all tasks together, or edges of an instance.
pub const MAX_EDGES: usize = 1 << 24;
/// The most steps of a plan.
pub const MAX_STEPS: usize = 1 << 24;

/// What a JSON text holds.
#[derive(Clone, Debug)]
pub enum Content {
    /// A problem in our own format, and the capacities that the file states.
    Problem(Problem, Capacities),
    /// A published graph.
    Instance(Box<Instance>),
    /// Published lifetimes of buffers.
    Allocation(AllocationInstance),
}

/// Reads a text that may be a problem, an instance or an allocation instance; its fields decide which.
///
/// # Errors
/// If the text is none of these (the error says what it is instead), or something in it is wrong.
pub fn read(text: &str) -> Result<Content, FileError> {
    match json::kind_of(text)? {
        json::Kind::Instance => read_instance(text).map(Box::new).map(Content::Instance),
        json::Kind::Allocation => read_allocation_instance(text).map(Content::Allocation),
        _ => {
            let (problem, capacities) = problem_from_json(text)?;
            Ok(Content::Problem(problem, capacities))
        }
    }
}
