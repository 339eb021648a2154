//! What is known about when tasks run for the first time: rows, which are a chain of tasks each of which runs
//! after its predecessor, and the place of every other task among them.
//!
//! In a fixed order the chain consists of all tasks, and every place is known. In a free order the chain is a
//! path of the graph. A task then comes after its ancestors on the path and before its descendants.

use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::{TaskId, ValueId};

use crate::method::Order;
use crate::model::Model;

/// The stretch of the chain in which a task runs for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of tasks of the chain that certainly run before the task.
    pub after: usize,
    /// The first task of the chain that certainly doesn't run before it, or the chain's length if there is
    /// none.
    pub until: usize,
    /// Whether the task is itself that task of the chain.
    pub exact: bool,
}

/// A chain of tasks, and the places of all tasks.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub tasks: Vec<TaskId>,
    /// By task, including `start` and `end`.
    places: PrimaryMap<TaskId, Place>,
}

impl Chain {
    /// The chain of all tasks in the given order.
    pub fn fixed(model: &Model) -> Chain {
        Chain::of(model.given_order())
    }

    /// The chain of all tasks in some topological order.
    pub fn of(tasks: Vec<TaskId>) -> Chain {
        let nowhere = Place {
            after: 0,
            until: 0,
            exact: true,
        };
        let mut places: PrimaryMap<TaskId, Place> = tasks.iter().map(|_| nowhere).collect();
        for (at, &task) in tasks.iter().enumerate() {
            (places[task].after, places[task].until) = (at, at);
        }
        for place in ends(tasks.len()) {
            places.push(place);
        }
        Chain { tasks, places }
    }

    /// The path of the graph with the most bytes over the budget in total, where tasks have the bytes of [`held`]. With other memories, seconds decide
    /// between paths of equal bytes, because copies beside any path are bounded.
    pub fn free(model: &Model, budget: f64, held: &PrimaryMap<TaskId, f64>) -> Chain {
        let lack = held.values().map(|held| (held - budget).max(0.0));
        let mut lack: PrimaryMap<TaskId, f64> = lack.collect();
        if model.outside.is_some() {
            let unit = 1e-6 * budget.clamp(1.0, 1e15) / model.base_cost().max(f64::MIN_POSITIVE);
            let seconds = |t: TaskId| model.cost[t] * unit;
            lack.iter_mut().for_each(|(t, lack)| *lack += seconds(t));
        }
        // The weight of the heaviest path to each task, and the task's predecessor on that path.
        let mut best: PrimaryMap<TaskId, (f64, Option<TaskId>)> =
            lack.values().map(|_| (0.0, None)).collect();
        let mut last = None;
        for (t, &lack) in lack.iter() {
            best[t].0 += lack;
            let weight = best[t].0;
            if weight > 0.0 && last.is_none_or(|l: TaskId| weight > best[l].0) {
                last = Some(t);
            }
            for &v in model.outputs.of(t) {
                for &r in model.consumers.of(v).iter().filter(|&&r| model.has(r)) {
                    if weight > best[r].0 {
                        best[r] = (weight, Some(t));
                    }
                }
            }
        }
        let mut tasks = Vec::new();
        while let Some(t) = last {
            tasks.push(t);
            last = best[t].1;
        }
        tasks.reverse();
        let places = places(model, &tasks);
        Chain { tasks, places }
    }

    /// The place of a task, `start` or `end`.
    pub fn place(&self, t: TaskId) -> Place {
        self.places[t]
    }
}

/// The places of `start` and `end`.
fn ends(length: usize) -> [Place; 2] {
    [0, length].map(|at| Place {
        after: at,
        until: at,
        exact: false,
    })
}

/// The places of all tasks beside a path of the graph: each comes after the last of its ancestors on the path
/// and before the first of its descendants there.
fn places(model: &Model, path: &[TaskId]) -> PrimaryMap<TaskId, Place> {
    let nowhere = Place {
        after: 0,
        until: path.len(),
        exact: false,
    };
    let mut places: PrimaryMap<TaskId, Place> = model.task_ids().map(|_| nowhere).collect();
    for (at, &t) in path.iter().enumerate() {
        places[t] = Place {
            after: at,
            until: at,
            exact: true,
        };
    }
    let inner = |t: &TaskId| model.has(*t);
    for t in model.task_ids() {
        let makers = model.inputs.of(t).iter().map(|i| model.producer[i.value]);
        let behind = makers.filter(inner).map(|make| {
            let place = places[make];
            place.after + usize::from(place.exact)
        });
        let after = behind.max().unwrap_or(0);
        if !places[t].exact {
            places[t].after = after;
        }
    }
    for t in model.task_ids().rev() {
        let outputs = model.outputs.of(t).iter();
        let readers = outputs.flat_map(|&v| model.consumers.of(v)).copied();
        let until = readers.filter(inner).map(|r| places[r].until).min();
        if !places[t].exact {
            places[t].until = until.unwrap_or(path.len());
        }
    }
    places.extend(ends(path.len()));
    places
}

