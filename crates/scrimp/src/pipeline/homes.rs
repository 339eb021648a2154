//! Where weights and optimizer state live between steps: on the device that computes, or in a memory beside it.
//!
//! A value that lives in a memory is brought for its uses, and sent back if it was updated. So moving it there
//! makes room on the device at all other times, for two or more copies in each step. Values with few uses per
//! step move first, and among them the largest. How many move is decided by planning a few shares for a short
//! time.

use std::cmp::Reverse;
use std::time::Instant;

use scrimp_plan::{Capacities, CheckedLayout, DeviceId, Problem, Sequence, ValueId};
use scrimp_solve::{Method, Options, SolveError, Solved, place_reordered, sequence_of, solve};

use crate::error::{Error, Result};
use crate::pipeline::Budgeted;
use crate::pipeline::one::{Fit, leanest_layout};
use crate::pipeline::under::fitting;

/// The shares of the bytes that may move, in this many parts, that are tried, and those for the least budget.
const PARTS: u64 = 16;
const SHARES: [u64; 5] = [0, 4, 8, 12, 16];
const LEAN_SHARES: [u64; 6] = [16, 15, 12, 8, 4, 0];
/// The part of the time limit that one trial may take.
const TRIAL: u32 = 12;

/// A problem with its homes.
pub(super) struct Chosen {
    pub budgeted: Budgeted,
    /// What the search for a plan begins with.
    pub start: Option<Sequence>,
    /// A layout that fits the budget.
    pub known: Option<CheckedLayout>,
}

impl Chosen {
    fn just(budgeted: Budgeted) -> Chosen {
        Chosen {
            budgeted,
            start: None,
            known: None,
        }
    }

    /// Homes with a small layout, which may fit.
    fn lean(budgeted: Budgeted, layout: CheckedLayout) -> Chosen {
        let start = Some(sequence_of(layout.plan()));
        let fits = budgeted.budget_bytes.is_some() && layout.within(&budgeted.capacities()).is_ok();
        Chosen {
            budgeted,
            start,
            known: fits.then_some(layout),
        }
    }
}

/// The problem with the homes that give the cheapest quick plan; as it is if nothing can move, or if a plan in which
/// nothing moves adds nothing. With the least budget, everything that can moves, unless the memory is so small that other values may need
/// the room: then those that give the smallest layout. If the quick plan beside such a memory doesn't pack, the homes of a small layout
/// come second, for when no plan of the first ones packs either.
pub(super) fn choose(
    budgeted: &Budgeted,
    fit: Fit,
    options: &Options,
) -> Result<(Chosen, Option<Chosen>)> {
    let candidates = movable(budgeted);
    let one = budgeted.problem.sole_device().is_some();
    let Some(memory) = memory(budgeted).filter(|_| one && options.method == Method::Search) else {
        return Ok((Chosen::just(budgeted.clone()), None));
    };
    if candidates.is_empty() {
        return Ok((Chosen::just(budgeted.clone()), None));
    }
    let total: u64 = candidates.iter().map(|&(_, bytes)| bytes).sum();
    let moved = |share: u64| {
        let most = (u128::from(total) * u128::from(share) / u128::from(PARTS)) as u64;
        let mut sum = 0;
        let values = candidates.iter().take_while(|&&(_, bytes)| {
            sum += bytes;
            sum <= most || share == PARTS
        });
        let homes: Vec<_> = values.map(|&(value, _)| (value, memory)).collect();
        with_homes(budgeted, &homes)
    };
    let is_small = room(&budgeted.beside, memory) < budgeted.base_peak();
    let (quick, part) = match budgeted.budget_bytes {
        Some(budget) => (
            cheapest_share(&moved, budgeted, budget, options)?,
            TRIAL * 2,
        ),
        None => (None, TRIAL),
    };
    let looks_for_layout = is_small && fit == Fit::Layout;
    let known = match &quick {
        Some((solved, tried)) if looks_for_layout => {
            let cutoff = options.cutoff(Instant::now(), options.time_limit / part);
            let capacities = tried.capacities();
            fitting(place_reordered(
                &solved.plan,
                &capacities,
                options.order,
                cutoff,
            ))?
            .ok()
        }
        None if !is_small => return Ok((Chosen::just(moved(PARTS)?), None)),
        _ => None,
    };
    let lean = match quick.is_none() || looks_for_layout && known.is_none() {
        true => leanest_share(&moved, budgeted, part, options)?,
        false => None,
    };
    let lean = lean.map(|(lean, layout)| Chosen::lean(lean, layout));
    Ok(match (quick, lean) {
        (Some((_, budgeted)), lean) => {
            let start = None;
            let quick = Chosen {
                budgeted,
                start,
                known,
            };
            (quick, lean)
        }
        (None, Some(lean)) => (lean, None),
        (None, None) => (Chosen::just(moved(0)?), None),
    })
}

