//! Measured seconds on disk, one file for each device, so that nothing needs to be measured twice. A file
//! that can't be read or has anything wrong in it counts as missing.

use scrimp_plan::file::{read_regular_text, write_text};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::{Distinct, LinkProfile, Profile, Slowdown, Times, last_level_cache};
use crate::compiled::Compiled;
use crate::error::RunError;
use crate::processor::Processor;

const FORMAT: &str = "scrimp-costs";
/// Changes whenever what is measured changes, or how.
const VERSION: u64 = 8;
/// The most measurements in a file; beyond that the oldest are dropped.
const MOST: usize = 1 << 16;
/// No operator runs this long, and no byte takes this long to move: larger numbers mean a damaged file.
const MOST_SECONDS: f64 = 1e6;
/// How long to wait for another process that is adding its measurements.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CostFile {
    format: String,
    version: u64,
    /// A description of everything besides the operator that times depend on.
    device: String,
    /// The measurements, the oldest first. Each has a hexadecimal hash of operator, shapes, types and
    /// overwritten inputs, then the seconds in a step that keeps everything, the seconds with everything in
    /// the caches, and the seconds per byte that moves.
    costs: Vec<(String, f64, f64, f64)>,
    /// How many times as long operators take while other devices compute, the oldest first. Each has a hexadecimal hash
    /// of what a cost's is of and of the other devices.
    slowed: Vec<(String, f64)>,
    /// The links to other memories, by a text that names the memory.
    links: BTreeMap<String, LinkProfile>,
    /// Seconds of copies that change a tensor's format, by a text that describes the change.
    #[serde(default)]
    conversions: BTreeMap<String, f64>,
}

/// What a file has.
#[derive(Default)]
struct Kept {
    /// The oldest first.
    costs: Vec<(u128, Times)>,
    /// The oldest first.
    slowed: Vec<(u128, f64)>,
    links: BTreeMap<String, LinkProfile>,
    conversions: BTreeMap<String, f64>,
}

/// Measurements of one device, kept in a folder.
#[derive(Clone, Debug)]
pub struct CostCache {
    path: PathBuf,
    device: String,
    note: Option<String>,
}

