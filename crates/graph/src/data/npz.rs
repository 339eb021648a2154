//! Reads npz files, which are zip archives of npy arrays, and npy files. The first axis of an array counts samples.
//!
//! Sizes are bounded before anything is allocated, and an npy header is parsed without recursion. An archive
//! may be a thousand times as large unpacked as its file, so the caller says how much memory there is.

use scrimp_plan::file::open_regular;
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use zip::{CompressionMethod, ZipArchive};

use super::contents::Contents;
use super::stream::Stream;
use super::tiff::Picture;

/// The most bytes of an array.
const MAX_ARRAY_BYTES: u64 = 1 << 42;

/// The most arrays in a file.
const MAX_ARRAYS: usize = 4096;

/// Bytes of an array that are unpacked at a time.
const PIECE: u64 = 1 << 16;

/// The most bytes of an npy header; numpy's own headers have about a hundred.
const MAX_HEADER_BYTES: usize = 1 << 16;

/// Why a file of data can't be used.
#[derive(Debug, Error)]
pub enum NpzError {
    /// The operating system can't read the file.
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The archive or an array is malformed.
    #[error("{path}: {reason}", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
}

/// An array of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements in row order.
    pub contents: Contents,
}

/// All arrays of a file, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrays(pub Vec<(String, Array)>);

impl Arrays {
    /// Reads an npz file, or an npy file as one array without a name. The arrays may take `room` bytes of
    /// memory in all.
    ///
    /// # Errors
    /// If the file can't be read, is malformed, or takes more memory.
    pub fn read(path: &Path, room: u64) -> Result<Arrays, NpzError> {
        with_file(path, |file| Arrays::from_reader(file, room))
    }

    /// As [`Arrays::read`], but arrays that aren't compressed stay in the file and take no memory. The first image of a
    /// TIFF file is an array of shape [1, channels, height, width] that stays there, too.
    ///
    /// # Errors
    /// As [`Arrays::read`].
    pub fn open(path: &Path, room: u64) -> Result<Arrays, NpzError> {
        let (file, _) = opened(path)?;
        let file = Arc::new(file);
        let origin = Origin { path, file: &file };
        named(
            path,
            Arrays::new(BufReader::new(&*file), room, Some(origin)),
        )
    }

    /// The arrays to train with, and those to test with if there are any: an array `x_test` beside `x` is the latter's
    /// `x`.
    pub fn split(self) -> (Arrays, Option<Arrays>) {
        let names: Vec<String> = self.0.iter().map(|(name, _)| name.clone()).collect();
        let (mut train, mut test) = (Vec::new(), Vec::new());
        for (name, array) in self.0 {
            let tested = name.strip_suffix("_test").map(str::to_owned);
            match tested.filter(|tested| names.contains(tested)) {
                Some(tested) => test.push((tested, array)),
                None => train.push((name, array)),
            }
        }
        let test = Some(Arrays(test)).filter(|test| !test.0.is_empty());
        (Arrays(train), test)
    }

    /// Reads the contents of a file as [`Arrays::read`] does; the error is the reason.
    ///
    /// # Errors
    /// If the contents are malformed or take more than `room` bytes of memory.
    pub fn from_reader(reader: impl Read + Seek, room: u64) -> Result<Arrays, String> {
        Arrays::new(reader, room, None)
    }

    /// The arrays of a file. What isn't compressed stays there, if the file is given.
    fn new(
        mut reader: impl Read + Seek,
        mut room: u64,
        origin: Option<Origin<'_>>,
    ) -> Result<Arrays, String> {
        let mut start = [0; 6];
        let is_npy = reader.read_exact(&mut start).is_ok() && start == *MAGIC;
        let length = reader.seek(SeekFrom::End(0)).map_err(cut)?;
        reader.rewind().map_err(cut)?;
        if let Some(origin) = origin.filter(|_| Picture::starts(&start)) {
            let file = origin.file.try_clone().map_err(cut)?;
            let (stream, shape) = Stream::tiff(origin.path, file)?;
            let contents = Contents::Stored(stream);
            return Ok(Arrays(vec![(String::new(), Array { shape, contents })]));
        }
        if is_npy {
            let array = match origin {
                Some(origin) => stored(origin, &mut reader, 0..length, &mut room)?,
                None => npy(&mut reader, &mut room)?,
            };
            return Ok(Arrays(vec![(String::new(), array)]));
        }
        let mut archive = open(reader)?;
        let names: Result<Vec<String>, _> = archive
            .file_names()
            .map(|name| name.map(Cow::into_owned))
            .collect();
        let names = names.map_err(|e| format!("it is not an npz file: {e}"))?;
        let names = names.iter().filter_map(|name| name.strip_suffix(".npy"));
        let read = |name: &str| {
            let array = array(&mut archive, name, &mut room, origin)?;
            Ok(array.map(|array| (name.to_owned(), array)))
        };
        let arrays: Result<Vec<_>, String> = names.map(read).collect();
        Ok(Arrays(arrays?.into_iter().flatten().collect()))
    }
}

