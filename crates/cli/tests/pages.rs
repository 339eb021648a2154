//! The pages that `--report` writes, opened in a browser where one is installed: tooltips, the theme and
//! sorting work, the console stays empty, and nothing is loaded from outside of the page.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(clippy::print_stdout, reason = "a test says that it was skipped")]

mod support;

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use support::{complaint, digits, scrimp, training, write};
use tempfile::tempdir;

/// What browsers of the Chromium family are called. Their headless mode prints a page after its scripts
/// have run.
const BROWSERS: [&str; 6] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome-headless-shell",
];

/// The browser that `SCRIMP_BROWSER` names, or else the first on the path.
fn browser() -> Option<PathBuf> {
    if let Some(named) = env::var_os("SCRIMP_BROWSER").filter(|named| !named.is_empty()) {
        return Some(named.into());
    }
    let path = env::var_os("PATH")?;
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let mut places = BROWSERS
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    places.find(|place| place.is_file())
}

/// Opens a copy of the page that watches itself and drives itself, and returns what came of it.
fn driven(browser: &Path, page: &str) -> Value {
    let folder = tempdir().unwrap();
    let page = page
        .replacen(
            "<head>",
            concat!("<head>", include_str!("pages/watch.html")),
            1,
        )
        .replacen(
            "</body>",
            concat!(include_str!("pages/drive.html"), "</body>"),
            1,
        );
    let path = write(folder.path(), "page.html", page.as_bytes());
    let output = assert_cmd::Command::new(browser)
        .args(["--headless", "--disable-gpu", "--window-size=1280,900"])
        // The sandbox needs rights that neither root nor a container has. The page is our own.
        .args(["--no-sandbox", "--disable-dev-shm-usage"])
        .args(["--virtual-time-budget=5000", "--enable-logging=stderr"])
        .arg(format!(
            "--user-data-dir={}",
            folder.path().join("user").display()
        ))
        .arg("--dump-dom")
        .arg(format!("file://{}", path.display()))
        .timeout(Duration::from_secs(120))
        .output()
        .unwrap();
    let log = complaint(&output);
    assert!(output.status.success(), "{}: {log}", browser.display());
    let dom = support::text(&output);
    let outcome = dom
        .split_once(r#"id="outcome">"#)
        .and_then(|(_, rest)| rest.split_once("</script>"));
    let (outcome, _) = outcome.unwrap_or_else(|| panic!("the script didn't end: {log}"));
    let mut outcome: Value = serde_json::from_str(outcome).unwrap();
    let said = log.lines().filter(|line| line.contains("CONSOLE"));
    outcome["console"] = said.collect();
    outcome
}

/// Runs a command that writes a page and drives it; the page has at least so many sortable tables.
fn works(arguments: &[&str], tables: u64) {
    let Some(browser) = browser() else {
        println!("skipped: no browser is installed; set SCRIMP_BROWSER to one");
        return;
    };
    let folder = tempdir().unwrap();
    let page = folder.path().join("page.html");
    let output = scrimp(&[arguments, &["--report", page.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", complaint(&output));
    let outcome = driven(&browser, &std::fs::read_to_string(&page).unwrap());
    assert_eq!(outcome["complaints"], json!([]), "{outcome}");
    assert_eq!(outcome["console"], json!([]), "{outcome}");
    assert_eq!(outcome["loaded"], json!([]), "{outcome}");
    assert!(outcome["tips"].as_u64() > Some(0), "{outcome}");
    assert!(outcome["tables"].as_u64() >= Some(tables), "{outcome}");
}

#[test]
fn the_page_of_a_plan_works_in_a_browser() {
    let folder = tempdir().unwrap();
    let path = training(folder.path());
    works(&["plan", path.to_str().unwrap(), "--budget", "70%"], 1);
}

#[test]
fn the_page_of_a_sweep_works_in_a_browser() {
    let folder = tempdir().unwrap();
    let path = training(folder.path());
    let methods = "search,keep-all";
    let instance = path.to_str().unwrap();
    works(
        &[
            "sweep",
            instance,
            "--budgets",
            "50%..100%:10%",
            "--methods",
            methods,
        ],
        1,
    );
}

#[test]
fn the_page_of_a_training_works_in_a_browser() {
    let data = digits();
    let flags = ["--batch", "64", "--budget", "70%", "--steps", "3"];
    works(
        &[
            &["train", "digits", "--data", &data, "--costs", "static"],
            &flags[..],
        ]
        .concat(),
        1,
    );
}

/// The checks find what they look for.
#[test]
fn a_page_that_fails_is_found_out() {
    let Some(browser) = browser() else {
        println!("skipped: no browser is installed; set SCRIMP_BROWSER to one");
        return;
    };
    let page = "<!doctype html><html><head></head><body><h1>page</h1><div id=\"tip\"></div>\
        <button id=\"theme\"></button><p data-tip=\"text\">text</p>\
        <table class=\"sortable\"><thead><tr><th>number</th></tr></thead><tbody>\
        <tr><td data-v=\"2\">2</td></tr><tr><td data-v=\"10\">10</td></tr><tr><td data-v=\"3\">3</td></tr>\
        </tbody></table><img src=\"picture.png\"></body></html>";
    let outcome = driven(&browser, page);
    let complaints = outcome["complaints"].to_string();
    for found in [
        "no tooltip",
        "theme stays the same",
        "sorts",
        "refused file",
    ] {
        assert!(complaints.contains(found), "{found}: {outcome}");
    }
}
