//! Weights that start equal and were merged: exporters store tensors with the same contents once, such as
//! all biases of zeros. Trained as one tensor, they would stay equal for good. So a stored tensor of one number only
//! that several places read becomes one for each of them. Weights that a model shares on purpose
//! hold different numbers.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::literal::{Data, TensorReader};
use super::proto::{GraphProto, TensorProto};
use super::structure::node_name;

/// A place that reads a tensor of its own from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Own {
    /// Index of the node in the file.
    pub(super) node: usize,
    /// Index of the input.
    pub(super) input: usize,
    /// The tensor that it reads in the file.
    pub(super) shared: String,
    /// What its own one is called.
    pub(super) name: String,
    /// The element type in the file.
    pub(super) data_type: i32,
}

/// The places that get tensors of their own: of each merged tensor all readers but the first.
pub(super) fn places(graph: &GraphProto, reader: &mut TensorReader) -> Vec<Own> {
    let mut readers: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
    for (n, node) in graph.node.iter().enumerate() {
        for (i, input) in node.input.iter().enumerate() {
            readers.entry(input).or_default().push((n, i));
        }
    }
    let mut taken: BTreeSet<String> = graph.initializer.iter().map(|t| t.name.clone()).collect();
    let mut places = Vec::new();
    for tensor in &graph.initializer {
        let Some([_, others @ ..]) = readers.get(tensor.name.as_str()).map(Vec::as_slice) else {
            continue;
        };
        if others.is_empty() || is_computed(&tensor.name) {
            continue;
        }
        // The import itself reports what can't be read.
        let uniform = is_uniform(tensor, reader).unwrap_or(false);
        for &(node, input) in others.iter().filter(|_| uniform) {
            let stem = format!("{}/{}", tensor.name, node_name(&graph.node[node]));
            let numbers = (1..).map(|i| format!("{stem}/{i}"));
            let mut names = std::iter::once(stem.clone()).chain(numbers);
            let free = names.find(|name| !taken.contains(name));
            let name = free.unwrap_or(stem);
            taken.insert(name.clone());
            places.push(Own {
                node,
                input,
                shared: tensor.name.clone(),
                name,
                data_type: tensor.data_type,
            });
        }
    }
    places
}

/// Whether a tensor is several floats and all are the same number.
fn is_uniform(tensor: &TensorProto, reader: &mut TensorReader) -> Result<bool, String> {
    if let Some((_, stored)) = reader.stored(tensor)? {
        return stored.is_uniform().map_err(|error| error.to_string());
    }
    Ok(match reader.contents(tensor)?.data {
        Data::Floats(values) => values.len() > 1 && values.iter().all(|x| *x == values[0]),
        Data::Ints(_) => false,
    })
}

/// Whether an exporter made up the name, for a constant.
pub(super) fn is_computed(name: &str) -> bool {
    let number = name.strip_prefix("val_");
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Gives the places that [`places`] found in this graph their own tensors, and says so.
pub(super) fn untie(graph: &mut GraphProto, places: &[Own]) -> Option<String> {
    let names = graph.initializer.iter().enumerate();
    let indices: HashMap<String, usize> = names.map(|(i, t)| (t.name.clone(), i)).collect();
    for place in places {
        let mut own = graph.initializer[indices[&place.shared]].clone();
        own.name.clone_from(&place.name);
        graph.initializer.push(own);
        graph.node[place.node].input[place.input].clone_from(&place.name);
    }
    (!places.is_empty()).then(|| {
        format!(
            "{} weights that the exporter had merged with others, because they start with the same numbers, are \
             trained by themselves",
            places.len()
        )
    })
}
