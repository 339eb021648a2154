//! Run and train neural networks in less memory than they need.
//!
//! Given a model and a byte budget, scrimp decides what a training step keeps in memory and what it
//! computes again, proves that the decision stays under the budget, and executes it. The stages are
//! the functions of [`pipeline`], in order:
//!
//! ```
//! use scrimp::graph::data::Feed;
//! use scrimp::graph::networks::NetworkOptions;
//! use scrimp::graph::{Loss, Optimizer};
//! use scrimp::plan::Budget;
//! use scrimp::run::{Compiled, Cpu, Processor};
//! use scrimp::solve::Options;
//! use scrimp::{Fit, Job, Recipe, Session, Source, Start};
//!
//! # fn main() -> Result<(), scrimp::Error> {
//! let optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 };
//! let recipe = Recipe { loss: Loss::CrossEntropy, optimizer };
//! let options = NetworkOptions { batch: 4, ..NetworkOptions::default() };
//!
//! let graph = scrimp::import(&Source::find("digits")?, &options, None)?;
//! let training = scrimp::differentiate(&graph, recipe)?;
//! let cpu = Cpu::new(1)?;
//! let compiled = Compiled::new(&training.graph, Processor::Cpu(&cpu));
//! let costs = scrimp::estimate(&compiled);
//! let lowered = scrimp::lower(&training, &costs)?;
//! let budgeted = scrimp::budget(&lowered.problem, Budget::Percent(70.0))?;
//! let planned = scrimp::make_plan(&budgeted, Fit::Layout, &Options::default(), &mut |_| {})?;
//! assert!(planned.plan().peak(budgeted.device) < budgeted.base_peak());
//!
//! let feed = Feed::synthetic(&training.graph, 0);
//! let start = Start::new(0);
//! let job = Job {
//!     training: &training,
//!     lowered: &lowered,
//!     compiled: &compiled,
//!     feed: &feed,
//!     optimizer,
//!     learning_rate: 0.01,
//!     start: &start,
//! };
//! let mut session = Session::new(job, &planned.layout, planned.arena_bytes())?;
//! session.step(false)?;
//! assert_eq!(session.arena_bytes(), planned.budget_bytes);
//! # Ok(())
//! # }
//! ```

pub mod batch;
pub mod checkpoint;
pub mod error;
mod evaluate;
pub mod machine;
pub mod pipeline;
mod predict;
pub mod report;
pub mod session;
pub mod summary;
pub mod training;

pub use scrimp_graph as graph;
pub use scrimp_plan as plan;
pub use scrimp_run as run;
pub use scrimp_solve as solve;

pub use batch::{
    AtBatch, Attempt, BatchProgress, LargestBatch, Limit, MOST_BATCH, largest_batch, largest_scaled,
};
pub use checkpoint::Start;
pub use error::{Error, Result};
pub use evaluate::accuracy;
pub use pipeline::{
    Budgeted, Fit, Planned, Recipe, Search, Source, adopt, budget, differentiate, estimate, import,
    lower, plan as make_plan, with_weights,
};
pub use predict::predicted_seconds;
pub use session::{Breakdown, Job, Session, StepRecord};
pub use summary::{PlanSummary, Status, percent_over};
pub use training::{Outcome, Trained};
