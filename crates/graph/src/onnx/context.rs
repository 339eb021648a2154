//! What an operator's import works with: the node, its inputs as tensors or known contents, and the
//! builder.

use std::collections::HashMap;

use super::attributes::Attributes;
use super::error::{Outcome, invalid, unsupported};
use super::literal::{Data, Literal, TensorReader, element_count};
use super::proto::{NodeProto, data_type};
use super::structure::Structure;
pub(super) use super::value::{Random, Value, Weight, Whole};
use crate::builder::GraphBuilder;
use crate::dtype::DType;
use crate::graph::{Init, TensorId};
use crate::op::{Binary, Op, Unary};
use crate::shape::checked_bytes;

/// How an operator uses a known float tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// An operand like any other.
    Data,
    /// A weight, bias, scale or shift.
    Weight,
    /// A table that training leaves as it is.
    Table,
}

/// Absolute values beyond this are taken for masks.
const MASK: f32 = 1e4;

/// The import so far.
pub(super) struct State<'a> {
    pub(super) b: GraphBuilder,
    pub(super) structure: &'a Structure<'a>,
    pub(super) reader: TensorReader,
    pub(super) values: HashMap<&'a str, Value>,
    /// Known tensors that are in the graph already, by name.
    placed: HashMap<String, TensorId>,
    /// Names of initializers not to be trained.
    frozen: &'a std::collections::BTreeSet<String>,
    /// The batch size of the file and the one asked for, where these differ.
    pub(super) rebatch: Option<(usize, usize)>,
}

impl<'a> State<'a> {
    pub(super) fn new(
        name: &str,
        structure: &'a Structure<'a>,
        reader: TensorReader,
        frozen: &'a std::collections::BTreeSet<String>,
    ) -> State<'a> {
        State {
            b: GraphBuilder::new(name),
            structure,
            reader,
            values: HashMap::new(),
            placed: HashMap::new(),
            frozen,
            rebatch: None,
        }
    }

    /// The tensor of a value, added to the graph if it is known contents.
    pub(super) fn place(&mut self, name: &str, value: &Value) -> Outcome<TensorId> {
        self.place_as(name, value, Use::Data)
    }

    fn place_as(&mut self, name: &str, value: &Value, purpose: Use) -> Outcome<TensorId> {
        let name = match value {
            Value::Tensor(id) | Value::Whole(Whole { x: id, .. }) => return Ok(*id),
            Value::Missing => return unsupported!("an input that is not supported"),
            Value::Never(_) => return unsupported!("a condition as a tensor"),
            Value::Random(_) => return unsupported!("random numbers other than in a dropout"),
            Value::Sequence(_) => return unsupported!("a sequence as a tensor"),
            Value::Weight(weight) => weight.name.as_str(),
            Value::Known(_) => name,
        };
        if let Some(&id) = self.placed.get(name) {
            return Ok(id);
        }
        let id = match value {
            Value::Weight(weight) if purpose != Use::Table && self.is_trained(weight) => {
                self.b.parameter(name, &weight.shape, weight.init.clone())?
            }
            Value::Weight(weight) => self.b.constant(name, &weight.shape, weight.init.clone())?,
            Value::Known(literal) => match &literal.data {
                Data::Ints(v) => self
                    .b
                    .constant(name, &literal.shape, Init::Ints(v.clone()))?,
                Data::Floats(v) => {
                    let init = Init::Floats(v.clone());
                    match purpose {
                        Use::Weight if !self.frozen.contains(name) => {
                            self.b.parameter(name, &literal.shape, init)?
                        }
                        _ => self.b.constant(name, &literal.shape, init)?,
                    }
                }
            },
            _ => unreachable!("returned above"),
        };
        self.placed.insert(name.to_owned(), id);
        Ok(id)
    }

    /// Whether a weight is trained where it is data.
    pub(super) fn is_trained(&self, weight: &Weight) -> bool {
        !self.frozen.contains(&weight.name)
            && match &weight.init {
                Init::Floats(values) => values.iter().all(|&x| ordinary(x)),
                // Stored ones have been looked at.
                _ => true,
            }
    }
}

/// Whether a number looks like one of a weight and not of a mask.
pub(super) fn ordinary(x: f32) -> bool {
    x.is_finite() && x.abs() <= MASK
}

