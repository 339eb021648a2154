//! Writes weights: the header, then each tensor's elements, from wherever they are.

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::ops::Range;

use super::{Elements, NOTES, Notes, parts};
use crate::graph::Tensor;

/// A range of elements of the graph's tensor with this name.
type Origin<'a> = (&'a str, Range<usize>);

/// Writes a file with these tensors of a graph.
///
/// # Errors
/// If the file can't be written, or elements aren't there.
pub fn write(
    file: &mut dyn Write,
    notes: &Notes,
    tensors: &[&Tensor],
    elements: &dyn Elements,
) -> io::Result<()> {
    let (header, origins) = header(notes, tensors)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for (name, range) in origins {
        elements.read(name, range, &mut |piece| {
            let mut each = piece.iter();
            each.try_for_each(|element| file.write_all(&element.to_le_bytes()))
        })?;
    }
    Ok(())
}

/// The header, and the origins of the elements in the order of the file, which is by name.
fn header<'a>(notes: &Notes, tensors: &[&'a Tensor]) -> io::Result<(Vec<u8>, Vec<Origin<'a>>)> {
    let mut sorted = BTreeMap::new();
    for tensor in tensors {
        for part in parts(tensor) {
            sorted.insert(part.name, (part.shape, (&tensor.name[..], part.elements)));
        }
    }
    let mut end = 0;
    let (mut infos, mut origins) = (Vec::new(), Vec::new());
    for (name, (shape, origin)) in sorted {
        let start = end;
        end += origin.1.len() * size_of::<f32>();
        let info = TensorInfo {
            dtype: Dtype::F32,
            shape,
            data_offsets: (start, end),
        };
        infos.push((name, info));
        origins.push(origin);
    }
    // There is a single entry, so that the file doesn't depend on the order of a hash map.
    let notes = match notes.is_empty() {
        true => None,
        false => Some(HashMap::from([(
            NOTES.to_owned(),
            serde_json::to_string(notes)?,
        )])),
    };
    let metadata = Metadata::new(notes, infos).map_err(io::Error::other)?;
    let mut text = serde_json::to_vec(&metadata)?;
    // The format wants elements to be aligned.
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok((text, origins))
}
