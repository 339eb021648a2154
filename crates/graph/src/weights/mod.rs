//! Files of weights: safetensors with the graph's tensor names, so that PyTorch and others can read them.
//! Running statistics are one tensor [2, C] in the graph, named `<layer>.running`. In the file they are two,
//! `<layer>.running_mean` and `<layer>.running_var`, as PyTorch names them.
//!
//! Neither reading nor writing takes memory that grows with the tensors: elements are moved between the file
//! and where they are used piece by piece.

mod read;
mod stored;
mod write;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use thiserror::Error;

use crate::graph::Tensor;

pub use read::{FileElements, WeightsFile};
pub use stored::Stored;
pub use write::write;

/// The key of [`Notes`] in a file's header.
const NOTES: &str = "scrimp";

/// Elements that are moved at a time.
const PIECE: usize = 1 << 14;

/// Notes that the writer of a file wants to find again, such as the number of steps.
pub type Notes = BTreeMap<String, String>;

/// A source of the elements of a graph's tensors.
pub trait Elements {
    /// Hands out the elements of the tensor with this name, in row order, one piece after another.
    ///
    /// # Errors
    /// If the tensor isn't there or has fewer elements, or if `take` fails.
    fn read(
        &self,
        name: &str,
        elements: Range<usize>,
        take: &mut dyn FnMut(&[f32]) -> io::Result<()>,
    ) -> io::Result<()>;
}

/// Why weights can't be read or used.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// The operating system can't read the file.
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file isn't safetensors, or is damaged.
    #[error("{path} is not a safetensors file, or it is damaged: {reason}", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The file's tensors are not the graph's.
    #[error("the weights do not fit the graph: {}", list(.0))]
    Mismatch(Vec<Misfit>),
}

/// A tensor that the file lacks or has in another shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// The graph has the tensor, but the file doesn't.
    Missing {
        /// Its name.
        name: String,
    },
    /// Both have the tensor, but in different shapes.
    Shape {
        /// Its name.
        name: String,
        /// Its shape in the graph.
        expected: Vec<usize>,
        /// Its shape in the file.
        found: Vec<usize>,
    },
}

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Misfit::Missing { name } => write!(f, "{name} is missing"),
            Misfit::Shape {
                name,
                expected,
                found,
            } => write!(f, "{name} has shape {found:?} and not {expected:?}"),
        }
    }
}

/// How many tensors a message names; the rest are counted.
const NAMED: usize = 12;

fn list(all: &[Misfit]) -> String {
    let named: Vec<String> = all.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match all.len().saturating_sub(NAMED) {
        0 => String::new(),
        n => format!("; and {n} more"),
    };
    format!("{}{more}", named.join("; "))
}

/// Which tensors of a graph a file must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Require {
    /// Parameters and state, such as momenta and running statistics: to resume as if not stopped.
    Everything,
    /// Parameters, and of the state whatever the file has: to start from someone else's weights.
    Parameters,
}

/// Some elements of a graph's tensor that are one tensor in a file.
struct Part {
    name: String,
    shape: Vec<usize>,
    elements: Range<usize>,
}

/// The tensors that a graph's tensor is in files: one, or two for running statistics.
fn parts(tensor: &Tensor) -> Vec<Part> {
    let part = |name: String, shape: &[usize], elements| Part {
        name,
        shape: shape.to_vec(),
        elements,
    };
    match (tensor.name.strip_suffix(".running"), &tensor.shape[..]) {
        (Some(stem), &[2, channels]) => vec![
            part(format!("{stem}.running_mean"), &[channels], 0..channels),
            part(
                format!("{stem}.running_var"),
                &[channels],
                channels..2 * channels,
            ),
        ],
        _ => vec![part(
            tensor.name.clone(),
            &tensor.shape,
            0..tensor.elements(),
        )],
    }
}
