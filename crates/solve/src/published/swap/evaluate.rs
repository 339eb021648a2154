//! How long a policy takes (HOME's algorithm 2, asynchronous copies included), and its plan.
//!
//! The printed listing misses the statements that start copies, and it looks at memory after the fact. Here,
//! for each operation of the policy, in order:
//!
//! 1. Copies back whose time has come begin if there is room for them until they are needed (`PREi`), after
//!    the copy of a map that is needed at once.
//! 2. While the operation doesn't fit, the device waits for the oldest copy out that isn't done and gives its
//!    bytes back (lines 3–10). So what was sent away lingers until its bytes are needed.
//! 3. A task waits for its inputs (lines 11–14) and runs, again or for the first time (lines 15–19).
//! 4. After the last forward use of a map that is sent away, its copy out joins the queue.
//!
//! A map that still lingers when it is needed again isn't copied back. A synchronous policy waits for each
//! copy out at once. The times are those of [`simulate`](scrimp_plan::simulate), as long as no copy waits for
//! room in the other memory.

use std::collections::VecDeque;
use std::ops::Range;

use cranelift_entity::EntityRef;
use scrimp_plan::{Plan, Step, TaskId, ValueId};

use super::maps::Maps;
use super::unfold::{Action, NONE, Op, Unfolded};

/// What happens to each map, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// By map.
    pub(super) actions: Vec<Action>,
    /// By map, the task with which its copy back may begin. Without it, each backward stage begins the next
    /// copy back.
    pub(super) issue: Option<Vec<usize>>,
    /// Whether the device waits for each copy out before it goes on.
    pub(super) synchronous: bool,
}

impl Policy {
    /// An asynchronous policy whose backward stages each begin a copy back, as HOME's.
    pub(super) fn of(actions: Vec<Action>) -> Policy {
        Policy {
            actions,
            issue: None,
            synchronous: false,
        }
    }
}

/// Evaluates policies one after another, in the same memory.
pub(super) struct Evaluator<'m, 'g, 'p> {
    maps: &'m Maps<'g, 'p>,
    pub(super) unfolded: Unfolded,
    /// By map, the seconds of the last evaluation that were waited or spent on running tasks again for it.
    pub(super) overhead: Vec<f64>,
    /// By map, those of them that tasks waited for its copy back.
    pub(super) late: Vec<f64>,
    now: Now,
}

/// The state while operations happen.
#[derive(Default)]
struct Now {
    time: f64,
    /// When the queue of copies out, and that of copies back, are done.
    queues: [f64; 2],
    /// Bytes that linger, and bytes that came back before they had to.
    lingering: i64,
    early: i64,
    /// Bytes in the other memory.
    stored: u64,
    maps: Vec<MapNow>,
    /// Maps whose copies out were started, oldest first; some don't linger any more.
    sent: VecDeque<u32>,
    /// Copies back that may begin: (from this operation on, needed by this one, map).
    coming: Vec<(u32, u32, u32)>,
    /// Frees that wait for copies: (the operation before which, when).
    late: Vec<(u32, f64)>,
    /// The plan, if one is wanted.
    steps: Option<Vec<Step>>,
}

#[derive(Clone, Copy, Default)]
struct MapNow {
    /// When it has been written where tasks read it.
    ready: f64,
    /// When the copy out that reads it is done.
    sent: f64,
    lingers: bool,
    arrived: bool,
}

impl<'m, 'g, 'p> Evaluator<'m, 'g, 'p> {
    pub(super) fn new(maps: &'m Maps<'g, 'p>) -> Self {
        Evaluator {
            maps,
            unfolded: Unfolded::default(),
            overhead: vec![0.0; maps.maps.len()],
            late: vec![0.0; maps.maps.len()],
            now: Now::default(),
        }
    }

    /// The bytes that a policy takes at least, if it is possible at all.
    pub(super) fn peak(&mut self, policy: &Policy) -> Option<u64> {
        let (maps, unfolded) = (self.maps, &mut self.unfolded);
        let issue = policy.issue.as_deref();
        unfolded.unfold(maps, &policy.actions, issue).ok()?;
        Some(unfolded.peak)
    }

    /// The seconds of one step; none if it doesn't fit.
    pub(super) fn seconds(&mut self, policy: &Policy) -> Option<f64> {
        self.now.steps = None;
        self.play(policy)
    }

    /// The plan; none if it doesn't fit.
    pub(super) fn plan(&mut self, policy: &Policy) -> Option<Plan> {
        self.now.steps = Some(Vec::new());
        self.play(policy)?;
        let steps = self.now.steps.take()?;
        Some(Plan { steps })
    }

