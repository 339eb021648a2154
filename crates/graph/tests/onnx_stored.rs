//! Large weights stay in the model's file: they are the same numbers, and a damaged file is told as ever.

mod models;

use models::*;
use prost::Message;
use scrimp_graph::onnx::proto::{ModelProto, TensorProto, data_type};
use scrimp_graph::onnx::{ImportOptions, import, import_bytes};
use scrimp_graph::weights::Stored;
use scrimp_graph::{Graph, Init, Role};
use std::path::Path;

const SIDE: usize = 200;

/// A square matrix of raw floats of 4 or 2 bytes.
fn raw(name: &str, dtype: i32, number: impl Fn(usize) -> f32) -> TensorProto {
    let bytes = |i| match dtype {
        data_type::FLOAT => number(i).to_le_bytes().to_vec(),
        // Halves are built from their bits: 1 + k/1024.
        _ => (0x3c00 + (i % 1024) as u16).to_le_bytes().to_vec(),
    };
    TensorProto {
        name: name.into(),
        dims: vec![SIDE as i64; 2],
        data_type: dtype,
        raw_data: (0..SIDE * SIDE).flat_map(bytes).collect::<Vec<u8>>().into(),
        ..TensorProto::default()
    }
}

fn network() -> ModelProto {
    let nodes = vec![
        node("MatMul", &["x", "a"], &["b"]),
        node("MatMul", &["b", "half"], &["c"]),
        node("Add", &["c", "mask"], &["d"]),
        node("MatMul", &["d", "a"], &["e"]),
        node("Add", &["e", "same"], &["f"]),
        node("Add", &["f", "same"], &["y"]),
    ];
    let stored = vec![
        raw("a", data_type::FLOAT, |i| i as f32 / 7.0),
        raw("half", data_type::FLOAT16, |_| 0.0),
        raw("mask", data_type::FLOAT, |i| {
            if i % 2 == 0 { 0.0 } else { -1e9 }
        }),
        raw("same", data_type::FLOAT, |_| 0.25),
    ];
    let side = SIDE as i64;
    let x = value("x", &[Fixed(side), Fixed(side)]);
    model(nodes, stored, vec![x], &["y"])
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("a file");
}

fn init<'a>(graph: &'a Graph, name: &str) -> &'a Init {
    let id = graph.find(name).expect("a tensor of this name");
    match &graph.tensor(id).role {
        Role::Parameter(init) | Role::Constant(init) => init,
        role => panic!("{name} is {role:?}"),
    }
}

fn numbers(init: &Init) -> Vec<f32> {
    match init {
        Init::Floats(values) => values.to_vec(),
        Init::Stored(stored) => {
            let mut values = vec![0.0; stored.len()];
            Stored::read(stored, 0, &mut values).expect("the file is there");
            values
        }
        init => panic!("{init:?}"),
    }
}

#[test]
fn large_weights_are_read_when_they_are_wanted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.onnx");
    let bytes = network().encode_to_vec();
    write(&path, &bytes);
    let options = ImportOptions::default();
    let whole = import_bytes(bytes, "model", &options).expect("imported");
    let thin = import(&path, &options).expect("imported");
    let own = "same/y";
    for (name, stored) in [("a", true), ("half", true), ("same", true), ("mask", false)] {
        let init = init(&thin, name);
        assert_eq!(matches!(init, Init::Stored(_)), stored, "{name}");
        assert_eq!(numbers(init), numbers(self::init(&whole, name)), "{name}");
    }
    // Weights of one number only are untied in both.
    assert_eq!(thin.remarks, whole.remarks);
    assert_eq!(thin.remarks.len(), 1, "{own}");
    assert_eq!(thin.nodes().len(), whole.nodes().len());
    let Init::Stored(a) = init(&thin, "a") else {
        panic!("stored");
    };
    let mut piece = [0.0; 3];
    a.read(SIDE * SIDE - 3, &mut piece).expect("the last three");
    assert_eq!(piece[2], (SIDE * SIDE - 1) as f32 / 7.0);
    assert!(
        a.read(SIDE * SIDE - 2, &mut piece).is_err(),
        "beyond the end"
    );
}

#[test]
fn what_is_wrong_with_a_file_is_told_as_of_its_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.onnx");
    let bytes = network().encode_to_vec();
    let options = ImportOptions::default();
    let (third, last) = (bytes.len() / 3, bytes.len() - 1);
    for length in (0..300).chain([third, last]) {
        let cut = &bytes[..length];
        write(&path, cut);
        let told = import(&path, &options)
            .map(|_| ())
            .map_err(|e| e.to_string());
        let expected = import_bytes(cut.to_vec(), "model", &options);
        let expected = expected.map(|_| ()).map_err(|e| e.to_string());
        assert_eq!(told, expected, "the first {length} bytes");
    }
    let mut wrong = network();
    let graph = wrong.graph.as_mut().expect("a graph");
    graph.initializer[0].dims[0] += 1;
    write(&path, &wrong.encode_to_vec());
    let told = import(&path, &options)
        .expect_err("too few bytes")
        .to_string();
    assert!(
        told.contains("160000 bytes") && told.contains("160800"),
        "{told}"
    );
}
