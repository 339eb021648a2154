//! Plans of every published instance pass the checker. Runs where `SCRIMP_INSTANCES` names a folder.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(clippy::print_stdout, reason = "a test says that it was skipped")]

mod support;

use std::path::Path;

use support::{object, scrimp};
use tempfile::tempdir;

fn instances(folder: &str) -> Vec<String> {
    let Some(root) = std::env::var_os("SCRIMP_INSTANCES") else {
        println!("skipped: SCRIMP_INSTANCES isn't set");
        return Vec::new();
    };
    let entries = std::fs::read_dir(Path::new(&root).join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path().display().to_string());
    let mut paths: Vec<String> = paths.filter(|path| path.ends_with(".json")).collect();
    paths.sort();
    paths
}

#[test]
fn published_graphs() {
    // The large random graphs take the planner's own tests long enough.
    let small = |path: &String| !path.contains("rlg_G3") && !path.contains("rlg_G4");
    let folder = tempdir().unwrap();
    let (plan, problem) = (
        folder.path().join("plan.json"),
        folder.path().join("problem.json"),
    );
    let (plan, problem) = (plan.to_str().unwrap(), problem.to_str().unwrap());
    for instance in ["moccasin", "linear"]
        .into_iter()
        .flat_map(instances)
        .filter(small)
    {
        let limit = [
            "--budget",
            "90%",
            "--time-limit",
            "1",
            "-o",
            plan,
            "--problem-out",
            problem,
        ];
        let planned = object(&[&["plan", &instance][..], &limit].concat());
        assert!(
            planned["peak_bytes"].as_u64() <= planned["budget_bytes"].as_u64(),
            "{instance}"
        );
        assert_eq!(
            object(&["check", problem, plan])["cost"],
            planned["cost"],
            "{instance}"
        );
        assert_eq!(
            object(&["check", &instance, plan])["valid"],
            true,
            "{instance}"
        );
    }
}

#[test]
fn allocations() {
    for instance in instances("allocation") {
        // How tightly they pack is for the placement's own tests; here it is that all are read and
        // that every packing is checked.
        let output = scrimp(&["place", &instance, "--capacity", "10GiB", "--json"]);
        assert!(
            output.status.success(),
            "{instance}: {}",
            support::complaint(&output)
        );
    }
}

#[test]
fn a_foreign_onnx_file_trains() {
    let Some(root) = std::env::var_os("SCRIMP_INSTANCES") else {
        println!("skipped: SCRIMP_INSTANCES isn't set");
        return;
    };
    let lenet = Path::new(&root).join("xengine/lenet_bs64.onnx");
    let lenet = lenet.to_str().unwrap();
    let run = [
        "train",
        lenet,
        "--budget",
        "min",
        "--steps",
        "2",
        "--time-limit",
        "1",
        "--compare",
    ];
    assert_eq!(object(&run)["bit_identical"], true);
}

/// Solver libraries may write to standard output by themselves; what `--json` prints is one object.
#[test]
fn exact_methods_print_one_object() {
    let folder = tempdir().unwrap();
    let path = support::instance(folder.path(), |_| {});
    let path = path.to_str().unwrap();
    for method in ["checkmate", "checkmate-rounding", "moccasin", "exact"] {
        let asked = [
            "plan", path, "--budget", "90%", "--method", method, "--json",
        ];
        let output = scrimp(&asked);
        let printed: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{method}: {error}: {}", support::text(&output)));
        match output.status.success() {
            true => assert_eq!(printed["method"], method),
            false => println!("{method}: {}", printed["error"]["message"]),
        }
    }
}
