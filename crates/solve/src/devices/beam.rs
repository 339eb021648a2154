//! A beam over placements: tasks are placed one after another, and of all placements of the tasks so far the most
//! promising go on. All tasks can be placed so, or those of a window while the others stay where they are.
//!
//! A state says when devices and links are free, where and when the values are that tasks still read, and the bytes
//! that are left on each device beside those that tasks take from start to end ([`state`]). What values take while
//! they live doesn't count here; the decoder sees to it. A copy begins when its value has been made and its link is free.
//! Copies of a link keep the order in which they are decided: when a task needs a value, or when an earlier one is placed on
//! the same device and takes along what is still to be read.
//!
//! A state is the better the earlier it can end, by the longest path of what is left, which changes devices wherever
//! it no longer fits ([`estimate`]). States compete in classes by where the values are that tasks still read, and each
//! class keeps some: what has just been paid for, such as a copy to an empty device, brings in its gain only later. In a
//! class, a state goes on only if none that goes on is better or equal in all that counts.

mod estimate;
mod prepare;
mod state;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::devices::decode::Run;
use crate::devices::system::System;
use crate::random::Random;
use crate::staircase::Staircase;
use prepare::{Port, kinds, ports, slots, steps};

/// Units of work for a state that is made.
pub(super) const STATE: u64 = 4;
/// The states that go on behind a window.
const BEHIND: usize = 4;
/// No slot.
const NONE: usize = usize::MAX;

/// The device of a step's tasks, and whether what tasks still read is copied there first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Choice {
    device: u8,
    ahead: bool,
}

/// A kept state's way there: the state before it, by its index in that step, and the step's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Link {
    parent: u32,
    choice: Choice,
}

/// A state that may be kept.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    score: f64,
    link: Link,
    class: u64,
}

/// What makes one beam different from another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taste {
    /// The most states that go on from each step.
    pub width: usize,
    /// Scores are multiplied by up to one plus this.
    pub blur: f64,
    /// The weight of what is left, beside what is done.
    pub caution: f64,
}

/// What the beam knows of a system.
pub(super) struct Beam<'s> {
    system: &'s System,
    /// Devices that are alike have the same number, that of the first.
    kind: Vec<usize>,
    ports: Vec<Vec<Port>>,
    /// States that were made since the beginning.
    pub made: u64,
}

