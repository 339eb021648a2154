//! Writing trained weights into a copy of the model they were imported from. Everything else in the file stays as it
//! is, byte by byte, also what the importer has no use for: the file is rewritten field by field.

use prost::Message;
use prost::bytes::Bytes;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::decode;
use super::error::OnnxError;
use super::literal::TensorReader;
use super::proto::{NodeProto, TensorProto, data_type};
use super::structure::node_name;
use super::untie::{self, Own};
use crate::graph::{Graph, Role};
use crate::half::{f32_to_bfloat, f32_to_half};
use crate::weights::{Array, Weights};

/// Fields of `ModelProto`, `GraphProto` and `NodeProto`.
const GRAPH: u32 = 7;
const NODE: u32 = 1;
const INITIALIZER: u32 = 5;
const NODE_INPUT: u32 = 1;

/// A copy of a model with other weights: those of `graph`'s parameters and running statistics. `graph` is what
/// the file was imported as. External data come into the file.
///
/// # Errors
/// If the file can't be read, isn't the one that the graph is from, or would be too large.
pub fn with_weights(path: &Path, graph: &Graph, weights: &Weights) -> Result<Vec<u8>, OnnxError> {
    let bytes = decode::read(path)?;
    let written = rewritten(bytes, path.parent(), graph, weights)?;
    match written.len() as u64 {
        bytes if bytes > decode::MAX_FILE_BYTES => Err(OnnxError::TooLarge {
            path: path.to_owned(),
            bytes,
        }),
        _ => Ok(written),
    }
}

fn rewritten(
    bytes: Bytes,
    folder: Option<&Path>,
    graph: &Graph,
    weights: &Weights,
) -> Result<Vec<u8>, OnnxError> {
    let model = decode::decode(bytes.clone())?;
    let mut reader = TensorReader::new(folder);
    let mut file = model.graph.unwrap_or_default();
    let own = untie::places(&file, &mut reader);
    untie::untie(&mut file, &own);
    let mut copy = Copy {
        wanted: wanted(graph, weights, &file.node),
        placed: BTreeSet::new(),
        own: own
            .into_iter()
            .map(|own| ((own.node, own.input), own))
            .collect(),
        reader,
    };
    let mut out = Vec::with_capacity(bytes.len());
    for field in fields(&bytes)? {
        match field.tag {
            GRAPH => put(&mut out, GRAPH, &copy.graph(field.content)?),
            _ => out.extend_from_slice(field.whole),
        }
    }
    match copy.wanted.keys().find(|name| !copy.placed.contains(*name)) {
        None => Ok(out),
        Some(name) => Err(OnnxError::Initializer {
            name: name.clone(),
            reason: "the file has no such weight; save the weights as safetensors".into(),
        }),
    }
}

/// The file's tensors that get other contents, by name.
fn wanted(graph: &Graph, weights: &Weights, nodes: &[NodeProto]) -> BTreeMap<String, Array> {
    let mut wanted = BTreeMap::new();
    for (_, tensor) in graph.given() {
        if let (Role::Parameter(_), Some(array)) = (&tensor.role, weights.tensors.get(&tensor.name))
        {
            wanted.insert(tensor.name.clone(), array.clone());
        }
    }
    for node in nodes
        .iter()
        .filter(|node| node.op_type == "BatchNormalization")
    {
        if let (Some([mean, variance]), [_, _, _, mean_name, variance_name]) =
            (running(weights, node), &node.input[..])
        {
            wanted.insert(mean_name.clone(), mean);
            wanted.insert(variance_name.clone(), variance);
        }
    }
    wanted
}

/// The running statistics of a batch normalization: under the names that PyTorch gives them, or together.
fn running(weights: &Weights, node: &NodeProto) -> Option<[Array; 2]> {
    let name = node.input.get(3)?;
    if let Some(stem) = name.strip_suffix("running_mean") {
        let part = |part: &str| weights.tensors.get(&format!("{stem}{part}")).cloned();
        return Some([part("running_mean")?, part("running_var")?]);
    }
    let both = weights
        .tensors
        .get(&format!("{}/running", node_name(node)))?;
    let channels = *both.shape.get(1)?;
    let (mean, variance) = both.values.split_at_checked(channels)?;
    Some([mean, variance].map(|values| Array {
        shape: vec![channels],
        values: values.to_vec(),
    }))
}

/// A graph that is being copied.
struct Copy {
    wanted: BTreeMap<String, Array>,
    placed: BTreeSet<String>,
    /// Places that were trained with a tensor of their own, by node and input.
    own: BTreeMap<(usize, usize), Own>,
    reader: TensorReader,
}

impl Copy {
    fn graph(&mut self, bytes: &[u8]) -> Result<Vec<u8>, OnnxError> {
        let mut out = Vec::with_capacity(bytes.len());
        let mut nodes = 0;
        for field in fields(bytes)? {
            match field.tag {
                INITIALIZER => match self.initializer(field.content)? {
                    Some(tensor) => put(&mut out, INITIALIZER, &tensor.encode_to_vec()),
                    None => out.extend_from_slice(field.whole),
                },
                NODE => match self.made_weight(field.content)? {
                    Some(tensor) => put(&mut out, INITIALIZER, &tensor.encode_to_vec()),
                    None => put(&mut out, NODE, &self.node(nodes, field.content)?),
                },
                _ => out.extend_from_slice(field.whole),
            }
            nodes += usize::from(field.tag == NODE);
        }
        for own in std::mem::take(&mut self.own).into_values() {
            if let Some(tensor) = self.stored(&own.name, own.data_type) {
                put(&mut out, INITIALIZER, &tensor.encode_to_vec());
            }
        }
        Ok(out)
    }

