//! What acts cost: their makespan, as [`scrimp_plan::simulate`] says, or the sum of their seconds; and joules.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::devices::decode::{Act, Run};
use crate::devices::system::{End, System};
use crate::method::Objective;

/// A moment, and one more than the index of the act that ends then; 0 for the start.
type Moment = (f64, u32);

/// When a value on a device has been written, and read by copies.
#[derive(Clone, Copy, Debug, Default)]
struct Presence {
    written: Moment,
    read: Moment,
}

/// How long a value is on a device.
#[derive(Clone, Copy, Debug, Default)]
struct Stay {
    /// One more than the index of the act that put it there and of its last use; 0 for the start.
    since: u32,
    last: u32,
    present: bool,
    /// Whether its free may wait for a copy.
    copied: bool,
}

/// Makes a moment no earlier than another.
#[inline]
fn wait(moment: &mut Moment, other: Moment) {
    if other.0 > moment.0 {
        *moment = other;
    }
}

/// What a memory that doesn't compute holds.
#[derive(Clone, Debug, Default)]
struct Held {
    taken: f64,
    peak: f64,
    returns: BinaryHeap<Reverse<(u64, u64)>>,
}

pub(super) struct Timing<'s> {
    system: &'s System,
    cells: Vec<Presence>,
    stays: Vec<Stay>,
    /// The end of each device's turns so far, and of each queue's copies.
    turn: Vec<Moment>,
    queue: Vec<Moment>,
    /// The cells to free after each act that matter for time, by the act.
    frees: Vec<(u32, usize)>,
    held: Vec<Held>,
    /// When each act ends.
    pub ends: Vec<f64>,
    /// The act whose end each act waits for last.
    causes: Vec<u32>,
    /// Joules by device, and of all copies.
    pub joules: Vec<f64>,
    pub copying: f64,
}

