//! The search's schedule: epochs of annealing on two walks, merged after each.
//!
//! All decisions depend on units of work, never on the clock, and the walks don't see each other
//! within an epoch. So one thread or two give the same plan; the clock only cuts off.

use std::time::{Duration, Instant};

use crate::bound;
use crate::model::{Model, Task};
use crate::options::{Options, Order, Progress};
use crate::search::anneal::{BEAM_TASKS, Walk};
use crate::search::beam::{self, Breadth};
use crate::search::exact::{self, Limits, Verdict};
use crate::search::rng::Random;
use crate::search::state::State;

/// Walks beside each other.
const WALKS: usize = 2;
/// Units of work per second that the schedule expects of a walk, below what machines do.
const RATE: f64 = 30e6;
/// The bound's share of the work before the epochs, and as much again after them.
const BOUND_SHARE: f64 = 0.1;
/// Units of work of the first epoch, per task.
const FIRST_EPOCH: u64 = 2500;
/// A first plan is looked for that long at least, whatever the limit: without one there is nothing to
/// stop with, and a feasible budget would be called infeasible.
const FIRST_PLAN: Duration = Duration::from_secs(2);
/// How often a first plan is looked for from the start, with other random choices each time.
const ROUNDS: u64 = 16;
/// States that the exact search for small problems makes at most.
const STATES: usize = 150_000;
/// Epochs without a better plan after which the search has converged.
const PATIENCE: u32 = 8;

