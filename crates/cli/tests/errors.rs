//! Bad input of every kind: each a sentence that names what is wrong, an exit code, and no file left.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::path::Path;

use serde_json::{Value, json};
use support::{fails, instance, listing, node, object, onnx, scrimp, tiny, write};
use tempfile::tempdir;

fn plan(path: &Path) -> Vec<String> {
    ["plan", path.to_str().unwrap(), "--budget", "80%"]
        .map(str::to_owned)
        .to_vec()
}

fn plan_fails(code: i32, path: &Path, expected: &str) {
    let args = plan(path);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let sentence = fails(code, &args);
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(
        sentence.contains(expected),
        "{sentence:?} doesn't say {expected:?}"
    );
    assert!(
        sentence.contains(name),
        "{sentence:?} doesn't name {name:?}"
    );
}

#[test]
fn a_tiny_model_is_fine() {
    let folder = tempdir().unwrap();
    let model = write(folder.path(), "tiny.onnx", &tiny());
    let summary = object(&["inspect", model.to_str().unwrap()]);
    assert_eq!(summary["parameters"], 12);
    let run = object(&[
        "train",
        model.to_str().unwrap(),
        "--budget",
        "100%",
        "--steps",
        "2",
    ]);
    assert_eq!(run["losses"].as_array().unwrap().len(), 2);
}

#[test]
fn truncated_onnx_files() {
    let folder = tempdir().unwrap();
    let whole = tiny();
    for length in 0..whole.len() {
        let path = write(folder.path(), "cut.onnx", &whole[..length]);
        let output = scrimp(&["inspect", path.to_str().unwrap()]);
        let sentence = support::complaint(&output);
        assert!(!sentence.contains("panicked"), "{length} bytes: {sentence}");
        if length % 16 == 0 {
            plan_fails(3, &path, "");
        }
    }
}

#[test]
fn random_bytes() {
    let folder = tempdir().unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for size in [1usize, 10, 100, 1000, 10_000] {
        let bytes: Vec<u8> = (0..size)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        plan_fails(3, &write(folder.path(), "random.onnx", &bytes), "");
        plan_fails(
            3,
            &write(folder.path(), "random.json", &[b"{", &bytes[..]].concat()),
            "",
        );
    }
}

#[test]
fn onnx_graphs_that_make_no_sense() {
    let folder = tempdir().unwrap();
    let cycle = onnx(&[
        node("Add", &["x", "b"], "a"),
        node("Relu", &["a"], "b"),
        node("Relu", &["b"], "y"),
    ]);
    plan_fails(3, &write(folder.path(), "cycle.onnx", &cycle), "cycl");
    let unknown = onnx(&[node("Frobnicate", &["x"], "y")]);
    plan_fails(
        3,
        &write(folder.path(), "unknown.onnx", &unknown),
        "Frobnicate",
    );
    let missing = onnx(&[node("Relu", &["nowhere"], "y")]);
    plan_fails(
        3,
        &write(folder.path(), "missing.onnx", &missing),
        "nowhere",
    );
}

#[test]
fn instances_that_make_no_sense() {
    let folder = tempdir().unwrap();
    let spoil =
        |what: &str, value: Value| instance(folder.path(), |file| file["nodes"][1][what] = value);
    plan_fails(3, &spoil("cost", json!(-1.0)), "cost");
    plan_fails(3, &spoil("memory", json!(-1)), "memory");
    plan_fails(3, &spoil("memory", json!(1.5e19)), "memory");
    plan_fails(3, &spoil("memory", json!(u64::MAX)), "");
    plan_fails(3, &spoil("cost", json!(null)), "");
    let text = std::fs::read_to_string(instance(folder.path(), |_| {})).unwrap();
    for not_a_number in ["NaN", "Infinity", "1e999"] {
        let text = text.replacen("2.0", not_a_number, 1);
        plan_fails(3, &write(folder.path(), "nan.json", text.as_bytes()), "");
    }
    plan_fails(
        3,
        &instance(folder.path(), |file| {
            file["edges"] = json!([[0, 1], [1, 0]])
        }),
        "cycle",
    );
    plan_fails(
        3,
        &instance(folder.path(), |file| file["edges"] = json!([[0, 9]])),
        "9",
    );
    plan_fails(3, &write(folder.path(), "empty.json", b"{}"), "");
    let deep = "[".repeat(100_000);
    let deep = format!("{{\"nodes\":{deep}");
    plan_fails(3, &write(folder.path(), "deep.json", deep.as_bytes()), "");
}

