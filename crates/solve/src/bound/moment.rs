//! What a budget costs at one moment, in the given order or in whatever order tasks run: a minimum cut.
//!
//! The moment is the first run of a task, the *row*. Tasks before it in every order have run by then and tasks
//! after it haven't; of the others, the cut decides. Let `s(t) = 1` if `t` has run by then, `e(t) = 1` if it has and
//! doesn't run again after it, and `d(v) = 1` if no later run needs `v` from before. Then in every plan
//!
//! * `s(u) ≤ s(t)` if `u` reads what `t` writes, because `t` runs first, or if that is said of the two;
//! * `s(o) ≤ e(t)` if `t` reads what `o` overwrites, unless that can be made again;
//! * `e(t) ≤ s(t)`, and making `t` again costs `c(t) · (s(t) − e(t))` seconds;
//! * `d(v) ≤ e(u)` for each reader `u`: who has yet to run, or runs again, needs `v` in memory at the row or made again after it;
//! * `v` from `t` is in memory at the row if `e(t) = 1` and `d(v) = 0`, and what is in memory there must fit beside what the
//!   row's own run uses.
//!
//! At a price `λ` per byte of the last rule, every rule is an implication between two of these choices, and every cost is paid if one holds and another doesn't.
//! So the least seconds less `λ` times the room are a minimum cut for any `λ`, exactly, and the best `λ` is the maximum of a concave function.
//!
//! The third rule carries what the stay program ([`super::stays`]) has as its third: what is dropped and needed again
//! takes a whole tree of runs that begins with what the row holds. That program has many rows but needs to know where tasks are
//! between them, which a random graph leaves open, and its trees are fractions; this one has one row, needs to know nothing and is exact
//! but for its one price.

use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::{TaskId, ValueId};

use crate::flow::{Network, Node, SINK, SOURCE};
use crate::method::Order;
use crate::model::Model;

/// The most runs of a sequence of choices, per task.
const MOST_RUNS: usize = 4;

/// The first run of a task, within a budget.
#[derive(Clone, Copy)]
pub(super) struct Moment<'m> {
    pub model: &'m Model,
    pub budget: f64,
    pub order: Order,
    pub row: TaskId,
    /// Whether a task can't run again, so that what it writes can't be made again either.
    pub once: &'m PrimaryMap<TaskId, bool>,
    /// Pairs of tasks of which the first one runs first before the second one does.
    pub before: &'m [(TaskId, TaskId)],
}

/// What a task does: it has run by the row and doesn't run again, or either isn't so.
pub(super) type Choice = (TaskId, bool);

/// The cut at one price.
pub(super) struct Least {
    pub row: TaskId,
    pub price: f64,
    /// No plan adds fewer seconds. Infinite if no plan makes such choices.
    pub value: f64,
    /// The bytes that the cut's choices have over the budget, and the slope of the value.
    pub slope: f64,
    /// By task: whether it has run by the row, and whether it doesn't run again either.
    pub ran: Vec<bool>,
    pub stays: Vec<bool>,
}

impl Least {
    /// No price's value is above this one.
    pub fn at(&self, price: f64) -> f64 {
        self.value + self.slope * (price - self.price)
    }

    /// The seconds that the cut's choices add.
    pub fn seconds(&self) -> f64 {
        self.at(0.0)
    }

    /// The sequence that makes these choices: what has run by the row, the row, and then the rest, each in the given order, with what runs
    /// again as late as it can. It may exceed the budget elsewhere, and where buffers are taken over, lack something that a run needs.
    pub fn runs(&self, model: &Model) -> Vec<TaskId> {
        let mut there: PrimaryMap<ValueId, bool> = model.bytes.values().map(|_| false).collect();
        let run = |t: TaskId, stays: bool, there: &mut PrimaryMap<ValueId, bool>| {
            for input in model.inputs.of(t).iter().filter(|i| i.overwritten) {
                there[input.value] = false;
            }
            for &v in model.outputs.of(t) {
                there[v] = stays;
            }
        };
        run(model.start(), true, &mut there);
        let (before, after): (Vec<TaskId>, Vec<TaskId>) =
            model.task_ids().partition(|t| self.ran[t.index()]);
        let mut runs = before;
        runs.push(self.row);
        for &t in &runs {
            run(t, t == self.row || self.stays[t.index()], &mut there);
        }
        let most = model.tasks as usize * MOST_RUNS;
        let after = after.into_iter().filter(|&t| t != self.row);
        for t in after.chain([model.end()]) {
            // What is to run, the next one last.
            let mut next = vec![t];
            while let Some(&t) = next.last().filter(|_| runs.len() < most) {
                let mut inputs = model.inputs.of(t).iter().map(|i| i.value);
                match inputs.find(|&v| !there[v]) {
                    Some(v) if model.has(model.producer[v]) => next.push(model.producer[v]),
                    _ => {
                        next.pop();
                        run(t, true, &mut there);
                        runs.push(t);
                    }
                }
            }
        }
        runs.retain(|&t| model.has(t));
        runs
    }
}