/// The first bytes of an npy array.
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// A file whose arrays may stay in it.
#[derive(Clone, Copy)]
struct Origin<'a> {
    path: &'a Path,
    file: &'a Arc<File>,
}

fn with_file<T>(
    path: &Path,
    read: impl FnOnce(BufReader<File>) -> Result<T, String>,
) -> Result<T, NpzError> {
    let (file, _) = opened(path)?;
    named(path, read(BufReader::new(file)))
}

fn opened(path: &Path) -> Result<(File, u64), NpzError> {
    open_regular(path).map_err(|source| NpzError::Io {
        path: path.to_owned(),
        source,
    })
}

fn named<T>(path: &Path, read: Result<T, String>) -> Result<T, NpzError> {
    read.map_err(|reason| NpzError::Format {
        path: path.to_owned(),
        reason,
    })
}

fn open<R: Read + Seek>(reader: R) -> Result<ZipArchive<R>, String> {
    let archive = ZipArchive::new(reader);
    let archive = archive.map_err(|e| format!("it is not an npz file: {e}"))?;
    match archive.len() {
        0..=MAX_ARRAYS => Ok(archive),
        count => Err(format!("it has {count} arrays; the limit is {MAX_ARRAYS}")),
    }
}

/// One array of an archive. If it isn't compressed it stays in its file, if that is given.
fn array<R: Read + Seek>(
    archive: &mut ZipArchive<R>,
    name: &str,
    room: &mut u64,
    origin: Option<Origin<'_>>,
) -> Result<Option<Array>, String> {
    let Some(index) = archive.index_for_name(&format!("{name}.npy")) else {
        return Ok(None);
    };
    let mut entry = archive
        .by_index(index)
        .map_err(|e| format!("array {name}: {e}"))?;
    let plain = entry.compression() == CompressionMethod::Stored && !entry.encrypted();
    let array = match (origin, entry.data_start()) {
        (Some(origin), Some(start)) if plain => {
            let end = start.saturating_add(entry.size());
            stored(origin, &mut entry, start..end, room)
        }
        _ => npy(&mut entry, room),
    };
    array
        .map(Some)
        .map_err(|reason| format!("array {name}: {reason}"))
}

/// An npy array that stays in its file, where it has these bytes; a scalar doesn't. `reader` is at its start.
fn stored(
    origin: Origin<'_>,
    reader: &mut impl Read,
    place: Range<u64>,
    room: &mut u64,
) -> Result<Array, String> {
    let header = header(reader)?;
    if header.shape.is_empty() {
        return read(reader, header, room);
    }
    let Header {
        kind,
        shape,
        bytes,
        length,
    } = header;
    let start = place.start + length;
    let end = origin.file.metadata().map_err(cut)?.len().min(place.end);
    let found = end.saturating_sub(start);
    if found < bytes {
        return Err(too_short(bytes, found));
    }
    let file = origin.file.clone();
    let stream = Stream::plain(origin.path, file, start, kind, shape.clone());
    let contents = Contents::Stored(stream);
    Ok(Array { shape, contents })
}

fn too_short(needed: u64, found: u64) -> String {
    format!("its shape needs {needed} bytes, but it has {found}")
}

/// Reads one npy array into memory and subtracts its bytes from `room`.
fn npy(reader: &mut impl Read, room: &mut u64) -> Result<Array, String> {
    let header = header(reader)?;
    read(reader, header, room)
}

/// What the elements are that follow.
struct Header {
    kind: Kind,
    shape: Vec<usize>,
    /// Of the elements.
    bytes: u64,
    /// Bytes before the elements.
    length: u64,
}

