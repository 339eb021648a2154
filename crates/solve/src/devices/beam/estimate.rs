//! How promising the states of a beam are, and which of them compete.

use super::{Ground, NONE};
use crate::staircase::Staircase;

/// The weight of the mean of times beside the latest, so that states that end as early differ.
const MEAN: f64 = 1e-3;

impl Ground<'_> {
    fn kin(&self, task: usize, d: usize) -> usize {
        task * self.system.devices + d
    }

    /// Finds what steps take, and the least seconds behind each run, from the last step on. A path goes from a
    /// task to each of its readers. On the same device, these take of what is left there; to another, there is a copy
    /// and all the room there is.
    pub(super) fn look_ahead(&mut self) {
        let s = self.system;
        self.takes = vec![0.0; s.tasks * s.devices];
        for tasks in &self.steps {
            let Some(&own) = tasks.last() else { continue };
            for &t in tasks.iter().filter(|&&t| self.stays[t].is_none()) {
                let members = match (self.group[t] == NONE, self.opens[t].1 == t) {
                    (true, _) => &[],
                    (false, true) => s.group[t].as_slice(),
                    (false, false) => continue,
                };
                for d in 0..s.devices {
                    let bytes = members.iter().chain([&t]);
                    let bytes = bytes.map(|&u| s.way(u, d).map_or(0.0, |way| way.resident));
                    self.takes[own * s.devices + d] += bytes.sum::<f64>();
                }
            }
        }
        self.behind = vec![Staircase::default(); s.tasks * s.devices];
        for step in (self.chosen.start..self.steps.len()).rev() {
            for k in (0..self.steps[step].len()).rev() {
                let task = self.steps[step][k];
                let can = |&d: &usize| self.stays[task].is_none_or(|stays| stays == d);
                let devices = (0..s.devices).filter(|&d| s.way(task, d).is_some());
                let devices: Vec<usize> = devices.filter(can).collect();
                for d in devices {
                    let like = self.kind[d];
                    self.behind[task * s.devices + d] = match like < d {
                        true => self.behind[task * s.devices + like].clone(),
                        false => self.behind(task, d),
                    };
                }
            }
        }
    }

    /// The least seconds behind a run, by the bytes that are left on its device.
    fn behind(&self, task: usize, d: usize) -> Staircase {
        let s = self.system;
        let mut changes = vec![0.0];
        // By reader: the least seconds on other devices; and on this one, with the bytes that it takes.
        let mut readers = Vec::new();
        for &v in &s.outputs[task] {
            for &t in &s.consumers[v] {
                let seconds = |e: usize| s.way(t, e).map(|way| way.seconds);
                let there = |e: usize| {
                    let left = self.room[e] - self.takes[self.kin(t, e)];
                    Some(s.copying(v, d, e)? + seconds(e)? + self.behind[self.kin(t, e)].at(left))
                };
                let stays = self.stays[t];
                let first = |e: usize| self.kind[e] == e || self.kind[e] == d;
                let others = (0..s.devices).filter(|&e| e != d && first(e));
                let others = others.filter(|&e| stays.is_none_or(|stays| stays == e));
                // Tasks of a group are on one device.
                let grouped = self.group[task] != NONE && self.opens[t] == self.opens[task];
                let others = others.filter(|_| !grouped);
                let away = others.filter_map(there).fold(f64::INFINITY, f64::min);
                let here = seconds(d).filter(|_| stays.is_none_or(|stays| stays == d));
                let here = here.map(|seconds| {
                    let takes = self.takes[self.kin(t, d)];
                    let behind = &self.behind[self.kin(t, d)];
                    changes.extend(behind.changes().map(|bytes| bytes + takes));
                    (seconds, takes, behind)
                });
                readers.push((away, here));
            }
        }
        Staircase::new(changes, |bytes| {
            let times = readers.iter().map(|&(away, here)| {
                let here = here.map(|(seconds, takes, behind)| seconds + behind.at(bytes - takes));
                away.min(here.unwrap_or(f64::INFINITY))
            });
            times.fold(0.0, f64::max)
        })
    }

    /// How early a state can end, with so much weight for what is left.
    pub(super) fn score(&self, state: &[f64], step: usize, caution: f64) -> f64 {
        let s = self.system;
        let spare = self.spare(state);
        let mut score = state[self.at_latest];
        for &task in &self.front[step] {
            let bound = self.bound(state, task, step + 1);
            let mut least = f64::INFINITY;
            let devices = match bound {
                Some(d) => d..d + 1,
                None => 0..s.devices.min(64),
            };
            for d in devices {
                let Some(way) = s.way(task, d) else { continue };
                if bound.is_none() && spare >> d & 1 == 1 {
                    continue;
                }
                let left = state[d] - self.takes[self.kin(task, d)];
                let behind = self.behind[self.kin(task, d)].at(left);
                let mut start = match s.concurrent[d] {
                    true => 0.0,
                    false => state[s.devices + d],
                };
                for &(v, _) in s.inputs[task].iter().filter(|(v, _)| self.made[*v] <= step) {
                    let there = state[self.cell(v, d)];
                    start = start.max(match there.is_finite() {
                        true => there,
                        false => self
                            .nearest(state, v, d)
                            .map_or(f64::INFINITY, |near| near.0),
                    });
                }
                least = least.min(start + way.seconds + caution * behind);
            }
            score = score.max(least);
        }
        let live = self.live[step].iter().map(|&v| {
            let cell = self.cell(v, 0);
            let times = state[cell..cell + s.devices].iter().copied();
            times.fold(f64::INFINITY, f64::min)
        });
        score + MEAN * live.sum::<f64>() / self.live[step].len().max(1) as f64
    }

    /// A hash of where the values are that tasks still read; it doesn't matter which of two devices that are alike is
    /// which.
    pub(super) fn class(&self, state: &[f64], step: usize) -> u64 {
        let holds = self.holders(state, step);
        let hashes = holds.map(|(_, hash, _)| mix(hash, 0));
        hashes.fold(0, u64::wrapping_add)
    }

    /// The devices that have values which tasks still read, with a hash of their kind and these values, and the first
    /// time of one.
    fn holders(&self, state: &[f64], step: usize) -> impl Iterator<Item = (usize, u64, f64)> {
        (0..self.system.devices).filter_map(move |d| {
            let (mut hash, mut first) = (self.kind[d] as u64, f64::INFINITY);
            for &v in &self.live[step] {
                let time = state[self.cell(v, d)];
                if time.is_finite() {
                    hash = mix(hash, v as u64 + 1);
                    first = first.min(time);
                }
            }
            first.is_finite().then_some((d, hash, first))
        })
    }

    /// What counts in a state, for states of one class in the same order: the less, the better.
    pub(super) fn features(&self, state: &[f64], step: usize) -> Vec<f64> {
        let s = self.system;
        let mut holders: Vec<(usize, u64, f64)> = self.holders(state, step).collect();
        holders.sort_by(|a, b| a.1.cmp(&b.1).then(a.2.total_cmp(&b.2)));
        let held = holders.iter().map(|holder| 1u64 << (holder.0 % 64));
        let held = held.fold(0, std::ops::BitOr::bitor);
        let mut features = vec![state[self.at_latest]];
        for (d, _, first) in holders {
            if s.room[d].is_finite() {
                features.push(-state[d]);
            }
            if !s.concurrent[d] {
                features.push(state[s.devices + d].max(first));
            }
            // Any of several devices that are alike and have none of the values may be next.
            let known = |e: usize| held >> e & 1 == 1 || self.unique[e];
            for port in self.ports[d].iter().filter(|port| known(port.other)) {
                let free = state[self.at_queues + port.queue];
                features.push(if port.out { free.max(first) } else { free });
            }
            for &v in &self.live[step] {
                let time = state[self.cell(v, d)];
                if time.is_finite() {
                    features.push(time);
                }
            }
        }
        features
    }
}

fn mix(key: u64, with: u64) -> u64 {
    (key ^ with)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}
