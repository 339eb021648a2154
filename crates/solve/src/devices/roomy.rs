//! What a list of runs costs where memory decides nothing, in one pass over the list.
//!
//! If no value has to leave a device, the decoder copies each value right after it is made to all devices that
//! read it, and frees nothing early. This pass takes that for granted, and finds the same cost in a small part of
//! the time. It declines every list for which that might not be so.

use crate::devices::decode::Run;
use crate::devices::system::{End, System};
use crate::method::Objective;

/// No run.
const NONE: u32 = u32::MAX;
/// The most devices: a set of them is a word.
const MOST_DEVICES: usize = 64;

/// A time, and the index of the run that decides it.
type Moment = (f64, u32);

const START: Moment = (0.0, NONE);

/// Makes a moment no earlier than another.
#[inline]
fn wait(moment: &mut Moment, other: Moment) {
    if other.0 > moment.0 {
        *moment = other;
    }
}

/// A use of a value on a device other than its producer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    /// The index of the run; of the input, or the value if it is kept.
    at: (u32, u32),
    value: usize,
    device: usize,
}

/// What a list costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Judged {
    pub cost: f64,
    /// By how much capacities are exceeded, as a sum of fractions of them.
    pub over: f64,
}

pub(super) struct Roomy<'s> {
    system: &'s System,
    /// Whether the pass knows such problems at all.
    usable: bool,
    /// Whether bytes of values and workspaces count anywhere.
    counts_bytes: bool,
    /// The readers of each value, with the index of the input.
    readers: Vec<Vec<(u32, u32)>>,
    given: Vec<usize>,
    /// By task: the index of its run, and its device.
    position: Vec<u32>,
    device: Vec<usize>,
    /// Where each value is, as a set of devices; and when it is there, by cell.
    there: Vec<u64>,
    /// Where copies have read it.
    sent: Vec<u64>,
    written: Vec<Moment>,
    /// When the last read of it ends that an overwriting run must wait for.
    read: Vec<Moment>,
    turn: Vec<Moment>,
    queue: Vec<Moment>,
    requests: Vec<Request>,
    room: Vec<f64>,
    /// By how much the bytes in use on each device rise before each run.
    rises: Vec<Vec<f64>>,
    latest: f64,
    serial: f64,
    copying: f64,
    joules: Vec<f64>,
    /// When each run of the list ends, and the run that it waits for last.
    pub ends: Vec<f64>,
    causes: Vec<u32>,
}