/// For each task, the bytes of its working set and of the values that in this order, or in any, are made before it and read after
/// it: they must be in memory while it runs, or be made again. With many tasks, values count that are made before it
/// and read after it in the given order, because only the choice of rows depends on these bytes.
pub(super) fn held(model: &Model, order: Order) -> PrimaryMap<TaskId, f64> {
    if order == Order::Fixed {
        return held_in_order(model);
    }
    let reach = Reach::new(model);
    match reach.unknown() {
        true => held_in_order(model),
        false => reach.held(model, |_| true),
    }
}

/// Roughly the bytes in use while each task runs, if every task runs once and in the given order.
fn held_in_order(model: &Model) -> PrimaryMap<TaskId, f64> {
    let mut change = vec![0.0; model.tasks as usize + 3];
    for v in model.value_ids() {
        let make = Some(model.producer[v]).filter(|&t| model.has(t));
        let last = model.consumers.of(v).iter().max().map_or(0, |t| t.index());
        let first = make.map_or(0, EntityRef::index);
        change[first] += model.size(v);
        change[last.max(first) + 1] -= model.size(v);
    }
    let mut level = model.fixed_bytes;
    let levels = model.task_ids().map(|t| {
        level += change[t.index()];
        level + model.workspace[t]
    });
    levels.collect()
}

/// The descendants and ancestors of each task.
pub(super) struct Reach {
    words: usize,
    /// By task, its descendants.
    after: Vec<u64>,
    /// By task, its ancestors.
    before: Vec<u64>,
    tasks: u32,
}

/// The most tasks for which descendants are computed; their table takes too much memory for more.
const MOST_TASKS: u32 = 20_000;

impl Reach {
    pub fn new(model: &Model) -> Reach {
        let tasks = if model.tasks <= MOST_TASKS {
            model.tasks
        } else {
            0
        };
        let words = (tasks as usize).div_ceil(64);
        let mut reach = Reach {
            words,
            after: vec![0; words * tasks as usize],
            before: vec![0; words * tasks as usize],
            tasks,
        };
        let of = |t: TaskId| t.index() * words..(t.index() + 1) * words;
        let known = || (0..tasks).map(TaskId::from_u32);
        let is_known = |t: TaskId| t.as_u32() < tasks;
        for t in known() {
            for input in model.inputs.of(t) {
                let make = model.producer[input.value];
                if is_known(make) {
                    let (earlier, own) = reach.before.split_at_mut(of(t).start);
                    own[make.index() / 64] |= 1 << (make.index() % 64);
                    let own = own[..words].iter_mut();
                    own.zip(&earlier[of(make)]).for_each(|(a, b)| *a |= b);
                }
            }
        }
        for t in known().rev() {
            for &v in model.outputs.of(t) {
                for &reader in model.consumers.of(v).iter().filter(|&&r| is_known(r)) {
                    let (own, later) = reach.after.split_at_mut(of(t).end);
                    let own = &mut own[of(t)];
                    own[reader.index() / 64] |= 1 << (reader.index() % 64);
                    let start = of(reader).start - of(t).end;
                    let of_reader = &later[start..start + words];
                    own.iter_mut().zip(of_reader).for_each(|(a, b)| *a |= b);
                }
            }
        }
        reach
    }

    /// Whether there is no table because there are too many tasks.
    pub fn unknown(&self) -> bool {
        self.tasks == 0
    }

    /// For each task, the bytes of its working set together with those of the `crossing` values that in any
    /// order are made before it and read after it. Without a table, each `crossing` value takes a pass over all tasks.
    pub fn held(
        &self,
        model: &Model,
        crossing: impl Fn(ValueId) -> bool,
    ) -> PrimaryMap<TaskId, f64> {
        let mut held: PrimaryMap<TaskId, f64> = model
            .task_ids()
            .map(|t| {
                let inputs = model.inputs.of(t).iter();
                let overwritten = inputs.filter(|i| i.overwritten);
                let twice: f64 = overwritten.map(|i| model.size(i.value)).sum();
                model.workspace[t] + model.fixed_bytes - twice
            })
            .collect();
        let mut across = vec![0u64; (model.tasks as usize).div_ceil(64)];
        for v in model.value_ids().filter(|&v| model.size(v) > 0.0) {
            let (make, bytes) = (model.producer[v], model.size(v));
            let readers = model.consumers.of(v);
            let own = || readers.iter().chain([&make]).filter(|&&t| model.has(t));
            across.fill(0);
            if crossing(v) {
                match self.unknown() {
                    true => cross_by_passes(model, make, readers, &mut across),
                    false => self.cross(make, readers, &mut across),
                }
            }
            for &t in own() {
                held[t] += bytes;
                if let Some(word) = across.get_mut(t.index() / 64) {
                    *word &= !(1 << (t.index() % 64));
                }
            }
            for (word, &bits) in across.iter().enumerate() {
                let mut bits = bits;
                while bits != 0 {
                    let t = word * 64 + bits.trailing_zeros() as usize;
                    if let Some(held) = held.get_mut(TaskId::new(t)) {
                        *held += bytes;
                    }
                    bits &= bits - 1;
                }
            }
        }
        held
    }

