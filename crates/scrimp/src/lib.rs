//! Run and train neural networks in less memory than they need.
//!
//! Given a model and a byte budget, scrimp decides what a training step keeps in memory and what it
//! computes again, proves that the decision stays under the budget, and executes it:
//!
//! ```
//! use scrimp::Trainer;
//!
//! # fn main() -> Result<(), scrimp::Error> {
//! let trainer = Trainer::new("digits", 16)?; // a built-in network or an ONNX file
//! let training = trainer.plan("60%".parse()?)?;
//! println!("{} bytes instead of {}", training.peak_bytes(), training.base_peak_bytes());
//! let trained = training.run(5, &mut |step, record| println!("{step}: loss {}", record.loss))?;
//! println!("{} s per step", trained.step_seconds());
//! # assert!(training.peak_bytes() < training.base_peak_bytes());
//! # assert_eq!(trained.losses().len(), 5);
//! # Ok(())
//! # }
//! ```
//!
//! [`Trainer`] calls the functions of [`pipeline`] one after the other. Call them yourself to measure
//! costs instead of estimating them, to choose another planner, or to plan a problem of your own.

pub mod batch;
pub mod checkpoint;
mod crossing;
mod devices;
pub mod error;
mod evaluate;
pub mod history;
mod inference;
pub mod machine;
pub mod pipeline;
mod profile;
pub mod report;
pub mod session;
mod stays;
pub mod summary;
mod swap;
mod trainer;
pub mod training;

pub use scrimp_graph as graph;
pub use scrimp_plan as plan;
pub use scrimp_run as run;
pub use scrimp_solve as solve;

pub use batch::{
    AtBatch, Attempt, BatchProgress, LargestBatch, Limit, MOST_BATCH, largest_batch, largest_scaled,
};
pub use checkpoint::Start;
pub use crossing::Crossing;
pub use devices::{DeviceError, DeviceKind, DeviceSpec, Devices};
pub use error::{Error, Result};
pub use evaluate::Evaluation;
pub use history::{History, Moment};
pub use inference::{Forward, Inference, forward};
pub use pipeline::{
    Budgeted, Choice, Fit, Homes, ModelSource, Planned, Pricing, Provenance, Recipe, Slowed,
    TileSearch, TiledStep, TrialPlan, Work, adopt, budget, budgets, choose_tiles, copy_of,
    differentiate, estimate, find_ascending, find_plan, import, layers, lower, plan_bytes,
};
pub use profile::{Within, predicted, profile, profile_beside, shared_budgets};
pub use session::{Breakdown, Job, Session, StepRecord};
pub use stays::{Stay, stays};
pub use summary::{Optimality, PlanSummary, percent_over};
pub use swap::{Swap, SwapPlace, swap_places};
pub use trainer::{PlannedTraining, Trainer};
pub use training::{Outcome, Trained, median};
