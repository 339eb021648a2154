//! The states of a beam: what placing a step's tasks changes.

use super::{Choice, Ground, NONE};
use crate::devices::system::End;

/// The most values that are copied to a device before a step.
const AHEAD: usize = 4;

impl Ground<'_> {
    /// The state in which nothing has run.
    pub(super) fn first(&self) -> Vec<f64> {
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

    pub(super) fn cell(&self, v: usize, d: usize) -> usize {
        self.at_slots + self.slot[v] * self.system.devices + d
    }

    /// The devices that are like an earlier one which has nothing yet, either.
    pub(super) fn spare(&self, state: &[f64]) -> u64 {
        let s = self.system;
        let (mut fresh, mut spare) = (0u64, 0u64);
        for d in 0..s.devices.min(64) {
            if self.unused[d] && state[d] == self.room[d] && state[s.devices + d] == 0.0 {
                let kind = 1u64 << self.kind[d];
                spare |= u64::from(fresh & kind != 0) << d;
                fresh |= kind;
            }
        }
        spare
    }

    /// The device to which a task is bound when a step begins.
    pub(super) fn bound(&self, state: &[f64], task: usize, step: usize) -> Option<usize> {
        let group = self.group[task];
        let grouped = group != NONE && self.opens[task].0 < step;
        let there = grouped.then(|| state[self.at_groups + group] as usize);
        self.stays[task].or(there)
    }

    /// The choices for a step: each device, and where values are missing, the same with them.
    pub(super) fn choices(&self, state: &[f64], step: usize) -> Vec<Choice> {
        let s = self.system;
        let task = self.steps[step].last().copied().unwrap_or(0);
        let bound = self.bound(state, task, step);
        let spare = if bound.is_none() {
            self.spare(state)
        } else {
            0
        };
        let mut choices = Vec::new();
        for d in 0..s.devices.min(64) {
            if s.way(task, d).is_none() || spare >> d & 1 == 1 || bound.is_some_and(|b| b != d) {
                continue;
            }
            let device = d as u8;
            let ahead = false;
            choices.push(Choice { device, ahead });
            if self.stays[task].is_some() {
                continue;
            }
            let inputs = &s.inputs[task];
            let (mut missing, mut more) = (0, false);
            for v in self.missing(state, step, d) {
                missing += 1;
                more |= inputs.iter().all(|&(input, _)| input != v);
            }
            if more && missing <= AHEAD {
                let ahead = true;
                choices.push(Choice { device, ahead });
            }
        }
        choices
    }

    /// The values that are in use before a step and not on a device, in the order in which they were made.
    fn missing<'a>(
        &'a self,
        state: &'a [f64],
        step: usize,
        device: usize,
    ) -> impl Iterator<Item = usize> + 'a {
        let live = step.checked_sub(1).map(|before| &self.live[before]);
        let live = live.into_iter().flatten().copied();
        live.filter(move |&v| state[self.cell(v, device)].is_infinite())
    }

    /// Copies what is missing to a step's device, if that is the choice.
    pub(super) fn bring_ahead(&self, state: &mut [f64], step: usize, choice: Choice) -> Option<()> {
        if choice.ahead {
            let device = usize::from(choice.device);
            let missing: Vec<usize> = self.missing(state, step, device).collect();
            for v in missing {
                self.bring(state, v, device)?;
            }
        }
        Some(())
    }

    /// Places a step's tasks: on the device, or where they or their groups are.
    pub(super) fn place(&self, state: &mut [f64], step: usize, choice: Choice) -> Option<()> {
        self.bring_ahead(state, step, choice)?;
        let mut tasks = self.steps[step].iter();
        tasks.try_for_each(|&task| self.run(state, task, choice.device.into()).map(|_| ()))
    }

    /// Where a task runs: on the device, or where it or its group is.
    fn home(&self, state: &[f64], task: usize, device: usize) -> usize {
        let group = self.group[task];
        match self.stays[task] {
            Some(there) => there,
            None if group != NONE && self.opens[task].1 != task => {
                state[self.at_groups + group] as usize
            }
            None => device,
        }
    }

    /// Takes the bytes of a task, or of all of the group that it begins, on its device.
    fn take(&self, state: &mut [f64], task: usize, d: usize) -> Option<()> {
        let s = self.system;
        if self.stays[task].is_some() {
            return Some(());
        }
        let group = self.group[task];
        if group == NONE {
            state[d] -= s.way(task, d)?.resident;
        } else if self.opens[task].1 == task {
            for &member in s.group[task].iter().chain([&task]) {
                state[d] -= s.way(member, d)?.resident;
            }
            state[self.at_groups + group] = d as f64;
        }
        (state[d] >= 0.0).then_some(())
    }

    /// Runs a task on the device, or where it or its group is; returns that device and the run's end.
    pub(super) fn run(
        &self,
        state: &mut [f64],
        task: usize,
        device: usize,
    ) -> Option<(usize, f64)> {
        let s = self.system;
        let d = self.home(state, task, device);
        self.take(state, task, d)?;
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

    /// When a value could be on a device, and from where it would come.
    pub(super) fn nearest(&self, state: &[f64], v: usize, to: usize) -> Option<(f64, usize)> {
        let s = self.system;
        let cell = self.cell(v, 0);
        let times = &state[cell..cell + s.devices];
        let mut best: Option<(f64, usize)> = None;
        for from in (0..s.devices).filter(|&from| times[from].is_finite()) {
            let (mut time, mut at) = (times[from], from);
            for hop in s.way_to(from, to) {
                let Some(wire) = s.wire(at, hop) else { break };
                let free = wire
                    .queue
                    .map_or(0.0, |queue| state[self.at_queues + queue]);
                time = time.max(free) + wire.seconds[v];
                at = hop;
            }
            if at == to && best.is_none_or(|best| time < best.0) {
                best = Some((time, from));
            }
        }
        best
    }
}
