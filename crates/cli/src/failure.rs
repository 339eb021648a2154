//! Exit codes, and the one sentence that goes with each.

use std::process::ExitCode;

use scrimp::Error;
use scrimp::run::{GpuError, RunError};
use scrimp::solve::SolveError;
use serde::Serialize;
use serde_json::{Value, json};

/// Why a command ended before it did all of its work. The order and numbers are documented in
/// `docs/cli.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A bug or an operating system error that no other kind names.
    Internal,
    /// Unknown flags, names or values on the command line.
    Usage,
    /// A file that can't be read, is malformed, or doesn't fit the model.
    Input,
    /// No plan meets the budget.
    Budget,
    /// A plan breaks a rule of its problem.
    Check,
    /// An output can't be written.
    Output,
    /// `--compare` found runs that are not the same bits.
    Differs,
    /// This machine has too little memory for what was asked.
    Memory,
    /// A library or driver that the method, `--library` or `--devices` needs is missing or fails.
    Solver,
    /// A loss of `train` wasn't a finite number.
    Diverged,
    /// Ctrl-C before all steps were done.
    Interrupted,
}

impl Kind {
    /// The process's exit code.
    pub fn code(self) -> u8 {
        match self {
            Kind::Internal => 1,
            Kind::Usage => 2,
            Kind::Input => 3,
            Kind::Budget => 4,
            Kind::Check => 5,
            Kind::Output => 6,
            Kind::Differs => 7,
            Kind::Memory => 8,
            Kind::Solver => 9,
            Kind::Diverged => 10,
            Kind::Interrupted => 130,
        }
    }
}

/// An error that knows its exit code.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{sentence}")]
pub struct Failure {
    kind: Kind,
    sentence: String,
    /// More keys of the JSON error object.
    details: Value,
}

impl Failure {
    /// A failure of this kind, told in one sentence.
    pub fn new(kind: Kind, sentence: impl Into<String>) -> Failure {
        Failure {
            kind,
            sentence: sentence.into(),
            details: Value::Null,
        }
    }

    /// Adds keys to the JSON error object.
    pub fn with(mut self, details: Value) -> Failure {
        self.details = details;
        self
    }

    /// The same failure, told after these words if it is one of the budget.
    pub fn of_budget(mut self, words: &str) -> Failure {
        if self.kind == Kind::Budget {
            self.sentence = format!("{words}: {}", self.sentence);
        }
        self
    }

    /// What `--json` prints.
    pub fn to_json(&self) -> Value {
        let mut error = json!({
            "kind": self.kind,
            "code": self.kind.code(),
            "message": self.sentence,
        });
        if let (Value::Object(error), Value::Object(details)) = (&mut error, &self.details) {
            error.extend(details.clone());
        }
        json!({ "error": error })
    }

