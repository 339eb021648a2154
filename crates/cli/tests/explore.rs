//! The commands that plan many times: sweeps, largest batches, comparisons with published results.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use serde_json::{Value, json};
use support::{
    complaint, fails, instance, large, listing, object, papers, scrimp, text, tiny, training, write,
};
use tempfile::tempdir;

#[test]
fn twenty_budgets_never_cost_more_when_larger() {
    let folder = tempdir().unwrap();
    let path = large(folder.path());
    let limit = ["--time-limit", "0.1s", "--methods", "search,keep-all"];
    let swept = object(
        &[
            &["sweep", path.to_str().unwrap(), "--budgets", "60%..100%/20"],
            &limit[..],
        ]
        .concat(),
    );
    assert_eq!(swept["curves"].as_array().unwrap().len(), 2);
    for curve in swept["curves"].as_array().unwrap() {
        let budgets = curve["budgets"].as_array().unwrap();
        assert_eq!(budgets.len(), 20);
        let costs: Vec<f64> = budgets.iter().filter_map(|b| b["cost"].as_f64()).collect();
        assert!(!costs.is_empty(), "{curve}");
        assert!(
            costs.is_sorted_by(|a, b| a >= b),
            "{}: {costs:?}",
            curve["method"]
        );
        for budget in budgets.iter().filter(|budget| budget["feasible"] == true) {
            assert!(budget["peak_bytes"].as_u64() <= budget["budget_bytes"].as_u64());
            assert!(budget["lower_bound_percent"].as_f64() <= budget["overhead_percent"].as_f64());
        }
    }
}

#[test]
fn a_sweep_writes_a_page_and_numbers() {
    let folder = tempdir().unwrap();
    let path = training(folder.path());
    let (page, csv) = (
        folder.path().join("curve.html"),
        folder.path().join("curve.csv"),
    );
    let shown = scrimp(&[
        "sweep",
        path.to_str().unwrap(),
        "--budgets",
        "100%,30%..90%:20%,1",
        "--methods",
        "search,keep-all",
        "--report",
        page.to_str().unwrap(),
        "--csv",
        csv.to_str().unwrap(),
    ]);
    assert!(shown.status.success(), "{}", complaint(&shown));
    let shown = text(&shown);
    assert!(
        shown.contains("search") && shown.contains("keep-all") && shown.contains("70 %"),
        "{shown}"
    );
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("</html>") && page.contains("proven floor") && !page.contains("://"));
    let csv = std::fs::read_to_string(csv).unwrap();
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 1 + 2 * 6, "{csv}");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{csv}");
    assert!(
        rows[1..]
            .iter()
            .any(|row| row[0] == "keep-all" && row[3] == "true"),
        "{csv}"
    );
}

#[test]
fn a_planner_that_cant_work_leaves_the_others_curves() {
    let folder = tempdir().unwrap();
    let path = training(folder.path());
    let output = scrimp(&[
        "sweep",
        path.to_str().unwrap(),
        "--budgets",
        "80%",
        "--methods",
        "search,checkmate",
        "--highs",
        "/nonexistent/libhighs.so",
        "--json",
    ]);
    assert_eq!(output.status.code(), Some(9));
    assert!(complaint(&output).contains("/nonexistent/libhighs.so"));
    let swept: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(swept["curves"][0]["budgets"][0]["feasible"], true);
    assert!(
        swept["curves"][1]["error"]
            .as_str()
            .unwrap()
            .contains("HiGHS")
    );
}

#[test]
fn budgets_of_a_sweep_that_make_no_sense() {
    let folder = tempdir().unwrap();
    let path = training(folder.path());
    let path = path.to_str().unwrap();
    for (budgets, told) in [
        ("30%..8GiB", "unit"),
        ("min", "min"),
        ("30%..100%:0%", "step"),
        ("30%..100%/1", "points"),
        ("lots", "lots"),
        ("..", ""),
    ] {
        let sentence = fails(2, &["sweep", path, "--budgets", budgets]);
        assert!(sentence.contains(told), "{budgets}: {sentence}");
    }
    assert!(fails(2, &["sweep", path, "--methods", "search,magic"]).contains("magic"));
    fails(
        2,
        &["sweep", path, "--methods", "search", "--method", "search"],
    );
    let output = scrimp(&["sweep", path, "--budgets", "1,2", "--json"]);
    assert_eq!(output.status.code(), Some(4), "{}", complaint(&output));
    assert!(complaint(&output).contains("none exists below"));
}

