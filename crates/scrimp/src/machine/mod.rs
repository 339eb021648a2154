//! What this machine offers.

mod energy;
mod groups;
mod memory;
mod others;
mod room;

use std::env;
use std::path::PathBuf;

pub use energy::{EnergyCounter, NoEnergyCounter};
pub use memory::{memory, peak_resident};
pub use others::Others;
pub use room::HostMemory;

/// Threads that can run at the same time.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The folder for files that can be made again: `SCRIMP_CACHE`, or else `scrimp` in the user's cache folder.
/// `None` if `SCRIMP_CACHE` is empty or the user has no cache folder.
pub fn cache_folder() -> Option<PathBuf> {
    if let Some(folder) = env::var_os("SCRIMP_CACHE") {
        return (!folder.is_empty()).then(|| folder.into());
    }
    let folder = |name: &str| {
        let path = env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let user = if cfg!(windows) {
        folder("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        folder("HOME").map(|home| home.join("Library/Caches"))
    } else {
        folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))
    };
    user.map(|user| user.join("scrimp"))
}
