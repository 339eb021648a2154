//! The minimum cut: where each task runs so that runs and copies take the least time one after another, if no
//! device is short of memory.
//!
//! With two computing devices the cut is exact, also where tasks may run on both. With more, α-expansion
//! (Boykov, Veksler and Zabih 2001) improves a placement: for one device after another, a cut decides which
//! tasks move there, until no device gains anything. An expansion may overestimate copies, so a move counts
//! only if the placement's true cost falls. A task then runs on one device.

use cranelift_entity::EntityRef;
use scrimp_plan::{DeviceId, Keep, Origin, TaskId, ValueId};

use super::system::System;
use crate::cut::{Prices, divide};
use crate::error::SolveError;
use crate::flow::{Network, Node, SINK, SOURCE};
use crate::options::Options;

/// The runs in given order.
pub(super) fn runs(
    system: &System<'_>,
    options: &Options,
) -> Result<Vec<(TaskId, DeviceId)>, SolveError> {
    let costs = Costs { system, options };
    let nowhere = || system.unsupported("some task can't get its inputs on any device");
    match system.devices[..] {
        [inside, outside] => {
            let prices = Prices {
                run: &|task, device| costs.run(task, device),
                into: &|value| costs.copy(value, outside, inside),
                out: &|value| costs.copy(value, inside, outside),
            };
            let division = divide(system.problem, inside, &prices).ok_or_else(nowhere)?;
            let tasks = system.problem.tasks().keys();
            let both = tasks.flat_map(|task| {
                let there = [
                    (division.runs_inside[task.index()], inside),
                    (division.runs_outside[task.index()], outside),
                ];
                let there = there.into_iter().filter(|(runs, _)| *runs);
                there.map(move |(_, device)| (task, device))
            });
            Ok(both.collect())
        }
        _ => {
            let starts = costs.starts().into_iter();
            let placed = starts.map(|start| costs.expand(start));
            let best = placed.min_by(|a, b| a.0.total_cmp(&b.0));
            let (_, placement) = best.filter(|best| best.0.is_finite()).ok_or_else(nowhere)?;
            Ok(system.problem.tasks().keys().zip(placement).collect())
        }
    }
}

struct Costs<'s, 'a> {
    system: &'s System<'a>,
    options: &'s Options,
}

impl Costs<'_, '_> {
    fn run(&self, task: TaskId, device: DeviceId) -> f64 {
        let mode = self.system.problem.task(task).mode(device);
        mode.map_or(f64::INFINITY, |mode| {
            mode.seconds + self.options.alpha * mode.joules
        })
    }

    fn copy(&self, value: ValueId, from: DeviceId, to: DeviceId) -> f64 {
        self.system.transfer(&[value], from, to)
            + self.options.alpha * self.system.transfer_joules(value, from, to)
    }

    /// Where a value begins under a placement.
    fn home(&self, value: ValueId, placement: &[DeviceId]) -> DeviceId {
        match self.system.problem.value(value).origin {
            Origin::Given(device) => device,
            Origin::Task(task) => placement[task.index()],
        }
    }

    /// The devices that need a value which doesn't begin there.
    fn readers(&self, value: ValueId, placement: &[DeviceId]) -> Vec<DeviceId> {
        let problem = self.system.problem;
        let readers = problem.consumers(value).iter();
        let mut devices: Vec<DeviceId> = readers.map(|task| placement[task.index()]).collect();
        if let Keep::On(device) = problem.value(value).keep {
            devices.push(device);
        }
        devices.sort();
        devices.dedup();
        devices
    }

    /// The serial cost of a placement.
    fn cost(&self, placement: &[DeviceId]) -> f64 {
        let problem = self.system.problem;
        let runs = problem.tasks().keys();
        let runs: f64 = runs
            .map(|task| self.run(task, placement[task.index()]))
            .sum();
        let copies = problem.values().keys().map(|value| {
            let home = self.home(value, placement);
            let readers = self.readers(value, placement).into_iter();
            let copies = readers.filter(|&device| device != home);
            copies
                .map(|device| self.copy(value, home, device))
                .sum::<f64>()
        });
        runs + copies.sum::<f64>()
    }

