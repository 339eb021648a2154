//! Carrying out an eviction: runs a producer again with what it needs, and merges and drops the runs that
//! this makes useless.

use scrimp_plan::{TaskId, ValueId};

use crate::ids::{Position, Run};
use crate::search::price::{Limit, Pricing};
use crate::search::repair::{Eviction, Repairer, VISITS};
use crate::search::state::State;

/// How deep producers of producers are run again for one eviction.
const DEPTH: u32 = 60;
/// The most edits of the sequence that one eviction makes.
const EDITS: usize = 300;

impl<'m> Repairer<'m> {
    /// Tries an eviction. If it can't be done, returns false, and the caller must undo the changes so far.
    pub(super) fn apply(&self, state: &mut State<'m>, eviction: Eviction) -> bool {
        match eviction {
            Eviction::Fetch {
                value,
                bring,
                before,
            } => {
                if !state.can_insert(bring, before) {
                    return false;
                }
                state.insert(bring, before);
                self.drop_useless(state, self.model.producer[value]);
                true
            }
            Eviction::Rerun { task, before } => {
                let anchor = state.run_at(before);
                let until = state.mark() + EDITS;
                let ok = self.rerun(state, task, anchor, DEPTH, until);
                if ok {
                    self.drop_useless(state, task);
                }
                ok
            }
            Eviction::Postpone { from, to } => self.postpone(state, self.model, from, to),
            Eviction::Advance { from, to } => {
                let (run, before) = (state.run_at(from), state.run_at(to));
                state.shift(run, before).is_some()
            }
        }
    }

    /// Runs `t` just before the run `anchor`, after making again whatever inputs it needs.
    fn rerun(
        &self,
        state: &mut State<'m>,
        t: TaskId,
        anchor: Run,
        depth: u32,
        until: usize,
    ) -> bool {
        let m = self.model;
        if !self.may(t, state.pos(anchor)) || state.mark() > until {
            return false;
        }
        for i in m.inputs.of(t) {
            let p = state.pos(anchor);
            let fetch = self.fetch(state, i.value, p);
            let again = match state.around(i.value, p) {
                (None, _) => true,
                (Some(_), needed) if depth == 0 || needed => false,
                (Some(last), _) => {
                    let keep = m.bytes[i.value] * self.crowded(last + 1, p + 1) * self.price;
                    let make = m.producer[i.value];
                    let fetched = fetch.is_some_and(|(_, seconds)| seconds < keep);
                    fetched
                        || keep > m.cost[make] && self.may(make, p) && {
                            let mut pricing = Pricing::of(VISITS);
                            let limit = Limit {
                                per_second: 1.0,
                                per_area: self.price,
                                most: keep - m.cost[make],
                            };
                            self.inputs_price(state, make, p, &mut pricing, limit)
                                .is_some()
                        }
                }
            };
            if !again {
                continue;
            }
            let make = match fetch {
                Some((task, seconds)) if self.cheaper_than_making(state, i.value, p, seconds) => {
                    task
                }
                _ => m.producer[i.value],
            };
            if depth == 0 || !self.rerun(state, make, anchor, depth - 1, until) {
                return false;
            }
        }
        let p = state.pos(anchor);
        if !state.can_insert(t, p) {
            return false;
        }
        let run = state.insert(t, p);
        self.merge_next(state, t, state.pos(run));
        true
    }

    /// Whether these seconds are fewer than those of making a value again at `p`.
    fn cheaper_than_making(
        &self,
        state: &State<'m>,
        v: ValueId,
        p: Position,
        seconds: f64,
    ) -> bool {
        let m = self.model;
        let make = m.producer[v];
        if !self.may(make, p) || seconds <= m.cost[make] {
            return true;
        }
        let mut pricing = Pricing::of(VISITS);
        let limit = Limit {
            per_second: 1.0,
            per_area: self.price,
            most: seconds - m.cost[make],
        };
        self.inputs_price(state, make, p, &mut pricing, limit)
            .is_none()
    }

    /// The task that brings a value to `p` from the memory from which that is cheapest, and the price of its
    /// copies in seconds; `None` if no memory can have the value.
    pub(super) fn fetch(
        &self,
        state: &State<'m>,
        v: ValueId,
        p: Position,
    ) -> Option<(TaskId, f64)> {
        let copies = &self.model.copies;
        if !copies.may_move(v) {
            return None;
        }
        let priced = (0..copies.memories.len()).filter_map(|memory| {
            if !state.may_bring(copies.bringing(memory, v), p) {
                return None;
            }
            let mut seconds = copies.back_seconds(memory, v);
            if !copies.is_there(memory, v) && !state.is_brought(memory, v) {
                seconds += copies.out_seconds(memory, v);
            }
            self.rooms
                .has(state, memory, v, p)
                .then_some((copies.bringing(memory, v), seconds * self.copying))
        });
        priced.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Removes the next run of `t` after the one at `p` if keeping the value until then is cheaper. Values in
    /// a chain of overwrites are left alone, because each such use needs its own run.
    fn merge_next(&self, state: &mut State<'m>, t: TaskId, p: Position) {
        let m = self.model;
        let next = state.next_run(t, p + 1);
        if m.copies.brought(t).is_some() {
            return;
        }
        let passing = m
            .outputs
            .of(t)
            .iter()
            .any(|&v| m.overwriter(v).is_some_and(|by| m.rerunnable[by]));
        if passing || next >= state.end() {
            return;
        }
        let again = state.run_at(next);
        if !self.may_drop(state, again) || !state.can_remove(again) {
            return;
        }
        let mut area = 0.0;
        for &v in m.outputs.of(t) {
            if state.needed_from(v, next + 1) {
                let last = state.last_use(v, p, next);
                area += m.bytes[v] * self.crowded(last + 1, next);
            }
        }
        if area * self.price <= m.cost[t] {
            state.remove(again);
        }
    }

    /// Whether a run needn't be there for its task or for copies of what it makes.
    pub(super) fn may_drop(&self, state: &State<'m>, r: Run) -> bool {
        let t = state.task_of(r);
        self.model.copies.brought(t).is_some()
            || state.runs(t).len() > 1 && (state.runs(t)[0] != r || self.free && !state.is_sent(t))
    }

    /// Removes runs of a task that serve no use, copies back of what it makes that serve none, and then such
    /// runs of its inputs' producers.
    pub fn drop_useless(&self, state: &mut State<'m>, t: TaskId) {
        let m = self.model;
        for memory in 0..m.copies.memories.len() {
            for &v in m.outputs.of(t) {
                self.drop_useless_runs(state, m.copies.bringing(memory, v));
            }
        }
        if m.has(t) {
            self.drop_useless_runs(state, t);
        }
    }

    fn drop_useless_runs(&self, state: &mut State<'m>, t: TaskId) {
        let m = self.model;
        let mut k = state.runs(t).len();
        while k > 0 {
            k -= 1;
            let run = state.runs(t)[k];
            if self.may_drop(state, run) && state.serves_nothing(run) {
                state.remove(run);
                for i in m.inputs.of(t) {
                    self.drop_useless(state, m.producer[i.value]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
