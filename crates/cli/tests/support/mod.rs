//! Running the command, and files to run it on.
#![allow(dead_code, reason = "every test program uses its own part")]

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};

/// The digits of the repository.
pub fn digits() -> String {
    Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../testdata/digits.npz")
        .display()
        .to_string()
}

/// No command of a test takes nearly so long; one that does is ended, and its test fails.
pub const LIMIT: Duration = Duration::from_secs(600);

/// Runs the command.
pub fn scrimp(args: &[&str]) -> Output {
    assert_cmd::Command::cargo_bin("scrimp")
        .unwrap()
        .args(args)
        .env_remove("SCRIMP_ONEDNN")
        .env("SCRIMP_CACHE", cache())
        .timeout(LIMIT)
        .output()
        .unwrap()
}

/// A cache of this test program's own.
pub fn cache() -> &'static Path {
    static FOLDER: std::sync::LazyLock<tempfile::TempDir> =
        std::sync::LazyLock::new(|| tempfile::tempdir().unwrap());
    FOLDER.path()
}

/// Standard output as text.
pub fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error as text.
pub fn complaint(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs the command with `--json` and reads the one object that it prints.
pub fn object(args: &[&str]) -> Value {
    let output = scrimp(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", complaint(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a command that must fail: with this exit code, a sentence on standard error, and the same in
/// one object on standard output if `--json` is given. Returns the sentence.
pub fn fails(code: i32, args: &[&str]) -> String {
    let output = scrimp(args);
    let sentence = complaint(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {sentence}");
    assert!(
        output.stdout.is_empty(),
        "{args:?} printed {}",
        text(&output)
    );
    assert!(!sentence.contains("panicked"), "{args:?}: {sentence}");
    let with_json = scrimp(&[args, &["--json"]].concat());
    let error: Value = serde_json::from_slice(&with_json.stdout).unwrap();
    assert_eq!(error["error"]["code"], code, "{args:?}: {error}");
    assert!(
        error["error"]["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    sentence
}

/// An instance of a chain of four nodes; `change` may spoil it.
pub fn instance(folder: &Path, change: impl FnOnce(&mut Value)) -> PathBuf {
    let mut instance = json!({
        "name": "chain",
        "kind": "test",
        "units": { "cost": "abstract", "memory": "abstract" },
        "nodes": [
            { "name": "a", "cost": 1.0, "memory": 10 },
            { "name": "b", "cost": 2.0, "memory": 10 },
            { "name": "c", "cost": 2.0, "memory": 10 },
            { "name": "d", "cost": 1.0, "memory": 1 },
        ],
        "edges": [[0, 1], [1, 2], [2, 3], [0, 3]],
    });
    change(&mut instance);
    write(folder, "instance.json", instance.to_string().as_bytes())
}

/// A forward chain of eight and the backward chain that reads it.
pub fn training(folder: &Path) -> PathBuf {
    let node = |i: u64| json!({ "name": format!("n{i}"), "cost": 1 + i % 3, "memory": 10, "is_backward": i >= 8 });
    let forward = (0..7u64).map(|i| [i, i + 1]);
    let backward = (7..15u64).map(|i| [i, i + 1]);
    let skips = (8..16u64).map(|i| [15 - i, i]);
    let edges: std::collections::BTreeSet<[u64; 2]> =
        forward.chain(backward).chain(skips).collect();
    instance(folder, |file| {
        file["nodes"] = json!((0..16).map(node).collect::<Vec<_>>());
        file["edges"] = json!(edges);
        file["units"]["memory"] = json!("bytes");
        file["batch_size"] = json!(4);
        file["fixed_memory"] = json!(20);
    })
}

/// A folder with an instance that carries results, results beside it, and buffers.
pub fn papers(folder: &Path) -> PathBuf {
    let papers = folder.join("papers");
    std::fs::create_dir(&papers).unwrap();
    let path = training(&papers);
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    file["published"] = json!({
        "rows": [
            { "budget_percent": 90, "A": { "tdi_percent": 50.0, "time_s": 3.5 }, "B": null },
            { "budget_percent": 70, "A": { "tdi_percent": 0.0, "time_s": 3.5 } },
        ],
        "max_batch_size": { "budget_bytes_total": 520, "A": ">=9" },
    });
    std::fs::write(&path, file.to_string()).unwrap();
    let results =
        json!({ "results": { "chain": { "C": { "cost_ratio": 1.25, "activation_peak": 80 } } } });
    write(&papers, "results.json", results.to_string().as_bytes());
    let buffers = json!({
        "name": "two", "kind": "allocation", "capacity": 20, "published": {}, "stats": {},
        "buffer_fields": ["id", "lower", "upper", "size"],
        "buffers": [["a", 0, 2, 10], ["b", 1, 3, 10]],
    });
    write(&papers, "buffers.json", buffers.to_string().as_bytes());
    papers
}

/// A random training graph that takes the planner long: layers forward with skips, then backward.
pub fn large(folder: &Path) -> PathBuf {
    let mut state = 1u64;
    let mut random = |most: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let forward = 300u64;
    let mut nodes = Vec::new();
    let mut edges = std::collections::BTreeSet::new();
    for i in 0..2 * forward {
        let backward = i >= forward;
        let (cost, memory) = (1 + random(1000), 1 + random(1000));
        nodes.push(json!({ "name": format!("n{i}"), "cost": cost, "memory": memory, "is_backward": backward }));
        if i > 0 {
            edges.insert([i - 1, i]);
        }
        for _ in 0..3 {
            if i > 1 {
                edges.insert([i - 1 - random(i.min(40)), i]);
            }
        }
        if backward {
            edges.insert([2 * forward - 1 - i, i]);
        }
    }
    let instance = json!({
        "name": "large", "kind": "test", "batch_size": 16, "fixed_memory": 1000,
        "units": { "cost": "abstract", "memory": "bytes" },
        "nodes": nodes, "edges": edges,
    });
    write(folder, "large.json", instance.to_string().as_bytes())
}

/// Runs the command, presses Ctrl-C when it has worked for `after`, and waits for its end.
#[cfg(unix)]
pub fn interrupted(args: &[&str], after: Duration) -> Output {
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("scrimp"));
    command.args(args);
    let output = interrupted_command(command, after);
    output.unwrap_or_else(|| panic!("{args:?} went on"))
}

/// Runs a command and presses Ctrl-C when it has worked for `after`; none if that doesn't end it in a minute. The
/// command heeds the key even where this process, run in the background, has to ignore it.
#[cfg(unix)]
pub fn interrupted_command(mut command: std::process::Command, after: Duration) -> Option<Output> {
    use std::process::{Command, Stdio};
    use std::time::Instant;
    // What is handled here is not ignored by children. There may be a handler already.
    let _ = ctrlc::set_handler(|| std::process::exit(130));
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id().to_string();
    let start = Instant::now();
    // Processor time, where the system tells it: a busy machine starts programs late.
    let stat = format!("/proc/{id}/stat");
    let worked = || {
        let stat = std::fs::read_to_string(&stat).ok()?;
        stat.rsplit(')')
            .next()?
            .split(' ')
            .nth(12)?
            .parse::<u64>()
            .ok()
    };
    while start.elapsed() < after || worked().is_some_and(|ticks| ticks < 50) {
        std::thread::sleep(Duration::from_millis(50));
        assert!(start.elapsed() < LIMIT, "{command:?} does nothing");
        if child.try_wait().unwrap().is_some() {
            return Some(child.wait_with_output().unwrap());
        }
    }
    let send = |signal: &str, id: &str| Command::new("kill").args([signal, id]).status().unwrap();
    assert!(send("-INT", &id).success());
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let in_time = std::thread::spawn(move || {
        let waited = ended.recv_timeout(Duration::from_secs(60));
        let in_time = waited != Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if !in_time {
            send("-KILL", &id);
        }
        in_time
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    in_time.join().unwrap().then_some(output)
}

/// Writes a file.
pub fn write(folder: &Path, name: &str, contents: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, contents).unwrap();
    path
}

/// Names of everything in a folder.
pub fn listing(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A length-delimited field of a protocol buffer.
fn field(number: u8, contents: &[u8]) -> Vec<u8> {
    assert!(contents.len() < 128 * 128);
    let length = contents.len();
    let mut out = vec![number << 3 | 2];
    if length >= 128 {
        out.push(0x80 | (length % 128) as u8);
        out.push((length / 128) as u8);
    } else {
        out.push(length as u8);
    }
    out.extend(contents);
    out
}

fn number(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

/// An ONNX node.
pub fn node(op: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let mut out: Vec<u8> = inputs
        .iter()
        .flat_map(|name| field(1, name.as_bytes()))
        .collect();
    out.extend(field(2, output.as_bytes()));
    out.extend(field(3, format!("make_{output}").as_bytes()));
    out.extend(field(4, op.as_bytes()));
    field(1, &out)
}

/// An ONNX file of these nodes: an input `x` [2,3], a weight `w` [3,4], an output `y`.
pub fn onnx(nodes: &[Vec<u8>]) -> Vec<u8> {
    let dim = |size: u8| field(1, &number(1, size));
    let value = |name: &str, sizes: [u8; 2]| {
        let shape = field(2, &sizes.map(dim).concat());
        let tensor = field(1, &[number(1, 1), shape].concat());
        [field(1, name.as_bytes()), field(2, &tensor)].concat()
    };
    let contents: Vec<u8> = (0..12u8)
        .flat_map(|i| (f32::from(i) / 10.0).to_le_bytes())
        .collect();
    let weight = [
        number(1, 3),
        number(1, 4),
        number(2, 1),
        field(8, b"w"),
        field(9, &contents),
    ]
    .concat();
    let graph = [
        nodes.concat(),
        field(2, b"tiny"),
        field(5, &weight),
        field(11, &value("x", [2, 3])),
        field(12, &value("y", [2, 4])),
    ];
    [
        number(1, 8),
        field(7, &graph.concat()),
        field(8, &number(2, 13)),
    ]
    .concat()
}

/// A small network that can be trained.
pub fn tiny() -> Vec<u8> {
    onnx(&[node("MatMul", &["x", "w"], "h"), node("Relu", &["h"], "y")])
}
