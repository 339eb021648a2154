//! The processor's last-level cache, as far as the operating system tells.

use std::fs;
use std::path::Path;

use super::locality::Cache;
use crate::processor::Processor;

/// The largest cache that the first processor reads through; `None` where the system doesn't tell. Only Linux
/// does.
pub fn last_level_cache() -> Option<Cache> {
    in_folder(Path::new("/sys/devices/system/cpu/cpu0/cache"))
}

/// The cache whose contents times on a processor are taken to depend on: a CPU's.
pub fn cache_of(processor: Processor<'_>) -> Option<Cache> {
    match processor {
        Processor::Cpu(_) => last_level_cache(),
        Processor::Gpu(_) | Processor::Null => None,
    }
}

fn in_folder(folder: &Path) -> Option<Cache> {
    let entries = fs::read_dir(folder).ok()?;
    let caches = entries.filter_map(|entry| cache(&entry.ok()?.path()));
    caches.max_by_key(|cache| cache.bytes)
}

/// The cache that a folder of the system describes.
fn cache(folder: &Path) -> Option<Cache> {
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
    if text("type")?.trim() == "Instruction" {
        return None;
    }
    let size = text("size")?;
    let kibibytes: u64 = size.trim().strip_suffix('K')?.parse().ok()?;
    // The system says 0 for fully associative caches.
    let ways = text("ways_of_associativity").and_then(|ways| ways.trim().parse().ok());
    Some(Cache {
        bytes: kibibytes.checked_mul(1024).filter(|&bytes| bytes > 0)?,
        ways: ways.filter(|&ways| ways > 0).unwrap_or(MANY).min(MANY),
    })
}

/// With this many ways a cache behaves like a fully associative one.
const MANY: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_holds_data() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |index: &str, what: [&str; 3]| {
            let folder = folder.path().join(index);
            fs::create_dir_all(&folder).expect("written");
            for (name, text) in ["type", "size", "ways_of_associativity"].iter().zip(what) {
                fs::write(folder.join(name), format!("{text}\n")).expect("written");
            }
        };
        assert_eq!(in_folder(folder.path()), None);
        write("index0", ["Data", "48K", "12"]);
        write("index1", ["Instruction", "900000K", "8"]);
        write("index2", ["Unified", "what", "8"]);
        let small = Cache {
            bytes: 48 << 10,
            ways: 12,
        };
        assert_eq!(in_folder(folder.path()), Some(small));
        write("index3", ["Unified", "2048K", "0"]);
        let large = Cache {
            bytes: 2 << 20,
            ways: MANY,
        };
        assert_eq!(in_folder(folder.path()), Some(large));
        assert_eq!(in_folder(&folder.path().join("not there")), None);
    }
}
