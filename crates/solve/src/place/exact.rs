//! Exact packing at a given height by depth-first search over items in order of offset.
//!
//! Any packing can be pushed down until every item lies on another or on the floor, and then built up
//! by ascending offset. So items are placed with offsets that never fall, each on top of what is
//! below it. A branch dies when a section can't hold what is still to come, or when an item is skipped
//! that would fit below the one chosen. Items that fall apart in time are packed one group at a time.

use super::{Items, Packing};
use crate::search::rng::Random;

/// Nodes of an attempt: a lucky order needs few, an unlucky one millions.
const NODES: u64 = 1_000;
/// Nodes times items over all attempts.
const WORK: u64 = 16_000_000;
/// How far later attempts move items in the order, as a share of their number.
const SHAKE: f64 = 0.1;
/// Larger sets are left to the greedy packing: a node takes time proportional to them.
const MOST_ITEMS: usize = 4_000;

/// A packing of height `goal` at most, if one of the attempts finds it.
pub(crate) fn pack(items: &Items, goal: u64, attempts: u32) -> Option<Packing> {
    if items.len() > MOST_ITEMS {
        return None;
    }
    let area = |k: usize| items.bytes[k].saturating_mul(items.width(k));
    let keys: [Box<dyn Fn(usize) -> [u64; 3]>; 6] = [
        Box::new(|k| [items.crowd(k), area(k), items.width(k)]),
        Box::new(|k| [items.width(k), area(k), items.crowd(k)]),
        Box::new(|k| [area(k), items.width(k), items.crowd(k)]),
        Box::new(|k| [items.crowd(k), items.width(k), area(k)]),
        Box::new(|k| [items.width(k), items.crowd(k), area(k)]),
        Box::new(|k| [items.bytes[k], items.width(k), items.crowd(k)]),
    ];
    let all: Vec<u32> = (0..items.len() as u32).collect();
    let mut rng = Random::new(0, 0);
    let attempts = attempts
        .min((WORK / (NODES * all.len().max(1) as u64)) as u32)
        .max(2);
    for attempt in 0..attempts {
        let key = &keys[attempt as usize % keys.len()];
        let mut order = all.clone();
        order.sort_by_key(|&k| std::cmp::Reverse(key(k as usize)));
        // The first attempts take the orders as they are, later ones shake them.
        let shake = if (attempt as usize) < keys.len() {
            0.0
        } else {
            all.len() as f64 * SHAKE
        };
        let mut ranks: Vec<(f64, u32)> = order
            .iter()
            .enumerate()
            .map(|(r, &k)| (r as f64 + shake * rng.unit(), k))
            .collect();
        ranks.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut rank = vec![0; items.len()];
        for (r, &(_, k)) in ranks.iter().enumerate() {
            rank[k as usize] = r as u32;
        }
        let mut search = Search::new(items, goal, rank, NODES);
        match search.groups(&all, 0, u32::MAX) {
            Answer::Yes => {
                let top = (0..items.len())
                    .map(|k| search.offset[k] + items.bytes[k])
                    .max();
                return Some(Packing {
                    offsets: search.offset,
                    arena: top.unwrap_or(0),
                });
            }
            Answer::No => return None,
            Answer::Unknown => {}
        }
    }
    None
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    Unknown,
}

/// One item placed, with what it changed.
struct Placed {
    item: u32,
    /// Neighbours whose least offset it raised, with the offset before.
    raised: Vec<(u32, u64)>,
    /// Floors of its sections before.
    floors: Vec<u64>,
}

struct Search<'a> {
    items: &'a Items,
    goal: u64,
    /// Among equal offsets, lower ranks first.
    rank: Vec<u32>,
    /// Least offset of an item to come; offset of a placed one.
    offset: Vec<u64>,
    placed: Vec<bool>,
    /// Per section, the top of what is placed and the bytes still to come.
    floor: Vec<u64>,
    to_come: Vec<u64>,
    stack: Vec<Placed>,
    nodes: u64,
    /// Scratch of [`Self::sections_hold`].
    skip: Vec<u32>,
}

