//! Where weights and optimizer state live between steps: on the device that computes, or in a memory beside it.
//!
//! A value that lives in a memory is brought for its uses, and sent back if it was updated. So moving it there
//! makes room on the device at all other times, for two or more copies in each step. Values with few uses per
//! step move first, and among them the largest. How many move is decided by planning: many shares without any
//! time, which pages the given order, and the best few of them for a short time.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use scrimp_plan::{Capacities, DeviceId, Problem, ValueId};
use scrimp_solve::{Method, Options, SolveError, solve};

use crate::error::{Error, Result};
use crate::pipeline::Budgeted;

/// The shares of the bytes that may move, in this many parts, that are tried.
const PARTS: u64 = 16;
/// How many of them are planned for a short time.
const TRIALS: usize = 4;
/// The part of the time limit that one such trial, or all others together, may take.
const TRIAL: u32 = 12;

/// The problem with the homes that give the cheapest quick plan; as it is if nothing can move, or if a plan in which
/// nothing moves adds nothing. With the least budget, everything that can moves.
pub(super) fn choose(budgeted: &Budgeted, options: &Options) -> Result<Budgeted> {
    let candidates = movable(budgeted);
    let one = budgeted.problem.sole_device().is_some();
    let Some(memory) = memory(budgeted).filter(|_| one && options.method == Method::Search) else {
        return Ok(budgeted.clone());
    };
    if candidates.is_empty() {
        return Ok(budgeted.clone());
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
    let Some(budget) = budgeted.budget_bytes else {
        return moved(PARTS);
    };
    let began = Instant::now();
    let trial = options.time_limit / TRIAL;
    // Nothing moves, everything does, then ever finer shares, as long as there is time.
    let mut shares = vec![0, PARTS];
    let halves = std::iter::successors(Some(PARTS / 2), |&step| (step > 1).then_some(step / 2));
    shares.extend(halves.flat_map(|step| (step..PARTS).step_by(2 * step as usize)));
    let mut quick: Vec<(bool, f64, Budgeted)> = Vec::new();
    for share in shares {
        let tried = moved(share)?;
        if tried.fixed_bytes > budget || began.elapsed() > trial && quick.len() >= TRIALS {
            continue;
        }
        if let Some(cost) = cost_within(&tried, Duration::ZERO, options)? {
            quick.push((share > 0, cost, tried));
        }
    }
    quick.sort_by(|a, b| (a.0.cmp(&b.0)).then(a.1.total_cmp(&b.1)));
    quick.truncate(TRIALS);
    let base = budgeted.base.objective(options.alpha);
    let mut best: Option<(f64, Budgeted)> = None;
    for (_, _, tried) in quick {
        let cost = cost_within(&tried, trial, options)?;
        let cost = cost.unwrap_or(f64::INFINITY);
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, tried));
        }
        if cost <= base || options.stopped() {
            break;
        }
    }
    match best {
        Some((_, best)) => Ok(best),
        // The refusal then names the least that is needed.
        None => moved(PARTS),
    }
}

/// What a plan that is found within a time costs, if there is one.
fn cost_within(budgeted: &Budgeted, time: Duration, options: &Options) -> Result<Option<f64>> {
    let trial = Options {
        time_limit: time,
        deadline: Instant::now().checked_add(time),
        ..options.clone()
    };
    match solve(
        &budgeted.problem,
        &budgeted.capacities(),
        &trial,
        &mut |_| {},
    ) {
        Ok(solved) => Ok(Some(solved.cost)),
        // What concerns more than this share, the plan itself will tell.
        Err(
            SolveError::Infeasible { .. }
            | SolveError::NotFound { .. }
            | SolveError::Unsupported(_),
        ) => Ok(None),
        Err(error) => Err(error.into()),
    }
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
