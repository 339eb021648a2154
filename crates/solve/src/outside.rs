//! What is outside of the planned device: links to other memories, and values that begin or end there.

use cranelift_entity::PrimaryMap;
use scrimp_plan::{DeviceId, Keep, LinkId, Origin, Problem, ValueId};

/// Where a value must be at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Nowhere.
    Nowhere,
    /// On the planned device.
    Here,
    /// On another device.
    Away,
    /// On some device.
    Anywhere,
}

/// A link to or from the planned device.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    /// Its queue, as an index below [`Outside::queues`].
    pub queue: usize,
    /// Seconds of a copy.
    pub seconds: PrimaryMap<ValueId, f64>,
}

/// The links to and from the planned device, and what begins or ends on other devices.
#[derive(Clone, Debug)]
pub(crate) struct Outside {
    /// The number of queues in which copies wait.
    pub queues: usize,
    pub out: Vec<Way>,
    pub back: Vec<Way>,
    /// For copies out and copies back, the queues' parts of them if they share them as they are fast; empty
    /// without links.
    pub pools: [Vec<f64>; 2],
    /// Whether a value is given on another device.
    pub away: PrimaryMap<ValueId, bool>,
    pub end: PrimaryMap<ValueId, End>,
}

impl Outside {
    /// `None` if no link leads to or from the device.
    pub fn of(problem: &Problem, device: DeviceId) -> Option<Outside> {
        let mut queues: Vec<LinkId> = Vec::new();
        let (mut out, mut back) = (Vec::new(), Vec::new());
        for (id, link) in problem.links().iter() {
            let list = match (link.from == device, link.to == device) {
                (true, _) => &mut out,
                (_, true) => &mut back,
                _ => continue,
            };
            let name = problem.queue(id);
            let known = queues.iter().position(|&queue| queue == name);
            let queue = known.unwrap_or_else(|| {
                queues.push(name);
                queues.len() - 1
            });
            let values = problem.values().keys();
            list.push(Way {
                queue,
                seconds: values.map(|v| problem.copy_seconds(id, v)).collect(),
            });
        }
        let values = problem.values().values();
        let away = |origin| matches!(origin, Origin::Given(on) if on != device);
        let end = |keep| match keep {
            Keep::No => End::Nowhere,
            Keep::Anywhere => End::Anywhere,
            Keep::On(on) if on == device => End::Here,
            Keep::On(_) => End::Away,
        };
        (!queues.is_empty()).then(|| Outside {
            queues: queues.len(),
            pools: [pool(&out, queues.len()), pool(&back, queues.len())],
            out,
            back,
            away: values.clone().map(|value| away(value.origin)).collect(),
            end: values.map(|value| end(value.keep)).collect(),
        })
    }

    /// The least seconds of a copy out times its queue's part; infinite without a link.
    pub fn pooled_out(&self, v: ValueId) -> f64 {
        pooled(&self.out, &self.pools[0], v)
    }

    /// The same for a copy back.
    pub fn pooled_back(&self, v: ValueId) -> f64 {
        pooled(&self.back, &self.pools[1], v)
    }
}

fn pool(ways: &[Way], queues: usize) -> Vec<f64> {
    if ways.is_empty() {
        return Vec::new();
    }
    let mut speed = vec![0.0f64; queues];
    for way in ways {
        let total: f64 = way.seconds.values().sum();
        speed[way.queue] = speed[way.queue].max(1.0 / total.max(1e-100));
    }
    let sum: f64 = speed.iter().sum();
    speed.iter().map(|speed| speed / sum).collect()
}

fn pooled(ways: &[Way], pool: &[f64], v: ValueId) -> f64 {
    let weighted = ways.iter().map(|way| way.seconds[v] * pool[way.queue]);
    weighted.fold(f64::INFINITY, f64::min)
}
