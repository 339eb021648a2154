//! ONNX's own single-node tests: every model is imported and run, and its outputs compared with those
//! that come with it. What isn't supported must be refused by name; nothing may go wrong.
//!
//! The tests are not part of this project. `SCRIMP_INSTANCES` names a folder that has them as
//! `onnx/*.tar.xz`: an archive of folders with `model.onnx` and `test_data_set_0`.
//!
//! docs/onnx.md has a table of what was found. With `SCRIMP_UPDATE` set the test writes it, else it compares.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "says what was skipped and what was found"
)]

mod common;

use common::gpus;
use prost::Message;
use scrimp_graph::onnx::{self, Data as Contents, ImportOptions, Literal, OnnxError, proto};
use scrimp_graph::{DType, Graph, TensorId, inference};
use scrimp_run::{Compiled, Cpu, Data, Processor, interpret};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Relative to the expected value; ONNX's own for f32.
const RELATIVE: f64 = 1e-3;
/// For expected values near 0.
const ABSOLUTE: f64 = 1e-5;

/// Tests whose expected outputs depend on ONNX's own random numbers.
const RANDOM: [&str; 4] = [
    "test_training_dropout",
    "test_training_dropout_default",
    "test_training_dropout_mask",
    "test_training_dropout_default_mask",
];

/// How a test went.
enum Verdict {
    /// The operators of the file.
    Passed(BTreeSet<String>),
    /// The reason that the importer gives.
    Refused(String),
    /// What differs, or what went wrong.
    Failed(String),
}

