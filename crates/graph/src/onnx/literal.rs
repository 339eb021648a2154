//! Tensors whose contents are known at import, and how they are read from a file: typed data, raw
//! data and external data. Every float type becomes f32, every integer type and bool i64.

use scrimp_plan::file::open_regular;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use safetensors::Dtype;

use super::error::OnnxError;
use super::proto::{TensorProto, data_type};
use crate::data::read_exact_at;
use crate::half::{bfloat_to_f32, half_to_f32};
use crate::weights::Stored;

/// The longest axis count accepted; every operator here works with at most 8.
const MAX_RANK: usize = 16;

/// A tensor whose contents are known at import.
#[derive(Clone, Debug, PartialEq)]
pub struct Literal {
    /// Lengths of the axes; empty for a scalar.
    pub shape: Vec<usize>,
    /// Contents, row-major; as many as the shape says.
    pub data: Data,
}

/// The contents of a [`Literal`].
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Any of the file's float types.
    Floats(Arc<[f32]>),
    /// Any of the file's integer types; bool as 0 and 1.
    Ints(Arc<[i64]>),
}

impl Literal {
    /// A float tensor; `values` must be as many as `shape` says.
    pub fn floats(shape: Vec<usize>, values: impl Into<Arc<[f32]>>) -> Literal {
        let data = Data::Floats(values.into());
        Literal { shape, data }
    }

