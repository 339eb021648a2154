//! Local search for a packing of a given height: an item without a place takes the place that ejects least,
//! and the ejected items are placed next.
//!
//! An item that finds no free place becomes harder to eject from then on. So the search escapes from places
//! where it goes round in circles.

use super::items::Items;
use super::packing::Packing;
use crate::cutoff::Cutoff;
use crate::random::Random;

const NOWHERE: u64 = u64::MAX;
/// Work of comparing two items, in units of about a nanosecond.
const PER_PAIR: u64 = 120;
/// Prices of places are multiplied by random factors of up to this much more than one.
const NOISE: f64 = 0.2;
/// The next height removes one part in this many of the excess.
const STEPS: u64 = 10;

/// A search that keeps its learned prices from one height to the next.
pub(crate) struct Ejection<'a> {
    items: &'a Items,
    neighbours: &'a [Vec<u32>],
    /// The common divisor of all sizes. Heights and offsets are multiples of it, so buffers stay aligned.
    step: u64,
    /// By item; [`NOWHERE`] for items that have no place yet.
    offsets: Vec<u64>,
    out: Vec<u32>,
    /// The cost of ejecting an item, and by how much it grows.
    price: Vec<f64>,
    growth: Vec<f64>,
    rng: Random,
    work: u64,
    /// Where items in the way begin and end, with their prices; and offsets to try.
    begins: Vec<(u64, f64)>,
    ends: Vec<(u64, f64)>,
    places: Vec<u64>,
}

impl<'a> Ejection<'a> {
    pub fn new(
        items: &'a Items,
        neighbours: &'a [Vec<u32>],
        step: u64,
        start: &Packing,
    ) -> Ejection<'a> {
        let growth: Vec<f64> = (0..items.len())
            .map(|k| (items.bytes[k] as f64).sqrt() * items.width(k) as f64)
            .collect();
        Ejection {
            items,
            neighbours,
            step,
            offsets: start.offsets.clone(),
            out: Vec::new(),
            price: growth.clone(),
            growth,
            rng: Random::new(1, 0),
            work: 0,
            begins: Vec::new(),
            ends: Vec::new(),
            places: Vec::new(),
        }
    }

    /// Lowers the best packing step by step towards a goal, with a limited amount of work.
    pub fn turn(&mut self, best: &mut Packing, goal: u64, work: u64, cutoff: Cutoff<'_>) {
        self.work = work;
        let step = self.step;
        let goal = goal / step * step;
        while best.arena > goal && self.work > 0 && !cutoff.reached() {
            let excess = best.arena - goal;
            if self.fit((best.arena - excess.div_ceil(STEPS)) / step * step) {
                best.improve(Packing::new(self.items, self.offsets.clone()));
            }
        }
    }

    /// Places everything below the height; returns false if the work is used up first.
    fn fit(&mut self, height: u64) -> bool {
        let bytes = &self.items.bytes;
        for (k, at) in self.offsets.iter_mut().enumerate() {
            if *at != NOWHERE && *at + bytes[k] > height {
                *at = NOWHERE;
                self.out.push(k as u32);
            }
        }
        self.out.sort_by_key(|&k| (bytes[k as usize], k));
        while self.work > 0 {
            let Some(k) = self.out.pop() else { return true };
            let at = self.cheapest_place(k, height);
            let top = at + self.items.bytes[k as usize];
            self.offsets[k as usize] = at;
            let first = self.out.len();
            for &o in &self.neighbours[k as usize] {
                let low = self.offsets[o as usize];
                if low != NOWHERE && low < top && low + self.items.bytes[o as usize] > at {
                    self.offsets[o as usize] = NOWHERE;
                    self.out.push(o);
                }
            }
            if self.out.len() > first {
                self.price[k as usize] += self.growth[k as usize];
                let bytes = &self.items.bytes;
                self.out[first..].sort_by_key(|&k| (bytes[k as usize], k));
            }
        }
        self.out.is_empty()
    }

    /// The place that ejects least: the lowest free one, or a cheap one next to other items.
    fn cheapest_place(&mut self, k: u32, height: u64) -> u64 {
        let size = self.items.bytes[k as usize];
        let last = height - size;
        self.begins.clear();
        self.ends.clear();
        self.places.clear();
        self.places.extend([0, last]);
        let neighbours = self.neighbours;
        for &o in &neighbours[k as usize] {
            let low = self.offsets[o as usize];
            if low == NOWHERE {
                continue;
            }
            let top = low + self.items.bytes[o as usize];
            self.begins.push((low, self.price[o as usize]));
            self.ends.push((top, self.price[o as usize]));
            if top <= last {
                self.places.push(top);
            }
            if low >= size {
                self.places.push(low - size);
            }
        }
        let work = 20 + neighbours[k as usize].len() as u64;
        self.work = self.work.saturating_sub(work * PER_PAIR);
        self.places.sort_unstable();
        self.places.dedup();
        self.begins.sort_unstable_by_key(|&(at, _)| at);
        self.ends.sort_unstable_by_key(|&(at, _)| at);
        // Places ascend, so items that begin before a place's end enter, and items that end by its start
        // leave.
        let (mut begun, mut ended, mut price) = (0, 0, 0.0);
        let mut cheapest = (f64::INFINITY, 0);
        for &at in &self.places {
            while begun < self.begins.len() && self.begins[begun].0 < at + size {
                price += self.begins[begun].1;
                begun += 1;
            }
            while ended < self.ends.len() && self.ends[ended].0 <= at {
                price -= self.ends[ended].1;
                ended += 1;
            }
            if begun == ended {
                return at;
            }
            let noisy = price * (1.0 + NOISE * self.rng.unit());
            if noisy < cheapest.0 {
                cheapest = (noisy, at);
            }
        }
        cheapest.1
    }
}
