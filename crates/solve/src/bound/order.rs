//! What is known about when tasks run for the first time: rows, which are a chain of tasks each of which runs
//! after its predecessor, and the place of every other task among them.
//!
//! In a fixed order the chain consists of all tasks, and every place is known. In a free order the chain is a
//! path of the graph. A task then comes after its ancestors on the path and before its descendants.

use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::TaskId;

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

    /// An empty chain, with which nothing is known of any task.
    fn of_ends(model: &Model) -> Chain {
        let anywhere = Place {
            after: 0,
            until: 0,
            exact: false,
        };
        Chain {
            tasks: Vec::new(),
            places: model.cost.values().map(|_| anywhere).collect(),
        }
    }

    /// The path of the graph with the most bytes over the budget in total. The bytes of a task are those
    /// that, in any order, must be in memory at the task or be made again.
    pub fn free(model: &Model, reach: &Reach, budget: f64) -> Chain {
        if reach.unknown() {
            return Chain::of_ends(model);
        }
        let lack = lacks(model, reach, budget);
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
        let place = |u: TaskId| {
            let after = tasks.partition_point(|&c| reach.has(c, u));
            let until = tasks.partition_point(|&c| c != u && !reach.has(u, c));
            Place {
                after,
                until,
                exact: tasks.get(until) == Some(&u),
            }
        };
        let places = model
            .task_ids()
            .map(place)
            .chain(ends(tasks.len()))
            .collect();
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

/// For each task, by how many bytes the budget is exceeded by its working set together with the values that
/// in any order are made before it and read after it.
fn lacks(model: &Model, reach: &Reach, budget: f64) -> PrimaryMap<TaskId, f64> {
    let mut lack: PrimaryMap<TaskId, f64> = model
        .task_ids()
        .map(|t| {
            let inputs = model.inputs.of(t).iter();
            let overwritten = inputs.filter(|i| i.overwritten);
            let twice: f64 = overwritten.map(|i| model.size(i.value)).sum();
            model.workspace[t] + model.fixed_bytes - budget - twice
        })
        .collect();
    let mut across = vec![0u64; reach.words];
    for v in model.value_ids() {
        let (make, bytes) = (model.producer[v], model.size(v));
        if bytes <= 0.0 {
            continue;
        }
        let readers = model.consumers.of(v);
        across.fill(0);
        for &reader in readers {
            match reach.before(reader) {
                Some(before) => across.iter_mut().zip(before).for_each(|(a, b)| *a |= b),
                None => across.fill(u64::MAX),
            }
        }
        if let Some(after) = reach.after(make) {
            across.iter_mut().zip(after).for_each(|(a, b)| *a &= b);
        }
        for &own in readers.iter().chain([&make]).filter(|&&own| model.has(own)) {
            across[own.index() / 64] |= 1 << (own.index() % 64);
        }
        for (word, &bits) in across.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let t = word * 64 + bits.trailing_zeros() as usize;
                if let Some(lack) = lack.get_mut(TaskId::new(t)) {
                    *lack += bytes;
                }
                bits &= bits - 1;
            }
        }
    }
    lack.values().map(|l| l.max(0.0)).collect()
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

    /// Whether nothing is known because there are too many tasks.
    pub fn unknown(&self) -> bool {
        self.tasks == 0
    }

    /// Whether `b` descends from `a`.
    pub fn has(&self, a: TaskId, b: TaskId) -> bool {
        b.as_u32() < self.tasks
            && self
                .after(a)
                .is_some_and(|bits| bits[b.index() / 64] >> (b.index() % 64) & 1 == 1)
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
