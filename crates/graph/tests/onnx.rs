//! ONNX models written by the tests: what becomes of them, and how wrong ones are refused.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

mod models;

use models::*;
use prost::Message;
use scrimp_graph::onnx::proto::{
    ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto, data_type,
};
use scrimp_graph::onnx::{ImportOptions, OnnxError, import, import_bytes};
use scrimp_graph::{Op, Role};

/// Convolution, batch normalization, relu, shape computations as exporters write them, gemm.
fn network() -> ModelProto {
    let nodes = vec![
        node("Conv", &["x", "conv.weight", "conv.bias"], &["c"])
            .ints("kernel_shape", &[3, 3])
            .ints("pads", &[1, 1, 1, 1]),
        node(
            "BatchNormalization",
            &[
                "c",
                "bn.weight",
                "bn.bias",
                "bn.running_mean",
                "bn.running_var",
            ],
            &["b"],
        )
        .float("epsilon", 1e-5)
        .float("momentum", 0.9),
        node("Relu", &["b"], &["r"]),
        node("Shape", &["r"], &["s"]),
        node("Gather", &["s", "zero"], &["n"]).int("axis", 0),
        node("Unsqueeze", &["n", "axes"], &["n1"]),
        node("Concat", &["n1", "minus"], &["target"]).int("axis", 0),
        node("Reshape", &["r", "target"], &["flat"]),
        node("Gemm", &["flat", "fc.weight", "fc.bias"], &["y"]).int("transB", 1),
    ];
    let initializers = vec![
        floats("conv.weight", &[3, 2, 3, 3], &[0.5; 54]),
        floats("conv.bias", &[3], &[0.0; 3]),
        floats("bn.weight", &[3], &[1.0; 3]),
        floats("bn.bias", &[3], &[0.0; 3]),
        floats("bn.running_mean", &[3], &[0.25; 3]),
        floats("bn.running_var", &[3], &[2.0; 3]),
        TensorProto {
            dims: vec![],
            ..ints("zero", &[0])
        },
        ints("axes", &[0]),
        ints("minus", &[-1]),
        floats("fc.weight", &[4, 108], &[0.1; 432]),
        floats("fc.bias", &[4], &[0.0; 4]),
    ];
    model(nodes, initializers, vec![image()], &["y"])
}

#[test]
fn a_network() {
    let graph = good(&network());
    assert_eq!(
        kinds(&graph),
        ["Conv", "BatchNorm", "Relu", "Reshape", "MatMul"]
    );
    for name in [
        "conv.weight",
        "conv.bias",
        "bn.weight",
        "bn.bias",
        "fc.weight",
        "fc.bias",
    ] {
        assert!(matches!(role(&graph, name), Role::Parameter(_)), "{name}");
    }
    assert!(matches!(role(&graph, "bn.running"), Role::State(_)));
    assert_eq!(graph.tensor(graph.outputs()[0]).shape, [2, 4]);
    let momentum = graph.nodes().values().find_map(|node| match node.op {
        Op::BatchNorm { momentum, epsilon } => Some((momentum, epsilon)),
        _ => None,
    });
    assert_eq!(momentum, Some((0.1, 1e-5)));
}

#[test]
fn open_dimensions() {
    let bytes = network().encode_to_vec();
    let error = import_bytes(bytes, "test", &ImportOptions::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("(\"N\") is open; give the batch size"),
        "{error}"
    );
    let wide = value("x", &[Open("N"), Open("width")]);
    let model = model(
        vec![node("Relu", &["x"], &["y"])],
        vec![],
        vec![wide],
        &["y"],
    );
    assert!(bad(&model).contains("dimension 1 (\"width\") is open"));
    let mut options = options(3);
    options.dims.insert("width".into(), 7);
    let graph = import_bytes(model.encode_to_vec(), "test", &options).unwrap();
    assert_eq!(graph.tensor(graph.outputs()[0]).shape, [3, 7]);
}

/// A file made for one batch size, with a reshape that repeats it.
#[test]
fn a_fixed_batch_is_replaced() {
    let x = value("x", &[Fixed(5), Fixed(2), Fixed(3)]);
    let nodes = vec![node("Reshape", &["x", "shape"], &["y"])];
    let model = model(nodes, vec![ints("shape", &[5, 6])], vec![x], &["y"]);
    let shape = |batch| {
        let options = ImportOptions {
            batch,
            ..Default::default()
        };
        let graph = import_bytes(model.encode_to_vec(), "test", &options).unwrap();
        graph.tensor(graph.outputs()[0]).shape.clone()
    };
    assert_eq!(shape(None), [5, 6]);
    assert_eq!(shape(Some(2)), [2, 6]);
}

