//! A sequence of runs and its memory profile, kept up to date move by move.
//!
//! The sequence determines everything: each use is served by the latest run of its producer, and a value
//! lives from that run to the last use that it serves. Positions are indices into the sequence. Position 0 is
//! the run of [`Model::start`], the last position that of [`Model::end`]. Inserting or removing a run changes
//! the profile only on a few stretches; shifting the arrays after it is a memory move.

use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::{TaskId, ValueId};

use crate::ids::{Position, Run};
use crate::model::Model;
use crate::search::event::Event;

mod edit;

use edit::Edit;

/// The stretch in which a value waits for its next use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Idle {
    /// Where the value was written, where it was last touched, and where it is used next.
    pub start: Position,
    pub last: Position,
    pub next: Position,
}

/// A sequence of runs with its profile and cost.
#[derive(Clone, Debug)]
pub(crate) struct State<'m> {
    pub model: &'m Model,
    /// Runs by position.
    seq: Vec<Run>,
    /// Bytes in use during each position, including workspace but not resident bytes.
    mem: Vec<f64>,
    /// The task of each run.
    task: PrimaryMap<Run, TaskId>,
    pos: PrimaryMap<Run, Position>,
    /// Unused names of runs, as a stack, so that undoing gives the same names back.
    spare: Vec<Run>,
    /// Per task, its runs by position.
    runs: PrimaryMap<TaskId, Vec<Run>>,
    /// Per value, the runs that write and read it, by position.
    events: PrimaryMap<ValueId, Vec<Event>>,
    cost: f64,
    /// Seconds of all copies, and the bytes that are sent to each memory.
    copying: f64,
    sent: Vec<f64>,
    log: Vec<Edit>,
}

