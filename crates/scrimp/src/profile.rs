//! Stage 3, profile: which plan is run to measure costs, so that measuring stays within the budget too.

use scrimp_graph::{Lowered, TrainingGraph};
use scrimp_plan::{Budget, Capacities, CheckedLayout};
use scrimp_run::{Compiled, Profile, ProfileOptions, ProfileWatch, Rehearsal, RunError};
use scrimp_solve::{Method, Options, Order, SolveError, place};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::machine;
use crate::pipeline::{self, Budgeted, Fit};
use crate::training;

/// How long the planner looks for a plan that is only to be measured with.
const QUICK: Duration = Duration::from_secs(1);
/// Memory for a step that keeps everything where the system doesn't say how much there is.
const UNKNOWN: u64 = 1 << 30;

/// Stage 3, profile: what each node takes on this machine, measured in steps that take no more memory than the
/// budget, or than half of what is free. A step that keeps everything is run where that fits; else, planned quickly
/// with estimated costs, one that computes some things again, from which the costs of the other follow.
///
/// # Errors
/// If no plan is found within the budget, memory isn't there, an operator has no kernel, or someone sets `stop`.
pub fn profile(
    training: &TrainingGraph,
    compiled: &Compiled<'_>,
    budget: Budget,
    options: &Options,
    stop: &AtomicBool,
    watch: ProfileWatch<'_>,
) -> Result<Profile> {
    // Whoever plans what is to be trained, this plan is only run.
    let options = Options {
        method: Method::default(),
        order: Order::default(),
        ..options.clone()
    };
    let costs = pipeline::estimate(compiled);
    let lowered = pipeline::lower(training, &costs)?;
    let budgeted = pipeline::budget(&lowered.problem, budget)?;
    let keep_all = place(&budgeted.base, &Capacities::unlimited())?;
    let layout = rehearsed(&budgeted, &keep_all, &options)?;
    if stop.load(Ordering::SeqCst) {
        return Err(RunError::Stopped.into());
    }
    let layout = layout.as_ref().unwrap_or(&keep_all);
    training::fits(layout.arena_bytes(budgeted.device))?;
    let rehearsal = Rehearsal {
        compiled,
        lowered: &lowered,
        layout,
        keep_all: &keep_all,
    };
    let options = ProfileOptions::default();
    Ok(scrimp_run::profile(&rehearsal, &options, stop, watch)?)
}

/// A plan within the budget and half of the free memory; none if a step that keeps everything is.
fn rehearsed(
    budgeted: &Budgeted,
    keep_all: &CheckedLayout,
    options: &Options,
) -> Result<Option<CheckedLayout>> {
    let room = machine::memory()
        .available
        .map_or(UNKNOWN, |bytes| bytes / 2);
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
    if kept <= limit {
        return Ok(None);
    }
    match within(Some(limit), &quick) {
        Err(Error::Solve(SolveError::Infeasible { .. }) | Error::NoLayout { .. }) => {}
        planned => return planned,
    }
    // Little memory is free, or little time wasn't enough.
    within(budgeted.budget_bytes, options)
}

/// Seconds of one of many steps. A plan's cost is the sum of what its tasks take in a step that keeps everything;
/// in a profile each run takes what it takes in its place in this plan. Static costs don't know of caches: without a
/// profile it is the cost.
pub fn predicted_seconds(
    layout: &CheckedLayout,
    lowered: &Lowered,
    profile: Option<&Profile>,
) -> f64 {
    match profile {
        Some(profile) => profile.step_seconds(layout, lowered),
        None => layout.plan().cost(),
    }
}
