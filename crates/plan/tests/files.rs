//! Files: round trips, what is refused and why, and any bytes.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::*;
use scrimp_plan::file::{Content, Fingerprint, MAX_FILE_BYTES, read, read_text, write_text};
use scrimp_plan::testing::{self, Shape, Unstructured, random_bytes, random_problem};
use scrimp_plan::*;
use std::time::{Duration, Instant};

#[test]
fn problems_are_read_as_they_were_written() {
    for seed in 0..50 {
        let problem = random_problem(seed, &Shape::everything(30));
        let asked = Capacities::bytes_of(d(0), seed).with_joules(d(0), Some(seed as f64));
        let text = problem_to_json(&problem, &asked);
        let (again, capacities) = problem_from_json(&text).unwrap();
        assert_eq!(capacities, asked);
        assert_eq!(Fingerprint::of(&again), Fingerprint::of(&problem));
        let (one, other) = (problem.parts(), again.parts());
        assert_eq!(one.devices, other.devices);
        assert_eq!(one.links, other.links);
        assert_eq!(one.tasks, other.tasks);
        assert_eq!(one.values, other.values);
        assert_eq!((one.name, one.units), (other.name, other.units));
    }
}

#[test]
fn plans_are_read_as_they_were_written() {
    for seed in 0..50 {
        let problem = random_problem(seed, &Shape::everything(30));
        let plan =
            testing::plan(&mut Unstructured::new(&random_bytes(seed, 500)), &problem).unwrap();
        assert_eq!(
            plan_from_json(&problem, &plan_to_json(&problem, &plan, None)).unwrap(),
            plan
        );
    }
}

#[test]
fn numbers_survive_exactly() {
    let mut parts = parts();
    parts.tasks[t(0)].modes[0].seconds = 0.1 + 0.2;
    parts.tasks[t(1)].modes[0].seconds = 1.234_567_890_123_456_7e-9;
    parts.values[v(1)].bytes = (1 << 53) + 1;
    let problem = Problem::new(parts).unwrap();
    let (again, _) =
        problem_from_json(&problem_to_json(&problem, &Capacities::unlimited())).unwrap();
    assert_eq!(again.task(t(0)).modes, problem.task(t(0)).modes);
    assert_eq!(again.task(t(1)).modes, problem.task(t(1)).modes);
    assert_eq!(again.value(v(1)).bytes, (1 << 53) + 1);
}

#[test]
fn fingerprints_tell_apart_what_matters_to_a_plan_only() {
    let base = Fingerprint::of(&problem());
    assert_eq!(base.to_string(), "7d6e628aa12bb9296df9bbb156fc4465");
    let changed = |change: fn(&mut ProblemParts)| {
        let mut parts = parts();
        change(&mut parts);
        Fingerprint::of(&Problem::new(parts).unwrap())
    };
    assert_eq!(changed(|p| p.tasks[t(0)].name = "other".into()), base);
    assert_eq!(changed(|p| p.tasks[t(0)].modes[0].seconds = 9.0), base);
    assert_eq!(changed(|p| p.devices[d(1)].arithmetic = "own".into()), base);
    assert_ne!(changed(|p| p.devices[d(1)].arithmetic = "gpu".into()), base);
    assert_ne!(changed(|p| p.values[v(1)].bytes = 9), base);
    assert_ne!(changed(|p| p.tasks[t(0)].rerunnable = false), base);
    assert_ne!(changed(|p| p.tasks[t(0)].modes[0].workspace = 9), base);
    assert_ne!(changed(|p| p.values[v(3)].keep = Keep::Anywhere), base);
}

#[test]
fn a_plan_for_another_problem_is_refused() {
    let text = plan_to_json(&problem(), &Plan::keep_all(&problem(), d(0)).unwrap(), None);
    let mut parts = parts();
    parts.values[v(1)].bytes = 9;
    let error = plan_from_json(&Problem::new(parts).unwrap(), &text).unwrap_err();
    assert!(matches!(error, FileError::OtherProblem { .. }), "{error}");
    assert!(error.to_string().contains("plan again"), "{error}");
}

