//! What a beam knows before it begins: the steps in which tasks are placed, the paths behind them, places in its
//! states, and which devices are alike.

use super::NONE;
use crate::devices::system::{End, System};

/// The tasks that are placed together, in an order in which they can run: each task with those before it that take
/// no time and wait for nothing, such as weights.
pub(super) fn steps(s: &System, order: &[usize]) -> Vec<Vec<usize>> {
    let ways = |t: usize| (0..s.devices).filter_map(move |d| s.way(t, d));
    let joins: Vec<bool> = (0..s.tasks)
        .map(|t| {
            let free = ways(t).all(|way| way.seconds == 0.0);
            free && s.before[t].is_empty() && !s.after[t].is_empty()
        })
        .collect();
    let mut placed = vec![false; s.tasks];
    let mut steps = Vec::new();
    for &t in order.iter().filter(|&&t| !joins[t]) {
        let joining = s.before[t]
            .iter()
            .copied()
            .filter(|&u| joins[u] && !placed[u]);
        let mut step: Vec<usize> = joining.collect();
        step.push(t);
        step.iter().for_each(|&u| placed[u] = true);
        steps.push(step);
    }
    steps
}

/// A queue of copies from a device or to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub queue: usize,
    pub out: bool,
    /// The device at its other end.
    pub other: usize,
}

/// The queues of each device, in the same order for devices that are alike.
pub(super) fn ports(s: &System) -> Vec<Vec<Port>> {
    let ports = |d: usize| {
        let others = (0..s.devices).filter(|&e| e != d);
        let both = others.flat_map(|other| [(d, other, true), (other, d, false)]);
        let ports = both.filter_map(|(from, to, out)| {
            let other = if out { to } else { from };
            let queue = s.wire(from, to)?.queue?;
            Some(Port { queue, out, other })
        });
        ports.collect()
    };
    (0..s.devices).map(ports).collect()
}

/// A place for each span of steps, so that spans that meet have different places; and the number of places.
pub(super) fn slots(steps: usize, spans: Vec<Option<(usize, usize)>>) -> (Vec<usize>, usize) {
    let mut begins = vec![Vec::new(); steps];
    let mut ends = vec![Vec::new(); steps];
    for (k, span) in spans.iter().enumerate() {
        if let &Some((first, last)) = span {
            begins[first].push(k);
            ends[last].push(k);
        }
    }
    let mut slot = vec![NONE; spans.len()];
    let (mut free, mut count) = (Vec::new(), 0);
    for step in 0..steps {
        for &k in &begins[step] {
            slot[k] = free.pop().unwrap_or(count);
            count = count.max(slot[k] + 1);
        }
        free.extend(ends[step].iter().map(|&k| slot[k]));
    }
    (slot, count)
}

/// For each device the first one that is like it in all that counts here.
pub(super) fn kinds(s: &System) -> Vec<usize> {
    let cost = |t, d| s.way(t, d).map(|way| (way.seconds, way.resident));
    let link = |from, to| s.wire(from, to).map(|wire| (&wire.seconds, wire.drag));
    let alike = |d: usize, e: usize| {
        let others = || (0..s.devices).filter(|&x| x != d && x != e);
        s.room[d] == s.room[e]
            && s.concurrent[d] == s.concurrent[e]
            && (0..s.tasks).all(|t| cost(t, d) == cost(t, e))
            && link(d, e) == link(e, d)
            && others().all(|x| link(d, x) == link(e, x) && link(x, d) == link(x, e))
    };
    let named = |d: usize| s.given.contains(&Some(d)) || s.end.contains(&End::On(d));
    let named: Vec<bool> = (0..s.devices).map(named).collect();
    (0..s.devices)
        .map(|d| {
            let mut before = (0..d).filter(|&e| !named[d] && !named[e]);
            before.find(|&e| alike(d, e)).unwrap_or(d)
        })
        .collect()
}
