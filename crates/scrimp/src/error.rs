//! What can go wrong on the way from a model to a trained one. Every error is one sentence that says
//! what is wrong, where, and what to do.

use std::path::PathBuf;

use scrimp_graph::GraphError;
use scrimp_graph::data::{DataError, NpzError};
use scrimp_graph::networks::NetworkError;
use scrimp_graph::onnx::OnnxError;
use scrimp_graph::weights::WeightsError;
use scrimp_plan::file::FileError;
use scrimp_plan::{Excess, LayoutViolation, NoDevice, SequenceError, UnitError, Violation};
use scrimp_run::RunError;
use scrimp_solve::{PlaceError, SolveError};
use thiserror::Error;

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a stage of the pipeline can't do its work.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither a built-in network nor a file.
    #[error(
        "'{model}' is neither a file nor a built-in network; `scrimp networks` lists the names"
    )]
    UnknownModel {
        /// As given.
        model: String,
    },
    /// A file that can't be read or means nothing.
    #[error("'{}': {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: Box<FileError>,
    },
    /// An ONNX file that can't be imported.
    #[error("'{}': {source}", path.display())]
    Onnx {
        /// Which.
        path: PathBuf,
        /// Why.
        source: OnnxError,
    },
    /// An option of a built-in network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A model that can't be trained or planned.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A problem for more than one computing device.
    #[error(
        "problem '{problem}' has several devices that compute, but a plan can be made for one only; give a problem with one"
    )]
    SeveralDevices {
        /// Its name.
        problem: String,
    },
    /// No device for what is said of one.
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
    /// Nothing says how much memory a plan may use.
    #[error(
        "there is no budget for device `{device}`, and the file states no capacity; give one, like `--budget 60%`"
    )]
    NoBudget {
        /// The device that computes.
        device: String,
    },
    /// A share of a memory of which planning changes nothing.
    #[error(
        "the budget of `{device}` must be a number of bytes: a percentage or `min` is for the device that computes"
    )]
    MemoryBudget {
        /// A device that doesn't compute.
        device: String,
    },
    /// An order of runs that can't be executed.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// A budget that can't be counted.
    #[error(transparent)]
    Budget(#[from] UnitError),
    /// No plan, or none that this crate can make.
    #[error(transparent)]
    Solve(#[from] SolveError),
    /// The runtime refuses.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A plan that breaks rules of its problem.
    #[error("the plan is wrong in {}: {}", count(.0.len(), "place"), list(.0))]
    Plan(Vec<Violation>),
    /// A plan that needs more than the budget.
    #[error("the plan needs more than the budget: {}", list(.0))]
    OverBudget(Vec<Excess>),
    /// A plan of another device that this device can't run.
    #[error(
        "the plan was made for {made} and doesn't hold for {device}, which needs other workspaces: {source}; plan again for this device, or give the plan a larger budget"
    )]
    OtherDevice {
        /// What it was made for.
        made: String,
        /// The signature of this device.
        device: String,
        /// Why it doesn't hold.
        source: Box<Error>,
    },
    /// Offsets that are wrong.
    #[error("the layout is wrong in {}: {}", count(.0.len(), "place"), list(.0))]
    Layout(Vec<LayoutViolation>),
    /// A placement that went wrong.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Live bytes that fit a budget in which no layout was found.
    #[error(
        "plans within {budget} bytes exist, but the best arrangement found in memory needs {needed}; raise the budget to {needed}"
    )]
    NoLayout {
        /// What was asked.
        budget: u64,
        /// The least arena found.
        needed: u64,
    },
    /// No batch size fits a memory.
    #[error(
        "no batch fits: one sample needs {needed} and there is room for {memory}; raise the memory, or allow more added time"
    )]
    NoBatch {
        /// Room for the graph, in the problem's unit.
        memory: u64,
        /// What one sample needs: proven, or without a plan if none was found.
        needed: u64,
    },
    /// One more forward pass of a graph that doesn't say which tasks are backward.
    #[error(
        "the graph doesn't say which tasks belong to the backward pass, so there is no forward pass to allow; give the added time as a percentage, like `--overhead 10%`"
    )]
    NoForward,
    /// Weights that can't be read or don't fit.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A file that training can't go on from.
    #[error("can't go on from '{}': {reason}", path.display())]
    Resume {
        /// Which.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// A file of data that can't be read.
    #[error(transparent)]
    Npz(#[from] NpzError),
    /// Data that doesn't fit the model.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Test samples whose accuracy isn't defined.
    #[error(
        "the accuracy on test samples isn't defined: {reason}; leave x_test and y_test out of the data"
    )]
    NoAccuracy {
        /// Why.
        reason: String,
    },
    /// More memory than there is.
    #[error(
        "{needed} bytes are needed, but this machine has {available} to take; lower the budget or the batch size, or free memory"
    )]
    Memory {
        /// For the largest arena.
        needed: u64,
        /// As the operating system says.
        available: u64,
    },
}

impl From<Vec<Violation>> for Error {
    fn from(violations: Vec<Violation>) -> Error {
        Error::Plan(violations)
    }
}

impl From<Vec<Excess>> for Error {
    fn from(excesses: Vec<Excess>) -> Error {
        Error::OverBudget(excesses)
    }
}

impl From<Vec<LayoutViolation>> for Error {
    fn from(violations: Vec<LayoutViolation>) -> Error {
        Error::Layout(violations)
    }
}

fn count(n: usize, what: &str) -> String {
    if n == 1 {
        format!("one {what}")
    } else {
        format!("{n} {what}s")
    }
}

/// The first few, so that a sentence stays one.
fn list<T: ToString>(violations: &[T]) -> String {
    let shown = 3;
    let mut text: Vec<String> = violations
        .iter()
        .take(shown)
        .map(ToString::to_string)
        .collect();
    if violations.len() > shown {
        text.push(format!("and {} more", violations.len() - shown));
    }
    text.join("; ")
}
