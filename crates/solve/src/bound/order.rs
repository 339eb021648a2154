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

    /// No chain: nothing is known of any task.
    fn of_ends(model: &Model) -> Chain {
        let anywhere = Place {
            after: 0,
            until: 0,
            exact: false,
        };
        Chain {
            tasks: Vec::new(),
            places: vec![anywhere; model.tasks as usize + 2],
        }
    }

    /// The path of the graph with the most bytes over the budget in all, where at each task those count
    /// that must be there in any order or be made again.
    pub fn free(model: &Model, reach: &Reach, budget: f64) -> Chain {
        let n = model.tasks;
        if reach.unknown() {
            return Chain::of_ends(model);
        }
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
    let mut across = vec![0u64; reach.words];
    for v in 0..model.bytes.len() as u32 {
        let (make, bytes) = (model.producer[v as usize], size(model, v));
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
        for &own in readers.iter().chain([&make]).filter(|&&own| own < n) {
            across[own as usize / 64] |= 1 << (own % 64);
        }
        for (word, &bits) in across.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let t = word * 64 + bits.trailing_zeros() as usize;
                if let Some(lack) = lack.get_mut(t) {
                    *lack += bytes;
                }
                bits &= bits - 1;
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
    /// By task, the tasks that descend from it.
    after: Vec<u64>,
    /// By task, those it descends from.
    before: Vec<u64>,
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
        let mut reach = Reach {
            words,
            after: vec![0; words * tasks as usize],
            before: vec![0; words * tasks as usize],
            tasks,
        };
        let of = |t: Task| t as usize * words..(t as usize + 1) * words;
        for t in 0..tasks {
            for input in model.inputs.of(t) {
                let make = model.producer[input.value as usize];
                if make < tasks {
                    let (earlier, own) = reach.before.split_at_mut(of(t).start);
                    own[make as usize / 64] |= 1 << (make % 64);
                    let own = own[..words].iter_mut();
                    own.zip(&earlier[of(make)]).for_each(|(a, b)| *a |= b);
                }
            }
        }
        for t in (0..tasks).rev() {
            for &v in model.outputs.of(t) {
                for &reader in model.consumers.of(v).iter().filter(|&&r| r < tasks) {
                    let (own, later) = reach.after.split_at_mut(of(t).end);
                    let own = &mut own[of(t)];
                    own[reader as usize / 64] |= 1 << (reader % 64);
                    let start = of(reader).start - of(t).end;
                    let of_reader = &later[start..start + words];
                    own.iter_mut().zip(of_reader).for_each(|(a, b)| *a |= b);
                }
            }
        }
        reach
    }

    /// Whether nothing is known, for there are too many tasks.
    pub fn unknown(&self) -> bool {
        self.tasks == 0
    }

    /// Whether `b` descends from `a`.
    pub fn has(&self, a: Task, b: Task) -> bool {
        b < self.tasks
            && self
                .after(a)
                .is_some_and(|bits| bits[b as usize / 64] >> (b % 64) & 1 == 1)
    }

    /// The tasks after a task, as bits; none of `start` and `end`.
    fn after(&self, t: Task) -> Option<&[u64]> {
        let from = t as usize * self.words;
        (t < self.tasks).then(|| &self.after[from..from + self.words])
    }

    /// The tasks before a task, likewise.
    fn before(&self, t: Task) -> Option<&[u64]> {
        let from = t as usize * self.words;
        (t < self.tasks).then(|| &self.before[from..from + self.words])
    }
}
