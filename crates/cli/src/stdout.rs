//! Standard output, reserved for the answer. Anything else that is written to it, for example by a solver
//! library, goes to standard error, so that `--json` prints one object and nothing more.

use std::io::{self, Write};
use std::path::Path;

#[cfg(unix)]
static ANSWERS: std::sync::OnceLock<std::fs::File> = std::sync::OnceLock::new();

/// Reserves standard output. If the system doesn't allow that, the answer and other output share it.
#[cfg(unix)]
pub fn set_aside() {
    if let Ok(own) = rustix::io::dup(rustix::stdio::stdout())
        && rustix::stdio::dup2_stdout(rustix::stdio::stderr()).is_ok()
    {
        let _ = ANSWERS.set(own.into());
    }
}

#[cfg(not(unix))]
pub fn set_aside() {}

/// Writes an answer to standard output; returns false if the reader has closed it.
pub fn print(text: &str) -> bool {
    write_with(|out| out.write_all(text.as_bytes())).is_ok()
}

/// Writes to standard output whatever `fill` writes.
pub fn write_with(fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    #[cfg(unix)]
    if let Some(own) = ANSWERS.get() {
        let mut out = io::BufWriter::new(own);
        return fill(&mut out).and_then(|()| out.flush());
    }
    let mut out = io::stdout().lock();
    fill(&mut out).and_then(|()| out.flush())
}

/// Whether a path is a name of standard output. Opening that name would open standard error, since standard
/// output is reserved.
pub fn is_at(path: &Path) -> bool {
    let names = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];
    names.iter().any(|name| path == Path::new(name))
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    /// The test below runs it in a process of its own.
    #[test]
    #[ignore = "what another test runs as a child"]
    fn answer_among_strays() {
        super::set_aside();
        rustix::io::write(rustix::stdio::stdout(), b"a stray line\n").unwrap();
        assert!(super::print("{\"answer\": 1}\n"));
    }

    #[test]
    fn only_the_answer_is_on_standard_output() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "stdout::tests::answer_among_strays"])
            .args(["--ignored", "--nocapture"])
            .output()
            .unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&child.stdout),
            String::from_utf8_lossy(&child.stderr),
        );
        assert!(out.contains("{\"answer\": 1}"), "{out} {err}");
        assert!(
            !out.contains("stray") && err.contains("a stray line"),
            "{out} {err}"
        );
    }
}