    fn play(&mut self, policy: &Policy) -> Option<f64> {
        let peak = self.peak(policy)?;
        if peak > self.maps.graph.capacity {
            return None;
        }
        self.begin();
        let (mut frees, mut stage) = (0, 0);
        for at in 0..self.unfolded.ops.len() as u32 {
            frees = self.free(at, frees);
            let op = self.unfolded.ops[at as usize];
            if let Op::Back { map, .. } = op
                && self.need(at, map as usize)
            {
                self.make_room(at);
                self.fetch(map as usize);
            }
            if policy.issue.is_some() {
                self.fetch_ahead(at, usize::MAX);
            } else if let Some(&task) = self.maps.stages.get(stage)
                && self.unfolded.begins[task] == at
            {
                stage += 1;
                self.fetch_ahead(at, 1);
            }
            self.make_room(at);
            match op {
                Op::Run { task, again_for } => self.run(task as usize, again_for),
                Op::Out { map } => self.send(map, policy.synchronous)?,
                Op::Back { .. } => {}
            }
        }
        self.free(self.unfolded.ops.len() as u32, frees);
        let [out, back] = self.now.queues;
        Some(self.now.time.max(out).max(back))
    }

    fn begin(&mut self) {
        let now = &mut self.now;
        (now.time, now.queues, now.stored) = (0.0, [0.0; 2], 0);
        (now.lingering, now.early) = (0, 0);
        now.maps.clear();
        now.maps.resize(self.maps.maps.len(), MapNow::default());
        now.sent.clear();
        now.late.clear();
        now.coming.clear();
        for (at, op) in self.unfolded.ops.iter().enumerate() {
            if let Op::Back { map, from } = *op {
                now.coming.push((from, at as u32, map));
            }
        }
        // The next one that is needed last.
        now.coming.reverse();
        if now.steps.is_some() {
            self.unfolded.frees.sort_unstable();
        }
        self.overhead.fill(0.0);
        self.late.fill(0.0);
    }

    fn base(&self, at: u32) -> i64 {
        self.unfolded.base[at as usize]
    }

    fn room(&self) -> i64 {
        self.maps.graph.capacity as i64
    }

    fn step(&mut self, step: Step) {
        if let Some(steps) = &mut self.now.steps {
            steps.push(step);
        }
    }

    /// Gives back what was last used before an operation; `next` is the first free that is left.
    fn free(&mut self, at: u32, mut next: usize) -> usize {
        if !self.now.late.is_empty() {
            let time = &mut self.now.time;
            self.now.late.retain(|&(when, done)| {
                *time = if when == at { time.max(done) } else { *time };
                when != at
            });
        }
        if self.now.steps.is_some() {
            let device = self.maps.graph.device;
            while let Some(&(when, value)) = self.unfolded.frees.get(next)
                && when == at
            {
                next += 1;
                let value = ValueId::from_u32(value);
                self.step(Step::Free { value, device });
            }
        }
        next
    }

    /// Begins up to `most` copies back whose time has come, as far as there is room until they are needed.
    fn fetch_ahead(&mut self, at: u32, mut most: usize) {
        let mut next = self.now.coming.len();
        while most > 0 && next > 0 {
            next -= 1;
            let (from, needed, map) = self.now.coming[next];
            if needed <= at {
                self.now.coming.remove(next);
                continue;
            }
            if from > at || self.now.maps[map as usize].lingers {
                continue;
            }
            most -= 1;
            let bytes = self.maps.maps[map as usize].bytes as i64;
            if self.makes_room(at..needed, bytes) {
                self.now.coming.remove(next);
                self.now.early += bytes;
                self.now.maps[map as usize].arrived = true;
                self.fetch(map as usize);
            }
        }
    }

    /// Whether more bytes fit from now on and during these operations. Copies out that are done give their
    /// bytes back for it.
    fn makes_room(&mut self, during: Range<u32>, bytes: i64) -> bool {
        let at = during.start;
        let peak = during.map(|at| self.base(at)).max().unwrap_or(0);
        if peak + self.now.early + bytes > self.room() {
            return false;
        }
        let fits =
            |now: &Now, base: i64, room: i64| base + now.early + now.lingering + bytes <= room;
        while !fits(&self.now, self.base(at), self.room()) {
            match self.oldest() {
                Some(oldest) if self.now.maps[oldest].sent <= self.now.time => self.release(oldest),
                _ => return false,
            }
        }
        true
    }

    /// The copy back of a map joins the queue.
    fn fetch(&mut self, map: usize) {
        let what = self.maps.maps[map];
        let start = (self.now.time.max(self.now.maps[map].sent)).max(self.queue(1));
        self.set_queue(1, start + what.back);
        let state = &mut self.now.maps[map];
        (state.ready, state.sent) = (start + what.back, 0.0);
        self.now.stored -= what.bytes;
        let (value, memory) = (ValueId::new(what.value), self.maps.memory);
        self.step(Step::Copy {
            value,
            from: memory,
            to: self.maps.graph.device,
        });
        self.step(Step::Free {
            value,
            device: memory,
        });
    }

