//! A walk over lists of runs: annealing of where and when tasks run and of which run again.

use crate::cutoff::Cutoff;
use crate::devices::beam::{Beam, STATE, Taste};
use crate::devices::decode::{Act, Decoder, Run};
use crate::devices::roomy::{Judged, Roomy};
use crate::devices::system::System;
use crate::devices::timing::Timing;
use crate::method::Objective;
use crate::random::Random;

/// The temperatures at which a round starts and ends, as fractions of the cost.
const HOT: f64 = 0.02;
const COLD: f64 = 1e-5;
/// What exceeding a capacity by all of it costs, as a multiple of the cost of the first list.
const PENALTY: f64 = 20.0;
/// After so many lists that need the decoder, the quick pass is tried once in so many.
const DECLINED: u32 = 16;
/// The decoder's work per run that the quick pass does per run.
const QUICK: u64 = 4;
/// The share of work for windows: one part beside so many. Their most runs, if that is more than a third of all; the
/// most states of their beam; and by how much its scores are blurred at most.
const WINDOWS: u64 = 2;
const WINDOW: usize = 64;
const WIDTH: usize = 64;
const BLUR: f64 = 0.01;
/// The clock is read once in so many lists.
const CHECKS: u32 = 16;

/// A list of runs and what it makes.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub cost: f64,
    /// By how much it exceeds capacities, as a sum of fractions of them.
    pub over: f64,
    /// The list as the decoder takes it.
    pub list: Vec<Run>,
}

impl Plan {
    pub fn is_better(&self, other: &Plan) -> bool {
        (self.over, self.cost) < (other.over, other.cost)
    }
}

pub(super) struct Walk<'s> {
    system: &'s System,
    roomy: Roomy<'s>,
    decoder: Decoder<'s>,
    timing: Timing<'s>,
    beam: Beam<'s>,
    /// Whether the candidate was judged without the decoder, and how many in a row weren't.
    quick: bool,
    /// Whether windows can be placed afresh: values' bytes don't matter for the current list.
    windowed: bool,
    declined: u32,
    random: Random,
    /// Whether first runs keep index order.
    fixed: bool,
    current: Vec<Run>,
    /// The cost of the current list with its penalty.
    energy: f64,
    penalty: f64,
    /// When each run of the current list ends, by its index, and the runs that decide its makespan.
    ends: Vec<f64>,
    critical: Vec<usize>,
    candidate: Vec<Run>,
    /// The index of each task's first run in the current list.
    first: Vec<usize>,
    marked: Vec<bool>,
    pub best: Option<Plan>,
    pub work: u64,
}

