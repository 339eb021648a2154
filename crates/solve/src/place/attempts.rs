//! Attempts of the exact search, each with an order of its own and with few nodes.
//!
//! A lucky order needs few nodes, an unlucky one millions. So attempts differ: in the order of items, and in
//! how much it counts that a section failed in earlier ones. Each order is used twice, because what the first attempt
//! learns about sections helps most with the same order.

use std::cmp::Reverse;

use super::exact::{Answer, PER_ITEM, Search};
use super::items::Items;
use super::packing::Packing;
use crate::cutoff::Cutoff;
use crate::random::Random;

/// Nodes of an attempt, per item and at least. An attempt that never fails takes one per item.
const NODES: u64 = 2;
const LEAST_NODES: u64 = 250;
/// How often an order is used before the next one.
const USES: usize = 2;
/// How far later attempts move items in the order, as a share of their number.
const SHAKE: f64 = 0.1;
/// By how much failures of a section count, at least and at most: its number of ways is divided by a power of them.
const POWERS: [f64; 2] = [0.5, 1.0];

/// The result of attempts.
pub(crate) enum Verdict {
    Packed,
    /// There is no packing.
    Impossible,
    Unknown,
}

/// Attempts, each with its own order.
pub(crate) struct Attempts<'a> {
    pub(super) items: &'a Items,
    pub(super) neighbours: &'a [Vec<u32>],
    orders: Vec<Vec<u32>>,
    rng: Random,
    made: usize,
    /// Of all attempts so far.
    pub work: u64,
    /// The common divisor of all sizes.
    pub(super) step: u64,
    /// Per section, how often it failed, plus one.
    pub(super) failures: Vec<f64>,
}

impl<'a> Attempts<'a> {
    pub fn new(items: &'a Items, neighbours: &'a [Vec<u32>], step: u64) -> Attempts<'a> {
        let crowds = items.crowds();
        let keys = |k: u32| {
            let k = k as usize;
            let (crowd, area, width) = (crowds[k], items.area(k), items.width(k));
            [
                [crowd, area, width],
                [area, width, crowd],
                [width, area, crowd],
                [crowd, width, area],
                [width, crowd, area],
                [items.bytes[k], width, crowd],
            ]
        };
        let orders = (0..6).map(|o| {
            let mut order: Vec<u32> = (0..items.len() as u32).collect();
            order.sort_by_cached_key(|&k| Reverse(keys(k)[o]));
            order
        });
        Attempts {
            items,
            neighbours,
            orders: orders.collect(),
            rng: Random::new(0, 0),
            made: 0,
            work: 0,
            step,
            failures: vec![1.0; items.sections()],
        }
    }

    /// About how much work an attempt takes: it begins with all items and ends with few.
    pub fn work_of_one(&self) -> u64 {
        self.nodes() * self.items.len() as u64 * PER_ITEM / 2
    }

    fn nodes(&self) -> u64 {
        (NODES * self.items.len() as u64).max(LEAST_NODES)
    }

    /// Tries orders for a height until the work is used up; the last attempt may take more.
    pub fn turn(
        &mut self,
        best: &mut Packing,
        goal: u64,
        work: u64,
        cutoff: Cutoff<'_>,
    ) -> Verdict {
        let all: Vec<u32> = (0..self.items.len() as u32).collect();
        let nodes = self.nodes();
        let end = self.work + work;
        while self.work < end && !cutoff.reached() {
            let ranks = self.ranks();
            let [least, most] = POWERS;
            let power = least + (most - least) * self.rng.unit();
            let mut search = Search::new(self, goal, ranks, power);
            let answer = search.run(&all, nodes, cutoff);
            let (offset, work) = (search.offset, search.work);
            self.work += work;
            match answer {
                Answer::Yes => {
                    best.improve(Packing::new(self.items, offset));
                    return Verdict::Packed;
                }
                Answer::No => return Verdict::Impossible,
                Answer::Unknown => {}
            }
        }
        Verdict::Unknown
    }

    /// The next order, as the rank of each item. At first the orders are used as they are, later they are
    /// shaken.
    fn ranks(&mut self) -> Vec<u32> {
        let order = &self.orders[self.made / USES % self.orders.len()];
        let shake = match self.made < USES * self.orders.len() {
            true => 0.0,
            false => order.len() as f64 * SHAKE,
        };
        self.made += 1;
        let mut shaken: Vec<(f64, u32)> = Vec::with_capacity(order.len());
        for (rank, &k) in order.iter().enumerate() {
            shaken.push((rank as f64 + shake * self.rng.unit(), k));
        }
        shaken.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut ranks = vec![0; order.len()];
        for (rank, &(_, k)) in shaken.iter().enumerate() {
            ranks[k as usize] = rank as u32;
        }
        ranks
    }
}