fn header(reader: &mut impl Read) -> Result<Header, String> {
    let mut start = [0; 8];
    reader.read_exact(&mut start).map_err(cut)?;
    let version = match start {
        [0x93, b'N', b'U', b'M', b'P', b'Y', major @ 1..=3, _] => major,
        _ => return Err("it is not an npy array".into()),
    };
    let mut length = [0; 4];
    let width = if version == 1 { 2 } else { 4 };
    reader.read_exact(&mut length[..width]).map_err(cut)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_HEADER_BYTES {
        return Err(format!("its header claims {length} bytes"));
    }
    let mut header = vec![0; length];
    reader.read_exact(&mut header).map_err(cut)?;
    let header = String::from_utf8(header).map_err(|_| "its header is not text")?;
    let (kind, shape) = parse_header(&header)?;
    let bytes = shape
        .iter()
        .try_fold(kind.bytes(), |bytes, &n| bytes.checked_mul(n as u64))
        .filter(|&bytes| bytes <= MAX_ARRAY_BYTES)
        .ok_or_else(|| format!("shape {shape:?} is too large"))?;
    Ok(Header {
        kind,
        shape,
        bytes,
        length: (start.len() + width + length) as u64,
    })
}

/// Reads an array's elements into memory and subtracts the bytes that they take there from `room`.
fn read(reader: &mut impl Read, header: Header, room: &mut u64) -> Result<Array, String> {
    let Header {
        kind, shape, bytes, ..
    } = header;
    let held = bytes / kind.bytes() * kind.held_bytes();
    *room = room.checked_sub(held).ok_or_else(|| {
        format!("shape {shape:?} takes {held} bytes of memory, but only {room} are left")
    })?;
    let contents = elements(reader, kind, bytes)?;
    Ok(Array { shape, contents })
}

/// Unpacks an array's elements. Memory is taken only as data arrive, whatever the header claims.
fn elements(reader: &mut impl Read, kind: Kind, bytes: u64) -> Result<Contents, String> {
    let mut contents = match kind.is_float() {
        true => Contents::Floats(Vec::new()),
        false => Contents::Ints(Vec::new()),
    };
    let (mut piece, mut read) = (Vec::new(), 0);
    while read < bytes {
        piece.clear();
        let wanted = PIECE.min(bytes - read);
        let filled = reader.take(wanted).read_to_end(&mut piece);
        read += filled.map_err(cut)? as u64;
        if (piece.len() as u64) < wanted {
            return Err(too_short(bytes, read));
        }
        kind.decode(&piece, &mut contents)?;
    }
    Ok(contents)
}

fn cut(error: std::io::Error) -> String {
    format!("it is cut short or damaged: {error}")
}

/// Numbers of a type from their little-endian bytes.
macro_rules! elements {
    ($data:expr, $t:ty) => {
        $data
            .chunks_exact(size_of::<$t>())
            .map(|c| <$t>::from_le_bytes(c.try_into().expect("chunks have the exact size")))
    };
}

/// The supported element types, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl Kind {
    fn of(descr: &str) -> Option<Kind> {
        Some(match descr {
            "<f2" => Kind::F16,
            "<f4" => Kind::F32,
            "<f8" => Kind::F64,
            "|i1" => Kind::I8,
            "<i2" => Kind::I16,
            "<i4" => Kind::I32,
            "<i8" => Kind::I64,
            "|u1" | "|b1" => Kind::U8,
            "<u2" => Kind::U16,
            "<u4" => Kind::U32,
            "<u8" => Kind::U64,
            _ => return None,
        })
    }

    pub(super) fn bytes(self) -> u64 {
        match self {
            Kind::I8 | Kind::U8 => 1,
            Kind::F16 | Kind::I16 | Kind::U16 => 2,
            Kind::F32 | Kind::I32 | Kind::U32 => 4,
            Kind::F64 | Kind::I64 | Kind::U64 => 8,
        }
    }

    pub(super) fn is_float(self) -> bool {
        matches!(self, Kind::F16 | Kind::F32 | Kind::F64)
    }

    /// Bytes of an element in memory.
    fn held_bytes(self) -> u64 {
        if self.is_float() { 4 } else { 8 }
    }

    /// Little-endian elements as floats.
    pub(super) fn floats(self, data: &[u8], mut put: impl FnMut(f32)) {
        macro_rules! each {
            ($t:ty, $convert:expr) => {
                elements!(data, $t).map($convert).for_each(&mut put)
            };
        }
        match self {
            Kind::F16 => each!(u16, crate::half::half_to_f32),
            Kind::F32 => each!(f32, |v| v),
            Kind::F64 => each!(f64, |v| v as f32),
            Kind::I8 => each!(i8, f32::from),
            Kind::I16 => each!(i16, f32::from),
            Kind::I32 => each!(i32, |v| v as f32),
            Kind::I64 => each!(i64, |v| v as f32),
            Kind::U8 => each!(u8, f32::from),
            Kind::U16 => each!(u16, f32::from),
            Kind::U32 => each!(u32, |v| v as f32),
            Kind::U64 => each!(u64, |v| v as f32),
        }
    }

    /// Appends little-endian elements to contents of this kind.
    pub(super) fn decode(self, data: &[u8], into: &mut Contents) -> Result<(), String> {
        let ints = match into {
            Contents::Floats(floats) => {
                self.floats(data, |x| floats.push(x));
                return Ok(());
            }
            Contents::Ints(ints) => ints,
            Contents::Stored(_) => return Err("it is in a file".into()),
        };
        macro_rules! each {
            ($t:ty) => {
                ints.extend(elements!(data, $t).map(i64::from))
            };
        }
        match self {
            Kind::I8 => each!(i8),
            Kind::I16 => each!(i16),
            Kind::I32 => each!(i32),
            Kind::U8 => each!(u8),
            Kind::U16 => each!(u16),
            Kind::U32 => each!(u32),
            Kind::U64 => {
                for value in elements!(data, u64) {
                    let fits = "a number does not fit a signed 64-bit integer";
                    ints.push(i64::try_from(value).map_err(|_| fits)?);
                }
            }
            _ => each!(i64),
        }
        Ok(())
    }
}

