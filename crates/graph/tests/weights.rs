//! Weights are written and read back; files that don't fit are refused with the tensors' names.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod held;

use held::Held;
use scrimp_graph::networks::{NetworkOptions, build};
use scrimp_graph::weights::{Misfit, Notes, Require, WeightsError, WeightsFile, write};
use scrimp_graph::{Binary, DType, Graph, GraphBuilder, Init, Op, Role};
use std::fs;
use std::path::{Path, PathBuf};

fn digits() -> Graph {
    build("digits", &NetworkOptions::default()).expect("a built-in network")
}

/// Different numbers for every parameter and state tensor.
fn contents(graph: &Graph) -> Held {
    let kept = |role: &Role| matches!(role, Role::Parameter(_) | Role::State(_));
    let tensors = graph.given().filter(|(_, t)| kept(&t.role)).enumerate();
    let values = tensors.map(|(i, (_, t))| {
        let values = (0..t.elements()).map(|j| (i * 1000 + j) as f32);
        (t.name.clone(), values.collect())
    });
    Held(values.collect())
}

fn notes() -> Notes {
    [("step", "7"), ("seed", "1")]
        .map(|(key, value)| (key.into(), value.into()))
        .into()
}

/// The file's bytes: the graph's tensors for which `take` says so.
fn file(graph: &Graph, take: impl Fn(&str) -> bool) -> Vec<u8> {
    let contents = contents(graph);
    let tensors = graph.given().map(|(_, tensor)| tensor);
    let tensors = tensors.filter(|t| contents.0.contains_key(&t.name) && take(&t.name));
    let tensors: Vec<_> = tensors.collect();
    let mut bytes = Vec::new();
    write(&mut bytes, &notes(), &tensors, &contents).expect("memory takes anything");
    bytes
}

fn written(folder: &Path, bytes: &[u8]) -> PathBuf {
    let path = folder.join("w.safetensors");
    fs::write(&path, bytes).unwrap();
    path
}

/// What a file has of a graph's parameters and state.
fn read(file: &WeightsFile, graph: &Graph) -> Held {
    let mut found = Held::default();
    for id in file.fit(graph, Require::Everything).unwrap() {
        let tensor = graph.tensor(id);
        let mut values = vec![0.0; tensor.elements()];
        let mut elements = file.elements(tensor).unwrap();
        // In pieces that end anywhere.
        for piece in values.chunks_mut(7) {
            elements.next(piece).unwrap();
        }
        assert!(elements.next(&mut [0.0]).is_err(), "there are no more");
        found.0.insert(tensor.name.clone(), values);
    }
    found
}

#[test]
fn written_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let graph = digits();
    let bytes = file(&graph, |_| true);
    assert_eq!(
        bytes,
        file(&graph, |_| true),
        "the same weights make the same file"
    );
    let file = WeightsFile::open(&written(folder.path(), &bytes)).unwrap();
    assert_eq!(file.notes, notes());
    assert_eq!(read(&file, &graph), contents(&graph));
}

#[test]
fn the_formats_own_library_reads_it_with_the_names_of_pytorch() {
    let graph = digits();
    let bytes = file(&graph, |_| true);
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for name in [
        "conv1.weight",
        "bn1.weight",
        "bn1.bias",
        "bn1.running_mean",
        "bn1.running_var",
        "fc.bias",
    ] {
        assert!(read.names().contains(&name), "{name}");
    }
    let running = &contents(&graph).0["bn1.running"];
    let (mean, variance) = running.split_at(running.len() / 2);
    for (name, values) in [("bn1.running_mean", mean), ("bn1.running_var", variance)] {
        let expected: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(read.tensor(name).unwrap().data(), expected);
    }
}

#[test]
fn other_types_are_converted() {
    let folder = tempfile::tempdir().unwrap();
    let header = r#"{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"F64","shape":[1],"data_offsets":[4,12]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend([0x3c00u16, 0xc000].iter().flat_map(|x| x.to_le_bytes()));
    bytes.extend(0.5f64.to_le_bytes());
    let file = WeightsFile::open(&written(folder.path(), &bytes)).unwrap();
    let mut b = GraphBuilder::new("t");
    let mut x = b.input("x", &[1], DType::F32).unwrap();
    for (name, length) in [("a", 2), ("b", 1)] {
        let parameter = b.parameter(name, &[length], Init::Constant(0.0)).unwrap();
        let op = Op::Binary(Binary::Mul);
        x = b.add(&format!("{name}x"), op, &[x, parameter]).unwrap()[0];
    }
    b.output(x);
    let graph = b.finish().unwrap();
    let found = read(&file, &graph);
    assert_eq!(found.0["a"], [1.0, -2.0]);
    assert_eq!(found.0["b"], [0.5]);
}

#[test]
fn weights_that_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let graph = digits();
    let without = file(&graph, |name| name != "fc.bias" && name != "bn1.running");
    // Another shape of the same length.
    let (shape, other) = ("\"shape\":[10,64]", "\"shape\":[64,10]");
    let at = without
        .windows(shape.len())
        .position(|w| w == shape.as_bytes());
    let mut changed = without.clone();
    changed[at.expect("it is there")..][..other.len()].copy_from_slice(other.as_bytes());
    let file = WeightsFile::open(&written(folder.path(), &changed)).unwrap();
    let misfits = |require| match file.fit(&graph, require) {
        Err(WeightsError::Mismatch(misfits)) => misfits,
        other => panic!("{other:?}"),
    };
    let missing = |name: &str| Misfit::Missing { name: name.into() };
    let all = misfits(Require::Everything);
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(all.contains(&missing("fc.bias")) && all.contains(&missing("bn1.running_mean")));
    let shape = Misfit::Shape {
        name: "fc.weight".into(),
        expected: vec![10, 64],
        found: vec![64, 10],
    };
    assert!(all.contains(&shape));
    assert!(!misfits(Require::Parameters).contains(&missing("bn1.running_mean")));
    let text = WeightsError::Mismatch(all).to_string();
    assert!(text.contains("fc.bias is missing"), "{text}");
}

#[test]
fn files_that_are_not_weights() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = WeightsFile::open(&folder.path().join("w.safetensors"));
    assert!(matches!(nowhere, Err(WeightsError::Io { .. })));
    let none = written(folder.path(), b"\xff\xff\xff\xff\xff\xff\xff\xff{}");
    for path in [&none, folder.path()] {
        let error = WeightsFile::open(path);
        assert!(matches!(error, Err(WeightsError::Format { .. })));
    }
}

#[test]
fn truncated_and_mutated_files_are_refused_or_read() {
    let folder = tempfile::tempdir().unwrap();
    let graph = digits();
    let bytes = file(&graph, |name| name == "fc.bias");
    for length in 0..bytes.len() {
        let path = written(folder.path(), &bytes[..length]);
        assert!(WeightsFile::open(&path).is_err(), "{length} bytes");
    }
    let bias = graph.find("fc.bias").expect("a parameter");
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut mutated = bytes.clone();
            mutated[at] ^= 1 << bit;
            // Either is right; it must not panic.
            let file = WeightsFile::open(&written(folder.path(), &mutated));
            if let Ok(mut elements) = file
                .as_ref()
                .map_err(|_| ())
                .and_then(|file| file.elements(graph.tensor(bias)).map_err(|_| ()))
            {
                elements.next(&mut [0.0; 10]).expect("as long as it says");
            }
        }
    }
}
