//! What a step's parts cost on this machine: estimated, or measured within the budgets and kept in the user's cache.

use anyhow::Result;
use scrimp::graph::{Costs, Lowered, Phases};
use scrimp::machine::Others;
use scrimp::plan::{Budget, NoDevice, PerDevice, SwapMemory, UnknownDeviceName};
use scrimp::run::{
    Compiled, CostCache, Processor, Profile, ProfileProgress, ProfileWatch, Slowdown,
};
use scrimp::solve::Options;
use scrimp::{Crossing, Devices, Error, Slowed, Swap};
use std::sync::atomic::AtomicBool;

use crate::args::{CostsArg, SearchArgs};
use crate::failure::{Failure, Kind};
use crate::interrupt;
use crate::progress::Line;
use crate::terminal::tell;

/// From this percentage of the processors' time on, what others took is told.
pub const MUCH: f64 = 5.0;

/// Where costs come from, and within which budget they are measured.
#[derive(Clone, Copy, Debug)]
pub struct Costing<'a> {
    /// Measured or estimated.
    pub source: CostsArg,
    /// Whether to measure again what was measured before.
    pub afresh: bool,
    /// Nothing that is run takes more memory.
    pub budget: &'a PerDevice<Budget>,
    /// How to plan what is run.
    pub search: &'a SearchArgs,
    /// Memories to swap to.
    pub swap: &'a [SwapMemory],
}

impl Costing<'_> {
    /// How to plan what isn't the final plan.
    pub fn options(&self) -> Options {
        Options {
            time_limit: self.search.time_limit,
            seed: self.search.seed.unwrap_or(0),
            threads: self.search.threads(),
            stop: Some(interrupt::flag()),
            ..Options::default()
        }
    }
}

/// What things cost on this machine.
#[derive(Debug)]
pub struct Measured {
    /// Each node on each device, estimated or measured.
    pub costs: Vec<Costs>,
    /// What was measured of the nodes on each device; none if they were estimated.
    pub profiles: Vec<Profile>,
    /// Copies between devices.
    pub crossing: Crossing,
    /// The memories to swap to, with their links.
    pub swap: Swap,
    /// The most of the processors' time that others took while nodes were measured; `None` if it isn't known or none
    /// were.
    pub others: Option<f64>,
    /// Whether some device's costs were measured in an earlier run.
    pub kept: bool,
}

impl Measured {
    /// How the devices slow each other down.
    pub fn slowed(&self, lowered: &Lowered) -> Slowed {
        Slowed::new(lowered, &self.profiles)
    }
}