impl<'a> Search<'a> {
    fn new(items: &'a Items, goal: u64, rank: Vec<u32>, nodes: u64) -> Search<'a> {
        Search {
            items,
            goal,
            rank,
            offset: vec![0; items.len()],
            placed: vec![false; items.len()],
            floor: vec![0; items.load.len()],
            to_come: items.load.clone(),
            stack: Vec::new(),
            nodes,
            skip: vec![0; items.load.len() + 1],
        }
    }

    /// Packs items, sorted by start, whose offsets are `least` or more: one group after another.
    fn groups(&mut self, set: &[u32], least: u64, last: u32) -> Answer {
        let mark = self.stack.len();
        let mut from = 0;
        let mut until = 0;
        for k in 0..=set.len() {
            let apart = k == set.len() || self.items.from[set[k] as usize] >= until;
            if apart && k > from {
                let answer = self.group(&set[from..k], least, last);
                if answer != Answer::Yes {
                    self.unwind(mark);
                    return answer;
                }
                from = k;
            }
            if k < set.len() {
                until = until.max(self.items.to[set[k] as usize]);
            }
        }
        Answer::Yes
    }

    /// Packs items that hang together in time. `last` is the item placed before, at `least`.
    fn group(&mut self, set: &[u32], least: u64, last: u32) -> Answer {
        if self.nodes == 0 {
            return Answer::Unknown;
        }
        self.nodes -= 1;
        let mut sorted: Vec<(u64, u32, u32)> = set
            .iter()
            .map(|&k| (self.offset[k as usize].max(least), self.rank[k as usize], k))
            .collect();
        sorted.sort_unstable();
        if !self.sections_hold(&sorted) {
            return Answer::No;
        }
        let lowest_top = sorted
            .iter()
            .map(|&(offset, _, k)| offset + self.items.bytes[k as usize])
            .min()
            .unwrap_or(0);
        let mut answer = Answer::No;
        let mut rest = Vec::with_capacity(set.len());
        for (c, &(offset, rank, k)) in sorted.iter().enumerate() {
            if offset >= lowest_top {
                break;
            }
            // Items at one offset don't meet: one order of placing them is enough.
            if last != u32::MAX && offset == least && rank < self.rank[last as usize] {
                continue;
            }
            if sorted[..c]
                .iter()
                .any(|&(at, _, o)| at == offset && self.alike(o, k))
            {
                continue;
            }
            let depth = self.stack.len();
            if self.put(k, offset) {
                rest.clear();
                rest.extend(set.iter().copied().filter(|&o| o != k));
                match self.groups(&rest, offset, k) {
                    Answer::Yes => return Answer::Yes,
                    Answer::Unknown => answer = Answer::Unknown,
                    Answer::No => {}
                }
            }
            self.unwind(depth);
            if self.nodes == 0 {
                return Answer::Unknown;
            }
        }
        answer
    }

    fn alike(&self, a: u32, b: u32) -> bool {
        let (a, b) = (a as usize, b as usize);
        let i = self.items;
        i.from[a] == i.from[b] && i.to[a] == i.to[b] && i.bytes[a] == i.bytes[b]
    }

    /// Whether every section can hold what is still to come above the least offset of any item that
    /// is to come in it. The items are sorted by offset.
    fn sections_hold(&mut self, sorted: &[(u64, u32, u32)]) -> bool {
        // `skip[s]` leads to the next section without an offset yet.
        for &(_, _, k) in sorted {
            for s in self.items.from[k as usize]..=self.items.to[k as usize] {
                self.skip[s as usize] = s;
            }
        }
        for &(offset, _, k) in sorted {
            let to = self.items.to[k as usize];
            let mut s = self.items.from[k as usize];
            loop {
                // Follow and shorten the path.
                let mut free = s;
                while self.skip[free as usize] != free {
                    let next = self.skip[free as usize];
                    self.skip[free as usize] = self.skip[next as usize];
                    free = next;
                }
                if free >= to {
                    break;
                }
                if offset + self.to_come[free as usize] > self.goal {
                    return false;
                }
                self.skip[free as usize] = free + 1;
                s = free + 1;
            }
        }
        true
    }

    /// Places an item; false if one of its sections can't hold what is still to come.
    fn put(&mut self, k: u32, offset: u64) -> bool {
        let item = k as usize;
        let top = offset + self.items.bytes[item];
        let sections = self.items.from[item] as usize..self.items.to[item] as usize;
        let floors = self.floor[sections.clone()].to_vec();
        let mut fits = true;
        for s in sections {
            self.floor[s] = top;
            self.to_come[s] -= self.items.bytes[item];
            fits &= top + self.to_come[s] <= self.goal;
        }
        let before = self.offset[item];
        let mut raised = vec![(k, before)];
        self.offset[item] = offset;
        self.placed[item] = true;
        for &o in &self.items.neighbours[item] {
            if !self.placed[o as usize] && self.offset[o as usize] < top {
                raised.push((o, self.offset[o as usize]));
                self.offset[o as usize] = top;
                fits &= top + self.items.bytes[o as usize] <= self.goal;
            }
        }
        self.stack.push(Placed {
            item: k,
            raised,
            floors,
        });
        fits
    }

    fn unwind(&mut self, depth: usize) {
        while self.stack.len() > depth {
            let Some(last) = self.stack.pop() else { return };
            let item = last.item as usize;
            let sections = self.items.from[item] as usize..self.items.to[item] as usize;
            for (s, floor) in sections.zip(last.floors) {
                self.floor[s] = floor;
                self.to_come[s] += self.items.bytes[item];
            }
            for (o, offset) in last.raised.into_iter().rev() {
                self.offset[o as usize] = offset;
            }
            self.placed[item] = false;
        }
    }
}
