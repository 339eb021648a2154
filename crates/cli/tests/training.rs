//! Training from end to end: the same bits with and without a plan, resumption, Ctrl-C.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use serde_json::Value;
use support::{digits, fails, object, text};
use tempfile::tempdir;

const DIGITS: &[&str] = &[
    "train",
    "digits",
    "--batch",
    "16",
    "--budget",
    "65%",
    "--time-limit",
];

fn train(more: &[&str]) -> Value {
    object(&[DIGITS, &["3", "--data", &digits()], more].concat())
}

#[test]
fn a_plan_changes_no_bit() {
    for optimizer in ["sgd", "momentum", "adam"] {
        let run = train(&["--steps", "4", "--compare", "--optimizer", optimizer]);
        assert_eq!(
            run["bit_identical"], true,
            "{optimizer}: {}",
            run["first_difference"]
        );
        assert_eq!(run["losses"], run["base_losses"]);
        assert_eq!(run["losses"].as_array().unwrap().len(), 4);
        let number = |key: &str| run[key].as_u64().unwrap();
        assert!(number("planned_peak_bytes") <= number("allocated_bytes"));
        assert!(number("allocated_bytes") <= number("budget_bytes"));
        assert!(number("planned_peak_bytes") < number("base_peak_bytes"));
        assert!(number("base_peak_bytes") <= number("base_allocated_bytes"));
        if cfg!(target_os = "linux") {
            // The process holds the arena, every page of it.
            assert!(number("process_peak_bytes") > number("allocated_bytes"));
        }
        assert!(number("recomputed") > 0);
        assert!(run["test_accuracy"].as_f64().unwrap() > 0.0);
        assert!(run["step_seconds"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn a_resumed_run_goes_on_as_if_it_had_not_stopped() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("half.safetensors");
    let file = file.to_str().unwrap();
    let whole = train(&["--steps", "6", "--seed", "5", "--optimizer", "adam"]);
    let first = train(&[
        "--steps",
        "3",
        "--seed",
        "5",
        "--optimizer",
        "adam",
        "--save",
        file,
    ]);
    let second = train(&["--steps", "3", "--optimizer", "adam", "--resume", file]);
    let losses = |run: &Value| run["losses"].as_array().unwrap().clone();
    assert_eq!([losses(&first), losses(&second)].concat(), losses(&whole));
    assert_eq!(second["steps_done"], 6);
    assert_eq!(second["test_accuracy"], whole["test_accuracy"]);
    let other = [DIGITS, &["1", "--steps", "1", "--resume", file][..]].concat();
    assert!(fails(3, &other).contains("adam"));
    let other = [&other[..], &["--optimizer", "adam", "--seed", "6"]].concat();
    assert!(fails(3, &other).contains("seed 5"));
}

#[test]
fn a_saved_plan_is_used_and_checked_again() {
    let folder = tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let plan = plan.to_str().unwrap();
    let planned = object(&[
        "plan",
        "digits",
        "--batch",
        "16",
        "--budget",
        "70%",
        "--time-limit",
        "1",
        "-o",
        plan,
    ]);
    let run = [
        "train",
        "digits",
        "--batch",
        "16",
        "--steps",
        "2",
        "--costs",
        "static",
        "--plan",
        plan,
        "--compare",
    ];
    let trained = object(&[&run[..], &["--budget", "70%"]].concat());
    assert_eq!(trained["method"], "given");
    assert_eq!(trained["peak_bytes"], planned["peak_bytes"]);
    assert_eq!(trained["bit_identical"], true);
    assert_eq!(trained["note"], Value::Null);
    fails(5, &[&run[..], &["--budget", "40%"]].concat());
}

#[test]
fn a_plan_of_another_device_is_checked_for_this_one() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (plan, edited) = (path("plan.json"), path("edited.json"));
    let train = |threads: &str, more: &[&str]| {
        let words = "train digits --batch 16 --steps 2 --costs static --library native --threads";
        let run = words
            .split(' ')
            .chain([threads])
            .chain(more.iter().copied());
        run.map(str::to_owned).collect::<Vec<_>>()
    };
    let all = |run: &[String]| object(&run.iter().map(String::as_str).collect::<Vec<_>>());
    let first = all(&train(
        "1",
        &["--budget", "70%", "--time-limit", "1", "--plan-out", &plan],
    ));
    let file: Value = serde_json::from_str(&std::fs::read_to_string(&plan).unwrap()).unwrap();
    assert_eq!(file["device"], first["device"]);
    // More threads need more scratch: the problem is another one, but its tasks are the same.
    let second = all(&train(
        "8",
        &["--budget", "100%", "--plan", &plan, "--compare"],
    ));
    let note = second["note"].as_str().unwrap();
    assert!(note.contains(first["device"].as_str().unwrap()), "{note}");
    assert!(note.contains(second["device"].as_str().unwrap()), "{note}");
    assert!(second["peak_bytes"].as_u64() > first["peak_bytes"].as_u64());
    assert_eq!(second["bit_identical"], true);
    // What no longer fits is refused, with what it was made for and what to do.
    let budget = first["peak_bytes"].to_string();
    let run = train("8", &["--budget", &budget, "--plan", &plan]);
    let sentence = fails(5, &run.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(
        sentence.contains(first["device"].as_str().unwrap()) && sentence.contains("plan again"),
        "{sentence}"
    );
    // Another graph is another graph, whatever the device.
    let mut other = file.clone();
    other["structure"] = "00".repeat(16).into();
    std::fs::write(&edited, other.to_string()).unwrap();
    let run = train("8", &["--budget", "100%", "--plan", &edited]);
    let sentence = fails(3, &run.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(sentence.contains("fingerprint"), "{sentence}");
}

#[test]
fn times_are_kept_from_one_run_to_the_next() {
    let folder = tempdir().unwrap();
    let cache = folder.path().join("cache");
    let run = |more: &[&str]| {
        let words = "plan digits --batch 4 --budget 70% --time-limit 1 --costs measured --json --library native";
        let output = assert_cmd::Command::cargo_bin("scrimp")
            .unwrap()
            .args(words.split(' ').chain(more.iter().copied()))
            .env("SCRIMP_CACHE", &cache)
            .timeout(support::LIMIT)
            .output()
            .unwrap();
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        (plan["base_cost"].clone(), support::complaint(&output))
    };
    let (first, said) = run(&[]);
    assert_eq!((run(&[]).0, said.as_str()), (first.clone(), ""));
    let (again, _) = run(&["--fresh-costs"]);
    assert_ne!(again, first);
    assert_eq!(run(&[]).0, again);
    let files = support::listing(&cache);
    assert_eq!(files.len(), 1, "{files:?}");
    std::fs::write(cache.join(&files[0]), "{").unwrap();
    let (_, said) = run(&[]);
    assert!(
        said.contains(&files[0]) && said.contains("ignored"),
        "{said}"
    );
    assert_eq!(run(&[]).1, "");
}

/// Costs from a busy machine are noticed when steps run, and measured again.
#[test]
fn costs_that_no_longer_hold_are_forgotten() {
    let folder = tempdir().unwrap();
    let cache = folder.path().join("cache");
    let run = || -> Value {
        let words = "train digits --batch 4 --budget 70% --steps 3 --time-limit 1 --threads 1 --library native --json";
        let output = assert_cmd::Command::cargo_bin("scrimp")
            .unwrap()
            .args(words.split(' '))
            .env("SCRIMP_CACHE", &cache)
            .timeout(support::LIMIT)
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let predicted = |told: &Value| told["predicted_step_seconds"].as_f64().unwrap();
    let first = run();
    assert_eq!(first["costs_forgotten"], false);
    let path = cache.join(&support::listing(&cache)[0]);
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    for cost in file["costs"].as_array_mut().unwrap() {
        for number in &mut cost.as_array_mut().unwrap()[1..] {
            *number = (1e4 * number.as_f64().unwrap()).into();
        }
    }
    std::fs::write(&path, file.to_string()).unwrap();
    let wrong = run();
    assert_eq!(wrong["costs_forgotten"], true);
    assert!(predicted(&wrong) > 100.0 * predicted(&first));
    let again = run();
    assert_eq!(again["costs_forgotten"], false);
    assert!(predicted(&wrong) > 100.0 * predicted(&again));
}

#[test]
fn weights_go_back_to_onnx() {
    let folder = tempdir().unwrap();
    let model = support::write(folder.path(), "model.onnx", &support::tiny());
    let (model, copy) = (model.to_str().unwrap(), folder.path().join("copy.onnx"));
    let copy = copy.to_str().unwrap();
    let run = |model: &str, steps: &str, more: &[&str]| {
        let words = "--budget 100% --batch 2 --loss mse --optimizer sgd --lr 0.1 --costs static --time-limit 1";
        let all = ["train", model, "--steps", steps]
            .into_iter()
            .chain(words.split(' '));
        object(&all.chain(more.iter().copied()).collect::<Vec<_>>())["losses"].clone()
    };
    let before = run(model, "1", &[]);
    let losses = run(model, "3", &["--save", copy]);
    assert_eq!(losses[0], before[0]);
    assert_ne!(
        run(copy, "1", &[])[0],
        losses[0],
        "it has the trained weights"
    );
    assert_eq!(run(model, "1", &[]), before, "the model is as it was");
    let network = "train digits --budget 100% --steps 1 --save".split(' ');
    let sentence = fails(2, &network.chain([copy]).collect::<Vec<_>>());
    assert!(sentence.contains("built in"), "{sentence}");
}

#[test]
fn reports_and_traces_are_written() {
    let folder = tempdir().unwrap();
    let (page, trace) = (
        folder.path().join("out.html"),
        folder.path().join("out.json"),
    );
    let outputs = [
        "--report",
        page.to_str().unwrap(),
        "--trace",
        trace.to_str().unwrap(),
    ];
    train(&[&["--steps", "2", "--compare"], &outputs[..]].concat());
    assert!(std::fs::read_to_string(page).unwrap().contains("</html>"));
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
    assert_eq!(trace["otherData"]["times"], "measured");
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_what_there_is() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("w.safetensors");
    let (file, data) = (file.to_str().unwrap(), digits());
    let more = [
        "0", "--steps", "1000000", "--costs", "static", "--json", "--data", &data, "--save", file,
    ];
    let after = std::time::Duration::from_secs(6);
    let output = support::interrupted(&[DIGITS, &more].concat(), after);
    assert_eq!(
        output.status.code(),
        Some(130),
        "{}",
        support::complaint(&output)
    );
    let run: Value = serde_json::from_str(&text(&output)).unwrap();
    assert_eq!(run["interrupted"], true);
    assert_eq!(
        run["steps"].as_u64().unwrap() as usize,
        run["losses"].as_array().unwrap().len()
    );
    assert!(support::complaint(&output).contains("saved"));
    let more = [
        "0", "--steps", "1", "--costs", "static", "--data", &data, "--resume", file,
    ];
    let resumed = object(&[DIGITS, &more].concat());
    assert_eq!(
        resumed["steps_done"].as_u64().unwrap(),
        run["steps"].as_u64().unwrap() + 1
    );
}

/// With a folder of the environment's own choice for oneDNN.
fn with_onednn(folder: &std::ffi::OsStr, args: &[&str]) -> std::process::Output {
    assert_cmd::Command::cargo_bin("scrimp")
        .unwrap()
        .args(args)
        .env("SCRIMP_ONEDNN", folder)
        .env("SCRIMP_CACHE", support::cache())
        .timeout(support::LIMIT)
        .output()
        .unwrap()
}

#[test]
#[allow(clippy::print_stdout, reason = "a skipped test says so")]
fn kernels_of_onednn() {
    let run = "train digits --batch 8 --budget 70% --steps 2 --compare --json --library";
    let run = |library| run.split(' ').chain([library]).collect::<Vec<_>>();
    let nowhere = std::ffi::OsStr::new("/nonexistent");
    for library in ["auto", "onednn"] {
        let output = with_onednn(nowhere, &run(library));
        assert_eq!(output.status.code(), Some(9));
        let sentence = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(sentence.contains("SCRIMP_ONEDNN"), "{sentence}");
    }
    let native = with_onednn(nowhere, &run("native"));
    let native: Value = serde_json::from_slice(&native.stdout).unwrap();
    assert!(
        native["device"]
            .as_str()
            .unwrap()
            .starts_with("cpu/native-")
    );
    let Some(folder) = std::env::var_os("SCRIMP_ONEDNN") else {
        println!("skipped: SCRIMP_ONEDNN isn't set");
        return;
    };
    for library in ["auto", "onednn"] {
        let run: Value =
            serde_json::from_slice(&with_onednn(&folder, &run(library)).stdout).unwrap();
        assert!(run["device"].as_str().unwrap().starts_with("cpu/onednn-3."));
        assert_eq!(run["bit_identical"], true);
    }
    // Weights are in the library's blocks; in a file they are in rows.
    let saved = tempdir().unwrap();
    let file = saved.path().join("half.safetensors");
    let file = file.to_str().unwrap();
    let losses = |more: &str| {
        let run =
            "train digits --batch 8 --budget 70% --optimizer momentum --json --library onednn";
        let args: Vec<&str> = run.split(' ').chain(more.split(' ')).collect();
        let run: Value = serde_json::from_slice(&with_onednn(&folder, &args).stdout).unwrap();
        run["losses"].as_array().unwrap().clone()
    };
    let whole = losses("--steps 4");
    let first = losses(&format!("--steps 2 --save {file}"));
    let second = losses(&format!("--steps 2 --resume {file}"));
    assert_eq!([first, second].concat(), whole);
    let doctor = with_onednn(&folder, &["doctor", "--json"]);
    let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    assert!(doctor["onednn"]["error"].is_null());
    let places = doctor["swap"].as_array().unwrap();
    assert!(places.len() >= 2 && places[0]["folder"].is_null());
    assert!(
        places
            .iter()
            .all(|place| place["available_bytes"].is_u64() != place["error"].is_string())
    );
    assert!(doctor["device"].as_str().unwrap().contains("onednn"));
}

#[test]
fn a_loss_that_is_no_number_is_told() {
    let data = digits();
    let args = [
        DIGITS,
        &["0", "--steps", "4", "--costs", "static", "--lr", "1e30"],
        &["--data", &data, "--json"],
    ];
    let output = support::scrimp(&args.concat());
    let said = support::complaint(&output);
    assert_eq!(output.status.code(), Some(10), "{said}");
    let run: Value = serde_json::from_str(&text(&output)).unwrap();
    let step = run["diverged_step"].as_u64().unwrap();
    assert!(run["losses"][step as usize - 1].is_null());
    assert_eq!(run["losses"].as_array().unwrap().len(), 4, "it went on");
    assert!(
        said.contains(&format!("the loss of step {step} is ")),
        "{said}"
    );
    assert!(said.contains("--lr"), "{said}");
}

/// The number of steps in a file of weights can be anything.
#[test]
fn a_step_number_that_would_overflow_is_damage() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("w.safetensors");
    let file = file.to_str().unwrap();
    let (data, steps) = (
        digits(),
        ["0", "--steps", "1", "--costs", "static", "--data"],
    );
    let train = [DIGITS, &steps, &[&data]].concat();
    object(&[&train[..], &["--save", file]].concat());
    let bytes = std::fs::read(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let (header, elements) = bytes[8..].split_at(length as usize);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    let notes = header["__metadata__"]["scrimp"].as_str().unwrap();
    let mut notes: Value = serde_json::from_str(notes).unwrap();
    notes["step"] = u64::MAX.to_string().into();
    header["__metadata__"]["scrimp"] = notes.to_string().into();
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(file, [&length, header.as_bytes(), elements].concat()).unwrap();
    let sentence = fails(3, &[&train[..], &["--resume", file]].concat());
    assert!(sentence.contains("note 'step' is damaged"), "{sentence}");
}
