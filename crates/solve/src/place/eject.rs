//! Local search for a packing of a given height: an item without a place takes the one that ejects
//! least, and what it ejects is placed next.
//!
//! An item that finds no free place becomes harder to eject from then on, so the search leaves the
//! places where it goes round in circles.

use super::items::Items;
use super::packing::Packing;
use crate::random::Random;

const NOWHERE: u64 = u64::MAX;
/// Work of comparing two items, in units of about a nanosecond.
const PER_PAIR: u64 = 120;
/// Prices of places are compared with this much chance.
const NOISE: f64 = 0.2;
/// The next height takes off one part in this many of what is too much.
const STEPS: u64 = 10;

/// A search that keeps what it has learned from one height to the next.
pub(crate) struct Ejection<'a> {
    items: &'a Items,
    neighbours: &'a [Vec<u32>],
    /// What divides all sizes. Heights are multiples of it, and so are offsets: buffers stay aligned.
    step: u64,
    /// [`NOWHERE`] for items to be placed.
    offsets: Vec<u64>,
    out: Vec<u32>,
    /// What ejecting an item costs, and by how much that grows.
    price: Vec<f64>,
    growth: Vec<f64>,
    rng: Random,
    work: u64,
    /// Where what is in the way begins and ends, with its price; and offsets to try.
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

    /// Lowers the best packing step by step towards a goal, for some work.
    pub fn turn(&mut self, best: &mut Packing, goal: u64, work: u64) {
        self.work = work;
        let step = self.step;
        let goal = goal / step * step;
        while best.arena > goal && self.work > 0 {
            let excess = best.arena - goal;
            if self.fit((best.arena - excess.div_ceil(STEPS)) / step * step) {
                best.improve(Packing::new(self.items, self.offsets.clone()));
            }
        }
    }

    /// Whether everything got a place below the height before the work was done.
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

    /// The place of an item that ejects least: the lowest free one, or a cheap one next to others.
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
        // Ascending, with what begins before the end of the place and ends after its start.
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
