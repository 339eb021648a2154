//! Errors as the exceptions of `scrimp.errors`, with the numbers as attributes.

use std::fmt::Display;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use scrimp::Error;
use scrimp::plan::NoDevice;
use scrimp::solve::SolveError;

/// What went wrong, before there is an interpreter to tell.
#[derive(Debug)]
pub enum Failure {
    /// A problem, plan or file that can't be read or breaks a rule of its format.
    Problem(String),
    /// An argument.
    Option(String),
    /// No plan within the budget.
    Infeasible {
        message: String,
        budget: u64,
        least_found: u64,
        floor: u64,
    },
    /// A plan that breaks rules of its problem or needs more than there is, sentence by sentence.
    Plan(Vec<String>),
    /// What isn't built, or a library that isn't there.
    Unsupported(String),
    /// A defect.
    Internal(String),
}

impl Failure {
    pub fn problem(error: impl Display) -> Failure {
        Failure::Problem(error.to_string())
    }

    pub fn plan<T: ToString>(wrong: Vec<T>) -> Failure {
        Failure::Plan(wrong.iter().map(ToString::to_string).collect())
    }

    pub fn option(error: impl Display) -> Failure {
        Failure::Option(error.to_string())
    }
}

impl From<SolveError> for Failure {
    fn from(error: SolveError) -> Failure {
        let message = error.to_string();
        match error {
            SolveError::Infeasible {
                budget,
                least_found,
                floor,
                ..
            } => Failure::Infeasible {
                message,
                budget,
                least_found,
                floor,
            },
            SolveError::NoRoom {
                budget,
                least,
                floor,
                ..
            } => Failure::Infeasible {
                message,
                budget,
                least_found: least,
                floor,
            },
            SolveError::Defect { .. } => Failure::Internal(message),
            _ => Failure::Unsupported(message),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Solve(error) => error.into(),
            Error::Plan(violations) => Failure::plan(violations),
            Error::OverBudget(excesses) => Failure::plan(excesses),
            Error::Budget(error) => Failure::option(error),
            Error::NoDevice(NoDevice::Several { .. }) => Failure::Unsupported(error.to_string()),
            Error::NoLayout { budget, needed, .. } => Failure::Infeasible {
                message: error.to_string(),
                budget,
                least_found: needed,
                floor: 0,
            },
            Error::Place(_) | Error::Layout(_) => Failure::Internal(error.to_string()),
            other => Failure::problem(other),
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        Python::attach(|py| raised(py, failure).unwrap_or_else(|error| error))
    }
}

fn raised(py: Python<'_>, failure: Failure) -> PyResult<PyErr> {
    let exception = |name: &str, arguments: Bound<'_, PyTuple>| {
        let class = py.import("scrimp.errors")?.getattr(name)?;
        Ok(PyErr::from_value(class.call1(arguments)?))
    };
    match failure {
        Failure::Problem(message) => exception("BadProblem", (message,).into_pyobject(py)?),
        Failure::Option(message) => exception("BadOption", (message,).into_pyobject(py)?),
        Failure::Unsupported(message) => exception("Unsupported", (message,).into_pyobject(py)?),
        Failure::Internal(message) => exception("ScrimpError", (message,).into_pyobject(py)?),
        Failure::Infeasible {
            message,
            budget,
            least_found,
            floor,
        } => exception(
            "Infeasible",
            (message, budget, least_found, floor).into_pyobject(py)?,
        ),
        Failure::Plan(sentences) => exception("InvalidPlan", (sentences,).into_pyobject(py)?),
    }
}