#[test]
fn a_plan_may_be_read_for_other_workspaces() {
    let plan = Plan::keep_all(&problem(), d(0)).unwrap();
    let text = plan_to_json(&problem(), &plan, Some("a device"));
    let read = |change: fn(&mut ProblemParts)| {
        let mut parts = parts();
        change(&mut parts);
        saved_plan_from_json(&Problem::new(parts).unwrap(), &text)
    };
    let same = read(|_| {}).unwrap();
    assert_eq!(
        (same.device.as_deref(), same.exact),
        (Some("a device"), true)
    );
    let other = read(|p| p.tasks[t(0)].modes[0].workspace = 9).unwrap();
    assert_eq!((other.plan, other.exact), (plan.clone(), false));
    let error = read(|p| p.values[v(1)].bytes = 9).unwrap_err();
    assert!(matches!(error, FileError::OtherProblem { .. }), "{error}");
    // A file that doesn't say more than its problem's fingerprint is for exactly that problem.
    let structure = format!(
        ",\"structure\":\"{}\"",
        Fingerprint::without_workspaces(&problem())
    );
    assert!(text.contains(&structure));
    let short = text.replace(&structure, "");
    assert!(saved_plan_from_json(&problem(), &short).unwrap().exact);
    let mut parts = parts();
    parts.tasks[t(0)].modes[0].workspace = 9;
    let problem = Problem::new(parts).unwrap();
    assert!(saved_plan_from_json(&problem, &short).is_err());
}

/// Replaces one piece of the small problem's file and returns the error.
fn problem_error(from: &str, to: &str) -> String {
    let text = problem_to_json(&problem(), &Capacities::unlimited());
    assert!(text.contains(from), "{text}");
    problem_from_json(&text.replacen(from, to, 1))
        .unwrap_err()
        .to_string()
}

#[test]
fn bad_problem_files_are_refused_with_the_place() {
    let cases = [
        ("\"version\":1", "\"version\":2", "version 2"),
        ("\"version\":1", "\"version\":\"1\"", "invalid type"),
        (
            "\"format\":\"scrimp-problem\"",
            "\"format\":\"scrimp-plan\"",
            "this is a plan, not a problem",
        ),
        (
            "\"format\":\"scrimp-problem\"",
            "\"format\":\"other\"",
            "some other JSON",
        ),
        ("\"seconds\":2.0", "\"seconds\":NaN", "NaN isn't a number"),
        (
            "\"seconds\":2.0",
            "\"seconds\":-Infinity",
            "Infinity isn't a number",
        ),
        (
            "\"seconds\":2.0",
            "\"seconds\":1e999",
            "number out of range",
        ),
        (
            "\"seconds\":2.0",
            "\"seconds\":-1",
            "task0 (forward) has `seconds` = -1",
        ),
        ("\"bytes\":6", "\"bytes\":-6", "invalid value"),
        (
            "\"bytes\":6",
            "\"bytes\":6.5",
            "invalid type: floating point",
        ),
        (
            "\"bytes\":6",
            "\"bytes\":18446744073709551615",
            "together exceed",
        ),
        (
            "\"bytes\":6",
            "\"bytes\":18446744073709551616",
            "invalid type",
        ),
        ("\"bytes\":6", "\"bits\":6", "unknown field `bits`"),
        (
            "\"inputs\":[0,1]",
            "\"inputs\":[0,4294967295]",
            "there are only 5 values",
        ),
        ("\"inputs\":[0,1]", "\"inputs\":[0,3]", "cycle"),
        ("\"computes\":true", "\"computes\":1", "invalid type"),
        ("}", "", "line 1"),
    ];
    for (from, to, expected) in cases {
        let message = problem_error(from, to);
        assert!(message.contains(expected), "{to}: {message}");
    }
    let deep = format!("{{\"format\":{}", "[".repeat(100_000));
    assert!(
        problem_from_json(&deep)
            .unwrap_err()
            .to_string()
            .contains("recursion limit")
    );
    let long = " ".repeat(MAX_FILE_BYTES as usize + 1);
    assert!(matches!(
        problem_from_json(&long),
        Err(FileError::TooLarge { .. })
    ));
}

const INSTANCE: &str = r#"{"name":"i","units":{"cost":"µs, measured","memory":"bytes (float32)"},"fixed_memory":7,
"outputs":[1],"nodes":[{"name":"a","cost":1,"memory":5},{"name":"b","cost":2.5,"memory":6.0,"is_backward":true},
{"name":"c","cost":0,"memory":1}],"edges":[[0,1],[0,2],[0,2]]}"#;

