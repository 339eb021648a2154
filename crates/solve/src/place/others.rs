//! Placing one of several plans.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::vec::IntoIter;

use rayon::ThreadPool;
use rayon::prelude::*;
use scrimp_plan::{Capacities, CheckedLayout, CheckedPlan, Problem, Sequence};

use super::pack::Effort;
use super::stir::reordered;
use super::{PlaceError, placed};
use crate::cutoff::Cutoff;
use crate::method::Order;
use crate::options::{Options, Others};
use crate::search::ties::SAME;

/// The plans whose orders are made at a time. They are placed from the least crowded on; of few tasks, whose orders are made
/// sooner than placed, only the first half.
const ROUND: usize = 16;
const FEW: usize = 300;
/// The power of a step's share of the peak in how crowded a plan is.
const CROWDING: i32 = 6;
/// How often each plan's order is shaken. An order as the search left it packs less often than a shaken one that was tidied.
const SHAKES: u64 = 16;
/// The work of placing a plan in the first turns, per buffer and within limits. Most of what packs then packs with half of it, but
/// some problems need ten times as much, so it doubles after every few turns.
const BRIEF: u64 = 40_000;
const LEAST_BRIEF: u64 = 10_000_000;
const MOST_BRIEF: u64 = 20_000_000;
const DOUBLES: u64 = 2;

/// Places the buffers of one of several plans within the capacities: of a tie, or of a dearer one as a spare. Little work goes
/// to each, in one order of its runs after another.
pub struct PlaceAny<'a> {
    problem: &'a Problem,
    plans: &'a Others<Sequence>,
    /// Seconds of the dearer ones.
    seconds: Vec<f64>,
    capacities: &'a Capacities,
    order: Order,
    /// Without threads of its own, the work is done on those that all share.
    pool: Option<ThreadPool>,
    turns: Peekable<IntoIter<Turn>>,
    /// For how long the buffers of plans that were tried are held. Plans in which they are held for as long pack as well.
    seen: BTreeSet<u128>,
}

/// Some plans that are tried.
#[derive(Clone, Copy)]
struct Turn {
    ties: bool,
    round: usize,
    /// Of the shaking of orders.
    seed: u64,
}

impl<'a> PlaceAny<'a> {
    /// Nothing is tried yet.
    pub fn new(
        problem: &'a Problem,
        plans: &'a Others<Sequence>,
        capacities: &'a Capacities,
        options: &Options,
    ) -> Self {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(options.threads.max(1));
        let rounds = plans.ties.len().max(plans.dearer.len()).div_ceil(ROUND);
        let turns = (0..SHAKES).flat_map(|seed| (0..rounds).map(move |round| (seed, round)));
        let turns =
            turns.flat_map(|(seed, round)| [true, false].map(|ties| Turn { ties, round, seed }));
        let of_task = |task| {
            problem
                .task(task)
                .modes
                .first()
                .map_or(0.0, |mode| mode.seconds)
        };
        let seconds = |plan: &Sequence| plan.runs().map(of_task).sum();
        PlaceAny {
            problem,
            plans,
            seconds: plans.dearer.iter().map(seconds).collect(),
            capacities,
            order: options.order,
            pool: threads.build().ok(),
            turns: turns.collect::<Vec<_>>().into_iter().peekable(),
            seen: BTreeSet::new(),
        }
    }

    /// A tie's layout, if one is found; goes on where the last call ended. Ties and plans that are dearer, but cheaper than the
    /// spare, take turns until the first cutoff or, once there is a spare, until the second.
    ///
    /// # Errors
    /// [`PlaceError::Defect`] if a packing isn't valid.
    pub fn tie(
        &mut self,
        spare: &mut Option<CheckedLayout>,
        cutoffs: [Cutoff<'_>; 2],
    ) -> Result<Option<CheckedLayout>, PlaceError> {
        while let Some(&turn) = self.turns.peek() {
            let cutoff = cutoffs[usize::from(spare.is_some())];
            if cutoff.reached() {
                break;
            }
            let below = spare.as_ref().map_or(f64::INFINITY, |s| s.plan().cost());
            match self.found(turn, below, cutoff)? {
                Some(layout) if turn.ties => return Ok(Some(layout)),
                Some(layout) => *spare = Some(layout),
                None if cutoff.reached() => break,
                None => {}
            }
            self.turns.next();
        }
        Ok(None)
    }

    /// The layout of the first plan that packs: of the least crowded ties, or of dearer plans by their seconds, if those are
    /// below a limit.
    fn found(
        &mut self,
        turn: Turn,
        below: f64,
        cutoff: Cutoff<'_>,
    ) -> Result<Option<CheckedLayout>, PlaceError> {
        let dearer = self
            .seconds
            .partition_point(|&seconds| seconds < below * (1.0 - SAME));
        let plans = match turn.ties {
            true => &self.plans.ties[..],
            false => &self.plans.dearer[..dearer],
        };
        let Self {
            problem,
            capacities,
            order,
            ..
        } = *self;
        let order = |sequence| {
            let plan = reordered(problem, sequence, order, turn.seed, cutoff)?;
            plan.within(capacities).is_ok().then(|| {
                let held = held(&plan);
                (crowding(&held), held.iter().sum(), plan)
            })
        };
        let place = |(_, _, plan): &(f64, u128, CheckedPlan)| {
            let brief = BRIEF.saturating_mul(plan.buffers().len() as u64);
            let brief = brief.clamp(LEAST_BRIEF, MOST_BRIEF) << (turn.seed / DOUBLES);
            let layout = placed(plan, capacities, Effort::Brief(brief), cutoff);
            (!matches!(layout, Err(PlaceError::OverCapacity(_)))).then_some(layout)
        };
        let seen = &mut self.seen;
        let mut find = || {
            let some = plans.par_iter().skip(turn.round * ROUND).take(ROUND);
            let mut orders: Vec<_> = some.filter_map(order).collect();
            orders.retain(|(_, held, _)| !seen.contains(held));
            if turn.ties {
                orders.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                orders.dedup_by_key(|(_, held, _)| *held);
                if problem.tasks().len() <= FEW {
                    orders.truncate(orders.len().div_ceil(2));
                }
            }
            let layout = orders.par_iter().find_map_first(place);
            if !cutoff.reached() {
                seen.extend(orders.iter().map(|(_, held, _)| *held));
            }
            layout
        };
        let layout = match &self.pool {
            Some(pool) => pool.install(find),
            None => find(),
        };
        layout.transpose()
    }
}

/// Bytes held by step, of all devices and memories.
fn held(plan: &CheckedPlan) -> Vec<u128> {
    let mut held = vec![0; plan.steps().len() + 1];
    for buffer in plan.buffers().values() {
        let held = held.iter_mut().take(buffer.end).skip(buffer.start);
        held.for_each(|bytes| *bytes += u128::from(buffer.bytes));
    }
    held
}

/// How much of a plan's time is close to its peak: what packs depends on that more than on how long buffers are held.
fn crowding(held: &[u128]) -> f64 {
    let peak = held.iter().copied().max().unwrap_or(0).max(1) as f64;
    let share = |&bytes: &u128| (bytes as f64 / peak).powi(CROWDING);
    held.iter().map(share).sum()
}
