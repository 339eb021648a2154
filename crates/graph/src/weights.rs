//! Files of weights: safetensors with the graph's tensor names, so that PyTorch and others can read
//! them. Running statistics, one tensor [2, C] named `<layer>.running` in the graph, are two in the
//! file, `<layer>.running_mean` and `<layer>.running_var`, as PyTorch names them.

use safetensors::tensor::{Dtype, SafeTensors, TensorView, View};
use scrimp_plan::file::write_bytes;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use thiserror::Error;

use crate::graph::{Graph, Role, Tensor, TensorId};

/// The file's entry for [`Weights::notes`].
const NOTES: &str = "scrimp";

/// What a file of weights holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    /// By name.
    pub tensors: BTreeMap<String, Array>,
    /// Anything the writer wants to find again, such as the number of steps.
    pub notes: BTreeMap<String, String>,
}

/// A tensor of f32. Other float types are converted when they are read.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Lengths of the axes.
    pub shape: Vec<usize>,
    /// Contents, row-major; as many as the shape says.
    pub values: Vec<f32>,
}

/// Why weights can't be read, written or used.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// The system refuses.
    #[error("cannot {verb} {path}: {source}", path = path.display())]
    Io {
        /// "read" or "write".
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Not safetensors, or damaged.
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

/// A tensor that the file lacks or has otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// The graph has it, the file doesn't.
    Missing {
        /// Its name.
        name: String,
    },
    /// Both have it, in different shapes.
    Shape {
        /// Its name.
        name: String,
        /// In the graph.
        expected: Vec<usize>,
        /// In the file.
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
    /// Parameters and state, such as momenta and running statistics: to go on as if not stopped.
    Everything,
    /// Parameters; of the state what the file has: to start from someone else's weights.
    Parameters,
}

impl Weights {
    /// Read a file.
    pub fn read(path: &Path) -> Result<Weights, WeightsError> {
        let bytes = std::fs::read(path).map_err(|source| WeightsError::Io {
            verb: "read",
            path: path.to_owned(),
            source,
        })?;
        Weights::from_bytes(&bytes).map_err(|reason| WeightsError::Format {
            path: path.to_owned(),
            reason,
        })
    }

    /// The contents of a file; the error is a reason.
    pub fn from_bytes(bytes: &[u8]) -> Result<Weights, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
        let notes = header.metadata().as_ref().and_then(|m| m.get(NOTES));
        let notes = match notes {
            Some(text) => serde_json::from_str(text)
                .map_err(|e| format!("its {NOTES:?} entry is damaged: {e}"))?,
            None => BTreeMap::new(),
        };
        let mut tensors = BTreeMap::new();
        for (name, view) in file.iter() {
            let values = floats(&view).map_err(|reason| format!("{name}: {reason}"))?;
            let shape = view.shape().to_vec();
            tensors.insert(name.to_owned(), Array { shape, values });
        }
        Ok(Weights { tensors, notes })
    }

    /// Write a file: whole or not at all, as it is written aside and then renamed.
    pub fn write(&self, path: &Path) -> Result<(), WeightsError> {
        let fail = |source| WeightsError::Io {
            verb: "write",
            path: path.to_owned(),
            source,
        };
        // A single entry, so that the file doesn't depend on the order of a hash map.
        let notes = (!self.notes.is_empty())
            .then(|| serde_json::to_string(&self.notes).map_err(|e| fail(e.into())))
            .transpose()?;
        let notes = notes.map(|text| HashMap::from([(NOTES.to_owned(), text)]));
        let bytes = safetensors::serialize(&self.tensors, notes)
            .map_err(|error| fail(std::io::Error::other(error)))?;
        write_bytes(path, &bytes).map_err(fail)
    }

    /// Add a tensor of a graph under the name or names it has in files.
    pub fn insert(&mut self, tensor: &Tensor, values: Vec<f32>) {
        let mut add = |name: String, shape: &[usize], values: Vec<f32>| {
            let shape = shape.to_vec();
            self.tensors.insert(name, Array { shape, values });
        };
        match statistics(tensor) {
            Some((mean, variance)) => {
                let channels = tensor.shape[1];
                add(variance, &[channels], values[channels..].to_vec());
                add(mean, &[channels], values[..channels].to_vec());
            }
            None => add(tensor.name.clone(), &tensor.shape, values),
        }
    }

    /// The contents for a graph's parameters and state, in the graph's order.
    pub fn fit(
        &self,
        graph: &Graph,
        require: Require,
    ) -> Result<Vec<(TensorId, Vec<f32>)>, WeightsError> {
        let mut fitted = Vec::new();
        let mut misfits = Vec::new();
        for (id, tensor) in graph.given() {
            let required = match tensor.role {
                Role::Parameter(_) => true,
                Role::State(_) => require == Require::Everything,
                _ => continue,
            };
            match self.get(tensor) {
                Ok(values) => fitted.push((id, values)),
                Err(Misfit::Missing { .. }) if !required => {}
                Err(misfit) => misfits.push(misfit),
            }
        }
        match misfits.is_empty() {
            true => Ok(fitted),
            false => Err(WeightsError::Mismatch(misfits)),
        }
    }

    fn get(&self, tensor: &Tensor) -> Result<Vec<f32>, Misfit> {
        let array = |name: &str, expected: &[usize]| match self.tensors.get(name) {
            None => Err(Misfit::Missing {
                name: name.to_owned(),
            }),
            Some(array) if array.shape != expected => Err(Misfit::Shape {
                name: name.to_owned(),
                expected: expected.to_vec(),
                found: array.shape.clone(),
            }),
            Some(array) => Ok(&array.values),
        };
        match statistics(tensor) {
            Some((mean, variance)) => {
                let channels = &tensor.shape[1..];
                let mut values = array(&mean, channels)?.clone();
                values.extend(array(&variance, channels)?);
                Ok(values)
            }
            None => array(&tensor.name, &tensor.shape).cloned(),
        }
    }
}

/// The two names of running statistics in files.
fn statistics(tensor: &Tensor) -> Option<(String, String)> {
    let stem = tensor.name.strip_suffix(".running")?;
    match tensor.shape[..] {
        [2, _] => Some((
            format!("{stem}.running_mean"),
            format!("{stem}.running_var"),
        )),
        _ => None,
    }
}

/// The elements of a tensor of any float type.
fn floats(view: &TensorView<'_>) -> Result<Vec<f32>, String> {
    let data = view.data();
    /// Little-endian elements, converted.
    macro_rules! elements {
        ($t:ty, $convert:expr) => {
            data.chunks_exact(size_of::<$t>())
                .map(|c| <$t>::from_le_bytes(c.try_into().expect("chunks have the exact size")))
                .map($convert)
                .collect()
        };
    }
    Ok(match view.dtype() {
        Dtype::F32 => elements!(f32, |v| v),
        Dtype::F64 => elements!(f64, |v| v as f32),
        Dtype::F16 => elements!(u16, crate::half::half_to_f32),
        Dtype::BF16 => elements!(u16, crate::half::bfloat_to_f32),
        // PyTorch counts batches in its batch normalizations.
        Dtype::I64 => elements!(i64, |v| v as f32),
        other => return Err(format!("elements of type {other} are not supported")),
    })
}

impl View for &Array {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.values
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<u8>>()
            .into()
    }

    fn data_len(&self) -> usize {
        self.values.len() * 4
    }
}