#[test]
fn an_instance_becomes_a_problem() {
    let instance = read_instance(INSTANCE).unwrap();
    let problem = &instance.problem;
    assert_eq!(
        (
            problem.units().cost.as_str(),
            problem.units().memory.as_str()
        ),
        ("µs", "B")
    );
    assert_eq!(instance.fixed_memory, Some(7));
    assert_eq!(problem.value(v(1)).keep, Keep::Anywhere);
    assert_eq!(problem.value(v(2)).keep, Keep::No);
    assert_eq!(problem.task(t(1)).phase, Phase::Backward);
    assert_eq!(problem.consumers(v(0)), [t(1), t(2)]);
    let checked = check(problem, Plan::keep_all(problem, d(0)).unwrap()).unwrap();
    assert_eq!(checked.peak(d(0)), 12);
}

#[test]
fn bad_instances_are_refused_with_the_node_or_edge() {
    let cases = [
        (
            "\"memory\":5",
            "\"memory\":5.5",
            "node 0 (a): `memory` is 5.5",
        ),
        (
            "\"memory\":5",
            "\"memory\":-5",
            "node 0 (a): `memory` is -5",
        ),
        (
            "\"memory\":5",
            "\"memory\":1e30",
            "node 0 (a): `memory` is 1e+30",
        ),
        (
            "\"memory\":5",
            "\"memory\":null",
            "node 0 (a): `memory` is missing",
        ),
        (
            "\"memory\":5",
            "\"memory\":18446744073709551615",
            "together exceed",
        ),
        (
            "\"cost\":2.5",
            "\"cost\":-2.5",
            "node 1 (b): `cost` is -2.5",
        ),
        (
            "\"cost\":2.5",
            "\"cost\":\"2.5\"",
            "node 1 (b): `cost` is \"2.5\"",
        ),
        ("\"cost\":2.5", "\"cost\":NaN", "NaN isn't a number"),
        ("\"cost\":2.5", "\"cost\":1e40", "at most 1e30"),
        ("[0,1]", "[1,0]", "edge 0 is [1, 0]"),
        ("[0,1]", "[1,1]", "edge 0 is [1, 1]"),
        ("[0,1]", "[0,3]", "there are only 3 nodes"),
        ("[0,1]", "[0]", "invalid length"),
        ("\"outputs\":[1]", "\"outputs\":[3]", "output 0"),
        (
            "\"fixed_memory\":7",
            "\"fixed_memory\":0.5",
            "`fixed_memory` is 0.5",
        ),
        ("\"nodes\":[", "\"nodes\":7,\"n\":[", "invalid type"),
        ("\"edges\":[", "\"e\":[", "some other JSON"),
    ];
    for (from, to, expected) in cases {
        assert!(INSTANCE.contains(from));
        let message = read_instance(&INSTANCE.replacen(from, to, 1))
            .unwrap_err()
            .to_string();
        assert!(message.contains(expected), "{to}: {message}");
    }
}

const SEVERAL: &str = r#"{"name":"s","devices":["a","b"],"budget_per_device":[9.0,9],
"nodes":[{"name":"x","cost":1,"memory":4,"costs":[1,2]},{"name":"y","cost":1,"memory":4,"costs":[3,4]},
{"name":"z","cost":1,"memory":4,"costs":[3,4]}],"edges":[[0,1],[0,2]],"copy_costs":[[[0,5],[6,0]],[[0,8],[2,0]]]}"#;

#[test]
fn the_largest_copy_cost_of_a_value_counts() {
    let Instance {
        problem,
        capacities,
        ..
    } = read_instance(SEVERAL).unwrap();
    let seconds = |from, to, value| {
        problem.copy_seconds(problem.link_between(d(from), d(to)).unwrap(), v(value))
    };
    assert_eq!(
        (seconds(0, 1, 0), seconds(1, 0, 0), seconds(0, 1, 1)),
        (8.0, 6.0, 0.0)
    );
    assert_eq!(capacities.bytes(d(0)), Some(9));
    let cases = [
        ("[9.0,9]", "[9.5,9]", "device 0: `budget_per_device` is 9.5"),
        (
            "[9.0,9]",
            "[9]",
            "`budget_per_device` has 1 entries, but must have 2",
        ),
        (
            "\"costs\":[3,4]",
            "\"costs\":[3]",
            "node 1 (y): `costs` has 1 entries",
        ),
        (
            "\"costs\":[3,4]",
            "\"costs\":[3,-4]",
            "node 1 (y): `costs` is -4",
        ),
        (
            "[[0,5],[6,0]],",
            "",
            "`copy_costs` has 1 entries, but must have 2",
        ),
        (
            "[[0,5],[6,0]]",
            "[[0,5]]",
            "edge 0: `copy_costs` has 1 entries",
        ),
        (
            "[[0,5],[6,0]]",
            "[[0,-5],[6,0]]",
            "edge 0: `copy_costs` is -5",
        ),
        (
            "[\"a\",\"b\"]",
            "[\"a\",\"a\"]",
            "two devices are named `a`",
        ),
    ];
    for (from, to, expected) in cases {
        assert!(SEVERAL.contains(from));
        let message = read_instance(&SEVERAL.replacen(from, to, 1))
            .unwrap_err()
            .to_string();
        assert!(message.contains(expected), "{to}: {message}");
    }
}

