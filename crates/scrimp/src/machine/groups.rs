//! The control groups that limit the memory of a process: its own and all those around it, in the unified
//! hierarchy (version 2) and in the memory controller's (version 1), whichever of the two the system has
//! mounted.

use std::fs;
use std::path::{Path, PathBuf};

use super::room::HostMemory;

/// A group's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// All groups that contain the process with this `/proc/self/cgroup` and `/proc/self/mountinfo`, as far as
/// they are visible. Paths of mounts start at `root`.
pub(super) fn of_process(cgroup: &str, mountinfo: &str, root: &Path) -> Vec<Group> {
    let mounts = || mountinfo.lines().filter_map(Mount::parse);
    let mut groups = Vec::new();
    for (version, path) in cgroup.lines().filter_map(membership) {
        for mount in mounts().filter(|mount| mount.version == version) {
            let top = root.join(mount.point.trim_start_matches('/'));
            let inner = top.join(mount.inside(path));
            let folders = inner
                .ancestors()
                .take_while(|folder| folder.starts_with(&top));
            groups.extend(folders.map(|folder| Group {
                folder: folder.to_owned(),
                version,
            }));
        }
    }
    groups
}

/// Parses a line like `4:memory:/a/b` or `0::/a/b`: the hierarchy, if it limits memory, and the group's path
/// in it.
fn membership(line: &str) -> Option<(Version, &str)> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let version = match controllers {
        "" if number == "0" => Version::Two,
        _ if controllers.split(',').any(|one| one == "memory") => Version::One,
        _ => return None,
    };
    Some((version, path))
}

/// A mounted hierarchy.
struct Mount<'a> {
    version: Version,
    /// The group that the mount point shows.
    top: &'a str,
    point: String,
}

impl<'a> Mount<'a> {
    /// Parses a line like `35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory`.
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (top, point) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1)?);
        let version = match kind {
            "cgroup2" => Version::Two,
            "cgroup" if options.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        let point = unescaped(point);
        Some(Mount {
            version,
            top,
            point,
        })
    }

    /// A group's path relative to the mount point. A group outside of the mounted one, as paths of other
    /// namespaces are, is taken for the mounted one.
    fn inside<'p>(&self, path: &'p str) -> &'p str {
        let rest = match self.top {
            "/" => Some(path),
            top => path.strip_prefix(top),
        };
        let rest = rest.filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let rest = rest.filter(|rest| !rest.split('/').any(|part| part == ".."));
        rest.unwrap_or("").trim_start_matches('/')
    }
}

/// A mount point in which octal escapes, such as those of spaces, are decoded.
fn unescaped(point: &str) -> String {
    let mut text = point.to_owned();
    for (octal, character) in [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ] {
        text = text.replace(octal, character);
    }
    text
}

impl Group {
    /// The limit and what is left of it. Memory in use that can be read from files again doesn't count as
    /// used.
    pub(super) fn memory(&self) -> HostMemory {
        let names = match self.version {
            Version::One => [
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            ],
            Version::Two => ["memory.max", "memory.current", "inactive_file"],
        };
        let [limit, used, again] = names;
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        let number = |name: &str| read(name).trim().parse::<u64>().ok();
        let stat = read("memory.stat");
        let entry = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse::<u64>().ok())
        };
        let used = number(used)
            .unwrap_or(0)
            .saturating_sub(entry(again).unwrap_or(0));
        // The groups around the mounted one aren't visible, but version 1 tells the least of their limits.
        let limits = [number(limit), entry("hierarchical_memory_limit")];
        let each = limits
            .iter()
            .flatten()
            .map(|&limit| HostMemory::limited(limit, used));
        each.fold(HostMemory::default(), HostMemory::and)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up file system.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Tree {
            let tree = Tree(tempfile::tempdir().expect("a folder"));
            for (path, text) in files {
                let path = tree.0.path().join(path);
                fs::create_dir_all(path.parent().expect("it has one")).expect("made");
                fs::write(path, text).expect("written");
            }
            tree
        }

        fn memory(&self, cgroup: &str, mountinfo: &str) -> HostMemory {
            let groups = of_process(cgroup, mountinfo, self.0.path());
            groups
                .iter()
                .map(Group::memory)
                .fold(HostMemory::default(), HostMemory::and)
        }
    }

    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const HYBRID: &str = "\
        31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 master:2 - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn groups_around_the_process_count() {
        let tree = Tree::new(&[
            ("sys/fs/cgroup/memory.stat", "anon 5\n"),
            ("sys/fs/cgroup/a/memory.max", "1000\n"),
            ("sys/fs/cgroup/a/memory.current", "900\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 300\n"),
            ("sys/fs/cgroup/a/b/memory.max", "700\n"),
            ("sys/fs/cgroup/a/b/memory.current", "100\n"),
            ("sys/fs/cgroup/a/b/c/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/c/memory.current", "100\n"),
            ("sys/fs/cgroup/other/memory.max", "1\n"),
        ]);
        let expected = HostMemory {
            total: Some(700),
            available: Some(400),
        };
        assert_eq!(tree.memory("0::/a/b/c\n", UNIFIED), expected);
        assert_eq!(tree.memory("0::/\n", UNIFIED), HostMemory::default());
    }

    #[test]
    fn the_first_version_beside_the_second() {
        let tree = Tree::new(&[
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "600\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "250\n"),
            (
                "sys/fs/cgroup/memory/job/memory.stat",
                "inactive_file 9\ntotal_inactive_file 50\n",
            ),
            ("sys/fs/cgroup/cpu/job/memory.limit_in_bytes", "1\n"),
        ]);
        let cgroup = "9:name=systemd:/job\n4:memory:/job\n1:cpu:/job\n0::/\n";
        assert_eq!(tree.memory(cgroup, HYBRID), HostMemory::limited(600, 200));
    }

    #[test]
    fn a_container_sees_its_own_group_only() {
        let tree = Tree::new(&[
            ("groups here/memory.limit_in_bytes", "800\n"),
            ("groups here/memory.usage_in_bytes", "100\n"),
            ("groups here/memory.stat", "hierarchical_memory_limit 500\n"),
        ]);
        let mount = "35 31 0:32 /docker/x /groups\\040here ro - cgroup cgroup rw,cpu,memory\n";
        for path in ["/docker/x", "/docker/xy", "/elsewhere", "/../other"] {
            let cgroup = format!("4:cpu,memory:{path}\n");
            assert_eq!(
                tree.memory(&cgroup, mount),
                HostMemory::limited(500, 100),
                "{path}"
            );
        }
    }

    #[test]
    fn what_makes_no_sense_limits_nothing() {
        let tree = Tree::new(&[("sys/fs/cgroup/memory.max", "lots\n")]);
        for cgroup in ["", "0", "0::", "x:memory", "7:memory:", "\n\n"] {
            for mounts in ["", "a b c", " - cgroup2", UNIFIED, "1 2 3 4 5 - cgroup x"] {
                assert_eq!(tree.memory(cgroup, mounts), HostMemory::default());
            }
        }
    }
}
