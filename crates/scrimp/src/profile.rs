//! Stage 3, profile: chooses the plan that is run to measure costs, so that measuring stays within the
//! budget, too.

use scrimp_graph::{Lowered, Phases};
use scrimp_plan::{Budget, Capacities, CheckedLayout, DeviceId, Problem, Timeline, simulate};
use scrimp_run::{
    Compiled, Profile, ProfileOptions, ProfileWatch, Rehearsal, RunError, Slowdown, timeline,
};
use scrimp_solve::{Method, Options, Order, SolveError, place};
use std::path::Path;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::machine;
use crate::pipeline::{self, Budgeted, Fit};
use crate::swap::Swap;
use crate::training;

/// Time for planning a step that is only used for measuring.
const QUICK: Duration = Duration::from_secs(1);
/// Memory for a step that keeps everything, if the system doesn't say how much there is.
const UNKNOWN: u64 = 1 << 30;

/// What measuring a device may take.
#[derive(Clone, Copy, Debug)]
pub struct Within {
    /// The budget of the steps that are run.
    pub budget: Budget,
    /// Bytes of main memory to which these steps may swap if there is no other way.
    pub beside: u64,
}

/// Stage 3, profile: what each node takes on this machine. It is measured in steps that take at most the
/// budget and at most half of the free memory. If a step that keeps everything fits, it is run. Otherwise a
/// step is run that is planned quickly with estimated costs and computes some values again; the costs of the
/// step that keeps everything follow from it. If no step fits so, one is run that swaps. `phases` says where the nodes belong.
///
/// # Errors
/// If no plan is found within the budget, there isn't enough memory, an operator has no kernel, or `stop` is
/// set.
pub fn profile(
    phases: &Phases,
    compiled: &Compiled<'_>,
    within: Within,
    swap: &Swap,
    options: &Options,
    stop: &AtomicBool,
    watch: ProfileWatch<'_>,
) -> Result<Profile> {
    let swapping;
    let (prepared, swap) = match Prepared::new(phases, compiled, within.budget, swap, options, 1) {
        Err(error) if within.beside > 0 && pipeline::is_too_little(&error) => {
            let room = match within.budget {
                Budget::Bytes(bytes) => bytes.min(within.beside),
                _ => within.beside,
            };
            swapping = Swap::to_main_memory(compiled.processor(), within.beside, room)?;
            let prepared = Prepared::new(phases, compiled, within.budget, &swapping, options, 1);
            (prepared?, &swapping)
        }
        prepared => (prepared?, swap),
    };
    if stop.load(Ordering::SeqCst) {
        return Err(RunError::Stopped.into());
    }
    training::fits(prepared.main_memory(compiled, swap))?;
    let files = swap.files(&prepared.problem);
    let rehearsal = prepared.rehearsal(compiled, &files);
    let options = ProfileOptions::default();
    Ok(scrimp_run::profile(&rehearsal, &options, stop, watch)?)
}

/// Stage 3 where several devices compute: how much they slow each other down. Each goes through a step of its own within
/// its own budget, alone and at the same time as the others; `None` if one of them has no step within its budget.
///
/// # Errors
/// As for [`profile`].
pub fn profile_beside(
    phases: &Phases,
    compiled: &[Compiled<'_>],
    budgets: &[Budget],
    options: &Options,
    stop: &AtomicBool,
    watch: ProfileWatch<'_>,
) -> Result<Option<Vec<Slowdown>>> {
    let swap = Swap::default();
    let mut prepared = Vec::with_capacity(compiled.len());
    for (one, &budget) in compiled.iter().zip(budgets) {
        match Prepared::new(phases, one, budget, &swap, options, compiled.len()) {
            Err(error) if pipeline::is_too_little(&error) => return Ok(None),
            made => prepared.push(made?),
        }
        if stop.load(Ordering::SeqCst) {
            return Err(RunError::Stopped.into());
        }
    }
    let each = || prepared.iter().zip(compiled);
    let memory = each().map(|(prepared, compiled)| prepared.main_memory(compiled, &swap));
    training::fits(memory.sum())?;
    let rehearsals = each().map(|(prepared, compiled)| prepared.rehearsal(compiled, &[]));
    let rehearsals: Vec<Rehearsal<'_>> = rehearsals.collect();
    let options = ProfileOptions::default();
    let slowed = scrimp_run::profile_beside(&rehearsals, &options, stop, watch)?;
    Ok(Some(slowed))
}

/// A step that is run to measure a device.
struct Prepared {
    lowered: Lowered,
    /// With memories to swap to.
    problem: Problem,
    keep_all: CheckedLayout,
    /// What is run, if that isn't the step that keeps everything.
    layout: Option<CheckedLayout>,
}

impl Prepared {
    /// Plans a step within the budget and this device's part of half of the free memory. So many `devices` are measured
    /// at the same time.
    fn new(
        phases: &Phases,
        compiled: &Compiled<'_>,
        budget: Budget,
        swap: &Swap,
        options: &Options,
        devices: usize,
    ) -> Result<Prepared> {
        // This plan is only for measuring, so it doesn't matter which planner makes the final one.
        let options = Options {
            method: Method::default(),
            order: Order::default(),
            ..options.clone()
        };
        let costs = pipeline::estimate(compiled);
        let lowered = scrimp_graph::lower(compiled.graph(), phases, &costs, "cpu")?;
        let (problem, capacities) = swap.add(&lowered.problem)?;
        let budgeted = Budgeted {
            beside: capacities,
            ..pipeline::budget(&problem, budget)?
        };
        let keep_all = place(&budgeted.base, &Capacities::unlimited())?;
        let own = compiled.processor().own_memory();
        let half = || machine::memory().available.map(|bytes| bytes / 2);
        let room = own.or_else(|| Some(half()? / devices as u64));
        let room = room.unwrap_or(UNKNOWN);
        let beside = own.map_or_else(|| swap.ram_capacity(), |_| 0);
        Ok(Prepared {
            layout: rehearsed(&budgeted, room, beside, &keep_all, &options)?,
            lowered,
            problem,
            keep_all,
        })
    }

    fn layout(&self) -> &CheckedLayout {
        self.layout.as_ref().unwrap_or(&self.keep_all)
    }

    /// Bytes of main memory that running it takes.
    fn main_memory(&self, compiled: &Compiled<'_>, swap: &Swap) -> u64 {
        training::main_memory(slice::from_ref(compiled), self.layout(), 0, swap)
    }

    fn rehearsal<'a>(
        &'a self,
        compiled: &'a Compiled<'a>,
        files: &'a [(DeviceId, &'a Path)],
    ) -> Rehearsal<'a> {
        Rehearsal {
            compiled,
            lowered: &self.lowered,
            layout: self.layout(),
            keep_all: &self.keep_all,
            files,
        }
    }
}

