//! What can go wrong on the way from a model to a trained one. Every error is one sentence that says what is
//! wrong, where, and what to do.

use std::path::PathBuf;

use scrimp_graph::GraphError;
use scrimp_graph::data::{DataError, NpzError};
use scrimp_graph::networks::NetworkError;
use scrimp_graph::onnx::OnnxError;
use scrimp_graph::weights::WeightsError;
use scrimp_plan::file::FileError;
use scrimp_plan::{
    Excess, LayoutViolation, NoDevice, SequenceError, SwapError, UnitError, Violation, WattsError,
};
use scrimp_run::RunError;
use scrimp_solve::{PlaceError, SolveError};
use thiserror::Error;

use crate::devices::DeviceError;

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a stage of the pipeline can't do its work.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The model is neither a built-in network nor a file.
    #[error(
        "'{model}' is neither a file nor a built-in network; `scrimp networks` lists the names"
    )]
    UnknownModel {
        /// As given.
        model: String,
    },
    /// A file can't be read, or has contents that mean nothing.
    #[error("'{}': {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<FileError>,
    },
    /// An ONNX file can't be imported.
    #[error("'{}': {source}", path.display())]
    Onnx {
        /// The file.
        path: PathBuf,
        /// Why.
        source: OnnxError,
    },
    /// An option of a built-in network is wrong.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The model can't be trained or planned.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A text that isn't a list of devices.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Energy doesn't follow from power.
    #[error(transparent)]
    Watts(#[from] WattsError),
    /// Nothing in the problem takes energy.
    #[error(
        "no task of '{problem}' takes energy; say what devices draw, like `--watts {device}=15`"
    )]
    NoEnergy {
        /// The problem.
        problem: String,
        /// A device that computes.
        device: String,
    },
    /// A setting names a device that the problem doesn't have, or names none of several.
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
    /// Nothing says how much memory a plan may use.
    #[error(
        "there is no budget for device `{device}`, and the file states no capacity; give one, like `--budget {device}=60%`"
    )]
    NoBudget {
        /// The device that computes.
        device: String,
    },
    /// A budget relative to what planning saves was given for a memory that planning can't change.
    #[error(
        "the budget of `{device}` must be a number of bytes: a percentage or `min` is for the device that computes"
    )]
    MemoryBudget {
        /// A device that doesn't compute.
        device: String,
    },
    /// An order of runs can't be executed.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// A budget isn't a number or a unit that is known.
    #[error(transparent)]
    Budget(#[from] UnitError),
    /// A memory to swap to can't be added.
    #[error(transparent)]
    Swap(#[from] SwapError),
    /// There is no plan, or none that this crate can make.
    #[error(transparent)]
    Solve(#[from] SolveError),
    /// The runtime refuses.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The plan breaks rules of its problem.
    #[error("the plan is wrong in {}: {}", count(.0.len(), "place"), list(.0))]
    Plan(Vec<Violation>),
    /// The plan needs more than the budget.
    #[error("the plan needs more than the budget: {}", list(.0))]
    OverBudget(Vec<Excess>),
    /// A plan for another device doesn't hold for this one.
    #[error(
        "the plan was made for {made} and doesn't hold for {device}, which needs other workspaces: {source}; plan again for this device, or give the plan a larger budget"
    )]
    OtherDevice {
        /// The device that it was made for.
        made: String,
        /// The signature of this device.
        device: String,
        /// Why it doesn't hold.
        source: Box<Error>,
    },
    /// The layout has wrong offsets.
    #[error("the layout is wrong in {}: {}", count(.0.len(), "place"), list(.0))]
    Layout(Vec<LayoutViolation>),
    /// Buffers couldn't be placed in memory.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The live bytes fit the budget, but no layout was found that does.
    #[error(
        "plans within {budget} bytes of {memory} exist, but the best arrangement found there takes {needed}; give {memory} {needed} bytes or more"
    )]
    NoLayout {
        /// The device whose memory it is.
        memory: String,
        /// The budget in bytes.
        budget: u64,
        /// The least arena found.
        needed: u64,
    },
    /// No batch size fits a memory.
    #[error(
        "no batch fits: one sample needs {needed} and there is room for {memory}; raise the memory, or allow more added time"
    )]
    NoBatch {
        /// Room for the graph's values, in the problem's unit.
        memory: u64,
        /// What one sample needs: the proven least or, if it fits but no plan was found, the need without one.
        needed: u64,
    },
    /// The limit is one more forward pass, but the graph doesn't say which tasks are backward.
    #[error(
        "the graph doesn't say which tasks belong to the backward pass, so there is no forward pass to allow; give the added time as a percentage, like `--overhead 10%`"
    )]
    NoForward,
    /// Weights can't be read or don't fit.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Training can't resume from a file.
    #[error("can't resume from '{}': {reason}", path.display())]
    Resume {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// A file of data can't be read.
    #[error(transparent)]
    Npz(#[from] NpzError),
    /// Data doesn't fit the model.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Data of a file doesn't fit the model.
    #[error("{}: {source}", path.display())]
    DataFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: DataError,
    },
    /// The accuracy on test samples isn't defined.
    #[error(
        "the accuracy on test samples isn't defined: {reason}; leave x_test and y_test out of the data"
    )]
    NoAccuracy {
        /// Why.
        reason: String,
    },
    /// The run needs more memory than there is.
    #[error(
        "{needed} bytes are needed, but only {available} are available on this machine; lower the budget or the batch size, or free memory"
    )]
    Memory {
        /// Bytes that the run needs.
        needed: u64,
        /// Bytes that can be taken, as the operating system says.
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

/// The first few violations, so that the message stays one sentence.
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
