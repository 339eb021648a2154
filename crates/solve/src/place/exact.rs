//! Exact packing at a given height, by depth-first search over items in order of offset.
//!
//! Any packing can be pushed down until every item lies on another or on the floor, and can then be built by
//! ascending offset. So items are placed with offsets that never fall, each on top of what is below it. A
//! branch dies when a section can't hold its remaining items, or when it skips an item that would fit below
//! the chosen one. Items that don't overlap in time are packed in separate groups.

use std::cmp::Reverse;

use super::items::Items;
use super::packing::Packing;
use crate::random::Random;

/// Nodes of an attempt beyond two per item. A lucky order needs few nodes, an unlucky one millions.
const NODES: u64 = 1_000;
/// Work of one item in a node, in units of about a nanosecond.
const PER_ITEM: u64 = 40;
/// How far later attempts move items in the order, as a share of their number.
const SHAKE: f64 = 0.1;

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    Unknown,
}

/// The result of attempts.
pub(crate) enum Verdict {
    Packed(Packing),
    /// There is no packing; this much work proved it.
    Impossible(u64),
    Unknown,
}

/// Attempts at one height, each with its own order.
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

    /// Tries at least one order, and more until the work is used up.
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

    /// The next order, as the rank of each item. The first orders are used as they are, later ones are
    /// shaken.
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

/// A placed item, with the offsets that it changed.
struct Placed {
    item: u32,
    /// Items whose least offset it raised, including itself, with their previous offsets.
    raised: Vec<(u32, u64)>,
}

/// A group or set of groups under way; frames are nested from the outside in.
enum Frame {
    All(All),
    One(One),
}

/// Groups that are packed one after the other. All of them must fit.
struct All {
    groups: Vec<Vec<u32>>,
    next: usize,
    /// The offset of the previously placed item, and that item.
    least: u64,
    last: u32,
    mark: usize,
}

/// A group whose items are tried in turn as the next item. One of them must lead to a packing.
struct One {
    set: Vec<u32>,
    candidates: Vec<(u64, u32)>,
    next: usize,
    unknown: bool,
    mark: usize,
}

enum Step {
    Open(Frame),
    /// The frame is done, with this answer for the frame around it.
    Close(Answer),
    /// An answer for this frame itself.
    Tell(Answer),
}

struct Search<'a> {
    items: &'a Items,
    neighbours: &'a [Vec<u32>],
    goal: u64,
    /// Among equal offsets, lower ranks come first.
    rank: Vec<u32>,
    /// The least offset of an item that isn't placed yet; the offset of a placed one.
    offset: Vec<u64>,
    placed: Vec<bool>,
    /// Per section, the bytes that aren't placed yet.
    to_come: Vec<u64>,
    stack: Vec<Placed>,
    nodes: u64,
    work: u64,
    /// Scratch: items with offset and rank; and for each section, the next one that isn't done.
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

    /// Packs items, sorted by start, using at most this many nodes.
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

    /// Splits items, sorted by start, whose offsets are at least `least`, into groups that don't overlap in
    /// time. `last` is the previously placed item, at `least`.
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

    /// Finds the items of a connected group that can be its lowest.
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

    /// The items that may be placed next, from a group sorted by offset and rank.
    fn candidates(&self, sorted: &[(u64, u32, u32)], least: u64, last: u32) -> Vec<(u64, u32)> {
        let tops = sorted
            .iter()
            .map(|&(offset, _, k)| offset + self.items.bytes[k as usize]);
        let lowest_top = tops.min().unwrap_or(0);
        let mut candidates: Vec<(u64, u32)> = Vec::new();
        for &(offset, rank, k) in sorted {
            // An item above the top of another leaves room for the other one below.
            if offset >= lowest_top {
                break;
            }
            // Items at one offset don't overlap, so one order of placing them is enough.
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

    /// Whether every section can hold its remaining items above their least offset. The items are sorted by
    /// offset.
    fn sections_hold(&mut self, sorted: &[(u64, u32, u32)]) -> bool {
        let starts = sorted.iter().map(|&(_, _, k)| self.items.from[k as usize]);
        let ends = sorted.iter().map(|&(_, _, k)| self.items.to[k as usize]);
        let (Some(first), Some(end)) = (starts.min(), ends.max()) else {
            return true;
        };
        // `skip[s - first]` leads to the next section without an offset.
        self.work += u64::from(end - first);
        self.skip.clear();
        self.skip.extend(0..=end - first);
        for &(offset, _, k) in sorted {
            let to = self.items.to[k as usize] - first;
            let mut s = self.items.from[k as usize] - first;
            loop {
                // Follow the path and shorten it.
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

    /// Places an item; returns false if one of its sections can't hold its remaining items.
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
