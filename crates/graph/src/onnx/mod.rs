//! Import of ONNX models, opsets 6 to 25, in these steps: `decode` (bytes to messages, bounded),
//! `structure` (names, order, what the outputs need), `import` (nodes one by one: `fold` where
//! everything is known, else the operators in `ops/`).
//!
//! What becomes of a model's tensors:
//! - Inputs: float types become f32, integer types and bool i64. Symbolic dimensions must be given
//!   ([`ImportOptions`]).
//! - Float initializers with at least two elements are trained: they become parameters. Exceptions:
//!   running statistics of batch normalizations become state; names in [`ImportOptions::frozen`] and
//!   tensors that look like masks (an element that isn't finite or is beyond ±10,000; one number
//!   only, under a name like `val_12` that an exporter made up) become constants.
//! - A weight of one number only that several nodes read becomes one for each: see `untie`.
//! - Other known floats (single elements, Constant nodes, folded results) become constants, unless
//!   they are the weight, bias, scale or shift of an operator that has such an input.
//! - Integers are read at import wherever an operator takes them as a shape, axes or the like.
//!
//! Training: BatchNormalization is imported as an operator that [`crate::Op::BatchNorm`] describes,
//! whatever its training_mode says, and Dropout as dropout; training and inference then each make of
//! them what they need.

mod attributes;
mod context;
mod decode;
mod error;
mod fold;
mod fused;
mod import;
mod literal;
mod ops;
pub mod proto;
mod save;
mod shapes;
mod structure;
mod untie;
mod value;

use prost::bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::graph::Graph;
pub use error::{OnnxError, Unsupported};
pub use literal::{Data, Literal};
pub use save::ModelCopy;

/// Choices that a file leaves open, and parts of it to change.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The first dimension of every input. If none, inputs must have a fixed first dimension. A
    /// fixed one is replaced too, and then also where a Reshape repeats it.
    pub batch: Option<usize>,
    /// Sizes of other symbolic dimensions, by their names in the file.
    pub dims: BTreeMap<String, usize>,
    /// Initializers that are not trained, by name.
    pub frozen: BTreeSet<String>,
    /// Contents of inputs that are to be known at import, such as shapes, by the inputs' names.
    pub known: BTreeMap<String, Literal>,
    /// Bytes of memory that external data may take; none: no limit.
    pub room: Option<u64>,
}

/// Imports a model from a file; external data are read from files in the same folder or below.
pub fn import(path: &Path, options: &ImportOptions) -> Result<Graph, OnnxError> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let folder = path.parent();
    let (bytes, own) = decode::read_thin(path)?;
    let reader = literal::TensorReader::new(folder).with_own(Some(own));
    import_from(bytes, reader, &name, options)
}

/// Imports a model from memory, without external data. `name` becomes the graph's name.
pub fn import_bytes(
    bytes: impl Into<Bytes>,
    name: &str,
    options: &ImportOptions,
) -> Result<Graph, OnnxError> {
    import_from(
        bytes.into(),
        literal::TensorReader::new(None),
        name,
        options,
    )
}

/// Reads a tensor that is stored by itself, as ONNX's test data are.
pub fn read_tensor(bytes: impl Into<Bytes>) -> Result<Literal, OnnxError> {
    literal::TensorReader::new(None).load(&decode::tensor(bytes.into())?)
}

fn import_from(
    bytes: Bytes,
    reader: literal::TensorReader,
    name: &str,
    options: &ImportOptions,
) -> Result<Graph, OnnxError> {
    let mut model = decode::decode(bytes)?;
    let mut remark = None;
    let mut reader = reader.with_room(options.room.unwrap_or(u64::MAX));
    if let Some(graph) = &mut model.graph {
        let places = untie::places(graph, &mut reader);
        remark = untie::untie(graph, &places);
    }
    let structure = structure::Structure::of(&model)?;
    let mut graph = import::import(&structure, reader, name, options)?;
    graph.remarks.extend(remark);
    Ok(graph)
}