#[test]
fn budgets_that_nothing_meets() {
    let folder = tempdir().unwrap();
    let path = instance(folder.path(), |_| {});
    let path = path.to_str().unwrap();
    for budget in ["0", "5"] {
        let sentence = fails(4, &["plan", path, "--budget", budget]);
        assert!(
            sentence.contains("least budget a plan was found for is 21"),
            "{sentence}"
        );
    }
    let output = scrimp(&["plan", path, "--budget", "0", "--json"]);
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(error["error"]["least_found_bytes"], 21);
    assert!(error["error"]["floor_bytes"].as_u64().unwrap() <= 21);
    fails(
        4,
        &[
            "train", "digits", "--batch", "4", "--budget", "1000", "--steps", "1", "--costs",
            "static",
        ],
    );
}

#[test]
fn unknown_names_and_values() {
    assert!(fails(2, &["plan", "no-such-net", "--budget", "50%"]).contains("no-such-net"));
    assert!(
        fails(
            2,
            &["plan", "digits", "--budget", "50%", "--method", "magic"]
        )
        .contains("magic")
    );
    assert!(fails(2, &["plan", "digits", "--budget", "lots"]).contains("lots"));
    assert!(fails(2, &["plan", "digits", "--budget", "-5"]).contains("-5"));
    assert!(fails(2, &["plan", "digits", "--budget", "50%", "--batch", "0"]).contains("0"));
    assert!(fails(2, &["plan", "digits", "--budget", "50%", "--layers", "3"]).contains("layers"));
    assert!(
        fails(
            2,
            &[
                "train", "digits", "--budget", "50%", "--steps", "1", "--lr", "NaN"
            ]
        )
        .contains("NaN")
    );
    assert!(fails(2, &["man", "nothing"]).contains("nothing"));
    fails(2, &["plan", "digits"]);
    // A file that isn't there matters more than the budget that a file may have.
    assert!(fails(2, &["plan", "no/such.json"]).contains("no/such.json"));
}

#[test]
fn sizes_that_overflow() {
    fails(
        2,
        &[
            "plan", "vgg16", "--budget", "50%", "--batch", "16777216", "--image", "65536",
        ],
    );
}

#[test]
fn outputs_that_cant_be_written_are_found_before_the_work() {
    let folder = tempdir().unwrap();
    let path = instance(folder.path(), |_| {});
    let path = path.to_str().unwrap();
    for flag in ["--output", "--problem-out", "--report", "--trace"] {
        let nowhere = folder.path().join("no/such/folder/out");
        // The budget is wrong too: the output is looked at first.
        let sentence = fails(
            6,
            &[
                "plan",
                path,
                "--budget",
                "0",
                flag,
                nowhere.to_str().unwrap(),
            ],
        );
        assert!(sentence.contains("no/such/folder/out"), "{sentence}");
        fails(
            6,
            &[
                "plan",
                path,
                "--budget",
                "0",
                flag,
                folder.path().to_str().unwrap(),
            ],
        );
    }
    let nowhere = folder.path().join("no/such/folder/w.safetensors");
    let args = [
        "train",
        "digits",
        "--budget",
        "50%",
        "--steps",
        "1",
        "--save",
        nowhere.to_str().unwrap(),
    ];
    fails(6, &args);
    assert_eq!(listing(folder.path()), ["instance.json"]);
}

