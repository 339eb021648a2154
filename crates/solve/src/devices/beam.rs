//! A beam over placements: tasks are placed one after another, and of all placements of the tasks so far the most
//! promising go on. All tasks can be placed so, or those of a window while the others stay where they are.
//!
//! A state says when devices and links are free, where and when the values are that tasks still read, and the bytes
//! that are left on each device beside those that tasks take from start to end. What values take while they live
//! doesn't count here; the decoder sees to it. A copy begins when its value has been made and its link is free.
//!
//! A state is the better the earlier it can end, by the longest path of what is left: with copies to where tasks
//! stay, without copies to tasks that are still to be placed. The price of leaving a device that is nearly full
//! isn't in that. So states compete in classes by the room that is left where the latest values are, and each
//! class keeps some.

mod prepare;

use std::collections::HashSet;
use std::ops::Range;

use crate::devices::decode::Run;
use crate::devices::system::{End, System};
use crate::random::Random;
use prepare::{kinds, slots, steps, tails};

/// Units of work for a state that is made.
pub(super) const STATE: u64 = 2;
/// Classes by room; one more has the states whose latest values are on no device with limited bytes.
const CLASSES: usize = 16;
/// The states that go on behind a window.
const BEHIND: usize = 4;
/// The weight of the mean of times beside the latest, so that states that end as early differ.
const MEAN: f64 = 1e-3;
/// No slot.
const NONE: usize = usize::MAX;

/// A kept state's way there: the state before it, by its index in that step, and the device of the step's tasks.
#[derive(Clone, Copy, Debug)]
struct Link {
    parent: u32,
    device: u8,
}

/// A state that may be kept.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    score: f64,
    link: Link,
    class: usize,
    key: u64,
}

/// What the beam knows of a system.
pub(super) struct Beam<'s> {
    system: &'s System,
    /// Devices that are alike have the same number, that of the first.
    kind: Vec<usize>,
    /// States that were made since the beginning.
    pub made: u64,
}

impl<'s> Beam<'s> {
    pub fn new(system: &'s System) -> Beam<'s> {
        Beam {
            system,
            kind: kinds(system),
            made: 0,
        }
    }

    /// A list of runs in the order of their ends, from a beam of so many states whose scores are multiplied by up to one
    /// plus the blur; none if it comes to nothing.
    pub fn all(&mut self, width: usize, blur: f64, random: &mut Random) -> Option<Vec<Run>> {
        let order: Vec<usize> = (0..self.system.tasks).collect();
        let ground = Ground::new(self.system, &self.kind, &order, None);
        let (list, made) = ground.search(width, &mut || 1.0 + blur * random.unit());
        self.made += made;
        list
    }

    /// The list that comes of placing some runs of a list afresh, given by their indices. The list has every task once.
    pub fn window(
        &mut self,
        list: &[Run],
        window: Range<usize>,
        width: usize,
        blur: f64,
        random: &mut Random,
    ) -> Option<Vec<Run>> {
        let order: Vec<usize> = list.iter().map(|run| run.task).collect();
        let mut stays = vec![None; self.system.tasks];
        for run in list {
            stays[run.task] = Some(run.device);
        }
        let inside: HashSet<usize> = order[window].iter().copied().collect();
        for task in &inside {
            let group = &self.system.group[*task];
            if group.iter().all(|other| inside.contains(other)) {
                stays[*task] = None;
            }
        }
        let ground = Ground::new(self.system, &self.kind, &order, Some(stays));
        let (list, made) = ground.search(width, &mut || 1.0 + blur * random.unit());
        self.made += made;
        list
    }
}

/// What doesn't depend on the state.
struct Ground<'s> {
    system: &'s System,
    /// Devices that are alike and unused by tasks that stay have the same number.
    kind: Vec<usize>,
    /// The tasks of each step, which go to one device if they can.
    steps: Vec<Vec<usize>>,
    /// By task: where it stays.
    stays: Vec<Option<usize>>,
    /// By device: the bytes that are left beside the tasks that stay, and whether none stays.
    room: Vec<f64>,
    unused: Vec<bool>,
    /// By value: seconds of the longest path behind its readers that are to be placed; and behind those that stay, with
    /// the device.
    after: Vec<f64>,
    due: Vec<Vec<(usize, f64)>>,
    /// Where a state has a value's times by device, and the values that are in use after each step.
    slot: Vec<usize>,
    live: Vec<Vec<usize>>,
    /// By task: where a state has its group's device, and the group's first step and task.
    group: Vec<usize>,
    opens: Vec<(usize, usize)>,
    /// The numbers of a state: room and end of each device, end of each queue, the slots, the groups, the latest end.
    at_queues: usize,
    at_slots: usize,
    at_groups: usize,
    at_latest: usize,
}

