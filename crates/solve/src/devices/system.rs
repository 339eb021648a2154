//! A problem of several devices as flat arrays, which are all that its planner reads.

use cranelift_entity::EntityRef;
use scrimp_plan::{Capacities, Keep, Origin, Problem, ValueId};

use crate::method::Objective;
use crate::options::Options;
use crate::routes::Routes;

/// How a task runs on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub seconds: f64,
    pub workspace: f64,
    pub joules: f64,
    /// Bytes in use throughout if the task runs there.
    pub resident: f64,
}

/// A link.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    /// The index of its queue, if its copies wait for one another.
    pub queue: Option<usize>,
    /// Seconds of a copy and its joules, by value.
    pub seconds: Vec<f64>,
    pub joules: Vec<f64>,
    /// Seconds of computing that a second of copying takes.
    pub drag: f64,
}

/// Where a value must be at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Nowhere,
    Anywhere,
    On(usize),
}

#[derive(Clone, Debug)]
pub(super) struct System {
    pub objective: Objective,
    /// Seconds per joule.
    pub alpha: f64,
    pub tasks: usize,
    pub values: usize,
    pub devices: usize,
    /// By task and device.
    ways: Vec<Option<Way>>,
    /// The inputs of each task, and whether the task overwrites them.
    pub inputs: Vec<Vec<(usize, bool)>>,
    pub outputs: Vec<Vec<usize>>,
    /// By task and device: bytes of the outputs less those of the overwritten inputs.
    grows: Vec<f64>,
    pub rerunnable: Vec<bool>,
    /// The tasks whose first runs must come before that of each task, and those that must come after it.
    pub before: Vec<Vec<usize>>,
    pub after: Vec<Vec<usize>>,
    pub bytes: Vec<f64>,
    /// The device that holds a value's bytes throughout, so that the value takes none there.
    home: Vec<Option<usize>>,
    /// What a value at home overwrites, and what overwrites it.
    earlier: Vec<Option<usize>>,
    later: Vec<Option<usize>>,
    pub producer: Vec<Option<usize>>,
    pub given: Vec<Option<usize>>,
    /// Bytes of the given values, by device.
    pub given_bytes: Vec<f64>,
    pub end: Vec<End>,
    pub consumers: Vec<Vec<usize>>,
    pub computes: Vec<bool>,
    /// Whether runs overlap there and no bytes come back.
    pub concurrent: Vec<bool>,
    /// Whether some value or workspace has bytes.
    pub sized: bool,
    /// Whether some task has resident bytes.
    pub has_residents: bool,
    /// The other tasks that must be on a task's device.
    pub group: Vec<Vec<usize>>,
    /// A number for each arithmetic, by device.
    pub arithmetic: Vec<usize>,
    /// Bytes that are in use throughout, by device.
    pub resident: Vec<f64>,
    /// Capacity less those bytes, and the most joules, by device.
    pub room: Vec<f64>,
    pub joules: Vec<f64>,
    pub wires: Vec<Wire>,
    pub queues: usize,
    /// By source and destination: the link, and the devices on the quickest way there, which ends there.
    wire: Vec<Option<usize>>,
    routes: Vec<Vec<usize>>,
}

