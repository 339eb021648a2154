//! Exact packing at a given height by depth-first search over items in order of offset.
//!
//! Any packing can be pushed down until every item lies on another or on the floor, and then built up
//! by ascending offset. So items are placed with offsets that never fall, each on top of what is
//! below it. A branch dies when a section can't hold what is still to come, or when an item is skipped
//! that would fit below the one chosen. Items that fall apart in time are packed one group at a time.

use std::cmp::Reverse;

use super::items::Items;
use super::packing::Packing;
use crate::random::Random;

/// Nodes of an attempt, besides two per item: a lucky order needs few, an unlucky one millions.
const NODES: u64 = 1_000;
/// Work of an item in a node, in units of about a nanosecond.
const PER_ITEM: u64 = 40;
/// How far later attempts move items in the order, as a share of their number.
const SHAKE: f64 = 0.1;

/// What a search has found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    Unknown,
}

/// What attempts came to.
pub(crate) enum Verdict {
    Packed(Packing),
    /// There is none, which was proven with this much work.
    Impossible(u64),
    Unknown,
}

/// Attempts at one height, each with an order of its own.
pub(crate) struct Attempts<'a> {
    items: &'a Items,
    neighbours: &'a [Vec<u32>],
    orders: Vec<Vec<u32>>,
    rng: Random,
    made: usize,
}

impl<'a> Attempts<'a> {
    pub fn new(items: &'a Items, neighbours: &'a [Vec<u32>]) -> Attempts<'a> {
        let crowds = items.crowds();
        let keys = |k: u32| {
            let k = k as usize;
            let (crowd, area, width) = (crowds[k], items.area(k), items.width(k));
            [
                [crowd, area, width],
                [width, area, crowd],
                [area, width, crowd],
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
        }
    }

    /// Tries orders until the work is done, one at least.
    pub fn turn(&mut self, goal: u64, mut work: u64) -> Verdict {
        let all: Vec<u32> = (0..self.items.len() as u32).collect();
        while work > 0 {
            let mut search = Search::new(self.items, self.neighbours, goal, self.ranks());
            match search.run(&all, NODES + 2 * self.items.len() as u64) {
                Answer::Yes => return Verdict::Packed(Packing::new(self.items, search.offset)),
                Answer::No => return Verdict::Impossible(search.work + 1),
                Answer::Unknown => work = work.saturating_sub(search.work),
            }
        }
        Verdict::Unknown
    }

