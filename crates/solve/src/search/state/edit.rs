//! Edits of a sequence: runs are inserted, removed and shifted, and edits are undone.

use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::TaskId;

use crate::ids::{Position, Run};
use crate::search::event::{Event, insert_event};
use crate::search::state::State;

/// With more edits to undo it is quicker to start over.
const FEW_EDITS: usize = 200;

/// Runs that are less than one part in this many of all are looked up one by one.
const HALF: usize = 2;

/// A change, recorded so that it can be undone.
#[derive(Clone, Copy, Debug)]
pub(super) enum Edit {
    Inserted { run: Run, at: Position },
    Removed { task: TaskId, at: Position },
}

impl State<'_> {
    /// Whether a run of `t` at `p` finds its inputs and leaves later uses what they need.
    pub fn can_insert(&self, t: TaskId, p: Position) -> bool {
        self.may_bring(t, p)
            && self.model.inputs.of(t).iter().all(|i| {
                let (last, needed) = self.around(i.value, p);
                last.is_some() && !(i.overwritten && needed)
            })
    }

    /// Runs `t` at position `p`, before the run that is there now. The caller has checked
    /// [`Self::can_insert`].
    pub fn insert(&mut self, t: TaskId, p: Position) -> Run {
        let r = self.do_insert(t, p);
        self.log.push(Edit::Inserted { run: r, at: p });
        r
    }

    fn do_insert(&mut self, t: TaskId, p: Position) -> Run {
        let m = self.model;
        // The bytes in use between the runs at p − 1 and at p.
        let before = self.task_of(self.run_at(p));
        let mut level = self.mem[p.index()] - m.grows[before];
        // While a run is on the move, the run at p may take over a buffer that isn't there.
        for i in m.inputs.of(before) {
            if i.overwritten && self.written(i.value, p).is_none() {
                level -= m.bytes[i.value];
            }
        }
        for i in m.inputs.of(t) {
            let b = m.bytes[i.value];
            let (last, needed) = self.around(i.value, p);
            if !needed {
                self.add(last.unwrap_or(p) + 1, p, b);
                level += if i.overwritten { 0.0 } else { b };
            } else if i.overwritten {
                level -= b;
            }
        }
        for &v in m.outputs.of(t) {
            let b = m.bytes[v];
            let last = self.last_use(v, p - 1, self.next_write(v, p));
            if last < p {
                level += b;
            } else if let Some(prev) = self.written(v, p) {
                // The value lived across p from the previous run on; now its life starts here.
                let from = self.last_use(v, prev, p);
                self.add(from + 1, p, -b);
            } else {
                let end = self.end_of_use(v, last);
                self.add(p, end + 1, b);
                level += b;
            }
        }
        level += m.workspace[t];
        let r = self.spare.pop().unwrap_or_else(|| {
            self.pos.push(p);
            self.task.push(t)
        });
        self.task[r] = t;
        self.seq.insert(p.index(), r);
        self.mem.insert(p.index(), level);
        self.renumber(p, |at| at + 1);
        self.pos[r] = p;
        self.count_copies(t, 1.0);
        insert_sorted(&mut self.runs[t], r, &self.pos);
        for i in m.inputs.of(t) {
            insert_event(&mut self.events[i.value], Event::read(r), &self.pos);
        }
        for &v in m.outputs.of(t) {
            insert_event(&mut self.events[v], Event::write(r), &self.pos);
        }
        self.cost += m.cost[t];
        r
    }

    /// Whether the previous run can serve the uses that this run serves.
    pub fn can_remove(&self, r: Run) -> bool {
        let t = self.task_of(r);
        let p = self.pos(r);
        self.model.outputs.of(t).iter().all(|&v| {
            let next = self.next_use(v, p + 1);
            next >= self.end() || next > self.next_write(v, p + 1) || self.available(v, p)
        })
    }

    /// Removes a run. The caller has checked [`Self::can_remove`] or inserts the task again.
    pub fn remove(&mut self, r: Run) {
        self.log.push(Edit::Removed {
            task: self.task_of(r),
            at: self.pos(r),
        });
        self.do_remove(r);
    }

    fn do_remove(&mut self, r: Run) {
        let m = self.model;
        let (t, p) = (self.task_of(r), self.pos(r));
        for i in m.inputs.of(t) {
            let b = m.bytes[i.value];
            if !self.needed_from(i.value, p + 1) {
                let (last, _) = self.around(i.value, p);
                self.add(last.unwrap_or(p) + 1, p, -b);
            }
        }
        for &v in m.outputs.of(t) {
            let b = m.bytes[v];
            let last = self.last_use(v, p, self.next_write(v, p + 1));
            if last == p {
                continue;
            }
            if let Some(prev) = self.written(v, p) {
                let from = self.last_use(v, prev, p);
                self.add(from + 1, p, b);
            } else {
                let end = self.end_of_use(v, last);
                self.add(p, end + 1, -b);
            }
        }
        self.runs[t].retain(|&x| x != r);
        self.count_copies(t, -1.0);
        for i in m.inputs.of(t) {
            self.events[i.value].retain(|&e| e.run() != r);
        }
        for &v in m.outputs.of(t) {
            self.events[v].retain(|&e| e.run() != r);
        }
        self.seq.remove(p.index());
        self.mem.remove(p.index());
        self.renumber(p, |at| at - 1);
        self.spare.push(r);
        self.cost -= m.cost[t];
    }

    /// Adds to the profile on `[from, to)`.
    #[inline]
    fn add(&mut self, from: Position, to: Position, bytes: f64) {
        if let Some(stretch) = self.mem.get_mut(from.index()..to.index()) {
            stretch.iter_mut().for_each(|m| *m += bytes);
        }
    }

    /// Moves the places of all runs from `from` on. One pass over all places, which the compiler makes vectors of, takes less
    /// than looking up the later half of the runs.
    #[inline]
    fn renumber(&mut self, from: Position, moved: impl Fn(Position) -> Position) {
        let later = &self.seq[from.index()..];
        if later.len() * HALF < self.pos.len() {
            for (k, &r) in later.iter().enumerate() {
                self.pos[r] = from + k as u32;
            }
            return;
        }
        for at in self.pos.values_mut() {
            *at = if *at >= from { moved(*at) } else { *at };
        }
    }

    /// Moves a run to just before another one. If a use would lose its value, returns `None`, and the caller
    /// must undo the changes so far.
    pub fn shift(&mut self, r: Run, before: Run) -> Option<Run> {
        let t = self.task_of(r);
        self.remove(r);
        let p = self.pos(before);
        let found = self.can_insert(t, p).then(|| self.insert(t, p));
        let outputs = self.model.outputs.of(t);
        found.filter(|_| outputs.iter().all(|&v| self.is_served(v)))
    }

    /// A point to which [`Self::undo_to`] can return.
    pub fn mark(&self) -> usize {
        self.log.len()
    }

    /// Undoes everything since a mark.
    pub fn undo_to(&mut self, mark: usize) {
        while self.log.len() > mark {
            match self.log.pop() {
                Some(Edit::Inserted { run, .. }) => self.do_remove(run),
                Some(Edit::Removed { task, at }) => {
                    self.do_insert(task, at);
                }
                None => {}
            }
        }
    }

    /// Undoes everything that the log has.
    pub fn restore(&mut self) {
        if self.log.len() <= FEW_EDITS {
            self.undo_to(0);
            return;
        }
        let mut order = self.order();
        self.log.drain(..).rev().for_each(|edit| match edit {
            Edit::Inserted { at, .. } => drop(order.remove(at.index() - 1)),
            Edit::Removed { task, at } => order.insert(at.index() - 1, task),
        });
        self.reset(&order);
    }

    /// Forgets the log, so that what was done stays.
    pub fn commit(&mut self) {
        self.log.clear();
    }
}

#[inline]
fn insert_sorted(list: &mut Vec<Run>, r: Run, pos: &PrimaryMap<Run, Position>) {
    let at = list
        .iter()
        .rposition(|&x| pos[x] < pos[r])
        .map_or(0, |i| i + 1);
    list.insert(at, r);
}
