//! What can be wrong with an ONNX file, in words that let its author mend it.

use std::path::PathBuf;
use thiserror::Error;

use crate::GraphError;

/// Why a file could not be imported.
#[derive(Debug, Error)]
pub enum OnnxError {
    /// The file can't be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The model, or its external data.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// More bytes than the format allows.
    #[error("{path} has {bytes} bytes; an ONNX file has at most 2 GiB, larger models keep their weights in external data", path = path.display())]
    TooLarge {
        /// The model.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// Not the wire format, or cut short.
    #[error("this is not an ONNX file, or it is damaged: {0}")]
    Decode(String),
    /// The graph's structure breaks the specification.
    #[error("the ONNX graph is not valid: {0}")]
    Invalid(String),
    /// An initializer that can't be loaded.
    #[error("initializer {name:?}: {reason}")]
    Initializer {
        /// Its name in the file.
        name: String,
        /// What is wrong, and the remedy.
        reason: String,
    },
    /// An input whose shape or type can't be fixed.
    #[error("input {name:?}: {reason}")]
    Input {
        /// Its name in the file.
        name: String,
        /// What is wrong, and the remedy.
        reason: String,
    },
    /// One node is wrong: attributes, number of inputs, shapes.
    #[error("node {node:?} ({op}): {reason}")]
    Node {
        /// The node's name in the file, or its first output where it has none.
        node: String,
        /// Operator type.
        op: String,
        /// What is wrong.
        reason: String,
    },
    /// The file is valid, but it uses something that isn't implemented. Everything of that kind which the
    /// import could reach is listed.
    #[error("{}", list_unsupported(.0))]
    Unsupported(Vec<Unsupported>),
    /// The imported nodes don't make a graph.
    #[error("the imported graph is not valid: {0}")]
    Graph(#[from] GraphError),
}

/// A node, or a part of it, that isn't implemented.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The node's name in the file, or its first output where it has none.
    pub node: String,
    /// Operator type, with its domain if that isn't the standard one.
    pub op: String,
    /// The attribute, type or rank at fault; none if it is the operator itself.
    pub what: Option<String>,
}

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.what {
            None => write!(f, "operator {} (node {:?})", self.op, self.node),
            Some(what) => write!(f, "{} {what} (node {:?})", self.op, self.node),
        }
    }
}

/// How many nodes a message names; the rest are counted.
const NAMED: usize = 20;

fn list_unsupported(all: &[Unsupported]) -> String {
    let named: Vec<String> = all.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match all.len().saturating_sub(NAMED) {
        0 => String::new(),
        n => format!("; and {n} more"),
    };
    format!("not supported: {}{more}", named.join("; "))
}

/// Why one node could not be imported; the importer adds the node's name.
#[derive(Debug)]
pub(super) enum Fault {
    /// It breaks the specification.
    Invalid(String),
    /// It is not implemented.
    Unsupported(String),
}

impl From<GraphError> for Fault {
    /// Shapes and types that ONNX allows and the graph doesn't are unsupported, not invalid.
    fn from(error: GraphError) -> Fault {
        use crate::ShapeError::{ElementType, Empty, Rank, TooManyAxes};
        let source = match &error {
            GraphError::Node { source, .. } | GraphError::Tensor { source, .. } => Some(&**source),
            _ => None,
        };
        match source {
            Some(
                source @ (ElementType { .. } | Empty { .. } | Rank { .. } | TooManyAxes { .. }),
            ) => Fault::Unsupported(format!("here ({source})")),
            _ => Fault::Invalid(error.to_string()),
        }
    }
}

/// Shorthand for the result of importing a node.
pub(super) type Outcome<T> = Result<T, Fault>;

/// `Err(Fault::Invalid(..))` with a formatted reason.
macro_rules! invalid {
    ($($arg:tt)*) => { Err($crate::onnx::error::Fault::Invalid(format!($($arg)*))) };
}

/// `Err(Fault::Unsupported(..))` with a formatted reason.
macro_rules! unsupported {
    ($($arg:tt)*) => { Err($crate::onnx::error::Fault::Unsupported(format!($($arg)*))) };
}
pub(super) use {invalid, unsupported};
