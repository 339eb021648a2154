//! The import proper: inputs and initializers, then node by node, then outputs.

use super::attributes::Attributes;
use super::context::{Node, State, Value, Weight, ordinary};
use super::error::{Fault, OnnxError, Outcome, Unsupported};
use super::literal::{Data, TensorReader, is_float};
use super::proto::{Dimension, DimensionProto, NodeProto, TensorProto, ValueInfoProto};
use super::structure::{Structure, is_standard, node_name};
use super::{ImportOptions, fold, fused, ops, untie};
use crate::dtype::DType;
use crate::graph::{Graph, Init};
use crate::weights::Stored;

/// Builds the graph of a model whose structure has been checked.
pub(super) fn import(
    structure: &Structure<'_>,
    reader: TensorReader,
    name: &str,
    options: &ImportOptions,
) -> Result<Graph, OnnxError> {
    let mut state = State::new(name, structure, reader, &options.frozen);
    initializers(&mut state)?;
    inputs(&mut state, options)?;
    nodes(&mut state)?;
    outputs(state)
}

fn initializers(state: &mut State<'_>) -> Result<(), OnnxError> {
    for tensor in &state.structure.graph.initializer {
        if !state.structure.used.contains(tensor.name.as_str()) {
            continue;
        }
        if let Some(weight) = stored(state, tensor)? {
            state.values.insert(&tensor.name, Value::Weight(weight));
            continue;
        }
        let literal = state.reader.load(tensor)?;
        let trained = match &literal.data {
            Data::Floats(values) => {
                let angle = state.structure.angles.contains(tensor.name.as_str());
                values.len() > 1 && !angle && !is_made_up(&tensor.name, values)
            }
            Data::Ints(_) => false,
        };
        let value = match literal.data {
            Data::Floats(values) if trained => Value::Weight(Weight {
                name: tensor.name.clone(),
                shape: literal.shape,
                init: Init::Floats(values),
            }),
            _ => Value::Known(literal),
        };
        state.values.insert(&tensor.name, value);
    }
    Ok(())
}

/// A weight that stays in its file until a run begins; none if the tensor is small, or no weight.
fn stored(state: &mut State<'_>, tensor: &TensorProto) -> Result<Option<Weight>, OnnxError> {
    let name = &tensor.name;
    let fail = |reason| OnnxError::Initializer {
        name: name.clone(),
        reason,
    };
    let Some((shape, stored)) = state.reader.stored(tensor).map_err(fail)? else {
        return Ok(None);
    };
    if state.structure.angles.contains(name.as_str()) {
        return Ok(None);
    }
    let weight = |stored: &Stored| {
        Ok(stored.all(ordinary)? && !(untie::is_computed(name) && stored.is_uniform()?))
    };
    let weight = weight(&stored).map_err(|error: std::io::Error| fail(error.to_string()))?;
    Ok(weight.then(|| Weight {
        name: name.clone(),
        shape,
        init: Init::Stored(stored),
    }))
}

/// Whether an exporter made up a tensor: a name of its own for one number, such as a mask that masks nothing.
fn is_made_up(name: &str, values: &[f32]) -> bool {
    untie::is_computed(name) && values.iter().all(|x| *x == values[0])
}

fn inputs(state: &mut State<'_>, options: &ImportOptions) -> Result<(), OnnxError> {
    for input in &state.structure.graph.input {
        if state.values.contains_key(input.name.as_str()) {
            continue;
        }
        let value = match options.known.get(&input.name) {
            Some(literal) => Value::Known(literal.clone()),
            None if !state.structure.used.contains(input.name.as_str()) => continue,
            None => {
                let fail = |reason| OnnxError::Input {
                    name: input.name.clone(),
                    reason,
                };
                let (shape, dtype) = signature(state, input, options).map_err(fail)?;
                Value::Tensor(state.b.input(&input.name, &shape, dtype)?)
            }
        };
        state.values.insert(&input.name, value);
    }
    Ok(())
}

/// Shape and element type of an input.
fn signature(
    state: &mut State<'_>,
    input: &ValueInfoProto,
    options: &ImportOptions,
) -> Result<(Vec<usize>, DType), String> {
    let tensor = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
    let tensor = tensor.ok_or("it is not a tensor; only tensors are supported")?;
    let dtype = if is_float(tensor.elem_type)? {
        DType::F32
    } else {
        DType::I64
    };
    let shape = tensor.shape.as_ref();
    let shape =
        shape.ok_or("it has no shape; fix it with onnx.shape_inference or in the exporter")?;
    let mut dims = Vec::new();
    for (i, dim) in shape.dim.iter().enumerate() {
        dims.push(dimension(state, i, dim, options)?);
    }
    Ok((dims, dtype))
}

