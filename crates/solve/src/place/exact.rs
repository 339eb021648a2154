//! Exact packing at a given height, by depth-first search over what lies lowest at a section.
//!
//! Any packing can be pushed down until every item lies on another or on the floor. So an item's offset is
//! either the top of what is below it so far, or it lies on an item that isn't placed yet. The search takes a
//! section from a stretch of sections that are filled less high than both neighbours. Either an item that fits
//! into the stretch lies lowest there, or room is left, and the item above lies on another one beside the
//! section. It decides the section with the fewest such ways first, and prefers sections that failed before. A
//! branch dies when a section can't hold its remaining items. Items that don't overlap in time are packed in
//! separate groups.

use super::attempts::Attempts;
use super::items::Items;
use crate::cutoff::Cutoff;

/// Work of one item and of one section in a node, in units of about a nanosecond.
pub(super) const PER_ITEM: u64 = 40;
const PER_SECTION: u64 = 2;

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Yes,
    No,
    Unknown,
}

/// A placed item, or room that was left, with the least offsets that it raised.
struct Placed {
    item: Option<u32>,
    /// The raised items with their previous offsets.
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
    mark: usize,
}

/// A group under way. One of the candidates, or room, must lie lowest at the section.
struct One {
    set: Vec<u32>,
    section: u32,
    /// The least offset of the candidates.
    height: u64,
    candidates: Vec<u32>,
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

pub(super) struct Search<'a> {
    items: &'a Items,
    neighbours: &'a [Vec<u32>],
    goal: u64,
    step: u64,
    /// Candidates of lower rank come first.
    rank: Vec<u32>,
    /// Per section, how often it failed, plus one, and the power of that by which its ways are divided.
    failures: &'a mut [f64],
    power: f64,
    urgency: Vec<f64>,
    /// The least offset of an item that isn't placed yet; the offset of a placed one.
    pub offset: Vec<u64>,
    placed: Vec<bool>,
    /// Per section, the bytes that aren't placed yet.
    to_come: Vec<u64>,
    stack: Vec<Placed>,
    nodes: u64,
    /// In units of about a nanosecond.
    pub work: u64,
    /// Scratch: items with their offset.
    sorted: Vec<(u64, u32)>,
    /// Scratch, by section of a group: the least offset of its items, the next section without one, and by how
    /// much the number of candidates changes.
    floor: Vec<u64>,
    skip: Vec<u32>,
    change: Vec<i32>,
}

