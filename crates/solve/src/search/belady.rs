//! Paging by Belady's rule: one pass over the given order. Where a task doesn't fit, the idle values that are
//! read furthest ahead are sent away, and each comes back just before it is read. It takes
//! `O(reads · log values)`, and makes nothing again.

use std::collections::BinaryHeap;

use cranelift_entity::PrimaryMap;
use scrimp_plan::{TaskId, ValueId};

use crate::model::Model;

/// The given order with the tasks that bring values back, such that at most `budget` bytes are in use. `None`
/// if some task doesn't fit after everything has been sent away that may be, and for which there is room.
pub(super) fn paged(model: &Model, budget: f64) -> Option<Vec<TaskId>> {
    let mut pass = Pass::new(model, budget);
    let ends = [model.start()].into_iter();
    for t in ends.chain(model.task_ids()).chain([model.end()]) {
        pass.make_room(t)?;
        for i in model.inputs.of(t) {
            if !pass.present[i.value] {
                pass.bring(i.value)?;
            }
        }
        pass.run(t);
    }
    Some(pass.order)
}

/// What the pass knows before a task.
struct Pass<'m> {
    model: &'m Model,
    budget: f64,
    order: Vec<TaskId>,
    /// Bytes of the values in memory.
    level: f64,
    present: PrimaryMap<ValueId, bool>,
    /// The memory that has a value.
    holder: PrimaryMap<ValueId, Option<usize>>,
    /// How many of its readers have run.
    read: PrimaryMap<ValueId, usize>,
    /// Values that were in memory, by the next reader then.
    idle: BinaryHeap<(TaskId, ValueId)>,
    /// The room left in each memory.
    room: Vec<f64>,
}

impl<'m> Pass<'m> {
    fn new(model: &'m Model, budget: f64) -> Pass<'m> {
        let copies = &model.copies;
        let mut room: Vec<f64> = copies.memories.iter().map(|m| m.room).collect();
        for v in model.value_ids() {
            if let Some(memory) = copies.kept[v]
                && !copies.rests(memory, v)
            {
                room[memory] -= model.bytes[v];
            }
        }
        Pass {
            model,
            budget,
            order: Vec::with_capacity(model.tasks as usize),
            level: 0.0,
            present: model.bytes.values().map(|_| false).collect(),
            holder: copies.given.clone(),
            read: model.bytes.values().map(|_| 0).collect(),
            idle: BinaryHeap::new(),
            room,
        }
    }

    fn next_reader(&self, v: ValueId) -> Option<TaskId> {
        self.model.consumers.of(v).get(self.read[v]).copied()
    }

    /// Sends values away until a task fits together with those of its inputs that come back.
    fn make_room(&mut self, t: TaskId) -> Option<()> {
        let m = self.model;
        let inputs = m.inputs.of(t).iter().map(|i| i.value);
        let coming: f64 = inputs
            .filter(|&v| !self.present[v])
            .map(|v| m.bytes[v])
            .sum();
        let most = self.budget - coming - m.grows[t].max(0.0);
        while self.level > most {
            let (reader, v) = self.idle.pop()?;
            if reader > t && self.present[v] && self.next_reader(v) == Some(reader) {
                self.send(v);
            }
        }
        Some(())
    }

    /// Sends a value to the memory for which its copies take least, if one may have it.
    fn send(&mut self, v: ValueId) {
        let copies = &self.model.copies;
        if !copies.may_move(v) {
            return;
        }
        let bytes = self.model.bytes[v];
        let needs = |k: usize| match copies.is_there(k, v) {
            true => (0.0, 0.0),
            false => (copies.out_seconds(k, v), bytes),
        };
        if self.holder[v].is_none() {
            let fitting = (0..self.room.len()).filter(|&k| needs(k).1 <= self.room[k].max(0.0));
            let seconds = |k: usize| needs(k).0 + copies.back_seconds(k, v);
            let best = fitting.min_by(|&a, &b| seconds(a).total_cmp(&seconds(b)));
            let Some(memory) = best else { return };
            self.room[memory] -= needs(memory).1;
            self.holder[v] = Some(memory);
        }
        self.present[v] = false;
        self.level -= bytes;
    }

    fn bring(&mut self, v: ValueId) -> Option<()> {
        self.order
            .push(self.model.copies.bringing(self.holder[v]?, v));
        self.present[v] = true;
        self.level += self.model.bytes[v];
        Some(())
    }

    /// Runs a task whose inputs are in memory.
    fn run(&mut self, t: TaskId) {
        let m = self.model;
        if m.has(t) {
            self.order.push(t);
        }
        for i in m.inputs.of(t) {
            self.read[i.value] += 1;
            self.keep(i.value);
        }
        for &v in m.outputs.of(t) {
            self.present[v] = true;
            self.level += m.bytes[v];
            self.keep(v);
        }
    }

    /// Keeps a value in memory if it is read again.
    fn keep(&mut self, v: ValueId) {
        match self.next_reader(v) {
            Some(reader) => self.idle.push((reader, v)),
            None => {
                let bytes = self.model.bytes[v];
                self.present[v] = false;
                self.level -= bytes;
                let copied = |&memory: &usize| !self.model.copies.is_there(memory, v);
                if let Some(memory) = self.holder[v].take_if(|memory| copied(memory)) {
                    self.room[memory] += bytes;
                }
            }
        }
    }
}
