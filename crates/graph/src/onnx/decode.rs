//! From bytes to messages, with limits: a small file must not expand into a large structure, and
//! nesting is bounded (by prost, at 100 levels).

use prost::Message;
use prost::bytes::Bytes;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use scrimp_plan::file::open_regular;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::error::OnnxError;
use super::literal::{OWN_FILE, STORED_BYTES};
use super::proto::{ModelProto, StringStringEntryProto, TensorProto};

/// The wire format's own limit on a message.
pub(super) const MAX_FILE_BYTES: u64 = 2 << 30;

/// Nodes, attributes, tensors, inputs, names and dimensions of a model, all together. The largest
/// published models have a few hundred thousand.
const MAX_ITEMS: u64 = 8_000_000;

/// Reads a whole file; refuses one that is larger than the format allows before reading it.
pub(super) fn read(path: &Path) -> Result<Bytes, OnnxError> {
    let (mut file, bytes) = open(path)?;
    let mut read = Vec::with_capacity(bytes as usize);
    file.read_to_end(&mut read).map_err(unreadable(path))?;
    Ok(read.into())
}

fn open(path: &Path) -> Result<(File, u64), OnnxError> {
    let (file, bytes) = open_regular(path).map_err(unreadable(path))?;
    match bytes > MAX_FILE_BYTES {
        true => Err(OnnxError::TooLarge {
            path: path.to_owned(),
            bytes,
        }),
        false => Ok((file, bytes)),
    }
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> OnnxError {
    |source| OnnxError::Read {
        path: path.to_owned(),
        source,
    }
}

/// Reads a file but for the large raw data of initializers: they become external data of the model's own file,
/// which is returned open, with its size.
pub(super) fn read_thin(path: &Path) -> Result<(Bytes, (File, u64)), OnnxError> {
    let (file, bytes) = open(path)?;
    let mut reader = BufReader::new(file);
    let thin = thin(&mut reader, bytes, Part::Model).map_err(unreadable(path))?;
    Ok((thin.into(), (reader.into_inner(), bytes)))
}

/// The messages on the way to raw data.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Model,
    Graph,
    Initializer,
}

/// Copies the message that ends at `end` without large raw data. From the first thing on that isn't a field
/// everything is copied as it is: the decoder says what is wrong.
fn thin(file: &mut BufReader<File>, end: u64, part: Part) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let at = file.stream_position()?;
        if at >= end {
            return Ok(out);
        }
        // A key and a length of ten bytes each at most.
        let mut head = Vec::new();
        file.by_ref()
            .take((end - at).min(20))
            .read_to_end(&mut head)?;
        let mut rest = &head[..];
        let field = decode_key(&mut rest).and_then(|(tag, wire)| {
            let length = match wire {
                WireType::LengthDelimited => decode_varint(&mut rest)?,
                WireType::Varint => decode_varint(&mut rest).map(|_| 0)?,
                WireType::SixtyFourBit => 8,
                WireType::ThirtyTwoBit => 4,
                WireType::StartGroup | WireType::EndGroup => u64::MAX,
            };
            Ok((tag, wire, length))
        });
        let start = at + (head.len() - rest.len()) as u64;
        let head = &head[..head.len() - rest.len()];
        let within = |field: &(u32, WireType, u64)| field.2 <= end - start;
        let Some((tag, wire, length)) = field.ok().filter(within) else {
            file.seek(SeekFrom::Start(at))?;
            file.by_ref().take(end - at).read_to_end(&mut out)?;
            return Ok(out);
        };
        file.seek_relative(-(rest.len() as i64))?;
        let inside = match (part, tag) {
            (Part::Model, 7) => Some(Part::Graph),
            (Part::Graph, 5) => Some(Part::Initializer),
            _ => None,
        };
        match inside.filter(|_| wire == WireType::LengthDelimited) {
            Some(inside) => {
                let inner = thin(file, start + length, inside)?;
                encode_key(tag, wire, &mut out);
                encode_varint(inner.len() as u64, &mut out);
                out.extend(inner);
            }
            None if part == Part::Initializer && tag == 9 && length >= STORED_BYTES => {
                out.extend(elsewhere(start, length).encode_to_vec());
                file.seek_relative(length as i64)?;
            }
            None => {
                out.extend(head);
                file.by_ref().take(length).read_to_end(&mut out)?;
            }
        }
    }
}