#[test]
fn single_node_models_give_the_expected_outputs() {
    let Some(instances) = std::env::var_os("SCRIMP_INSTANCES").map(PathBuf::from) else {
        println!("skipped: SCRIMP_INSTANCES is not set");
        return;
    };
    let unpacked = tempfile::tempdir().unwrap();
    for archive in archives(&instances.join("onnx")) {
        let mut tar = Command::new("tar");
        let tar = tar.arg("xJf").arg(&archive).arg("-C").arg(unpacked.path());
        if !tar.status().is_ok_and(|status| status.success()) {
            println!("skipped: tar can't unpack {}", archive.display());
            return;
        }
    }
    let (cpu, devices) = (Cpu::new(1).unwrap(), Vec::from_iter(gpus()));
    let devices = devices.iter().map(Processor::Gpu);
    let processors: Vec<_> = [Processor::Cpu(&cpu)].into_iter().chain(devices).collect();
    let mut found = Found::default();
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    let mut failed = Vec::new();
    let mut tests = models(unpacked.path());
    tests.retain(|test| !RANDOM.iter().any(|name| test.ends_with(name)));
    for test in &tests {
        match run(&processors, test) {
            Verdict::Passed(operators) => {
                found.passed += 1;
                found.operators.extend(operators);
            }
            Verdict::Refused(reason) => *refused.entry(reason).or_default() += 1,
            Verdict::Failed(reason) => failed.push(format!("{}: {reason}", test.display())),
        }
    }
    let total: usize = refused.values().sum();
    println!(
        "{} tests: {} passed, {total} refused by name",
        tests.len(),
        found.passed
    );
    refused
        .iter()
        .for_each(|(reason, n)| println!("  {n} × {reason}"));
    assert!(
        failed.is_empty(),
        "{} failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
    assert!(found.passed > 0, "no tests in {}", instances.display());
    found.refused = refused;
    agrees_with_the_page(&found.table());
}

/// What docs/onnx.md says of the tests.
#[derive(Default)]
struct Found {
    passed: usize,
    operators: BTreeSet<String>,
    refused: BTreeMap<String, usize>,
}

impl Found {
    fn table(&self) -> String {
        let operators: Vec<&str> = self.operators.iter().map(String::as_str).collect();
        // By the operator, or what else the reason begins with.
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for (reason, count) in &self.refused {
            let name = reason.split(' ').next().unwrap_or_default();
            let name = match name {
                "an" => "empty outputs",
                "input" => "inputs that aren't tensors",
                name => name,
            };
            *reasons.entry(name).or_default() += count;
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
        let reasons = reasons
            .iter()
            .map(|(name, count)| format!("{name} {count}"));
        let refused: usize = self.refused.values().sum();
        format!(
            "| ONNX's node tests | tests | operators |\n|---|---|---|\n\
             | give the expected outputs | {} | {} |\n\
             | are refused by name | {refused} | {} |\n\
             | fail | 0 | |\n",
            self.passed,
            operators.join(", "),
            reasons.collect::<Vec<_>>().join(", "),
        )
    }
}

/// The table between two marks.
fn agrees_with_the_page(table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/onnx.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let marks = ["<!-- conformance -->\n", "<!-- end of conformance -->"];
    let (before, rest) = page.split_once(marks[0]).expect("the first mark");
    let (written, after) = rest.split_once(marks[1]).expect("the second mark");
    if written == table {
        return;
    }
    assert!(
        std::env::var_os("SCRIMP_UPDATE").is_some(),
        "docs/onnx.md has other counts than were found; set SCRIMP_UPDATE=1 to write\n{table}"
    );
    let [first, second] = marks;
    std::fs::write(path, format!("{before}{first}{table}{second}{after}")).unwrap();
}

fn archives(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut found: Vec<PathBuf> = paths
        .filter(|path| path.to_string_lossy().ends_with(".tar.xz"))
        .collect();
    found.sort();
    found
}

/// Folders with a model and data, at any depth.
fn models(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        if folder.join("test_data_set_0").is_dir() {
            found.push(folder);
            continue;
        }
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        open.extend(
            entries
                .map(|entry| entry.path())
                .filter(|path| path.is_dir()),
        );
    }
    found.sort();
    found
}

fn run(processors: &[Processor<'_>], test: &Path) -> Verdict {
    match try_run(processors, test) {
        Ok(operators) => Verdict::Passed(operators),
        Err(verdict) => verdict,
    }
}

fn failed(reason: impl ToString) -> Verdict {
    Verdict::Failed(reason.to_string())
}

fn try_run(processors: &[Processor<'_>], test: &Path) -> Result<BTreeSet<String>, Verdict> {
    let bytes = std::fs::read(test.join("model.onnx")).map_err(failed)?;
    let model = proto::ModelProto::decode(bytes.as_slice()).map_err(failed)?;
    let file = model.graph.ok_or_else(|| failed("no graph"))?;
    let stored: BTreeSet<&str> = file.initializer.iter().map(|t| t.name.as_str()).collect();
    let mut inputs = BTreeMap::new();
    let free = file
        .input
        .iter()
        .filter(|input| !stored.contains(input.name.as_str()));
    for (i, input) in free.enumerate() {
        // A sequence or optional is not a tensor; the import says so.
        if let Ok(literal) = literal(test, "input", i) {
            inputs.insert(input.name.clone(), literal);
        }
    }
    let graph = inference(&import(test, &inputs)?).map_err(failed)?;
    let given = given(&graph, &inputs);
    let mut results = Vec::new();
    for &processor in processors {
        let compiled = Compiled::new(&graph, processor);
        results.push(interpret(&compiled, &given, 0).map_err(failed)?);
    }
    for (i, &output) in graph.outputs().iter().enumerate() {
        let name = file.output.get(i).map_or("", |o| o.name.as_str());
        let Ok(expected) = literal(test, "output", i) else {
            continue;
        };
        let tensor = graph.tensor(output);
        if tensor.shape != expected.shape {
            let shapes = format!("{:?}, expected {:?}", tensor.shape, expected.shape);
            return Err(failed(format!("output {name} has shape {shapes}")));
        }
        for tensors in &results {
            compare(name, &tensors.floats(&graph, output), &expected)?;
        }
    }
    Ok(file.node.into_iter().map(|node| node.op_type).collect())
}

/// Inputs that hold shapes, axes and the like must be known at import: first none is, then all
/// integers are, then all inputs after the first, then all.
fn import(test: &Path, inputs: &BTreeMap<String, Literal>) -> Result<Graph, Verdict> {
    let mut refusal = String::new();
    for attempt in 0..4 {
        let mut options = ImportOptions::default();
        for (i, (name, literal)) in inputs.iter().enumerate() {
            let integer = literal.as_ints().is_some();
            let known = match attempt {
                0 => false,
                1 => integer || literal.is_empty(),
                2 => integer || i > 0 || literal.is_empty(),
                _ => true,
            };
            if known {
                options.known.insert(name.clone(), literal.clone());
            }
        }
        match onnx::import(&test.join("model.onnx"), &options) {
            Ok(graph) => return Ok(graph),
            Err(OnnxError::Unsupported(list)) => refusal = kinds(&list),
            Err(error @ (OnnxError::Input { .. } | OnnxError::Initializer { .. })) => {
                refusal = error.to_string();
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Err(Verdict::Refused(refusal))
}

fn kinds(list: &[onnx::Unsupported]) -> String {
    let named = list.iter().map(|u| match &u.what {
        Some(what) => format!("{} {what}", u.op),
        None => u.op.clone(),
    });
    named
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect::<Vec<_>>()
        .join(", ")
}

fn given<'a>(graph: &Graph, inputs: &'a BTreeMap<String, Literal>) -> Vec<(TensorId, Data<'a>)> {
    let found = graph.given().filter_map(|(id, tensor)| {
        let literal = inputs.get(&tensor.name)?;
        match (&literal.data, tensor.dtype) {
            (Contents::Floats(v), DType::F32) => Some((id, Data::F32(v))),
            (Contents::Ints(v), DType::I64) => Some((id, Data::I64(v))),
            _ => None,
        }
    });
    found.collect()
}

fn literal(test: &Path, side: &str, i: usize) -> Result<Literal, Verdict> {
    let path = test.join(format!("test_data_set_0/{side}_{i}.pb"));
    onnx::read_tensor(std::fs::read(path).map_err(failed)?).map_err(failed)
}

fn compare(name: &str, found: &[f64], expected: &Literal) -> Result<(), Verdict> {
    let expected = expected.to_floats();
    for (i, (&found, expected)) in found.iter().zip(&expected).enumerate() {
        let expected = f64::from(*expected);
        let same = found == expected || found.is_nan() && expected.is_nan();
        let near = (found - expected).abs() <= ABSOLUTE + RELATIVE * expected.abs();
        if !same && !near {
            let values = format!("{found}, expected {expected}");
            return Err(failed(format!("output {name}, element {i} is {values}")));
        }
    }
    Ok(())
}