#[test]
fn bad_allocation_instances_are_refused_with_the_buffer() {
    let good = r#"{"name":"a","capacity":8,"buffer_fields":["id","lower","upper","size"],"buffers":[["x",0,3,4],["y",3,9,4]]}"#;
    let instance = read_allocation_instance(good).unwrap();
    assert_eq!(
        instance.intervals[1],
        Interval {
            start: 3,
            end: 9,
            bytes: 4
        }
    );
    let cases = [
        ("[\"x\",0,3,4]", "[\"x\",4,3,4]", "buffer 0: `upper` is 3"),
        (
            "[\"x\",0,3,4]",
            "[\"x\",0,3]",
            "buffer 0: `size` is missing",
        ),
        ("[\"x\",0,3,4]", "[\"x\",0,3,-4]", "buffer 0: `size` is -4"),
        (
            "[\"x\",0,3,4]",
            "[\"x\",0,3,4],[\"z\",5,6,18446744073709551615]",
            "all sizes together",
        ),
        ("\"capacity\":8", "\"capacity\":-8", "`capacity` is -8"),
        ("\"size\"", "\"bytes\"", "buffer_fields"),
        ("\"buffers\"", "\"nodes\"", "some other JSON"),
    ];
    for (from, to, expected) in cases {
        let message = read_allocation_instance(&good.replacen(from, to, 1))
            .unwrap_err()
            .to_string();
        assert!(message.contains(expected), "{to}: {message}");
    }
    assert!(matches!(read(good), Ok(Content::Allocation(_))));
    assert!(matches!(
        read_instance(good),
        Err(FileError::NotThis { .. })
    ));
}

#[test]
fn files_are_replaced_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("problem.json");
    write_text(&path, "old").unwrap();
    write_text(
        &path,
        &problem_to_json(&problem(), &Capacities::unlimited()),
    )
    .unwrap();
    assert!(problem_from_json(&read_text(&path).unwrap()).is_ok());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let nowhere = write_text(&folder.path().join("no/such/folder.json"), "x").unwrap_err();
    assert!(nowhere.to_string().contains("can't write"), "{nowhere}");
    // A folder is in the way of the last step: the temporary file must not stay behind.
    std::fs::create_dir(folder.path().join("taken")).unwrap();
    assert!(write_text(&folder.path().join("taken"), "x").is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(matches!(read_text(&path), Err(FileError::NotText { .. })));
    assert!(matches!(
        read_text(folder.path()),
        Err(FileError::Io { .. })
    ));
}

/// Random bytes, and texts that were right before some of their bytes changed.
#[test]
fn any_bytes_for_a_second() {
    let (problem, end) = (problem(), Instant::now() + Duration::from_secs(1));
    let plan = plan_to_json(&problem, &Plan::keep_all(&problem, d(0)).unwrap(), None);
    let texts = [
        problem_to_json(&problem, &Capacities::unlimited()),
        plan,
        INSTANCE.to_owned(),
        SEVERAL.to_owned(),
    ];
    let mut seed = 0;
    while Instant::now() < end {
        let noise = random_bytes(seed, 64);
        let mut text = texts[seed as usize % texts.len()].clone().into_bytes();
        for change in noise[4..].chunks_exact(4).take(usize::from(noise[0] % 6)) {
            let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % text.len();
            // Mostly signs that mean something in JSON, else the parser stops at once.
            let sign = b"0123456789-.e\"[]{},:null"[usize::from(change[2]) % 24];
            text[at] = if change[3] < 16 { change[2] } else { sign };
        }
        for data in [&noise, &text] {
            testing::problem_text(data);
            testing::plan_text(&problem, data);
            testing::instance_text(data);
        }
        seed += 1;
    }
    assert!(seed > 200, "only {seed} in a second");
}
