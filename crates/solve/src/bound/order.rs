//! What is known about when tasks run for the first time: rows, a chain of tasks each of which runs
//! after the one before, and where every other task lies among them.
//!
//! In a fixed order the chain is all tasks and every place is known. In a free order the chain is a path of
//! the graph, and a task is known to come after its ancestors and before its descendants on it.

use crate::model::{Model, Task};

/// The stretch of the chain in which a task runs for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// How many tasks of the chain certainly run before it.
    pub after: usize,
    /// The first task of the chain that certainly doesn't run before it; the chain's length if there is
    /// none.
    pub until: usize,
    /// It is that task.
    pub exact: bool,
}

/// A chain of tasks, and the places of all tasks.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub tasks: Vec<Task>,
    /// By task; `start` and `end` included.
    places: Vec<Place>,
}

impl Chain {
    /// All tasks in the given order.
    pub fn fixed(model: &Model) -> Chain {
        Chain::of((0..model.tasks).collect())
    }

    /// All tasks in some topological order.
    pub fn of(tasks: Vec<Task>) -> Chain {
        let nowhere = Place {
            after: 0,
            until: 0,
            exact: true,
        };
        let mut places = vec![nowhere; tasks.len()];
        for (at, &task) in tasks.iter().enumerate() {
            (places[task as usize].after, places[task as usize].until) = (at, at);
        }
        places.extend(ends(tasks.len()));
        Chain { tasks, places }
    }

    /// The path of the graph with the most bytes over the budget in all, where at each task those count
    /// that must be there in any order or be made again.
    pub fn free(model: &Model, reach: &Reach, budget: f64) -> Chain {
        let n = model.tasks;
        let lack = lacks(model, reach, budget);
        let mut best = vec![(0.0, u32::MAX); n as usize];
        let mut last = None;
        for t in 0..n {
            best[t as usize].0 += lack[t as usize];
            let weight = best[t as usize].0;
            if weight > 0.0 && last.is_none_or(|l: Task| weight > best[l as usize].0) {
                last = Some(t);
            }
            for &v in model.outputs.of(t) {
                for &r in model.consumers.of(v).iter().filter(|&&r| r < n) {
                    if weight > best[r as usize].0 {
                        best[r as usize] = (weight, t);
                    }
                }
            }
        }
        let mut tasks = Vec::new();
        while let Some(t) = last {
            tasks.push(t);
            last = Some(best[t as usize].1).filter(|&before| before < n);
        }
        tasks.reverse();
        let place = |u: Task| {
            let after = tasks.partition_point(|&c| reach.has(c, u));
            let until = tasks.partition_point(|&c| c != u && !reach.has(u, c));
            Place {
                after,
                until,
                exact: tasks.get(until) == Some(&u),
            }
        };
        let places = (0..n).map(place).chain(ends(tasks.len())).collect();
        Chain { tasks, places }
    }

    /// Where a task, `start` or `end` lies.
    pub fn place(&self, t: Task) -> Place {
        self.places[t as usize]
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

/// For each task, by how many bytes its working set and what was made before it and is read after it,
/// whatever the order, exceed the budget.
fn lacks(model: &Model, reach: &Reach, budget: f64) -> Vec<f64> {
    let n = model.tasks;
    let mut lack: Vec<f64> = (0..n)
        .map(|t| {
            let inputs = model.inputs.of(t).iter();
            let overwritten = inputs.filter(|i| i.overwritten);
            let twice: f64 = overwritten.map(|i| size(model, i.value)).sum();
            model.workspace[t as usize] + model.pinned_bytes - budget - twice
        })
        .collect();
    for v in 0..model.bytes.len() as u32 {
        let (make, bytes) = (model.producer[v as usize], size(model, v));
        if bytes <= 0.0 {
            continue;
        }
        let readers = model.consumers.of(v);
        for t in 0..n {
            let own = make == t || readers.contains(&t);
            let made = make == model.start() || reach.has(make, t);
            let read = |&r: &Task| r == model.end() || reach.has(t, r);
            if own || (made && readers.iter().any(read)) {
                lack[t as usize] += bytes;
            }
        }
    }
    lack.iter().map(|l| l.max(0.0)).collect()
}

/// A value's bytes, which a pinned one has no own of.
pub(super) fn size(model: &Model, v: u32) -> f64 {
    if model.pinned[v as usize] {
        0.0
    } else {
        model.bytes[v as usize]
    }
}

/// Which tasks descend from which.
pub(super) struct Reach {
    words: usize,
    bits: Vec<u64>,
    tasks: u32,
}

/// With more tasks than this no descendants are known: their table would take too much memory.
const MOST_TASKS: u32 = 20_000;

impl Reach {
    pub fn new(model: &Model) -> Reach {
        let tasks = if model.tasks <= MOST_TASKS {
            model.tasks
        } else {
            0
        };
        let words = (tasks as usize).div_ceil(64);
        let mut bits = vec![0u64; words * tasks as usize];
        for t in (0..tasks).rev() {
            let (own, later) = bits[t as usize * words..].split_at_mut(words);
            for &v in model.outputs.of(t) {
                for &r in model.consumers.of(v).iter().filter(|&&r| r < tasks) {
                    own[r as usize / 64] |= 1 << (r % 64);
                    let of_reader = &later[(r - t - 1) as usize * words..][..words];
                    own.iter_mut().zip(of_reader).for_each(|(a, b)| *a |= b);
                }
            }
        }
        Reach { words, bits, tasks }
    }

    /// Whether `b` descends from `a`.
    pub fn has(&self, a: Task, b: Task) -> bool {
        a < self.tasks
            && b < self.tasks
            && self.bits[a as usize * self.words + b as usize / 64] >> (b % 64) & 1 == 1
    }
}