    /// How the process ends.
    pub fn exit(&self) -> ExitCode {
        ExitCode::from(self.kind.code())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        match error.downcast::<Failure>() {
            Ok(failure) => failure,
            Err(error) => match error.downcast::<scrimp::Error>() {
                Ok(error) => error.into(),
                Err(error) => Failure::new(Kind::Internal, format!("{error:#}")),
            },
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let sentence = error.to_string();
        let (kind, details) = match &error {
            Error::UnknownModel { .. }
            | Error::Network(_)
            | Error::Budget(_)
            | Error::Swap(_)
            | Error::Watts(_)
            | Error::NoEnergy { .. } => (Kind::Usage, Value::Null),
            Error::Memory { needed, available } => (
                Kind::Memory,
                json!({ "needed_bytes": needed, "available_bytes": available }),
            ),
            Error::Run(error) => running(error),
            Error::Weights(_)
            | Error::Resume { .. }
            | Error::Npz(_)
            | Error::Data(_)
            | Error::DataFile { .. }
            | Error::NoAccuracy { .. } => (Kind::Input, Value::Null),
            Error::NoDevice(_)
            | Error::Device(_)
            | Error::NoBudget { .. }
            | Error::MemoryBudget { .. } => (Kind::Usage, Value::Null),
            Error::Solve(SolveError::EnergyCap {
                cap,
                least_found,
                floor,
            }) => {
                let details = json!({
                    "energy_cap_joules": cap,
                    "least_found_joules": least_found,
                    "floor_joules": floor,
                });
                (Kind::Budget, details)
            }
            Error::File { .. }
            | Error::Onnx { .. }
            | Error::Graph(_)
            | Error::NoForward
            | Error::Sequence(_) => (Kind::Input, Value::Null),
            Error::Solve(SolveError::Infeasible {
                budget,
                least_found,
                floor,
                ..
            }) => {
                let details = json!({
                    "budget_bytes": budget,
                    "least_found_bytes": least_found,
                    "floor_bytes": floor,
                });
                (Kind::Budget, details)
            }
            Error::Solve(SolveError::Short(devices)) => {
                let each = devices.iter().map(|short| {
                    json!({
                        "device": short.device,
                        "budget_bytes": short.capacity,
                        "least_found_bytes": short.least_found,
                    })
                });
                (Kind::Budget, json!({ "devices": each.collect::<Vec<_>>() }))
            }
            Error::Solve(SolveError::NoRoom {
                device,
                budget,
                least,
                floor,
                ..
            }) => {
                let details = json!({
                    "device": device,
                    "budget_bytes": budget,
                    "least_found_bytes": least,
                    "floor_bytes": floor,
                });
                (Kind::Budget, details)
            }
            Error::NoLayout {
                memory,
                budget,
                needed,
            } => (
                Kind::Budget,
                json!({
                    "device": memory,
                    "budget_bytes": budget,
                    "least_found_bytes": needed,
                }),
            ),
            Error::Solve(
                SolveError::OutsideModel { budget, .. } | SolveError::NotFound { budget, .. },
            ) => (Kind::Budget, json!({ "budget_bytes": budget })),
            Error::Solve(SolveError::Unsupported(_) | SolveError::TooLarge { .. }) => {
                (Kind::Input, Value::Null)
            }
            Error::Solve(SolveError::Solver(_)) => (Kind::Solver, Value::Null),
            Error::NoBatch { memory, needed } => (
                Kind::Budget,
                json!({ "budget_bytes": memory, "floor_bytes": needed }),
            ),
            Error::Plan(violations) => (Kind::Check, violations_of(violations)),
            Error::OverBudget(excesses) => (Kind::Check, violations_of(excesses)),
            Error::OtherDevice { .. } => (Kind::Check, Value::Null),
            Error::Layout(violations) => (Kind::Check, violations_of(violations)),
            _ => (Kind::Internal, Value::Null),
        };
        Failure {
            kind,
            sentence,
            details,
        }
    }
}

/// Why the runtime ended, and more keys of the JSON error object.
fn running(error: &RunError) -> (Kind, Value) {
    match error {
        RunError::Node { source, .. } => running(source),
        RunError::OutOfMemory { bytes }
        | RunError::Gpu(GpuError::OutOfMemory { bytes } | GpuError::NotLocked { bytes, .. }) => {
            (Kind::Memory, json!({ "needed_bytes": bytes }))
        }
        RunError::SwapRoom {
            needed, available, ..
        } => (
            Kind::Memory,
            json!({ "needed_bytes": needed, "available_bytes": available }),
        ),
        RunError::SwapFolder { .. } | RunError::SwapFile { .. } => (Kind::Memory, Value::Null),
        RunError::Gpu(GpuError::NoDevice { .. }) => (Kind::Usage, Value::Null),
        RunError::OneDnn(_) | RunError::Gpu(_) => (Kind::Solver, Value::Null),
        RunError::Panicked { .. } => (Kind::Internal, Value::Null),
        _ => (Kind::Input, Value::Null),
    }
}

/// The violations as a key of the JSON error object.
fn violations_of<T: ToString>(violations: &[T]) -> Value {
    json!({ "violations": violations.iter().map(ToString::to_string).collect::<Vec<_>>() })
}