/// What each node costs on each device, estimated or measured within the budgets, each link to a memory and each copy
/// between devices. Measurements are kept in the user's cache and taken from there unless `afresh` is set. Each device
/// is measured while the others do nothing, then while they compute, too.
pub fn costs(
    phases: &Phases,
    compiled: &[Compiled<'_>],
    devices: &Devices,
    costing: &Costing<'_>,
    quiet: bool,
) -> Result<Measured> {
    let budgets = budgets(devices, costing)?;
    let mut caches: Vec<Option<CostCache>> =
        devices.iter().map(|(_, device)| cache(device)).collect();
    let swap = links(
        costing.swap,
        devices.first(),
        budgets[0],
        caches[0].as_mut(),
        costing.afresh,
    )?;
    if costing.source == CostsArg::Static {
        return Ok(Measured {
            costs: compiled.iter().map(scrimp::estimate).collect(),
            profiles: Vec::new(),
            crossing: Crossing::estimate(compiled),
            swap,
            others: None,
            kept: false,
        });
    }
    let within = scrimp::shared_budgets(phases, compiled, &budgets)?;
    let (mut profiles, mut others, mut any_kept) = (Vec::new(), None, false);
    let each = devices.iter().zip(compiled).zip(&within).zip(&mut caches);
    for ((((name, _), compiled), &within), cache) in each {
        let kept = match cache {
            Some(cache) if !costing.afresh => cache.find(compiled).map_err(Error::from)?,
            _ => None,
        };
        profiles.push(match kept {
            Some(kept) => {
                any_kept = true;
                kept
            }
            None => {
                let watch = Others::watch();
                let made = told("measuring", quiet, |stop, watch| {
                    let options = costing.options();
                    scrimp::profile(phases, compiled, within, &swap, &options, stop, watch)
                });
                let made = made.map_err(|error| match within.beside {
                    0 => error,
                    _ => Failure::from(error)
                        .of_budget(&format!(
                            "{name} can't be measured, not even in steps that swap to main memory"
                        ))
                        .into(),
                })?;
                others = watch.share().into_iter().chain(others).reduce(f64::max);
                if let Some(cache) = cache {
                    cache.keep(&made);
                }
                made
            }
        });
    }
    if compiled.len() > 1 {
        let taken;
        (profiles, taken) = beside(
            phases,
            compiled,
            &budgets,
            profiles,
            &mut caches,
            costing,
            quiet,
        )?;
        others = taken.into_iter().chain(others).reduce(f64::max);
    }
    let crossing = crossing(compiled, &budgets, caches[0].as_mut(), costing.afresh)?;
    for text in caches.iter().flatten().filter_map(CostCache::note) {
        if !quiet {
            tell(text);
        }
    }
    Ok(Measured {
        costs: profiles.iter().map(|made| made.costs.clone()).collect(),
        profiles,
        crossing,
        swap,
        others,
        kept: any_kept,
    })
}

/// The profiles with how the devices slow each other down, and what others took of the processors while that was
/// measured, if it was. What was measured while others took much isn't kept: it would keep devices from being used
/// together for ever.
fn beside(
    phases: &Phases,
    compiled: &[Compiled<'_>],
    budgets: &[Budget],
    profiles: Vec<Profile>,
    caches: &mut [Option<CostCache>],
    costing: &Costing<'_>,
    quiet: bool,
) -> Result<(Vec<Profile>, Option<f64>)> {
    let processors: Vec<Processor<'_>> = compiled.iter().map(Compiled::processor).collect();
    let names: Vec<String> = (0..processors.len())
        .map(|number| others(&processors, number))
        .collect();
    let mut kept = Vec::new();
    for ((compiled, name), cache) in compiled.iter().zip(&names).zip(caches.iter_mut()) {
        kept.push(match cache {
            Some(cache) if !costing.afresh => {
                cache.find_beside(compiled, name).map_err(Error::from)?
            }
            _ => None,
        });
    }
    let with = |slowed: Vec<Slowdown>| {
        let each = profiles.iter().cloned().zip(slowed);
        each.map(|(profile, slowed)| profile.beside(slowed))
            .collect::<Vec<Profile>>()
    };
    if let Some(kept) = kept.into_iter().collect() {
        return Ok((with(kept), None));
    }
    let watch = Others::watch();
    let made = told("measuring all devices together", quiet, |stop, watch| {
        scrimp::profile_beside(phases, compiled, budgets, &costing.options(), stop, watch)
    })?;
    let taken = watch.share();
    let Some(made) = made else {
        if !quiet {
            tell(
                "not every device can run the whole step within its budget, so how much they slow each other down wasn't measured",
            );
        }
        return Ok((profiles, taken));
    };
    let profiles = with(made);
    if taken.is_none_or(|share| 100.0 * share < MUCH) {
        for ((profile, name), cache) in profiles.iter().zip(&names).zip(caches) {
            if let Some(cache) = cache {
                cache.keep_beside(profile, name);
            }
        }
    }
    Ok((profiles, taken))
}

/// What the cache calls the devices beside one of them.
fn others(devices: &[Processor<'_>], number: usize) -> String {
    let others = devices.iter().enumerate();
    let others = others.filter(|(other, _)| *other != number);
    let mut others: Vec<String> = others.map(|(_, device)| device.signature()).collect();
    others.sort();
    others.join(" and ")
}

/// Drops the costs of each device from the user's cache, so that the next run measures them again.
pub fn forget(devices: &Devices, profiles: &[Profile]) {
    let processors: Vec<Processor<'_>> = devices.iter().map(|(_, device)| device).collect();
    for (number, (&device, profile)) in processors.iter().zip(profiles).enumerate() {
        if let Some(mut cache) = cache(device) {
            cache.forget(profile, &others(&processors, number));
            if let Some(text) = cache.note() {
                tell(text);
            }
        }
    }
}

/// Copies between devices, measured with no more memory than the least budget in bytes.
pub fn crossing(
    compiled: &[Compiled<'_>],
    budgets: &[Budget],
    cache: Option<&mut CostCache>,
    afresh: bool,
) -> Result<Crossing, Error> {
    let room = budgets.iter().copied().map(room).min().unwrap_or(0);
    Crossing::measure(compiled, room, cache, afresh)
}

/// The budget of each device. All names must be those of devices or of memories to swap to.
pub fn budgets(devices: &Devices, costing: &Costing<'_>) -> Result<Vec<Budget>> {
    let names: Vec<&str> = devices.iter().map(|(name, _)| name).collect();
    let known = || {
        let memories = costing.swap.iter().map(|memory| memory.name.as_str());
        let all: Vec<&str> = names.iter().copied().chain(memories).collect();
        all.join(", ")
    };
    match costing.budget {
        PerDevice::Sole(_) if names.len() > 1 => {
            return Err(Error::from(NoDevice::several(&names)).into());
        }
        PerDevice::Sole(_) => {}
        PerDevice::Named(named) => {
            for (name, _) in named {
                let memory = costing.swap.iter().any(|memory| memory.name == *name);
                if !memory && !names.contains(&name.as_str()) {
                    let (name, known) = (name.clone(), known());
                    let unknown = NoDevice::from(UnknownDeviceName { name, known });
                    return Err(Error::from(unknown).into());
                }
            }
        }
    }
    let budget = |&name: &&str| {
        let budget = costing.budget.named(name).copied();
        budget.ok_or_else(|| Error::NoBudget {
            device: name.into(),
        })
    };
    Ok(names.iter().map(budget).collect::<Result<_, _>>()?)
}

/// The user's cache of measured costs.
pub fn cache(device: Processor<'_>) -> Option<CostCache> {
    scrimp::machine::cache_folder().map(|folder| CostCache::new(&folder, device))
}

/// Memories to swap to with the speed of their links. Measuring takes no more memory than a budget in bytes.
pub fn links(
    memories: &[SwapMemory],
    device: Processor<'_>,
    budget: Budget,
    cache: Option<&mut CostCache>,
    afresh: bool,
) -> Result<Swap> {
    Ok(Swap::measure(
        memories,
        device,
        room(budget),
        cache,
        afresh,
    )?)
}

/// The most bytes that measuring something by itself may take.
pub fn room(budget: Budget) -> u64 {
    match budget {
        Budget::Bytes(bytes) => bytes,
        _ => u64::MAX,
    }
}

/// Measures with a line on the terminal; the first Ctrl-C ends it.
fn told<T>(
    what: &'static str,
    quiet: bool,
    measure: impl FnOnce(&AtomicBool, ProfileWatch<'_>) -> Result<T, Error>,
) -> Result<T> {
    let line = Line::spinner(quiet, what);
    let mut watch = |news: ProfileProgress| {
        let ProfileProgress {
            pass,
            passes,
            node,
            nodes,
        } = news;
        line.say(|| {
            format!(
                "pass {} of at most {passes}, run {node} of {nodes}",
                pass + 1
            )
        });
    };
    match measure(&interrupt::flag(), &mut watch) {
        Err(_) if interrupt::requested() => {
            let sentence = "interrupted before all costs were measured; nothing was written";
            Err(Failure::new(Kind::Interrupted, sentence).into())
        }
        made => Ok(made?),
    }
}
