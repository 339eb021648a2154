//! How much memory there is and how much of it this process may take: the least of what the machine has, what
//! the process's control groups allow, and what its own limits, such as that of `ulimit -v`, allow. Only
//! Linux is supported.

use std::fs;
use std::path::Path;

use super::groups::{self, Group};
use super::room::HostMemory;

/// Asks the operating system. Both numbers are unknown on systems other than Linux.
pub fn memory() -> HostMemory {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let machine = of_machine(&text("/proc/meminfo"));
    let process = of_process(&text("/proc/self/limits"), &text("/proc/self/status"));
    let groups = groups::of_process(
        &text("/proc/self/cgroup"),
        &text("/proc/self/mountinfo"),
        Path::new("/"),
    );
    groups
        .iter()
        .map(Group::memory)
        .fold(machine.and(process), HostMemory::and)
}

/// The most physical memory in bytes that this process has used at any time, arenas, libraries and all. The
/// operating system counts it. It is unknown on systems other than Linux.
pub fn peak_resident() -> Option<u64> {
    field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// The machine's memory, from `/proc/meminfo`.
fn of_machine(meminfo: &str) -> HostMemory {
    HostMemory {
        total: field(meminfo, "MemTotal:"),
        available: field(meminfo, "MemAvailable:"),
    }
}

/// The limits on address space and on data, from `/proc/self/limits`, and what is used of them, from
/// `/proc/self/status`.
fn of_process(limits: &str, status: &str) -> HostMemory {
    let kinds = [
        ("Max address space", "VmSize:"),
        ("Max data size", "VmData:"),
    ];
    let each = kinds.iter().filter_map(|(limit, used)| {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
        // The soft limit comes first; a word stands there if there is no limit.
        let limit = line.split_whitespace().next()?.parse().ok()?;
        Some(HostMemory::limited(limit, field(status, used).unwrap_or(0)))
    });
    each.fold(HostMemory::default(), HostMemory::and)
}

/// The number of bytes in a line like `MemTotal:       16384 kB`.
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
    fn lines_of_kibibytes() {
        let text = "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:   8192 kB\n";
        let expected = HostMemory {
            total: Some(16 << 20),
            available: Some(8 << 20),
        };
        assert_eq!(of_machine(text), expected);
        assert_eq!(of_machine("MemTotal: x kB"), HostMemory::default());
    }

    #[test]
    fn limits_of_the_process() {
        let status = "VmPeak:\t  900 kB\nVmSize:\t    4 kB\nVmData:\t    1 kB\n";
        let limits = |space: &str, data: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max cpu time              unlimited            unlimited            seconds   \n\
                 Max data size             {data}            unlimited            bytes     \n\
                 Max address space         {space}            unlimited            bytes     \n"
            )
        };
        let found = |space, data| of_process(&limits(space, data), status);
        assert_eq!(found("unlimited", "unlimited"), HostMemory::default());
        assert_eq!(found("5120", "unlimited"), HostMemory::limited(5120, 4096));
        assert_eq!(found("unlimited", "5120"), HostMemory::limited(5120, 1024));
        assert_eq!(
            found("5120", "2048"),
            HostMemory {
                total: Some(2048),
                available: Some(1024)
            }
        );
        assert_eq!(
            found("1000", "unlimited"),
            HostMemory {
                total: Some(1000),
                available: Some(0)
            }
        );
        assert_eq!(of_process("", status), HostMemory::default());
    }
}