#[test]
fn the_largest_batch_of_an_instance() {
    let folder = tempdir().unwrap();
    let path = training(folder.path());
    let path = path.to_str().unwrap();
    let (plan, problem) = (
        folder.path().join("plan.json"),
        folder.path().join("problem.json"),
    );
    let (plan, problem) = (plan.to_str().unwrap(), problem.to_str().unwrap());
    let base = ["max-batch", path, "--memory", "520"];
    let found = object(&[&base[..], &["-o", plan, "--problem-out", problem]].concat());
    let number = |found: &Value, key: &str| found[key].as_u64().unwrap();
    assert!(
        number(&found, "batch") > number(&found, "keep_all_batch"),
        "{found}"
    );
    assert!(number(&found, "batch") <= number(&found, "bound"));
    assert!(number(&found, "peak_bytes") <= 520);
    assert_eq!(number(&found, "fixed_bytes"), 20);
    assert_eq!(found["optimal"], true, "{found}");
    assert!(found["overhead_percent"].as_f64() <= found["overhead_limit_percent"].as_f64());
    assert_eq!(object(&["check", problem, plan])["cost"], found["cost"]);
    assert_eq!(object(&["check", path, plan])["valid"], true);
    // Fixed bytes take room from the batch; without added time only what fits by itself does.
    let less = object(&[&base[..], &["--fixed", "270"]].concat());
    assert!(number(&less, "batch") < number(&found, "batch"));
    let still = object(&[&base[..], &["--overhead", "0%"]].concat());
    assert_eq!(number(&still, "batch"), number(&still, "keep_all_batch"));
    // A memory beside it, which is scaled with the batch like everything else.
    let swap =
        |size: &str| object(&[&base[..], &["--swap", &format!("host={size}@100000")]].concat());
    let (none, much) = (swap("1B"), swap("1kB"));
    assert_eq!(number(&none, "swapped_bytes"), 0);
    assert!(number(&none, "batch") <= number(&found, "bound"));
    assert!(number(&much, "batch") > number(&found, "bound"), "{much}");
    assert!(number(&much, "batch") <= number(&much, "bound"));
    assert!(number(&much, "swapped_bytes") > 0 && number(&much, "peak_bytes") <= 520);
    assert!(much["makespan"].as_f64() <= much["cost_limit"].as_f64());
    // Values of batch 8 instead of 4: twice as large a batch.
    let larger = object(&[&base[..], &["--at", "8"]].concat());
    assert!(number(&larger, "batch") >= 2 * number(&found, "batch"));
    let shown = text(&scrimp(&base));
    assert!(
        shown.contains("largest batch") && shown.contains("proven"),
        "{shown}"
    );
}

#[test]
fn the_largest_batch_of_a_model() {
    let folder = tempdir().unwrap();
    let (plan, problem) = (
        folder.path().join("plan.json"),
        folder.path().join("problem.json"),
    );
    let (plan, problem) = (plan.to_str().unwrap(), problem.to_str().unwrap());
    let limit = ["--memory", "2MB", "--time-limit", "1s", "--threads", "1"];
    let found = object(
        &[
            &["max-batch", "digits", "-o", plan, "--problem-out", problem],
            &limit[..],
        ]
        .concat(),
    );
    let batch = found["batch"].as_u64().unwrap();
    assert!(batch > found["keep_all_batch"].as_u64().unwrap());
    assert!(found["peak_bytes"].as_u64().unwrap() <= 2_000_000);
    assert_eq!(object(&["check", problem, plan])["valid"], true);
    let trained = object(&[
        "train",
        "digits",
        "--batch",
        &batch.to_string(),
        "--budget",
        "2000000B",
        "--plan",
        plan,
        "--steps",
        "1",
        "--costs",
        "static",
        "--threads",
        "1",
    ]);
    assert!(trained["allocated_bytes"].as_u64().unwrap() <= 2_000_000);
    let swap = ["--swap", "ram=1GiB@20GB/s", "--overhead", "30%"];
    let more = object(
        &[
            &["max-batch", "digits", "-o", plan, "--problem-out", problem],
            &limit[..],
            &swap,
        ]
        .concat(),
    );
    assert!(more["batch"].as_u64().unwrap() > batch, "{more}");
    assert!(more["peak_bytes"].as_u64().unwrap() <= 2_000_000);
    assert_eq!(object(&["check", problem, plan])["valid"], true);
    let model = write(folder.path(), "tiny.onnx", &tiny());
    let onnx = object(&[
        "max-batch",
        model.to_str().unwrap(),
        "--memory",
        "100kB",
        "--time-limit",
        "1s",
    ]);
    assert!(onnx["batch"].as_u64().unwrap() > 100, "{onnx}");
}

