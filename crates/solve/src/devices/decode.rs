//! From a list of runs to the moves that make it a plan within the capacities.
//!
//! The decoder walks the list. An input that isn't on a run's device is copied there over the quickest way,
//! or made again if it is nowhere. If bytes don't fit, values leave by the cost of having them back per byte
//! and per run until their next use: those that exist elsewhere are dropped, others are stored on another
//! device or made again later. A copy is then issued as early as its source and the destination's bytes
//! allow. A value that was copied out is held until its bytes are needed, so that no device waits for the
//! copy. A second run of a task is left out if its outputs are still there.

mod evict;
mod memory;

use crate::devices::system::{End, System};
use crate::method::Objective;

/// A task on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub task: usize,
    pub device: usize,
}

/// A decision, as [`scrimp_plan::Move`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Run(Run),
    Copy {
        value: usize,
        from: usize,
        to: usize,
    },
    Release {
        value: usize,
        device: usize,
    },
}

/// How deep values that are nowhere are made again, one for another.
const DEPTH: usize = 40;

/// A value on a device.
#[derive(Clone, Copy, Debug, Default)]
struct Here {
    present: bool,
    /// Whether a copy has read it, for which the device would wait if the value were freed.
    sent: bool,
    /// The key of the act that put it there, and of the last act that used it, also after it is gone.
    since: u32,
    touched: u32,
    /// Its index in the list of values on the device.
    slot: u32,
    /// It must stay while this isn't 0.
    pins: u32,
}

/// The next entry of a value on a device in the list of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Read(usize),
    Make(usize),
    Never,
}

pub(super) struct Decoder<'s> {
    system: &'s System,
    /// Entries of each cell: twice the index of a run, plus one if the run makes the value.
    first: Vec<u32>,
    entries: Vec<u32>,
    cursor: Vec<u32>,
    here: Vec<Here>,
    /// Values with bytes that are on each device.
    on: Vec<Vec<usize>>,
    level: Vec<f64>,
    /// Capacity less what is in use throughout.
    room: Vec<f64>,
    /// Bytes during each act that concerns a device, by key.
    events: Vec<Vec<(u32, f64)>>,
    /// The arithmetic of each task's first run.
    ran: Vec<Option<usize>>,
    /// The key of the latest act.
    clock: u32,
    keyed: Vec<(u32, Act)>,
    counts: Vec<usize>,
    at: usize,
    end: usize,
    /// The acts in order.
    pub acts: Vec<Act>,
    /// The runs in order: without those left out, with those inserted.
    pub runs: Vec<Run>,
    /// By how much capacities are exceeded, as a sum of fractions of them.
    pub over: f64,
    /// The largest bytes in use that exceed each capacity, or 0.
    pub short: Vec<f64>,
    /// Something can't be where it is needed.
    broken: bool,
}

