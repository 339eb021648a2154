//! Placing one of several plans.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::vec::IntoIter;

use rayon::ThreadPool;
use rayon::prelude::*;
use scrimp_plan::{Buffer, Capacities, CheckedLayout, CheckedPlan, Problem, Sequence};

use super::pack::Effort;
use super::stir::reordered;
use super::{PlaceError, VARIANTS, placed};
use crate::cutoff::Cutoff;
use crate::method::Order;
use crate::options::{Options, Others};

/// The plans whose orders are made at a time. The half whose buffers are held for less is placed.
const ROUND: usize = 16;

/// Places the buffers of one of several plans within the capacities: of a tie, or of a dearer one as a spare. Little work goes
/// to each; then their runs are tried in other orders.
pub struct PlaceAny<'a> {
    problem: &'a Problem,
    plans: &'a Others<Sequence>,
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
    /// Of the shaking of orders; none leaves them.
    seed: Option<u64>,
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
        let seeds = [None].into_iter().chain((0..VARIANTS).map(Some));
        let turns = seeds.flat_map(|seed| (0..rounds).map(move |round| (seed, round)));
        let turns =
            turns.flat_map(|(seed, round)| [true, false].map(|ties| Turn { ties, round, seed }));
        PlaceAny {
            problem,
            plans,
            capacities,
            order: options.order,
            pool: threads.build().ok(),
            turns: turns.collect::<Vec<_>>().into_iter().peekable(),
            seen: BTreeSet::new(),
        }
    }

    /// A tie's layout, if one is found; goes on where the last call ended. While there is no spare, ties and dearer plans take
    /// turns until the first cutoff; once there is one, ties alone are tried until the second.
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
            if turn.ties || spare.is_none() {
                match self.found(turn, cutoff)? {
                    Some(layout) if turn.ties => return Ok(Some(layout)),
                    Some(layout) => *spare = Some(layout),
                    None if cutoff.reached() => break,
                    None => {}
                }
            }
            self.turns.next();
        }
        Ok(None)
    }

    fn found(
        &mut self,
        turn: Turn,
        cutoff: Cutoff<'_>,
    ) -> Result<Option<CheckedLayout>, PlaceError> {
        let plans = match turn.ties {
            true => &self.plans.ties,
            false => &self.plans.dearer,
        };
        let Self {
            problem,
            capacities,
            order,
            ..
        } = *self;
        let order = |sequence| {
            let plan = reordered(problem, sequence, order, turn.seed, cutoff)?;
            plan.within(capacities).is_ok().then(|| (held(&plan), plan))
        };
        let place = |(_, plan): &(u128, CheckedPlan)| {
            let layout = placed(plan, capacities, Effort::Brief, cutoff);
            (!matches!(layout, Err(PlaceError::OverCapacity(_)))).then_some(layout)
        };
        let seen = &mut self.seen;
        let mut find = || {
            let some = plans.par_iter().skip(turn.round * ROUND).take(ROUND);
            let mut orders: Vec<_> = some.filter_map(order).collect();
            orders.retain(|(held, _)| !seen.contains(held));
            orders.sort_by_key(|(held, _)| *held);
            orders.dedup_by_key(|(held, _)| *held);
            orders.truncate(orders.len().div_ceil(2));
            let layout = orders.par_iter().find_map_first(place);
            if !cutoff.reached() {
                seen.extend(orders.iter().map(|(held, _)| *held));
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

/// The sum of all buffers' bytes times the steps during which they are held.
fn held(plan: &CheckedPlan) -> u128 {
    let held = |b: &Buffer| (b.end - b.start) as u128 * u128::from(b.bytes);
    plan.buffers().values().map(held).sum()
}
