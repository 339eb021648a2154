//! Gradients of whole networks against PyTorch. Runs where the Python named by `SCRIMP_PYTHON` (or
//! `python3`) can import torch, and says so where it can't.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that reports whether it ran"
)]

mod common;

use common::network;
use scrimp_graph::networks::NetworkOptions;
use scrimp_graph::{DType, Graph, Loss, Role, train};
use scrimp_run::{Compiled, Cpu, Data, Processor, interpret};
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

fn python() -> Option<String> {
    let python = std::env::var("SCRIMP_PYTHON").unwrap_or_else(|_| "python3".into());
    let torch = Command::new(&python).args(["-c", "import torch"]).output();
    match torch {
        Ok(output) if output.status.success() => Some(python),
        _ => {
            println!("skipped: {python} can't import torch; set SCRIMP_PYTHON to one that can");
            None
        }
    }
}

/// The options of the networks as tests/pytorch.py expects them.
fn graphs() -> [(&'static str, Graph); 3] {
    let none = NetworkOptions {
        batch: 2,
        ..NetworkOptions::default()
    };
    let resnet = NetworkOptions {
        image: Some([64, 48]),
        classes: Some(10),
        ..none.clone()
    };
    let unet = NetworkOptions {
        image: Some([16, 24]),
        classes: Some(10),
        width: Some(12),
        ..none.clone()
    };
    let transformer = NetworkOptions {
        layers: Some(2),
        width: Some(32),
        heads: Some(4),
        sequence: Some(24),
        vocabulary: Some(50),
        dropout: Some(0.0),
        ..none
    };
    [
        ("resnet18", network("resnet18", resnet)),
        ("unet", network("unet", unet)),
        ("transformer", network("transformer", transformer)),
    ]
}

#[test]
fn gradients_of_whole_networks_agree_with_pytorch() {
    let Some(python) = python() else { return };
    for (name, graph) in graphs() {
        // In 64 bits differences are rounding alone; in 32 bits they show the usual noise.
        for (float, tolerance) in [(DType::F64, 1e-9), (DType::F32, 1e-3)] {
            let worst = compare(&python, name, graph.clone().with_float(float));
            println!("{name} in {float:?}: largest relative difference {worst:.1e}");
            assert!(worst < tolerance, "{name} in {float:?}: {worst:e}");
        }
    }
}

/// The largest difference of a gradient (or the loss), relative to that tensor's norm.
fn compare(python: &str, name: &str, graph: Graph) -> f64 {
    let training = train(&graph, Loss::CrossEntropy, None).unwrap();
    let graph = &training.graph;
    let mut ints = HashMap::new();
    let mut floats = HashMap::new();
    for (id, tensor) in graph
        .given()
        .filter(|(_, tensor)| tensor.role == Role::Input)
    {
        let count = tensor.elements();
        match tensor.dtype {
            DType::I64 => drop(ints.insert(
                id,
                (0..count).map(|i| (i * 7 % 10) as i64).collect::<Vec<_>>(),
            )),
            _ => drop(
                floats.insert(
                    id,
                    (0..count)
                        .map(|i| (i * 7919 % 1009) as f32 / 504.0 - 1.0)
                        .collect::<Vec<_>>(),
                ),
            ),
        }
    }
    let mut inputs: Vec<_> = ints
        .iter()
        .map(|(&id, data)| (id, Data::I64(data)))
        .collect();
    inputs.extend(floats.iter().map(|(&id, data)| (id, Data::F32(data))));
    let cpu = Cpu::new(2).unwrap();
    let tensors = interpret(&Compiled::new(graph, Processor::Cpu(&cpu)), &inputs, 3).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let (mut index, mut data) = (String::new(), Vec::new());
    for (id, tensor) in graph.given() {
        if matches!(tensor.role, Role::Parameter(_) | Role::Input) {
            let dtype = format!("{:?}", tensor.dtype).to_lowercase();
            let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            writeln!(
                index,
                "{} {dtype} {} {}",
                tensor.name,
                shape.join(","),
                data.len()
            )
            .unwrap();
            data.extend_from_slice(tensors.bytes(id));
            data.resize(data.len().next_multiple_of(8), 0);
        }
    }
    std::fs::write(folder.path().join("in.txt"), index).unwrap();
    std::fs::write(folder.path().join("in.bin"), data).unwrap();
    let script = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("tests/pytorch.py");
    let output = Command::new(python)
        .arg(script)
        .arg(name)
        .arg(folder.path())
        .env("OMP_NUM_THREADS", "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let expected = read(folder.path());
    let mut ours = vec![("loss".to_owned(), training.loss)];
    let names = training
        .gradients
        .iter()
        .map(|&(param, grad)| (graph.tensor(param).name.clone(), grad));
    ours.extend(names);
    assert_eq!(ours.len(), expected.len(), "every parameter has a gradient");
    let difference = |(name, id): &(String, _)| {
        let (ours, theirs) = (tensors.floats(graph, *id), &expected[name]);
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let norm = theirs.iter().map(|x| x * x).sum::<f64>().sqrt();
        let apart = ours
            .iter()
            .zip(theirs)
            .map(|(a, b)| (a - b) * (a - b))
            .sum::<f64>()
            .sqrt();
        (name.clone(), apart, norm)
    };
    let all: Vec<_> = ours.iter().map(difference).collect();
    let largest = all.iter().map(|&(_, _, norm)| norm).fold(0.0, f64::max);
    // A gradient that is zero but for rounding (a bias before a normalization) has no relative error.
    all.iter()
        .map(|(_, apart, norm)| apart / norm.max(1e-4 * largest))
        .fold(0.0, f64::max)
}

fn read(folder: &Path) -> HashMap<String, Vec<f64>> {
    let index = std::fs::read_to_string(folder.join("out.txt")).unwrap();
    let data = std::fs::read(folder.join("out.bin")).unwrap();
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let count: usize = fields[2]
            .split(',')
            .filter(|n| !n.is_empty())
            .map(|n| n.parse::<usize>().unwrap())
            .product();
        let offset: usize = fields[3].parse().unwrap();
        let bytes = &data[offset..offset + 8 * count];
        let floats = bytes
            .chunks_exact(8)
            .map(|x| f64::from_le_bytes(x.try_into().unwrap()));
        (fields[0].to_owned(), floats.collect())
    };
    index.lines().map(parse).collect()
}
