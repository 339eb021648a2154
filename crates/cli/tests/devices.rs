//! Budgets by name, capacities that a file states, and the price of energy on the command line.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use serde_json::{Value, json};
use support::{fails, instance, object};
use tempfile::tempdir;

/// The chain with energies, and a memory to page to.
fn paging(file: &mut Value) {
    for (node, joules) in file["nodes"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .zip([8, 1, 4, 1])
    {
        node["runtime_s"] = node["cost"].clone();
        node["cost"] = json!(joules);
    }
    file["chipset"] = json!({
        "PAGEIN_LATENCY": 0.5, "PAGEIN_THROUGHPUT": 2.0, "PAGEOUT_LATENCY": 0.5, "PAGEOUT_THROUGHPUT": 2.0,
    });
}

#[test]
fn budgets_by_name_and_capacities_of_a_file() {
    let folder = tempdir().unwrap();
    let path = instance(folder.path(), paging);
    let path = path.to_str().unwrap();
    let problem = folder.path().join("problem.json");
    let problem = problem.to_str().unwrap();
    let named = object(&[
        "plan",
        path,
        "--budget",
        "device=25,pages=64",
        "--problem-out",
        problem,
    ]);
    assert_eq!(named["budget_bytes"], 25);
    assert_eq!(named["devices"]["device"]["capacity_bytes"], 25);
    assert_eq!(named["devices"]["pages"]["capacity_bytes"], 64);
    assert_eq!(named["makespan"], named["cost"]);
    // The file states what was asked, so that the budget may be left out.
    let stated = object(&["plan", problem]);
    assert_eq!(stated["devices"]["pages"]["capacity_bytes"], 64);
    assert_eq!(stated["cost"], named["cost"]);
    // A percentage means the same with and without the memory beside the device.
    let alone = instance(folder.path(), |_| {});
    let half = |path: &str| object(&["plan", path, "--budget", "80%"])["budget_bytes"].clone();
    let alone = half(alone.to_str().unwrap());
    let path = instance(folder.path(), paging);
    let path = path.to_str().unwrap();
    assert_eq!(alone, half(path));
    for (budget, why) in [
        ("gpu=25", "the devices are device, pages"),
        ("device=25,pages=50%", "`pages` must be a number of bytes"),
        ("pages=25", "no budget for device `device`"),
        ("device=25,64", "write NAME=64"),
    ] {
        let sentence = fails(2, &["plan", path, "--budget", budget]);
        assert!(sentence.contains(why), "{sentence}");
    }
}

#[test]
fn energy_has_a_price_and_a_cap() {
    let folder = tempdir().unwrap();
    let path = instance(folder.path(), paging);
    let path = path.to_str().unwrap();
    let plan = |more: &[&str]| object(&[&["plan", path, "--budget", "100%"], more].concat());
    let priced = plan(&["--alpha", "0.5"]);
    assert_eq!(
        (&priced["cost"], &priced["objective"]),
        (&json!(6.0), &json!(13.0))
    );
    assert_eq!(priced["devices"]["device"]["joules"], 14.0);
    assert_eq!(priced["lower_bound"], 13.0);
    assert_eq!(plan(&["--energy-cap", "14"])["cost"], 6.0);
    let short = [
        "plan",
        path,
        "--budget",
        "100%",
        "--energy-cap",
        "device=13.5",
    ];
    assert!(
        fails(4, &short).contains("takes 14"),
        "{}",
        fails(4, &short)
    );
}