impl<'s> Beam<'s> {
    pub fn new(system: &'s System) -> Beam<'s> {
        Beam {
            system,
            kind: kinds(system),
            ports: ports(system),
            made: 0,
        }
    }

    /// A list of runs in the order of their ends; none if the beam comes to nothing.
    pub fn all(&mut self, taste: Taste, random: &mut Random) -> Option<Vec<Run>> {
        let order: Vec<usize> = (0..self.system.tasks).collect();
        let ground = Ground::new(self, &order, None);
        let (list, made) = ground.search(taste, random);
        self.made += made;
        list
    }

    /// The list that comes of placing some runs of a list afresh, given by their indices. The list has every task once.
    pub fn window(
        &mut self,
        list: &[Run],
        window: Range<usize>,
        taste: Taste,
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
        let ground = Ground::new(self, &order, Some(stays));
        let (list, made) = ground.search(taste, random);
        self.made += made;
        list
    }
}

/// What doesn't depend on the state.
struct Ground<'b> {
    system: &'b System,
    ports: &'b [Vec<Port>],
    /// Devices that are alike and unused by tasks that stay have the same number.
    kind: Vec<usize>,
    unique: Vec<bool>,
    /// The tasks of each step, which go to one device if they can: some without inputs, and the step's own task.
    steps: Vec<Vec<usize>>,
    /// The steps between which something is chosen.
    chosen: Range<usize>,
    /// By task: where it stays.
    stays: Vec<Option<usize>>,
    /// By device: the bytes that are left beside the tasks that stay, and whether none stays.
    room: Vec<f64>,
    unused: Vec<bool>,
    /// By task and device: the bytes that the task's step takes there beside those that stay, and the least seconds behind
    /// a run there, by the bytes that are left.
    takes: Vec<f64>,
    behind: Vec<Staircase>,
    /// Where a state has a value's times by device, and the step that makes it.
    slot: Vec<usize>,
    made: Vec<usize>,
    /// The values that are in use after each step that chooses, and the tasks that read some of them.
    live: Vec<Vec<usize>>,
    front: Vec<Vec<usize>>,
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
    fn new<'b>(
        beam: &'b Beam<'_>,
        order: &[usize],
        stays: Option<Vec<Option<usize>>>,
    ) -> Ground<'b> {
        let s = beam.system;
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
        let kind = |(d, &unused): (usize, &bool)| if unused { beam.kind[d] } else { d };
        let kind: Vec<usize> = unused.iter().enumerate().map(kind).collect();
        let alike = |k: &usize| kind.iter().filter(|&other| other == k).count();
        let unique = kind.iter().map(|k| alike(k) == 1).collect();
        let free = |tasks: &Vec<usize>| tasks.last().is_some_and(|&t| stays[t].is_none());
        let first = steps.iter().position(free).unwrap_or(0);
        let last = steps.iter().rposition(free).unwrap_or(0);
        let made = |v: usize| s.producer[v].map_or(0, |t| step_of[t].0);
        let read = |v: usize| s.consumers[v].iter().map(|&t| step_of[t].0).max();
        let spans = (0..s.values).map(|v| Some((made(v), read(v)?))).collect();
        let (slot, slots) = slots(steps.len(), spans);
        let (mut live, mut front) = (vec![Vec::new(); steps.len()], vec![Vec::new(); steps.len()]);
        let judged = |from: usize, to: usize| from.max(first)..to.min(last + 2);
        let mut values: Vec<usize> = (0..s.values).collect();
        values.sort_by_key(|&v| made(v));
        for v in values {
            for step in judged(made(v), read(v).unwrap_or(0)) {
                live[step].push(v);
            }
        }
        for (k, tasks) in steps.iter().enumerate() {
            let Some(&t) = tasks.last() else { continue };
            let inputs = s.inputs[t].iter().map(|&(v, _)| made(v));
            for step in judged(inputs.min().unwrap_or(k), k) {
                front[step].push(t);
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
        let at_queues = 2 * s.devices;
        let at_slots = at_queues + s.queues;
        let at_groups = at_slots + slots * s.devices;
        let mut ground = Ground {
            system: s,
            ports: &beam.ports,
            kind,
            unique,
            steps,
            chosen: first..last + 2,
            stays,
            room,
            unused,
            takes: Vec::new(),
            behind: Vec::new(),
            slot,
            made: (0..s.values).map(made).collect(),
            live,
            front,
            group: opens.iter().map(|&first| by_first[first]).collect(),
            opens: opens.iter().map(|&t| (step_of[t].0, t)).collect(),
            at_queues,
            at_slots,
            at_groups,
            at_latest: at_groups + groups,
        };
        ground.look_ahead();
        ground
    }

    /// The best list, and the number of states that were made.
    fn search(&self, taste: Taste, random: &mut Random) -> (Option<Vec<Run>>, u64) {
        let size = self.at_latest + 1;
        let mut states = self.first();
        let mut links: Vec<Vec<Link>> = Vec::with_capacity(self.steps.len());
        let (mut made, mut scratch) = (0, Vec::with_capacity(size));
        let (mut candidates, mut next) = (Vec::new(), Vec::new());
        for step in 0..self.steps.len() {
            if !self.chosen.contains(&step) || self.only_one(&states, step) {
                let mut kept = Vec::new();
                for (parent, state) in states.chunks_exact_mut(size).enumerate() {
                    let Some(choice) = self.choices(state, step).first().copied() else {
                        return (None, made);
                    };
                    if self.place(state, step, choice).is_none() {
                        return (None, made);
                    }
                    let parent = parent as u32;
                    kept.push(Link { parent, choice });
                }
                made += kept.len() as u64;
                links.push(kept);
                continue;
            }
            candidates.clear();
            for (parent, state) in states.chunks_exact(size).enumerate() {
                for choice in self.choices(state, step) {
                    scratch.clear();
                    scratch.extend_from_slice(state);
                    made += 1;
                    if self.place(&mut scratch, step, choice).is_none() {
                        continue;
                    }
                    let parent = parent as u32;
                    let blur = 1.0 + taste.blur * random.unit();
                    candidates.push(Candidate {
                        score: self.score(&scratch, step, taste.caution) * blur,
                        link: Link { parent, choice },
                        class: self.class(&scratch, step),
                    });
                }
            }
            let most = if step + 1 < self.chosen.end {
                taste.width
            } else {
                taste.width.min(BEHIND)
            };
            next.clear();
            let kept = self.select(&mut candidates, &states, step, most, &mut next);
            std::mem::swap(&mut states, &mut next);
            links.push(kept);
        }
        let ends = states.chunks_exact(size).map(|state| state[self.at_latest]);
        let best = ends.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
        (best.map(|(state, _)| self.list(&links, state)), made)
    }

    /// Whether there is one state and its step has nothing to choose.
    fn only_one(&self, states: &[f64], step: usize) -> bool {
        let stays = self.steps[step]
            .last()
            .is_some_and(|&t| self.stays[t].is_some());
        stays && step + 2 < self.chosen.end && states.len() == self.at_latest + 1
    }

    /// The best candidates, best first: in each class its share, and the best of what is left. Their states go to `next`.
    fn select(
        &self,
        candidates: &mut [Candidate],
        states: &[f64],
        step: usize,
        width: usize,
        next: &mut Vec<f64>,
    ) -> Vec<Link> {
        candidates.sort_by(|a, b| a.score.total_cmp(&b.score).then(a.link.cmp(&b.link)));
        let size = self.at_latest + 1;
        let mut classes: HashMap<u64, Vec<Vec<f64>>> = HashMap::new();
        for candidate in candidates.iter() {
            classes.entry(candidate.class).or_default();
        }
        let share = (width / 2 / classes.len().max(1)).max(1);
        let mut others = width.div_ceil(2);
        let mut kept = Vec::with_capacity(width);
        for candidate in candidates.iter() {
            let Some(class) = classes.get_mut(&candidate.class) else {
                continue;
            };
            let own = class.len() < share;
            if kept.len() == width {
                break;
            }
            if !own && others == 0 {
                continue;
            }
            let begin = next.len();
            let from = candidate.link.parent as usize * size;
            next.extend_from_slice(&states[from..from + size]);
            // It could be placed before.
            let placed = self.place(&mut next[begin..], step, candidate.link.choice);
            debug_assert!(placed.is_some(), "a kept state is placed");
            let features = self.features(&next[begin..], step);
            let no_better = |other: &Vec<f64>| other.iter().zip(&features).all(|(a, b)| a <= b);
            if class.iter().any(no_better) {
                next.truncate(begin);
                continue;
            }
            class.push(features);
            others -= usize::from(!own);
            kept.push(candidate.link);
        }
        kept
    }

    /// The runs that led to a state, in the order of their ends.
    fn list(&self, links: &[Vec<Link>], state: usize) -> Vec<Run> {
        let mut choices = Vec::with_capacity(links.len());
        let mut at = state;
        for kept in links.iter().rev() {
            choices.push(kept[at].choice);
            at = kept[at].parent as usize;
        }
        choices.reverse();
        let mut state = self.first();
        let mut runs = Vec::with_capacity(self.system.tasks);
        for (step, choice) in choices.into_iter().enumerate() {
            self.bring_ahead(&mut state, step, choice);
            for &task in &self.steps[step] {
                if let Some((device, end)) = self.run(&mut state, task, choice.device.into()) {
                    runs.push((end, Run { task, device }));
                }
            }
        }
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        runs.into_iter().map(|(_, run)| run).collect()
    }
}
