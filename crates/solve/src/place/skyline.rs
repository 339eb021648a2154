//! Greedy packing of any number of items in almost n log n time. The lowest stretch of the skyline gets the
//! largest item that fits into it, or else is filled up to its lower neighbour.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::items::Items;
use super::packing::Packing;
use crate::cutoff::Cutoff;
use crate::random::Random;

/// The most tree nodes that are visited for one item; beyond that the best item found so far is taken.
const LOOKS: u32 = 200;

/// Work of an item, in units of about a nanosecond, times the logarithm of the number of items.
const PER_ITEM: u64 = 200;
/// How much keys vary at random from one packing to the next.
const NOISE: f64 = 0.2;
/// The factor on the key of an item that ends too high.
const PROMOTION: f64 = 1.2;
/// The largest key.
const MOST_KEY: f64 = 1e60;

/// Packings with keys that learn: items that end too high get larger keys.
pub(crate) struct Wheel<'a> {
    items: &'a Items,
    /// Several sets of keys, one of which is used at a time.
    keys: [Vec<f64>; 3],
    /// The set of keys to use next.
    next: usize,
    rng: Random,
}

impl<'a> Wheel<'a> {
    pub fn new(items: &'a Items) -> Wheel<'a> {
        let all = || 0..items.len();
        Wheel {
            items,
            keys: [
                all().map(|k| items.width(k) as f64).collect(),
                all().map(|k| items.area(k) as f64).collect(),
                all().map(|k| items.bytes[k] as f64).collect(),
            ],
            next: 0,
            rng: Random::new(2, 0),
        }
    }

    /// The best packing with the unchanged keys, or the first packing that reaches the goal.
    pub fn plain(&mut self, goal: u64) -> Packing {
        let mut best = pack(self.items, &self.keys[0]);
        for keys in &self.keys[1..] {
            if best.arena > goal {
                best.improve(pack(self.items, keys));
            }
        }
        best
    }

    /// Improves a packing with a limited amount of work.
    pub fn turn(&mut self, best: &mut Packing, goal: u64, mut work: u64, cutoff: Cutoff<'_>) {
        while work > 0 && best.arena > goal && !cutoff.reached() {
            // Bytes alone are a worse key than the two that count the duration.
            self.next = (self.next + 1) % 2;
            let keys = &mut self.keys[self.next];
            let noisy: Vec<f64> = keys
                .iter()
                .map(|key| key * (1.0 + NOISE * self.rng.unit()))
                .collect();
            let packing = pack(self.items, &noisy);
            let too_high = goal + packing.arena.saturating_sub(goal) / 2;
            for (k, key) in keys.iter_mut().enumerate() {
                if packing.offsets[k].saturating_add(self.items.bytes[k]) > too_high {
                    *key = (*key * PROMOTION).min(MOST_KEY);
                }
            }
            best.improve(packing);
            let n = self.items.len() as u64;
            work = work.saturating_sub(PER_ITEM * n * u64::from(1 + n.max(1).ilog2()));
        }
    }
}

/// A packing that prefers items with large keys.
fn pack(items: &Items, keys: &[f64]) -> Packing {
    let mut waiting = Waiting::new(items, keys);
    let mut line = Skyline::new(items.sections() as u32);
    let mut packing = Packing {
        offsets: vec![0; items.len()],
        arena: 0,
    };
    let mut left = items.len();
    while left > 0 {
        let Some((height, from, to)) = line.lowest() else {
            break;
        };
        match waiting.take(from, to) {
            Some(k) => {
                let top = height.saturating_add(items.bytes[k]);
                packing.offsets[k] = height;
                packing.arena = packing.arena.max(top);
                line.lay(from, items.from[k], items.to[k], top);
                left -= 1;
            }
            None => line.fill(from),
        }
    }
    packing
}

/// The items that wait to be packed, in a tree over their starts.
struct Waiting<'a> {
    items: &'a Items,
    keys: &'a [f64],
    /// The number of leaves of the tree.
    leaves: usize,
    /// Per node, the earliest end of a waiting item.
    ends: Vec<u32>,
    /// Per node, the largest key of a waiting item.
    best: Vec<f64>,
}