fn dimension(
    state: &mut State<'_>,
    index: usize,
    dim: &DimensionProto,
    options: &ImportOptions,
) -> Result<usize, String> {
    let fixed = match &dim.value {
        Some(Dimension::Value(n)) if *n > 0 => Some(*n),
        _ => None,
    };
    let fixed = fixed.map(usize::try_from).transpose();
    let fixed = fixed.map_err(|_| format!("dimension {index} is too large"))?;
    let named = match &dim.value {
        Some(Dimension::Param(name)) => options.dims.get(name).copied(),
        _ => None,
    };
    let batch = options.batch.filter(|_| index == 0);
    match (named, batch, fixed) {
        (Some(n), _, _) => Ok(n),
        (None, Some(batch), Some(fixed)) => {
            if batch != fixed {
                state.rebatch = Some((fixed, batch));
            }
            Ok(batch)
        }
        (None, Some(n), None) | (None, None, Some(n)) => Ok(n),
        (None, None, None) => {
            let called = match &dim.value {
                Some(Dimension::Param(name)) if !name.is_empty() => format!(" ({name:?})"),
                _ => String::new(),
            };
            Err(match index {
                0 => format!("its first dimension{called} is open; give the batch size"),
                _ => format!(
                    "its dimension {index}{called} is open; give it a size by its name, or fix it in the file"
                ),
            })
        }
    }
}

fn nodes(state: &mut State<'_>) -> Result<(), OnnxError> {
    let mut refused: Vec<Unsupported> = Vec::new();
    let structure = state.structure;
    for &proto in &structure.nodes {
        let outcome = node(state, proto);
        let values = match outcome {
            Ok(values) => values,
            Err(Fault::Invalid(reason)) if refused.is_empty() => {
                return Err(OnnxError::Node {
                    node: node_name(proto).to_owned(),
                    op: proto.op_type.clone(),
                    reason,
                });
            }
            // An error that follows from an unsupported node would only repeat it.
            Err(Fault::Invalid(_)) => Vec::new(),
            Err(Fault::Unsupported(what)) => {
                if let Some(unsupported) = describe(state, proto, what) {
                    refused.push(unsupported);
                }
                Vec::new()
            }
        };
        let values = values.into_iter().chain(std::iter::repeat(Value::Missing));
        let named = proto.output.iter().zip(values);
        for (output, value) in named.filter(|(output, _)| !output.is_empty()) {
            state.values.insert(output, value);
        }
    }
    match refused.is_empty() {
        true => Ok(()),
        false => Err(OnnxError::Unsupported(refused)),
    }
}

/// The entry of a node in the list of what isn't supported: none if the operator is, and it only
/// lacks inputs because of others.
fn describe(state: &State<'_>, proto: &NodeProto, what: String) -> Option<Unsupported> {
    let op = match is_standard(&proto.domain) {
        true => proto.op_type.clone(),
        false => format!("{}::{}", proto.domain, proto.op_type),
    };
    let known = is_supported(proto);
    let missing = |name: &String| matches!(state.values.get(name.as_str()), Some(Value::Missing));
    if known && proto.input.iter().any(missing) {
        return None;
    }
    Some(Unsupported {
        node: node_name(proto).to_owned(),
        op,
        what: known.then_some(what),
    })
}

fn is_supported(proto: &NodeProto) -> bool {
    is_standard(&proto.domain)
        && (ops::find(&proto.op_type).is_some() || fold::knows(&proto.op_type))
}

fn node<'a>(state: &mut State<'a>, proto: &'a NodeProto) -> Outcome<Vec<Value>> {
    if !is_supported(proto) {
        return Err(Fault::Unsupported(String::new()));
    }
    let mut node = Node {
        attributes: Attributes::new(proto),
        name: node_name(proto).to_owned(),
        state,
        proto,
    };
    let values = match fold::fold(&mut node)? {
        Some(values) => values,
        None => match ops::find(&proto.op_type) {
            Some(build) => build(&mut node)?,
            None => {
                return Err(Fault::Unsupported(
                    "of values that are not known at import".into(),
                ));
            }
        },
    };
    node.attributes.all_understood()?;
    Ok(values)
}

fn outputs(mut state: State<'_>) -> Result<Graph, OnnxError> {
    for output in &state.structure.graph.output {
        let value = state.values.get(output.name.as_str()).cloned();
        let value = value.unwrap_or(Value::Missing);
        let id = state
            .place(&output.name, &value)
            .map_err(|fault| match fault {
                Fault::Invalid(reason) => {
                    OnnxError::Invalid(format!("output {:?}: {reason}", output.name))
                }
                Fault::Unsupported(what) => OnnxError::Unsupported(vec![Unsupported {
                    node: output.name.clone(),
                    op: "an output".to_owned(),
                    what: Some(what),
                }]),
            })?;
        state.b.output(id);
    }
    let mut graph = state.b.finish()?;
    graph.remarks.extend(fused::remark(state.structure.graph));
    Ok(graph)
}