#[test]
fn a_failed_plan_leaves_no_file() {
    let folder = tempdir().unwrap();
    let path = instance(folder.path(), |_| {});
    let plan = folder.path().join("plan.json");
    fails(
        4,
        &[
            "plan",
            path.to_str().unwrap(),
            "--budget",
            "5",
            "-o",
            plan.to_str().unwrap(),
        ],
    );
    assert_eq!(listing(folder.path()), ["instance.json"]);
}

#[test]
fn bad_data_and_weights() {
    let folder = tempdir().unwrap();
    let junk = write(folder.path(), "junk.npz", b"PK\x03\x04 not really");
    let junk = junk.to_str().unwrap();
    let train = ["train", "digits", "--budget", "50%", "--steps", "1"];
    let with = |more: &[&'static str], path: &str| {
        let args: Vec<String> = train
            .iter()
            .chain(more)
            .map(|s| (*s).to_owned())
            .chain([path.to_owned()])
            .collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        fails(3, &args)
    };
    assert!(with(&["--data"], junk).contains("junk.npz"));
    assert!(with(&["--resume"], junk).contains("junk.npz"));
    assert!(with(&["--plan"], junk).contains("junk.npz"));
    assert!(with(&["--data"], "absent.npz").contains("absent.npz"));
}

#[test]
fn plans_for_other_problems_and_wrong_plans() {
    let folder = tempdir().unwrap();
    let path = instance(folder.path(), |_| {});
    let plan = folder.path().join("plan.json");
    let (path, plan) = (path.to_str().unwrap(), plan.to_str().unwrap());
    object(&["plan", path, "--budget", "100%", "-o", plan]);
    assert_eq!(object(&["check", path, plan])["valid"], true);
    assert!(fails(5, &["check", path, plan, "--budget", "22"]).contains("22"));
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(plan).unwrap()).unwrap();
    file["steps"].as_array_mut().unwrap().remove(0);
    let wrong = write(folder.path(), "wrong.json", file.to_string().as_bytes());
    let output = scrimp(&["check", path, wrong.to_str().unwrap(), "--json"]);
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert!(!error["error"]["violations"].as_array().unwrap().is_empty());
    let other = tempdir().unwrap();
    let other = instance(other.path(), |file| file["nodes"][0]["memory"] = json!(11));
    assert!(fails(3, &["check", other.to_str().unwrap(), plan]).contains("fingerprint"));
}

/// A file can't write to the terminal as it likes; `--json` has its names as they are.
#[test]
fn control_characters_are_spelled_out() {
    let folder = tempdir().unwrap();
    let hostile = "\u{1b}[31mred";
    let path = write(
        folder.path(),
        "tiny.onnx",
        &onnx(&[node(hostile, &["x"], "y")]),
    );
    let args = ["inspect", path.to_str().unwrap()];
    let sentence = fails(3, &args);
    assert!(sentence.contains("\\x1b[31mred"), "{sentence}");
    assert!(!sentence.contains('\u{1b}'), "{sentence}");
    let error: Value =
        serde_json::from_slice(&scrimp(&[&args[..], &["--json"]].concat()).stdout).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains(hostile), "{message}");
}

#[test]
fn sizes_beyond_all_bounds() {
    let sentence = fails(2, &["inspect", "transformer", "--layers", "1000000"]);
    assert!(
        sentence.contains("layers") && sentence.contains("4096"),
        "{sentence}"
    );
    let folder = tempdir().unwrap();
    let buffers = json!({
        "name": "huge", "kind": "allocation", "published": {}, "stats": {},
        "buffer_fields": ["id", "lower", "upper", "size"],
        "buffers": [["a", 0, 2, u64::MAX - 10], ["b", 1, 3, 20]],
    });
    let path = write(folder.path(), "huge.json", buffers.to_string().as_bytes());
    let sentence = fails(3, &["place", path.to_str().unwrap()]);
    assert!(sentence.contains("buffer 1"), "{sentence}");
}
