//! Budgets by name, capacities that a file states, and the price of energy on the command line.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use serde_json::{Value, json};
use support::{fails, instance, object, scrimp, text};
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

/// Outputs of the same random batches, whoever computes them and however many are in flight.
#[test]
fn batches_run_on_two_devices() {
    let folder = tempdir().unwrap();
    let outputs = |name: &str, more: &[&str]| {
        let path = folder.path().join(name);
        let run = [
            "run",
            "digits",
            "--batch",
            "2",
            "--batches",
            "5",
            "--compare",
            "--library",
            "native",
        ];
        let limit = [
            "--time-limit",
            "500ms",
            "--costs",
            "static",
            "--outputs",
            path.to_str().unwrap(),
        ];
        let ran = object(&[&run[..], &limit, more].concat());
        assert_eq!(ran["bit_identical"], true, "{}", ran["first_difference"]);
        assert_eq!(ran["samples"], 10);
        for (name, measured) in ran["measured_devices"].as_object().unwrap() {
            let capacity = ran["devices"][name]["capacity_bytes"].as_u64();
            assert!(measured["allocated_bytes"].as_u64() <= capacity);
        }
        std::fs::read(path).unwrap()
    };
    let alone = outputs("one.npz", &["--threads", "1"]);
    let two = ["--devices", TWO];
    assert_eq!(outputs("two.npz", &two), alone);
    let flight = ["--in-flight", "3", "--budget", "a=60%,b=60%"];
    assert_eq!(outputs("flight.npz", &[&two[..], &flight].concat()), alone);
    let sole = ["run", "digits", "--devices", TWO, "--budget", "1MiB"];
    let sentence = fails(2, &sole);
    assert!(sentence.contains("several devices compute"), "{sentence}");
}

const TWO: &str = "a/1@native,b/1@native";

#[test]
fn lists_of_devices_are_checked_before_any_work() {
    let folder = tempdir().unwrap();
    let json = instance(folder.path(), |_| {});
    let json = json.to_str().unwrap();
    for (target, devices, budget, why) in [
        ("digits", "a", "60%", "isn't a device"),
        (
            "digits",
            "a/1@cuda",
            "60%",
            "a library of auto, native and onednn",
        ),
        ("digits", "a/0", "60%", "isn't a device"),
        ("digits", "a/1,a/1", "a=60%", "named twice"),
        ("digits", TWO, "60%", "several devices compute: a, b"),
        (
            "digits",
            TWO,
            "a=60%,gpu=1MiB",
            "no device `gpu`; the devices are a, b",
        ),
        ("digits", TWO, "a=60%", "no budget for device `b`"),
        (json, TWO, "a=60%,b=60%", "leave --devices out"),
    ] {
        let sentence = fails(
            2,
            &["plan", target, "--devices", devices, "--budget", budget],
        );
        assert!(sentence.contains(why), "{sentence}");
    }
    let train = [
        "train",
        "digits",
        "--steps",
        "1",
        "--devices",
        TWO,
        "--budget",
        "c=1,a=60%,b=60%",
    ];
    let sentence = fails(2, &train);
    assert!(sentence.contains("no device `c`"), "{sentence}");
}

/// With two devices, bytes are told of each, and none without its name.
#[test]
fn bytes_of_two_devices_have_names() {
    let flags = ["--costs", "static", "--time-limit", "1"];
    let two = ["--devices", TWO, "--budget", "a=100%,b=100%"];
    let told = text(&scrimp(&[&["plan", "digits"], &two[..], &flags].concat()));
    assert!(
        told.contains("peak of a ") && told.contains("peak of b "),
        "{told}"
    );
    assert!(
        !told.contains("peak  ") && !told.contains("always there"),
        "{told}"
    );
    let told = text(&scrimp(
        &[&["plan", "digits", "--budget", "100%"], &flags[..]].concat(),
    ));
    assert!(
        told.contains("peak  ") && told.contains("always there"),
        "{told}"
    );
}

