//! Ctrl-C: the first one asks the work to stop with the best result so far, the second one ends the process.
//! A process that was started to ignore Ctrl-C keeps ignoring it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::failure::Kind;
use crate::terminal::tell;

/// The first Ctrl-C sets it; planners and the training loop read it.
static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The flag that the first Ctrl-C sets.
pub fn flag() -> Arc<AtomicBool> {
    Arc::clone(&STOP)
}

/// Installs the handler, once.
pub fn install() -> Result<(), ctrlc::Error> {
    if is_ignored() {
        return Ok(());
    }
    ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(Kind::Interrupted.code()));
        }
        tell("stopping with the best so far; press Ctrl-C again to abort");
    })
}

/// Whether the parent made this process ignore Ctrl-C, as scripts do with processes in the background: the
/// key is then meant for other processes.
#[cfg(unix)]
#[allow(unsafe_code, reason = "the system's interface to signals")]
fn is_ignored() -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only writes the present one, to memory that has room for it. An
    // action of zeros is a valid one, too.
    unsafe {
        libc::sigaction(libc::SIGINT, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(not(unix))]
fn is_ignored() -> bool {
    false
}

/// Whether the user asked to stop.
pub fn requested() -> bool {
    STOP.load(Ordering::SeqCst)
}
