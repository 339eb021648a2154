//! Running trained models on data: every sample once, the same bits with and without a plan.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::path::Path;

use scrimp::graph::DType;
use scrimp::graph::data::{Array, Arrays, Contents, Saved, save_npz};
use support::{digits, fails, object};
use tempfile::tempdir;

fn save(path: &Path, name: &str, shape: &[usize], values: &[f32]) {
    let array = Saved {
        name: name.into(),
        dtype: DType::F32,
        shape: shape.to_vec(),
        bytes: values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    save_npz(&mut std::fs::File::create(path).unwrap(), &[array]).unwrap();
}

fn read(path: &Path) -> Vec<(String, Array)> {
    Arrays::read(path, 1 << 30).unwrap().0
}

fn floats(array: &Array) -> Vec<f32> {
    match &array.contents {
        Contents::Floats(floats) => floats.clone(),
        Contents::Ints(ints) => ints.iter().map(|&i| i as f32).collect(),
        Contents::Stored(_) => panic!("all is read at once"),
    }
}

#[test]
fn a_trained_model_classifies_every_sample() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (data, weights) = (digits(), at("w.safetensors"));
    let trained = object(&[
        "train",
        "digits",
        "--data",
        &data,
        "--budget",
        "80%",
        "--steps",
        "300",
        "--save",
        &weights,
        "--time-limit",
        "1",
    ]);
    let all = read(Path::new(&data));
    let array = |name: &str| &all.iter().find(|(found, _)| found == name).unwrap().1;
    let (x, y) = (array("x_test"), array("y_test"));
    // Fewer samples than whole batches take.
    let (count, sample) = (x.shape[0] - 3, x.shape[1..].iter().product::<usize>());
    let shape = [&[count], &x.shape[1..]].concat();
    save(
        Path::new(&at("x.npz")),
        "images",
        &shape,
        &floats(x)[..count * sample],
    );
    let outcome = |batch: &str, budget: &str| {
        let ran = object(&[
            "run",
            "digits",
            "--weights",
            &weights,
            "--inputs",
            &at("x.npz"),
            "--outputs",
            &at("y.npz"),
            "--batch",
            batch,
            "--budget",
            budget,
            "--compare",
        ]);
        assert_eq!(ran["bit_identical"], true, "{}", ran["first_difference"]);
        assert_eq!(ran["samples"], count);
        assert!(ran["allocated_bytes"].as_u64() <= ran["budget_bytes"].as_u64());
        let outputs = read(Path::new(&at("y.npz")));
        assert_eq!(outputs[0].1.shape, [count, 10]);
        floats(&outputs[0].1)
    };
    let logits = outcome("16", "min");
    assert_eq!(logits.len(), count * 10);
    let Contents::Ints(labels) = &y.contents else {
        panic!("labels are integers");
    };
    let best = |row: &[f32]| (0..10).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as i64;
    let right = logits
        .chunks(10)
        .zip(labels)
        .filter(|(row, label)| best(row) == **label)
        .count();
    let accuracy = right as f64 / count as f64;
    assert!(
        (accuracy - trained["test_accuracy"].as_f64().unwrap()).abs() < 0.01,
        "{accuracy}"
    );
    // Kernels sum in an order that may depend on the batch.
    for (a, b) in logits.iter().zip(outcome("1", "100%")) {
        assert!((a - b).abs() < 1e-3, "{a} {b}");
    }
}

#[test]
fn weights_wait_in_a_file() {
    let folder = tempdir().unwrap();
    let ran = |swap: &[&str]| {
        let run = [
            "run",
            "digits",
            "--budget",
            "min",
            "--time-limit",
            "1",
            "--compare",
        ];
        let ran = object(&[&run, swap].concat());
        assert_eq!(ran["bit_identical"], true, "{}", ran["first_difference"]);
        assert_eq!(ran["allocated_bytes"], ran["budget_bytes"]);
        [&ran["allocated_bytes"], &ran["swapped_bytes"]].map(|bytes| bytes.as_u64().unwrap())
    };
    let file = format!("disk:{}=1GB@1GB/s", folder.path().display());
    let (alone, swapped) = (ran(&[]), ran(&["--swap", &file]));
    assert_eq!(alone[1], 0);
    assert!(swapped[0] < alone[0] / 2, "{swapped:?} {alone:?}");
    assert!(swapped[1] > 0);
}

#[test]
fn inputs_that_do_not_fit_are_told() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x.npz");
    let run = |more: &[&str]| {
        let inputs = path.to_str().unwrap();
        fails(3, &[&["run", "digits", "--inputs", inputs], more].concat())
    };
    save(&path, "x", &[4, 1, 8, 7], &[0.0; 224]);
    let told = run(&[]);
    assert!(
        told.contains("x.npz: array x has shape [4, 1, 8, 7]") && told.contains("counts samples"),
        "{told}"
    );
    save(&path, "x", &[0, 1, 8, 8], &[]);
    assert!(run(&[]).contains("no samples"));
    std::fs::write(&path, b"PK").unwrap();
    assert!(run(&[]).contains("not an npz file"));
}