    /// The node with this index, which reads its own tensors.
    fn node(&self, index: usize, bytes: &[u8]) -> Result<Vec<u8>, OnnxError> {
        let mut out = Vec::with_capacity(bytes.len());
        let mut inputs = 0;
        for field in fields(bytes)? {
            match self.own.get(&(index, inputs)) {
                Some(own) if field.tag == NODE_INPUT => {
                    put(&mut out, NODE_INPUT, own.name.as_bytes());
                }
                _ => out.extend_from_slice(field.whole),
            }
            inputs += usize::from(field.tag == NODE_INPUT);
        }
        Ok(out)
    }

    /// A tensor with the weights of this name.
    fn stored(&mut self, name: &str, code: i32) -> Option<TensorProto> {
        let array = self.wanted.get(name)?;
        self.placed.insert(name.to_owned());
        Some(TensorProto {
            dims: array.shape.iter().map(|&n| n as i64).collect(),
            data_type: code,
            name: name.to_owned(),
            raw_data: raw(&array.values, code).into(),
            ..TensorProto::default()
        })
    }

    /// What a stored tensor becomes; nothing if it stays as it is.
    fn initializer(&mut self, bytes: &[u8]) -> Result<Option<TensorProto>, OnnxError> {
        let tensor: TensorProto = message(bytes)?;
        let Some(array) = self.wanted.get(&tensor.name) else {
            return match tensor.data_location {
                0 => Ok(None),
                _ => self.inlined(tensor).map(Some),
            };
        };
        let dims: Vec<i64> = array.shape.iter().map(|&n| n as i64).collect();
        if dims != tensor.dims {
            return Err(OnnxError::Initializer {
                reason: format!(
                    "its shape is {:?}, but the weights' is {dims:?}",
                    tensor.dims
                ),
                name: tensor.name,
            });
        }
        Ok(self.stored(&tensor.name, tensor.data_type))
    }

    /// A weight that a node makes, such as a constant, is stored in its place.
    fn made_weight(&mut self, bytes: &[u8]) -> Result<Option<TensorProto>, OnnxError> {
        let node: NodeProto = message(bytes)?;
        let [name] = &node.output[..] else {
            return Ok(None);
        };
        Ok(self.stored(name, data_type::FLOAT))
    }

    /// A tensor of another file, which the copy may not lie beside.
    fn inlined(&mut self, mut tensor: TensorProto) -> Result<TensorProto, OnnxError> {
        let bytes = self
            .reader
            .bytes(&tensor)
            .map_err(|reason| OnnxError::Initializer {
                name: tensor.name.clone(),
                reason,
            })?;
        tensor.raw_data = bytes.into();
        tensor.external_data.clear();
        tensor.data_location = 0;
        Ok(tensor)
    }
}

/// The elements in a float type of the file.
fn raw(values: &[f32], code: i32) -> Vec<u8> {
    let each = values.iter();
    match code {
        data_type::DOUBLE => each.flat_map(|&x| f64::from(x).to_le_bytes()).collect(),
        data_type::FLOAT16 => each.flat_map(|&x| f32_to_half(x).to_le_bytes()).collect(),
        data_type::BFLOAT16 => each.flat_map(|&x| f32_to_bfloat(x).to_le_bytes()).collect(),
        _ => each.flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn message<M: Message + Default>(bytes: &[u8]) -> Result<M, OnnxError> {
    M::decode(bytes).map_err(|error| OnnxError::Decode(error.to_string()))
}

/// Appends a field that holds a message.
fn put(out: &mut Vec<u8>, tag: u32, content: &[u8]) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

/// A field of a message.
struct Field<'a> {
    tag: u32,
    /// With its key.
    whole: &'a [u8],
    /// Of a message or text; nothing for numbers.
    content: &'a [u8],
}

/// The fields of a message, in order.
fn fields(bytes: &[u8]) -> Result<Vec<Field<'_>>, OnnxError> {
    let fail = |reason: &dyn ToString| OnnxError::Decode(reason.to_string());
    let mut fields = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let start = rest;
        let (tag, wire) = decode_key(&mut rest).map_err(|error| fail(&error))?;
        let length = match wire {
            WireType::Varint => decode_varint(&mut rest).map(|_| 0),
            WireType::SixtyFourBit => Ok(8),
            WireType::ThirtyTwoBit => Ok(4),
            WireType::LengthDelimited => decode_varint(&mut rest),
            WireType::StartGroup | WireType::EndGroup => return Err(fail(&"it has a group")),
        };
        let length = length.map_err(|error| fail(&error))?;
        let content = usize::try_from(length).ok();
        let content = content.and_then(|length| rest.split_at_checked(length));
        let (content, after) = content.ok_or_else(|| fail(&"a field is cut short"))?;
        rest = after;
        fields.push(Field {
            tag,
            whole: &start[..start.len() - rest.len()],
            content,
        });
    }
    Ok(fields)
}
