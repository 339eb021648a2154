//! Energy counters of processors: RAPL, which Linux shows in `/sys/class/powercap`.

use std::path::{Path, PathBuf};
use std::{fs, io};

use thiserror::Error;

const POWERCAP: &str = "/sys/class/powercap";

/// Why there is no energy counter.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoEnergyCounter {
    /// The system shows none.
    #[error("{} shows no processor's energy; say what devices draw with --watts", folder.display())]
    None {
        /// Where it would be.
        folder: PathBuf,
    },
    /// A counter that this user may not read, or that has no number.
    #[error("{} can't be read: {reason}; run as root, or say what devices draw with --watts", path.display())]
    Unreadable {
        /// The counter.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
}

/// The energy of all processors of this machine, whatever runs on them.
#[derive(Debug)]
pub struct EnergyCounter {
    packages: Vec<Package>,
}

/// A processor's counter, in microjoules; it starts again from 0 beyond `range`.
#[derive(Debug)]
struct Package {
    path: PathBuf,
    range: u64,
    last: u64,
    sum: u64,
}

impl EnergyCounter {
    /// Finds the counters and begins to count.
    ///
    /// # Errors
    /// If there is none, or it can't be read.
    pub fn start() -> Result<EnergyCounter, NoEnergyCounter> {
        EnergyCounter::start_in(Path::new(POWERCAP))
    }

    fn start_in(folder: &Path) -> Result<EnergyCounter, NoEnergyCounter> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        // `intel-rapl:0` is a processor, `intel-rapl:0:1` a part of it.
        let is_package = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            let number = name.and_then(|name| name.strip_prefix("intel-rapl:"));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        let mut folders: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(is_package)
            .collect();
        folders.sort();
        let packages = folders.into_iter().map(|folder| {
            let path = folder.join("energy_uj");
            Ok(Package {
                range: number(&folder.join("max_energy_range_uj"))?,
                last: number(&path)?,
                sum: 0,
                path,
            })
        });
        let packages: Vec<Package> = packages.collect::<Result<_, _>>()?;
        match packages.is_empty() {
            true => Err(NoEnergyCounter::None {
                folder: folder.into(),
            }),
            false => Ok(EnergyCounter { packages }),
        }
    }

    /// Joules since the start. A counter starts again about once a minute at full load, so this must be called more
    /// often.
    ///
    /// # Errors
    /// If a counter can't be read any more.
    pub fn joules(&mut self) -> Result<f64, NoEnergyCounter> {
        let mut sum = 0;
        for package in &mut self.packages {
            let now = number(&package.path)?;
            package.sum += match now.checked_sub(package.last) {
                Some(more) => more,
                None => now
                    .saturating_add(package.range)
                    .saturating_sub(package.last),
            };
            package.last = now;
            sum += package.sum;
        }
        Ok(sum as f64 * 1e-6)
    }
}

fn number(path: &Path) -> Result<u64, NoEnergyCounter> {
    let read = fs::read_to_string(path);
    let parsed = read.and_then(|text| text.trim().parse().map_err(io::Error::other));
    parsed.map_err(|error| NoEnergyCounter::Unreadable {
        path: path.into(),
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(folder: &Path, name: &str, energy: &str) {
        let folder = folder.join(name);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("energy_uj"), energy).expect("a file");
        fs::write(folder.join("max_energy_range_uj"), "1000\n").expect("a file");
    }

    #[test]
    fn counters_of_processors_add_up_and_wrap_around() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        set(at, "intel-rapl:0", "900\n");
        set(at, "intel-rapl:0:0", "5\n");
        set(at, "intel-rapl:1", "10\n");
        set(at, "dtpm", "7\n");
        let mut counter = EnergyCounter::start_in(at).expect("two processors");
        set(at, "intel-rapl:0", "100\n");
        set(at, "intel-rapl:1", "60\n");
        let near =
            |joules: f64, expected: f64| assert!((joules - expected).abs() < 1e-12, "{joules}");
        near(counter.joules().expect("readable"), 250e-6);
        set(at, "intel-rapl:1", "61\n");
        near(counter.joules().expect("readable"), 251e-6);
        set(at, "intel-rapl:1", "no number");
        let told = counter.joules().expect_err("no number").to_string();
        assert!(
            told.contains("intel-rapl:1") && told.contains("--watts"),
            "{told}"
        );
    }

    #[test]
    fn a_machine_without_counters_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let refused = EnergyCounter::start_in(folder.path()).expect_err("nothing there");
        assert!(matches!(refused, NoEnergyCounter::None { .. }));
        let missing = EnergyCounter::start_in(&folder.path().join("none"));
        assert!(matches!(missing, Err(NoEnergyCounter::None { .. })));
    }
}
