//! What becomes of the files that a command writes.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{complaint, fails, instance, listing, object, scrimp, text, tiny, write};
use tempfile::tempdir;

/// Arguments of a plan whose output goes there.
fn to<'a>(problem: &'a Path, output: &'a Path) -> [&'a str; 6] {
    let (problem, output) = (problem.to_str().unwrap(), output.to_str().unwrap());
    ["plan", problem, "--budget", "80%", "-o", output]
}

#[test]
fn links_modes_and_devices_stay() {
    let folder = tempdir().unwrap();
    let problem = instance(folder.path(), |_| {});
    let (plan, link) = (
        write(folder.path(), "plan.json", b""),
        folder.path().join("link"),
    );
    fs::set_permissions(&plan, Permissions::from_mode(0o600)).unwrap();
    symlink("plan.json", &link).unwrap();
    object(&to(&problem, &link));
    assert!(link.is_symlink());
    let mode = fs::metadata(&plan).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    object(&["check", problem.to_str().unwrap(), link.to_str().unwrap()]);
    object(&to(&problem, Path::new("/dev/null")));
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    assert_eq!(
        listing(folder.path()),
        ["instance.json", "link", "plan.json"]
    );
}

#[test]
fn standard_output_has_a_name() {
    let folder = tempdir().unwrap();
    let problem = instance(folder.path(), |_| {});
    let output = scrimp(&to(&problem, Path::new("/dev/stdout")));
    assert!(output.status.success(), "{}", complaint(&output));
    let mut printed = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let plan = printed.next().unwrap().unwrap();
    assert_eq!(plan["format"], "scrimp-plan", "{}", text(&output));
}

#[test]
fn outputs_that_would_destroy_something_are_refused() {
    let folder = tempdir().unwrap();
    let problem = instance(folder.path(), |_| {});
    let before = fs::read(&problem).unwrap();
    let (hard, soft) = (folder.path().join("hard"), folder.path().join("soft"));
    fs::hard_link(&problem, &hard).unwrap();
    symlink(&problem, &soft).unwrap();
    for output in [&problem, &hard, &soft] {
        assert!(fails(6, &to(&problem, output)).contains("read as well"));
    }
    let both = folder.path().join("both");
    let twice = [
        &to(&problem, &both)[..],
        &["--report", both.to_str().unwrap()],
    ]
    .concat();
    assert!(fails(6, &twice).contains("it is the output"));
    let kept = write(folder.path(), "kept", b"kept");
    fs::set_permissions(&kept, Permissions::from_mode(0o444)).unwrap();
    assert!(fails(6, &to(&problem, &kept)).contains("read-only"));
    let pipe = folder.path().join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    assert!(fails(6, &to(&problem, &pipe)).contains("nobody reads"));
    assert_eq!(fs::read(&problem).unwrap(), before);
    assert_eq!(fs::read(&kept).unwrap(), b"kept");
    assert!(!both.exists());
}

#[test]
fn a_pipe_gets_the_plan() {
    let folder = tempdir().unwrap();
    let problem = instance(folder.path(), |_| {});
    let pipe = folder.path().join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let mut reader = Command::new("cat");
    let reader = reader.arg(&pipe).stdout(Stdio::piped()).spawn().unwrap();
    object(&to(&problem, &pipe));
    let read = reader.wait_with_output().unwrap();
    let plan: Value = serde_json::from_slice(&read.stdout).unwrap();
    assert_eq!(plan["format"], "scrimp-plan");
}

/// Training goes on from its own file, but nothing else may be written there.
#[test]
fn weights_may_go_where_they_came_from() {
    let folder = tempdir().unwrap();
    let model = write(folder.path(), "tiny.onnx", &tiny());
    let weights = folder.path().join("w.safetensors");
    let (model, weights) = (model.to_str().unwrap(), weights.to_str().unwrap());
    let train = "--budget 100% --steps 1 --costs static --save";
    let train = ["train", model].into_iter().chain(train.split(' '));
    let train: Vec<&str> = train.chain([weights]).collect();
    object(&train);
    let again = [&train[..], &["--resume", weights]].concat();
    assert_eq!(object(&again)["steps_done"], 2);
    let trace = ["--trace", weights];
    let traced = [&train[..train.len() - 2], &["--resume", weights], &trace].concat();
    assert!(fails(6, &traced).contains("read as well"));
}
