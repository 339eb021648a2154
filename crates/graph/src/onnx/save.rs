//! Writing trained weights into a copy of the model they were imported from. Everything else in the file stays as it
//! is, byte by byte, also what the importer has no use for: the file is rewritten field by field. The copy is worked
//! out before training; when it is written, the weights come from where they are and the rest from the model's file,
//! piece by piece.

use prost::Message;
use prost::bytes::Bytes;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use super::decode;
use super::error::OnnxError;
use super::literal::TensorReader;
use super::proto::{NodeProto, TensorProto, data_type};
use super::structure::node_name;
use super::untie::{self, Own};
use crate::graph::{Graph, Role};
use crate::half::{f32_to_bfloat, f32_to_half};
use crate::weights::Elements;

/// Fields of `ModelProto`, `GraphProto`, `NodeProto` and `TensorProto`.
const GRAPH: u32 = 7;
const NODE: u32 = 1;
const INITIALIZER: u32 = 5;
const NODE_INPUT: u32 = 1;
const RAW_DATA: u32 = 9;

/// A copy of a model with other weights, not written yet.
#[derive(Debug)]
pub struct ModelCopy {
    model: File,
    /// The model's size and the time of its last change.
    state: (u64, Option<SystemTime>),
    segments: Vec<Segment>,
}

/// A stretch of the copy.
#[derive(Debug)]
enum Segment {
    /// These bytes of the model's file.
    Model(Range<u64>),
    /// Bytes that are new.
    New(Vec<u8>),
    /// Elements of a weight.
    Weight(Weight),
}

/// Elements of a graph's tensor, stored in a float type of the file.
#[derive(Clone, Debug)]
struct Weight {
    tensor: String,
    elements: Range<usize>,
    code: i32,
}

impl ModelCopy {
    /// Works out a copy whose weights are to be those of `graph`'s parameters and running statistics. `graph` is what
    /// the file was imported as. External data come into the file.
    ///
    /// # Errors
    /// If the file can't be read, isn't the one that the graph is from, or the copy would be too large.
    pub fn new(path: &Path, graph: &Graph) -> Result<ModelCopy, OnnxError> {
        let unreadable = |source| OnnxError::Read {
            path: path.to_owned(),
            source,
        };
        let bytes = decode::read(path)?;
        let model = File::open(path).map_err(unreadable)?;
        let state = state(&model).map_err(unreadable)?;
        let segments = segments(bytes, path.parent(), graph)?;
        match segments.iter().map(Segment::bytes).sum() {
            bytes if bytes > decode::MAX_FILE_BYTES => Err(OnnxError::TooLarge {
                path: path.to_owned(),
                bytes,
            }),
            _ => Ok(ModelCopy {
                model,
                state,
                segments,
            }),
        }
    }

    /// Writes the copy with these weights.
    ///
    /// # Errors
    /// If it can't be written, a weight isn't there, or the model's file has changed.
    pub fn write(&self, out: &mut dyn Write, weights: &dyn Elements) -> io::Result<()> {
        let changed = || io::Error::other("the model's file was changed while it was in use");
        if state(&self.model)? != self.state {
            return Err(changed());
        }
        for segment in &self.segments {
            match segment {
                Segment::New(bytes) => out.write_all(bytes)?,
                Segment::Weight(weight) => weight.write(out, weights)?,
                Segment::Model(range) => {
                    let mut model = &self.model;
                    model.seek(SeekFrom::Start(range.start))?;
                    let bytes = range.end - range.start;
                    if io::copy(&mut model.take(bytes), out)? < bytes {
                        return Err(changed());
                    }
                }
            }
        }
        Ok(())
    }
}

/// What changes when a file does.
fn state(file: &File) -> io::Result<(u64, Option<SystemTime>)> {
    let about = file.metadata()?;
    Ok((about.len(), about.modified().ok()))
}

impl Segment {
    fn bytes(&self) -> u64 {
        match self {
            Segment::Model(range) => range.end - range.start,
            Segment::New(bytes) => bytes.len() as u64,
            Segment::Weight(weight) => weight.bytes(),
        }
    }
}

impl Weight {
    fn bytes(&self) -> u64 {
        let each = match self.code {
            data_type::DOUBLE => 8,
            data_type::FLOAT16 | data_type::BFLOAT16 => 2,
            _ => 4,
        };
        self.elements.len() as u64 * each
    }

