//! What acts cost: their makespan, as [`scrimp_plan::simulate`] says, or the sum of their seconds; and joules.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::devices::decode::{Act, Run};
use crate::devices::system::{End, System};
use crate::method::Objective;

/// A value on a device.
#[derive(Clone, Copy, Debug, Default)]
struct Presence {
    written: f64,
    /// When the last copy that reads it ends.
    read: f64,
    /// One more than the index of the act that put it there and of its last use; 0 for the start.
    since: usize,
    last: usize,
    present: bool,
    /// Whether its free may wait for a copy.
    copied: bool,
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
    /// The end of each device's turns so far, and of each queue's copies.
    turn: Vec<f64>,
    queue: Vec<f64>,
    /// The cells to free after each act that matter for time, by the act.
    frees: Vec<(usize, usize)>,
    held: Vec<Held>,
    /// When each act ends.
    pub ends: Vec<f64>,
    /// Joules by device, and of all copies.
    pub joules: Vec<f64>,
    pub copying: f64,
}

impl<'s> Timing<'s> {
    pub fn new(system: &'s System) -> Timing<'s> {
        Timing {
            system,
            cells: vec![Presence::default(); system.values * system.devices],
            turn: vec![0.0; system.devices],
            queue: vec![0.0; system.queues],
            frees: Vec::new(),
            held: vec![Held::default(); system.devices],
            ends: Vec::new(),
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

    /// Seconds until the last act has ended.
    pub fn makespan(&mut self, acts: &[Act]) -> f64 {
        self.find_frees(acts);
        self.turn.fill(0.0);
        self.queue.fill(0.0);
        self.start();
        for (d, held) in self.held.iter_mut().enumerate() {
            held.returns.clear();
            held.taken = self.system.given_bytes[d];
        }
        self.ends.clear();
        let mut latest = 0.0f64;
        let mut free = 0;
        for (k, &act) in acts.iter().enumerate() {
            while free < self.frees.len() && self.frees[free].0 <= k {
                self.free(self.frees[free].1);
                free += 1;
            }
            let end = self.play(act);
            self.ends.push(end);
            latest = latest.max(end);
        }
        latest
    }

    fn start(&mut self) {
        let s = self.system;
        self.cells.fill(Presence::default());
        for v in 0..s.values {
            if let Some(d) = s.given[v] {
                self.cells[s.cell(v, d)].present = true;
            }
        }
    }

    /// Finds when values are freed, as [`scrimp_plan::Sequence::plan`] does, and the peaks of memories.
    fn find_frees(&mut self, acts: &[Act]) {
        let s = self.system;
        self.start();
        self.frees.clear();
        for (k, &act) in acts.iter().enumerate() {
            match act {
                Act::Run(Run { task, device }) => {
                    for &(v, overwritten) in &s.inputs[task] {
                        let here = &mut self.cells[s.cell(v, device)];
                        here.last = k + 1;
                        if overwritten {
                            here.present = false;
                        }
                    }
                    for &v in &s.outputs[task] {
                        self.put(s.cell(v, device), k + 1, false);
                    }
                }
                Act::Copy { value, from, to } => {
                    let here = &mut self.cells[s.cell(value, from)];
                    (here.last, here.copied) = (k + 1, true);
                    self.put(s.cell(value, to), k + 1, true);
                }
                Act::Release { value, device } => {
                    self.cells[s.cell(value, device)].last = k + 1;
                }
            }
        }
        for v in 0..s.values {
            let kept = match s.end[v] {
                End::Nowhere => None,
                End::On(d) => Some(d),
                End::Anywhere => (0..s.devices)
                    .map(|d| (self.cells[s.cell(v, d)], d))
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
            while free < self.frees.len() && self.frees[free].0 <= k {
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

    fn put(&mut self, cell: usize, at: usize, copied: bool) {
        self.end(cell);
        self.cells[cell] = Presence {
            since: at,
            last: at,
            present: true,
            copied,
            ..Presence::default()
        };
    }

    /// Ends an instance. Its free matters if it may wait for a copy, or gives bytes of a memory back.
    fn end(&mut self, cell: usize) {
        let here = &mut self.cells[cell];
        if here.present && (here.copied || !self.system.computes[cell % self.system.devices]) {
            self.frees.push((here.last, cell));
        }
        here.present = false;
    }

    fn free(&mut self, cell: usize) {
        let s = self.system;
        let device = cell % s.devices;
        let Presence { written, read, .. } = self.cells[cell];
        let end = self.turn[device].max(written).max(read);
        if s.concurrent[device] {
            return;
        }
        if s.computes[device] {
            self.turn[device] = end;
        } else {
            let bytes = s.bytes[cell / s.devices];
            self.held[device]
                .returns
                .push(Reverse((end.to_bits(), bytes as u64)));
        }
    }

    fn play(&mut self, act: Act) -> f64 {
        let s = self.system;
        match act {
            Act::Run(Run { task, device }) => {
                let mut start = self.turn[device];
                for &(v, overwritten) in &s.inputs[task] {
                    let here = &self.cells[s.cell(v, device)];
                    start = start.max(here.written);
                    if overwritten {
                        start = start.max(here.read);
                    }
                }
                let end = start + s.way(task, device).map_or(f64::INFINITY, |way| way.seconds);
                for &(v, _) in &s.inputs[task] {
                    let here = &mut self.cells[s.cell(v, device)];
                    here.read = here.read.max(end);
                }
                for &v in &s.outputs[task] {
                    let here = &mut self.cells[s.cell(v, device)];
                    (here.written, here.read) = (end, end);
                }
                if !s.concurrent[device] {
                    self.turn[device] = end;
                }
                end
            }
            Act::Copy { value, from, to } => {
                let Some(wire) = s.wire(from, to) else {
                    return f64::INFINITY;
                };
                if !s.computes[to] {
                    let held = &mut self.held[to];
                    held.taken += s.bytes[value];
                    while held.taken > held.peak
                        && let Some(Reverse((time, bytes))) = held.returns.pop()
                    {
                        held.taken -= bytes as f64;
                        self.turn[to] = self.turn[to].max(f64::from_bits(time));
                    }
                }
                let source = &mut self.cells[s.cell(value, from)];
                let queue = wire.queue.map_or(0.0, |queue| self.queue[queue]);
                let start = queue.max(self.turn[to]).max(source.written);
                let end = start + wire.seconds[value];
                source.read = source.read.max(end);
                let target = &mut self.cells[s.cell(value, to)];
                (target.written, target.read) = (end, end);
                if let Some(queue) = wire.queue {
                    self.queue[queue] = end;
                }
                end
            }
            Act::Release { .. } => 0.0,
        }
    }
}
