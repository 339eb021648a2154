//! What this machine offers.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Threads that can run at the same time.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The folder where what can be made again is kept: `SCRIMP_CACHE`, else `scrimp` in the user's cache folder.
/// None if `SCRIMP_CACHE` is empty or there is no such folder.
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

/// Memory in bytes, as far as the operating system says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All of it, or this process's limit where that is less.
    pub total: Option<u64>,
    /// What can be taken without pushing anything else out.
    pub available: Option<u64>,
}

/// Asks the operating system; knows Linux, elsewhere both are unknown.
pub fn memory() -> Memory {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let (total, available) = (field(&text, "MemTotal:"), field(&text, "MemAvailable:"));
    let group = Path::new("/sys/fs/cgroup");
    let number = |name: &str| -> Option<u64> {
        fs::read_to_string(group.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let limit = number("memory.max");
    let left = limit.map(|limit| limit.saturating_sub(number("memory.current").unwrap_or(0)));
    Memory {
        total: least(total, limit),
        available: least(available, left),
    }
}

/// The most physical memory that this process has had at a time, in bytes: arenas, libraries and all. The
/// operating system counts it; Linux tells, elsewhere it is unknown.
pub fn peak_resident() -> Option<u64> {
    field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A line like `MemTotal:       16384 kB`, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo() {
        let text = "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:   8192 kB\n";
        assert_eq!(field(text, "MemTotal:"), Some(16 << 20));
        assert_eq!(field(text, "MemAvailable:"), Some(8 << 20));
        assert_eq!(field(text, "Swap:"), None);
        assert_eq!(field("MemTotal: x kB", "MemTotal:"), None);
    }

    #[test]
    fn the_smaller_known_number_counts() {
        assert_eq!(least(Some(3), Some(2)), Some(2));
        assert_eq!(least(None, Some(2)), Some(2));
        assert_eq!(least(None, None), None);
    }
}
