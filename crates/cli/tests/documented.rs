//! What is said about the command is true: help as it was reviewed, and every key of `--json` stands
//! in docs/cli.md and the other way round.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use support::{digits, instance, object, papers, scrimp, text, training, write};
use tempfile::tempdir;

const COMMANDS: [&str; 13] = [
    "inspect",
    "plan",
    "check",
    "train",
    "run",
    "sweep",
    "max-batch",
    "place",
    "bench",
    "networks",
    "doctor",
    "completions",
    "man",
];

#[test]
fn help() {
    insta::assert_snapshot!("help", text(&scrimp(&["--help"])));
    for command in COMMANDS {
        let help = text(&scrimp(&[command, "--help"]));
        assert!(help.contains("Examples:"), "{command} has no examples");
        insta::assert_snapshot!(format!("help-{command}"), help);
    }
    let papers = text(&scrimp(&["bench", "papers", "--help"]));
    insta::assert_snapshot!("help-bench-papers", papers);
    let home = text(&scrimp(&["bench", "home", "--help"]));
    insta::assert_snapshot!("help-bench-home", home);
    let devices = text(&scrimp(&["bench", "devices", "--help"]));
    insta::assert_snapshot!("help-bench-devices", devices);
}

#[test]
fn networks_as_a_table() {
    insta::assert_snapshot!("networks", text(&scrimp(&["networks"])));
}

#[test]
fn a_plan_as_a_table() {
    let folder = tempdir().unwrap();
    let path = instance(folder.path(), |_| {});
    let shown = text(&scrimp(&[
        "plan",
        path.to_str().unwrap(),
        "--budget",
        "100%",
    ]));
    let steady: Vec<&str> = shown
        .lines()
        .filter(|line| !line.starts_with("planning took"))
        .collect();
    insta::assert_snapshot!("plan", steady.join("\n"));
}

/// The keys of an object, with those of objects in it after a dot; `[]` stands for list elements.
fn keys(value: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let key = match prefix {
                    "" => key.clone(),
                    // Names of the problem's own, which stand for any.
                    "devices" | "memories" | "measured_devices" => format!("{prefix}.NAME"),
                    "links" => "links.FROM-TO".into(),
                    _ => format!("{prefix}.{key}"),
                };
                if !["devices", "links", "memories", "measured_devices"].contains(&prefix) {
                    found.insert(key.clone());
                }
                keys(value, &key, found);
            }
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| keys(item, &format!("{prefix}[]"), found)),
        _ => {}
    }
}

/// The keys in the table of a section: the first cell of each row, in backquotes.
fn documented(command: &str) -> BTreeSet<String> {
    let path = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../docs/cli.md");
    let page = std::fs::read_to_string(path).unwrap();
    let heading = format!("## scrimp {command}\n");
    let section = page
        .split(&heading)
        .nth(1)
        .unwrap_or_else(|| panic!("docs/cli.md has no {heading}"));
    let section = section.split("\n## ").next().unwrap();
    let cells = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    cells.map(|(key, _)| key.to_owned()).collect()
}

/// Gives an instance a memory to page to, which links lead to and back from.
fn paging(file: &mut Value) {
    for node in file["nodes"].as_array_mut().unwrap() {
        node["runtime_s"] = node["cost"].clone();
    }
    file["chipset"] = json!({
        "PAGEIN_LATENCY": 0.5, "PAGEIN_THROUGHPUT": 2.0, "PAGEOUT_LATENCY": 0.5, "PAGEOUT_THROUGHPUT": 2.0,
        "MEMORY_POWER": 0.25,
    });
}

fn agree(command: &str, args: &[&str]) {
    let mut printed = BTreeSet::new();
    let answer = object(args);
    keys(&answer, "", &mut printed);
    let mut said = documented(command);
    for interface in ["opencl", "cuda"] {
        let devices = answer[interface]["devices"].as_array();
        if devices.is_some_and(Vec::is_empty) {
            said.retain(|key| !key.starts_with(&format!("{interface}.devices[]")));
        }
    }
    if ["train", "run"].contains(&command) {
        said.extend(documented("plan"));
    }
    if command == "run" {
        // One device has no links.
        said.retain(|key| !key.starts_with("links."));
    }
    assert_eq!(printed, said, "scrimp {command}");
}

#[test]
fn keys_are_documented() {
    let folder = tempdir().unwrap();
    let chain = instance(folder.path(), paging);
    let chain = chain.to_str().unwrap();
    let plan = folder.path().join("plan.json");
    let plan = plan.to_str().unwrap();
    let buffers = json!({
        "name": "two", "kind": "allocation", "capacity": 20, "published": {}, "stats": {},
        "buffer_fields": ["id", "lower", "upper", "size"],
        "buffers": [["a", 0, 2, 10], ["b", 1, 3, 10]],
    });
    let buffers = write(
        folder.path(),
        "buffers.json",
        buffers.to_string().as_bytes(),
    );
    agree("plan", &["plan", chain, "--budget", "100%", "-o", plan]);
    agree("check", &["check", chain, plan]);
    let training = training(folder.path());
    let training = training.to_str().unwrap();
    agree("max-batch", &["max-batch", training, "--memory", "520"]);
    let carried = papers(folder.path());
    // A problem among the instances is passed over, and said to be.
    write(&carried, "skipped.json", b"{}");
    let carried = carried.to_str().unwrap();
    agree(
        "bench papers",
        &["bench", "papers", carried, "--time-limit", "1"],
    );
    let home = ["bench", "home", "--networks", "digits", "--memory", "600KB"];
    agree(
        "bench home",
        &[&home[..], &["--time-limit", "20ms"]].concat(),
    );
    let two = instance(folder.path(), |file| {
        file["devices"] = json!(["cpu", "gpu"]);
        for node in file["nodes"].as_array_mut().unwrap() {
            node["costs"] = json!([node["cost"], 1.5]);
        }
    });
    let two = two.to_str().unwrap();
    agree(
        "bench devices",
        &["bench", "devices", two, "--time-limit", "1"],
    );
    let chain = instance(folder.path(), |_| {});
    let chain = chain.to_str().unwrap();
    agree(
        "sweep",
        &["sweep", chain, "--budgets", "100%,0", "--time-limit", "1"],
    );
    let energy = [
        "sweep", "digits", "--energy", "--watts", "15", "--batch", "2",
    ];
    agree(
        "sweep --energy",
        &[&energy[..], &["--budgets", "100%", "--time-limit", "100ms"]].concat(),
    );
    agree("run", &["run", "digits", "--compare"]);
    agree("inspect", &["inspect", "digits"]);
    agree("networks", &["networks"]);
    agree("doctor", &["doctor"]);
    agree("place", &["place", buffers.to_str().unwrap()]);
    agree("completions", &["completions", "bash"]);
    agree("man", &["man"]);
    let data = digits();
    let train = [
        "train",
        "digits",
        "--batch",
        "8",
        "--budget",
        "70%",
        "--steps",
        "1",
        "--time-limit",
        "1",
    ];
    agree(
        "train",
        &[
            &train[..],
            &["--compare", "--data", &data, "--swap", "ram=1GiB"],
        ]
        .concat(),
    );
}