impl CostCache {
    /// The cache for a device in a folder. Neither the folder nor the file needs to exist.
    pub fn new(folder: &Path, device: Processor<'_>) -> CostCache {
        let (version, build) = (env!("CARGO_PKG_VERSION"), env!("SCRIMP_KERNELS"));
        let built = if cfg!(debug_assertions) {
            " with assertions"
        } else {
            ""
        };
        let (signature, processor) = (device.signature(), processor());
        let cache = last_level_cache().map_or(0, |cache| cache.bytes);
        let device = format!(
            "scrimp {version} {build}{built}, {signature}, {processor} with {cache} bytes of cache"
        );
        let name = format!("costs-{:016x}.json", xxh3_64(device.as_bytes()));
        CostCache {
            path: folder.join(name),
            device,
            note: None,
        }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was wrong with the file in [`CostCache::find`] or [`CostCache::keep`]; `None` if the file is in
    /// order or missing.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The profile of a graph, if the file has all of its measurements.
    ///
    /// # Errors
    /// The graph can't be run. A fault in the file is a note, not an error.
    pub fn find(&mut self, compiled: &Compiled<'_>) -> Result<Option<Profile>, RunError> {
        let distinct = Distinct::new(compiled)?;
        let kept: HashMap<u128, Times> = self.read().costs.into_iter().collect();
        let times = hashes(&distinct).map(|key| kept.get(&key).copied());
        let times = times.collect::<Option<Vec<Times>>>();
        Ok(times.map(|times| Profile::new(compiled.graph(), distinct, times)))
    }

    /// How much these other devices slow down each operator of a graph, if the file has all of it.
    ///
    /// # Errors
    /// As for [`CostCache::find`].
    pub fn find_beside(
        &mut self,
        compiled: &Compiled<'_>,
        others: &str,
    ) -> Result<Option<Slowdown>, RunError> {
        let distinct = Distinct::new(compiled)?;
        let kept: HashMap<u128, f64> = self.read().slowed.into_iter().collect();
        let slowed = hashes_beside(&distinct, others).map(|key| kept.get(&key).copied());
        Ok(slowed.collect::<Option<Vec<f64>>>().map(Slowdown))
    }

    /// The measurements of the links to a memory, if the file has them.
    pub fn find_link(&mut self, memory: &str) -> Option<LinkProfile> {
        self.read().links.get(memory).copied()
    }

    /// The memories whose links were measured on the device, by name, with what was measured.
    pub fn links(&mut self) -> Vec<(String, LinkProfile)> {
        self.read().links.into_iter().collect()
    }

    /// The seconds of copies that change a tensor's format.
    pub fn conversions(&mut self) -> BTreeMap<String, f64> {
        self.read().conversions
    }

    /// Adds seconds of such copies. If that fails, the reason becomes the note.
    pub fn keep_conversions(&mut self, seconds: &BTreeMap<String, f64>) {
        self.change(&|kept| kept.conversions.extend(seconds.clone()));
    }

    /// The file's measurements; none, and a note, if the file is damaged.
    fn read(&mut self) -> Kept {
        if !self.path.exists() {
            return Kept::default();
        }
        let text = read_regular_text(&self.path).map_err(|error| error.to_string());
        let costs = text.and_then(|text| parse(&text, &self.device));
        costs.unwrap_or_else(|reason| {
            self.note = Some(format!(
                "measured times in '{}' were ignored: {reason}",
                self.path.display()
            ));
            Kept::default()
        })
    }

    /// Adds a profile's measurements but for those beside other devices. If that fails, the reason becomes the note.
    pub fn keep(&mut self, profile: &Profile) {
        let new = hashes(&profile.distinct).zip(profile.times.iter().copied());
        let new: Vec<(u128, Times)> = new.collect();
        self.change(&|kept| add(&mut kept.costs, new.clone()));
    }

    /// Adds a profile's measurements beside these other devices, if it has any. If that fails, the reason becomes the
    /// note.
    pub fn keep_beside(&mut self, profile: &Profile, others: &str) {
        if let Some(Slowdown(slowed)) = &profile.slowdown {
            let new = hashes_beside(&profile.distinct, others).zip(slowed.iter().copied());
            let new: Vec<(u128, f64)> = new.collect();
            self.change(&|kept| add(&mut kept.slowed, new.clone()));
        }
    }

    /// Drops a profile's measurements, alone and beside these other devices, so that they are made again. If that fails,
    /// the reason becomes the note.
    pub fn forget(&mut self, profile: &Profile, others: &str) {
        let keys: HashSet<u128> = hashes(&profile.distinct).collect();
        let beside: HashSet<u128> = hashes_beside(&profile.distinct, others).collect();
        self.change(&|kept| {
            kept.costs.retain(|(key, _)| !keys.contains(key));
            kept.slowed.retain(|(key, _)| !beside.contains(key));
        });
    }

    /// Adds the measurements of the links to a memory. If that fails, the reason becomes the note.
    pub fn keep_link(&mut self, memory: &str, profile: &LinkProfile) {
        self.change(&|kept| {
            kept.links.insert(memory.into(), *profile);
        });
    }

    fn change(&mut self, change: &dyn Fn(&mut Kept)) {
        if let Err(reason) = self.try_change(change) {
            self.note = Some(format!(
                "measured times can't be kept in '{}': {reason}",
                self.path.display()
            ));
        }
    }

    /// Changes the measurements in the file. The file is read again first, since another process may have
    /// written it, and the folder stays locked meanwhile so that no process overwrites what another one is
    /// adding.
    fn try_change(&mut self, change: &dyn Fn(&mut Kept)) -> Result<(), String> {
        let folder = self.path.parent().unwrap_or(Path::new(".")).to_owned();
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let _held = locked(&folder)?;
        let mut kept = self.read();
        change(&mut kept);
        let file = CostFile {
            format: FORMAT.into(),
            version: VERSION,
            device: self.device.clone(),
            costs: kept
                .costs
                .into_iter()
                .map(|(key, times)| {
                    let Times {
                        seconds,
                        warm,
                        per_moved_byte,
                    } = times;
                    (format!("{key:032x}"), seconds, warm, per_moved_byte)
                })
                .collect(),
            slowed: kept
                .slowed
                .into_iter()
                .map(|(key, slowed)| (format!("{key:032x}"), slowed))
                .collect(),
            links: kept.links,
            conversions: kept.conversions,
        };
        let text = serde_json::to_string(&file).map_err(|error| error.to_string())?;
        write_text(&self.path, &text).map_err(|error| error.to_string())
    }
}

/// Adds measurements in place of older ones of the same keys.
fn add<T>(kept: &mut Vec<(u128, T)>, new: Vec<(u128, T)>) {
    let keys: HashSet<u128> = new.iter().map(|(key, _)| *key).collect();
    kept.retain(|(key, _)| !keys.contains(key));
    kept.extend(new);
    kept.drain(..kept.len().saturating_sub(MOST));
}

/// Locks a folder until the file is closed. Where folders can't be locked nothing is: processes rarely meet,
/// and if two do, one of them has to measure again.
fn locked(folder: &Path) -> Result<Option<File>, String> {
    let Ok(file) = File::open(folder) else {
        return Ok(None);
    };
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::Error(_)) => return Ok(None),
            Err(TryLockError::WouldBlock) if started.elapsed() < PATIENCE => {
                std::thread::sleep(PATIENCE / 1000);
            }
            Err(TryLockError::WouldBlock) => {
                return Err("another process holds the folder's lock".into());
            }
        }
    }
}