impl<'s> Timing<'s> {
    pub fn new(system: &'s System) -> Timing<'s> {
        Timing {
            system,
            cells: vec![Presence::default(); system.values * system.devices],
            stays: vec![Stay::default(); system.values * system.devices],
            turn: vec![Moment::default(); system.devices],
            queue: vec![Moment::default(); system.queues],
            frees: Vec::new(),
            held: vec![Held::default(); system.devices],
            ends: Vec::new(),
            causes: Vec::new(),
            joules: vec![0.0; system.devices],
            copying: 0.0,
        }
    }

    /// The cost of acts by the objective, with the price of their joules.
    pub fn cost(&mut self, acts: &[Act]) -> f64 {
        let s = self.system;
        self.joules.fill(0.0);
        self.copying = 0.0;
        let mut serial = 0.0;
        for act in acts {
            match *act {
                Act::Run(Run { task, device }) => {
                    if let Some(way) = s.way(task, device) {
                        self.joules[device] += way.joules;
                        serial += way.seconds;
                    }
                }
                Act::Copy { value, from, to } => {
                    if let Some(wire) = s.wire(from, to) {
                        self.copying += wire.joules[value];
                        serial += wire.seconds[value];
                    }
                }
                Act::Release { .. } => {}
            }
        }
        let seconds = match s.objective {
            Objective::Serial => serial,
            Objective::Makespan => self.makespan(acts),
        };
        seconds + s.alpha * (self.joules.iter().sum::<f64>() + self.copying)
    }

    /// Seconds until the last act has ended, and what copies take from computing is made up for.
    pub fn makespan(&mut self, acts: &[Act]) -> f64 {
        self.find_frees(acts);
        self.turn.fill(Moment::default());
        self.queue.fill(Moment::default());
        for (v, &given) in self.system.given.iter().enumerate() {
            if let Some(d) = given {
                self.cells[self.system.cell(v, d)] = Presence::default();
            }
        }
        for (d, held) in self.held.iter_mut().enumerate() {
            held.returns.clear();
            held.taken = self.system.given_bytes[d];
        }
        self.ends.clear();
        self.causes.clear();
        let mut latest = 0.0f64;
        let mut free = 0;
        for (k, &act) in acts.iter().enumerate() {
            while free < self.frees.len() && self.frees[free].0 as usize <= k {
                self.free(self.frees[free].1);
                free += 1;
            }
            let (end, cause) = self.play(act, k as u32 + 1);
            self.ends.push(end);
            self.causes.push(cause);
            latest = latest.max(end);
        }
        let turns = self.turn.iter().map(|turn| turn.0);
        turns.fold(latest, f64::max)
    }

    /// Calls `tell` with each act of the chain of waits that ends last, from its end.
    pub fn critical(&self, mut tell: impl FnMut(usize)) {
        let ends = self.ends.iter().enumerate();
        let mut next = ends.max_by(|a, b| a.1.total_cmp(b.1)).map(|(k, _)| k);
        while let Some(k) = next {
            tell(k);
            next = (self.causes[k] as usize).checked_sub(1);
        }
    }

    /// Finds when values are freed, as [`scrimp_plan::Sequence::plan`] does, and the peaks of memories.
    fn find_frees(&mut self, acts: &[Act]) {
        let s = self.system;
        self.stays.fill(Stay::default());
        for (v, &given) in s.given.iter().enumerate() {
            if let Some(d) = given {
                self.stays[s.cell(v, d)].present = true;
            }
        }
        self.frees.clear();
        for (k, &act) in (1u32..).zip(acts) {
            match act {
                Act::Run(Run { task, device }) => {
                    for &(v, overwritten) in &s.inputs[task] {
                        let here = &mut self.stays[s.cell(v, device)];
                        here.last = k;
                        if overwritten {
                            here.present = false;
                        }
                    }
                    for &v in &s.outputs[task] {
                        self.put(s.cell(v, device), k, false);
                    }
                }
                Act::Copy { value, from, to } => {
                    let here = &mut self.stays[s.cell(value, from)];
                    (here.last, here.copied) = (k, true);
                    self.put(s.cell(value, to), k, true);
                }
                Act::Release { value, device } => {
                    self.stays[s.cell(value, device)].last = k;
                }
            }
        }
        for v in 0..s.values {
            let kept = match s.end[v] {
                End::Nowhere => None,
                End::On(d) => Some(d),
                End::Anywhere => (0..s.devices)
                    .map(|d| (self.stays[s.cell(v, d)], d))
                    .filter(|(here, _)| here.present)
                    .max_by_key(|(here, d)| (here.last, here.since, *d))
                    .map(|(_, d)| d),
            };
            for d in (0..s.devices).filter(|&d| kept != Some(d)) {
                self.end(s.cell(v, d));
            }
        }
        self.frees.sort_by_key(|&(last, _)| last);
        if s.computes.iter().all(|&computes| computes) {
            return;
        }
        let mut level = s.given_bytes.clone();
        for (d, held) in self.held.iter_mut().enumerate() {
            held.peak = level[d];
        }
        let mut free = 0;
        for (k, &act) in acts.iter().enumerate() {
            while free < self.frees.len() && self.frees[free].0 as usize <= k {
                let cell = self.frees[free].1;
                level[cell % s.devices] -= s.bytes[cell / s.devices];
                free += 1;
            }
            if let Act::Copy { value, to, .. } = act {
                level[to] += s.bytes[value];
                self.held[to].peak = self.held[to].peak.max(level[to]);
            }
        }
    }

    fn put(&mut self, cell: usize, at: u32, copied: bool) {
        self.end(cell);
        self.stays[cell] = Stay {
            since: at,
            last: at,
            present: true,
            copied,
        };
    }

    /// Ends an instance. Its free matters if it may wait for a copy, or gives bytes of a memory back.
    fn end(&mut self, cell: usize) {
        let here = &mut self.stays[cell];
        if here.present && (here.copied || !self.system.computes[cell % self.system.devices]) {
            self.frees.push((here.last, cell));
        }
        here.present = false;
    }

    fn free(&mut self, cell: usize) {
        let s = self.system;
        let device = cell % s.devices;
        if s.concurrent[device] {
            return;
        }
        let Presence { written, read } = self.cells[cell];
        let mut end = self.turn[device];
        wait(&mut end, written);
        wait(&mut end, read);
        if s.computes[device] {
            self.turn[device] = end;
        } else {
            let bytes = s.bytes[cell / s.devices];
            self.held[device]
                .returns
                .push(Reverse((end.0.to_bits(), bytes as u64)));
        }
    }

    /// Plays an act with this mark; returns its end and the mark of the act that it waits for last.
    fn play(&mut self, act: Act, mark: u32) -> Moment {
        let s = self.system;
        match act {
            Act::Run(Run { task, device }) => {
                let mut start = self.turn[device];
                for &(v, overwritten) in &s.inputs[task] {
                    let here = &self.cells[s.cell(v, device)];
                    wait(&mut start, here.written);
                    if overwritten {
                        wait(&mut start, here.read);
                    }
                }
                let way = s.way(task, device);
                let end = start.0 + way.map_or(f64::INFINITY, |way| way.seconds);
                for &(v, _) in &s.inputs[task] {
                    wait(&mut self.cells[s.cell(v, device)].read, (end, mark));
                }
                for &v in &s.outputs[task] {
                    self.cells[s.cell(v, device)] = Presence {
                        written: (end, mark),
                        read: (end, mark),
                    };
                }
                if !s.concurrent[device] {
                    self.turn[device] = (end, mark);
                }
                (end, start.1)
            }
            Act::Copy { value, from, to } => {
                let Some(wire) = s.wire(from, to) else {
                    return (f64::INFINITY, 0);
                };
                if !s.computes[to] {
                    let held = &mut self.held[to];
                    held.taken += s.bytes[value];
                    while held.taken > held.peak
                        && let Some(Reverse((time, bytes))) = held.returns.pop()
                    {
                        held.taken -= bytes as f64;
                        wait(&mut self.turn[to], (f64::from_bits(time), 0));
                    }
                }
                let mut start = self.turn[to];
                if let Some(queue) = wire.queue {
                    wait(&mut start, self.queue[queue]);
                }
                let source = &mut self.cells[s.cell(value, from)];
                wait(&mut start, source.written);
                let end = (start.0 + wire.seconds[value], mark);
                wait(&mut source.read, end);
                self.cells[s.cell(value, to)] = Presence {
                    written: end,
                    read: end,
                };
                if let Some(queue) = wire.queue {
                    self.queue[queue] = end;
                }
                for device in [from, to] {
                    if s.computes[device] && !s.concurrent[device] {
                        self.turn[device].0 += wire.drag * (end.0 - start.0);
                    }
                }
                (end.0, start.1)
            }
            Act::Release { .. } => (0.0, 0),
        }
    }
}
