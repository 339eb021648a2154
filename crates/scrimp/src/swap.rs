//! Memories to swap to that are really there: how fast they are, and what they add to a training step's problem.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use scrimp_plan::{Budget, Capacities, CheckedLayout, DeviceId, Problem, SwapMemory};
use scrimp_run::{
    CostCache, FarEnd, LinkProfile, PAGE, Processor, RunError, profile_link, swap_room,
};

use crate::error::{Error, Result};

/// What the cache calls a memory: a file in a folder, or else RAM.
fn cached_name(folder: Option<&Path>) -> String {
    match folder.map(Path::canonicalize) {
        None => "ram".to_owned(),
        Some(folder) => format!("{FILE}{}", folder.unwrap_or_default().display()),
    }
}

const FILE: &str = "file in ";

/// A memory of this machine to which values can be swapped.
#[derive(Clone, Debug)]
pub struct SwapPlace {
    /// The folder, if it is a file.
    pub folder: Option<PathBuf>,
    /// Bytes that are free there, if known, or why no file can be there.
    pub room: std::result::Result<Option<u64>, RunError>,
    /// What was measured of its links before.
    pub measured: Option<LinkProfile>,
}

/// RAM, these folders, and all others whose links were measured before.
pub fn swap_places(folders: &[PathBuf], cache: Option<&mut CostCache>) -> Vec<SwapPlace> {
    let known: BTreeMap<String, LinkProfile> = cache
        .map(|cache| cache.links().into_iter().collect())
        .unwrap_or_default();
    let mut files: BTreeSet<PathBuf> = known
        .keys()
        .filter_map(|name| name.strip_prefix(FILE).map(PathBuf::from))
        .collect();
    files.extend(
        folders
            .iter()
            .filter_map(|folder| folder.canonicalize().ok()),
    );
    let files = files.into_iter().map(Some);
    let places = std::iter::once(None).chain(files);
    let place = |folder: Option<PathBuf>| SwapPlace {
        room: match &folder {
            Some(folder) => swap_room(folder).map(Some),
            None => Ok(crate::machine::memory().available),
        },
        measured: known.get(&cached_name(folder.as_deref())).copied(),
        folder,
    };
    places.map(place).collect()
}

/// Memories to swap to, with the measured speed of their links where none is stated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Swap {
    memories: Vec<(SwapMemory, Option<LinkProfile>)>,
}

impl Swap {
    /// Measures the links between a device that computes and the memories for which no speed is stated, unless the
    /// cache has them. On each side, measuring takes at most `room` bytes.
    ///
    /// # Errors
    /// If there isn't enough memory, or a folder can't hold a file or has no room.
    pub fn measure(
        memories: &[SwapMemory],
        device: Processor<'_>,
        room: u64,
        mut cache: Option<&mut CostCache>,
        afresh: bool,
    ) -> Result<Swap> {
        let mut measured = |memory: &SwapMemory| -> Result<Option<LinkProfile>> {
            if memory.rates.is_some() {
                return Ok(None);
            }
            let folder = memory.folder.as_deref();
            let name = cached_name(folder);
            let kept = cache
                .as_deref_mut()
                .and_then(|cache| cache.find_link(&name));
            if let Some(kept) = kept.filter(|_| !afresh) {
                return Ok(Some(kept));
            }
            let far = folder.map_or(FarEnd::Ram, FarEnd::File);
            let made = profile_link(device, far, &[device], room)?;
            if let Some(cache) = cache.as_deref_mut() {
                cache.keep_link(&name, &made);
            }
            Ok(Some(made))
        };
        let each = memories.iter();
        let each = each.map(|memory| Ok((memory.clone(), measured(memory)?)));
        Ok(Swap {
            memories: each.collect::<Result<_>>()?,
        })
    }

    /// So many bytes of main memory. On each side, measuring their links takes at most `room` bytes.
    pub(crate) fn to_main_memory(device: Processor<'_>, bytes: u64, room: u64) -> Result<Swap> {
        let memory = SwapMemory {
            name: "ram".to_owned(),
            folder: None,
            capacity: Budget::Bytes(bytes),
            rates: None,
        };
        Swap::measure(&[memory], device, room, None, false)
    }

    /// The memories and what was measured of their links.
    pub fn memories(&self) -> &[(SwapMemory, Option<LinkProfile>)] {
        &self.memories
    }

    /// The problem with these memories, and their capacities. Where one is a file, all sizes are rounded up
    /// to whole pages, which direct I/O needs.
    ///
    /// # Errors
    /// If a size isn't in bytes, or two devices have one name.
    pub fn add(&self, problem: &Problem) -> Result<(Problem, Capacities)> {
        let files = self
            .memories
            .iter()
            .any(|(memory, _)| memory.folder.is_some());
        let paged = match files {
            true => problem
                .rounded_up(PAGE)
                .map_err(scrimp_plan::SwapError::from)?,
            false => problem.clone(),
        };
        let start = (paged, Capacities::unlimited());
        let mut each = self.memories.iter();
        each.try_fold(start, |(problem, capacities), (memory, profile)| {
            match profile {
                Some(profile) => memory.add_with(&problem, &capacities, &profile.speed()),
                None => memory.add(&problem, &capacities),
            }
            .map_err(Error::from)
        })
    }

    /// The devices of the problem whose memory is a file, with its folder.
    pub fn files<'a>(&'a self, problem: &Problem) -> Vec<(DeviceId, &'a Path)> {
        let files = self.memories.iter().filter_map(|(memory, _)| {
            let device = problem.device_named(&memory.name).ok()?;
            Some((device, memory.folder.as_deref()?))
        });
        files.collect()
    }

    /// Bytes of RAM that the layout takes beside the arena of the device that computes.
    pub fn ram_bytes(&self, layout: &CheckedLayout) -> u64 {
        let problem = layout.plan().problem();
        let ram = self
            .memories
            .iter()
            .filter(|(memory, _)| memory.folder.is_none());
        let devices = ram.filter_map(|(memory, _)| problem.device_named(&memory.name).ok());
        devices.map(|device| layout.arena_bytes(device)).sum()
    }

    /// Bytes of RAM that may be used beside the budget.
    pub fn ram_capacity(&self) -> u64 {
        let ram = self
            .memories
            .iter()
            .filter(|(memory, _)| memory.folder.is_none());
        let bytes = ram.map(|(memory, _)| match memory.capacity {
            Budget::Bytes(bytes) => bytes,
            _ => 0,
        });
        bytes.fold(0, u64::saturating_add)
    }
}