/// What is trained and what isn't.
#[test]
fn roles_of_initializers() {
    let nodes = vec![
        node("Add", &["x", "position"], &["a"]),
        node("Mul", &["a", "half"], &["b"]),
        node("Add", &["b", "mask"], &["c"]),
        node("Identity", &["position"], &["copy"]),
        node("Add", &["c", "copy"], &["y"]),
    ];
    let initializers = vec![
        floats("position", &[3], &[1.0, 2.0, 3.0]),
        floats("half", &[], &[0.5]),
        floats("mask", &[3], &[0.0, f32::NEG_INFINITY, 0.0]),
    ];
    let x = value("x", &[Fixed(1), Fixed(3)]);
    let model = model(nodes, initializers, vec![x], &["y"]);
    let graph = good(&model);
    assert!(matches!(role(&graph, "position"), Role::Parameter(_)));
    assert!(
        matches!(role(&graph, "copy"), Role::Parameter(_)),
        "a copy is trained by itself"
    );
    assert!(matches!(role(&graph, "mask"), Role::Constant(_)));
    assert_eq!(kinds(&graph), ["Add", "Affine", "Add", "Add"]);
    let mut options = options(1);
    options.frozen.insert("position".into());
    let graph = import_bytes(model.encode_to_vec(), "test", &options).unwrap();
    assert!(matches!(role(&graph, "position"), Role::Constant(_)));
}

/// As in the light models of the onnx package.
#[test]
fn weights_made_by_constant_of_shape() {
    let nodes = vec![
        node("ConstantOfShape", &["shape"], &["w"]).tensor("value", floats("", &[1], &[0.02])),
        node("ConstantOfShape", &["shape"], &["zeros"]),
        node("MatMul", &["x", "w"], &["h"]),
        node("MatMul", &["x", "zeros"], &["z"]),
        node("Add", &["h", "z"], &["y"]),
    ];
    let x = value("x", &[Open("N"), Fixed(3)]);
    let graph = good(&model(nodes, vec![ints("shape", &[3, 4])], vec![x], &["y"]));
    assert!(matches!(role(&graph, "w"), Role::Parameter(_)));
    assert!(
        matches!(role(&graph, "zeros"), Role::Parameter(_)),
        "a product's weight"
    );
}

/// A transposed weight is read as it is stored.
#[test]
fn transposes_before_products_vanish() {
    let nodes = vec![
        node("Transpose", &["w"], &["t"]).ints("perm", &[1, 0]),
        node("MatMul", &["x", "t"], &["y"]),
    ];
    let x = value("x", &[Open("N"), Fixed(3)]);
    let graph = good(&model(
        nodes,
        vec![floats("w", &[4, 3], &[0.0; 12])],
        vec![x],
        &["y"],
    ));
    assert_eq!(kinds(&graph), ["MatMul"]);
}

#[test]
fn everything_unsupported_is_listed() {
    let nodes = vec![
        node("Conv", &["x", "w"], &["c"]).ints("strange", &[1]),
        node("TopK", &["c", "k"], &["t", "i"]),
        node("Relu", &["t"], &["r"]),
        NodeProto {
            name: "mine".into(),
            domain: "my".into(),
            ..node("Thing", &["r"], &["y"])
        },
    ];
    let initializers = vec![floats("w", &[3, 2, 3, 3], &[0.5; 54]), ints("k", &[1])];
    let error = read(&model(nodes, initializers, vec![image()], &["y"])).unwrap_err();
    let OnnxError::Unsupported(list) = &error else {
        panic!("{error}");
    };
    let named: Vec<_> = list
        .iter()
        .map(|u| (u.node.as_str(), u.op.as_str()))
        .collect();
    assert_eq!(named, [("c", "Conv"), ("t", "TopK"), ("mine", "my::Thing")]);
    assert!(
        error
            .to_string()
            .contains("Conv attribute strange (node \"c\")"),
        "{error}"
    );
}

#[test]
fn nodes_that_no_output_needs_are_left_out() {
    let nodes = vec![node("TopK", &["x"], &["t"]), node("Relu", &["x"], &["y"])];
    assert_eq!(
        kinds(&good(&model(nodes, vec![], vec![image()], &["y"]))),
        ["Relu"]
    );
}

