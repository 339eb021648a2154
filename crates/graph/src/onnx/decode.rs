//! From bytes to messages, with limits: a small file must not expand into a large structure, and
//! nesting is bounded (by prost, at 100 levels).

use prost::Message;
use prost::bytes::Bytes;
use prost::encoding::{WireType, decode_key, decode_varint};
use scrimp_plan::file::open_regular;
use std::io::Read;
use std::path::Path;

use super::error::OnnxError;
use super::proto::{ModelProto, TensorProto};

/// The wire format's own limit on a message.
pub(super) const MAX_FILE_BYTES: u64 = 2 << 30;

/// Nodes, attributes, tensors, inputs, names and dimensions of a model, all together. The largest
/// published models have a few hundred thousand.
const MAX_ITEMS: u64 = 8_000_000;

/// Reads a whole file; refuses one that is larger than the format allows before reading it.
pub(super) fn read(path: &Path) -> Result<Bytes, OnnxError> {
    let fail = |source| OnnxError::Read {
        path: path.to_owned(),
        source,
    };
    let (mut file, bytes) = open_regular(path).map_err(fail)?;
    if bytes > MAX_FILE_BYTES {
        return Err(OnnxError::TooLarge {
            path: path.to_owned(),
            bytes,
        });
    }
    let mut read = Vec::with_capacity(bytes as usize);
    file.read_to_end(&mut read).map_err(fail)?;
    Ok(read.into())
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