/// A file may leave devices without a limit, and what counts is when the last of them is done.
#[test]
fn devices_without_a_limit_work_side_by_side() {
    let folder = tempdir().unwrap();
    let path = instance(folder.path(), |file| {
        for node in file["nodes"].as_array_mut().unwrap() {
            node["costs"] = json!([node["cost"], node["cost"]]);
        }
        file["edges"] = json!([[0, 1], [2, 3]]);
        file["devices"] = json!(["p", "q"]);
        file["budget_per_device"] = json!([null, null]);
        file["copy_costs"] = json!([[[0, 9], [9, 0]], [[0, 9], [9, 0]]]);
    });
    let path = path.to_str().unwrap();
    let planned = object(&["plan", path]);
    let numbers = ["budget_bytes", "cost", "makespan"].map(|key| planned[key].clone());
    assert_eq!(numbers, [json!(null), json!(6.0), json!(3.0)]);
    for name in ["p", "q"] {
        assert!(planned["devices"][name]["capacity_bytes"].is_null());
    }
    for link in planned["links"].as_object().unwrap().values() {
        assert!(link["busy_seconds"].as_f64().unwrap().is_sign_positive());
    }
    let told = text(&scrimp(&["plan", path]));
    assert!(
        told.contains("time per step") && told.contains("unlimited"),
        "{told}"
    );
}

/// A larger budget never gives a slower plan, and the least one is below what one device needs.
#[test]
fn two_devices_are_swept() {
    let model = [
        "digits",
        "--batch",
        "4",
        "--devices",
        TWO,
        "--time-limit",
        "500ms",
    ];
    let sweep = |more: &[&str]| object(&[&["sweep"], &model[..], more].concat());
    let swept = sweep(&["--budgets", "30%,100%,60%"]);
    let costs = |swept: &Value| {
        let mut budgets = swept["curves"][0]["budgets"].as_array().unwrap().clone();
        budgets.sort_by_key(|entry| entry["budget_bytes"].as_u64());
        let costs = budgets.iter().filter_map(|entry| entry["cost"].as_f64());
        costs.collect::<Vec<f64>>()
    };
    let falling = costs(&swept);
    assert!(
        falling.len() > 1 && falling.is_sorted_by(|a, b| a >= b),
        "{falling:?}"
    );
    for entry in swept["curves"][0]["budgets"].as_array().unwrap() {
        assert_eq!(entry["devices"][1]["name"], "b");
    }
    let one = sweep(&["--budgets", "100%,50%", "--beside", "b=40%"]);
    assert!(costs(&one).is_sorted_by(|a, b| a >= b));
    let plan = |budget: &str| {
        let planned = object(&[&["plan"], &model[..], &["--budget", budget]].concat());
        let capacity = |name: &str| planned["devices"][name]["capacity_bytes"].as_u64().unwrap();
        (
            capacity("a"),
            capacity("b"),
            planned["base_peak_bytes"].as_u64().unwrap(),
        )
    };
    let (a, b, alone) = plan("a=min,b=min");
    assert!(a < alone && b < alone, "{a} {b} {alone}");
    let (a, _, alone) = plan("a=min,b=100%");
    assert!(a < alone / 2, "{a} {alone}");
}

#[test]
fn two_devices_train_within_their_budgets() {
    let trained = |devices: &str, budget: &str| {
        object(&[
            "train",
            "digits",
            "--batch",
            "8",
            "--steps",
            "3",
            "--costs",
            "static",
            "--time-limit",
            "1s",
            "--threads",
            "1",
            "--compare",
            "--library",
            "native",
            "--devices",
            devices,
            "--budget",
            budget,
        ])
    };
    let alone = trained("a/1", "60%");
    for budget in ["a=60%,b=60%", "a=80%,b=50%"] {
        let both = trained(TWO, budget);
        assert_eq!(both["losses"], alone["losses"]);
        assert_eq!(both["bit_identical"], true);
        for name in ["a", "b"] {
            let (device, measured) = (&both["devices"][name], &both["measured_devices"][name]);
            let bytes = |value: &Value| value.as_u64().unwrap();
            assert_eq!(measured["peak_bytes"], device["peak_bytes"]);
            assert!(bytes(&measured["allocated_bytes"]) <= bytes(&device["capacity_bytes"]));
        }
    }
}

/// What devices cost each other is measured, not assumed.
#[test]
fn devices_are_measured_beside_each_other() {
    let inspected = |devices: &str, costs: &str| {
        let shape = ["inspect", "digits", "--batch", "8", "--library", "native"];
        object(&[&shape[..], &["--devices", devices, "--costs", costs]].concat())
    };
    let (both, alone) = (inspected(TWO, "measured"), inspected("a/1", "measured"));
    for name in ["a", "b"] {
        let slowed = both["devices"][name]["slowed"].as_f64().unwrap();
        assert!(slowed > 0.0 && slowed.is_finite());
    }
    assert!(alone["devices"]["a"]["slowed"].is_null());
    assert!(inspected(TWO, "static")["devices"]["a"]["slowed"].is_null());
}
