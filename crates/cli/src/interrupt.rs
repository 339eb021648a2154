//! Ctrl-C: the first asks the work to stop with the best it has, the second ends the process. A process that was
//! started so that it ignores Ctrl-C goes on ignoring it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::failure::Kind;
use crate::terminal::tell;

/// Set by the first Ctrl-C; planners and the training loop read it.
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

/// Whether whoever started this process made it ignore Ctrl-C, as a script does with what it puts into the
/// background: the key is then meant for others.
#[cfg(unix)]
#[allow(unsafe_code, reason = "the system's interface to signals")]
fn is_ignored() -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only writes the present one to where there is room for it, and an
    // action of zeros is a valid one too.
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