    fn write(&self, out: &mut dyn Write, weights: &dyn Elements) -> io::Result<()> {
        weights.read(&self.tensor, self.elements.clone(), &mut |piece| {
            piece.iter().try_for_each(|&x| match self.code {
                data_type::DOUBLE => out.write_all(&f64::from(x).to_le_bytes()),
                data_type::FLOAT16 => out.write_all(&f32_to_half(x).to_le_bytes()),
                data_type::BFLOAT16 => out.write_all(&f32_to_bfloat(x).to_le_bytes()),
                _ => out.write_all(&x.to_le_bytes()),
            })
        })
    }
}

fn segments(bytes: Bytes, folder: Option<&Path>, graph: &Graph) -> Result<Vec<Segment>, OnnxError> {
    let model = decode::decode(bytes.clone())?;
    let mut reader = TensorReader::new(folder);
    let mut file = model.graph.unwrap_or_default();
    let own = untie::places(&file, &mut reader);
    untie::untie(&mut file, &own);
    let mut copy = Copy {
        wanted: wanted(graph, &file.node),
        placed: BTreeSet::new(),
        own: own
            .into_iter()
            .map(|own| ((own.node, own.input), own))
            .collect(),
        reader,
    };
    let mut out = Vec::new();
    for field in fields(&bytes, 0)? {
        match field.tag {
            GRAPH => put(&mut out, GRAPH, copy.graph(&field)?),
            _ => keep(&mut out, &field),
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

/// A tensor of the file that gets other contents: some elements of a graph's tensor.
struct Wanted {
    tensor: String,
    shape: Vec<usize>,
    elements: Range<usize>,
}

/// The file's tensors that get other contents, by name.
fn wanted(graph: &Graph, nodes: &[NodeProto]) -> BTreeMap<String, Wanted> {
    let mut wanted = BTreeMap::new();
    let mut states = BTreeMap::new();
    for (_, tensor) in graph.given() {
        match tensor.role {
            Role::Parameter(_) => {
                let whole = Wanted {
                    tensor: tensor.name.clone(),
                    shape: tensor.shape.clone(),
                    elements: 0..tensor.elements(),
                };
                wanted.insert(tensor.name.clone(), whole);
            }
            Role::State(_) => {
                states.insert(&tensor.name[..], &tensor.shape[..]);
            }
            _ => {}
        }
    }
    let normalizations = nodes
        .iter()
        .filter(|node| node.op_type == "BatchNormalization");
    for node in normalizations {
        let [_, _, _, mean, variance] = &node.input[..] else {
            continue;
        };
        // The importer names both together after the mean, if it is called so, or the node.
        let tensor = match mean.strip_suffix("running_mean") {
            Some(stem) => format!("{stem}running"),
            None => format!("{}/running", node_name(node)),
        };
        if let Some(&&[_, channels]) = states.get(&tensor[..]) {
            for (index, name) in [mean, variance].into_iter().enumerate() {
                let part = Wanted {
                    tensor: tensor.clone(),
                    shape: vec![channels],
                    elements: index * channels..(index + 1) * channels,
                };
                wanted.insert(name.clone(), part);
            }
        }
    }
    wanted
}

/// A graph that is being copied.
struct Copy {
    wanted: BTreeMap<String, Wanted>,
    placed: BTreeSet<String>,
    /// Places that were trained with a tensor of their own, by node and input.
    own: BTreeMap<(usize, usize), Own>,
    reader: TensorReader,
}

impl Copy {
    fn graph(&mut self, graph: &Field<'_>) -> Result<Vec<Segment>, OnnxError> {
        let mut out = Vec::new();
        let mut nodes = 0;
        for field in graph.fields()? {
            match field.tag {
                INITIALIZER => match self.initializer(field.content)? {
                    Some(tensor) => put(&mut out, INITIALIZER, tensor),
                    None => keep(&mut out, &field),
                },
                NODE => match self.made_weight(field.content)? {
                    Some(tensor) => put(&mut out, INITIALIZER, tensor),
                    None if self.own.keys().any(|place| place.0 == nodes) => {
                        put(&mut out, NODE, self.node(nodes, &field)?);
                    }
                    None => keep(&mut out, &field),
                },
                _ => keep(&mut out, &field),
            }
            nodes += usize::from(field.tag == NODE);
        }
        for own in std::mem::take(&mut self.own).into_values() {
            if let Some(tensor) = self.stored(&own.name, own.data_type) {
                put(&mut out, INITIALIZER, tensor);
            }
        }
        Ok(out)
    }

    /// The node with this index, which reads its own tensors.
    fn node(&self, index: usize, node: &Field<'_>) -> Result<Vec<Segment>, OnnxError> {
        let mut out = Vec::new();
        let mut inputs = 0;
        for field in node.fields()? {
            match self.own.get(&(index, inputs)) {
                Some(own) if field.tag == NODE_INPUT => {
                    let name = Segment::New(own.name.clone().into_bytes());
                    put(&mut out, NODE_INPUT, vec![name]);
                }
                _ => keep(&mut out, &field),
            }
            inputs += usize::from(field.tag == NODE_INPUT);
        }
        Ok(out)
    }

    /// A tensor with the weights of this name.
    fn stored(&mut self, name: &str, code: i32) -> Option<Vec<Segment>> {
        let wanted = self.wanted.get(name)?;
        self.placed.insert(name.to_owned());
        let about = TensorProto {
            dims: wanted.shape.iter().map(|&n| n as i64).collect(),
            data_type: code,
            name: name.to_owned(),
            ..TensorProto::default()
        };
        let weight = Weight {
            tensor: wanted.tensor.clone(),
            elements: wanted.elements.clone(),
            code,
        };
        let mut out = vec![Segment::New(about.encode_to_vec())];
        put(&mut out, RAW_DATA, vec![Segment::Weight(weight)]);
        Some(out)
    }

    /// What a stored tensor becomes; nothing if it stays as it is.
    fn initializer(&mut self, bytes: &[u8]) -> Result<Option<Vec<Segment>>, OnnxError> {
        let tensor: TensorProto = message(bytes)?;
        let Some(wanted) = self.wanted.get(&tensor.name) else {
            return match tensor.data_location {
                0 => Ok(None),
                _ => {
                    let tensor = self.inlined(tensor)?.encode_to_vec();
                    Ok(Some(vec![Segment::New(tensor)]))
                }
            };
        };
        let dims: Vec<i64> = wanted.shape.iter().map(|&n| n as i64).collect();
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
    fn made_weight(&mut self, bytes: &[u8]) -> Result<Option<Vec<Segment>>, OnnxError> {
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

fn message<M: Message + Default>(bytes: &[u8]) -> Result<M, OnnxError> {
    M::decode(bytes).map_err(|error| OnnxError::Decode(error.to_string()))
}

/// Appends a field as it is in the model's file.
fn keep(out: &mut Vec<Segment>, field: &Field<'_>) {
    match out.last_mut() {
        Some(Segment::Model(range)) if range.end == field.whole.start => {
            range.end = field.whole.end;
        }
        _ => out.push(Segment::Model(field.whole.clone())),
    }
}

/// Appends a field with this content.
fn put(out: &mut Vec<Segment>, tag: u32, content: Vec<Segment>) {
    let mut key = Vec::new();
    encode_key(tag, WireType::LengthDelimited, &mut key);
    encode_varint(content.iter().map(Segment::bytes).sum(), &mut key);
    out.push(Segment::New(key));
    out.extend(content);
}

/// A field of a message.
struct Field<'a> {
    tag: u32,
    /// Where it is in the model's file, with its key.
    whole: Range<u64>,
    /// Of a message or text; nothing for numbers.
    content: &'a [u8],
}

impl<'a> Field<'a> {
    /// The fields of the message that it holds.
    fn fields(&self) -> Result<Vec<Field<'a>>, OnnxError> {
        fields(self.content, self.whole.end - self.content.len() as u64)
    }
}

/// The fields of a message that begins at this place in the model's file, in order.
fn fields(bytes: &[u8], at: u64) -> Result<Vec<Field<'_>>, OnnxError> {
    let fail = |reason: &dyn ToString| OnnxError::Decode(reason.to_string());
    let end = at + bytes.len() as u64;
    let mut fields = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let start = end - rest.len() as u64;
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
            whole: start..end - rest.len() as u64,
            content,
        });
    }
    Ok(fields)
}
