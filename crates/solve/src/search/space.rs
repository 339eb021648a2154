//! Planning as a path through states: each says which tasks have run and which values are in memory.
//!
//! Unused memory has no cost, so values are dropped only to make room for a run, or when nothing can need
//! them any more. Sets of tasks and of values are bit sets of `W` words.

use std::marker::PhantomData;
use std::ops::Range;

use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::{TaskId, ValueId};

use crate::model::Model;

/// A set of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Set<K, const W: usize>([u64; W], PhantomData<K>);

/// A set of tasks.
pub(crate) type Tasks<const W: usize> = Set<TaskId, W>;
/// A set of values.
pub(crate) type Values<const W: usize> = Set<ValueId, W>;

impl<K: EntityRef, const W: usize> Set<K, W> {
    pub const EMPTY: Set<K, W> = Set([0; W], PhantomData);
    /// The most elements that fit.
    pub const MOST: usize = 64 * W;

    pub fn of(items: impl IntoIterator<Item = K>) -> Set<K, W> {
        let mut set = Set::EMPTY;
        items.into_iter().for_each(|i| set.add(i));
        set
    }

    #[inline]
    pub fn add(&mut self, i: K) {
        self.0[i.index() / 64] |= 1 << (i.index() % 64);
    }

    #[inline]
    pub fn has(&self, i: K) -> bool {
        self.0[i.index() / 64] >> (i.index() % 64) & 1 == 1
    }

    #[inline]
    fn zip(&self, other: &Set<K, W>, f: impl Fn(u64, u64) -> u64) -> Set<K, W> {
        Set(
            std::array::from_fn(|w| f(self.0[w], other.0[w])),
            PhantomData,
        )
    }

    #[inline]
    pub fn and(&self, other: &Set<K, W>) -> Set<K, W> {
        self.zip(other, |a, b| a & b)
    }

    #[inline]
    pub fn or(&self, other: &Set<K, W>) -> Set<K, W> {
        self.zip(other, |a, b| a | b)
    }

    #[inline]
    pub fn minus(&self, other: &Set<K, W>) -> Set<K, W> {
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
    pub fn within(&self, other: &Set<K, W>) -> bool {
        self.minus(other).is_empty()
    }

    /// The elements in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = K> + '_ {
        self.0.iter().enumerate().flat_map(|(w, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                (left != 0).then(|| {
                    let bit = left.trailing_zeros() as usize;
                    left &= left - 1;
                    K::new(64 * w + bit)
                })
            })
        })
    }
}

/// The words that the sets of a problem's tasks and values take.
pub(crate) fn words(model: &Model) -> usize {
    model.bytes.len().max(model.tasks as usize).div_ceil(64)
}

/// Which tasks have run and which values are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place<const W: usize> {
    pub done: Tasks<W>,
    pub live: Values<W>,
}

/// The states of one problem under one budget.
pub(crate) struct Space<'m, const W: usize> {
    pub model: &'m Model,
    pub budget: f64,
    /// Whether first runs may change their order.
    pub free: bool,
    /// By task; the inputs of [`Model::end`] are the kept values.
    inputs: PrimaryMap<TaskId, Values<W>>,
    outputs: PrimaryMap<TaskId, Values<W>>,
    overwritten: PrimaryMap<TaskId, Values<W>>,
    /// The tasks that have run at the start, and the values in memory there.
    from: Place<W>,
}

impl<'m, const W: usize> Space<'m, W> {
    /// The states of a problem; `None` if it has more tasks or values than the sets hold.
    pub fn new(model: &'m Model, budget: f64, free: bool) -> Option<Space<'m, W>> {
        if model.tasks as usize > Tasks::<W>::MOST || model.bytes.len() > Values::<W>::MOST {
            return None;
        }
        let reads = |t: TaskId| model.inputs.of(t).iter();
        let outputs: PrimaryMap<TaskId, Values<W>> = (model.cost.keys())
            .map(|t| Set::of(model.outputs.of(t).iter().copied()))
            .collect();
        let live = outputs[model.start()];
        let done = Set::EMPTY;
        Some(Space {
            model,
            budget,
            free,
            from: Place { done, live },
            inputs: (model.cost.keys())
                .map(|t| Set::of(reads(t).map(|i| i.value)))
                .collect(),
            outputs,
            overwritten: (model.cost.keys())
                .map(|t| Set::of(reads(t).filter(|i| i.overwritten).map(|i| i.value)))
                .collect(),
        })
    }

    /// The same problem for a stretch of a sequence: tasks that run there for the first time have yet to run, all others count as
    /// run, and the values that the rest of the sequence reads are kept.
    pub fn between(mut self, runs: &[TaskId], stretch: Range<usize>) -> Space<'m, W> {
        let before = |kept: Values<W>, runs: &[TaskId]| {
            runs.iter().rev().fold(kept, |live, &t| {
                live.minus(&self.outputs[t]).or(&self.inputs[t])
            })
        };
        let kept = before(self.kept(), &runs[stretch.end..]);
        let live = before(kept, &runs[stretch.clone()]);
        let ran = Tasks::<W>::of(runs[..stretch.start].iter().copied());
        let here = Tasks::<W>::of(runs[stretch].iter().copied());
        let done = Tasks::<W>::of(self.model.task_ids()).minus(&here.minus(&ran));
        self.inputs[self.model.end()] = kept;
        self.from = Place { done, live };
        self
    }