impl<'s> Roomy<'s> {
    pub fn new(s: &'s System) -> Roomy<'s> {
        let mut readers = vec![Vec::new(); s.values];
        for (t, inputs) in s.inputs.iter().enumerate() {
            for (k, &(v, _)) in inputs.iter().enumerate() {
                readers[v].push((t as u32, k as u32));
            }
        }
        let limited = |d: usize| s.room[d].is_finite();
        // A task may run again instead of a copy; copies into a memory may wait for its bytes.
        let again = s.objective == Objective::Serial && s.rerunnable.contains(&true);
        let waits = s.sized && s.computes.contains(&false);
        let odd = s.sized && (0..s.devices).any(|d| s.concurrent[d] && limited(d));
        let cells = s.values * s.devices;
        Roomy {
            system: s,
            usable: s.devices <= MOST_DEVICES && !again && !waits && !odd,
            counts_bytes: s.sized && (0..s.devices).any(limited),
            readers,
            given: (0..s.values).filter(|&v| s.given[v].is_some()).collect(),
            position: vec![NONE; s.tasks],
            device: vec![0; s.tasks],
            there: vec![0; s.values],
            sent: vec![0; s.values],
            written: vec![START; cells],
            read: vec![START; cells],
            turn: vec![START; s.devices],
            queue: vec![START; s.queues],
            requests: Vec::new(),
            room: s.room.clone(),
            rises: vec![Vec::new(); s.devices],
            latest: 0.0,
            serial: 0.0,
            copying: 0.0,
            joules: vec![0.0; s.devices],
            ends: Vec::new(),
            causes: Vec::new(),
        }
    }

    /// What a list costs; `None` if the decoder has to say.
    pub fn judge(&mut self, list: &[Run]) -> Option<Judged> {
        let s = self.system;
        if !self.usable || list.len() != s.tasks {
            return None;
        }
        self.begin(list)?;
        for k in 0..self.given.len() {
            let v = self.given[k];
            self.put(v, s.given[v]?, START);
            self.request(v, s.given[v]?);
        }
        self.serve()?;
        for k in 0..self.given.len() * usize::from(self.counts_bytes) {
            self.hold(self.given[k], 0);
        }
        for (i, &run) in list.iter().enumerate() {
            self.run(i as u32, run)?;
        }
        let turns = self.turn.iter().map(|turn| turn.0);
        self.latest = turns.fold(self.latest, f64::max);
        let mut over = self.shortage()?;
        let caps = s.joules.iter().zip(&self.joules);
        for (cap, used) in caps.filter(|&(cap, used)| used > cap) {
            over += (used - cap) / cap.max(f64::MIN_POSITIVE);
        }
        let seconds = match s.objective {
            Objective::Serial => self.serial,
            Objective::Makespan => self.latest,
        };
        let joules = self.joules.iter().sum::<f64>() + self.copying;
        let cost = seconds + s.alpha * joules;
        cost.is_finite().then_some(Judged { cost, over })
    }

    /// Calls `tell` with the index of each run in the chain of waits that ends last, from its end.
    pub fn critical(&self, mut tell: impl FnMut(usize)) {
        let ends = self.ends.iter().enumerate();
        let mut next = ends.max_by(|a, b| a.1.total_cmp(b.1)).map(|(k, _)| k);
        while let Some(k) = next {
            tell(k);
            next = (self.causes[k] != NONE).then_some(self.causes[k] as usize);
        }
    }

    fn begin(&mut self, list: &[Run]) -> Option<()> {
        let s = self.system;
        self.there.fill(0);
        self.turn.fill(START);
        self.queue.fill(START);
        self.joules.fill(0.0);
        (self.latest, self.serial, self.copying) = (0.0, 0.0, 0.0);
        self.ends.clear();
        self.causes.clear();
        for (i, run) in list.iter().enumerate() {
            self.position[run.task] = i as u32;
            self.device[run.task] = run.device;
        }
        if self.counts_bytes {
            for rises in &mut self.rises {
                rises.clear();
                rises.resize(s.tasks + 2, 0.0);
            }
        }
        if s.has_residents {
            self.room.copy_from_slice(&s.room);
            for run in list {
                self.room[run.device] -= s.way(run.task, run.device)?.resident;
            }
        }
        Some(())
    }

    /// A value that appears on a device.
    fn put(&mut self, v: usize, d: usize, at: Moment) {
        (self.there[v], self.sent[v]) = (1 << d, 0);
        let cell = self.system.cell(v, d);
        (self.written[cell], self.read[cell]) = (at, at);
    }

    /// Notes for which devices a value that is on one must be copied.
    fn request(&mut self, v: usize, d: usize) {
        for &(task, input) in &self.readers[v] {
            let device = self.device[task as usize];
            if device != d {
                let at = (self.position[task as usize], input);
                self.requests.push(Request {
                    at,
                    value: v,
                    device,
                });
            }
        }
        if let End::On(device) = self.system.end[v]
            && device != d
        {
            let at = (NONE, v as u32);
            self.requests.push(Request {
                at,
                value: v,
                device,
            });
        }
    }

    /// Makes the copies that were noted, in the order of their uses; `None` if there is no way.
    fn serve(&mut self) -> Option<()> {
        let mut requests = std::mem::take(&mut self.requests);
        if requests.len() > 1 {
            requests.sort_unstable();
        }
        for request in &requests {
            self.bring(request.value, request.device)?;
        }
        requests.clear();
        self.requests = requests;
        Some(())
    }

    /// Copies a value to a device over the quickest way, unless it is there.
    fn bring(&mut self, v: usize, to: usize) -> Option<()> {
        let s = self.system;
        let there = self.there[v];
        if there >> to & 1 == 1 {
            return Some(());
        }
        let mut at = there.trailing_zeros() as usize;
        if there.count_ones() > 1 {
            let seconds = members(there).filter_map(|d| Some((s.copying(v, d, to)?, d)));
            at = seconds.min_by(|a, b| a.0.total_cmp(&b.0))?.1;
        }
        for hop in s.way_to(at, to) {
            if there >> hop & 1 == 0 {
                self.copy(v, at, hop)?;
            }
            at = hop;
        }
        (at == to).then_some(())
    }

    fn copy(&mut self, v: usize, from: usize, to: usize) -> Option<()> {
        let s = self.system;
        let (source, target) = (s.cell(v, from), s.cell(v, to));
        let wire = s.wire(from, to)?;
        for old in s.replaced(v, to) {
            if self.there[old] >> to & 1 == 1 {
                let read = self.read[s.cell(old, to)];
                wait(&mut self.turn[to], read);
                self.there[old] = 0;
            }
        }
        let mut start = self.turn[to];
        if let Some(queue) = wire.queue {
            wait(&mut start, self.queue[queue]);
        }
        wait(&mut start, self.written[source]);
        let end = (start.0 + wire.seconds[v], start.1);
        wait(&mut self.read[source], end);
        (self.written[target], self.read[target]) = (end, end);
        if let Some(queue) = wire.queue {
            self.queue[queue] = end;
        }
        for device in [from, to] {
            if s.computes[device] && !s.concurrent[device] {
                self.turn[device].0 += wire.drag * wire.seconds[v];
            }
        }
        self.there[v] |= 1 << to;
        if s.computes[from] && !s.concurrent[from] {
            self.sent[v] |= 1 << from;
        }
        self.latest = self.latest.max(end.0);
        self.serial += wire.seconds[v];
        self.copying += wire.joules[v];
        Some(())
    }

    fn run(&mut self, i: u32, Run { task, device }: Run) -> Option<()> {
        let s = self.system;
        let way = s.way(task, device)?;
        let mut start = self.turn[device];
        for &(v, overwritten) in &s.inputs[task] {
            if self.there[v] >> device & 1 == 0 {
                return None;
            }
            let cell = s.cell(v, device);
            wait(&mut start, self.written[cell]);
            if overwritten {
                wait(&mut start, self.read[cell]);
            }
        }
        let end = (start.0 + way.seconds, i);
        for &(v, _) in s.inputs[task]
            .iter()
            .filter(|(_, overwritten)| *overwritten)
        {
            // A later reader of a copy is out of order; at home it stays.
            let others = self.there[v] & !(1 << device);
            self.there[v] = members(others)
                .filter(|&d| s.is_home(v, d))
                .map(|d| 1 << d)
                .sum();
        }
        if !s.concurrent[device] {
            self.turn[device] = end;
        } else {
            for &(v, _) in &s.inputs[task] {
                wait(&mut self.read[s.cell(v, device)], end);
            }
        }
        self.latest = self.latest.max(end.0);
        self.serial += way.seconds;
        self.joules[device] += way.joules;
        self.ends.push(end.0);
        self.causes.push(start.1);
        for &v in &s.outputs[task] {
            self.put(v, device, end);
            self.request(v, device);
        }
        self.serve()?;
        if self.counts_bytes {
            self.rise(device, [i, i], way.workspace);
            for &v in &s.outputs[task] {
                self.hold(v, i);
            }
        }
        Some(())
    }

    /// Counts a value's bytes where it is, from a run on: until the last use anywhere, or to the end where copies
    /// read it, since the decoder holds it there as long as it can.
    fn hold(&mut self, v: usize, from: u32) {
        let s = self.system;
        let end = s.tasks as u32;
        let readers = self.readers[v].iter();
        let last = readers.map(|&(task, _)| self.position[task as usize]).max();
        let last = match s.end[v] {
            End::Nowhere => last.unwrap_or(from),
            End::Anywhere | End::On(_) => end,
        };
        for d in members(self.there[v]) {
            let last = if self.sent[v] >> d & 1 == 1 {
                end
            } else {
                last
            };
            self.rise(d, [from, last], s.held(v, d));
        }
    }

    /// Counts bytes in use from one run to another.
    fn rise(&mut self, d: usize, [first, last]: [u32; 2], bytes: f64) {
        self.rises[d][first as usize] += bytes;
        self.rises[d][last as usize + 1] -= bytes;
    }

    /// By how much resident bytes exceed capacities; `None` if bytes of values are missing, too.
    fn shortage(&self) -> Option<f64> {
        let s = self.system;
        let mut over = 0.0;
        for d in 0..s.devices {
            if self.room[d] < 0.0 {
                over -= self.room[d] / s.room[d].max(1.0);
            }
            if self.counts_bytes && self.room[d].is_finite() {
                let mut level = 0.0;
                for rise in &self.rises[d] {
                    level += rise;
                    if level > self.room[d] {
                        return None;
                    }
                }
            }
        }
        Some(over)
    }
}

/// The members of a set of devices, in order.
fn members(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (first < MOST_DEVICES).then_some(first)
    })
}
