//! Trained weights in a copy of the model: what changes in the file, what doesn't, and what is refused.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

mod held;
mod models;

use held::Held;
use models::*;
use prost::Message;
use scrimp_graph::onnx::proto::{ModelProto, TensorProto, data_type};
use scrimp_graph::onnx::{ModelCopy, OnnxError, import};
use scrimp_graph::{Graph, Init, Role};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Weights stored in several ways: 32 and 16 bits, as a constant, in another file, as statistics.
fn network() -> ModelProto {
    let half = |name: &str, dims: &[i64], bits: &[u16]| TensorProto {
        name: name.into(),
        dims: dims.into(),
        data_type: data_type::FLOAT16,
        raw_data: bits
            .iter()
            .flat_map(|b| b.to_le_bytes())
            .collect::<Vec<u8>>()
            .into(),
        ..TensorProto::default()
    };
    let constant = floats("", &[2, 2, 1, 1], &[1.0, 2.0, 3.0, 4.0]);
    let nodes = vec![
        node("Constant", &[], &["made"]).tensor("value", constant),
        node("Conv", &["x", "made"], &["c"]).ints("kernel_shape", &[1, 1]),
        node(
            "BatchNormalization",
            &["c", "scale", "shift", "bn.running_mean", "bn.running_var"],
            &["n"],
        ),
        node(
            "BatchNormalization",
            &["n", "scale2", "shift2", "mean", "variance"],
            &["m"],
        ),
        node("Add", &["m", "mask"], &["y"]),
    ];
    let stored = vec![
        floats("scale", &[2], &[1.0, 1.0]),
        floats("shift", &[2], &[0.0, 0.0]),
        floats("bn.running_mean", &[2], &[0.0, 0.0]),
        floats("bn.running_var", &[2], &[1.0, 1.0]),
        half("scale2", &[2], &[0x3c00, 0x3c00]),
        floats("shift2", &[2], &[0.0, 0.0]),
        floats("mean", &[2], &[0.0, 0.0]),
        floats("variance", &[2], &[1.0, 1.0]),
        floats("mask", &[2, 1, 1], &[-1e9, 0.0]),
    ];
    model(nodes, stored, vec![image()], &["y"])
}

/// A file with a field that the importer knows nothing of.
fn written(folder: &Path, model: &ModelProto) -> PathBuf {
    let path = folder.join("model.onnx");
    let mut bytes = model.encode_to_vec();
    bytes.extend(DOCUMENTATION);
    std::fs::write(&path, bytes).expect("written");
    path
}

/// `ModelProto.doc_string`.
const DOCUMENTATION: &[u8] = b"\x32\x05hello";

fn imported(path: &Path) -> Graph {
    import(path, &options(2)).unwrap_or_else(|error| panic!("{error}"))
}

/// Every parameter and statistic of the graph, each element different.
fn trained(graph: &Graph) -> Held {
    let mut weights = Held::default();
    let mut next = 0.0;
    for (_, tensor) in graph.given() {
        if matches!(tensor.role, Role::Parameter(_) | Role::State(_)) {
            let values = (0..tensor.elements()).map(|_| {
                next += 0.25;
                next
            });
            weights.0.insert(tensor.name.clone(), values.collect());
        }
    }
    weights
}

/// The contents of parameters and state that a graph starts with.
fn contents(graph: &Graph) -> Held {
    let mut weights = Held::default();
    for (_, tensor) in graph.given() {
        if let Role::Parameter(Init::Floats(values)) | Role::State(Init::Floats(values)) =
            &tensor.role
        {
            weights.0.insert(tensor.name.clone(), values.to_vec());
        }
    }
    weights
}

fn copied(path: &Path, graph: &Graph, weights: &Held) -> Result<Vec<u8>, OnnxError> {
    let mut copy = Vec::new();
    let written = ModelCopy::new(path, graph)?.write(&mut copy, weights);
    written.expect("memory takes anything");
    Ok(copy)
}

#[test]
fn a_copy_has_the_trained_weights_and_nothing_else_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(folder.path(), &network());
    let graph = imported(&path);
    let weights = trained(&graph);
    assert_ne!(contents(&graph), weights);
    let copy = copied(&path, &graph, &weights).expect("copied");
    assert!(copy.ends_with(DOCUMENTATION));
    let other = folder.path().join("copy.onnx");
    std::fs::write(&other, &copy).expect("written");
    assert_eq!(contents(&imported(&other)), weights);
    checked(&other);
    // Saved again it is the same file.
    assert_eq!(copied(&other, &graph, &weights).expect("copied"), copy);
    let file = ModelProto::decode(copy.as_slice()).expect("a model");
    let stored = file.graph.expect("a graph").initializer;
    let find = |name: &str| {
        stored
            .iter()
            .find(|tensor| tensor.name == name)
            .expect("stored")
    };
    assert_eq!(find("scale2").data_type, data_type::FLOAT16);
    assert_eq!(find("mask"), &floats("mask", &[2, 1, 1], &[-1e9, 0.0]));
}