/// What the search found.
pub(crate) struct Found {
    /// The cheapest sequence that fits, or the leanest if none does.
    pub runs: Vec<Task>,
    pub lower_bound: f64,
    /// Proven: no plan takes fewer bytes than this many, resident ones not counted.
    pub floor: f64,
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
    // Who has a cost that is enough asks for many budgets, and means the limit.
    let least = options.enough.map_or(FIRST_PLAN, |_| options.time_limit);
    let first_cutoff = Cutoff::after(options.time_limit.max(least), start, options);
    let keep_all = State::new(model, &given);
    let floor = bound::floor(model) - model.resident;
    if keep_all.peak() <= budget {
        return Found {
            runs: given,
            lower_bound,
            floor,
        };
    }
    let free = options.order == Order::Free;
    let limits = Limits {
        states: STATES,
        known: f64::INFINITY,
        cutoff,
    };
    match exact::cheapest(model, budget, free, limits) {
        Verdict::Optimal(runs) => {
            let lower_bound = State::new(model, &runs).cost();
            return Found {
                runs,
                lower_bound,
                floor,
            };
        }
        Verdict::AtLeast(seconds) => lower_bound = lower_bound.max(seconds),
        Verdict::Infeasible => {
            let none = budget.max(floor - 1.0);
            let known = (keep_all.peak(), given);
            let (runs, proven) = exact::leanest(model, (none, known), free, limits);
            let least = State::new(model, &runs).peak();
            return Found {
                runs,
                lower_bound,
                floor: if proven { least } else { none + 1.0 },
            };
        }
        Verdict::NoBetter => {}
    }
    let threads = options.threads;
    let first = FirstPlan {
        given: &given,
        budget,
        free,
        cutoff: first_cutoff,
        options,
    };
    let mut runs = match first.search(model) {
        Ok(runs) => runs,
        Err(leanest) => {
            return Found {
                runs: leanest,
                lower_bound,
                floor,
            };
        }
    };
    let mut cost = State::new(model, &runs).cost();
    let mut walks: Vec<Walk<'m>> = (0..WALKS)
        .map(|k| {
            let random = Random::new(options.seed, k as u64);
            Walk::new(model, &given, budget, free, cutoff, random)
        })
        .collect();
    let base = model.base_cost();
    let mut bound = bound::seconds(model, budget, options.order, cost - base);
    let share = options.time_limit.as_secs_f64().min(1e6) * RATE * BOUND_SHARE;
    bound.advance(share as u64, cost - base, &|| cutoff.reached());
    lower_bound = lower_bound.max(bound.proven());
    let total = (options.time_limit.as_secs_f64().min(1e6) * RATE) as u64;
    let mut length = FIRST_EPOCH * u64::from(model.tasks);
    let mut idle = 0;
    let mut done = 0;
    let mut epoch = 0u64;
    let enough = options.enough.unwrap_or(0.0).max(lower_bound) * (1.0 + 1e-9);
    while idle < PATIENCE && done < total && !cutoff.reached() && cost > enough {
        progress(Progress {
            elapsed: start.elapsed(),
            cost: Some(cost),
            lower_bound,
        });
        let length_now = length.min(total - done).max(1);
        each(threads, &mut walks, &|k, walk| {
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
    bound.advance(share as u64, cost - base, &|| cutoff.reached());
    lower_bound = lower_bound.max(bound.proven());
    progress(Progress {
        elapsed: start.elapsed(),
        cost: Some(cost),
        lower_bound,
    });
    Found {
        runs,
        lower_bound,
        floor,
    }
}

/// Does a job with every walk, beside each other if there are threads.
fn each<'w>(threads: usize, walks: &mut [Walk<'w>], job: &(dyn Fn(usize, &mut Walk<'w>) + Sync)) {
    if threads < 2 {
        walks.iter_mut().enumerate().for_each(|(k, w)| job(k, w));
        return;
    }
    std::thread::scope(|scope| {
        for (k, walk) in walks.iter_mut().enumerate() {
            scope.spawn(move || job(k, walk));
        }
    });
}

/// The search for a sequence that fits, at whatever cost.
struct FirstPlan<'a> {
    given: &'a [Task],
    budget: f64,
    free: bool,
    cutoff: Cutoff<'a>,
    options: &'a Options,
}

impl FirstPlan<'_> {
    /// A sequence that fits, or else the leanest. Costs steer the repair, and sometimes astray where
    /// the budget is tight: each round blurs them, from as they are to all the same.
    fn search(&self, model: &Model) -> Result<Vec<Task>, Vec<Task>> {
        let mut work = 0;
        let widths: &[usize] = match self.free || model.tasks > BEAM_TASKS {
            true => &[],
            false => &[1, 8, 64],
        };
        for &width in widths {
            let breadth = Breadth {
                width,
                rent: 1.0,
                noise: 0.0,
            };
            let mut rng = Random::new(self.options.seed, 0);
            let tools = (self.cutoff, &mut rng, &mut work);
            if let Some(runs) = beam::search(model, self.given, self.budget, breadth, tools) {
                return Ok(runs);
            }
        }
        let mut leanest = (f64::INFINITY, self.given.to_vec());
        for round in 0..ROUNDS {
            let blurred = blurred(model, [1.0, 0.5, 0.0, 0.8][round as usize % 4]);
            let mut walks: Vec<Walk<'_>> = (0..WALKS as u64)
                .map(|k| {
                    let random = Random::new(self.options.seed, round * WALKS as u64 + k);
                    Walk::new(
                        &blurred,
                        self.given,
                        self.budget,
                        self.free,
                        self.cutoff,
                        random,
                    )
                })
                .collect();
            each(self.options.threads, &mut walks, &|k, walk| {
                walk.first_plan(k)
            });
            let cost = |runs: &Vec<Task>| runs.iter().map(|&t| model.cost[t as usize]).sum();
            let found = walks.iter().filter_map(|walk| walk.best.as_ref());
            let found = found.map(|(_, runs)| (cost(runs), runs));
            if let Some((_, runs)) = found.min_by(|a: &(f64, _), b| a.0.total_cmp(&b.0)) {
                return Ok(runs.clone());
            }
            for walk in &walks {
                if walk.leanest.0 < leanest.0 {
                    leanest = walk.leanest.clone();
                }
            }
            if self.cutoff.reached() {
                break;
            }
        }
        Err(leanest.1)
    }
}

/// The model with costs raised to a power, from 1 (as they are) to 0 (all the same).
fn blurred(model: &Model, power: f64) -> Model {
    let mut model = model.clone();
    let tasks = model.tasks as usize;
    let mean = model.base_cost() / (tasks.max(1) as f64);
    if power < 1.0 && mean > 0.0 {
        for cost in &mut model.cost[..tasks] {
            *cost = mean * (*cost / mean).powf(power);
        }
    }
    model
}

fn best_of(walks: &[Walk<'_>]) -> Option<(f64, Vec<Task>)> {
    walks
        .iter()
        .filter_map(|w| w.best.as_ref())
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .cloned()
}