/// Within what each device is measured: alone it may need more than its own budget. Devices are measured one after another,
/// so each of those in main memory may take what they may take together, and one with a memory of its own may swap to so much.
///
/// # Errors
/// A graph can't be planned.
pub fn shared_budgets(
    phases: &Phases,
    compiled: &[Compiled<'_>],
    budgets: &[Budget],
) -> Result<Vec<Within>> {
    let in_main = |compiled: &Compiled<'_>| compiled.processor().own_memory().is_none();
    let mut sum = Some(0u64);
    for (compiled, &budget) in compiled.iter().zip(budgets) {
        if in_main(compiled) {
            let costs = pipeline::estimate(compiled);
            let lowered = scrimp_graph::lower(compiled.graph(), phases, &costs, "cpu")?;
            let bytes = pipeline::budget(&lowered.problem, budget)?.budget_bytes;
            sum = sum.zip(bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
        }
    }
    let each = compiled.iter().zip(budgets);
    let shared = each.map(|(one, &budget)| match sum {
        Some(sum) if in_main(one) && compiled.len() > 1 => Within {
            budget: Budget::Bytes(sum),
            beside: 0,
        },
        _ => Within {
            budget,
            beside: if in_main(one) { 0 } else { sum.unwrap_or(0) },
        },
    });
    Ok(shared.collect())
}

/// A plan within the budget and `room`; `None` if a step that keeps everything fits, with what may be swapped to in
/// main memory `beside`.
fn rehearsed(
    budgeted: &Budgeted,
    room: u64,
    beside: u64,
    keep_all: &CheckedLayout,
    options: &Options,
) -> Result<Option<CheckedLayout>> {
    let kept = keep_all.arena_bytes(budgeted.device);
    let within = |budget_bytes: Option<u64>, options: &Options| {
        let limited = Budgeted {
            budget_bytes,
            ..budgeted.clone()
        };
        let planned = pipeline::find_plan(&limited, Fit::Layout, options, &mut |_| {});
        planned.map(|planned| Some(planned.layout))
    };
    let quick = Options {
        time_limit: QUICK.min(options.time_limit),
        ..options.clone()
    };
    let limit = match budgeted.budget_bytes {
        None => return within(None, &quick),
        Some(bytes) => bytes.min(room),
    };
    if kept <= limit.saturating_add(beside).min(room) {
        return Ok(None);
    }
    match within(Some(limit), &quick) {
        Err(Error::Solve(SolveError::Infeasible { .. }) | Error::NoLayout { .. }) => {}
        planned => return planned,
    }
    // Little memory is free, or the short time wasn't enough: allow the whole budget and time.
    within(budgeted.budget_bytes, options)
}

/// The times of one of many steps. A plan's cost adds up what its tasks take in a step that keeps everything.
/// With a profile for each device that computes, each run is instead predicted for its place in this plan. Static
/// costs don't account for caches, so without profiles these are the problem's seconds.
pub fn predicted(layout: &CheckedLayout, lowered: &Lowered, profiles: &[Profile]) -> Timeline {
    match profiles.is_empty() {
        false => timeline(profiles, layout, lowered),
        true => simulate(layout.plan()),
    }
}