/// By ONNX's own checker, where the Python that `SCRIMP_PYTHON` names has it.
fn checked(path: &Path) {
    let python = std::env::var("SCRIMP_PYTHON").unwrap_or_else(|_| "python3".into());
    let run = |program: &str| {
        let mut python = Command::new(&python);
        python.args(["-c", program]).arg(path).output()
    };
    if !run("import onnx").is_ok_and(|output| output.status.success()) {
        println!("skipped: {python} has no onnx");
        return;
    }
    let output = run("import onnx, sys; onnx.checker.check_model(sys.argv[1])").expect("it runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
}

#[test]
fn external_data_come_into_the_copy() {
    use scrimp_graph::onnx::proto::StringStringEntryProto;
    let folder = tempfile::tempdir().expect("a folder");
    let mut file = network();
    let mask = file
        .graph
        .as_mut()
        .and_then(|graph| graph.initializer.last_mut());
    let mask = mask.expect("the mask");
    let bytes: Vec<u8> = [-1e9f32, 0.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    std::fs::write(folder.path().join("data"), bytes).expect("written");
    mask.float_data.clear();
    mask.data_location = 1;
    mask.external_data = vec![StringStringEntryProto {
        key: "location".into(),
        value: "data".into(),
    }];
    let path = written(folder.path(), &file);
    let graph = imported(&path);
    let copy = copied(&path, &graph, &trained(&graph)).expect("copied");
    let elsewhere = tempfile::tempdir().expect("a folder");
    let other = elsewhere.path().join("copy.onnx");
    std::fs::write(&other, copy).expect("written");
    assert_eq!(contents(&imported(&other)), trained(&graph));
}

/// An exporter stores equal tensors once; here the biases of two layers, which also use the same weight on
/// purpose.
#[test]
fn merged_weights_are_taken_apart_and_saved_so() {
    let nodes = vec![
        node("Conv", &["x", "w", "zeros"], &["a"]).ints("kernel_shape", &[1, 1]),
        node("Conv", &["a", "w", "zeros"], &["b"]).ints("kernel_shape", &[1, 1]),
        node("Conv", &["b", "w", "zeros"], &["y"]).ints("kernel_shape", &[1, 1]),
    ];
    let stored = vec![
        floats("w", &[2, 2, 1, 1], &[1.0, 2.0, 3.0, 4.0]),
        floats("zeros", &[2], &[0.0, 0.0]),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(folder.path(), &model(nodes, stored, vec![image()], &["y"]));
    let graph = imported(&path);
    let names: Vec<&str> = graph
        .given()
        .map(|(_, tensor)| tensor.name.as_str())
        .collect();
    assert_eq!(names, ["x", "w", "zeros", "zeros/b", "zeros/y"]);
    assert!(graph.remarks.len() == 1 && graph.remarks[0].starts_with("2 weights"));
    let copy = copied(&path, &graph, &trained(&graph)).expect("copied");
    let other = folder.path().join("copy.onnx");
    std::fs::write(&other, copy).expect("written");
    checked(&other);
    let again = imported(&other);
    assert_eq!(contents(&again), trained(&graph));
    assert!(again.remarks.is_empty(), "nothing is merged any more");
}

#[test]
fn what_is_not_of_the_file_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(folder.path(), &network());
    let graph = imported(&path);
    let weights = trained(&graph);
    let mut other = network();
    let scale = &mut other.graph.as_mut().expect("a graph").initializer[0];
    *scale = floats("scale", &[3], &[1.0; 3]);
    let path = written(folder.path(), &other);
    let error = copied(&path, &graph, &weights).expect_err("another shape");
    assert!(error.to_string().contains("\"scale\""), "{error}");
    let mut other = network();
    other.graph.as_mut().expect("a graph").initializer[0].name = "gain".into();
    other.graph.as_mut().expect("a graph").node[2].input[1] = "gain".into();
    let path = written(folder.path(), &other);
    let error = copied(&path, &graph, &weights).expect_err("another file");
    assert!(error.to_string().contains("safetensors"), "{error}");
}

#[test]
fn a_model_that_changes_meanwhile_is_not_copied() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(folder.path(), &network());
    let graph = imported(&path);
    let copy = ModelCopy::new(&path, &graph).expect("it is the graph's");
    let longer = [std::fs::read(&path).expect("read"), DOCUMENTATION.to_vec()].concat();
    std::fs::write(&path, longer).expect("written");
    let error = copy.write(&mut Vec::new(), &trained(&graph));
    assert!(
        error
            .expect_err("another file")
            .to_string()
            .contains("changed")
    );
}
