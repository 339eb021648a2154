//! Packing of one part: the methods, in the order in which they are tried, and how much of each.
//!
//! Work is counted in units of about a nanosecond, so the result doesn't depend on the machine.

use std::cmp::Reverse;

use super::eject::Ejection;
use super::exact::{Attempts, Verdict};
use super::greedy::first_fit;
use super::items::Items;
use super::packing::Packing;
use super::skyline::Wheel;
use crate::cutoff::Cutoff;

/// Pairs that meet, above which only the skyline packs: lists of them would take too much memory.
const MOST_PAIRS: u64 = 30_000_000;
/// Items above which the exact search has no chance.
const MOST_EXACT: usize = 5_000;
/// Work of a method's first turn; each round has longer turns than the one before.
const TURN: u64 = 10_000_000;
/// Work below what is enough is this part of all work.
const BEYOND: u64 = 2;
/// Sums of bytes that can't overflow, whatever is added up.
const MOST_BYTES: u128 = u64::MAX as u128 / 8;

/// Heights to aim at, and how hard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goals {
    /// Nothing is gained below.
    pub least: u64,
    /// Not worth much work below.
    pub enough: u64,
    /// Most work, in units of about a nanosecond.
    pub work: u64,
}

/// The lowest packing found, and a height that is proven to be the least for these items.
pub(crate) fn pack(items: &Items, goals: Goals, cutoff: Cutoff<'_>) -> (Packing, u64) {
    let live = items.live_bytes();
    let bytes: u128 = items.bytes.iter().map(|&b| u128::from(b)).sum();
    let mut wheel = Wheel::new(items);
    let mut best = wheel.plain(goals.least);
    if best.arena <= goals.least || bytes > MOST_BYTES {
        return (best, live);
    }
    let enough = goals.enough.max(goals.least);
    let beyond = match enough > goals.least {
        true => goals.work / BEYOND,
        false => goals.work,
    };
    if items.meetings() > MOST_PAIRS {
        wheel.turn(&mut best, goals.least, beyond, cutoff);
        wheel.turn(&mut best, enough, goals.work, cutoff);
        return (best, live);
    }
    let neighbours = items.neighbours();
    by_first_fit(items, &neighbours, goals.least, &mut best);
    let step = items.bytes.iter().copied().reduce(gcd).unwrap_or(1).max(1);
    let mut search = Search {
        wheel,
        ejection: Ejection::new(items, &neighbours, step, &best),
        attempts: (items.len() <= MOST_EXACT).then(|| Attempts::new(items, &neighbours)),
        best,
        floor: live,
        step,
    };
    search.towards(goals.least, beyond, cutoff);
    search.towards(enough, goals.work, cutoff);
    (search.best, search.floor)
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}

/// First fit in a few orders.
fn by_first_fit(items: &Items, neighbours: &[Vec<u32>], goal: u64, best: &mut Packing) {
    let crowds = items.crowds();
    let keys: [&dyn Fn(usize) -> [u64; 2]; 4] = [
        &|k| [items.bytes[k], items.width(k)],
        &|k| [items.width(k), items.bytes[k]],
        &|k| [items.area(k), 0],
        &|k| [crowds[k], items.area(k)],
    ];
    for key in keys {
        if best.arena <= goal {
            return;
        }
        let mut order: Vec<u32> = (0..items.len() as u32).collect();
        order.sort_by_key(|&k| Reverse(key(k as usize)));
        best.improve(first_fit(items, neighbours, &order));
    }
}

/// Three methods by turns: the exact search is strong where no byte may be lost, ejection where some
/// may, the skyline where there are thousands of items.
struct Search<'a> {
    wheel: Wheel<'a>,
    ejection: Ejection<'a>,
    attempts: Option<Attempts<'a>>,
    best: Packing,
    /// No packing is lower.
    floor: u64,
    /// Heights of packings whose items lie on each other are multiples of it.
    step: u64,
}

impl Search<'_> {
    /// Works towards a goal, or towards the least that isn't proven to be impossible.
    fn towards(&mut self, mut goal: u64, work: u64, cutoff: Cutoff<'_>) {
        let mut left = work;
        let mut turn = TURN;
        while left > 0 && self.best.arena > goal.max(self.floor) && !cutoff.reached() {
            goal = goal.max(self.floor);
            if let Some(attempts) = self.attempts.as_mut() {
                match attempts.turn(goal, 2 * turn) {
                    Verdict::Packed(packing) => self.best.improve(packing),
                    Verdict::Impossible(work) => {
                        self.floor = (goal / self.step + 1) * self.step;
                        left = left.saturating_sub(work);
                        continue;
                    }
                    Verdict::Unknown => {}
                }
            }
            self.wheel.turn(&mut self.best, goal, turn, cutoff);
            self.ejection.turn(&mut self.best, goal, turn);
            left = left.saturating_sub(4 * turn);
            turn += turn / 4;
        }
    }
}