impl System {
    pub fn new(problem: &Problem, capacities: &Capacities, options: &Options) -> System {
        let (tasks, values) = (problem.tasks(), problem.values());
        let devices = problem.devices().len();
        let all = || problem.devices().keys();
        let mut ways = vec![None; tasks.len() * devices];
        for (t, task) in tasks.iter() {
            for mode in &task.modes {
                ways[t.index() * devices + mode.device.index()] = Some(Way {
                    seconds: mode.seconds,
                    workspace: mode.workspace as f64,
                    joules: mode.joules,
                    resident: mode.resident as f64,
                });
            }
        }
        let producer: Vec<Option<usize>> = values
            .keys()
            .map(|v| problem.producer(v).map(|t| t.index()))
            .collect();
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); tasks.len()];
        for (t, task) in tasks.iter() {
            let made = task.inputs.iter().filter_map(|&v| producer[v.index()]);
            let mut first: Vec<usize> = made.collect();
            // A value is overwritten after all others have read it.
            for pair in &task.overwrites {
                let others = problem.consumers(pair.input).iter();
                first.extend(
                    others
                        .map(|other| other.index())
                        .filter(|&o| o != t.index()),
                );
            }
            first.sort_unstable();
            first.dedup();
            before[t.index()] = first;
        }
        let mut after = vec![Vec::new(); tasks.len()];
        for (t, first) in before.iter().enumerate() {
            first.iter().for_each(|&u| after[u].push(t));
        }
        let mut wire = vec![None; devices * devices];
        let (mut wires, mut queues) = (Vec::new(), Vec::new());
        for (id, link) in problem.links().iter() {
            let queue = problem.queue(id);
            let known = queues.iter().position(|&q| q == queue);
            wire[link.from.index() * devices + link.to.index()] = Some(wires.len());
            wires.push(Wire {
                queue: (!link.concurrent).then(|| {
                    known.unwrap_or_else(|| {
                        queues.push(queue);
                        queues.len() - 1
                    })
                }),
                seconds: values.keys().map(|v| problem.copy_seconds(id, v)).collect(),
                joules: values.keys().map(|v| problem.copy_joules(id, v)).collect(),
                drag: link.drag,
            });
        }
        let quickest = Routes::new(problem);
        let routes = all().flat_map(|from| {
            let quickest = &quickest;
            all().map(move |to| {
                let links = quickest.between(from, to).iter();
                links
                    .map(|&link| problem.links()[link].to.index())
                    .collect()
            })
        });
        let routes = routes.collect();
        let mut arithmetics: Vec<&str> = Vec::new();
        let arithmetic = all().map(|d| {
            let name = problem.devices()[d].arithmetic.as_str();
            let known = arithmetics.iter().position(|&a| a == name);
            known.unwrap_or_else(|| {
                arithmetics.push(name);
                arithmetics.len() - 1
            })
        });
        let arithmetic = arithmetic.collect();
        let (mut home, mut earlier) = (vec![None; values.len()], vec![None; values.len()]);
        let mut later = vec![None; values.len()];
        let mut resident: Vec<f64> = problem
            .devices()
            .values()
            .map(|device| device.resident as f64)
            .collect();
        for d in all().filter(|_| options.laid_out) {
            for head in problem.fixed(d) {
                resident[d.index()] += problem.value(head).bytes as f64;
                let mut before: Option<usize> = None;
                for v in problem.chain(head).map(|v| v.index()) {
                    (home[v], earlier[v]) = (Some(d.index()), before);
                    if let Some(before) = before.replace(v) {
                        later[before] = Some(v);
                    }
                }
            }
        }
        let grows = tasks.values().flat_map(|task| {
            let home = &home;
            (0..devices).map(move |d| {
                let away = |v: &&ValueId| home[v.index()] != Some(d);
                let sum = |values: &mut dyn Iterator<Item = &ValueId>| -> f64 {
                    let away = values.filter(away);
                    away.map(|&v| problem.value(v).bytes as f64).sum()
                };
                let taken = sum(&mut task.overwrites.iter().map(|pair| &pair.input));
                sum(&mut task.outputs.iter()) - taken
            })
        });
        let grows = grows.collect();
        let inputs = tasks.values().map(|task| {
            let input = |&v: &ValueId| (v.index(), task.overwritten_by(v).is_some());
            task.inputs.iter().map(input).collect()
        });
        System {
            objective: options.objective,
            alpha: options.alpha,
            tasks: tasks.len(),
            values: values.len(),
            devices,
            ways,
            inputs: inputs.collect(),
            outputs: tasks
                .values()
                .map(|task| task.outputs.iter().map(|v| v.index()).collect())
                .collect(),
            grows,
            home,
            earlier,
            later,
            rerunnable: tasks.values().map(|task| task.rerunnable).collect(),
            before,
            after,
            bytes: values.values().map(|value| value.bytes as f64).collect(),
            producer,
            given: values
                .values()
                .map(|value| match value.origin {
                    Origin::Given(device) => Some(device.index()),
                    Origin::Task(_) => None,
                })
                .collect(),
            given_bytes: all()
                .map(|d| {
                    let here = values.values().filter(|v| v.origin == Origin::Given(d));
                    here.map(|v| v.bytes as f64).sum()
                })
                .collect(),
            end: values
                .values()
                .map(|value| match value.keep {
                    Keep::No => End::Nowhere,
                    Keep::Anywhere => End::Anywhere,
                    Keep::On(device) => End::On(device.index()),
                })
                .collect(),
            consumers: values
                .keys()
                .map(|v| problem.consumers(v).iter().map(|t| t.index()).collect())
                .collect(),
            sized: values.values().any(|value| value.bytes > 0)
                || tasks
                    .values()
                    .flat_map(|task| &task.modes)
                    .any(|mode| mode.workspace > 0),
            has_residents: tasks
                .values()
                .flat_map(|task| &task.modes)
                .any(|mode| mode.resident > 0),
            concurrent: problem.devices().values().map(|d| d.concurrent).collect(),
            group: tasks
                .keys()
                .map(|t| {
                    let group = problem.group(t).map(|group| &problem.together()[group]);
                    let others = group.into_iter().flatten().filter(|&&other| other != t);
                    others.map(|other| other.index()).collect()
                })
                .collect(),
            computes: problem.devices().values().map(|d| d.computes).collect(),
            arithmetic,
            room: all()
                .zip(&resident)
                .map(|(d, resident)| {
                    let bytes = capacities.bytes(d);
                    bytes.map_or(f64::INFINITY, |bytes| bytes as f64 - resident)
                })
                .collect(),
            resident,
            joules: all()
                .map(|d| capacities.joules(d).unwrap_or(f64::INFINITY))
                .collect(),
            routes,
            wires,
            queues: queues.len(),
            wire,
        }
    }

    #[inline]
    pub fn way(&self, task: usize, device: usize) -> Option<&Way> {
        self.ways[task * self.devices + device].as_ref()
    }

    /// The bytes that a value takes on a device.
    #[inline]
    pub fn held(&self, value: usize, device: usize) -> f64 {
        match self.is_home(value, device) {
            true => 0.0,
            false => self.bytes[value],
        }
    }

    /// The values that have the bytes of this one at home, if that is the device, before it comes there.
    pub fn replaced(&self, value: usize, device: usize) -> impl Iterator<Item = usize> + '_ {
        let last = self.earlier[value].filter(|_| self.home[value] == Some(device));
        std::iter::successors(last, |&v| self.earlier[v])
    }

    /// The values that take the bytes of this one at home, if that is the device.
    pub fn replacing(&self, value: usize, device: usize) -> impl Iterator<Item = usize> + '_ {
        let next = self.later[value].filter(|_| self.home[value] == Some(device));
        std::iter::successors(next, |&v| self.later[v])
    }

    /// Whether a device holds a value's bytes throughout.
    #[inline]
    pub fn is_home(&self, value: usize, device: usize) -> bool {
        self.home[value] == Some(device)
    }

    /// The bytes by which a run's outputs exceed the inputs that it overwrites.
    #[inline]
    pub fn grows(&self, task: usize, device: usize) -> f64 {
        self.grows[task * self.devices + device]
    }

    /// The index of a value on a device in arrays of both.
    #[inline]
    pub fn cell(&self, value: usize, device: usize) -> usize {
        value * self.devices + device
    }

    /// The link from one device to another.
    #[inline]
    pub fn wire(&self, from: usize, to: usize) -> Option<&Wire> {
        self.wire[from * self.devices + to].map(|k| &self.wires[k])
    }

    /// The devices on the way from one device to another, which ends there; empty if there is none.
    pub fn way_to(&self, from: usize, to: usize) -> impl Iterator<Item = usize> + '_ {
        self.routes[from * self.devices + to].iter().copied()
    }

    /// Seconds of copying a value along the way from one device to another.
    pub fn copying(&self, value: usize, from: usize, to: usize) -> Option<f64> {
        let mut at = from;
        let mut seconds = 0.0;
        for next in self.way_to(from, to) {
            seconds += self.wire(at, next)?.seconds[value];
            at = next;
        }
        (at == to).then_some(seconds)
    }
}