impl<'s> Walk<'s> {
    pub fn new(system: &'s System, fixed: bool, random: Random) -> Walk<'s> {
        Walk {
            system,
            roomy: Roomy::new(system),
            decoder: Decoder::new(system),
            timing: Timing::new(system),
            beam: Beam::new(system),
            quick: false,
            windowed: false,
            declined: 0,
            random,
            fixed,
            current: Vec::new(),
            energy: f64::INFINITY,
            penalty: 0.0,
            ends: Vec::new(),
            critical: Vec::new(),
            candidate: Vec::new(),
            first: vec![0; system.tasks],
            marked: vec![false; system.tasks],
            best: None,
            work: 0,
        }
    }

    /// Judges the candidate: its cost and by how much it exceeds capacities.
    fn judge(&mut self) -> Option<(f64, f64)> {
        let tries = self.declined < DECLINED || self.declined.is_multiple_of(DECLINED);
        let judged = tries.then(|| self.roomy.judge(&self.candidate)).flatten();
        self.quick = judged.is_some();
        if let Some(Judged { cost, over }) = judged {
            self.work += self.candidate.len() as u64 / QUICK + 1;
            self.declined = 0;
            return Some((cost, over));
        }
        self.declined = self.declined.wrapping_add(1);
        let made = self.decoder.decode(&self.candidate);
        self.work += (self.candidate.len() + self.decoder.acts.len()) as u64;
        if !made {
            return None;
        }
        let cost = self.timing.cost(&self.decoder.acts);
        let caps = self.system.joules.iter().zip(&self.timing.joules);
        let joules: f64 = caps
            .filter(|&(cap, used)| used > cap)
            .map(|(cap, used)| (used - cap) / cap.max(f64::MIN_POSITIVE))
            .sum();
        cost.is_finite()
            .then_some((cost, self.decoder.over + joules))
    }

    /// Starts from a list; false if it makes no plan.
    pub fn start(&mut self, list: &[Run]) -> bool {
        self.candidate.clear();
        self.candidate.extend_from_slice(list);
        let Some((cost, over)) = self.judge() else {
            return false;
        };
        self.penalty = PENALTY * cost;
        self.energy = f64::INFINITY;
        self.accept(cost, over);
        true
    }

    fn accept(&mut self, cost: f64, over: f64) {
        self.energy = cost + self.penalty * over;
        self.windowed = self.quick && self.system.objective == Objective::Makespan;
        self.ends.clear();
        self.critical.clear();
        if self.quick {
            self.current.clone_from(&self.candidate);
            self.ends.extend_from_slice(&self.roomy.ends);
            self.roomy.critical(|k| self.critical.push(k));
        } else {
            self.current.clone_from(&self.decoder.runs);
            if self.timing.ends.len() == self.decoder.acts.len() {
                let acts = self.decoder.acts.iter().zip(&self.timing.ends);
                let runs = acts.filter(|(act, _)| matches!(act, Act::Run(_)));
                self.ends.extend(runs.map(|(_, &end)| end));
                self.find_critical();
            }
        }
        for (k, run) in self.current.iter().enumerate().rev() {
            self.first[run.task] = k;
        }
        let better = self
            .best
            .as_ref()
            .is_none_or(|b| (over, cost) < (b.over, b.cost));
        if better {
            self.best = Some(Plan {
                cost,
                over,
                list: self.candidate.clone(),
            });
        }
    }

    /// Finds the runs that decide the makespan.
    fn find_critical(&mut self) {
        let (acts, critical) = (&self.decoder.acts, &mut self.critical);
        self.timing.critical(|k| {
            if matches!(acts[k], Act::Run(_)) {
                critical.push(k);
            }
        });
        // From indices of acts to indices of runs; the chain goes back in time.
        let mut runs = 0;
        let mut next = critical.len();
        for (k, act) in acts.iter().enumerate() {
            if next > 0 && critical[next - 1] == k {
                next -= 1;
                critical[next] = runs;
            }
            runs += usize::from(matches!(act, Act::Run(_)));
        }
    }

    /// A run to change: each one, or one that decides the makespan.
    fn pick(&mut self) -> usize {
        match self.critical.len() {
            count if count > 0 && self.random.below(2) == 0 => {
                self.critical[self.random.below(count)]
            }
            _ => self.random.below(self.candidate.len()),
        }
    }

    /// Anneals with this much work, from hot (1) or less.
    pub fn anneal(&mut self, work: u64, heat: f64, enough: f64, cutoff: Cutoff<'_>) {
        let (from, to) = (self.work, self.work + work);
        let mut checks = 0;
        let mut windows = 0;
        let (mut hot, mut cold) = (0.0, 0.0);
        while self.work < to {
            if checks % CHECKS == 0 {
                if cutoff.reached() || self.is_enough(enough) {
                    return;
                }
                let cost = self.best.as_ref().map_or(self.energy, |best| best.cost);
                (hot, cold) = (HOT * heat * cost, COLD * cost);
            }
            checks += 1;
            let done = (self.work - from) as f64 / work as f64;
            let temperature = hot * (cold / hot).powf(done);
            let made = self.beam.made;
            let changed = match self.windowed && windows * (WINDOWS + 1) < self.work - from {
                true => self.place_window(),
                false => self.mutate(),
            };
            let states = STATE * (self.beam.made - made);
            if states > 0 {
                // Windows take long: look at the clock.
                checks = 0;
            }
            windows += states;
            self.work += states;
            if !changed {
                self.work += 1;
                continue;
            }
            let Some((cost, over)) = self.judge() else {
                continue;
            };
            let rise = cost + self.penalty * over - self.energy;
            if rise <= 0.0 || self.random.unit() < (-rise / temperature).exp() {
                self.accept(cost, over);
            }
        }
    }

    fn is_enough(&self, enough: f64) -> bool {
        let best = self.best.as_ref();
        best.is_some_and(|best| best.over == 0.0 && best.cost <= enough)
    }

    /// Changes the candidate, which begins as the current list; false if nothing changed.
    fn mutate(&mut self) -> bool {
        self.candidate.clone_from(&self.current);
        let draw = self.random.below(100);
        match draw {
            0..20 => self.place_one(),
            20..36 => self.place_segment(),
            36..52 => self.place_cluster(),
            52..64 => self.swap_devices(),
            64..80 => self.move_run(),
            80..89 => self.run_again(),
            89..95 => self.run_once(),
            _ => self.sort_by_time(),
        }
    }

    /// A length up to `most`; each power of two is as likely.
    fn length(&mut self, most: usize) -> usize {
        let most = most.max(1) as f64;
        (most.powf(self.random.unit()) as usize).max(1)
    }

    /// A device on which a run's task can run, other than its own; often that of a neighbour.
    fn other_device(&mut self, at: usize) -> Option<usize> {
        let s = self.system;
        let Run { task, device } = self.candidate[at];
        let near = s.before[task].len() + s.after[task].len();
        if near > 0 && self.random.below(3) > 0 {
            let k = self.random.below(near);
            let before = &s.before[task];
            let near = before
                .get(k)
                .or_else(|| s.after[task].get(k - before.len()));
            let near = self.candidate[self.first[*near?]];
            return (near.device != device).then_some(near.device);
        }
        let k = self.random.below(s.devices);
        (k != device && s.way(task, k).is_some()).then_some(k)
    }

    /// Puts a run, and what must be with it, on a device.
    fn place(&mut self, at: usize, device: usize) -> bool {
        let s = self.system;
        let Run { task, device: old } = self.candidate[at];
        let can = |task: &usize| s.way(*task, device).is_some();
        if old == device || !can(&task) || !s.group[task].iter().all(can) {
            return false;
        }
        if self.candidate.len() == s.tasks {
            // Every task runs once.
            for &other in s.group[task].iter().chain([&task]) {
                self.candidate[self.first[other]].device = device;
            }
            return true;
        }
        if !s.group[task].is_empty() {
            let group = &s.group[task];
            let runs = self.candidate.iter_mut();
            for run in runs.filter(|run| run.task == task || group.contains(&run.task)) {
                run.device = device;
            }
            return true;
        }
        self.candidate[at].device = device;
        if s.arithmetic[old] != s.arithmetic[device] {
            // Runs of one task have one arithmetic.
            let same = |run: &Run| s.arithmetic[run.device] == s.arithmetic[device];
            let others = self.candidate.iter_mut();
            for run in others.filter(|run| run.task == task && !same(run)) {
                run.device = device;
            }
        }
        true
    }

    /// Places a window of the list afresh.
    fn place_window(&mut self) -> bool {
        let n = self.current.len();
        let length = self.length(WINDOW.max(n / 3)).max(2);
        let width = self.length(WIDTH);
        self.candidate.clone_from(&self.current);
        let from = self.pick().saturating_sub(self.random.below(length));
        let window = from..(from + length).min(n);
        let taste = Taste {
            width,
            blur: BLUR * self.random.unit(),
            caution: 1.0,
        };
        let random = &mut self.random;
        let Some(list) = self.beam.window(&self.current, window, taste, random) else {
            return false;
        };
        self.candidate = list;
        if self.fixed {
            self.candidate.sort_by_key(|run| run.task);
        }
        self.candidate != self.current
    }

    fn place_one(&mut self) -> bool {
        let at = self.pick();
        let device = self.other_device(at);
        device.is_some_and(|device| self.place(at, device))
    }

    /// Puts successive runs on one device.
    fn place_segment(&mut self) -> bool {
        let n = self.candidate.len();
        let at = self.pick();
        let Some(device) = self.other_device(at) else {
            return false;
        };
        let length = self.length(n);
        let mut changed = false;
        for k in at..(at + length).min(n) {
            changed |= self.place(k, device);
        }
        changed
    }

    /// Puts a connected set of tasks of one device on another.
    fn place_cluster(&mut self) -> bool {
        let s = self.system;
        let n = self.candidate.len();
        let at = self.pick();
        let Some(device) = self.other_device(at) else {
            return false;
        };
        let most = self.length(s.tasks);
        let old = self.candidate[at].device;
        let mut members = vec![self.candidate[at].task];
        self.marked[members[0]] = true;
        let mut k = 0;
        while k < members.len() && members.len() < most {
            let t = members[k];
            k += 1;
            for &u in s.before[t].iter().chain(&s.after[t]) {
                let there = self.candidate[self.first[u]].device == old;
                if there && !self.marked[u] && members.len() < most {
                    self.marked[u] = true;
                    members.push(u);
                }
            }
        }
        let mut changed = false;
        for k in 0..n {
            let run = self.candidate[k];
            if self.marked[run.task] && run.device == old {
                changed |= self.place(k, device);
            }
        }
        members.iter().for_each(|&t| self.marked[t] = false);
        changed
    }

    /// Swaps the devices of two segments.
    fn swap_devices(&mut self) -> bool {
        let n = self.candidate.len();
        let (one, other) = (self.pick(), self.random.below(n));
        let (here, there) = (self.candidate[one].device, self.candidate[other].device);
        if here == there {
            return false;
        }
        let length = self.length(n / 4);
        let mut changed = false;
        for (at, from, to) in [(one, here, there), (other, there, here)] {
            for k in at..(at + length).min(n) {
                if self.candidate[k].device == from {
                    changed |= self.place(k, to);
                }
            }
        }
        changed
    }

    /// Moves a run to another place in the order.
    fn move_run(&mut self) -> bool {
        let s = self.system;
        let at = self.pick();
        let task = self.candidate[at].task;
        let first = self.first[task] == at;
        if first && self.fixed {
            return false;
        }
        let low = s.before[task].iter().map(|&u| self.first[u] + 1).max();
        let mut low = low.unwrap_or(0);
        let mut high = self.candidate.len() - 1;
        if first {
            let after = s.after[task].iter().map(|&u| self.first[u]);
            high = after.min().map_or(high, |next| next.saturating_sub(1));
        } else {
            low = low.max(self.first[task] + 1);
        }
        if high <= low || !(low..=high).contains(&at) {
            return false;
        }
        let reach = self.length(high - low);
        let to = match self.random.below(2) {
            0 => at.saturating_sub(reach).max(low),
            _ => (at + reach).min(high),
        };
        match to.cmp(&at) {
            std::cmp::Ordering::Less => self.candidate[to..=at].rotate_right(1),
            std::cmp::Ordering::Greater => self.candidate[at..=to].rotate_left(1),
            std::cmp::Ordering::Equal => return false,
        }
        true
    }

    /// Runs a producer again before one of its consumers, on the consumer's device.
    fn run_again(&mut self) -> bool {
        let s = self.system;
        let at = self.pick();
        let Run { task, device } = self.candidate[at];
        let inputs = &s.inputs[task];
        if inputs.is_empty() {
            return false;
        }
        let (v, _) = inputs[self.random.below(inputs.len())];
        let Some(producer) = s.producer[v] else {
            return false;
        };
        let made = self.candidate[..at].iter().find(|run| run.task == producer);
        let same = made.is_some_and(|run| s.arithmetic[run.device] == s.arithmetic[device]);
        let group = s.group[producer].is_empty() || made.is_some_and(|run| run.device == device);
        if !group || !s.rerunnable[producer] || s.way(producer, device).is_none() || !same {
            return false;
        }
        let run = Run {
            task: producer,
            device,
        };
        self.candidate.insert(at, run);
        true
    }

    /// Takes a second run out.
    fn run_once(&mut self) -> bool {
        let n = self.candidate.len();
        if n == self.system.tasks {
            return false;
        }
        let from = self.random.below(n);
        let order = (from..n).chain(0..from);
        let second = order
            .into_iter()
            .find(|&k| self.first[self.candidate[k].task] != k);
        second.is_some_and(|k| {
            self.candidate.remove(k);
            true
        })
    }

    /// Issues runs by when they end, so that copies begin before runs that end later.
    fn sort_by_time(&mut self) -> bool {
        if self.fixed || self.ends.len() != self.candidate.len() {
            return false;
        }
        let mut order: Vec<usize> = (0..self.candidate.len()).collect();
        order.sort_by(|&a, &b| self.ends[a].total_cmp(&self.ends[b]));
        self.candidate.clear();
        let current = &self.current;
        self.candidate.extend(order.iter().map(|&k| current[k]));
        self.candidate != self.current
    }
}
