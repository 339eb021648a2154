//! A stub of a library in C, compiled by the test that uses it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of this folder, compiled with this macro into another folder; without a C compiler the test says that it is
/// skipped.
#[allow(clippy::print_stdout, reason = "a skipped test says so")]
pub fn compiled(source: &str, wrong: &str, into: &Path) -> Option<PathBuf> {
    let file = into.join(format!("lib{wrong}.so"));
    // A test of another crate uses it, too.
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../gpu/tests")
        .join(source);
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .args([&file, &source])
        .arg(format!("-D{wrong}"))
        .status();
    match compiled {
        Ok(status) => assert!(status.success(), "the stub compiles"),
        Err(error) => {
            println!("skipped: no C compiler for the stub: {error}");
            return None;
        }
    }
    Some(file)
}
