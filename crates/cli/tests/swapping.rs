//! `train --swap`: the same bits, and what goes wrong with a file ends the run with a sentence and leaves nothing
//! behind.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{complaint, digits, fails, listing, object};
use tempfile::tempdir;

const TRAIN: [&str; 12] = [
    "train",
    "digits",
    "--batch",
    "8",
    "--costs",
    "static",
    "--time-limit",
    "1s",
    "--threads",
    "1",
    "--library",
    "native",
];

const BUDGET: &str = "800KB";

/// A file in the folder, at a stated speed.
fn disk(folder: &Path) -> String {
    format!("disk:{}=1GiB@2GB/s", folder.display())
}

#[test]
fn a_run_that_swaps_has_the_same_bits_and_needs_less() {
    let (folder, data) = (tempdir().unwrap(), digits());
    let run = |budget: &str, swap: &[&str]| {
        let more = [
            "--budget",
            budget,
            "--steps",
            "3",
            "--compare",
            "--data",
            &data,
        ];
        object(&[&TRAIN[..], &more, swap].concat())
    };
    let without = run("100%", &[]);
    let below = without["floor_bytes"].as_u64().unwrap();
    assert!(below > 800_000, "no plan without swapping fits");
    for swap in [disk(folder.path()), "ram=1GiB@5GB/s".to_owned()] {
        let with = run(BUDGET, &["--swap", &swap]);
        assert_eq!(with["bit_identical"], true, "{swap}");
        assert_eq!(with["losses"], without["losses"], "{swap}");
        let peak = |run: &serde_json::Value| run["peak_bytes"].as_u64().unwrap();
        assert!(peak(&with) <= 800_000, "{swap}");
        assert!(with["swapped_bytes"].as_u64().unwrap() > 0);
        let allocated = with["allocated_bytes"].as_u64().unwrap();
        assert!(allocated <= with["budget_bytes"].as_u64().unwrap());
    }
    assert!(listing(folder.path()).is_empty(), "the file has no name");
}

#[test]
fn a_plan_whose_weights_live_elsewhere_is_used_again() {
    let folder = tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let plan = plan.to_str().unwrap();
    let run = |more: &[&str]| {
        // No search is made for a plan that is given.
        let usual = TRAIN
            .iter()
            .filter(|&&arg| !["--time-limit", "1s"].contains(&arg));
        let usual: Vec<&str> = usual.copied().collect();
        let swap = [
            "--budget",
            BUDGET,
            "--steps",
            "2",
            "--swap",
            "ram=1GiB@5GB/s",
        ];
        object(&[&usual[..], &swap, more].concat())
    };
    let made = run(&["--time-limit", "1s", "--plan-out", plan]);
    let used = run(&["--plan", plan]);
    assert_eq!(used["method"], "given");
    for key in ["losses", "peak_bytes", "swapped_bytes", "makespan"] {
        assert_eq!(made[key], used[key], "{key}");
    }
}

#[test]
fn a_budget_above_the_least_is_met_beside_a_small_memory() {
    // A cheap plan fills this memory with weights, and then neither what it copies there nor the device packs.
    let plan = |budget: &str| {
        let args = [
            "plan",
            "digits",
            "--batch",
            "8",
            "--costs",
            "static",
            "--swap",
            "ram=200KB@5GB/s",
            "--time-limit",
            "2s",
            "--budget",
            budget,
        ];
        object(&args)
    };
    let bytes = |plan: &serde_json::Value| plan["arena_bytes"].as_u64().unwrap();
    let least = bytes(&plan("min"));
    for part in [10, 20] {
        let budget = least + least / part;
        assert!(bytes(&plan(&budget.to_string())) <= budget);
    }
}

#[test]
fn what_can_hold_no_file_is_refused_before_the_first_step() {
    let folder = tempdir().unwrap();
    let none = disk(&folder.path().join("none"));
    let args = ["--budget", BUDGET, "--steps", "1", "--swap", &none];
    let told = fails(8, &[&TRAIN[..], &args].concat());
    assert!(told.contains("can't hold a file"), "{told}");
}

/// Starts a long run that swaps to a file in the folder and saves its weights, and waits for the file. One of no
/// bytes only tries what the folder can do.
fn begun(folder: &Path, save: &Path) -> (Child, File) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("scrimp"));
    let swap = disk(folder);
    let args = [
        "--budget", BUDGET, "--steps", "1000000", "--swap", &swap, "--save",
    ];
    command.args([&TRAIN[..], &args].concat()).arg(save);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let started = Instant::now();
    let files = format!("/proc/{}/fd", child.id());
    while started.elapsed() < Duration::from_secs(60) {
        let open = fs::read_dir(&files).into_iter().flatten().flatten();
        let in_folder = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(folder))
        };
        let swap = open
            .filter(in_folder)
            .filter_map(|entry| File::options().write(true).open(entry.path()).ok())
            .find(|file| file.metadata().is_ok_and(|what| what.len() > 0));
        if let Some(file) = swap {
            return (child, file);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    panic!("there is no file: {:?}", child.wait());
}

/// Weights that a run saved before.
fn saved(save: &Path) -> Vec<u8> {
    let path = save.to_str().unwrap();
    object(
        &[
            &TRAIN[..],
            &["--budget", "100%", "--steps", "1", "--save", path],
        ]
        .concat(),
    );
    fs::read(save).unwrap()
}

#[test]
fn a_file_that_shrinks_ends_the_run() {
    let (folder, other) = (tempdir().unwrap(), tempdir().unwrap());
    let save = other.path().join("w.safetensors");
    let before = saved(&save);
    let (mut child, file) = begun(folder.path(), &save);
    // A file that is shortened before anything was written to it loses nothing, so it is shortened again.
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("the run goes on: {:?}", child.wait_with_output());
        }
        file.set_len(0).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(8));
    let told = complaint(&output);
    assert!(
        told.contains("the swap file") && told.contains("ends"),
        "{told}"
    );
    assert_eq!(
        fs::read(&save).unwrap(),
        before,
        "the weights saved before stay"
    );
    assert!(listing(folder.path()).is_empty());
    assert_eq!(listing(other.path()), ["w.safetensors"]);
}

#[test]
fn a_killed_run_leaves_nothing_behind() {
    let (folder, other) = (tempdir().unwrap(), tempdir().unwrap());
    let save = other.path().join("w.safetensors");
    let before = saved(&save);
    let (mut child, _) = begun(folder.path(), &save);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(listing(folder.path()).is_empty());
    assert_eq!(fs::read(&save).unwrap(), before);
}
