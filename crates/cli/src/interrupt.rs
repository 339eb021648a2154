//! Ctrl-C: the first asks the work to stop with the best it has, the second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::failure::Kind;

/// Set by the first Ctrl-C; planners and the training loop read it.
static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The flag that the first Ctrl-C sets.
pub fn flag() -> Arc<AtomicBool> {
    Arc::clone(&STOP)
}

/// Installs the handler, once.
pub fn install() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(Kind::Interrupted.code()));
        }
        note("stopping with the best so far; press Ctrl-C again to abort");
    })
}

/// Whether the user asked to stop.
pub fn requested() -> bool {
    STOP.load(Ordering::SeqCst)
}

#[allow(
    clippy::print_stderr,
    reason = "notes to the person at the terminal go to standard error"
)]
fn note(text: &str) {
    eprintln!("scrimp: {text}");
}