impl Moment<'_> {
    /// The cut at a price, with some choices made, by looking at no more than `left` edges; `None` if that takes more.
    pub fn least(&self, price: f64, made: &[Choice], left: &mut u64) -> Option<Least> {
        let (model, row) = (self.model, self.row);
        let mut network = Network::new();
        let (ran, stays) = self.nodes(&mut network);
        for &(t, choice) in made {
            match choice {
                true => network.edge(SOURCE, stays[t], f64::INFINITY),
                false => network.edge(stays[t], SINK, f64::INFINITY),
            }
        }
        for t in model.task_ids().filter(|&t| ran[t] != SINK) {
            for input in model.inputs.of(t) {
                network.edge(ran[t], ran[model.producer[input.value]], f64::INFINITY);
            }
            for reader in self.done_before(t) {
                network.edge(ran[t], stays[reader], f64::INFINITY);
            }
            if ran[t] != stays[t] {
                network.edge(ran[t], stays[t], model.cost[t]);
                network.edge(stays[t], ran[t], f64::INFINITY);
            }
        }
        for &(first, second) in self.before {
            network.edge(ran[second], ran[first], f64::INFINITY);
        }
        for reader in self.done_before(row) {
            network.edge(SOURCE, stays[reader], f64::INFINITY);
        }
        let mut room = self.budget - model.fixed_bytes - model.workspace[row];
        let inputs = model.inputs.of(row);
        let used = inputs.iter().filter(|i| !i.overwritten);
        let used = used
            .map(|i| i.value)
            .chain(model.outputs.of(row).iter().copied());
        room -= used.map(|v| model.size(v)).sum::<f64>();
        // The pairs of sides that pay for a value in memory, and its bytes.
        let mut held = Vec::new();
        for v in model.value_ids() {
            let (bytes, made) = (model.size(v), stays[model.producer[v]]);
            let read = inputs.iter().find(|i| i.value == v);
            if bytes <= 0.0 || made == SINK || read.is_some_and(|i| !i.overwritten) {
                continue;
            }
            let readers = model.consumers.of(v).iter();
            let mut others = readers.filter(|&&r| r != row).map(|&r| stays[r]).peekable();
            if others.peek().is_none() {
                continue;
            }
            let needed = network.node();
            let pays = match read {
                Some(_) => f64::INFINITY,
                None => price * bytes,
            };
            network.edge(made, needed, pays);
            held.push((made, needed, bytes));
            for reader in others {
                network.edge(needed, reader, f64::INFINITY);
            }
        }
        let cut = network.cut_within(left)?;
        let chosen = |node: Node| cut.source_side.get(node) == Some(&true);
        let here = held
            .iter()
            .filter(|&&(made, needed, _)| chosen(made) && !chosen(needed));
        Some(Least {
            row,
            price,
            value: cut.capacity - price * room,
            slope: here.map(|(_, _, bytes)| bytes).sum::<f64>() - room,
            ran: model.task_ids().map(|t| chosen(ran[t])).collect(),
            stays: model.task_ids().map(|t| chosen(stays[t])).collect(),
        })
    }

    /// Tasks that don't run after a task has: what they read is overwritten by it and can't be made again.
    fn done_before(&self, task: TaskId) -> impl Iterator<Item = TaskId> {
        let model = self.model;
        let inputs = model.inputs.of(task).iter();
        let lost = inputs.filter(|i| i.overwritten && self.once[model.producer[i.value]]);
        let readers = lost.flat_map(|i| model.consumers.of(i.value).iter().copied());
        readers.filter(move |&reader| reader != task && model.has(reader))
    }

    /// By task, also `start` and `end`: the node that says whether it has run by the row, and the one that says whether it doesn't
    /// run again either.
    fn nodes(&self, network: &mut Network) -> (PrimaryMap<TaskId, Node>, PrimaryMap<TaskId, Node>) {
        let (model, row) = (self.model, self.row);
        const OPEN: Node = Node::MAX;
        let mut ran: PrimaryMap<TaskId, Node> = model.cost.values().map(|_| OPEN).collect();
        ran[model.start()] = SOURCE;
        ran[model.end()] = SINK;
        ran[row] = SINK;
        if self.order == Order::Fixed {
            for t in model.task_ids() {
                ran[t] = if t < row { SOURCE } else { SINK };
            }
        }
        for &(first, second) in self.before {
            if first == row {
                ran[second] = SINK;
            } else if second == row {
                ran[first] = SOURCE;
            }
        }
        for t in model.task_ids().rev().filter(|&t| t <= row) {
            let outputs = model.outputs.of(t).iter();
            let mut readers = outputs.flat_map(|&v| model.consumers.of(v));
            if readers.any(|&r| r == row || (r < row && ran[r] == SOURCE)) {
                ran[t] = SOURCE;
            }
        }
        for t in model.task_ids().filter(|&t| t > row) {
            let makers = model.inputs.of(t).iter().map(|i| model.producer[i.value]);
            if makers.into_iter().any(|m| ran[m] == SINK) {
                ran[t] = SINK;
            }
        }
        let mut stays = ran.clone();
        for t in model.task_ids() {
            if ran[t] == OPEN {
                ran[t] = network.node();
            }
            stays[t] = match self.once[t] || ran[t] == SINK {
                true => ran[t],
                false => network.node(),
            };
        }
        (ran, stays)
    }
}