/// The fields that say where raw data are.
fn elsewhere(offset: u64, length: u64) -> TensorProto {
    let entry = |key: &str, value: String| StringStringEntryProto {
        key: key.into(),
        value,
    };
    TensorProto {
        external_data: vec![
            entry("location", OWN_FILE.into()),
            entry("offset", offset.to_string()),
            entry("length", length.to_string()),
        ],
        data_location: 1,
        ..TensorProto::default()
    }
}

/// Decodes a model. The raw data of tensors stay slices of `bytes`.
pub(super) fn decode(bytes: Bytes) -> Result<ModelProto, OnnxError> {
    let mut left = MAX_ITEMS;
    count(&bytes, Level::Model, &mut left).map_err(OnnxError::Decode)?;
    ModelProto::decode(bytes).map_err(|e| OnnxError::Decode(e.to_string()))
}

/// Decode a tensor that is stored by itself.
pub(super) fn tensor(bytes: Bytes) -> Result<TensorProto, OnnxError> {
    let mut left = MAX_ITEMS;
    count(&bytes, Level::Leaf, &mut left).map_err(OnnxError::Decode)?;
    TensorProto::decode(bytes).map_err(|e| OnnxError::Decode(e.to_string()))
}

/// Which message is being scanned, as far as that decides which fields are messages.
#[derive(Clone, Copy)]
enum Level {
    Model,
    Graph,
    Node,
    Attribute,
    Value,
    Type,
    TensorType,
    Shape,
    /// A tensor's dimensions and external data, or a message with nothing to expand.
    Leaf,
}

impl Level {
    /// The level inside field `tag`, if the field is a message that the decoder will enter.
    fn inside(self, tag: u32) -> Option<Level> {
        match (self, tag) {
            (Level::Model, 7) => Some(Level::Graph),
            (Level::Graph, 1) => Some(Level::Node),
            (Level::Graph, 5) | (Level::Attribute, 5) => Some(Level::Leaf),
            (Level::Graph, 11 | 12) => Some(Level::Value),
            (Level::Node, 5) => Some(Level::Attribute),
            (Level::Value, 2) => Some(Level::Type),
            (Level::Type, 1) => Some(Level::TensorType),
            (Level::TensorType, 2) => Some(Level::Shape),
            _ => None,
        }
    }
}

/// Counts the fields of the messages that decoding expands, without building anything.
fn count(mut bytes: &[u8], level: Level, left: &mut u64) -> Result<(), String> {
    while !bytes.is_empty() {
        *left = left
            .checked_sub(1)
            .ok_or_else(|| format!("it has more than {MAX_ITEMS} items"))?;
        let (tag, wire) = decode_key(&mut bytes).map_err(|e| e.to_string())?;
        let skip = match wire {
            WireType::Varint => decode_varint(&mut bytes).map(|_| 0),
            WireType::SixtyFourBit => Ok(8),
            WireType::ThirtyTwoBit => Ok(4),
            WireType::LengthDelimited => decode_varint(&mut bytes),
            WireType::StartGroup | WireType::EndGroup => {
                return Err(format!("field {tag} is a group, which ONNX doesn't use"));
            }
        };
        let skip = skip.map_err(|e| e.to_string())?;
        let length = usize::try_from(skip)
            .ok()
            .filter(|&n| n <= bytes.len())
            .ok_or_else(|| format!("field {tag} claims {skip} bytes, {} are left", bytes.len()))?;
        let (field, rest) = bytes.split_at(length);
        if let (WireType::LengthDelimited, Some(inside)) = (wire, level.inside(tag)) {
            count(field, inside, left)?;
        }
        bytes = rest;
    }
    Ok(())
}
