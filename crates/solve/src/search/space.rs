//! Planning as a path through states: which tasks have run, which values are in memory.
//!
//! Memory that nobody asks for is free, so values are dropped only to make room for a run, or when
//! nothing can need them any more. Sets of tasks and of values are bit sets of `W` words.

use crate::model::{Model, Task, Value};

/// A set of tasks or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Set<const W: usize>([u64; W]);

impl<const W: usize> Set<W> {
    pub const EMPTY: Set<W> = Set([0; W]);
    /// How many elements fit.
    pub const MOST: usize = 64 * W;

    pub fn of(items: impl IntoIterator<Item = u32>) -> Set<W> {
        let mut set = Set::EMPTY;
        items.into_iter().for_each(|i| set.add(i));
        set
    }

    #[inline]
    pub fn add(&mut self, i: u32) {
        self.0[i as usize / 64] |= 1 << (i % 64);
    }

    #[inline]
    pub fn has(&self, i: u32) -> bool {
        self.0[i as usize / 64] >> (i % 64) & 1 == 1
    }

    #[inline]
    fn zip(&self, other: &Set<W>, f: impl Fn(u64, u64) -> u64) -> Set<W> {
        Set(std::array::from_fn(|w| f(self.0[w], other.0[w])))
    }

    #[inline]
    pub fn and(&self, other: &Set<W>) -> Set<W> {
        self.zip(other, |a, b| a & b)
    }

    #[inline]
    pub fn or(&self, other: &Set<W>) -> Set<W> {
        self.zip(other, |a, b| a | b)
    }

    #[inline]
    pub fn minus(&self, other: &Set<W>) -> Set<W> {
        self.zip(other, |a, b| a & !b)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&w| w == 0)
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    #[inline]
    pub fn within(&self, other: &Set<W>) -> bool {
        self.minus(other).is_empty()
    }

    /// The elements in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(w, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                (left != 0).then(|| {
                    let bit = left.trailing_zeros();
                    left &= left - 1;
                    64 * w as u32 + bit
                })
            })
        })
    }
}

/// Which tasks have run and which values are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place<const W: usize> {
    pub done: Set<W>,
    pub live: Set<W>,
}

/// The states of one problem under one budget.
pub(crate) struct Space<'m, const W: usize> {
    pub model: &'m Model,
    pub budget: f64,
    /// Whether first runs may change their order.
    pub free: bool,
    pub inputs: Vec<Set<W>>,
    pub outputs: Vec<Set<W>>,
    overwritten: Vec<Set<W>>,
    kept: Set<W>,
}

impl<'m, const W: usize> Space<'m, W> {
    /// The states of a problem; `None` if it has more tasks or values than the sets hold.
    pub fn new(model: &'m Model, budget: f64, free: bool) -> Option<Space<'m, W>> {
        let n = model.tasks;
        if n as usize > Set::<W>::MOST || model.bytes.len() > Set::<W>::MOST {
            return None;
        }
        let reads = |t: Task| model.inputs.of(t).iter();
        Some(Space {
            model,
            budget,
            free,
            inputs: (0..n).map(|t| Set::of(reads(t).map(|i| i.value))).collect(),
            outputs: (0..n)
                .map(|t| Set::of(model.outputs.of(t).iter().copied()))
                .collect(),
            overwritten: (0..n)
                .map(|t| Set::of(reads(t).filter(|i| i.overwritten).map(|i| i.value)))
                .collect(),
            kept: Set::of(reads(model.end()).map(|i| i.value)),
        })
    }

    /// Before the first run; `None` if the given values don't fit.
    pub fn start(&self) -> Option<Place<W>> {
        let given = self.model.outputs.of(self.model.start());
        let live = Set::of(given.iter().copied());
        let start = Place {
            done: Set::EMPTY,
            live: live.and(&self.needed(&Set::EMPTY)),
        };
        (self.bytes(&live) <= self.budget).then_some(start)
    }

    /// Whether all tasks have run and what must be there is.
    pub fn is_end(&self, place: &Place<W>) -> bool {
        (0..self.model.tasks).all(|t| place.done.has(t)) && self.kept.within(&place.live)
    }

    /// What a task or [`Model::end`] reads.
    pub fn reads(&self, t: Task) -> Set<W> {
        self.inputs.get(t as usize).copied().unwrap_or(self.kept)
    }

    /// Bytes of a set of values.
    pub fn bytes(&self, values: &Set<W>) -> f64 {
        values.iter().map(|v| self.model.bytes[v as usize]).sum()
    }

    /// Values that some plan from here on could read.
    pub fn needed(&self, done: &Set<W>) -> Set<W> {
        let mut needed = self.kept;
        for t in (0..self.model.tasks).rev() {
            let k = t as usize;
            let may_run = !done.has(t)
                || (self.model.rerunnable[k] && !self.outputs[k].and(&needed).is_empty());
            if may_run {
                needed = needed.or(&self.inputs[k]);
            }
        }
        needed
    }

    /// Seconds that any plan from here on takes at least: what hasn't run yet, and what must run again
    /// for that. Also the values that those runs read. `None` if there is no such plan.
    pub fn to_go(&self, place: &Place<W>) -> Option<(f64, Set<W>)> {
        let (mut seconds, mut read) = (0.0, self.kept);
        let mut missing = self.kept.minus(&place.live);
        for t in (0..self.model.tasks).rev() {
            let k = t as usize;
            let first = !place.done.has(t);
            if !first {
                if self.outputs[k].and(&missing).is_empty() {
                    continue;
                }
                if !self.model.rerunnable[k] {
                    return None;
                }
            }
            read = read.or(&self.inputs[k]);
            seconds += self.model.cost[k];
            missing = missing.minus(&self.outputs[k]);
            missing = missing.or(&self.inputs[k].minus(&place.live));
        }
        missing.is_empty().then_some((seconds, read))
    }

    /// What must leave memory before `t` can run, in bytes; nothing or less if it fits.
    pub fn lack(&self, place: &Place<W>, t: Task) -> f64 {
        let stays = place.live.minus(&self.outputs[t as usize]);
        self.bytes(&stays) + self.model.grows[t as usize] - self.budget
    }

    /// After dropping some values and running `t`.
    pub fn after(&self, place: &Place<W>, t: Task, dropped: &Set<W>, needed: &Set<W>) -> Place<W> {
        let k = t as usize;
        let mut done = place.done;
        done.add(t);
        let left = place.live.minus(dropped).minus(&self.overwritten[k]);
        Place {
            done,
            live: left.or(&self.outputs[k]).and(needed),
        }
    }

    /// Values that may leave memory before `t` runs, largest first.
    pub fn droppable(&self, place: &Place<W>, t: Task) -> Vec<Value> {
        let k = t as usize;
        let stay = self.inputs[k].or(&self.outputs[k]);
        let mut values: Vec<Value> = place.live.minus(&stay).iter().collect();
        values.retain(|&v| self.model.bytes[v as usize] > 0.0);
        let bytes = |v: Value| self.model.bytes[v as usize];
        values.sort_by(|&a, &b| bytes(b).total_cmp(&bytes(a)).then(a.cmp(&b)));
        values
    }
}