impl<'a> Waiting<'a> {
    fn new(items: &'a Items, keys: &'a [f64]) -> Waiting<'a> {
        let leaves = items.len().next_power_of_two();
        let mut tree = Waiting {
            items,
            keys,
            leaves,
            ends: vec![u32::MAX; 2 * leaves],
            best: vec![0.0; 2 * leaves],
        };
        tree.ends[leaves..leaves + items.len()].copy_from_slice(&items.to);
        tree.best[leaves..leaves + items.len()].copy_from_slice(keys);
        for node in (1..leaves).rev() {
            tree.join(node);
        }
        tree
    }

    fn join(&mut self, node: usize) {
        self.ends[node] = self.ends[2 * node].min(self.ends[2 * node + 1]);
        self.best[node] = self.best[2 * node].max(self.best[2 * node + 1]);
    }

    /// Takes an item with a large key that lies within the sections `[from, to)`.
    fn take(&mut self, from: u32, to: u32) -> Option<usize> {
        // Items are sorted by start, so those that start within the sections are a stretch of leaves.
        let first = self.items.from.partition_point(|&f| f < from);
        let last = self.items.from.partition_point(|&f| f < to);
        let mut looks = 0;
        let mut found: Option<(f64, usize)> = None;
        let (mut low, mut high) = (first + self.leaves, last + self.leaves);
        while low < high {
            if low % 2 == 1 {
                self.look(low, to, &mut looks, &mut found);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.look(high, to, &mut looks, &mut found);
            }
            low /= 2;
            high /= 2;
        }
        let (_, k) = found?;
        let mut node = k + self.leaves;
        self.ends[node] = u32::MAX;
        self.best[node] = 0.0;
        while node > 1 {
            node /= 2;
            self.join(node);
        }
        Some(k)
    }

    /// Looks below a node for an item that ends by `to` and is better than the one found.
    fn look(&self, node: usize, to: u32, looks: &mut u32, found: &mut Option<(f64, usize)>) {
        let enough = found.is_some_and(|(key, _)| self.best[node] <= key || *looks > LOOKS);
        if self.ends[node] > to || enough {
            return;
        }
        *looks += 1;
        if node >= self.leaves {
            let k = node - self.leaves;
            *found = Some((self.keys[k], k));
            return;
        }
        let (left, right) = (2 * node, 2 * node + 1);
        let (better, other) = match self.best[right] > self.best[left] {
            true => (right, left),
            false => (left, right),
        };
        self.look(better, to, looks, found);
        self.look(other, to, looks, found);
    }
}

/// A stretch of sections of equal height, indexed by its first section.
#[derive(Clone, Copy, Default)]
struct Stretch {
    height: u64,
    to: u32,
    /// Where the previous stretch begins.
    before: u32,
    alive: bool,
}

/// The tops of the packed items.
struct Skyline {
    stretches: Vec<Stretch>,
    /// The height and first section of each stretch; outdated entries are skipped.
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Skyline {
    fn new(sections: u32) -> Skyline {
        let mut line = Skyline {
            stretches: vec![Stretch::default(); sections as usize],
            heap: BinaryHeap::new(),
        };
        if sections > 0 {
            line.set(0, sections, 0, 0);
        }
        line
    }

    fn set(&mut self, from: u32, to: u32, height: u64, before: u32) {
        let alive = true;
        self.stretches[from as usize] = Stretch {
            height,
            to,
            before,
            alive,
        };
        if let Some(next) = self.stretches.get_mut(to as usize) {
            next.before = from;
        }
        self.heap.push(Reverse((height, from)));
    }

    /// The height and sections of the lowest stretch; of several, the leftmost.
    fn lowest(&mut self) -> Option<(u64, u32, u32)> {
        while let Some(&Reverse((height, from))) = self.heap.peek() {
            let stretch = self.stretches[from as usize];
            if stretch.alive && stretch.height == height {
                return Some((height, from, stretch.to));
            }
            self.heap.pop();
        }
        None
    }

    /// Lays something of a given height onto a part of the stretch that begins at `at`.
    fn lay(&mut self, at: u32, from: u32, to: u32, height: u64) {
        let old = self.stretches[at as usize];
        let mut before = old.before;
        if at < from {
            self.set(at, from, old.height, before);
            before = at;
        }
        self.set(from, to, height, before);
        if to < old.to {
            self.set(to, old.to, old.height, from);
        }
        self.merge(from);
    }

    /// Raises a stretch to its lower neighbour, or out of reach if it has none.
    fn fill(&mut self, at: u32) {
        let old = self.stretches[at as usize];
        let left = (at > 0).then(|| self.stretches[old.before as usize].height);
        let right = self.stretches.get(old.to as usize).map(|s| s.height);
        let height = left.into_iter().chain(right).min().unwrap_or(u64::MAX);
        self.set(at, old.to, height, old.before);
        self.merge(at);
    }

    /// Joins a stretch with neighbours of equal height.
    fn merge(&mut self, at: u32) {
        let Stretch {
            height, to, before, ..
        } = self.stretches[at as usize];
        let mut from = at;
        let (mut until, mut first) = (to, before);
        if let Some(&next) = self.stretches.get(to as usize)
            && next.height == height
        {
            self.stretches[to as usize].alive = false;
            until = next.to;
        }
        let left = self.stretches[before as usize];
        if at > 0 && left.height == height {
            self.stretches[at as usize].alive = false;
            (from, first) = (before, left.before);
        }
        if (from, until) != (at, to) {
            self.set(from, until, height, first);
        }
    }
}