    /// The next order, as the rank of each item. The first ones are as they are, later ones shaken.
    fn ranks(&mut self) -> Vec<u32> {
        let order = &self.orders[self.made % self.orders.len()];
        let shake = match self.made < self.orders.len() {
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

/// An item placed, with what that changed.
struct Placed {
    item: u32,
    /// Items whose least offset it raised, itself included, with the offset before.
    raised: Vec<(u32, u64)>,
}

/// What is under way, from the outside in.
enum Frame {
    All(All),
    One(One),
}

/// Groups that are packed one after the other; all of them must be.
struct All {
    groups: Vec<Vec<u32>>,
    next: usize,
    /// Offset of the item placed before, and the item.
    least: u64,
    last: u32,
    mark: usize,
}

/// A group of which one item after the other is tried as the next; one must lead to a packing.
struct One {
    set: Vec<u32>,
    candidates: Vec<(u64, u32)>,
    next: usize,
    unknown: bool,
    mark: usize,
}

enum Step {
    Open(Frame),
    /// The frame is done, with this answer for the one around it.
    Close(Answer),
    /// An answer for this frame itself.
    Tell(Answer),
}

struct Search<'a> {
    items: &'a Items,
    neighbours: &'a [Vec<u32>],
    goal: u64,
    /// Among equal offsets, lower ranks first.
    rank: Vec<u32>,
    /// Least offset of an item to come; offset of a placed one.
    offset: Vec<u64>,
    placed: Vec<bool>,
    /// Per section, the bytes still to come.
    to_come: Vec<u64>,
    stack: Vec<Placed>,
    nodes: u64,
    work: u64,
    /// Scratch: items with offset and rank; leads from a section to the next that isn't done.
    sorted: Vec<(u64, u32, u32)>,
    skip: Vec<u32>,
}

impl<'a> Search<'a> {
    fn new(items: &'a Items, neighbours: &'a [Vec<u32>], goal: u64, rank: Vec<u32>) -> Search<'a> {
        Search {
            items,
            neighbours,
            goal,
            rank,
            offset: vec![0; items.len()],
            placed: vec![false; items.len()],
            to_come: items.load.clone(),
            stack: Vec::new(),
            nodes: 0,
            work: 0,
            sorted: Vec::new(),
            skip: Vec::new(),
        }
    }

    /// Packs items, sorted by start, within a number of nodes.
    fn run(&mut self, all: &[u32], nodes: u64) -> Answer {
        self.nodes = nodes;
        let mut frames = vec![self.all(all.iter().copied(), 0, u32::MAX)];
        let mut answer = None;
        while let Some(frame) = frames.last_mut() {
            let step = match frame {
                Frame::All(all) => self.next_group(all, answer.take()),
                Frame::One(one) => self.next_candidate(one, answer.take()),
            };
            match step {
                Step::Open(frame) => frames.push(frame),
                Step::Tell(news) => answer = Some(news),
                Step::Close(news) => {
                    frames.pop();
                    answer = Some(news);
                }
            }
        }
        answer.unwrap_or(Answer::Unknown)
    }

    /// Splits items, sorted by start, whose offsets are `least` or more, into groups that don't meet.
    /// `last` is the item placed before, at `least`.
    fn all(&self, set: impl Iterator<Item = u32>, least: u64, last: u32) -> Frame {
        let mut groups = Vec::new();
        let mut group: Vec<u32> = Vec::new();
        let mut until = 0;
        for k in set {
            if self.items.from[k as usize] >= until && !group.is_empty() {
                groups.push(std::mem::take(&mut group));
            }
            until = until.max(self.items.to[k as usize]);
            group.push(k);
        }
        if !group.is_empty() {
            groups.push(group);
        }
        Frame::All(All {
            groups,
            next: 0,
            least,
            last,
            mark: self.stack.len(),
        })
    }

    fn next_group(&mut self, all: &mut All, answer: Option<Answer>) -> Step {
        if let Some(no @ (Answer::No | Answer::Unknown)) = answer {
            self.unwind(all.mark);
            return Step::Close(no);
        }
        match all.groups.get_mut(all.next) {
            Some(group) => {
                all.next += 1;
                self.one(std::mem::take(group), all.least, all.last)
            }
            None => Step::Close(Answer::Yes),
        }
    }

    fn next_candidate(&mut self, one: &mut One, answer: Option<Answer>) -> Step {
        match answer {
            Some(Answer::Yes) => return Step::Close(Answer::Yes),
            Some(Answer::Unknown) => one.unknown = true,
            Some(Answer::No) | None => {}
        }
        self.unwind(one.mark);
        while self.nodes > 0
            && let Some(&(offset, k)) = one.candidates.get(one.next)
        {
            one.next += 1;
            if self.put(k, offset) {
                let rest = one.set.iter().copied().filter(|&o| o != k);
                return Step::Open(self.all(rest, offset, k));
            }
            self.unwind(one.mark);
        }
        match one.unknown || one.next < one.candidates.len() {
            true => Step::Close(Answer::Unknown),
            false => Step::Close(Answer::No),
        }
    }

    /// Finds out which items of a group that hangs together in time can be its lowest.
    fn one(&mut self, set: Vec<u32>, least: u64, last: u32) -> Step {
        if self.nodes == 0 {
            return Step::Tell(Answer::Unknown);
        }
        self.nodes -= 1;
        let mut sorted = std::mem::take(&mut self.sorted);
        sorted.clear();
        sorted.extend(set.iter().map(|&k| {
            let offset = self.offset[k as usize].max(least);
            (offset, self.rank[k as usize], k)
        }));
        sorted.sort_unstable();
        self.work += sorted.len() as u64 * PER_ITEM;
        let step = match self.sections_hold(&sorted) {
            true => Step::Open(Frame::One(One {
                candidates: self.candidates(&sorted, least, last),
                set,
                next: 0,
                unknown: false,
                mark: self.stack.len(),
            })),
            false => Step::Tell(Answer::No),
        };
        self.sorted = sorted;
        step
    }

    /// Items that may be placed next, from those of a group sorted by offset and rank.
    fn candidates(&self, sorted: &[(u64, u32, u32)], least: u64, last: u32) -> Vec<(u64, u32)> {
        let tops = sorted
            .iter()
            .map(|&(offset, _, k)| offset + self.items.bytes[k as usize]);
        let lowest_top = tops.min().unwrap_or(0);
        let mut candidates: Vec<(u64, u32)> = Vec::new();
        for &(offset, rank, k) in sorted {
            // An item above the top of another leaves room for that one below.
            if offset >= lowest_top {
                break;
            }
            // Items at one offset don't meet: one order of placing them is enough.
            let misplaced = last != u32::MAX && offset == least && rank < self.rank[last as usize];
            let known = candidates
                .iter()
                .any(|&(at, o)| at == offset && self.alike(o, k));
            if !misplaced && !known {
                candidates.push((offset, k));
            }
        }
        candidates
    }

    fn alike(&self, a: u32, b: u32) -> bool {
        let (a, b) = (a as usize, b as usize);
        let i = self.items;
        i.from[a] == i.from[b] && i.to[a] == i.to[b] && i.bytes[a] == i.bytes[b]
    }

    /// Whether every section can hold what is still to come above the least offset of any item that
    /// is to come in it. The items are sorted by offset.
    fn sections_hold(&mut self, sorted: &[(u64, u32, u32)]) -> bool {
        let starts = sorted.iter().map(|&(_, _, k)| self.items.from[k as usize]);
        let ends = sorted.iter().map(|&(_, _, k)| self.items.to[k as usize]);
        let (Some(first), Some(end)) = (starts.min(), ends.max()) else {
            return true;
        };
        // `skip[s - first]` leads to the next section without an offset yet.
        self.work += u64::from(end - first);
        self.skip.clear();
        self.skip.extend(0..=end - first);
        for &(offset, _, k) in sorted {
            let to = self.items.to[k as usize] - first;
            let mut s = self.items.from[k as usize] - first;
            loop {
                // Follow and shorten the path.
                while self.skip[s as usize] != s {
                    let next = self.skip[s as usize];
                    self.skip[s as usize] = self.skip[next as usize];
                    s = next;
                }
                if s >= to {
                    break;
                }
                if offset + self.to_come[(first + s) as usize] > self.goal {
                    return false;
                }
                self.skip[s as usize] = s + 1;
                s += 1;
            }
        }
        true
    }

    /// Places an item; false if one of its sections can't hold what is still to come.
    fn put(&mut self, k: u32, offset: u64) -> bool {
        let item = k as usize;
        let top = offset + self.items.bytes[item];
        let mut fits = true;
        for s in self.items.from[item] as usize..self.items.to[item] as usize {
            self.to_come[s] -= self.items.bytes[item];
            fits &= top + self.to_come[s] <= self.goal;
        }
        let mut raised = vec![(k, self.offset[item])];
        self.offset[item] = offset;
        self.placed[item] = true;
        for &o in &self.neighbours[item] {
            if !self.placed[o as usize] && self.offset[o as usize] < top {
                raised.push((o, self.offset[o as usize]));
                self.offset[o as usize] = top;
                fits &= top + self.items.bytes[o as usize] <= self.goal;
            }
        }
        self.work += self.items.width(item) + self.neighbours[item].len() as u64;
        self.stack.push(Placed { item: k, raised });
        fits
    }

    fn unwind(&mut self, depth: usize) {
        while self.stack.len() > depth {
            let Some(last) = self.stack.pop() else { return };
            let item = last.item as usize;
            for s in self.items.from[item] as usize..self.items.to[item] as usize {
                self.to_come[s] += self.items.bytes[item];
            }
            for (o, offset) in last.raised {
                self.offset[o as usize] = offset;
            }
            self.placed[item] = false;
        }
    }
}
