//! Limits on memory that the operating system puts on the process: they are seen, and what is needed is taken before
//! the first step.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::tempdir;

/// Runs the command with so many bytes of address space.
fn limited(bytes: u64, args: &[&str]) -> Output {
    Command::new("sh")
        .args([
            "-c",
            &format!("ulimit -v {} && exec \"$0\" \"$@\"", bytes / 1024),
        ])
        .arg(assert_cmd::cargo::cargo_bin("scrimp"))
        .args(args)
        .env("SCRIMP_CACHE", support::cache())
        .output()
        .unwrap()
}

/// Adam keeps twice as much state as there are weights, and of this network weights are nearly everything.
const TRAIN: &[&str] = &[
    "train",
    "resnet34",
    "--batch",
    "1",
    "--image",
    "32",
    "--optimizer",
    "adam",
    "--costs",
    "static",
    "--budget",
    "100%",
    "--steps",
    "1",
    "--threads",
    "1",
    "--library",
    "native",
    "--json",
];

#[test]
fn the_limit_on_address_space_is_seen() {
    let limit = 2 << 30;
    let output = limited(limit, &["doctor", "--threads", "1", "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["memory_bytes"].as_u64(), Some(limit));
    assert!(found["available_bytes"].as_u64().unwrap() < limit);
}

#[test]
fn too_small_an_address_space_is_an_error_before_the_first_step() {
    // A thread that happens to start takes 64 MiB of address space for its heap: either way too little is left.
    let output = limited(320 << 20, TRAIN);
    let complaint = support::complaint(&output);
    assert_eq!(output.status.code(), Some(8), "{complaint}");
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(error["error"]["needed_bytes"].as_u64() > error["error"]["available_bytes"].as_u64());
}

#[test]
fn weights_are_saved_and_read_without_memory_for_them() {
    let folder = tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    let run = support::object(&[&TRAIN[..TRAIN.len() - 1], &["--save", first]].concat());
    let saved = std::fs::metadata(first).unwrap().len();
    // The program and its threads have more than half of the file's size to themselves, but not all of it.
    let limit = run["allocated_bytes"].as_u64().unwrap() + saved;
    let output = limited(limit, &[TRAIN, &["--save", second]].concat());
    assert!(output.status.success(), "{}", support::complaint(&output));
    assert!(std::fs::read(first).unwrap() == std::fs::read(second).unwrap());
    let output = limited(
        limit,
        &[TRAIN, &["--resume", first, "--save", second]].concat(),
    );
    assert!(output.status.success(), "{}", support::complaint(&output));
    let resumed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(resumed["steps_done"], 2);
}

/// Without a plan a step needs nearly twice the budget. If the process never held as much, then costs
/// were measured within the budget too.
#[test]
fn the_budget_holds_while_costs_are_measured() {
    let args = "train mobilenet --batch 16 --image 64 --budget 40% --steps 1 --time-limit 2s \
                --costs measured --fresh-costs --threads 1 --library native";
    let run = support::object(&args.split_whitespace().collect::<Vec<_>>());
    let number = |key: &str| run[key].as_u64().unwrap();
    assert!(number("budget_bytes") * 3 < number("base_peak_bytes") * 2);
    assert!(number("process_peak_bytes") < number("base_peak_bytes"));
}
