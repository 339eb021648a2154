//! The quickest ways from device to device, over one or more links.

use cranelift_entity::EntityRef;
use scrimp_plan::{DeviceId, LinkId, Problem, ValueId};

/// The route of links between any two devices whose seconds over all values are least (Floyd and Warshall).
pub(crate) struct Routes {
    devices: usize,
    /// By `[from][to]`; empty if there is none.
    links: Vec<Vec<LinkId>>,
}

impl Routes {
    pub fn new(problem: &Problem) -> Routes {
        let devices = problem.devices().len();
        let values: Vec<ValueId> = problem.values().keys().collect();
        let mut seconds = vec![f64::INFINITY; devices * devices];
        let mut links = vec![Vec::new(); devices * devices];
        for (id, link) in problem.links().iter() {
            let pair = link.from.index() * devices + link.to.index();
            // A little more per link: of equally quick routes, the one with the fewest links.
            let total: f64 = values.iter().map(|&v| problem.copy_seconds(id, v)).sum();
            seconds[pair] = total + f64::MIN_POSITIVE;
            links[pair] = vec![id];
        }
        for via in 0..devices {
            for from in 0..devices {
                for to in 0..devices {
                    let (first, second) = (from * devices + via, via * devices + to);
                    let (pair, total) = (from * devices + to, seconds[first] + seconds[second]);
                    if from != to && total < seconds[pair] {
                        seconds[pair] = total;
                        links[pair] = [links[first].as_slice(), &links[second]].concat();
                    }
                }
            }
        }
        Routes { devices, links }
    }

    /// Empty if there is none, or for the same device.
    pub fn between(&self, from: DeviceId, to: DeviceId) -> &[LinkId] {
        &self.links[from.index() * self.devices + to.index()]
    }

    /// Seconds of all copies of a value on the way; infinite without a route.
    pub fn seconds(&self, problem: &Problem, v: ValueId, from: DeviceId, to: DeviceId) -> f64 {
        match self.between(from, to) {
            _ if from == to => 0.0,
            [] => f64::INFINITY,
            links => links.iter().map(|&l| problem.copy_seconds(l, v)).sum(),
        }
    }
}