    /// The values that must be in memory at the end.
    fn kept(&self) -> Values<W> {
        self.inputs[self.model.end()]
    }

    /// The state before the first run; `None` if the given values don't fit.
    pub fn start(&self) -> Option<Place<W>> {
        let Place { done, live } = self.from;
        let start = Place {
            done,
            live: live.and(&self.needed(&done)),
        };
        (self.bytes(&live) <= self.budget).then_some(start)
    }

    /// Whether all tasks have run and all kept values are in memory.
    pub fn is_end(&self, place: &Place<W>) -> bool {
        self.model.task_ids().all(|t| place.done.has(t)) && self.kept().within(&place.live)
    }

    /// The values that a task or [`Model::end`] reads.
    #[inline]
    pub fn reads(&self, t: TaskId) -> &Values<W> {
        &self.inputs[t]
    }

    /// The values that a task writes.
    #[inline]
    pub fn writes(&self, t: TaskId) -> &Values<W> {
        &self.outputs[t]
    }

    /// Bytes of a set of values.
    pub fn bytes(&self, values: &Values<W>) -> f64 {
        values.iter().map(|v| self.model.bytes[v]).sum()
    }

    /// Values that some plan from here on could read.
    pub fn needed(&self, done: &Tasks<W>) -> Values<W> {
        let mut needed = self.kept();
        for t in self.model.task_ids().rev() {
            let may_run = !done.has(t)
                || (self.model.rerunnable[t] && !self.outputs[t].and(&needed).is_empty());
            if may_run {
                needed = needed.or(&self.inputs[t]);
            }
        }
        needed
    }

    /// Seconds that every plan from here on takes at least, for the tasks that haven't run yet and those that
    /// must run again for them; and the values that those runs read. `None` if no plan exists.
    pub fn to_go(&self, place: &Place<W>) -> Option<(f64, Values<W>)> {
        let (mut seconds, mut read) = (0.0, self.kept());
        let mut missing = self.kept().minus(&place.live);
        for t in self.model.task_ids().rev() {
            let first = !place.done.has(t);
            if !first {
                if self.outputs[t].and(&missing).is_empty() {
                    continue;
                }
                if !self.model.rerunnable[t] {
                    return None;
                }
            }
            read = read.or(&self.inputs[t]);
            seconds += self.model.cost[t];
            missing = missing.minus(&self.outputs[t]);
            missing = missing.or(&self.inputs[t].minus(&place.live));
        }
        missing.is_empty().then_some((seconds, read))
    }

    /// The tasks that make these values from what is in memory.
    pub fn makers(&self, mut missing: Values<W>, live: &Values<W>) -> Tasks<W> {
        let mut makers = Tasks::EMPTY;
        while !missing.is_empty() {
            let mut next = Values::EMPTY;
            for v in missing.iter() {
                let t = self.model.producer[v];
                if self.model.has(t) && !makers.has(t) {
                    makers.add(t);
                    next = next.or(&self.reads(t).minus(live));
                }
            }
            missing = next;
        }
        makers
    }

    /// Bytes that must leave memory before `t` can run; zero or less if it fits.
    pub fn lack(&self, place: &Place<W>, t: TaskId) -> f64 {
        let stays = place.live.minus(&self.outputs[t]);
        self.bytes(&stays) + self.model.grows[t] - self.budget
    }

    /// The state after dropping some values and running `t`.
    pub fn after(
        &self,
        place: &Place<W>,
        t: TaskId,
        dropped: &Values<W>,
        needed: &Values<W>,
    ) -> Place<W> {
        let mut done = place.done;
        done.add(t);
        let left = place.live.minus(dropped).minus(&self.overwritten[t]);
        Place {
            done,
            live: left.or(&self.outputs[t]).and(needed),
        }
    }

    /// Values that may leave memory before `t` runs, largest first.
    pub fn droppable(&self, place: &Place<W>, t: TaskId) -> Vec<ValueId> {
        let stay = self.inputs[t].or(&self.outputs[t]);
        let mut values: Vec<ValueId> = place.live.minus(&stay).iter().collect();
        values.retain(|&v| self.model.bytes[v] > 0.0);
        let bytes = |v: ValueId| self.model.bytes[v];
        values.sort_by(|&a, &b| bytes(b).total_cmp(&bytes(a)).then(a.cmp(&b)));
        values
    }
}
