//! When copies run, and how long a sequence with copies takes.
//!
//! A sequence says what is brought back and before which run at the latest. Bytes that the budget leaves over
//! are used to start copies back earlier, and to give bytes back later, when the copy out has ended.
//!
//! Seen backwards in time, a copy back is a copy out: its bytes are held until it has ended, and a run waits
//! if there is no room before. So copies back are placed by a pass from the end, which starts each as late as
//! it may without a wait, or else as early as there is room. A pass from the start follows the semantics of
//! [`scrimp_plan::plan`]. A copy out starts when its value has been made, or, to a memory that has no room for
//! that, when the value was touched for the last time before it leaves. Bytes are given back when the
//! copy has ended, or when there is no room, after waiting for it.

use std::collections::VecDeque;

use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::{Move, ValueId};

use crate::ids::Position;
use crate::model::Model;
use crate::search::state::State;

/// A copy back under way, seen from the end.
#[derive(Clone, Copy, Debug)]
struct Coming {
    done: f64,
    bytes: f64,
    /// Where the sequence has it, and before which its bytes can't be taken.
    at: Position,
    after: Position,
}

/// A copy back and the position before whose run it is issued.
#[derive(Clone, Copy, Debug)]
struct Issue {
    before: Position,
    at: Position,
}

/// A value whose bytes come back when its copies out have ended.
#[derive(Clone, Copy, Debug)]
struct Going {
    done: f64,
    bytes: f64,
    value: ValueId,
}

/// What one memory holds during the pass from the start.
#[derive(Clone, Debug, Default)]
struct Held {
    /// Bytes in list order, and the most of them.
    level: f64,
    peak: f64,
    /// Bytes taken and not yet counted as returned, the most of them at the start of a copy, and when others
    /// come back.
    taken: f64,
    most: f64,
    returns: VecDeque<(f64, f64)>,
    /// The time of the last copy's turn.
    turn: f64,
}

impl Held {
    /// Takes bytes; returns when they can be taken if at most `limit` may be.
    fn take(&mut self, bytes: f64, limit: f64) -> f64 {
        self.level += bytes;
        self.peak = self.peak.max(self.level);
        self.taken += bytes;
        while self.taken > limit
            && let Some((time, bytes)) = self.returns.pop_front()
        {
            self.taken -= bytes;
            self.turn = self.turn.max(time);
        }
        self.turn
    }

    /// Counts what has come back until a copy starts.
    fn start(&mut self, time: f64) {
        while let Some(&(back, bytes)) = self.returns.front()
            && back <= time
        {
            self.returns.pop_front();
            self.taken -= bytes;
        }
        self.most = self.most.max(self.taken);
    }
}

/// Times sequences of one model.
#[derive(Debug)]
pub(crate) struct Timing<'m> {
    model: &'m Model,
    budget: f64,
    coming: Vec<Coming>,
    /// By descending position.
    issues: Vec<Issue>,
    /// Values that are copied out and the last positions that touch their first instances, ascending.
    leaving: Vec<(Position, ValueId)>,
    going: Vec<Going>,
    /// Per value: the memories to which it is still to be sent, as bits; when its copies out end; when its latest
    /// run or copy back ends; and how often each memory will still bring it.
    to_send: PrimaryMap<ValueId, u64>,
    sent: PrimaryMap<ValueId, f64>,
    ready: PrimaryMap<ValueId, f64>,
    times: Vec<u32>,
    /// When each queue has done its copies so far.
    queues: Vec<f64>,
    held: Vec<Held>,
    /// The most bytes that each memory may hold.
    limits: Vec<f64>,
    /// The memories to which copies out start late, as bits.
    late: u64,
    /// Values that tasks make and that must end in a memory.
    stored: Vec<(usize, ValueId)>,
}

