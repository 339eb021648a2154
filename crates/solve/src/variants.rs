//! [`solve_variants`]: variants of one problem under many budgets, such that a faster link, one more memory or
//! leave to run tasks again never gives a slower plan.

use scrimp_plan::{Capacities, Link, Problem, check, simulate};

use crate::error::SolveError;
use crate::options::{Options, Progress, Solved};
use crate::sweep::{Outcomes, solve_sweep};

/// Sweeps over budgets as [`solve_sweep`] does, for each variant of a problem. A variant takes over the plan of
/// another one if that plan is valid for it, fits and is faster there. It certainly is valid and not slower if
/// the other variant differs only in slower or missing links and in tasks that may run only once. A bound of
/// the wider of two such variants also holds for the narrower one. Variants that weren't reached before a stop
/// have fewer outcomes. `progress` also gets the number of the variant.
///
/// # Errors
/// The errors of [`solve_sweep`].
pub fn solve_variants(
    variants: &[(Problem, Capacities)],
    budgets: &[u64],
    options: &Options,
    progress: &mut dyn FnMut(usize, u64, Progress),
) -> Result<Vec<Outcomes>, SolveError> {
    let mut all = Vec::with_capacity(variants.len());
    for (number, (problem, beside)) in variants.iter().enumerate() {
        let mut progress = |budget, news| progress(number, budget, news);
        all.push(solve_sweep(
            problem,
            beside,
            budgets,
            options,
            &mut progress,
        )?);
    }
    for wider in 0..variants.len() {
        for narrower in (0..variants.len()).filter(|&other| other != wider) {
            if !contains(&variants[wider].0, &variants[narrower].0) {
                continue;
            }
            for at in 0..all[wider].len().min(all[narrower].len()) {
                let other = all[narrower][at].1.clone();
                adopt(&variants[wider], &mut all[wider][at], other.ok());
                let bound = all[wider][at].1.as_ref().map_or(0.0, |s| s.lower_bound);
                if let Ok(solved) = &mut all[narrower][at].1 {
                    prove(solved, bound);
                }
            }
        }
    }
    Ok(all)
}

/// Whether every plan of one variant is a plan of the other, and not slower there.
fn contains(wider: &Problem, narrower: &Problem) -> bool {
    let mut tasks = wider.tasks().values().zip(narrower.tasks().values());
    let same = wider.tasks().len() == narrower.tasks().len()
        && wider.values() == narrower.values()
        && wider.devices() == narrower.devices()
        && tasks.all(|(wide, narrow)| {
            let rerunnable = wide.rerunnable;
            (rerunnable || !narrow.rerunnable)
                && *wide
                    == scrimp_plan::Task {
                        rerunnable,
                        ..narrow.clone()
                    }
        });
    same && narrower.links().values().all(|slow| {
        let fast = wider.link_between(slow.from, slow.to);
        fast.is_some_and(|fast| is_faster(&wider.links()[fast], slow))
    })
}

/// Whether each copy over one link takes at most as long as over the other, also from computing, in a queue that it shares with no
/// more links.
fn is_faster(fast: &Link, slow: &Link) -> bool {
    fast.bandwidth >= slow.bandwidth
        && fast.latency <= slow.latency
        && fast.drag <= slow.drag
        && fast.seconds.is_empty()
        && slow.seconds.is_empty()
        && (fast.queue.is_none() || fast.queue == slow.queue)
}

/// Gives a variant another one's plan, if it fits and is faster.
fn adopt(
    (problem, beside): &(Problem, Capacities),
    (budget, own): &mut (u64, Result<Solved, SolveError>),
    other: Option<Solved>,
) {
    let Some(other) = other else { return };
    let Ok(plan) = check(problem, other.plan.plan().clone()) else {
        return;
    };
    let device = problem.sole_device();
    let capacities = match device {
        Some(device) => beside.clone().with_bytes(device, Some(*budget)),
        None => return,
    };
    let cost = simulate(&plan).makespan();
    let (slower, bound) = match own {
        Ok(own) => (own.cost > cost, own.lower_bound),
        Err(_) => (true, 0.0),
    };
    if slower && plan.within(&capacities).is_ok() {
        let mut solved = Solved {
            cost,
            plan,
            lower_bound: bound.min(cost),
            optimal: false,
            ..other
        };
        prove(&mut solved, bound);
        *own = Ok(solved);
    }
}

/// Raises a plan's bound.
fn prove(solved: &mut Solved, bound: f64) {
    solved.lower_bound = solved.lower_bound.max(bound.min(solved.cost));
    solved.optimal |= solved.cost <= bound * (1.0 + 1e-9);
}
