//! Lists of runs from which walks start.

use crate::devices::decode::Run;
use crate::devices::system::System;

/// All tasks in index order on one device, if it can run them.
pub(super) fn alone(s: &System, device: usize) -> Option<Vec<Run>> {
    let run = |task| s.way(task, device).map(|_| Run { task, device });
    (0..s.tasks).map(run).collect()
}

/// Tasks by descending rank, each on the device where it ends first, as HEFT has it (Topcuoglu et al. 2002)
/// but without insertion into gaps. In index order, if the order is fixed.
pub(super) fn earliest(s: &System, fixed: bool) -> Option<Vec<Run>> {
    let mean = |task: usize| {
        let ways = (0..s.devices).filter_map(|d| s.way(task, d));
        let (sum, count) = ways.fold((0.0, 0), |(sum, count), way| (sum + way.seconds, count + 1));
        sum / f64::from(count.max(1))
    };
    let wires = s.wires.len().max(1) as f64;
    let copying = |v: usize| s.wires.iter().map(|wire| wire.seconds[v]).sum::<f64>() / wires;
    let mut rank = vec![0.0; s.tasks];
    for t in (0..s.tasks).rev() {
        let mut below = 0.0f64;
        for &v in &s.outputs[t] {
            for &u in &s.consumers[v] {
                below = below.max(copying(v) + rank[u]);
            }
        }
        for &u in &s.after[t] {
            below = below.max(rank[u]);
        }
        rank[t] = mean(t) + below;
    }
    let mut order: Vec<usize> = (0..s.tasks).collect();
    if !fixed {
        // Consumers have larger indices, so equal ranks stay in a right order.
        order.sort_by(|&a, &b| rank[b].total_cmp(&rank[a]));
    }
    let mut load = Load {
        system: s,
        free: vec![0.0; s.devices],
        queue: vec![0.0; s.queues],
        at: vec![None; s.values * s.devices],
    };
    for v in 0..s.values {
        if let Some(d) = s.given[v] {
            load.at[s.cell(v, d)] = Some(0.0);
        }
    }
    let mut room = s.room.clone();
    let mut home: Vec<Option<usize>> = vec![None; s.tasks];
    let mut list = Vec::new();
    for task in order {
        let devices = (0..s.devices).filter(|&d| home[task].is_none_or(|home| home == d));
        let ends = devices.filter_map(|d| {
            let fits = home[task].is_some() || resident(s, task, d)? <= room[d];
            let start = load.start(task, d).filter(|_| fits)?;
            Some((start + s.way(task, d)?.seconds, d))
        });
        let (end, device) = ends.min_by(|a, b| a.0.total_cmp(&b.0))?;
        if home[task].is_none() {
            room[device] -= resident(s, task, device)?;
            home[task] = Some(device);
            s.group[task]
                .iter()
                .for_each(|&other| home[other] = Some(device));
        }
        for &(v, _) in &s.inputs[task] {
            load.arrival(v, device, true);
        }
        for &v in &s.outputs[task] {
            load.at[s.cell(v, device)] = Some(end);
        }
        if !s.concurrent[device] {
            load.free[device] = end;
        }
        list.push(Run { task, device });
    }
    Some(list)
}

/// Devices filled in index order up to their capacities, the fastest first, by the bytes that tasks take from
/// start to end.
pub(super) fn filled(s: &System) -> Option<Vec<Run>> {
    let seconds = |d: usize| {
        let ways = (0..s.tasks).filter_map(|t| s.way(t, d));
        let (sum, count) = ways.fold((0.0, 0), |(sum, count), way| (sum + way.seconds, count + 1));
        (s.tasks - count, sum)
    };
    let mut devices: Vec<(usize, f64, usize)> = (0..s.devices)
        .filter(|&d| s.computes[d])
        .map(|d| (seconds(d).0, seconds(d).1, d))
        .collect();
    devices.sort_by(|a, b| {
        (a.0, a.1)
            .partial_cmp(&(b.0, b.1))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    let mut room = s.room.clone();
    let mut home: Vec<Option<usize>> = vec![None; s.tasks];
    let mut from = 0;
    for task in 0..s.tasks {
        if home[task].is_some() {
            continue;
        }
        let fits = |k: &usize| {
            let d = devices[*k].2;
            resident(s, task, d).is_some_and(|bytes| bytes <= room[d])
        };
        let k = (from..devices.len())
            .find(fits)
            .or_else(|| (0..from).find(fits))?;
        let device = devices[k].2;
        // What is too large for the current device but small enough for a later one doesn't end it.
        if s.room[device].is_finite() {
            from = from.max(k);
        }
        room[device] -= resident(s, task, device)?;
        home[task] = Some(device);
        s.group[task]
            .iter()
            .for_each(|&other| home[other] = Some(device));
    }
    let run = |(task, device): (usize, Option<usize>)| device.map(|device| Run { task, device });
    home.into_iter().enumerate().map(run).collect()
}

/// Bytes that a task and its group take on a device from start to end, if all of them can run there.
fn resident(s: &System, task: usize, device: usize) -> Option<f64> {
    let group = s.group[task].iter().chain([&task]);
    group
        .map(|&t| s.way(t, device).map(|way| way.resident))
        .sum()
}

/// What devices and queues do so far.
struct Load<'s> {
    system: &'s System,
    free: Vec<f64>,
    queue: Vec<f64>,
    /// When each value is on each device.
    at: Vec<Option<f64>>,
}

impl Load<'_> {
    /// When a task could start on a device.
    fn start(&mut self, task: usize, device: usize) -> Option<f64> {
        let s = self.system;
        let mut start = match s.concurrent[device] {
            true => 0.0,
            false => self.free[device],
        };
        for &(v, _) in &s.inputs[task] {
            start = start.max(self.arrival(v, device, false)?);
        }
        Some(start)
    }

    /// When a value can be on a device, copied there over the quickest way; the copies are kept if `made`.
    fn arrival(&mut self, v: usize, device: usize, made: bool) -> Option<f64> {
        let s = self.system;
        if let Some(time) = self.at[s.cell(v, device)] {
            return Some(time);
        }
        let sources = (0..s.devices).filter(|&e| self.at[s.cell(v, e)].is_some());
        let (_, source) = sources
            .filter_map(|e| Some((s.copying(v, e, device)?, e)))
            .min_by(|a, b| a.0.total_cmp(&b.0))?;
        let mut time = self.at[s.cell(v, source)]?;
        let mut here = source;
        for hop in s.way_to(source, device) {
            match self.at[s.cell(v, hop)] {
                Some(there) => time = there,
                None => {
                    let wire = s.wire(here, hop)?;
                    let queue = wire.queue.map_or(0.0, |queue| self.queue[queue]);
                    time = time.max(queue) + wire.seconds[v];
                    if made {
                        if let Some(queue) = wire.queue {
                            self.queue[queue] = time;
                        }
                        self.at[s.cell(v, hop)] = Some(time);
                    }
                }
            }
            here = hop;
        }
        Some(time)
    }
}
