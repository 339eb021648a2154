//! Carrying out an eviction: runs a producer again with what it needs, and merges and drops the runs that
//! this makes useless.

use scrimp_plan::TaskId;

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
                let run = state.run_at(from);
                let task = state.task_of(run);
                state.remove(run);
                let ok = state.can_insert(task, to);
                if ok {
                    state.insert(task, to);
                }
                ok
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
            let again = match state.around(i.value, p) {
                (None, _) => true,
                (Some(_), needed) if depth == 0 || needed => false,
                (Some(last), _) => {
                    let keep = m.bytes[i.value] * self.crowded(last + 1, p + 1) * self.price;
                    let make = m.producer[i.value];
                    keep > m.cost[make] && self.may(make, p) && {
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
            if again
                && (depth == 0 || !self.rerun(state, m.producer[i.value], anchor, depth - 1, until))
            {
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

    /// Removes the next run of `t` after the one at `p` if keeping the value until then is cheaper. Values in
    /// a chain of overwrites are left alone, because each such use needs its own run.
    fn merge_next(&self, state: &mut State<'m>, t: TaskId, p: Position) {
        let m = self.model;
        let next = state.next_run(t, p + 1);
        let passing = m
            .outputs
            .of(t)
            .iter()
            .any(|&v| m.overwriter(v).is_some_and(|by| m.rerunnable[by]));
        if passing || next >= state.end() {
            return;
        }
        let again = state.run_at(next);
        if (!self.free && state.runs(t)[0] == again) || !state.can_remove(again) {
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

    /// Removes runs of a task that serve no use, and then such runs of its inputs' producers.
    pub fn drop_useless(&self, state: &mut State<'m>, t: TaskId) {
        let m = self.model;
        let mut k = state.runs(t).len();
        while k > 0 {
            k -= 1;
            if state.runs(t).len() < 2 {
                return;
            }
            let run = state.runs(t)[k];
            if (k > 0 || self.free) && state.serves_nothing(run) {
                state.remove(run);
                for i in m.inputs.of(t) {
                    let make = m.producer[i.value];
                    if m.has(make) {
                        self.drop_useless(state, make);
                    }
                }
            }
        }
    }
}