/// The hashes under which measurements are stored.
fn hashes(distinct: &Distinct) -> impl Iterator<Item = u128> {
    let keys = distinct.keys.iter();
    keys.map(|key| xxh3_128(key.as_bytes()))
}

/// The hashes under which measurements beside other devices are stored.
fn hashes_beside(distinct: &Distinct, others: &str) -> impl Iterator<Item = u128> {
    let keys = distinct.keys.iter();
    keys.map(move |key| xxh3_128(format!("{key} beside {others}").as_bytes()))
}

/// A file's measurements; the error is the reason why it has none.
fn parse(text: &str, device: &str) -> Result<Kept, String> {
    let file: CostFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if file.format != FORMAT || file.version != VERSION || file.device != device {
        return Err("they are of another device or version".into());
    }
    if file.costs.len().max(file.slowed.len()) > MOST {
        return Err(format!("there are more than {MOST}"));
    }
    let entry = |&(ref key, seconds, warm, per_moved_byte): &(String, f64, f64, f64)| {
        let key = u128::from_str_radix(key, 16).ok()?;
        let numbers = [seconds, warm, per_moved_byte];
        let sound = numbers.iter().all(|x| (0.0..MOST_SECONDS).contains(x));
        let times = Times {
            seconds,
            warm,
            per_moved_byte,
        };
        sound.then_some((key, times))
    };
    let costs = file.costs.iter().map(entry).collect::<Option<Vec<_>>>();
    let costs = costs.ok_or("one of them isn't a hash and three times")?;
    let slowed = file.slowed.iter().map(|&(ref key, slowed)| {
        let sound = slowed > 0.0 && slowed < MOST_SECONDS;
        Some((u128::from_str_radix(key, 16).ok()?, slowed)).filter(|_| sound)
    });
    let slowed = slowed.collect::<Option<Vec<_>>>();
    let slowed = slowed.ok_or("how much other devices slow an operator isn't a number")?;
    if file.links.len() > MOST || !file.links.values().all(LinkProfile::is_sound) {
        return Err("a link's speed isn't a speed".into());
    }
    let sound = |seconds: &f64| (0.0..MOST_SECONDS).contains(seconds);
    if file.conversions.len() > MOST || !file.conversions.values().all(sound) {
        return Err("the time of a copy isn't a time".into());
    }
    let (links, conversions) = (file.links, file.conversions);
    Ok(Kept {
        costs,
        slowed,
        links,
        conversions,
    })
}