    /// Sets the bits of all tasks that in any order run after `make` and before one of the readers.
    fn cross(&self, make: TaskId, readers: &[TaskId], across: &mut [u64]) {
        for &reader in readers {
            match self.before(reader) {
                Some(before) => across.iter_mut().zip(before).for_each(|(a, b)| *a |= b),
                None => across.fill(u64::MAX),
            }
        }
        if let Some(after) = self.after(make) {
            across.iter_mut().zip(after).for_each(|(a, b)| *a &= b);
        }
    }

    /// The descendants of a task, as bits; none of `start` and `end`.
    fn after(&self, t: TaskId) -> Option<&[u64]> {
        let from = t.index() * self.words;
        (t.as_u32() < self.tasks).then(|| &self.after[from..from + self.words])
    }

    /// The ancestors of a task, as bits; none of `start` and `end`.
    fn before(&self, t: TaskId) -> Option<&[u64]> {
        let from = t.index() * self.words;
        (t.as_u32() < self.tasks).then(|| &self.before[from..from + self.words])
    }
}

/// [`Reach::cross`] without a table.
fn cross_by_passes(model: &Model, make: TaskId, readers: &[TaskId], across: &mut [u64]) {
    let all =
        |set: bool| -> PrimaryMap<TaskId, bool> { model.cost.values().map(|_| set).collect() };
    let mut after = all(make == model.start());
    for t in model.task_ids() {
        let makers = model.inputs.of(t).iter().map(|i| model.producer[i.value]);
        after[t] |= makers.into_iter().any(|m| m == make || after[m]);
    }
    let mut before = all(readers.contains(&model.end()));
    let mut reads = all(false);
    readers.iter().for_each(|&reader| reads[reader] = true);
    for t in model.task_ids().rev() {
        let outputs = model.outputs.of(t).iter();
        let mut later = outputs.flat_map(|&v| model.consumers.of(v));
        before[t] |= later.any(|&r| reads[r] || before[r]);
        let crosses = after[t] && before[t];
        across[t.index() / 64] |= u64::from(crosses) << (t.index() % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::testing::{Shape, problem};

    #[test]
    fn passes_find_what_the_table_has() {
        let mut rng = Random::new(34, 0);
        for round in 0..100 {
            let shape = Shape {
                tasks: 5 + round % 100,
                rich: round % 2 == 0,
            };
            let model = Model::new(&problem(shape, &mut rng)).unwrap().0;
            let table = Reach::new(&model);
            let none = Reach {
                tasks: 0,
                ..Reach::new(&model)
            };
            let crossing = |v: ValueId| v.index().is_multiple_of(2);
            let (known, passed) = (table.held(&model, crossing), none.held(&model, crossing));
            assert_eq!(known, passed);
        }
    }

    #[test]
    fn places_are_between_ancestors_and_descendants() {
        let mut rng = Random::new(33, 0);
        for round in 0..100 {
            let shape = Shape {
                tasks: 5 + round % 60,
                rich: round % 2 == 0,
            };
            let model = Model::new(&problem(shape, &mut rng)).unwrap().0;
            assert_eq!(held_in_order(&model).len(), model.tasks as usize);
            let chain = Chain::free(&model, 0.0, &held(&model, Order::Free));
            let reach = Reach::new(&model);
            let has = |a: TaskId, b: TaskId| {
                let bits = reach.after(a).unwrap();
                bits[b.index() / 64] >> (b.index() % 64) & 1 == 1
            };
            for u in model.task_ids() {
                let path = &chain.tasks;
                let place = Place {
                    after: path.partition_point(|&c| has(c, u)),
                    until: path.partition_point(|&c| c != u && !has(u, c)),
                    exact: path.contains(&u),
                };
                assert_eq!(chain.place(u), place, "{u}");
            }
        }
    }
}