impl Ground<'_> {
    fn new<'a>(
        s: &'a System,
        kinds: &[usize],
        order: &[usize],
        stays: Option<Vec<Option<usize>>>,
    ) -> Ground<'a> {
        let stays = stays.unwrap_or_else(|| vec![None; s.tasks]);
        let steps = steps(s, order);
        let mut step_of = vec![(0, 0); s.tasks];
        for (k, tasks) in steps.iter().enumerate() {
            for (i, &t) in tasks.iter().enumerate() {
                step_of[t] = (k, i);
            }
        }
        let (mut room, mut unused) = (s.room.clone(), vec![true; s.devices]);
        for (t, &d) in stays.iter().enumerate() {
            if let Some(d) = d {
                room[d] -= s.way(t, d).map_or(0.0, |way| way.resident);
                unused[d] = false;
            }
        }
        let kind = |(d, &unused): (usize, &bool)| if unused { kinds[d] } else { d };
        let kind = unused.iter().enumerate().map(kind).collect();
        let made = |v: usize| s.producer[v].map_or(0, |t| step_of[t].0);
        let read = |v: usize| s.consumers[v].iter().map(|&t| step_of[t].0).max();
        let spans = (0..s.values).map(|v| Some((made(v), read(v)?))).collect();
        let (slot, slots) = slots(steps.len(), spans);
        let mut live = vec![Vec::new(); steps.len()];
        for v in 0..s.values {
            if let Some(last) = read(v) {
                live[made(v)..last].iter_mut().for_each(|live| live.push(v));
            }
        }
        let members = |t: usize| s.group[t].iter().copied().chain([t]);
        let opens = (0..s.tasks).map(|t| members(t).min_by_key(|&u| step_of[u]).unwrap_or(t));
        let opens: Vec<usize> = opens.collect();
        let spans = (0..s.tasks).map(|t| {
            let last = members(t).map(|u| step_of[u].0).max()?;
            let opened = opens[t] == t && !s.group[t].is_empty() && stays[t].is_none();
            opened.then_some((step_of[t].0, last))
        });
        let (by_first, groups) = prepare::slots(steps.len(), spans.collect());
        let (after, due) = tails(s, &steps, &stays);
        let at_queues = 2 * s.devices;
        let at_slots = at_queues + s.queues;
        let at_groups = at_slots + slots * s.devices;
        Ground {
            system: s,
            kind,
            steps,
            stays,
            room,
            unused,
            after,
            due,
            slot,
            live,
            group: opens.iter().map(|&first| by_first[first]).collect(),
            opens: opens.iter().map(|&t| (step_of[t].0, t)).collect(),
            at_queues,
            at_slots,
            at_groups,
            at_latest: at_groups + groups,
        }
    }

    /// The best list, and the number of states that were made.
    fn search(&self, width: usize, blur: &mut dyn FnMut() -> f64) -> (Option<Vec<Run>>, u64) {
        let size = self.at_latest + 1;
        let mut states = self.first();
        let mut links: Vec<Vec<Link>> = Vec::with_capacity(self.steps.len());
        let (mut made, mut scratch, mut seen) = (0, Vec::with_capacity(size), HashSet::new());
        let (mut candidates, mut next) = (Vec::new(), Vec::new());
        let free = |tasks: &Vec<usize>| tasks.last().is_some_and(|&t| self.stays[t].is_none());
        let last = self.steps.iter().rposition(free).unwrap_or(0);
        for step in 0..self.steps.len() {
            if step > last + 1 || !free(&self.steps[step]) && step < last && states.len() == size {
                // Nothing to choose.
                let mut kept = Vec::new();
                for (parent, state) in states.chunks_exact_mut(size).enumerate() {
                    let Some(device) = self.choices(state, step).next() else {
                        return (None, made);
                    };
                    if self.place(state, step, device).is_none() {
                        return (None, made);
                    }
                    kept.push(Link {
                        parent: parent as u32,
                        device: device as u8,
                    });
                }
                made += kept.len() as u64;
                links.push(kept);
                continue;
            }
            candidates.clear();
            for (parent, state) in states.chunks_exact(size).enumerate() {
                for device in self.choices(state, step) {
                    scratch.clear();
                    scratch.extend_from_slice(state);
                    made += 1;
                    if self.place(&mut scratch, step, device).is_none() {
                        continue;
                    }
                    let (score, class, key) = self.judge(&scratch, step);
                    let link = Link {
                        parent: parent as u32,
                        device: device as u8,
                    };
                    candidates.push(Candidate {
                        score: score * blur(),
                        link,
                        class,
                        key,
                    });
                }
            }
            let most = if step <= last {
                width
            } else {
                width.min(BEHIND)
            };
            let kept = select(&mut candidates, most, &mut seen);
            next.clear();
            for link in &kept {
                let from = link.parent as usize * size;
                next.extend_from_slice(&states[from..from + size]);
                let begin = next.len() - size;
                // It could be placed before.
                let placed = self.place(&mut next[begin..], step, usize::from(link.device));
                debug_assert!(placed.is_some(), "a kept state is placed");
            }
            std::mem::swap(&mut states, &mut next);
            links.push(kept);
        }
        let ends = states.chunks_exact(size).map(|state| state[self.at_latest]);
        let best = ends.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
        (best.map(|(state, _)| self.list(&links, state)), made)
    }

    /// The state in which nothing has run.
    fn first(&self) -> Vec<f64> {
        let s = self.system;
        let mut state = self.room.clone();
        state.resize(self.at_slots, 0.0);
        state.resize(self.at_groups, f64::INFINITY);
        state.resize(self.at_latest + 1, 0.0);
        for v in 0..s.values {
            if let Some(d) = s.given[v].filter(|_| self.slot[v] != NONE) {
                state[self.cell(v, d)] = 0.0;
            }
        }
        state
    }

    fn cell(&self, v: usize, d: usize) -> usize {
        self.at_slots + self.slot[v] * self.system.devices + d
    }

    /// The devices for a step: of those that are alike and have nothing yet, only the first.
    fn choices(&self, state: &[f64], step: usize) -> impl Iterator<Item = usize> + use<> {
        let s = self.system;
        let task = self.steps[step].last().copied().unwrap_or(0);
        let group = self.group[task];
        let grouped = group != NONE && self.opens[task].0 < step;
        let fixed = grouped.then(|| state[self.at_groups + group] as usize);
        let fixed = self.stays[task].or(fixed);
        let mut fresh = 0u64;
        let mut choices = 0u64;
        for d in 0..s.devices.min(64) {
            let unused = self.unused[d] && state[d] == self.room[d] && state[s.devices + d] == 0.0;
            let kind = 1u64 << self.kind[d];
            let first = !unused || fresh & kind == 0;
            fresh |= if unused { kind } else { 0 };
            if s.way(task, d).is_some() && fixed.map_or(first, |fixed| fixed == d) {
                choices |= 1 << d;
            }
        }
        (0..64).filter(move |d| choices >> d & 1 == 1)
    }

    /// Places a step's tasks: on the device, or where they or their groups are.
    fn place(&self, state: &mut [f64], step: usize, device: usize) -> Option<()> {
        let mut tasks = self.steps[step].iter();
        tasks.try_for_each(|&task| self.run(state, task, device).map(|_| ()))
    }

    /// The device of a task in a state, which takes its bytes there.
    fn device(&self, state: &mut [f64], task: usize, device: usize) -> Option<usize> {
        let s = self.system;
        if let Some(there) = self.stays[task] {
            return Some(there);
        }
        let group = self.group[task];
        if group == NONE {
            state[device] -= s.way(task, device)?.resident;
        } else if self.opens[task].1 != task {
            return Some(state[self.at_groups + group] as usize);
        } else {
            for &member in s.group[task].iter().chain([&task]) {
                state[device] -= s.way(member, device)?.resident;
            }
            state[self.at_groups + group] = device as f64;
        }
        (state[device] >= 0.0).then_some(device)
    }

    /// Runs a task on the device, or where it or its group is; returns that device and the run's end.
    fn run(&self, state: &mut [f64], task: usize, device: usize) -> Option<(usize, f64)> {
        let s = self.system;
        let d = self.device(state, task, device)?;
        let way = s.way(task, d)?;
        let mut start = match s.concurrent[d] {
            true => 0.0,
            false => state[s.devices + d],
        };
        for &(v, _) in &s.inputs[task] {
            start = start.max(self.bring(state, v, d)?);
        }
        let end = start + way.seconds;
        if !s.concurrent[d] {
            state[s.devices + d] = end;
        }
        let mut latest = end;
        for &v in &s.outputs[task] {
            if let End::On(home) = s.end[v]
                && home != d
            {
                latest = latest.max(end + s.copying(v, d, home)?);
            }
            if self.slot[v] != NONE {
                let cell = self.cell(v, 0);
                state[cell..cell + s.devices].fill(f64::INFINITY);
                state[cell + d] = end;
            }
        }
        state[self.at_latest] = state[self.at_latest].max(latest);
        Some((d, end))
    }

    /// When a value can be on a device, copied from where it is there first.
    fn bring(&self, state: &mut [f64], v: usize, to: usize) -> Option<f64> {
        let s = self.system;
        let target = self.cell(v, to);
        if state[target].is_finite() {
            return Some(state[target]);
        }
        let (_, mut at) = self.nearest(state, v, to)?;
        for hop in s.way_to(at, to) {
            let next = self.cell(v, hop);
            if state[next].is_infinite() {
                let wire = s.wire(at, hop)?;
                let queue = wire.queue.map(|queue| self.at_queues + queue);
                let free = queue.map_or(0.0, |queue| state[queue]);
                let end = state[self.cell(v, at)].max(free) + wire.seconds[v];
                if let Some(queue) = queue {
                    state[queue] = end;
                }
                for d in [at, hop].into_iter().filter(|&d| !s.concurrent[d]) {
                    state[s.devices + d] += wire.drag * wire.seconds[v];
                }
                state[next] = end;
            }
            at = hop;
        }
        Some(state[target])
    }

    /// When a value could be on a device if links were free, and from where.
    fn nearest(&self, state: &[f64], v: usize, to: usize) -> Option<(f64, usize)> {
        let s = self.system;
        let cell = self.cell(v, 0);
        let times = state[cell..cell + s.devices].iter().enumerate();
        let there = times.filter(|(_, time)| time.is_finite());
        let sources = there.filter_map(|(d, time)| Some((time + s.copying(v, d, to)?, d)));
        sources.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// How early a state can end; its class; and a key that equal states share.
    fn judge(&self, state: &[f64], step: usize) -> (f64, usize, u64) {
        let s = self.system;
        let mut score = state[self.at_latest];
        let (mut sum, mut class, mut latest) = (0.0, CLASSES, 0.0f64);
        let mut key = state[self.at_latest].to_bits();
        for &v in &self.live[step] {
            let cell = self.cell(v, 0);
            let times = &state[cell..cell + s.devices];
            let first = times.iter().copied().fold(f64::INFINITY, f64::min);
            score = score.max(first + self.after[v]);
            for &(to, behind) in &self.due[v] {
                let there = self
                    .nearest(state, v, to)
                    .map_or(f64::INFINITY, |there| there.0);
                score = score.max(there + behind);
            }
            sum += first;
            for (d, &time) in times
                .iter()
                .enumerate()
                .filter(|(_, time)| time.is_finite())
            {
                key = mix(key, time.to_bits());
                key = mix(key, self.kind[d] as u64 ^ state[d].to_bits());
                if s.room[d].is_finite() && first >= latest {
                    let left = (state[d] / s.room[d].max(1.0) * CLASSES as f64) as usize;
                    class = left.min(CLASSES - 1);
                }
            }
            latest = latest.max(first);
        }
        for d in 0..s.devices {
            // A sum, so that it doesn't matter which of two devices that are alike is which.
            let left = mix(state[d].to_bits(), self.kind[d] as u64);
            key = key.wrapping_add(mix(left, state[s.devices + d].to_bits()));
        }
        let live = self.live[step].len().max(1) as f64;
        (score + MEAN * sum / live, class, key)
    }

    /// The runs that led to a state, in the order of their ends.
    fn list(&self, links: &[Vec<Link>], state: usize) -> Vec<Run> {
        let s = self.system;
        let mut devices = Vec::with_capacity(links.len());
        let mut at = state;
        for kept in links.iter().rev() {
            devices.push(usize::from(kept[at].device));
            at = kept[at].parent as usize;
        }
        devices.reverse();
        let mut state = self.first();
        let mut runs = Vec::with_capacity(s.tasks);
        for (tasks, &device) in self.steps.iter().zip(&devices) {
            for &task in tasks {
                if let Some((device, end)) = self.run(&mut state, task, device) {
                    runs.push((end, Run { task, device }));
                }
            }
        }
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        runs.into_iter().map(|(_, run)| run).collect()
    }
}

/// The best candidates, best first: in each class its share, and the best of what is left.
fn select(candidates: &mut [Candidate], width: usize, seen: &mut HashSet<u64>) -> Vec<Link> {
    candidates.sort_by(|a, b| {
        (a.score.total_cmp(&b.score))
            .then(a.link.parent.cmp(&b.link.parent))
            .then(a.link.device.cmp(&b.link.device))
    });
    seen.clear();
    let share = width / (2 * (CLASSES + 1));
    let mut counts = [0; CLASSES + 1];
    let mut others = width - share * (CLASSES + 1);
    let mut kept = Vec::with_capacity(width);
    for candidate in candidates.iter() {
        let count = &mut counts[candidate.class];
        let chosen = *count < share || others > 0;
        if !chosen || !seen.insert(candidate.key) {
            continue;
        }
        match *count < share {
            true => *count += 1,
            false => others -= 1,
        }
        kept.push(candidate.link);
    }
    kept
}

fn mix(key: u64, with: u64) -> u64 {
    (key ^ with)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}