#[test]
fn largest_batches_that_cant_be_asked_for() {
    let folder = tempdir().unwrap();
    let path = training(folder.path());
    let path = path.to_str().unwrap();
    assert!(fails(4, &["max-batch", path, "--memory", "19"]).contains("fixed"));
    assert!(fails(4, &["max-batch", path, "--memory", "21"]).contains("one sample needs"));
    assert!(fails(4, &["max-batch", "digits", "--memory", "1kB"]).contains("one sample needs"));
    assert!(fails(2, &["max-batch", path, "--memory", "50%"]).contains("50%"));
    assert!(
        fails(
            2,
            &["max-batch", path, "--memory", "1MB", "--overhead", "fast"]
        )
        .contains("one-forward")
    );
    assert!(
        fails(
            2,
            &["max-batch", "digits", "--memory", "1MB", "--fixed", "1kB"]
        )
        .contains("--fixed")
    );
    assert!(
        fails(
            2,
            &["max-batch", "digits", "--memory", "1MB", "--batch", "3"]
        )
        .contains("--batch")
    );
    fails(2, &["max-batch", path]);
    let forward = instance(folder.path(), |file| {
        file["units"]["memory"] = json!("bytes")
    });
    let forward = forward.to_str().unwrap();
    assert!(fails(3, &["max-batch", forward, "--memory", "1MB"]).contains("--overhead 10%"));
    let ours = object(&["max-batch", forward, "--memory", "1MB", "--overhead", "10%"]);
    assert!(ours["batch"].as_u64() >= ours["keep_all_batch"].as_u64());
    let abstract_units = instance(folder.path(), |_| {});
    assert!(
        fails(
            3,
            &[
                "max-batch",
                abstract_units.to_str().unwrap(),
                "--memory",
                "1MB"
            ]
        )
        .contains("not in bytes")
    );
}

#[test]
fn published_results_beside_ours() {
    let folder = tempdir().unwrap();
    let papers = papers(folder.path());
    let table = folder.path().join("table.md");
    let args = [
        "bench",
        "papers",
        papers.to_str().unwrap(),
        "--time-limit",
        "1s",
    ];
    let all = object(&args);
    let found = &all["tables"][0];
    assert_eq!(found["name"], "papers");
    let plans = found["plans"].as_array().unwrap();
    assert_eq!(plans.len(), 3, "{found}");
    for plan in plans {
        assert_eq!(plan["ours"].as_array().unwrap().len(), 2);
        for ours in plan["ours"].as_array().unwrap() {
            let reached = !ours["reached_seconds"].is_null();
            let published = plan["published"].as_array().unwrap().iter();
            let best = published
                .filter_map(|p| p["overhead_percent"].as_f64())
                .fold(f64::INFINITY, f64::min);
            assert_eq!(
                reached,
                ours["overhead_percent"].as_f64().unwrap() <= best + 0.05,
                "{plan}"
            );
        }
    }
    assert_eq!(found["batches"][0]["published"][0]["batch"], ">=9");
    assert!(found["batches"][0]["batch"].as_u64() > found["batches"][0]["keep_all_batch"].as_u64());
    assert_eq!(found["placements"][0]["arena_bytes"], 20);
    let output = scrimp(&[&args[..], &["-o", table.to_str().unwrap()]].concat());
    assert!(
        text(&output).contains("5 rows written"),
        "{}",
        text(&output)
    );
    let table = std::fs::read_to_string(table).unwrap();
    for part in [
        "## papers",
        "50.0 / 3.50 s",
        "| 25 |",
        "fixed order",
        "free order",
        "A: >=9",
        "| two | 2 | 20 | 20 | 20 | yes |",
    ] {
        assert!(table.contains(part), "{part} isn't in {table}");
    }
    let columns: std::collections::BTreeSet<usize> = table
        .lines()
        .filter(|line| line.contains("papers/") || line.starts_with("| chain ("))
        .map(|line| line.matches(" | ").count())
        .collect();
    assert_eq!(columns.len(), 1, "{table}");
}

#[test]
fn problems_and_seeds_in_a_bench() {
    let folder = tempdir().unwrap();
    let path = instance(folder.path(), |_| {});
    let problem = folder.path().join("problem.json");
    let problem = problem.to_str().unwrap();
    let made = ["--budget", "90%", "--problem-out", problem];
    let stated = object(&[&["plan", path.to_str().unwrap()], &made[..]].concat());
    let bench =
        |more: &[&str]| object(&[&["bench", "papers", problem, "--orders", "free"], more].concat());
    // Without budgets, the file's capacity.
    let plan = &bench(&["--seeds", "3"])["tables"][0]["plans"][0];
    assert_eq!(plan["instance"], "problem");
    assert_eq!(plan["budget_bytes"], stated["budget_bytes"]);
    let ours = &plan["ours"][0];
    assert_eq!(ours["found"], 3);
    for key in [
        "overhead_percent",
        "overhead_percent_best",
        "overhead_percent_worst",
    ] {
        assert_eq!(ours[key], stated["overhead_percent"], "{key}");
    }
    let plans = &bench(&["--budgets", "1,100%"])["tables"][0]["plans"];
    let [none, whole] = &plans.as_array().unwrap()[..] else {
        panic!("{plans}");
    };
    assert_eq!(none["ours"][0]["found"], 0);
    assert!(none["ours"][0]["overhead_percent"].is_null());
    assert_eq!(whole["ours"][0]["overhead_percent"], 0.0);
    let shown = text(&scrimp(&[
        "bench",
        "papers",
        problem,
        "--budgets",
        "1",
        "--seeds",
        "2",
    ]));
    assert!(shown.contains("found by 0 of 2 seeds"), "{shown}");
}

