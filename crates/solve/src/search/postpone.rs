//! Postponing: moves a run, with all runs that depend on it, to a place with room for it.
//!
//! A typical case is a weight gradient that is far larger than its inputs, with the update that consumes it.
//! Made early, the gradient adds to all activations; made late, it costs nothing. Neither run can move alone:
//! the gradient must be made before its update, and the update may run only once.

use cranelift_entity::EntityRef;
use scrimp_plan::{TaskId, ValueId};

use crate::ids::{Position, Run};
use crate::model::Model;
use crate::random::Random;
use crate::search::repair::{Eviction, Repairer};
use crate::search::state::State;

/// Most runs that move together.
const GROUP: usize = 12;
/// The number of values live at a peak whose producers are considered, largest first.
const LARGEST: usize = 6;
/// The number of positions in which the runs of a group are sought.
const REACH: u32 = 2000;

impl<'m> Repairer<'m> {
    /// Gathers candidates that move the run at the peak, or the producers of the largest values there, to a
    /// later position with room.
    pub(super) fn gather_postponed(
        &mut self,
        state: &State<'m>,
        model: &Model,
        peak: Position,
        noise: f64,
        rng: &mut Random,
    ) {
        let mut largest: Vec<(f64, Position)> = Vec::with_capacity(LARGEST + 1);
        for v in model.value_ids() {
            let Some(start) = state.written(v, peak) else {
                continue;
            };
            let bytes = model.bytes[v];
            if start == Position::FIRST || bytes <= 0.0 || !state.needed_from(v, peak) {
                continue;
            }
            let at = largest.partition_point(|&(b, _)| b >= bytes);
            if at < LARGEST {
                largest.insert(at, (bytes, start));
                largest.truncate(LARGEST);
            }
        }
        let froms = largest.into_iter().map(|(_, start)| start);
        let mut done = Vec::with_capacity(LARGEST + 1);
        for from in froms.chain([peak]) {
            if !done.contains(&from) {
                done.push(from);
                self.gather_postponed_run(state, model, from, peak, 1.0 + noise * rng.unit());
            }
        }
    }

    fn gather_postponed_run(
        &mut self,
        state: &State<'m>,
        model: &Model,
        from: Position,
        peak: Position,
        noise: f64,
    ) {
        let task = state.task_of(state.run_at(from));
        if !model.has(task) {
            return;
        }
        let Some(to) = self.room_for(state, model, task, peak) else {
            return;
        };
        self.work += u64::from(to - from);
        let Some(group) = group(state, model, from, to) else {
            return;
        };
        let net = self.net_of(state, model, &group, to);
        if net > 0.0 {
            self.offer(net * noise, Eviction::Postpone { from, to });
        }
    }

    /// The first position after the peak where the task's outputs and workspace would fit, or else the one
    /// with the fewest bytes in use.
    fn room_for(
        &self,
        state: &State<'m>,
        model: &Model,
        task: TaskId,
        peak: Position,
    ) -> Option<Position> {
        let last = state.last().min(peak + REACH);
        let grows = model.grows[task];
        let mem = state.mem();
        let before = |q: Position| mem[q.index() - 1];
        let places = (peak + 2).until(last + 1);
        let fits = places.clone().find(|&q| before(q) + grows <= self.budget);
        fits.or_else(|| places.min_by(|&a, &b| before(a).total_cmp(&before(b))))
    }

    /// The bytes × positions that moving the group roughly takes off the excess: what its outputs no longer
    /// hold, less what its inputs hold for longer.
    fn net_of(&self, state: &State<'m>, model: &Model, group: &[Run], to: Position) -> f64 {
        let mut net = 0.0;
        for &run in group {
            let (t, p) = (state.task_of(run), state.pos(run));
            for &v in model.outputs.of(t) {
                let until = state.next_write(v, p + 1);
                let last = state.last_use(v, p, until).min(to - 1);
                net += self.relief(model.bytes[v], p, last + 1);
            }
            for i in model.inputs.of(t) {
                let start = state.written(i.value, p);
                let inside = start.is_some_and(|s| group.contains(&state.run_at(s)));
                if inside || state.needed_from(i.value, to) {
                    continue;
                }
                let until = state.next_write(i.value, p + 1);
                let last = state.last_use(i.value, p, until.min(to));
                net -= model.bytes[i.value] * self.crowded(last + 1, to);
            }
        }
        net
    }

    /// Carries out [`Eviction::Postpone`]; returns false if it can't be done.
    pub(super) fn postpone(
        &self,
        state: &mut State<'m>,
        model: &Model,
        from: Position,
        to: Position,
    ) -> bool {
        let Some(group) = group(state, model, from, to) else {
            return false;
        };
        let mut anchor = state.run_at(to);
        // Runs move from the last to the first, so that none ever runs before its inputs.
        for &run in group.iter().rev() {
            let Some(moved) = state.shift(run, anchor) else {
                return false;
            };
            anchor = moved;
        }
        true
    }
}

/// The run at `from` and the runs before `to` that must stay behind it, by position: they read what
/// the group writes, overwrite what it reads, or repeat one of its tasks. `None` if there are too many.
fn group(state: &State<'_>, model: &Model, from: Position, to: Position) -> Option<Vec<Run>> {
    let mut group = vec![state.run_at(from)];
    let mut reads: Vec<ValueId> = Vec::new();
    let first = state.task_of(group[0]);
    reads.extend(model.inputs.of(first).iter().map(|i| i.value));
    for p in (from + 1).until(to) {
        let run = state.run_at(p);
        let t = state.task_of(run);
        // What a run of the group makes may only be sent away, and so be brought, after it.
        let brings = model.copies.brought(t);
        let depends = group.iter().any(|&g| state.task_of(g) == t)
            || brings
                .is_some_and(|(_, v)| group.iter().any(|&g| state.task_of(g) == model.producer[v]))
            || model.inputs.of(t).iter().any(|i| {
                let start = state.written(i.value, p);
                start.is_some_and(|s| s >= from && group.contains(&state.run_at(s)))
                    || (i.overwritten && reads.contains(&i.value))
            });
        if depends {
            if !model.has(t) || group.len() == GROUP {
                return None;
            }
            group.push(run);
            reads.extend(model.inputs.of(t).iter().map(|i| i.value));
        }
    }
    Some(group)
}