impl<'s> Decoder<'s> {
    pub fn new(system: &'s System) -> Decoder<'s> {
        let cells = system.values * system.devices;
        Decoder {
            system,
            first: vec![0; cells + 1],
            entries: Vec::new(),
            cursor: vec![0; cells],
            here: vec![Here::default(); cells],
            on: vec![Vec::new(); system.devices],
            level: vec![0.0; system.devices],
            room: system.room.clone(),
            events: vec![Vec::new(); system.devices],
            ran: vec![None; system.tasks],
            clock: 0,
            keyed: Vec::new(),
            counts: Vec::new(),
            at: 0,
            end: 0,
            acts: Vec::new(),
            runs: Vec::new(),
            over: 0.0,
            short: vec![0.0; system.devices],
            broken: false,
        }
    }

    /// Makes a plan of a list of runs; false if a run can't have its inputs.
    pub fn decode(&mut self, list: &[Run]) -> bool {
        self.begin(list);
        for (i, &run) in list.iter().enumerate() {
            self.at = i;
            if self.ran[run.task].is_none() || self.is_useful(run) {
                self.run(run, 0);
            }
            self.pass(run);
            if self.broken {
                return false;
            }
        }
        self.finish();
        !self.broken
    }

    fn begin(&mut self, list: &[Run]) {
        let s = self.system;
        let cells = self.cursor.len();
        self.first.fill(0);
        let entries = |run: &Run| {
            let (inputs, outputs) = (&s.inputs[run.task], &s.outputs[run.task]);
            let reads = inputs.iter().map(|&(v, _)| (v, 0));
            let device = run.device;
            reads
                .chain(outputs.iter().map(|&v| (v, 1)))
                .map(move |(v, makes)| (v * s.devices + device, makes))
        };
        for run in list {
            entries(run).for_each(|(cell, _)| self.first[cell + 1] += 1);
        }
        for cell in 1..self.first.len() {
            self.first[cell] += self.first[cell - 1];
        }
        self.cursor.copy_from_slice(&self.first[..cells]);
        let total = self.first[self.first.len() - 1] as usize;
        self.entries.clear();
        self.entries.resize(total, 0);
        for (i, run) in list.iter().enumerate() {
            for (cell, makes) in entries(run) {
                self.entries[self.cursor[cell] as usize] = 2 * i as u32 + makes;
                self.cursor[cell] += 1;
            }
        }
        self.cursor.copy_from_slice(&self.first[..cells]);
        self.here.fill(Here::default());
        self.on.iter_mut().for_each(Vec::clear);
        self.level.fill(0.0);
        self.events.iter_mut().for_each(Vec::clear);
        self.ran.fill(None);
        (self.clock, self.at, self.end) = (0, 0, list.len());
        self.keyed.clear();
        self.runs.clear();
        (self.over, self.broken) = (0.0, false);
        self.short.fill(0.0);
        self.limit(list);
        for v in 0..s.values {
            if let Some(d) = s.given[v] {
                self.put(v, d, 0);
                self.level[d] += s.held(v, d);
            }
        }
        for d in 0..s.devices {
            self.note(d, 0, self.level[d]);
        }
        for v in 0..s.values {
            if s.given[v].is_some() {
                self.settle(v);
            }
        }
    }

    /// Takes the resident bytes of all tasks of a list off the capacities.
    fn limit(&mut self, list: &[Run]) {
        let s = self.system;
        if !s.has_residents {
            return;
        }
        self.room.copy_from_slice(&s.room);
        for (i, run) in list.iter().enumerate() {
            let Some(way) = s.way(run.task, run.device) else {
                continue;
            };
            let again = s.rerunnable[run.task] && list[..i].contains(run);
            if way.resident > 0.0 && !again {
                self.room[run.device] -= way.resident;
            }
        }
        for d in 0..s.devices {
            if self.room[d] < 0.0 {
                self.over -= self.room[d] / s.room[d].max(1.0);
                self.short[d] = s.room[d] - self.room[d];
                self.room[d] = 0.0;
            }
        }
    }

    /// Passes the entries of the current run.
    fn pass(&mut self, run: Run) {
        let s = self.system;
        for &(v, _) in &s.inputs[run.task] {
            self.cursor[s.cell(v, run.device)] += 1;
        }
        for &v in &s.outputs[run.task] {
            self.cursor[s.cell(v, run.device)] += 1;
        }
        for &(v, _) in &s.inputs[run.task] {
            self.settle(v);
        }
        for &v in &s.outputs[run.task] {
            self.settle(v);
        }
    }

    /// Whether a second run makes something that isn't there and is read there later.
    fn is_useful(&self, run: Run) -> bool {
        let s = self.system;
        if !s.rerunnable[run.task] || self.ran[run.task] != Some(s.arithmetic[run.device]) {
            return false;
        }
        s.outputs[run.task].iter().any(|&v| {
            let cell = s.cell(v, run.device);
            let after = self.cursor[cell] as usize + 1;
            let read =
                after < self.first[cell + 1] as usize && self.entries[after].is_multiple_of(2);
            !self.here[cell].present && read
        })
    }

    /// Makes a value present on a device.
    fn fetch(&mut self, v: usize, d: usize, depth: usize) {
        if self.is_on(v, d) || self.broken {
            return;
        }
        let s = self.system;
        let sources = (0..s.devices).filter(|&e| self.is_on(v, e));
        let source = sources
            .filter_map(|e| Some((s.copying(v, e, d)?, e)))
            .min_by(|a, b| a.0.total_cmp(&b.0));
        let again = s.producer[v].filter(|&t| self.ran[t].is_some() && s.rerunnable[t]);
        if let (Some((seconds, _)), Some(t)) = (source, again)
            && s.objective == Objective::Serial
            && s.way(t, d)
                .is_some_and(|way| way.seconds < seconds && way.resident == 0.0)
            && self.ran[t] == Some(s.arithmetic[d])
            && s.inputs[t]
                .iter()
                .all(|&(i, taken)| !taken && self.is_on(i, d))
        {
            self.run(Run { task: t, device: d }, depth + 1);
            return;
        }
        let source = match (source, again) {
            (Some((_, e)), _) => e,
            (None, Some(t)) if depth < DEPTH => {
                let seconds = |e: usize| {
                    let same = self.ran[t] == Some(s.arithmetic[e]);
                    let way = s.way(t, e).filter(|way| same && way.resident == 0.0)?;
                    Some(way.seconds + s.copying(v, e, d)?)
                };
                let best = (0..s.devices)
                    .filter_map(|e| Some((seconds(e)?, e)))
                    .min_by(|a, b| a.0.total_cmp(&b.0));
                let Some((_, e)) = best else {
                    self.broken = true;
                    return;
                };
                self.run(Run { task: t, device: e }, depth + 1);
                e
            }
            _ => {
                self.broken = true;
                return;
            }
        };
        let mut at = source;
        self.pin(v, at, 1);
        for hop in s.way_to(source, d) {
            if !self.is_on(v, hop) {
                self.broken |= self.is_replaced(v, hop);
                self.make_room(hop, s.held(v, hop));
                if self.broken {
                    return;
                }
                self.copy(v, at, hop);
            }
            self.pin(v, hop, 1);
            self.pin(v, at, -1);
            at = hop;
        }
        self.pin(v, at, -1);
    }

    /// Runs a task on a device, with its inputs there and room for what it makes.
    fn run(&mut self, run: Run, depth: usize) {
        let s = self.system;
        let Run { task, device: d } = run;
        let Some(way) = s.way(task, d) else {
            self.broken = true;
            return;
        };
        let inputs = || s.inputs[task].iter().map(|&(v, _)| v);
        inputs().for_each(|v| self.pin(v, d, 1));
        for v in inputs() {
            self.fetch(v, d, depth);
            if self.broken {
                return;
            }
        }
        for &v in &s.outputs[task] {
            if self.is_on(v, d) {
                self.drop(v, d);
            }
        }
        self.make_room(d, s.grows(task, d) + way.workspace);
        if self.broken {
            return;
        }
        self.clock += 1;
        let key = self.clock;
        self.keyed.push((key, Act::Run(run)));
        self.runs.push(run);
        self.note(d, key, self.level[d] + s.grows(task, d) + way.workspace);
        self.level[d] += s.grows(task, d);
        if s.concurrent[d] {
            self.level[d] += way.workspace;
        }
        self.ran[task].get_or_insert(s.arithmetic[d]);
        for &(v, overwritten) in &s.inputs[task] {
            self.pin(v, d, -1);
            if overwritten {
                self.remove(v, d);
            }
            let cell = s.cell(v, d);
            self.here[cell].touched = key;
        }
        for &v in &s.outputs[task] {
            self.put(v, d, key);
        }
        if depth > 0 {
            // Runs of the list pass their entries first.
            for &v in &s.outputs[task] {
                self.pin(v, d, 1);
            }
            for &(v, _) in &s.inputs[task] {
                self.settle(v);
            }
            for &v in &s.outputs[task] {
                self.pin(v, d, -1);
            }
        }
    }

    /// Brings kept values where they must end, and puts all acts in order.
    fn finish(&mut self) {
        let s = self.system;
        self.at = self.end;
        for v in 0..s.values {
            if let End::On(d) = s.end[v] {
                self.fetch(v, d, 0);
                if self.broken {
                    return;
                }
                self.pin(v, d, 1);
            }
        }
        for v in (0..s.values).filter(|&v| s.end[v] == End::Anywhere) {
            let mut there = (0..s.devices).filter(|&d| self.is_on(v, d));
            let again =
                |d: &usize| s.producer[v].is_some_and(|t| self.again(t, *d, DEPTH).is_some());
            let stays = there.next().or_else(|| (0..s.devices).find(again));
            let Some(d) = stays else {
                self.broken = true;
                return;
            };
            self.fetch(v, d, 0);
            if self.broken {
                return;
            }
            self.pin(v, d, 1);
        }
        for v in 0..s.values {
            for d in 0..s.devices {
                let here = self.here[s.cell(v, d)];
                if here.present && here.sent && s.end[v] != End::On(d) {
                    let act = Act::Release {
                        value: v,
                        device: d,
                    };
                    self.keyed.push((self.clock, act));
                }
            }
        }
        for v in (0..s.values).filter(|&v| s.end[v] == End::Anywhere) {
            // Of several instances the one that is used last stays.
            let touched = |d: &usize| self.here[s.cell(v, *d)].touched;
            let there = (0..s.devices).filter(|&d| self.is_on(v, d));
            let stays = there.max_by_key(touched);
            let act = stays.map(|device| Act::Release { value: v, device });
            self.keyed.extend(act.map(|act| (self.clock, act)));
        }
        self.counts.clear();
        self.counts.resize(self.clock as usize + 2, 0);
        self.keyed
            .iter()
            .for_each(|&(key, _)| self.counts[key as usize + 1] += 1);
        for key in 1..self.counts.len() {
            self.counts[key] += self.counts[key - 1];
        }
        self.acts.clear();
        let filler = Act::Release {
            value: 0,
            device: 0,
        };
        self.acts.resize(self.keyed.len(), filler);
        for &(key, act) in &self.keyed {
            let key = key as usize;
            self.acts[self.counts[key]] = act;
            self.counts[key] += 1;
        }
    }
}