/// Element type and shape, from the text of a Python dictionary with the keys descr, fortran_order and shape.
fn parse_header(text: &str) -> Result<(Kind, Vec<usize>), String> {
    let after = |key: &str| {
        let start = text.find(&format!("'{key}'"))? + key.len() + 2;
        text[start..]
            .trim_start()
            .strip_prefix(':')
            .map(str::trim_start)
    };
    let missing = |key: &str| format!("its header has no {key}");
    let descr = after("descr").ok_or_else(|| missing("descr"))?;
    let descr = descr.strip_prefix('\'').and_then(|d| d.split('\'').next());
    let descr = descr.ok_or("its elements are records; store plain numbers")?;
    let kind = Kind::of(descr).ok_or_else(|| {
        format!("its elements have type {descr:?}; convert it, for example to float32 or int64")
    })?;
    let order = after("fortran_order").ok_or_else(|| missing("fortran_order"))?;
    if !order.starts_with("False") {
        return Err("it is stored column by column; save np.ascontiguousarray of it".into());
    }
    let shape = after("shape").ok_or_else(|| missing("shape"))?;
    let shape = shape.strip_prefix('(').and_then(|s| s.split_once(')'));
    let (shape, _) = shape.ok_or("its header has no shape")?;
    let lengths = shape.split(',').map(str::trim).filter(|n| !n.is_empty());
    let lengths: Result<Vec<usize>, _> = lengths.map(str::parse).collect();
    let lengths = lengths.map_err(|_| format!("its shape ({shape}) is not a list of numbers"))?;
    match lengths.len() {
        0..=16 => Ok((kind, lengths)),
        n => Err(format!("it has {n} axes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(text: &str) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes
    }

    fn error(bytes: &[u8]) -> String {
        npy(&mut &bytes[..], &mut { u64::MAX }).expect_err("an error")
    }

    #[test]
    fn arrays() {
        let mut bytes = header("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 1), }\n");
        bytes.extend([1.5f64, -2.0].iter().flat_map(|v| v.to_le_bytes()));
        let mut room = 10;
        let array = npy(&mut &bytes[..], &mut room).unwrap();
        assert_eq!(array.shape, [2, 1]);
        assert_eq!(array.contents, Contents::Floats(vec![1.5, -2.0]));
        assert_eq!(room, 2);
        let error_of = npy(&mut &bytes[..], &mut room).expect_err("no room");
        assert!(error_of.contains("takes 8 bytes of memory, but only 2 are left"));
        bytes.pop();
        assert!(error(&bytes).contains("needs 16 bytes, but it has 15"));
    }

    #[test]
    fn headers_that_are_not_in_order() {
        let cases = [
            (
                "{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}",
                "type \">f4\"",
            ),
            (
                "{'descr': '<f4', 'fortran_order': True, 'shape': (2,)}",
                "column by column",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (2,x)}",
                "not a list of numbers",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': 2}",
                "no shape",
            ),
            (
                "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}",
                "records",
            ),
            ("{'fortran_order': False, 'shape': (2,)}", "no descr"),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4294967296)}",
                "too large",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000,)}",
                "it has 0",
            ),
        ];
        for (text, expected) in cases {
            let error = error(&header(text));
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(error(b"PK").contains("cut short"));
        assert!(error(b"\x93NUMPY\x09\x00\x00\x00").contains("not an npy"));
        assert!(error(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").contains("claims"));
    }
}