/// The import of one node.
pub(super) struct Node<'s, 'a> {
    pub(super) state: &'s mut State<'a>,
    pub(super) proto: &'a NodeProto,
    pub(super) attributes: Attributes<'a>,
    /// What its operators are called in the graph.
    pub(super) name: String,
}

impl<'a> Node<'_, 'a> {
    /// Version of the standard operators.
    pub(super) fn opset(&self) -> i64 {
        self.state.structure.opset
    }

    /// Whether input `i` is there.
    pub(super) fn has(&self, i: usize) -> bool {
        self.proto.input.get(i).is_some_and(|n| !n.is_empty())
    }

    /// How many inputs are there; all of them must be named.
    pub(super) fn variadic(&self) -> Outcome<usize> {
        match self.proto.input.len() {
            0 => invalid!("it has no inputs"),
            n if (0..n).all(|i| self.has(i)) => Ok(n),
            _ => invalid!("an input has no name"),
        }
    }

    pub(super) fn value(&self, i: usize) -> Outcome<&Value> {
        let name = self.proto.input.get(i).filter(|n| !n.is_empty());
        let value = name.and_then(|n| self.state.values.get(n.as_str()));
        match value {
            Some(value) => Ok(value),
            None => invalid!("input {i} is missing"),
        }
    }

    /// Input `i` as a tensor.
    pub(super) fn x(&mut self, i: usize) -> Outcome<TensorId> {
        let value = self.value(i)?.clone();
        self.state.place(&self.proto.input[i], &value)
    }

    /// Input `i` as a weight, bias, scale or shift.
    pub(super) fn weight(&mut self, i: usize) -> Outcome<TensorId> {
        let value = self.value(i)?.clone();
        self.state
            .place_as(&self.proto.input[i], &value, Use::Weight)
    }

    /// Input `i` as a table that training leaves as it is.
    pub(super) fn untrained_weight(&mut self, i: usize) -> Outcome<TensorId> {
        let value = self.value(i)?.clone();
        self.state
            .place_as(&self.proto.input[i], &value, Use::Table)
    }

    /// [`Node::weight`] where the input is there.
    pub(super) fn optional_weight(&mut self, i: usize) -> Outcome<Option<TensorId>> {
        match self.has(i) {
            true => self.weight(i).map(Some),
            false => Ok(None),
        }
    }

    /// [`Node::optional_weight`], but nothing for zeros that the file computes: exporters write them for a bias
    /// that isn't there.
    pub(super) fn bias(&mut self, i: usize) -> Outcome<Option<TensorId>> {
        let computed = self.producer(i).is_some();
        let zeros = |literal: Literal| literal.to_floats().iter().all(|&x| x == 0.0);
        match self.has(i) && computed && self.known(i).is_some_and(zeros) {
            true => Ok(None),
            false => self.optional_weight(i),
        }
    }

    /// The shape of input `i`.
    pub(super) fn shape(&self, i: usize) -> Outcome<Vec<usize>> {
        match self.value(i)? {
            Value::Tensor(id) | Value::Whole(Whole { x: id, .. }) => {
                Ok(self.state.b.shape(*id).to_vec())
            }
            Value::Known(literal) => Ok(literal.shape.clone()),
            Value::Weight(weight) => Ok(weight.shape.clone()),
            Value::Never(shape) => Ok(shape.clone()),
            Value::Random(random) => Ok(random.shape.clone()),
            Value::Sequence(_) => unsupported!("a sequence as a tensor"),
            Value::Missing => unsupported!("an input that is not supported"),
        }
    }

    /// The element type of input `i` in the graph.
    pub(super) fn dtype(&self, i: usize) -> Outcome<DType> {
        match self.value(i)? {
            Value::Tensor(id) => Ok(self.state.b.dtype(*id)),
            Value::Known(Literal {
                data: Data::Ints(_),
                ..
            }) => Ok(DType::I64),
            _ => Ok(DType::F32),
        }
    }

    /// The contents of input `i`, if it is known at import.
    pub(super) fn known(&self, i: usize) -> Option<Literal> {
        self.value(i).ok()?.literal()
    }

    /// The contents of input `i`, if they are known at import and no training changes them.
    pub(super) fn untrained(&self, i: usize) -> Option<Literal> {
        match self.value(i) {
            Ok(Value::Weight(weight)) if self.state.is_trained(weight) => None,
            _ => self.known(i),
        }
    }

    /// The contents of input `i`, which must be known at import.
    pub(super) fn literal(&self, i: usize, what: &str) -> Outcome<Literal> {
        self.value(i)?;
        match self.known(i) {
            Some(literal) => Ok(literal),
            None => unsupported!("{what} that is not known at import"),
        }
    }

    /// The whole numbers in input `i`, which must be known at import.
    pub(super) fn ints(&self, i: usize, what: &str) -> Outcome<Vec<i64>> {
        match self.literal(i, what)?.as_ints() {
            Some(ints) => Ok(ints.to_vec()),
            None => invalid!("{what} must be integers"),
        }
    }

    /// Whole numbers that older versions had as an attribute and newer ones have as an input.
    pub(super) fn ints_of(&self, attribute: &'static str, i: usize) -> Outcome<Option<Vec<i64>>> {
        match self.attributes.ints(attribute)? {
            Some(ints) => Ok(Some(ints.to_vec())),
            None if self.has(i) => self.ints(i, attribute).map(Some),
            None => Ok(None),
        }
    }

    /// The number in input `i`, which must be known at import.
    pub(super) fn scalar(&self, i: usize, what: &str) -> Outcome<f64> {
        match self.literal(i, what)?.scalar() {
            Some(value) => Ok(value),
            None => unsupported!("{what} of more than one element"),
        }
    }

    /// Refuses outputs from `first` on if something reads them.
    pub(super) fn unused_outputs(&self, first: usize) -> Outcome<()> {
        let used = |o: &&String| self.state.structure.used.contains(o.as_str());
        match self.proto.output.iter().skip(first).find(used) {
            Some(output) => unsupported!("output {output:?} beside the first"),
            None => Ok(()),
        }
    }

    /// The node that writes input `i`, if one does.
    pub(super) fn producer(&self, i: usize) -> Option<&'a NodeProto> {
        let name = self.proto.input.get(i)?;
        self.state.structure.producers.get(name.as_str()).copied()
    }

    /// The node that writes a name.
    pub(super) fn written_by(&self, name: &str) -> Option<&'a NodeProto> {
        self.state.structure.producers.get(name).copied()
    }

    /// Whether two names are one tensor, perhaps transposed.
    pub(super) fn same(&self, a: &str, b: &str) -> bool {
        let source = |name: &str| match self.written_by(name) {
            Some(node) if node.op_type == "Transpose" => node.input.first().cloned(),
            _ => None,
        };
        let (a, b) = (source(a).unwrap_or(a.into()), source(b).unwrap_or(b.into()));
        a == b
    }

    /// Whether input `i` holds conditions, by the operators that lead to it.
    pub(super) fn is_bool(&self, i: usize) -> bool {
        let mut name = self.proto.input.get(i).map_or("", String::as_str);
        loop {
            let Some(by) = self.written_by(name) else {
                let mut inputs = self.state.structure.graph.input.iter();
                let input = inputs.find(|input| input.name == name);
                let tensor = input.and_then(|i| i.r#type.as_ref()?.tensor_type.as_ref());
                return tensor.is_some_and(|tensor| tensor.elem_type == data_type::BOOL);
            };
            let next = match by.op_type.as_str() {
                "And" | "Or" | "Not" | "Equal" => return true,
                "Cast" => {
                    let mut attributes = by.attribute.iter();
                    let to = attributes.find(|attribute| attribute.name == "to");
                    return to.is_some_and(|to| to.i == i64::from(data_type::BOOL));
                }
                "Where" => 1,
                "Concat" | "Expand" | "Flatten" | "Gather" | "GatherElements" | "GatherND"
                | "Identity" | "Reshape" | "Slice" | "Squeeze" | "Tile" | "Transpose"
                | "Unsqueeze" => 0,
                _ => return false,
            };
            name = by.input.get(next).map_or("", String::as_str);
        }
    }

    /// The name of an auxiliary operator or tensor.
    pub(super) fn part(&self, part: &str) -> String {
        format!("{}/{part}", self.name)
    }

    /// Add the operator that gives the node's result.
    pub(super) fn last(&mut self, op: Op, inputs: &[TensorId]) -> Outcome<TensorId> {
        Ok(self.state.b.add1(&self.name, op, inputs)?)
    }

    /// Add an auxiliary operator.
    pub(super) fn step(&mut self, part: &str, op: Op, inputs: &[TensorId]) -> Outcome<TensorId> {
        Ok(self.state.b.add1(&self.part(part), op, inputs)?)
    }

    /// Add an auxiliary elementwise function.
    pub(super) fn map(&mut self, part: &str, f: Unary, x: TensorId) -> Outcome<TensorId> {
        self.step(part, Op::Unary(f), &[x])
    }

    /// Add an auxiliary elementwise operation.
    pub(super) fn zip(
        &mut self,
        part: &str,
        f: Binary,
        a: TensorId,
        b: TensorId,
    ) -> Outcome<TensorId> {
        self.step(part, Op::Binary(f), &[a, b])
    }

    /// Another shape for the same elements; nothing if it is the same.
    pub(super) fn view(&mut self, part: &str, x: TensorId, shape: &[usize]) -> Outcome<TensorId> {
        if self.dims(x) == shape {
            return Ok(x);
        }
        let shape = shape.to_vec();
        self.step(part, Op::Reshape { shape }, &[x])
    }

    /// An auxiliary constant; its shape must not be larger than a tensor may be.
    pub(super) fn constant(
        &mut self,
        part: &str,
        shape: &[usize],
        values: Vec<f32>,
    ) -> Outcome<TensorId> {
        let name = self.part(part);
        Ok(self
            .state
            .b
            .constant(&name, shape, Init::Floats(values.into()))?)
    }

    /// A tensor's shape.
    pub(super) fn dims(&self, x: TensorId) -> Vec<usize> {
        self.state.b.shape(x).to_vec()
    }

    /// Take these indices along an axis; nothing if they are all of them in order.
    pub(super) fn take(
        &mut self,
        part: &str,
        x: TensorId,
        axis: usize,
        indices: Vec<i64>,
    ) -> Outcome<TensorId> {
        let length = self.dims(x)[axis];
        if indices.len() == length && indices.iter().zip(0..).all(|(&i, j)| i == j) {
            return Ok(x);
        }
        let name = self.part(&format!("{part}.indices"));
        let count = indices.len();
        let indices = self
            .state
            .b
            .constant(&name, &[count], Init::Ints(indices.into()))?;
        self.step(part, Op::Gather { axis }, &[x, indices])
    }
}

