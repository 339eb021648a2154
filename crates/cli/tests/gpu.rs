//! `--devices opencl:0`: alone, beside a CPU, and with memory to swap to. Skipped, and said so, where no driver has a
//! device.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

mod support;

use serde_json::Value;
use support::{digits, fails, object};

/// Whether there is a device.
fn device() -> bool {
    let opencl = &object(&["doctor"])["opencl"];
    let found = opencl["devices"]
        .as_array()
        .is_some_and(|all| !all.is_empty());
    if !found {
        println!("skipped: no OpenCL device: {}", opencl["error"]);
    }
    found
}

/// Two steps, twice: under the budget and without it.
fn trained(more: &[&str]) -> Value {
    let data = digits();
    let usual = [
        "train",
        "digits",
        "--data",
        &data,
        "--batch",
        "8",
        "--steps",
        "2",
        "--costs",
        "static",
        "--time-limit",
        "1s",
        "--threads",
        "1",
        "--library",
        "native",
        "--compare",
    ];
    let run = object(&[&usual[..], more].concat());
    assert_eq!(run["bit_identical"], true, "{}", run["first_difference"]);
    for (name, measured) in run["measured_devices"].as_object().unwrap() {
        let device = &run["devices"][name];
        assert_eq!(measured["peak_bytes"], device["peak_bytes"], "{name}");
        let capacity = device["capacity_bytes"].as_u64();
        assert!(measured["allocated_bytes"].as_u64() <= capacity, "{name}");
    }
    run
}

fn losses(run: &Value) -> Vec<f64> {
    let losses = run["losses"].as_array().unwrap().iter();
    losses.map(|loss| loss.as_f64().unwrap()).collect()
}

#[test]
fn an_opencl_device_trains_alone_beside_a_cpu_and_with_memory_beside_it() {
    if !device() {
        return;
    }
    let on_cpu = losses(&trained(&["--budget", "60%"]));
    let alone = trained(&["--devices", "opencl:0", "--budget", "60%"]);
    let swap = [
        "--devices",
        "opencl:0",
        "--budget",
        "800KB",
        "--swap",
        "ram=1GiB@5GB/s",
    ];
    let swapped = trained(&swap);
    assert_eq!(swapped["losses"], alone["losses"]);
    assert!(swapped["swapped_bytes"].as_u64().unwrap() > 0);
    let both = trained(&[
        "--devices",
        "cpu,opencl:0",
        "--budget",
        "cpu=70%,opencl:0=70%",
    ]);
    for run in [&alone, &both] {
        for (found, expected) in losses(run).into_iter().zip(&on_cpu) {
            assert!(
                (found - expected).abs() <= 1e-3 * expected.abs(),
                "{found} {expected}"
            );
        }
    }
}

#[test]
fn a_device_that_is_not_there_is_refused_with_those_that_are() {
    if !device() {
        return;
    }
    let name = object(&["doctor"])["opencl"]["devices"][0]["name"].clone();
    for command in [
        &["plan", "digits"][..],
        &["train", "digits", "--steps", "1"],
    ] {
        let more = ["--devices", "opencl:99", "--budget", "60%"];
        let sentence = fails(2, &[command, &more].concat());
        assert!(sentence.contains("no device 99 of OpenCL"), "{sentence}");
        assert!(sentence.contains(name.as_str().unwrap()), "{sentence}");
    }
}