impl<'m> Timing<'m> {
    pub fn new(model: &'m Model, budget: f64) -> Timing<'m> {
        let copies = &model.copies;
        let of_values = |zero: f64| model.bytes.values().map(|_| zero).collect();
        let stored = model.value_ids().filter_map(|v| {
            let memory = copies.kept[v]?;
            copies.given[v].is_none().then_some((memory, v))
        });
        Timing {
            model,
            budget,
            coming: Vec::new(),
            issues: Vec::new(),
            leaving: Vec::new(),
            going: Vec::new(),
            to_send: model.bytes.values().map(|_| 0).collect(),
            sent: of_values(0.0),
            ready: of_values(0.0),
            times: vec![0; copies.tasks()],
            queues: vec![0.0; copies.queues],
            held: vec![Held::default(); copies.memories.len()],
            limits: vec![f64::INFINITY; copies.memories.len()],
            late: 0,
            stored: stored.collect(),
        }
    }

    /// Seconds of a sequence that fits, with its copies; infinite if a memory has no room for them.
    pub fn makespan(&mut self, state: &State<'m>) -> f64 {
        self.time(state, None)
    }

    /// The moves of a sequence that fits, with its copies.
    pub fn moves(&mut self, state: &State<'m>) -> Vec<Move> {
        let mut moves = Vec::new();
        self.time(state, Some(&mut moves));
        moves
    }

    fn time(&mut self, state: &State<'m>, mut moves: Option<&mut Vec<Move>>) -> f64 {
        self.limits.fill(f64::INFINITY);
        self.late = 0;
        let mut makespan = self.pass(state, moves.as_deref_mut());
        self.late = self.full();
        if self.late != 0 {
            makespan = self.pass(state, moves.as_deref_mut());
            if self.full() != 0 {
                return f64::INFINITY;
            }
        }
        if self.held.iter().all(|held| held.most <= held.peak) {
            return makespan;
        }
        // A copy into a memory waits for room there as if the memory had no more than the plan needs.
        for (limit, held) in self.limits.iter_mut().zip(&self.held) {
            *limit = held.peak;
        }
        self.pass(state, moves)
    }

    /// The memories that have no room for all copies, as bits.
    fn full(&self) -> u64 {
        let memories = self.model.copies.memories.iter().zip(&self.held);
        let full = memories.map(|(memory, held)| held.peak > memory.room + memory.resting);
        full.enumerate()
            .fold(0, |bits, (k, full)| bits | u64::from(full) << k)
    }

    /// Times the sequence once; memories hold at most `limits`.
    fn pass(&mut self, state: &State<'m>, moves: Option<&mut Vec<Move>>) -> f64 {
        self.backwards(state);
        let mut moves = moves;
        if let Some(moves) = &mut moves {
            moves.clear();
        }
        self.forwards(state, moves)
    }

    /// Decides where copies back are issued, and gathers which values leave where.
    fn backwards(&mut self, state: &State<'m>) {
        let m = self.model;
        let copies = &m.copies;
        self.queues.fill(0.0);
        self.sent.values_mut().for_each(|sent| *sent = 0.0);
        self.ready.values_mut().for_each(|ready| *ready = 0.0);
        self.issues.clear();
        self.leaving.clear();
        let (mut time, mut extra, mut soonest) = (0.0f64, 0.0, None);
        for p in Position::FIRST.until(state.end()).rev() {
            if soonest.is_some_and(|soonest| soonest >= p) {
                // These values leave here, so their bytes can't be taken any earlier.
                for k in (0..self.coming.len()).rev() {
                    if self.coming[k].after >= p {
                        extra -= self.issue(k, p + 1);
                    }
                }
                soonest = self.coming.iter().map(|c| c.after).max();
            }
            let level = state.mem()[p.index()];
            while let Some(&Coming { done, .. }) = self.coming.last()
                && (done <= time || level + extra > self.budget)
            {
                time = time.max(done);
                extra -= self.issue(self.coming.len() - 1, p + 1);
            }
            let task = state.task_of(state.run_at(p));
            time += m.cost[task];
            if let Some(v) = copies.passes(task) {
                let left = state.last_touch(v, state.next_write(v, p));
                self.leaving.extend(left.map(|left| (left, v)));
            }
            let Some((memory, v)) = needed(state, p) else {
                continue;
            };
            let queue = &mut self.queues[copies.memories[memory].in_queue];
            *queue = queue.max(time) + copies.back_seconds(memory, v);
            time += copies.back_drag(memory, v);
            let coming = Coming {
                done: *queue,
                bytes: m.bytes[v],
                at: p,
                after: state.last_event(v, p).unwrap_or(Position::FIRST),
            };
            soonest = soonest.max(Some(coming.after));
            extra += coming.bytes;
            let k = self.coming.partition_point(|c| c.done > coming.done);
            self.coming.insert(k, coming);
            self.times[copies.index(task)] += 1;
            if !copies.rests(memory, v) {
                self.send(state, memory, v);
            }
        }
        for k in 0..self.stored.len() {
            let (memory, v) = self.stored[k];
            self.send(state, memory, v);
        }
        self.leaving.sort_unstable();
    }

    /// Notes that a value is copied out; the copy reads its first instance.
    fn send(&mut self, state: &State<'m>, memory: usize, v: ValueId) {
        if self.to_send[v] == 0 {
            let left = state.first_left(v, state.end());
            self.leaving.extend(left.map(|left| (left, v)));
        }
        self.to_send[v] |= 1 << memory;
    }

    /// Lets a copy back be issued before the run at a position; returns its bytes.
    fn issue(&mut self, k: usize, before: Position) -> f64 {
        let Coming { at, bytes, .. } = self.coming.remove(k);
        self.issues.push(Issue { before, at });
        bytes
    }

    /// Follows the moves from the start; memories hold at most `limits`. Returns the makespan.
    fn forwards(&mut self, state: &State<'m>, moves: Option<&mut Vec<Move>>) -> f64 {
        let mut moves = moves;
        let mut tell = |made| {
            if let Some(moves) = &mut moves {
                moves.push(made);
            }
        };
        let m = self.model;
        let copies = &m.copies;
        let device = m.device;
        let release = |value| Move::Release { value, device };
        self.queues.fill(0.0);
        for (held, memory) in self.held.iter_mut().zip(&copies.memories) {
            held.returns.clear();
            *held = Held {
                level: memory.resting,
                peak: memory.resting,
                taken: memory.resting,
                returns: std::mem::take(&mut held.returns),
                ..Held::default()
            };
        }
        let (mut time, mut extra) = (0.0f64, 0.0);
        let (mut next_issue, mut next_leaving) = (self.issues.len(), 0);
        for p in Position::FIRST.until(state.end()) {
            let task = state.task_of(state.run_at(p));
            let first = next_issue;
            while next_issue > 0 && self.issues[next_issue - 1].before == p {
                next_issue -= 1;
                let Some((_, v)) = needed(state, self.issues[next_issue].at) else {
                    continue;
                };
                extra += m.bytes[v];
                // The value must have left before it comes back.
                if let Some(k) = self.going.iter().position(|g| g.value == v) {
                    (time, extra) = self.release(k, time, extra);
                    tell(release(v));
                }
            }
            if let Some((_, v)) = needed(state, p) {
                extra -= m.bytes[v];
            }
            // And before it is made again.
            for &v in m.outputs.of(task) {
                if let Some(k) = self.going.iter().position(|g| g.value == v) {
                    (time, extra) = self.release(k, time, extra);
                    tell(release(v));
                }
            }
            let level = state.mem()[p.index()];
            while let Some(&Going { done, value, .. }) = self.going.last()
                && (done <= time || level + extra > self.budget)
            {
                (time, extra) = self.release(self.going.len() - 1, time, extra);
                tell(release(value));
            }
            for k in (next_issue..first).rev() {
                let Some((memory, v)) = needed(state, self.issues[k].at) else {
                    continue;
                };
                let what = &copies.memories[memory];
                tell(Move::Copy {
                    value: v,
                    from: what.device,
                    to: device,
                });
                let queue = &mut self.queues[what.in_queue];
                let ready = queue.max(time).max(self.sent[v]) + copies.back_seconds(memory, v);
                *queue = ready;
                self.ready[v] = ready;
                time += copies.back_drag(memory, v);
                let left = &mut self.times[copies.index(copies.bringing(memory, v))];
                *left -= 1;
                if *left == 0 && copies.kept[v] != Some(memory) {
                    self.held[memory].level -= m.bytes[v];
                    self.held[memory].returns.push_back((ready, m.bytes[v]));
                }
            }
            // When the copies out begin to take from computing.
            let mut ran = time;
            if let Some(v) = copies.passes(task) {
                if let Some(memory) = copies.kept[v] {
                    // The queue takes the value as soon as it is there, whatever the device does.
                    tell(self.copy_out(memory, v));
                    time += copies.out_drag(memory, v);
                }
            } else {
                for i in m.inputs.of(task) {
                    time = time.max(self.ready[i.value]);
                    if i.overwritten {
                        time = time.max(self.sent[i.value]);
                    }
                }
                time += m.cost[task];
                ran = time;
                if m.has(task) {
                    tell(Move::Run { task, device });
                }
            }
            if copies.brought(task).is_none() {
                for &v in m.outputs.of(task) {
                    self.ready[v] = time;
                    // What is taken over where it is last touched can't leave later.
                    let late = match self.to_send[v] & self.late {
                        0 => 0,
                        late => state.first_left(v, state.end()).map_or(0, |_| late),
                    };
                    time += self.copies_out(v, !late, &mut tell);
                }
            }
            while let Some(&(touched, value)) = self.leaving.get(next_leaving)
                && touched == p
            {
                next_leaving += 1;
                time += self.copies_out(value, u64::MAX, &mut tell);
                let (done, bytes) = (self.sent[value], m.bytes[value]);
                if done > ran {
                    extra += bytes;
                    let k = self.going.partition_point(|g| g.done > done);
                    self.going.insert(k, Going { done, bytes, value });
                }
            }
        }
        while let Some(Going { value, .. }) = self.going.pop() {
            tell(release(value));
        }
        self.queues.iter().fold(time, |most, &end| most.max(end))
    }

    /// Copies a value to those of these memories to which it is still to be sent; returns the seconds that this takes
    /// from computing.
    fn copies_out(&mut self, v: ValueId, to: u64, tell: &mut impl FnMut(Move)) -> f64 {
        let mut lost = 0.0;
        let mut to = self.to_send[v] & to;
        self.to_send[v] &= !to;
        while to != 0 {
            let memory = to.trailing_zeros() as usize;
            to &= to - 1;
            tell(self.copy_out(memory, v));
            lost += self.model.copies.out_drag(memory, v);
        }
        lost
    }

    /// Copies a value to a memory.
    fn copy_out(&mut self, memory: usize, v: ValueId) -> Move {
        let copies = &self.model.copies;
        let what = &copies.memories[memory];
        let held = &mut self.held[memory];
        let turn = held.take(self.model.bytes[v], self.limits[memory]);
        let queue = &mut self.queues[what.out_queue];
        let start = queue.max(self.ready[v]).max(turn);
        held.start(start);
        *queue = start + copies.out_seconds(memory, v);
        self.sent[v] = self.sent[v].max(*queue);
        Move::Copy {
            value: v,
            from: self.model.device,
            to: what.device,
        }
    }

    /// Waits until a value has left; returns the time then, and the extra bytes without it.
    fn release(&mut self, k: usize, time: f64, extra: f64) -> (f64, f64) {
        let Going { done, bytes, .. } = self.going.remove(k);
        (time.max(done), extra - bytes)
    }
}

/// What the run at a position brings, and from where. A copy back that serves no use before the next one isn't
/// made.
fn needed(state: &State<'_>, p: Position) -> Option<(usize, ValueId)> {
    let brought = state.model.copies.brought(state.task_of(state.run_at(p)))?;
    state.needed_from(brought.1, p + 1).then_some(brought)
}
