//! Reads weights: the header when a file is opened, elements when they are wanted.

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{Misfit, NOTES, Notes, PIECE, Part, Require, WeightsError, parts};
use crate::graph::{Graph, Role, Tensor, TensorId};

/// The most bytes of a header, the limit of the format's own library.
const MOST_HEADER_BYTES: u64 = 100_000_000;

/// A file of weights. Its elements are converted from any float type.
#[derive(Debug)]
pub struct WeightsFile {
    path: PathBuf,
    file: File,
    header: Metadata,
    /// Offset of the first tensor.
    start: u64,
    /// What the writer noted.
    pub notes: Notes,
}

impl WeightsFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// If it can't be read, is no file of weights, or holds tensors of a type that isn't supported.
    pub fn open(path: &Path) -> Result<WeightsFile, WeightsError> {
        let io = |source| WeightsError::Io {
            path: path.to_owned(),
            source,
        };
        let damaged = |reason: String| WeightsError::Format {
            path: path.to_owned(),
            reason,
        };
        // Opening a pipe would wait for its writer.
        if !path.metadata().map_err(io)?.is_file() {
            return Err(damaged("it is no regular file".into()));
        }
        let mut file = File::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        let text = header(&mut file, bytes).map_err(io)?;
        let text = text.ok_or_else(|| damaged("its header doesn't end in it".into()))?;
        let start = 8 + text.len() as u64;
        let header: Metadata =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if start.checked_add(header.data_len() as u64) != Some(bytes) {
            return Err(damaged("it isn't as long as its header says".into()));
        }
        for name in header.offset_keys() {
            let dtype = header.info(&name).map(|info| info.dtype);
            if let Some(dtype) = dtype.filter(|&dtype| !is_supported(dtype)) {
                let reason = format!("{name}: elements of type {dtype} are not supported");
                return Err(damaged(reason));
            }
        }
        let notes = header.metadata().as_ref().and_then(|all| all.get(NOTES));
        let notes = notes.map_or(Ok(Notes::default()), |text| serde_json::from_str(text));
        let notes =
            notes.map_err(|error| damaged(format!("its {NOTES:?} entry is damaged: {error}")))?;
        Ok(WeightsFile {
            path: path.to_owned(),
            file,
            header,
            start,
            notes,
        })
    }

    /// Checks that the file fits the graph, and returns the graph's parameters and state that the file has,
    /// in the graph's order.
    ///
    /// # Errors
    /// If a required tensor is missing, or if one has another shape.
    pub fn fit(&self, graph: &Graph, require: Require) -> Result<Vec<TensorId>, WeightsError> {
        let mut fitting = Vec::new();
        let mut misfits = Vec::new();
        for (id, tensor) in graph.given() {
            let required = match tensor.role {
                Role::Parameter(_) => true,
                Role::State(_) => require == Require::Everything,
                _ => continue,
            };
            match self.infos(tensor) {
                Ok(_) => fitting.push(id),
                Err(Misfit::Missing { .. }) if !required => {}
                Err(misfit) => misfits.push(misfit),
            }
        }
        match misfits.is_empty() {
            true => Ok(fitting),
            false => Err(WeightsError::Mismatch(misfits)),
        }
    }

    /// The elements of a graph's tensor, in row order.
    ///
    /// # Errors
    /// If the file doesn't have this tensor.
    pub fn elements(&self, tensor: &Tensor) -> Result<FileElements<'_>, WeightsError> {
        let infos = self.infos(tensor);
        let infos = infos.map_err(|misfit| WeightsError::Mismatch(vec![misfit]))?;
        Ok(FileElements {
            file: self,
            stretches: infos.iter().map(|info| self.stretch(info)).collect(),
            bytes: Vec::new(),
        })
    }

    /// The file's entries for a graph's tensor.
    fn infos(&self, tensor: &Tensor) -> Result<Vec<&TensorInfo>, Misfit> {
        let info = |Part { name, shape, .. }: Part| match self.header.info(&name) {
            None => Err(Misfit::Missing { name }),
            Some(info) if info.shape != shape => Err(Misfit::Shape {
                name,
                expected: shape,
                found: info.shape.clone(),
            }),
            Some(info) => Ok(info),
        };
        parts(tensor).into_iter().map(info).collect()
    }

    fn stretch(&self, info: &TensorInfo) -> Stretch {
        Stretch {
            at: self.start + info.data_offsets.0 as u64,
            elements: info.shape.iter().product(),
            dtype: info.dtype,
        }
    }
}

/// The header's bytes, if the file has all of them.
fn header(file: &mut File, bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    if bytes < 8 {
        return Ok(None);
    }
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MOST_HEADER_BYTES || length > bytes - 8 {
        return Ok(None);
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text)?;
    Ok(Some(text))
}

/// Elements of one tensor in the file that are still to be read.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    at: u64,
    elements: usize,
    dtype: Dtype,
}

/// The elements of a graph's tensor, to be read in order.
#[derive(Debug)]
pub struct FileElements<'a> {
    file: &'a WeightsFile,
    /// The stretches to be read, the next one first.
    stretches: Vec<Stretch>,
    bytes: Vec<u8>,
}

impl FileElements<'_> {
    /// Fills a slice with the next elements.
    ///
    /// # Errors
    /// If the file can't be read or has no more elements.
    pub fn next(&mut self, mut into: &mut [f32]) -> Result<(), WeightsError> {
        while !into.is_empty() {
            let count = self.some(into).map_err(|source| WeightsError::Io {
                path: self.file.path.clone(),
                source,
            })?;
            into = &mut into[count..];
        }
        Ok(())
    }

    /// Fills the start of a slice and returns the number of elements filled.
    fn some(&mut self, into: &mut [f32]) -> io::Result<usize> {
        self.stretches.retain(|stretch| stretch.elements > 0);
        let stretch = self.stretches.first_mut();
        let stretch = stretch.ok_or(io::ErrorKind::UnexpectedEof)?;
        let count = stretch.elements.min(into.len()).min(PIECE);
        let size = stretch.dtype.bitsize() / 8;
        self.bytes.resize(count * size, 0);
        let mut file = &self.file.file;
        file.seek(SeekFrom::Start(stretch.at))?;
        file.read_exact(&mut self.bytes)?;
        floats(stretch.dtype, &self.bytes, &mut into[..count]);
        stretch.at += self.bytes.len() as u64;
        stretch.elements -= count;
        Ok(count)
    }
}

fn is_supported(dtype: Dtype) -> bool {
    // PyTorch's batch normalizations count batches, in integers.
    matches!(
        dtype,
        Dtype::F32 | Dtype::F64 | Dtype::F16 | Dtype::BF16 | Dtype::I64
    )
}

/// Converts little-endian elements of a supported type.
pub(super) fn floats(dtype: Dtype, bytes: &[u8], into: &mut [f32]) {
    macro_rules! convert {
        ($t:ty, $convert:expr) => {{
            let (chunks, _) = bytes.as_chunks::<{ size_of::<$t>() }>();
            for (x, &chunk) in into.iter_mut().zip(chunks) {
                *x = $convert(<$t>::from_le_bytes(chunk));
            }
        }};
    }
    match dtype {
        Dtype::F64 => convert!(f64, |v| v as f32),
        Dtype::F16 => convert!(u16, crate::half::half_to_f32),
        Dtype::BF16 => convert!(u16, crate::half::bfloat_to_f32),
        Dtype::I64 => convert!(i64, |v| v as f32),
        _ => convert!(f32, |v| v),
    }
}
