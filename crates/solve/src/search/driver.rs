//! The search's schedule: epochs of annealing on two walks, merged after each.
//!
//! All decisions depend on units of work, never on the clock, and the walks don't see each other
//! within an epoch. So one thread or two give the same plan; the clock only cuts off.

use std::time::{Duration, Instant};

use crate::gaps;
use crate::model::{Model, Task};
use crate::options::{Options, Order, Progress};
use crate::search::anneal::Walk;
use crate::search::rng::Random;
use crate::search::state::State;

/// Walks beside each other.
const WALKS: usize = 2;
/// Units of work per second that the schedule expects of a walk, below what machines do.
const RATE: f64 = 30e6;
/// Units of work of the first epoch, per task.
const FIRST_EPOCH: u64 = 2500;
/// A first plan is looked for that long at least, whatever the limit: without one there is nothing to
/// stop with, and a feasible budget would be called infeasible.
const FIRST_PLAN: Duration = Duration::from_secs(2);
/// Epochs without a better plan after which the search has converged.
const PATIENCE: u32 = 8;

/// What the search found.
pub(crate) struct Found {
    /// The cheapest sequence that fits, or the leanest if none does.
    pub runs: Vec<Task>,
    pub lower_bound: f64,
}

/// When a search must end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cutoff<'a> {
    deadline: Option<Instant>,
    options: &'a Options,
}

impl<'a> Cutoff<'a> {
    fn after(limit: Duration, start: Instant, options: &'a Options) -> Cutoff<'a> {
        Cutoff {
            deadline: start.checked_add(limit),
            options,
        }
    }

    pub fn reached(&self) -> bool {
        self.options.stopped() || self.deadline.is_some_and(|d| Instant::now() >= d)
    }
}

/// Searches for the cheapest sequence within `budget` bytes, resident ones not counted.
pub(crate) fn run<'m>(
    model: &'m Model,
    budget: f64,
    options: &'m Options,
    start: Instant,
    progress: &mut dyn FnMut(Progress),
) -> Found {
    let given: Vec<Task> = (0..model.tasks).collect();
    let mut lower_bound = model.base_cost();
    let cutoff = Cutoff::after(options.time_limit, start, options);
    let first_cutoff = Cutoff::after(options.time_limit.max(FIRST_PLAN), start, options);
    let keep_all = State::new(model, &given);
    if keep_all.peak() <= budget {
        return Found {
            runs: given,
            lower_bound,
        };
    }
    let free = options.order == Order::Free;
    let mut walks: Vec<Walk<'_>> = (0..WALKS)
        .map(|k| {
            Walk::new(
                model,
                &given,
                budget,
                free,
                first_cutoff,
                Random::new(options.seed, k as u64),
            )
        })
        .collect();
    let each = |walks: &mut Vec<Walk<'m>>, job: &(dyn Fn(usize, &mut Walk<'m>) + Sync)| {
        if options.threads < 2 {
            walks.iter_mut().enumerate().for_each(|(k, w)| job(k, w));
        } else {
            std::thread::scope(|scope| {
                for (k, w) in walks.iter_mut().enumerate() {
                    scope.spawn(move || job(k, w));
                }
            });
        }
    };
    each(&mut walks, &|k, walk| {
        walk.first_plan(k);
    });
    let Some((mut cost, mut runs)) = best_of(&walks) else {
        let leanest = walks
            .iter()
            .min_by(|a, b| a.leanest.0.total_cmp(&b.leanest.0));
        return Found {
            runs: leanest.map_or(given, |w| w.leanest.1.clone()),
            lower_bound,
        };
    };
    if !free {
        lower_bound = gaps::fixed_order(model, budget, cost);
    }
    let total = (options.time_limit.as_secs_f64().min(1e6) * RATE) as u64;
    let mut length = FIRST_EPOCH * u64::from(model.tasks);
    let mut idle = 0;
    let mut done = 0;
    let mut epoch = 0u64;
    while idle < PATIENCE && done < total && !cutoff.reached() && cost > lower_bound * (1.0 + 1e-9)
    {
        progress(Progress {
            elapsed: start.elapsed(),
            cost: Some(cost),
            lower_bound,
        });
        let length_now = length.min(total - done).max(1);
        each(&mut walks, &|k, walk| {
            walk.obey(cutoff);
            walk.epoch(&runs, length_now, epoch, k);
        });
        done += length_now;
        length = length * 3 / 2;
        epoch += 1;
        idle += 1;
        if let Some((better, order)) = best_of(&walks)
            && better < cost * (1.0 - 1e-12)
        {
            (cost, runs) = (better, order);
            idle = 0;
        }
    }
    if !free {
        lower_bound = lower_bound.max(gaps::fixed_order(model, budget, cost));
    }
    progress(Progress {
        elapsed: start.elapsed(),
        cost: Some(cost),
        lower_bound,
    });
    Found { runs, lower_bound }
}

fn best_of(walks: &[Walk<'_>]) -> Option<(f64, Vec<Task>)> {
    walks
        .iter()
        .filter_map(|w| w.best.as_ref())
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .cloned()
}