    fn queue(&self, direction: usize) -> f64 {
        self.now.queues[if self.maps.half_duplex { 0 } else { direction }]
    }

    fn set_queue(&mut self, direction: usize, until: f64) {
        self.now.queues[if self.maps.half_duplex { 0 } else { direction }] = until;
    }

    /// The map that lingers longest.
    fn oldest(&mut self) -> Option<usize> {
        while let Some(&map) = self.now.sent.front() {
            if self.now.maps[map as usize].lingers {
                return Some(map as usize);
            }
            self.now.sent.pop_front();
        }
        None
    }

    /// Gives back what lingers until an operation fits.
    fn make_room(&mut self, at: u32) {
        while self.base(at) + self.now.lingering + self.now.early > self.room() {
            let oldest = self.oldest();
            // Operations fit without what lingers, and early copies begin only where they fit too.
            let oldest = oldest.expect("something lingers where memory is short");
            self.release(oldest);
        }
    }

    /// Waits for the copy out of a map and gives its bytes back.
    fn release(&mut self, map: usize) {
        let what = self.maps.maps[map];
        let wait = (self.now.maps[map].sent - self.now.time).max(0.0);
        self.now.time += wait;
        self.overhead[map] += wait;
        self.now.lingering -= what.bytes as i64;
        self.now.maps[map].lingers = false;
        self.step(Step::Free {
            value: ValueId::new(what.value),
            device: self.maps.graph.device,
        });
    }

    fn run(&mut self, task: usize, again_for: u32) {
        let maps = self.maps;
        let what = &maps.graph.tasks[task];
        for &value in &what.outputs {
            if let Some(map) = maps.of(value)
                && self.now.maps[map].lingers
            {
                self.release(map);
            }
        }
        for &value in &what.inputs {
            let Some(map) = maps.of(value) else { continue };
            let MapNow { ready, sent, .. } = self.now.maps[map];
            let until = match maps.graph.values[value].overwriter {
                Some(overwriter) if overwriter == task => ready.max(sent),
                _ => ready,
            };
            let wait = (until - self.now.time).max(0.0);
            self.now.time += wait;
            self.overhead[map] += wait;
            self.late[map] += wait;
        }
        self.now.time += what.seconds;
        if again_for != NONE {
            self.overhead[again_for as usize] += what.seconds;
        }
        for &value in &what.outputs {
            if let Some(map) = maps.of(value) {
                (self.now.maps[map].ready, self.now.maps[map].sent) = (self.now.time, 0.0);
            }
        }
        self.step(Step::Run {
            task: TaskId::new(task),
            device: maps.graph.device,
        });
    }

    /// The copy out of a map joins the queue; none if the other memory is full.
    fn send(&mut self, map: u32, synchronous: bool) -> Option<()> {
        let id = map as usize;
        let what = self.maps.maps[id];
        self.now.stored += what.bytes;
        if self.now.stored > self.maps.room {
            return None;
        }
        let done = self.queue(0).max(self.now.maps[id].ready) + what.out;
        self.set_queue(0, done);
        self.now.maps[id].sent = done;
        self.now.maps[id].lingers = true;
        self.now.lingering += what.bytes as i64;
        self.step(Step::Copy {
            value: ValueId::new(what.value),
            from: self.maps.graph.device,
            to: self.maps.memory,
        });
        if synchronous {
            self.release(id);
        } else {
            self.now.sent.push_back(map);
        }
        Some(())
    }

    /// A map must be in memory or on its way from now on. Returns whether its copy must begin now.
    fn need(&mut self, at: u32, map: usize) -> bool {
        let what = self.maps.maps[map];
        let state = &mut self.now.maps[map];
        if state.arrived {
            state.arrived = false;
            self.now.early -= what.bytes as i64;
            return false;
        }
        if !state.lingers {
            return true;
        }
        state.lingers = false;
        let sent = state.sent;
        self.now.lingering -= what.bytes as i64;
        self.now.stored -= what.bytes;
        if sent > self.now.time {
            let frees = self.unfolded.frees.iter();
            let ends = frees.filter(|free| free.1 == what.value as u32 && free.0 > at);
            let end = ends.map(|free| (free.0, sent)).min_by_key(|free| free.0);
            self.now.late.extend(end);
        }
        self.step(Step::Free {
            value: ValueId::new(what.value),
            device: self.maps.memory,
        });
        false
    }
}

/// Actions by map.
pub(super) fn uniform(maps: &Maps<'_, '_>, action: Action) -> Vec<Action> {
    vec![action; maps.maps.len()]
}