impl<'a> Search<'a> {
    pub fn new(
        attempts: &'a mut Attempts<'_>,
        goal: u64,
        rank: Vec<u32>,
        power: f64,
    ) -> Search<'a> {
        let items = attempts.items;
        Search {
            items,
            neighbours: attempts.neighbours,
            goal,
            step: attempts.step,
            rank,
            power,
            urgency: (attempts.failures.iter()).map(|f| f.powf(power)).collect(),
            failures: &mut attempts.failures,
            offset: vec![0; items.len()],
            placed: vec![false; items.len()],
            to_come: items.load.clone(),
            stack: Vec::new(),
            nodes: 0,
            work: 0,
            sorted: Vec::new(),
            floor: Vec::new(),
            skip: Vec::new(),
            change: Vec::new(),
        }
    }

    /// Packs items, sorted by start, using at most this many nodes.
    pub fn run(&mut self, all: &[u32], nodes: u64, cutoff: Cutoff<'_>) -> Answer {
        self.nodes = nodes;
        let mut frames = vec![self.all(all.iter().copied())];
        let mut answer = None;
        while let Some(frame) = frames.last_mut() {
            if cutoff.reached() {
                self.nodes = 0;
            }
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

    /// Splits items, sorted by start, into groups that don't overlap in time.
    fn all(&self, set: impl Iterator<Item = u32>) -> Frame {
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
                self.one(std::mem::take(group))
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
        while self.nodes > 0 && one.next <= one.candidates.len() {
            let candidate = one.candidates.get(one.next).copied();
            one.next += 1;
            let fits = match candidate {
                Some(k) => self.put(k),
                None => self.leave_room(one),
            };
            if fits {
                let rest = one.set.iter().copied().filter(|&o| Some(o) != candidate);
                return Step::Open(self.all(rest));
            }
            self.unwind(one.mark);
        }
        match one.unknown || one.next <= one.candidates.len() {
            true => Step::Close(Answer::Unknown),
            false => Step::Close(Answer::No),
        }
    }

    /// Finds the section of a connected group that is decided next, and what may lie lowest there.
    fn one(&mut self, set: Vec<u32>) -> Step {
        if self.nodes == 0 {
            return Step::Tell(Answer::Unknown);
        }
        self.nodes -= 1;
        let mut sorted = std::mem::take(&mut self.sorted);
        sorted.clear();
        sorted.extend(set.iter().map(|&k| (self.offset[k as usize], k)));
        sorted.sort_unstable();
        let step = match self.floors(&sorted) {
            Some(first) => {
                let section = self.choose(&sorted, first);
                let height = self.floor[(section - first) as usize];
                Step::Open(Frame::One(One {
                    candidates: self.candidates(&sorted, section, height),
                    set,
                    section,
                    height,
                    next: 0,
                    unknown: false,
                    mark: self.stack.len(),
                }))
            }
            None => Step::Tell(Answer::No),
        };
        self.sorted = sorted;
        step
    }

    /// The least offset of an item in each section, from a group sorted by offset, and the group's first section.
    /// `None` if a section can't hold its remaining items.
    fn floors(&mut self, sorted: &[(u64, u32)]) -> Option<u32> {
        let starts = sorted.iter().map(|&(_, k)| self.items.from[k as usize]);
        let ends = sorted.iter().map(|&(_, k)| self.items.to[k as usize]);
        let (first, end) = (starts.min()?, ends.max()?);
        self.work += sorted.len() as u64 * PER_ITEM + u64::from(end - first) * PER_SECTION;
        // `skip[s - first]` leads to the next section without an offset.
        self.skip.clear();
        self.skip.extend(0..=end - first);
        self.floor.clear();
        self.floor.resize((end - first) as usize, 0);
        for &(offset, k) in sorted {
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
                    self.fail((first + s) as usize);
                    return None;
                }
                self.floor[s as usize] = offset;
                self.skip[s as usize] = s + 1;
                s += 1;
            }
        }
        Some(first)
    }

    /// The section with the fewest ways to go on, out of the stretches whose floor is below both neighbours'.
    /// There, the items whose least offset is the floor lie in the stretch.
    fn choose(&mut self, sorted: &[(u64, u32)], first: u32) -> u32 {
        let sections = self.floor.len();
        self.change.clear();
        self.change.resize(sections + 1, 0);
        for &(offset, k) in sorted {
            let from = (self.items.from[k as usize] - first) as usize;
            if self.floor[from] == offset {
                self.change[from] += 1;
                self.change[(self.items.to[k as usize] - first) as usize] -= 1;
            }
        }
        let (mut least, mut choice) = ((f64::INFINITY, 0), 0);
        let (mut begin, mut candidates) = (0, 0);
        for stretch in self.floor.chunk_by(|a, b| a == b) {
            let end = begin + stretch.len();
            let floor = stretch[0];
            let before = begin > 0 && self.floor[begin - 1] < floor;
            let lowest = !before && self.floor.get(end).is_none_or(|&next| next > floor);
            for s in begin..end {
                candidates += self.change[s];
                if !lowest {
                    continue;
                }
                let slack = self.goal - floor - self.to_come[first as usize + s];
                let room = i32::from(slack >= self.step);
                let ways = match candidates + room {
                    1 => 0.0,
                    ways => f64::from(ways) / self.urgency[first as usize + s],
                };
                if (ways, floor) < least {
                    (least, choice) = ((ways, floor), s as u32);
                }
            }
            begin = end;
        }
        first + choice
    }

    /// The items that may lie lowest at a section.
    fn candidates(&self, sorted: &[(u64, u32)], section: u32, height: u64) -> Vec<u32> {
        let mut lowest: Vec<u32> = sorted
            .iter()
            .filter(|&&(offset, k)| offset == height && self.covers(k, section))
            .map(|&(_, k)| k)
            .collect();
        lowest.sort_unstable_by_key(|&k| self.rank[k as usize]);
        let mut candidates: Vec<u32> = Vec::new();
        for k in lowest {
            if !candidates.iter().any(|&o| self.alike(o, k)) {
                candidates.push(k);
            }
        }
        candidates
    }

    fn fail(&mut self, section: usize) {
        self.failures[section] += 1.0;
        self.urgency[section] = self.failures[section].powf(self.power);
    }

    fn covers(&self, k: u32, section: u32) -> bool {
        (self.items.from[k as usize]..self.items.to[k as usize]).contains(&section)
    }

    fn alike(&self, a: u32, b: u32) -> bool {
        let (a, b) = (a as usize, b as usize);
        let i = self.items;
        i.from[a] == i.from[b] && i.to[a] == i.to[b] && i.bytes[a] == i.bytes[b]
    }

    /// Places an item at its least offset; returns false if one of its neighbours doesn't fit any more.
    fn put(&mut self, k: u32) -> bool {
        let item = k as usize;
        let top = self.offset[item] + self.items.bytes[item];
        for s in self.items.from[item] as usize..self.items.to[item] as usize {
            self.to_come[s] -= self.items.bytes[item];
        }
        self.placed[item] = true;
        let mut raised = Vec::new();
        let mut fits = true;
        for &o in &self.neighbours[item] {
            if !self.placed[o as usize] && self.offset[o as usize] < top {
                raised.push((o, self.offset[o as usize]));
                self.offset[o as usize] = top;
                fits &= top + self.items.bytes[o as usize] <= self.goal;
            }
        }
        self.work += self.items.width(item) + self.neighbours[item].len() as u64;
        self.stack.push(Placed {
            item: Some(k),
            raised,
        });
        fits
    }

    /// Leaves room at a section, so each candidate lies on an item that isn't placed yet, or on another
    /// candidate that does. Returns false if the remaining items don't fit then.
    fn leave_room(&mut self, one: &One) -> bool {
        let (lowest, above): (Vec<u32>, Vec<u32>) = (one.set.iter())
            .filter(|&&k| self.covers(k, one.section))
            .partition(|&&k| self.offset[k as usize] == one.height);
        let mut least = above.iter().map(|&k| self.offset[k as usize]).min();
        for &k in &lowest {
            self.work += self.neighbours[k as usize].len() as u64;
            let beside = self.neighbours[k as usize]
                .iter()
                .filter(|&&o| !self.placed[o as usize] && !self.covers(o, one.section));
            let tops = beside.map(|&o| self.offset[o as usize] + self.items.bytes[o as usize]);
            least = least.into_iter().chain(tops).min();
        }
        let holds = |height: u64| height + self.to_come[one.section as usize] <= self.goal;
        let Some(least) = least.filter(|&height| holds(height)) else {
            self.fail(one.section as usize);
            return false;
        };
        let fits = |&k: &u32| least + self.items.bytes[k as usize] <= self.goal;
        let fits = lowest.iter().all(fits);
        let raised = lowest
            .iter()
            .map(|&k| (k, self.offset[k as usize]))
            .collect();
        for k in lowest {
            self.offset[k as usize] = least;
        }
        self.stack.push(Placed { item: None, raised });
        fits
    }

    fn unwind(&mut self, depth: usize) {
        while self.stack.len() > depth {
            let Some(last) = self.stack.pop() else { return };
            for (o, offset) in last.raised {
                self.offset[o as usize] = offset;
            }
            if let Some(item) = last.item {
                let item = item as usize;
                for s in self.items.from[item] as usize..self.items.to[item] as usize {
                    self.to_come[s] += self.items.bytes[item];
                }
                self.placed[item] = false;
            }
        }
    }
}
