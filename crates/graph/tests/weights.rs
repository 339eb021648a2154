//! Weights are written and read back; files that don't fit are refused with the tensors' names.

use scrimp_graph::networks::{NetworkOptions, build};
use scrimp_graph::weights::{Array, Misfit, Require, Weights, WeightsError};
use scrimp_graph::{Graph, Role, TensorId};

fn digits() -> Graph {
    build("digits", &NetworkOptions::default()).expect("a built-in network")
}

/// Different numbers for every parameter and state tensor.
fn contents(graph: &Graph) -> Vec<(TensorId, Vec<f32>)> {
    let kept = |role: &Role| matches!(role, Role::Parameter(_) | Role::State(_));
    let tensors = graph.given().filter(|(_, t)| kept(&t.role)).enumerate();
    tensors
        .map(|(i, (id, t))| {
            (
                id,
                (0..t.elements()).map(|j| (i * 1000 + j) as f32).collect(),
            )
        })
        .collect()
}

fn weights(graph: &Graph) -> Weights {
    let mut weights = Weights::default();
    for (id, values) in contents(graph) {
        weights.insert(graph.tensor(id), values);
    }
    weights.notes.insert("step".into(), "7".into());
    weights.notes.insert("seed".into(), "1".into());
    weights
}

#[test]
fn written_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let graph = digits();
    let written = weights(&graph);
    written.write(&path).unwrap();
    let first = std::fs::read(&path).unwrap();
    written.write(&path).unwrap();
    assert_eq!(
        first,
        std::fs::read(&path).unwrap(),
        "the same weights make the same file"
    );
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "nothing is left beside it"
    );
    let read = Weights::read(&path).unwrap();
    assert_eq!(read, written);
    assert_eq!(
        read.fit(&graph, Require::Everything).unwrap(),
        contents(&graph)
    );
}

#[test]
fn names_are_those_of_pytorch() {
    let weights = weights(&digits());
    for name in [
        "conv1.weight",
        "bn1.weight",
        "bn1.bias",
        "bn1.running_mean",
        "bn1.running_var",
        "fc.bias",
    ] {
        assert!(weights.tensors.contains_key(name), "{name}");
    }
}

#[test]
fn weights_that_do_not_fit() {
    let graph = digits();
    let mut weights = weights(&graph);
    weights.tensors.remove("fc.bias");
    weights.tensors.remove("bn1.running_var");
    let array = Array {
        shape: vec![1, 2],
        values: vec![0.0; 2],
    };
    weights.tensors.insert("fc.weight".into(), array);
    let misfits = |require| match weights.fit(&graph, require) {
        Err(WeightsError::Mismatch(misfits)) => misfits,
        other => panic!("{other:?}"),
    };
    let missing = |name: &str| Misfit::Missing { name: name.into() };
    let all = misfits(Require::Everything);
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(all.contains(&missing("fc.bias")) && all.contains(&missing("bn1.running_var")));
    let shape = Misfit::Shape {
        name: "fc.weight".into(),
        expected: vec![10, 64],
        found: vec![1, 2],
    };
    assert!(all.contains(&shape));
    assert!(!misfits(Require::Parameters).contains(&missing("bn1.running_var")));
    let text = WeightsError::Mismatch(all).to_string();
    assert!(text.contains("fc.bias is missing"), "{text}");
}

#[test]
fn files_that_are_not_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    assert!(matches!(
        Weights::read(&path),
        Err(WeightsError::Io { verb: "read", .. })
    ));
    std::fs::write(&path, b"\xff\xff\xff\xff\xff\xff\xff\xff{}").unwrap();
    assert!(matches!(
        Weights::read(&path),
        Err(WeightsError::Format { .. })
    ));
    let nowhere = folder.path().join("no/such/folder/w.safetensors");
    let error = weights(&digits()).write(&nowhere).unwrap_err();
    assert!(
        matches!(error, WeightsError::Io { verb: "write", .. }),
        "{error}"
    );
}

#[test]
fn truncated_and_mutated_files_are_refused_or_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let mut small = Weights::default();
    for name in ["a", "b"] {
        small.tensors.insert(
            name.into(),
            Array {
                shape: vec![2],
                values: vec![1.0, 2.0],
            },
        );
    }
    small.notes.insert("step".into(), "7".into());
    small.write(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for length in 0..bytes.len() {
        assert!(
            Weights::from_bytes(&bytes[..length]).is_err(),
            "{length} bytes"
        );
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut mutated = bytes.clone();
            mutated[at] ^= 1 << bit;
            // Either is right; it must not panic.
            let _ = Weights::from_bytes(&mutated);
        }
    }
}