#[test]
fn structures_that_are_not_in_order() {
    let relu = |from: &str, to: &str| node("Relu", &[from], &[to]);
    let with = |nodes: Vec<NodeProto>| model(nodes, vec![], vec![image()], &["y"]);
    let cases = [
        (
            with(vec![relu("b", "a"), relu("a", "b"), relu("b", "y")]),
            "has a cycle or is not sorted",
        ),
        (with(vec![relu("nothing", "y")]), "which nothing writes"),
        (
            with(vec![relu("x", "y"), relu("x", "y")]),
            "written already",
        ),
        (
            with(vec![relu("x", "z")]),
            "nothing writes the output \"y\"",
        ),
        (
            model(vec![relu("x", "y")], vec![], vec![image()], &[]),
            "no outputs",
        ),
        (
            ModelProto {
                graph: None,
                ..network()
            },
            "no graph",
        ),
        (
            ModelProto {
                opset_import: vec![],
                ..network()
            },
            "no version",
        ),
        (
            ModelProto {
                opset_import: vec![OperatorSetIdProto {
                    version: 99,
                    ..Default::default()
                }],
                ..network()
            },
            "opset 99",
        ),
    ];
    for (model, expected) in cases {
        let error = bad(&model);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn tensors_that_are_not_in_order() {
    let with = |tensor: TensorProto| {
        let nodes = vec![node("Add", &["x", "w"], &["y"])];
        bad(&model(
            nodes,
            vec![tensor],
            vec![value("x", &[Fixed(1), Fixed(2)])],
            &["y"],
        ))
    };
    let short = floats("w", &[3], &[1.0]);
    assert!(with(short).contains("initializer \"w\": it has 1 elements, but its shape needs 3"));
    let huge = floats("w", &[i64::MAX, i64::MAX, 4], &[1.0]);
    assert!(with(huge).contains("too many elements"));
    let negative = floats("w", &[-3], &[1.0]);
    assert!(with(negative).contains("negative"));
    let text = TensorProto {
        data_type: data_type::STRING,
        ..floats("w", &[1], &[])
    };
    assert!(with(text).contains("type string"));
    let cut = TensorProto {
        raw_data: vec![0; 7].into(),
        ..floats("w", &[2], &[])
    };
    assert!(with(cut).contains("7 bytes of data, but the shape and type need 8"));
    let big = model(
        vec![node("ConstantOfShape", &["s"], &["y"]).tensor("value", floats("", &[1], &[0.5]))],
        vec![ints("s", &[1 << 40, 1 << 40])],
        vec![],
        &["y"],
    );
    assert!(bad(&big).contains("larger than the limit"), "{}", bad(&big));
}

#[test]
fn nodes_that_are_not_in_order() {
    let with =
        |node: NodeProto, w: TensorProto| bad(&model(vec![node], vec![w], vec![image()], &["y"]));
    let w = || floats("w", &[2, 2], &[0.0; 4]);
    let flat = || floats("w", &[4], &[0.0; 4]);
    let cases = [
        (
            with(node("Gemm", &["w", "w"], &["y"]), flat()),
            "must be matrices",
        ),
        (
            with(node("MatMul", &["x"], &["y"]), w()),
            "input 1 is missing",
        ),
        (
            with(node("Conv", &["x", "w"], &["y"]), w()),
            "its weight has shape [2, 2]",
        ),
        (
            with(node("Softmax", &["x"], &["y"]).int("axis", 4), w()),
            "axis 4 of a tensor with 4 axes",
        ),
        (
            with(
                node("Transpose", &["x"], &["y"]).ints("perm", &[0, 1, 1, 2]),
                w(),
            ),
            "permutation",
        ),
        (
            with(node("Concat", &["x", "x"], &["y"]), w()),
            "attribute axis is missing",
        ),
        (
            with(node("Relu", &["x"], &["y"]).int("kernel", 1), w()),
            "attribute kernel",
        ),
        (
            with(node("Softmax", &["x"], &["y"]).float("axis", 1.0), w()),
            "wrong type",
        ),
        (
            with(
                node("MaxPool", &["x"], &["y"]).ints("kernel_shape", &[2, i64::MAX]),
                w(),
            ),
            "too large",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn external_data() {
    let folder = tempfile::tempdir().unwrap();
    let values: Vec<u8> = [0.0f32, 1.0, 2.0]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(inner.join("w.bin"), &values).unwrap();
    std::fs::write(folder.path().join("outside.bin"), &values).unwrap();
    let stored = |location: &str, offset: &str| {
        let entry = |key: &str, value: &str| StringStringEntryProto {
            key: key.into(),
            value: value.into(),
        };
        let tensor = TensorProto {
            external_data: vec![entry("location", location), entry("offset", offset)],
            data_location: 1,
            ..floats("w", &[2], &[])
        };
        let nodes = vec![node("Add", &["x", "w"], &["y"])];
        let model = model(
            nodes,
            vec![tensor],
            vec![value("x", &[Fixed(1), Fixed(2)])],
            &["y"],
        );
        let path = inner.join("model.onnx");
        std::fs::write(&path, model.encode_to_vec()).unwrap();
        let options = ImportOptions {
            room: Some(16),
            ..ImportOptions::default()
        };
        import(&path, &options)
    };
    let graph = stored("w.bin", "4").unwrap();
    let expected = scrimp_graph::Init::Floats([1.0, 2.0].into());
    assert_eq!(role(&graph, "w"), &Role::Parameter(expected));
    let refused = |location: &str, offset: &str| stored(location, offset).unwrap_err().to_string();
    assert!(refused("w.bin", "8").contains("8 at offset 8 are not in it"));
    assert!(refused("w.bin", "18446744073709551615").contains("are not in it"));
    assert!(refused("w.bin", "-1").contains("not a whole number"));
    assert!(refused("../outside.bin", "0").contains("outside the model's folder"));
    let absolute = folder.path().join("outside.bin");
    assert!(refused(&absolute.to_string_lossy(), "0").contains("outside the model's folder"));
    assert!(refused("none.bin", "0").contains("none.bin"));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(absolute, inner.join("link.bin")).unwrap();
        assert!(refused("link.bin", "0").contains("outside the model's folder"));
        // To open a pipe would be to wait for its writer.
        let pipe = std::process::Command::new("mkfifo")
            .arg(inner.join("pipe.bin"))
            .status();
        assert!(pipe.unwrap().success());
        assert!(refused("pipe.bin", "0").contains("not a regular file"));
    }
}

/// A file may claim any size without taking any room on disk.
#[test]
fn external_data_beyond_memory() {
    let folder = tempfile::tempdir().unwrap();
    let sparse = std::fs::File::create(folder.path().join("w.bin")).unwrap();
    let elements = 1u64 << 38;
    sparse.set_len(4 * elements).unwrap();
    let tensor = TensorProto {
        external_data: vec![StringStringEntryProto {
            key: "location".into(),
            value: "w.bin".into(),
        }],
        data_location: 1,
        ..floats("w", &[elements as i64], &[])
    };
    let nodes = vec![node("Add", &["x", "w"], &["y"])];
    let inputs = vec![value("x", &[Fixed(1), Fixed(elements as i64)])];
    let path = folder.path().join("model.onnx");
    std::fs::write(
        &path,
        model(nodes, vec![tensor], inputs, &["y"]).encode_to_vec(),
    )
    .unwrap();
    let options = ImportOptions {
        room: Some(1 << 30),
        ..ImportOptions::default()
    };
    let error = import(&path, &options).unwrap_err().to_string();
    assert!(error.contains("2199023255552 bytes of memory"), "{error}");
}

#[test]
fn truncated_files_are_refused() {
    let bytes = network().encode_to_vec();
    let mut refused = 0;
    for length in 0..bytes.len() {
        // Cut between two fields a message may still decode; then something is missing.
        refused +=
            usize::from(import_bytes(bytes[..length].to_vec(), "test", &options(2)).is_err());
    }
    assert!(refused >= bytes.len() - 20, "{refused} of {}", bytes.len());
}

/// The body of the fuzz target `onnx`, for about a second.
#[test]
fn random_and_mutated_files_do_not_panic() {
    let bytes = network().encode_to_vec();
    let mut state = 1u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for _ in 0..4000 {
        let mut mutated = bytes.clone();
        for _ in 0..1 + random() % 4 {
            let at = random() % mutated.len();
            match random() % 3 {
                0 => mutated[at] = random() as u8,
                1 => mutated[at] ^= 1 << (random() % 8),
                _ => {
                    mutated.remove(at);
                }
            }
        }
        let _ = import_bytes(mutated, "test", &options(2));
        let noise: Vec<u8> = (0..random() % 200).map(|_| random() as u8).collect();
        let _ = import_bytes(noise, "test", &options(2));
    }
}

#[test]
fn a_small_file_cannot_become_a_large_structure() {
    // Ten million empty nodes of two bytes each.
    let nodes: Vec<u8> = [0x0a, 0x00].repeat(10_000_000);
    let mut bytes = vec![0x3a];
    prost::encoding::encode_varint(nodes.len() as u64, &mut bytes);
    bytes.extend(nodes);
    let error = import_bytes(bytes, "test", &options(1)).unwrap_err();
    assert!(matches!(error, OnnxError::Decode(_)), "{error}");
}

/// XEngine's LeNet, made by other software; its initializers are listed among the inputs.
#[test]
fn lenet() {
    let Some(instances) = std::env::var_os("SCRIMP_INSTANCES") else {
        println!("skipped: SCRIMP_INSTANCES is not set");
        return;
    };
    let path = std::path::Path::new(&instances).join("xengine/lenet_bs64.onnx");
    let graph = import(&path, &ImportOptions::default()).unwrap();
    assert_eq!(graph.tensor(graph.outputs()[0]).shape, [64, 10]);
    let parameters = graph
        .given()
        .filter(|(_, t)| matches!(t.role, Role::Parameter(_)));
    assert_eq!(
        parameters.map(|(_, t)| t.elements()).sum::<usize>(),
        431_080
    );
    let graph = import(&path, &options(8)).unwrap();
    assert_eq!(graph.tensor(graph.outputs()[0]).shape, [8, 10]);
}