impl<'m> State<'m> {
    /// The state of a sequence in which every task's inputs are in memory when it runs.
    pub fn new(model: &'m Model, order: &[TaskId]) -> State<'m> {
        let mut state = State {
            model,
            seq: Vec::new(),
            mem: Vec::new(),
            task: PrimaryMap::new(),
            pos: PrimaryMap::new(),
            spare: Vec::new(),
            runs: model.cost.values().map(|_| Vec::new()).collect(),
            events: model.bytes.values().map(|_| Vec::new()).collect(),
            cost: 0.0,
            copying: 0.0,
            sent: Vec::new(),
            log: Vec::new(),
        };
        state.reset(order);
        state
    }

    /// Starts over from another sequence.
    pub fn reset(&mut self, order: &[TaskId]) {
        let m = self.model;
        let len = order.len() + 2;
        self.runs.values_mut().for_each(Vec::clear);
        self.events.values_mut().for_each(Vec::clear);
        self.spare.clear();
        self.log.clear();
        self.seq = (0..len).map(Run::new).collect();
        self.pos = (0..len).map(Position::new).collect();
        self.task = std::iter::once(m.start())
            .chain(order.iter().copied())
            .chain([m.end()])
            .collect();
        self.cost = order.iter().map(|&t| m.cost[t]).sum();
        (self.copying, self.sent) = (0.0, vec![0.0; m.copies.memories.len()]);
        self.mem = vec![0.0; len];
        let mut change = vec![0.0; len + 1];
        for r in (0..len).map(Run::new) {
            let t = self.task[r];
            self.count_copies(t, 1.0);
            self.runs[t].push(r);
            for i in m.inputs.of(t) {
                self.events[i.value].push(Event::read(r));
            }
            for &v in m.outputs.of(t) {
                self.events[v].push(Event::write(r));
            }
            change[r.index()] += m.workspace[t];
            change[r.index() + 1] -= m.workspace[t];
        }
        // Each stretch of events from one write until just before the next is one life.
        for (v, events) in self.events.iter() {
            for life in events.chunk_by(|_, next| !next.writes()) {
                let last = life[life.len() - 1];
                let end = self.pos(last.run()) + u32::from(!self.overwrites(v, last));
                change[self.pos(life[0].run()).index()] += m.bytes[v];
                change[end.index()] -= m.bytes[v];
            }
        }
        let mut level = 0.0;
        for (mem, change) in self.mem.iter_mut().zip(&change) {
            level += change;
            *mem = level;
        }
    }

    /// The number of positions, including those of `start` and `end`.
    pub fn len(&self) -> usize {
        self.seq.len()
    }

    /// The position after the last one.
    pub fn end(&self) -> Position {
        Position::new(self.seq.len())
    }

    /// The last position: that of [`Model::end`].
    pub fn last(&self) -> Position {
        Position::new(self.seq.len() - 1)
    }

    /// Bytes in use by position.
    pub fn mem(&self) -> &[f64] {
        &self.mem
    }

    /// The most bytes in use at any position.
    pub fn peak(&self) -> f64 {
        self.mem.iter().fold(0.0, |a, &m| a.max(m))
    }

    /// Seconds of all runs.
    pub fn cost(&self) -> f64 {
        self.cost
    }

    /// Seconds of all copies.
    pub fn copying(&self) -> f64 {
        self.copying
    }

    /// The bytes that are sent to a memory, all together.
    pub fn sent(&self, memory: usize) -> f64 {
        self.sent[memory]
    }

    /// Whether a value is brought from a memory.
    #[inline]
    pub fn is_brought(&self, memory: usize, v: ValueId) -> bool {
        !self.runs[self.model.copies.bringing(memory, v)].is_empty()
    }

    /// Whether some output of a task is brought from a memory, so that its first run must come before.
    pub fn is_sent(&self, t: TaskId) -> bool {
        let memories = 0..self.model.copies.memories.len();
        let outputs = self.model.outputs.of(t);
        outputs
            .iter()
            .any(|&v| memories.clone().any(|m| self.is_brought(m, v)))
    }

    /// Counts (1) or discounts (-1) what a task that brings a value copies; the first one copies it out, too.
    #[inline]
    fn count_copies(&mut self, t: TaskId, sign: f64) {
        let Some((memory, v)) = self.model.copies.brought(t) else {
            return;
        };
        let copies = &self.model.copies;
        self.copying += sign * copies.back_seconds(memory, v);
        if self.runs[t].is_empty() && !copies.is_there(memory, v) {
            self.copying += sign * copies.out_seconds(memory, v);
            self.sent[memory] += sign * self.model.bytes[v];
        }
    }

    /// The tasks in the order they run.
    pub fn order(&self) -> Vec<TaskId> {
        self.seq[1..self.len() - 1]
            .iter()
            .map(|&r| self.task[r])
            .collect()
    }

    #[inline]
    pub fn run_at(&self, p: Position) -> Run {
        self.seq[p.index()]
    }

    #[inline]
    pub fn task_of(&self, r: Run) -> TaskId {
        self.task[r]
    }

    #[inline]
    pub fn pos(&self, r: Run) -> Position {
        self.pos[r]
    }

    /// Whether a run is still in the sequence.
    #[inline]
    pub fn has(&self, r: Run) -> bool {
        self.pos(r) < self.end() && self.run_at(self.pos(r)) == r
    }

    /// The runs of a task by position.
    #[inline]
    pub fn runs(&self, t: TaskId) -> &[Run] {
        &self.runs[t]
    }

    /// The position of the latest run of a task before a position.
    #[inline]
    pub fn latest(&self, t: TaskId, before: Position) -> Option<Position> {
        self.runs[t]
            .iter()
            .rev()
            .map(|&r| self.pos(r))
            .find(|&p| p < before)
    }

    /// The position of the first run of a task at or after a position; the length if there is none.
    #[inline]
    pub fn next_run(&self, t: TaskId, from: Position) -> Position {
        let runs = &self.runs[t];
        let mut found = self.end();
        for &r in runs.iter().rev() {
            let p = self.pos(r);
            if p < from {
                break;
            }
            found = p;
        }
        found
    }

    /// The position of the latest write of a value before a position.
    #[inline]
    pub fn written(&self, v: ValueId, before: Position) -> Option<Position> {
        if self.model.copies.none() {
            return self.latest(self.model.producer[v], before);
        }
        let k = self.events_before(v, before);
        let writes = self.events[v][..k].iter().rev().find(|e| e.writes());
        writes.map(|e| self.pos(e.run()))
    }

    /// The position of the first write of a value at or after a position; the length if there is none.
    #[inline]
    pub fn next_write(&self, v: ValueId, from: Position) -> Position {
        if self.model.copies.none() {
            return self.next_run(self.model.producer[v], from);
        }
        let k = self.events_before(v, from);
        let mut writes = self.events[v][k..].iter().filter(|e| e.writes());
        writes.next().map_or(self.end(), |e| self.pos(e.run()))
    }

    /// The position of the first event of a value.
    #[inline]
    pub fn events_begin(&self, v: ValueId) -> Option<Position> {
        self.events[v].first().map(|e| self.pos(e.run()))
    }

    /// The last position before `p` that touches the first instance of a value, unless its buffer is taken over
    /// there.
    pub fn first_left(&self, v: ValueId, p: Position) -> Option<Position> {
        let second = self.events[v].iter().skip(1).find(|e| e.writes());
        self.last_touch(v, second.map_or(p, |e| self.pos(e.run()).min(p)))
    }

    /// The last position before `p` that touches a value, unless its buffer is taken over there.
    #[inline]
    pub fn last_touch(&self, v: ValueId, p: Position) -> Option<Position> {
        let k = self.events_before(v, p);
        let last = k.checked_sub(1).map(|k| self.events[v][k]);
        last.filter(|&e| !self.overwrites(v, e))
            .map(|e| self.pos(e.run()))
    }

    /// The last position before `p` at which a value is written, read or overwritten.
    pub fn last_event(&self, v: ValueId, p: Position) -> Option<Position> {
        let last = self.events_before(v, p).checked_sub(1)?;
        Some(self.pos(self.events[v][last].run()))
    }

    /// The number of events of a value before a position.
    #[inline]
    fn events_before(&self, v: ValueId, p: Position) -> usize {
        let events = &self.events[v];
        if events.len() > 16 {
            return events.partition_point(|e| self.pos(e.run()) < p);
        }
        let later = events.iter().rev();
        events.len() - later.take_while(|e| self.pos(e.run()) >= p).count()
    }

    /// The position of the last use of `v` in `(from, before)`; `from` if there is none.
    #[inline]
    pub fn last_use(&self, v: ValueId, from: Position, before: Position) -> Position {
        let k = self.events_before(v, before);
        let earlier = self.events[v][..k].iter().rev();
        let uses = earlier.filter(|e| !e.writes());
        uses.map(|e| self.pos(e.run()))
            .next()
            .map_or(from, |p| p.max(from))
    }

    /// The position of the first use of `v` at or after a position; the length if there is none.
    #[inline]
    pub fn next_use(&self, v: ValueId, from: Position) -> Position {
        let k = self.events_before(v, from);
        let mut uses = self.events[v][k..].iter().filter(|e| !e.writes());
        uses.next().map_or(self.end(), |e| self.pos(e.run()))
    }

    /// Whether the reader takes over the value's buffer for its output.
    #[inline]
    fn overwrites(&self, v: ValueId, event: Event) -> bool {
        !event.writes() && self.model.overwrites(self.task_of(event.run()), v)
    }

    /// The last position at which `v` holds its bytes if the use at `p` is its last.
    #[inline]
    fn end_of_use(&self, v: ValueId, p: Position) -> Position {
        p - u32::from(self.model.overwrites(self.task_of(self.run_at(p)), v))
    }

    /// The last position before `p` that touches the value present just before `p`, and whether the value's
    /// next event is a use. `None` if the value isn't present or has been overwritten.
    #[inline]
    pub fn around(&self, v: ValueId, p: Position) -> (Option<Position>, bool) {
        let k = self.events_before(v, p);
        let events = &self.events[v];
        let needed = events.get(k).is_some_and(|e| !e.writes());
        let last = k.checked_sub(1).map(|k| events[k]);
        let last = last.filter(|&e| {
            // Uses come before any write only while a run is being moved from one place to another.
            let written = events[0].writes() || events[..k].iter().any(|e| e.writes());
            written && !self.overwrites(v, e)
        });
        (last.map(|e| self.pos(e.run())), needed)
    }

    /// A value that is live across a position without being touched there.
    #[inline]
    pub fn idle_across(&self, v: ValueId, p: Position) -> Option<Idle> {
        let events = &self.events[v];
        let first = events.first()?;
        if self.pos(first.run()) >= p {
            return None;
        }
        let k = self.events_before(v, p);
        let next = events.get(k).filter(|e| !e.writes())?;
        let next = self.pos(next.run());
        if next == p {
            return None;
        }
        let start = events[..k].iter().rposition(|e| e.writes())?;
        Some(Idle {
            start: self.pos(events[start].run()),
            last: self.pos(events[k - 1].run()),
            next,
        })
    }

    /// Whether the value can be read at `p`; see [`Self::around`].
    #[inline]
    pub fn available(&self, v: ValueId, p: Position) -> bool {
        self.around(v, p).0.is_some()
    }

    /// Whether the instance of `v` present just before `p` has a use at or after `p`.
    #[inline]
    pub fn needed_from(&self, v: ValueId, p: Position) -> bool {
        let k = self.events_before(v, p);
        self.events[v].get(k).is_some_and(|e| !e.writes())
    }

    /// Whether a task that brings a value may run just before `p`: the value rests in the memory, or has been
    /// made and can be sent there. What rests in one memory isn't sent to another.
    pub(super) fn may_bring(&self, t: TaskId, p: Position) -> bool {
        let copies = &self.model.copies;
        let made = |v| self.events_begin(v).is_some_and(|first| first < p);
        copies.brought(t).is_none_or(|(memory, v)| {
            copies.rests(memory, v) || copies.given[v].is_none() && made(v)
        })
    }

    /// Whether every use of a value finds it, and so does every copy.
    fn is_served(&self, v: ValueId) -> bool {
        let mut there = false;
        self.events[v].iter().all(|&e| {
            let (t, p) = (self.task_of(e.run()), self.pos(e.run()));
            let found = if e.writes() {
                self.may_bring(t, p)
            } else {
                there
            };
            there = !self.overwrites(v, e);
            found
        })
    }

    /// Whether every run finds its inputs, and every copy its value.
    pub fn is_sound(&self) -> bool {
        self.events.keys().all(|v| self.is_served(v))
    }

    /// Whether a run serves no use, so that nothing needs it.
    pub fn serves_nothing(&self, r: Run) -> bool {
        let p = self.pos(r);
        self.serves_only_from(p, self.end())
    }

    /// Whether the run at `p` serves no use before `from`.
    pub fn serves_only_from(&self, p: Position, from: Position) -> bool {
        let t = self.task_of(self.run_at(p));
        let outputs = self.model.outputs.of(t);
        let mut next = outputs.iter().map(|&v| (self.next_use(v, p + 1), v));
        next.all(|(next, v)| next >= from || next >= self.next_write(v, p + 1))
    }
}