#[test]
fn comparisons_that_cant_be_made() {
    let folder = tempdir().unwrap();
    let papers = papers(folder.path());
    let papers = papers.to_str().unwrap();
    assert!(fails(3, &["bench", "papers", papers, "--only", "moccasin"]).contains("--only"));
    assert!(fails(3, &["bench", "papers", "/nonexistent"]).contains("/nonexistent"));
    let bare = training(folder.path());
    assert!(fails(3, &["bench", "papers", bare.to_str().unwrap()]).contains("published"));
    let junk = write(folder.path(), "junk.json", b"{]");
    assert!(fails(3, &["bench", "papers", junk.to_str().unwrap()]).contains("junk.json"));
    fails(2, &["bench", "papers"]);
    fails(
        6,
        &[
            "bench",
            "papers",
            papers,
            "-o",
            folder.path().to_str().unwrap(),
        ],
    );
    assert_eq!(
        listing(folder.path()),
        ["instance.json", "junk.json", "papers"]
    );
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_the_best() {
    let folder = tempdir().unwrap();
    let path = large(folder.path());
    let path = path.to_str().unwrap();
    let plan = folder.path().join("plan.json");
    let (plan, long) = (
        plan.to_str().unwrap(),
        ["--time-limit", "300s", "--json", "--threads", "1"],
    );
    let run = |args: &[&str], code: i32| -> Value {
        let after = std::time::Duration::from_secs(2);
        let output = support::interrupted(&[args, &long].concat(), after);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}",
            complaint(&output)
        );
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["interrupted"], true, "{args:?}");
        answer
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let best = run(&["plan", path, "--budget", "60%", "-o", plan], 0);
            assert!(best["peak_bytes"].as_u64() <= best["budget_bytes"].as_u64());
            assert_eq!(object(&["check", path, plan])["cost"], best["cost"]);
        });
        scope.spawn(|| {
            let least = run(&["plan", path, "--budget", "min"], 0);
            assert!(least["peak_bytes"].as_u64() <= least["base_peak_bytes"].as_u64());
        });
        scope.spawn(|| {
            let swept = run(&["sweep", path, "--budgets", "80%..99%/20"], 130);
            let budgets = swept["curves"][0]["budgets"].as_array().unwrap();
            let done = budgets
                .iter()
                .filter(|budget| budget["done"] == true)
                .count();
            assert!((1..20).contains(&done), "{done}");
        });
        scope.spawn(|| {
            let found = run(&["max-batch", path, "--memory", "10MB"], 0);
            assert!(found["batch"].as_u64() >= found["keep_all_batch"].as_u64());
        });
    });
}

/// A script makes what it puts into the background ignore the key.
#[cfg(unix)]
#[test]
fn ctrl_c_is_ignored_where_it_was() {
    let folder = tempdir().unwrap();
    let path = large(folder.path());
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "trap '' INT; exec \"$@\"", "sh"])
        .arg(assert_cmd::cargo::cargo_bin("scrimp"))
        .args(["plan", path.to_str().unwrap(), "--budget", "60%", "--json"])
        .args(["--time-limit", "8s", "--threads", "1"]);
    let after = std::time::Duration::from_secs(2);
    let output = support::interrupted_command(command, after).expect("the time limit ends it");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["interrupted"], false);
}

#[test]
fn the_least_budget_beside_a_small_memory() {
    let base = [
        "plan",
        "resnet18",
        "--batch",
        "8",
        "--image",
        "96",
        "--costs",
        "static",
        "--budget",
        "min",
        "--time-limit",
        "2s",
    ];
    let alone = object(&base);
    let peak = |plan: &Value| plan["peak_bytes"].as_u64().unwrap();
    // Weights fill the memory, so that nothing else can wait there; or their updates don't pack.
    for size in ["20MB", "30MB", "40MB"] {
        let swap = format!("host={size}@12GB/s");
        let beside = object(&[&base[..], &["--swap", &swap]].concat());
        assert!(peak(&beside) < peak(&alone), "{size}: {beside}");
        let host = &beside["devices"]["host"];
        assert!(host["peak_bytes"].as_u64() <= host["capacity_bytes"].as_u64());
    }
}