    /// An integer tensor; `values` must be as many as `shape` says.
    pub fn ints(shape: Vec<usize>, values: impl Into<Arc<[i64]>>) -> Literal {
        let data = Data::Ints(values.into());
        Literal { shape, data }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &self.data {
            Data::Floats(v) => v.len(),
            Data::Ints(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The contents, if they are integers.
    pub fn as_ints(&self) -> Option<&[i64]> {
        match &self.data {
            Data::Ints(v) => Some(v),
            Data::Floats(_) => None,
        }
    }

    /// The contents, if they are floats.
    pub fn as_floats(&self) -> Option<&[f32]> {
        match &self.data {
            Data::Floats(v) => Some(v),
            Data::Ints(_) => None,
        }
    }

    /// The contents as floats, integers converted.
    pub fn to_floats(&self) -> Vec<f32> {
        match &self.data {
            Data::Floats(v) => v.to_vec(),
            Data::Ints(v) => v.iter().map(|&i| i as f32).collect(),
        }
    }

    /// The one element, as a number.
    pub fn scalar(&self) -> Option<f64> {
        match &self.data {
            Data::Floats(v) if v.len() == 1 => Some(f64::from(v[0])),
            Data::Ints(v) if v.len() == 1 => Some(v[0] as f64),
            _ => None,
        }
    }
}

/// Number of elements, checked: `None` if it is more than 2⁴⁰, counting axes of length 0 as 1 so
/// that no product of some of the lengths overflows either.
pub(super) fn element_count(dims: &[usize]) -> Option<usize> {
    let multiply = |count: usize, &dim: &usize| count.checked_mul(dim.max(1));
    let count = dims.iter().try_fold(1, multiply)?;
    let empty = dims.contains(&0);
    (count <= 1 << 40).then_some(if empty { 0 } else { count })
}

/// Dimensions of a tensor in a file.
pub(super) fn checked_dims(dims: &[i64]) -> Result<Vec<usize>, String> {
    if dims.len() > MAX_RANK {
        return Err(format!(
            "it has {} axes; at most {MAX_RANK} are supported",
            dims.len()
        ));
    }
    let shape: Result<Vec<usize>, _> = dims.iter().map(|&d| usize::try_from(d)).collect();
    let shape = shape.map_err(|_| format!("its shape {dims:?} has a negative dimension"))?;
    match element_count(&shape) {
        Some(_) => Ok(shape),
        None => Err(format!("its shape {dims:?} has too many elements")),
    }
}

/// Float tensors of at least this many bytes stay in their file until a run begins. Smaller ones are read at
/// import, which often asks for their contents.
pub(super) const STORED_BYTES: u64 = 1 << 16;

/// The location of data that stay in the model's own file.
pub(super) const OWN_FILE: &str = "";

/// Reads tensors of one model; knows where external data may lie and how much memory they may take.
pub(super) struct TensorReader {
    folder: Option<PathBuf>,
    /// By location, with their sizes.
    files: HashMap<String, (Shared, u64)>,
    room: u64,
}

type Shared = Arc<File>;

/// Where a tensor's data are.
struct Place {
    file: Shared,
    location: String,
    offset: u64,
    bytes: u64,
}

impl TensorReader {
    /// `folder` is the model's own; external data must lie inside it. It is `None` if the model isn't a file.
    pub(super) fn new(folder: Option<&Path>) -> TensorReader {
        TensorReader {
            folder: folder.map(Path::to_owned),
            files: HashMap::new(),
            room: u64::MAX,
        }
    }

    /// With less memory for external data than they might ask for.
    pub(super) fn with_room(self, room: u64) -> TensorReader {
        TensorReader { room, ..self }
    }

    /// With the model's own file, open, and its size.
    pub(super) fn with_own(mut self, own: Option<(File, u64)>) -> TensorReader {
        let own = own.map(|(file, size)| (Arc::new(file), size));
        self.files.extend(own.map(|own| (OWN_FILE.to_owned(), own)));
        self
    }

    /// The shape and place of a large float tensor outside of the message; none for any other tensor.
    pub(super) fn stored(
        &mut self,
        tensor: &TensorProto,
    ) -> Result<Option<(Vec<usize>, Stored)>, String> {
        let dtype = match tensor.data_type {
            data_type::FLOAT => Dtype::F32,
            data_type::DOUBLE => Dtype::F64,
            data_type::FLOAT16 => Dtype::F16,
            data_type::BFLOAT16 => Dtype::BF16,
            _ => return Ok(None),
        };
        if tensor.data_location != 1 {
            return Ok(None);
        }
        let shape = checked_dims(&tensor.dims)?;
        let count = element_count(&shape).expect("checked_dims has counted");
        let place = self.place(tensor, count)?;
        let stored = Stored::new(place.file, place.offset, count, dtype);
        // What doesn't fit by itself is refused where it is read.
        let large = (STORED_BYTES..=self.room).contains(&place.bytes);
        Ok(large.then_some((shape, stored)))
    }

    /// Load a tensor of the file.
    pub(super) fn load(&mut self, tensor: &TensorProto) -> Result<Literal, OnnxError> {
        self.contents(tensor)
            .map_err(|reason| OnnxError::Initializer {
                name: tensor.name.clone(),
                reason,
            })
    }

    /// [`TensorReader::load`] with a bare reason, for tensors that have no name.
    pub(super) fn contents(&mut self, tensor: &TensorProto) -> Result<Literal, String> {
        let shape = checked_dims(&tensor.dims)?;
        let count = element_count(&shape).expect("checked_dims has counted");
        let raw = match tensor.data_location {
            0 => None,
            1 => Some(self.external(tensor, count)?),
            other => return Err(format!("unknown data location {other}")),
        };
        let raw = raw.as_deref().or({
            // An empty tensor may have neither raw nor typed data.
            let has_raw = !tensor.raw_data.is_empty();
            has_raw.then_some(&tensor.raw_data[..])
        });
        let data = match raw {
            Some(raw) => from_raw(tensor.data_type, raw, count)?,
            None => from_typed(tensor, count)?,
        };
        Ok(Literal { shape, data })
    }

    /// The raw data of a tensor that lies in another file.
    pub(super) fn bytes(&mut self, tensor: &TensorProto) -> Result<Vec<u8>, String> {
        let shape = checked_dims(&tensor.dims)?;
        let count = element_count(&shape).expect("checked_dims has counted");
        self.external(tensor, count)
    }

    fn external(&mut self, tensor: &TensorProto, count: usize) -> Result<Vec<u8>, String> {
        let Place {
            file,
            location,
            offset,
            bytes: expected,
        } = self.place(tensor, count)?;
        let held = count as u64 * held_bytes(tensor.data_type)?;
        let room = self.room;
        if expected + held > room {
            return Err(format!(
                "external data takes {} bytes of memory to read, but only {room} are left",
                expected + held
            ));
        }
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(expected as usize);
        reserved.map_err(|_| format!("there is no memory for {expected} bytes"))?;
        bytes.resize(expected as usize, 0);
        read_exact_at(&file, &mut bytes, offset)
            .map_err(|e| format!("external data {location:?}: {e}"))?;
        self.room -= held;
        Ok(bytes)
    }

    /// Where external data are, which are wholly in their file.
    fn place(&mut self, tensor: &TensorProto, count: usize) -> Result<Place, String> {
        let entry = |key: &str| {
            let found = tensor.external_data.iter().find(|e| e.key == key);
            found.map(|e| e.value.as_str())
        };
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => text
                .parse::<u64>()
                .map(Some)
                .map_err(|_| format!("external data: {key} {text:?} is not a whole number")),
        };
        let location = entry("location").ok_or("external data without a location")?;
        let expected = element_bytes(tensor.data_type)? * count as u64;
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
        if let Some(length) = length.filter(|&n| n != expected) {
            return Err(format!(
                "external data has {length} bytes, but the shape and type need {expected}"
            ));
        }
        let (file, size) = self.open(location)?;
        if offset.checked_add(expected).is_none_or(|end| end > size) {
            return Err(format!(
                "external data {location:?} has {size} bytes; {expected} at offset {offset} are not in it"
            ));
        }
        Ok(Place {
            file,
            location: location.to_owned(),
            offset,
            bytes: expected,
        })
    }

    /// Open a file of the model's folder, and tell its size. The location must be relative, without `..`, and must not
    /// lead out of the folder through a link.
    fn open(&mut self, location: &str) -> Result<(Shared, u64), String> {
        if !self.files.contains_key(location) {
            let folder = self.folder.as_deref();
            let folder = folder.ok_or("external data needs a model that is read from a file")?;
            let folder = if folder.as_os_str().is_empty() {
                Path::new(".")
            } else {
                folder
            };
            let plain = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
            let outside = || format!("external data {location:?} lies outside the model's folder");
            if !Path::new(location).components().all(plain) {
                return Err(outside());
            }
            let path = folder.join(location);
            let fail = |e: std::io::Error| format!("external data {}: {e}", path.display());
            let real = path.canonicalize().map_err(fail)?;
            if !real.starts_with(folder.canonicalize().map_err(fail)?) {
                return Err(outside());
            }
            let (file, size) = open_regular(&real).map_err(fail)?;
            let file = Arc::new(file);
            self.files.insert(location.to_owned(), (file, size));
        }
        Ok(self.files[location].clone())
    }
}

/// Bytes of an element in raw data.
fn element_bytes(code: i32) -> Result<u64, String> {
    use data_type::*;
    match code {
        UINT8 | INT8 | BOOL => Ok(1),
        UINT16 | INT16 | FLOAT16 | BFLOAT16 => Ok(2),
        FLOAT | INT32 | UINT32 => Ok(4),
        DOUBLE | INT64 | UINT64 => Ok(8),
        _ => Err(format!(
            "elements of type {} are not supported",
            data_type::name(code)
        )),
    }
}

/// Bytes of an element in memory.
fn held_bytes(code: i32) -> Result<u64, String> {
    Ok(if is_float(code)? { 4 } else { 8 })
}

/// Whether the importer treats an element type as floating point; an error if it knows neither way.
pub(super) fn is_float(code: i32) -> Result<bool, String> {
    use data_type::*;
    element_bytes(code)?;
    Ok(matches!(code, FLOAT | DOUBLE | FLOAT16 | BFLOAT16))
}

fn from_raw(code: i32, raw: &[u8], count: usize) -> Result<Data, String> {
    use data_type::*;
    let size = element_bytes(code)? as usize;
    if raw.len() as u64 != size as u64 * count as u64 {
        return Err(format!(
            "it has {} bytes of data, but the shape and type need {}",
            raw.len(),
            size as u64 * count as u64
        ));
    }
    /// The elements, little-endian, each converted.
    macro_rules! elements {
        ($t:ty, $convert:expr) => {
            raw.chunks_exact(size_of::<$t>())
                .map(|c| <$t>::from_le_bytes(c.try_into().expect("chunks have the exact size")))
                .map($convert)
                .collect()
        };
    }
    Ok(match code {
        FLOAT => Data::Floats(elements!(f32, |v| v)),
        DOUBLE => Data::Floats(elements!(f64, |v| v as f32)),
        FLOAT16 => Data::Floats(elements!(u16, half_to_f32)),
        BFLOAT16 => Data::Floats(elements!(u16, bfloat_to_f32)),
        UINT8 => Data::Ints(elements!(u8, i64::from)),
        INT8 => Data::Ints(elements!(i8, i64::from)),
        BOOL => Data::Ints(elements!(u8, |v| i64::from(v != 0))),
        UINT16 => Data::Ints(elements!(u16, i64::from)),
        INT16 => Data::Ints(elements!(i16, i64::from)),
        INT32 => Data::Ints(elements!(i32, i64::from)),
        UINT32 => Data::Ints(elements!(u32, i64::from)),
        INT64 => Data::Ints(elements!(i64, |v| v)),
        _ => Data::Ints(raw_u64(raw)?.into()),
    })
}

fn raw_u64(raw: &[u8]) -> Result<Vec<i64>, String> {
    let words = raw.chunks_exact(8);
    let words = words.map(|c| u64::from_le_bytes(c.try_into().expect("chunks of 8")));
    words.map(fits_i64).collect()
}

fn fits_i64(value: u64) -> Result<i64, String> {
    i64::try_from(value).map_err(|_| format!("{value} does not fit a signed 64-bit integer"))
}

fn from_typed(tensor: &TensorProto, count: usize) -> Result<Data, String> {
    use data_type::*;
    element_bytes(tensor.data_type)?;
    let ints32 = |convert: fn(i32) -> i64| tensor.int32_data.iter().map(|&v| convert(v)).collect();
    let halves = |convert: fn(u16) -> f32| {
        // The specification stores 16-bit patterns in the low bits of int32_data.
        tensor
            .int32_data
            .iter()
            .map(|&v| convert(v as u16))
            .collect()
    };
    let data = match tensor.data_type {
        FLOAT => Data::Floats(tensor.float_data.as_slice().into()),
        DOUBLE => Data::Floats(tensor.double_data.iter().map(|&v| v as f32).collect()),
        FLOAT16 => Data::Floats(halves(half_to_f32)),
        BFLOAT16 => Data::Floats(halves(bfloat_to_f32)),
        INT64 => Data::Ints(tensor.int64_data.as_slice().into()),
        UINT64 | UINT32 => {
            let values: Result<Vec<i64>, String> =
                tensor.uint64_data.iter().map(|&v| fits_i64(v)).collect();
            Data::Ints(values?.into())
        }
        BOOL => Data::Ints(ints32(|v| i64::from(v != 0))),
        _ => Data::Ints(ints32(i64::from)),
    };
    let found = match &data {
        Data::Floats(v) => v.len(),
        Data::Ints(v) => v.len(),
    };
    if found != count {
        return Err(format!(
            "it has {found} elements, but its shape needs {count}"
        ));
    }
    Ok(data)
}
