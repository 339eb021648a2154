//! Checks of a model that don't look at operators: one graph, a known version, every name written
//! once and before it is read; and which nodes the outputs need.

use std::collections::{HashMap, HashSet};

use super::error::OnnxError;
use super::proto::{GraphProto, ModelProto, NodeProto};

/// Versions of the standard operators whose meaning the importer knows.
const OPSETS: std::ops::RangeInclusive<i64> = 6..=25;

/// A model in order.
pub(super) struct Structure<'a> {
    pub(super) graph: &'a GraphProto,
    /// Version of the standard operators.
    pub(super) opset: i64,
    /// The nodes that the outputs need, in the file's order.
    pub(super) nodes: Vec<&'a NodeProto>,
    /// The names that these nodes and the outputs read.
    pub(super) used: HashSet<&'a str>,
    /// The names that angles are computed from. There is no operator for the sine of what isn't known, so none of
    /// them is trained.
    pub(super) angles: HashSet<&'a str>,
    /// Which node writes a name.
    pub(super) producers: HashMap<&'a str, &'a NodeProto>,
}

impl<'a> Structure<'a> {
    /// Check a model; errors name what is wrong.
    pub(super) fn of(model: &'a ModelProto) -> Result<Structure<'a>, OnnxError> {
        let graph = model.graph.as_ref();
        let graph = graph.ok_or_else(|| OnnxError::Invalid("the file contains no graph".into()))?;
        let opset = opset(model, &graph.node)?;
        if !graph.sparse_initializer.is_empty() {
            return invalid("sparse initializers are not supported; store them densely");
        }
        if graph.output.is_empty() {
            return invalid("the graph has no outputs");
        }
        let producers = check_names(graph)?;
        let (nodes, used) = needed(
            graph,
            graph.output.iter().map(|o| o.name.as_str()).collect(),
        );
        let turns = |node: &&&NodeProto| matches!(node.op_type.as_str(), "Cos" | "Sin");
        let turned = nodes.iter().filter(turns).flat_map(|node| &node.input);
        let (_, angles) = needed(graph, turned.map(String::as_str).collect());
        Ok(Structure {
            graph,
            opset,
            nodes,
            used,
            angles,
            producers,
        })
    }
}

fn invalid<T>(reason: impl Into<String>) -> Result<T, OnnxError> {
    Err(OnnxError::Invalid(reason.into()))
}

/// Whether a domain is that of the standard operators.
pub(super) fn is_standard(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

/// How messages call a node: its name, or its first output where it has none.
pub(super) fn node_name(node: &NodeProto) -> &str {
    match node.name.as_str() {
        "" => node.output.first().map_or("unnamed", String::as_str),
        name => name,
    }
}

fn opset(model: &ModelProto, nodes: &[NodeProto]) -> Result<i64, OnnxError> {
    let mut imports = model.opset_import.iter();
    match imports.find(|o| is_standard(&o.domain)) {
        Some(o) if OPSETS.contains(&o.version) => Ok(o.version),
        Some(o) => invalid(format!(
            "it uses opset {}; versions {} to {} are supported, convert it with onnx.version_converter",
            o.version,
            OPSETS.start(),
            OPSETS.end()
        )),
        None if nodes.iter().any(|n| is_standard(&n.domain)) => {
            invalid("it imports no version of the standard operators")
        }
        None => Ok(*OPSETS.end()),
    }
}

/// Every name is written once, by an input, an initializer or a node, and before it is read.
fn check_names(graph: &GraphProto) -> Result<HashMap<&str, &NodeProto>, OnnxError> {
    let mut known: HashSet<&str> = HashSet::new();
    for name in graph.initializer.iter().map(|t| t.name.as_str()) {
        if !known.insert(name) {
            return invalid(format!("two initializers are called {name:?}"));
        }
    }
    let mut inputs = HashSet::new();
    for name in graph.input.iter().map(|i| i.name.as_str()) {
        // Older files list initializers among the inputs.
        if !inputs.insert(name) {
            return invalid(format!("two inputs are called {name:?}"));
        }
        known.insert(name);
    }
    let written = |node: &NodeProto, name: &str| node.output.iter().any(|o| o == name);
    let mut producers = HashMap::new();
    for (index, node) in graph.node.iter().enumerate() {
        for name in node.input.iter().filter(|n| !n.is_empty()) {
            if !known.contains(name.as_str()) {
                let later = graph.node[index..].iter().find(|n| written(n, name));
                return invalid(match later {
                    Some(later) => format!(
                        "node {:?} reads {name:?} before node {:?} writes it: the graph has a cycle or is not sorted",
                        node_name(node),
                        node_name(later)
                    ),
                    None => format!(
                        "node {:?} reads {name:?}, which nothing writes",
                        node_name(node)
                    ),
                });
            }
        }
        for name in node.output.iter().filter(|n| !n.is_empty()) {
            if !known.insert(name) {
                return invalid(format!(
                    "node {:?} writes {name:?}, which is written already",
                    node_name(node)
                ));
            }
            producers.insert(name.as_str(), node);
        }
    }
    match graph
        .output
        .iter()
        .find(|o| !known.contains(o.name.as_str()))
    {
        Some(output) => invalid(format!("nothing writes the output {:?}", output.name)),
        None => Ok(producers),
    }
}

/// The nodes that these names need, and all names that are read for them, these included.
fn needed<'a>(
    graph: &'a GraphProto,
    mut used: HashSet<&'a str>,
) -> (Vec<&'a NodeProto>, HashSet<&'a str>) {
    let mut nodes: Vec<&NodeProto> = Vec::new();
    for node in graph.node.iter().rev() {
        if node.output.iter().any(|o| used.contains(o.as_str())) {
            used.extend(
                node.input
                    .iter()
                    .filter(|n| !n.is_empty())
                    .map(String::as_str),
            );
            nodes.push(node);
        }
    }
    nodes.reverse();
    (nodes, used)
}
