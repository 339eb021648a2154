//! Writing ONNX models for tests, and looking at what becomes of them.

#![allow(dead_code, reason = "each test binary uses its part")]

use prost::Message;
use scrimp_graph::onnx::proto::{
    AttributeProto, Dimension, DimensionProto, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
    attribute_type, data_type,
};
use scrimp_graph::onnx::{ImportOptions, OnnxError, import_bytes};
use scrimp_graph::{Graph, Role};

pub fn floats(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.into(),
        data_type: data_type::FLOAT,
        float_data: values.into(),
        ..Default::default()
    }
}

pub fn ints(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: vec![values.len() as i64],
        data_type: data_type::INT64,
        raw_data: values
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<u8>>()
            .into(),
        ..Default::default()
    }
}

pub fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let own = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect();
    NodeProto {
        op_type: op.into(),
        input: own(inputs),
        output: own(outputs),
        ..Default::default()
    }
}

pub trait With {
    fn ints(self, name: &str, values: &[i64]) -> Self;
    fn int(self, name: &str, value: i64) -> Self;
    fn float(self, name: &str, value: f32) -> Self;
    fn tensor(self, name: &str, value: TensorProto) -> Self;
    fn text(self, name: &str, value: &str) -> Self;
}

impl With for NodeProto {
    fn ints(mut self, name: &str, values: &[i64]) -> Self {
        self.attribute.push(AttributeProto {
            name: name.into(),
            ints: values.into(),
            r#type: attribute_type::INTS,
            ..Default::default()
        });
        self
    }

    fn int(mut self, name: &str, value: i64) -> Self {
        self.attribute.push(AttributeProto {
            name: name.into(),
            i: value,
            r#type: attribute_type::INT,
            ..Default::default()
        });
        self
    }

    fn float(mut self, name: &str, value: f32) -> Self {
        self.attribute.push(AttributeProto {
            name: name.into(),
            f: value,
            r#type: attribute_type::FLOAT,
            ..Default::default()
        });
        self
    }

    fn tensor(mut self, name: &str, value: TensorProto) -> Self {
        self.attribute.push(AttributeProto {
            name: name.into(),
            t: Some(value),
            r#type: attribute_type::TENSOR,
            ..Default::default()
        });
        self
    }

    fn text(mut self, name: &str, value: &str) -> Self {
        self.attribute.push(AttributeProto {
            name: name.into(),
            s: value.as_bytes().to_vec().into(),
            r#type: attribute_type::STRING,
            ..Default::default()
        });
        self
    }
}

/// A dimension: a number, or a name for an open one.
pub enum Dim {
    Fixed(i64),
    Open(&'static str),
}
pub use Dim::{Fixed, Open};

pub fn value(name: &str, dims: &[Dim]) -> ValueInfoProto {
    let dim = |dim: &Dim| DimensionProto {
        value: Some(match dim {
            Fixed(n) => Dimension::Value(*n),
            Open(name) => Dimension::Param((*name).to_owned()),
        }),
    };
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorTypeProto {
                elem_type: data_type::FLOAT,
                shape: Some(TensorShapeProto {
                    dim: dims.iter().map(dim).collect(),
                }),
            }),
        }),
    }
}

pub fn model(
    nodes: Vec<NodeProto>,
    initializer: Vec<TensorProto>,
    input: Vec<ValueInfoProto>,
    outputs: &[&str],
) -> ModelProto {
    ModelProto {
        ir_version: 8,
        graph: Some(GraphProto {
            name: "test".into(),
            node: nodes,
            initializer,
            input,
            output: outputs.iter().map(|name| value(name, &[])).collect(),
            ..Default::default()
        }),
        opset_import: vec![OperatorSetIdProto {
            version: 17,
            ..Default::default()
        }],
        ..Default::default()
    }
}

pub fn options(batch: usize) -> ImportOptions {
    ImportOptions {
        batch: Some(batch),
        ..Default::default()
    }
}

pub fn read(model: &ModelProto) -> Result<Graph, OnnxError> {
    import_bytes(model.encode_to_vec(), "test", &options(2))
}

pub fn good(model: &ModelProto) -> Graph {
    read(model).unwrap_or_else(|error| panic!("{error}"))
}

pub fn bad(model: &ModelProto) -> String {
    read(model).expect_err("an error").to_string()
}

pub fn role<'a>(graph: &'a Graph, name: &str) -> &'a Role {
    let id = graph
        .find(name)
        .unwrap_or_else(|| panic!("no tensor {name}"));
    &graph.tensor(id).role
}

pub fn kinds(graph: &Graph) -> Vec<&'static str> {
    graph.nodes().values().map(|node| node.op.kind()).collect()
}

pub fn image() -> ValueInfoProto {
    value("x", &[Open("N"), Fixed(2), Fixed(6), Fixed(6)])
}
