//! Run and train neural networks in less memory than they need.
//!
//! Given a model and a byte budget, scrimp decides what a training step keeps in memory and what it
//! computes again, proves that the decision stays under the budget, and executes it. The stages are
//! the functions of [`pipeline`], in order.

pub mod checkpoint;
pub mod error;
mod evaluate;
pub mod machine;
pub mod pipeline;
pub mod report;
pub mod session;
pub mod summary;
pub mod training;

pub use scrimp_graph as graph;
pub use scrimp_plan as plan;
pub use scrimp_run as run;
pub use scrimp_solve as solve;

pub use checkpoint::Start;
pub use error::{Error, Result};
pub use evaluate::accuracy;
pub use pipeline::{
    Budgeted, Fit, Planned, Recipe, Search, Source, adopt, budget, differentiate, estimate, import,
    lower, plan as make_plan,
};
pub use session::{Breakdown, Job, Session, StepRecord};
pub use summary::{PlanSummary, Status, percent_over};
pub use training::{Outcome, Trained};