    /// All tasks on one device as far as it can run them, and each task where it costs the least.
    fn starts(&self) -> Vec<Vec<DeviceId>> {
        let tasks = self.system.problem.tasks();
        let cheapest = |task: TaskId, favoured: Option<DeviceId>| {
            let allowed = self.system.allowed(task);
            let group = self.system.problem.group(task);
            let alone = [task];
            let all = group.map_or(&alone[..], |g| &self.system.problem.together()[g]);
            let total = |device: &DeviceId| -> f64 {
                all.iter().map(|&task| self.run(task, *device)).sum()
            };
            let best = allowed
                .iter()
                .copied()
                .min_by(|a, b| total(a).total_cmp(&total(b)));
            let favoured = favoured.filter(|device| allowed.contains(device));
            favoured.or(best).unwrap_or(self.system.devices[0])
        };
        let favourites = self.system.devices.iter().copied().map(Some).chain([None]);
        let start = |favoured| tasks.keys().map(|task| cheapest(task, favoured)).collect();
        favourites.map(start).collect()
    }

    /// Expands one device after another as long as that helps.
    fn expand(&self, mut placement: Vec<DeviceId>) -> (f64, Vec<DeviceId>) {
        let mut cost = self.cost(&placement);
        let mut fruitless = 0;
        let devices = self.system.devices.iter().cycle();
        for &device in devices {
            if fruitless == self.system.devices.len() || self.options.stopped() {
                break;
            }
            fruitless += 1;
            let expanded = self.expansion(&placement, device);
            let changed = self.cost(&expanded);
            // Apart from rounding, so that it ends.
            if changed < cost * (1.0 - 1e-12) || (cost.is_infinite() && changed.is_finite()) {
                (cost, placement, fruitless) = (changed, expanded, 0);
            }
        }
        (cost, placement)
    }

    /// The placement with the best set of tasks moved to a device. A node is on the source's side if its task
    /// moves.
    fn expansion(&self, placement: &[DeviceId], to: DeviceId) -> Vec<DeviceId> {
        let problem = self.system.problem;
        let mut network = Network::new();
        let moved: Vec<Node> = problem.tasks().keys().map(|_| network.node()).collect();
        for task in problem.tasks().keys() {
            let (node, from) = (moved[task.index()], placement[task.index()]);
            if from == to {
                network.edge(SOURCE, node, f64::INFINITY);
            } else {
                network.edge(SOURCE, node, self.run(task, from));
                let allowed = self.system.allowed(task).contains(&to);
                let there = if allowed {
                    self.run(task, to)
                } else {
                    f64::INFINITY
                };
                network.edge(node, SINK, there);
            }
        }
        for group in problem.together() {
            for pair in group.windows(2) {
                network.tie(moved[pair[0].index()], moved[pair[1].index()]);
            }
        }
        for value in problem.values().keys() {
            self.copies(&mut network, &moved, placement, (value, to));
        }
        let cut = network.cut();
        if cut.capacity.is_infinite() {
            return placement.to_vec();
        }
        let old = placement.iter().zip(moved);
        old.map(|(&old, node)| if cut.source_side[node] { to } else { old })
            .collect()
    }

    /// The edges that pay for the copies of a value.
    fn copies(
        &self,
        network: &mut Network,
        moved: &[Node],
        placement: &[DeviceId],
        (value, to): (ValueId, DeviceId),
    ) {
        let problem = self.system.problem;
        let home = self.home(value, placement);
        let producer = problem.producer(value).map(|task| moved[task.index()]);
        let consumers = problem.consumers(value);
        let kept = problem.value(value).keep;
        if home != to {
            // Present on the device if a reader moves or is there: a copy, unless the producer moves too.
            let present = network.node();
            for reader in consumers {
                network.edge(moved[reader.index()], present, f64::INFINITY);
            }
            if kept == Keep::On(to) {
                network.edge(SOURCE, present, f64::INFINITY);
            }
            network.edge(
                present,
                producer.unwrap_or(SINK),
                self.copy(value, home, to),
            );
        }
        for device in self.readers(value, placement) {
            if device == to {
                continue;
            }
            // Gone from the device if all its readers move.
            let gone = network.node();
            for reader in consumers {
                if placement[reader.index()] == device {
                    network.edge(gone, moved[reader.index()], f64::INFINITY);
                }
            }
            if kept == Keep::On(device) {
                network.edge(gone, SINK, f64::INFINITY);
            }
            // If readers stay, the copy comes from home, or from the new device if the producer moves.
            let from_home = if device == home {
                0.0
            } else {
                self.copy(value, home, device)
            };
            network.edge(SOURCE, gone, from_home);
            if let Some(producer) = producer {
                let more = self.copy(value, to, device) - from_home;
                network.edge(producer, gone, more.max(0.0));
            }
        }
    }
}