/// The problem with the homes that give the cheapest quick plan within the budget, and this plan.
fn cheapest_share(
    moved: &dyn Fn(u64) -> Result<Budgeted>,
    budgeted: &Budgeted,
    budget: u64,
    options: &Options,
) -> Result<Option<(Solved, Budgeted)>> {
    let mut best: Option<(Solved, Budgeted)> = None;
    let base = budgeted.base.objective(options.alpha);
    for share in SHARES {
        let tried = moved(share)?;
        if tried.fixed_bytes > budget {
            continue;
        }
        let trial = Options {
            time_limit: options.time_limit / TRIAL,
            deadline: Instant::now().checked_add(options.time_limit / TRIAL),
            ..options.clone()
        };
        match solve(&tried.problem, &tried.capacities(), &trial, &mut |_| {}) {
            Ok(solved) => {
                let free = share == 0 && solved.cost <= base;
                if best
                    .as_ref()
                    .is_none_or(|(best, _)| solved.cost < best.cost)
                {
                    best = Some((solved, tried));
                }
                if free || options.stopped() {
                    break;
                }
            }
            // What concerns more than this share, the plan itself will tell.
            Err(
                SolveError::Infeasible { .. }
                | SolveError::NotFound { .. }
                | SolveError::Unsupported(_),
            ) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(best)
}

/// The problem with the homes that give the smallest layout, or the first one that fits the budget, and this layout. Each is found in at
/// most this part of the limit.
fn leanest_share(
    moved: &dyn Fn(u64) -> Result<Budgeted>,
    budgeted: &Budgeted,
    part: u32,
    options: &Options,
) -> Result<Option<(Budgeted, CheckedLayout)>> {
    let mut best: Option<(Budgeted, CheckedLayout)> = None;
    let needed = |layout: &CheckedLayout| layout.needed_bytes(budgeted.device);
    for share in LEAN_SHARES {
        let tried = moved(share)?;
        let trial = Options {
            time_limit: options.time_limit / part,
            ..options.clone()
        };
        match leanest_layout(&tried, &trial, &mut |_| {}) {
            Ok((_, layout)) => {
                let least = best.as_ref().map_or(u64::MAX, |(_, best)| needed(best));
                let fits = budgeted
                    .budget_bytes
                    .is_some_and(|bytes| needed(&layout) <= bytes);
                if needed(&layout) < least {
                    best = Some((tried, layout));
                }
                if fits {
                    break;
                }
            }
            Err(Error::NoLayout { .. } | Error::OverBudget(_)) => {}
            Err(error) => return Err(error),
        }
        if options.stopped() {
            break;
        }
    }
    Ok(best)
}

/// The problem with everything that can live elsewhere there.
pub(crate) fn leanest(budgeted: &Budgeted) -> Result<Budgeted> {
    let Some(memory) = memory(budgeted) else {
        return Ok(budgeted.clone());
    };
    let homes: Vec<_> = movable(budgeted)
        .into_iter()
        .map(|(value, _)| (value, memory))
        .collect();
    with_homes(budgeted, &homes)
}

/// Bytes without which no plan exists, wherever weights and optimizer state live.
pub(super) fn floor_bytes(budgeted: &Budgeted) -> Result<u64> {
    Ok(scrimp_solve::floor_bytes(&leanest(budgeted)?.problem)?)
}

/// Proven: some device must have so many times its capacity, wherever weights and optimizer state live.
pub(super) fn share_needed(budgeted: &Budgeted) -> Result<f64> {
    let problem = leanest(budgeted)?.problem;
    Ok(scrimp_solve::share_needed(
        &problem,
        &budgeted.capacities(),
    )?)
}

/// The memory with the most room to which and from which the device has links.
fn memory(budgeted: &Budgeted) -> Option<DeviceId> {
    let (problem, device) = (&budgeted.problem, budgeted.device);
    let linked = |&memory: &DeviceId| {
        let link = |from, to| problem.link_between(from, to).is_some();
        link(device, memory) && link(memory, device)
    };
    let devices = problem.devices().iter().filter(|(_, what)| !what.computes);
    let memories = devices.map(|(id, _)| id).filter(linked);
    memories.max_by_key(|&id| (room(&budgeted.beside, id), Reverse(id)))
}

fn room(capacities: &Capacities, memory: DeviceId) -> u64 {
    capacities.bytes(memory).unwrap_or(u64::MAX)
}

/// The values that may live elsewhere and their bytes, in the order in which they move. A value whose copy takes
/// less time than the latency stays, as do those for which the memory has no room.
fn movable(budgeted: &Budgeted) -> Vec<(ValueId, u64)> {
    let (problem, device) = (&budgeted.problem, budgeted.device);
    let Some(memory) = memory(budgeted) else {
        return Vec::new();
    };
    let least = [(device, memory), (memory, device)].map(|(from, to)| {
        let link = problem.link_between(from, to);
        link.map_or(0.0, |link| {
            problem.links()[link].latency * problem.links()[link].bandwidth
        })
    });
    let least = least[0].max(least[1]);
    let bytes = |value: ValueId| problem.value(value).bytes;
    let mut values: Vec<ValueId> = problem.fixed(device).collect();
    values.retain(|&value| bytes(value) > 0 && bytes(value) as f64 >= least);
    values.sort_by_key(|&value| (uses(problem, value), Reverse(bytes(value)), value));
    let mut left = room(&budgeted.beside, memory);
    values.retain(|&value| {
        let fits = bytes(value) <= left;
        left -= if fits { bytes(value) } else { 0 };
        fits
    });
    values
        .into_iter()
        .map(|value| (value, bytes(value)))
        .collect()
}

/// How many tasks read a value or what overwrites it.
fn uses(problem: &Problem, value: ValueId) -> usize {
    let chain = problem.chain(value);
    chain.map(|value| problem.consumers(value).len()).sum()
}

/// The problem in which these values live there.
pub(crate) fn with_homes(budgeted: &Budgeted, homes: &[(ValueId, DeviceId)]) -> Result<Budgeted> {
    let problem = budgeted.problem.with_homes(homes);
    let problem = problem
        .map_err(scrimp_plan::SwapError::from)
        .map_err(Error::from)?;
    Ok(Budgeted {
        fixed_bytes: problem.fixed_bytes(budgeted.device),
        problem,
        ..budgeted.clone()
    })
}