/// Refuses tensors larger than the graph may hold, before they are built.
pub(super) fn check_size(shape: &[usize], dtype: DType) -> Outcome<()> {
    match checked_bytes(shape, dtype) {
        Ok(_) => Ok(()),
        Err(error) => invalid!("{error}"),
    }
}

/// Tables and matrices that are computed at import have at most this many elements.
const MAX_TABLE: usize = 1 << 26;

/// Refuses a table of this shape that would be too large, before it is computed.
pub(super) fn check_table(shape: &[usize]) -> Outcome<()> {
    match element_count(shape).filter(|&n| n <= MAX_TABLE) {
        Some(_) => Ok(()),
        None => unsupported!("with a table of more than {MAX_TABLE} elements"),
    }
}

/// An axis, counted from the end where it is negative.
pub(super) fn axis(axis: i64, rank: usize) -> Outcome<usize> {
    let counted = if axis < 0 {
        axis.checked_add(rank as i64)
    } else {
        Some(axis)
    };
    match counted
        .and_then(|a| usize::try_from(a).ok())
        .filter(|&a| a < rank)
    {
        Some(axis) => Ok(axis),
        None => invalid!("axis {axis} of a tensor with {rank} axes"),
    }
}

/// Axes, counted from the end where negative; ascending, each once.
pub(super) fn axes(list: &[i64], rank: usize) -> Outcome<Vec<usize>> {
    let mut axes = list
        .iter()
        .map(|&a| axis(a, rank))
        .collect::<Outcome<Vec<_>>>()?;
    axes.sort_unstable();
    if axes.windows(2).any(|pair| pair[0] == pair[1]) {
        return invalid!("an axis is named twice in {list:?}");
    }
    Ok(axes)
}

/// A count or size of the file as an index type.
pub(super) fn count(value: i64, what: &str) -> Outcome<usize> {
    match usize::try_from(value) {
        Ok(n) => Ok(n),
        Err(_) => invalid!("{what} is {value}"),
    }
}