/// The processor's name, as far as the operating system tells it. It distinguishes machines that share a
/// folder.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    name.map_or_else(
        || std::env::consts::ARCH.into(),
        |(_, name)| name.trim().into(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::{measured, training};
    use super::*;
    use crate::cpu::Cpu;

    /// The profile, and whether it was measured.
    fn profile(cache: &mut CostCache, cpu: &Cpu) -> (Profile, bool) {
        let graph = training();
        let compiled = Compiled::new(&graph, Processor::Cpu(cpu));
        if let Some(found) = cache.find(&compiled).expect("it has kernels") {
            return (found, false);
        }
        let made = measured(&compiled, 1);
        cache.keep(&made);
        (made, true)
    }

    #[test]
    fn what_was_measured_once_is_not_measured_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("not").join("there");
        let cpu = Cpu::new(1).expect("threads start");
        let (first, measured) = profile(&mut CostCache::new(&folder, Processor::Cpu(&cpu)), &cpu);
        assert!(measured);
        let mut cache = CostCache::new(&folder, Processor::Cpu(&cpu));
        let (second, measured) = profile(&mut cache, &cpu);
        assert!(!measured && cache.note().is_none());
        assert_eq!(first.times, second.times);
        assert_eq!(first.costs.nodes, second.costs.nodes);
        // A device with another number of threads is another device.
        let two = Cpu::new(2).expect("threads start");
        assert!(profile(&mut CostCache::new(&folder, Processor::Cpu(&two)), &two).1);
    }

    #[test]
    fn what_other_devices_cost_is_kept_for_these_devices() {
        let folder = tempfile::tempdir().expect("a folder");
        let cpu = Cpu::new(1).expect("threads start");
        let graph = training();
        let compiled = Compiled::new(&graph, Processor::Cpu(&cpu));
        let cache = || CostCache::new(folder.path(), Processor::Cpu(&cpu));
        let made = profile(&mut cache(), &cpu).0;
        let find = |others: &str| {
            cache()
                .find_beside(&compiled, others)
                .expect("it has kernels")
        };
        assert_eq!(find("x"), None);
        cache().keep_beside(&made, "x");
        assert_eq!(find("x"), None, "nothing was measured");
        let slowdown = Slowdown((0..made.times.len()).map(|k| 1.0 + k as f64).collect());
        let made = made.beside(slowdown.clone());
        cache().keep_beside(&made, "x");
        assert_eq!(find("x"), Some(slowdown));
        assert_eq!(find("y"), None);
        assert!(!profile(&mut cache(), &cpu).1, "costs stay");
        cache().forget(&made, "x");
        assert_eq!(find("x"), None);
    }

    #[test]
    fn a_damaged_file_is_ignored_and_mended() {
        let folder = tempfile::tempdir().expect("a folder");
        let cpu = Cpu::new(1).expect("threads start");
        let mut cache = CostCache::new(folder.path(), Processor::Cpu(&cpu));
        profile(&mut cache, &cpu);
        let good = fs::read_to_string(cache.path()).expect("it was written");
        let mut slow: CostFile = serde_json::from_str(&good).expect("it is whole");
        slow.costs[0].1 = 1e31;
        let mut sped: CostFile = serde_json::from_str(&good).expect("it is whole");
        sped.slowed.push((sped.costs[0].0.clone(), -1.0));
        let damages = [
            String::new(),
            good[..good.len() / 2].to_owned(),
            good.replace("scrimp-costs", "else"),
            good.replacen("\"costs\":[[\"", "\"costs\":[[\"x", 1),
            good.replacen("scrimp 0", "scrimp 9", 1),
            serde_json::to_string(&slow).expect("text"),
            serde_json::to_string(&sped).expect("text"),
        ];
        for damaged in damages {
            fs::write(cache.path(), &damaged).expect("written");
            let mut cache = CostCache::new(folder.path(), Processor::Cpu(&cpu));
            assert!(profile(&mut cache, &cpu).1, "{damaged}");
            let note = cache.note().expect("it is told");
            assert!(note.contains("ignored"), "{note}");
            let mut cache = CostCache::new(folder.path(), Processor::Cpu(&cpu));
            assert!(!profile(&mut cache, &cpu).1 && cache.note().is_none());
        }
    }

    #[test]
    fn what_processes_add_at_the_same_time_is_all_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let cpu = Cpu::new(1).expect("threads start");
        let cache = CostCache::new(folder.path(), Processor::Cpu(&cpu));
        let times = Times {
            seconds: 1.0,
            warm: 1.0,
            per_moved_byte: 0.0,
        };
        std::thread::scope(|scope| {
            for process in 0..4 {
                let mut cache = cache.clone();
                scope.spawn(move || {
                    for key in 0..20 {
                        let new = |kept: &mut Kept| {
                            add(&mut kept.costs, vec![(process * 100 + key, times)])
                        };
                        assert_eq!(cache.try_change(&new), Ok(()));
                    }
                });
            }
        });
        assert_eq!(cache.clone().read().costs.len(), 80);
    }

    #[test]
    fn links_are_kept_beside_costs() {
        let folder = tempfile::tempdir().expect("a folder");
        let cpu = Cpu::new(1).expect("threads start");
        let mut cache = CostCache::new(folder.path(), Processor::Cpu(&cpu));
        profile(&mut cache, &cpu);
        let link = LinkProfile {
            out: 1e9,
            back: 2e9,
            latency: 1e-5,
            both: 2.5e9,
            slowed: 1.5,
            drag: 0.25,
        };
        cache.keep_link("ram", &link);
        assert!(!profile(&mut cache, &cpu).1);
        let mut cache = CostCache::new(folder.path(), Processor::Cpu(&cpu));
        assert_eq!(cache.find_link("ram"), Some(link));
        assert_eq!(cache.find_link("disk"), None);
        cache.keep_link("ram", &LinkProfile { out: 0.0, ..link });
        assert_eq!(cache.find_link("ram"), None);
        assert!(cache.note().expect("told").contains("isn't a speed"));
    }

    #[test]
    #[cfg(unix)]
    fn a_pipe_in_the_place_of_the_file_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let cpu = Cpu::new(1).expect("threads start");
        let mut cache = CostCache::new(folder.path(), Processor::Cpu(&cpu));
        let pipe = std::process::Command::new("mkfifo")
            .arg(cache.path())
            .status();
        assert!(pipe.expect("it runs").success());
        assert!(profile(&mut cache, &cpu).1);
        assert!(cache.note().expect("told").contains("can't be kept"));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_told() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let cpu = Cpu::new(1).expect("threads start");
        let mut cache = CostCache::new(file.path(), Processor::Cpu(&cpu));
        assert!(profile(&mut cache, &cpu).1);
        assert!(cache.note().expect("told").contains("can't be kept"));
    }
}
