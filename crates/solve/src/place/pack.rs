//! Packing of one part: which methods are tried, in what order, and with how much work.
//!
//! Work is counted in units of about a nanosecond, so the result doesn't depend on the machine.

use std::cmp::Reverse;

use super::attempts::{Attempts, Verdict};
use super::eject::Ejection;
use super::greedy::first_fit;
use super::items::Items;
use super::packing::Packing;
use super::skyline::Wheel;
use crate::cutoff::Cutoff;
use crate::divisor;

/// Overlapping pairs above which only the skyline packs, because lists of pairs would take too much memory.
const MOST_PAIRS: u64 = 30_000_000;
/// Items above which the exact search is hopeless.
const MOST_EXACT: usize = 5_000;
/// Work of a method's first turn, unless an attempt of the exact search takes more; ejection then has as much. Turns get longer from
/// round to round.
const TURN: u64 = 10_000_000;
/// Going below a height that is enough gets one part in this many of all work.
const BEYOND: u64 = 2;
/// The exact search also aims between the goal and the best packing: below the best by at most this share of
/// the excess.
const MOST_SHARE: f64 = 0.5;
/// A limit on the sum of bytes below which no sum overflows.
const MOST_BYTES: u128 = u64::MAX as u128 / 8;

/// Heights to aim at, and the effort for them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goals {
    /// Packing lower than this gains nothing.
    pub least: u64,
    /// Packing lower than this isn't worth much work.
    pub enough: u64,
    pub effort: Effort,
}

/// How hard to pack.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effort {
    /// A search of about this much work for a packing that is low enough: by attempts of the exact search alone, unless one
    /// takes longer.
    Brief(u64),
    /// About this much work, in units of about a nanosecond. What is begun, an attempt or ejection's turn, isn't cut short.
    Work(u64),
}

/// The lowest packing found, and a height below which no packing of these items exists.
pub(crate) fn pack(items: &Items, goals: Goals, cutoff: Cutoff<'_>) -> (Packing, u64) {
    let live = items.live_bytes();
    let bytes: u128 = items.bytes.iter().map(|&b| u128::from(b)).sum();
    let mut wheel = Wheel::new(items);
    let mut best = wheel.plain(goals.least);
    if best.arena <= goals.least || bytes > MOST_BYTES {
        return (best, live);
    }
    let enough = goals.enough.max(goals.least);
    let work = match goals.effort {
        Effort::Brief(work) | Effort::Work(work) => work,
    };
    let beyond = match enough > goals.least {
        true => work / BEYOND,
        false => work,
    };
    if items.meetings() > MOST_PAIRS {
        wheel.turn(&mut best, goals.least, beyond, cutoff);
        wheel.turn(&mut best, enough, work, cutoff);
        return (best, live);
    }
    let neighbours = items.neighbours();
    by_first_fit(items, &neighbours, goals.least, &mut best, cutoff);
    let step = divisor::common(items.bytes.iter().copied());
    let attempts = (items.len() <= MOST_EXACT).then(|| Attempts::new(items, &neighbours, step));
    let mut search = Search {
        wheel,
        ejection: Ejection::new(items, &neighbours, step, &best),
        attempt: attempts.as_ref().map_or(0, Attempts::work_of_one),
        attempts,
        best,
        floor: live,
        step,
    };
    if let (Effort::Brief(_), Some(attempts)) = (goals.effort, &mut search.attempts)
        && search.attempt <= work
    {
        attempts.turn(&mut search.best, enough, work, cutoff);
        return (search.best, live);
    }
    search.towards(enough, enough, work, cutoff);
    search.towards(goals.least, enough, beyond, cutoff);
    (search.best, search.floor)
}

/// Tries first fit in a few orders.
fn by_first_fit(
    items: &Items,
    neighbours: &[Vec<u32>],
    goal: u64,
    best: &mut Packing,
    cutoff: Cutoff<'_>,
) {
    let crowds = items.crowds();
    let keys: [&dyn Fn(usize) -> [u64; 2]; 4] = [
        &|k| [items.bytes[k], items.width(k)],
        &|k| [items.width(k), items.bytes[k]],
        &|k| [items.area(k), 0],
        &|k| [crowds[k], items.area(k)],
    ];
    for key in keys {
        if best.arena <= goal || cutoff.reached() {
            return;
        }
        let mut order: Vec<u32> = (0..items.len() as u32).collect();
        order.sort_by_key(|&k| Reverse(key(k as usize)));
        best.improve(first_fit(items, neighbours, &order));
    }
}

/// Three methods that take turns. The exact search is strong where no byte may be lost, ejection where some
/// may, and the skyline where there are thousands of items.
struct Search<'a> {
    wheel: Wheel<'a>,
    ejection: Ejection<'a>,
    attempts: Option<Attempts<'a>>,
    /// Work of an attempt of the exact search.
    attempt: u64,
    best: Packing,
    /// No packing is lower.
    floor: u64,
    /// The heights of packings whose items lie on each other are multiples of this.
    step: u64,
}

impl Search<'_> {
    /// Works towards a goal, or towards the least height that isn't proven impossible. On the way it also aims at a
    /// height that is enough. Ejection comes first, for as long as an attempt of the exact search takes: with thousands of
    /// items that is longer than a turn, and ejection often needs less. Without work for an attempt, there is none.
    fn towards(&mut self, mut goal: u64, enough: u64, work: u64, cutoff: Cutoff<'_>) {
        let mut left = work;
        let mut turn = TURN;
        let mut share = MOST_SHARE;
        let mut proven = false;
        while left > 0 && self.best.arena > goal.max(self.floor) && !cutoff.reached() {
            goal = goal.max(self.floor);
            let mut used = 0;
            if !proven {
                let ejecting = turn.max(self.attempt);
                self.ejection.turn(&mut self.best, goal, ejecting, cutoff);
                self.wheel.turn(&mut self.best, goal, turn, cutoff);
                used = ejecting + turn;
            }
            let floor = self.floor;
            if self.attempt <= left {
                used += self.exactly(goal, enough, &mut share, turn, cutoff);
            }
            proven = self.floor > floor;
            if !proven {
                turn += turn / 4;
            }
            left = left.saturating_sub(used);
        }
    }

    /// Turns of the exact search at a goal, at a height that is enough, and at one between the goal and the best
    /// packing's. Returns the work.
    fn exactly(
        &mut self,
        goal: u64,
        enough: u64,
        share: &mut f64,
        turn: u64,
        cutoff: Cutoff<'_>,
    ) -> u64 {
        if self.best.arena <= goal {
            return 0;
        }
        let Some(attempts) = &mut self.attempts else {
            return 0;
        };
        let before = attempts.work;
        let excess = self.best.arena - goal;
        let nearer = self.best.arena - (excess as f64 * *share) as u64;
        let nearer = nearer.clamp(goal, self.best.arena - 1);
        for (height, work) in [(goal, 2 * turn), (enough, 2 * turn), (nearer, turn)] {
            if height < goal || height >= self.best.arena {
                continue;
            }
            match attempts.turn(&mut self.best, height, work, cutoff) {
                Verdict::Packed if height == goal => break,
                Verdict::Packed => *share = (2.0 * *share).min(MOST_SHARE),
                Verdict::Unknown if height == goal => {}
                Verdict::Unknown => *share /= 2.0,
                Verdict::Impossible => {
                    self.floor = (height / self.step + 1) * self.step;
                    break;
                }
            }
        }
        attempts.work - before
    }
}
