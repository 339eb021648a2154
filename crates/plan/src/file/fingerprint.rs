//! A stable hash of everything that decides whether a plan is valid for a problem.

use std::fmt;
use xxhash_rust::xxh3::Xxh3;

use cranelift_entity::EntityRef;

use crate::problem::{Keep, Mode, Origin, Problem};

/// Identifies a problem by what decides whether a plan is valid for it. Names, units, phases, costs, resident
/// bytes and the speed of links don't count, so a plan stays usable after another profiling run, but not for
/// another graph or other sizes. Displayed as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(u128);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Fingerprint {
    /// The fingerprint of a problem, which is the same on every machine.
    #[must_use]
    pub fn of(problem: &Problem) -> Fingerprint {
        Fingerprint::made(problem, true)
    }

    /// The fingerprint without workspaces, which differ from device to device.
    #[must_use]
    pub fn without_workspaces(problem: &Problem) -> Fingerprint {
        Fingerprint::made(problem, false)
    }

    fn made(problem: &Problem, workspaces: bool) -> Fingerprint {
        let mut hash = Hash(Xxh3::new());
        hash.number(1); // the version of what follows
        hash.all(problem.devices().values(), |hash, device| {
            hash.number(u64::from(device.computes))
        });
        if let Some(classes) = shared_arithmetic(problem) {
            // No list has this length, so no other problem feeds the same numbers.
            hash.number(u64::MAX);
            hash.all(classes.into_iter(), |hash, class| hash.number(class as u64));
        }
        hash.all(problem.links().values(), |hash, link| {
            hash.id(link.from);
            hash.id(link.to);
        });
        hash.all(problem.tasks().values(), |hash, task| {
            hash.all(task.inputs.iter(), |hash, &value| hash.id(value));
            hash.all(task.outputs.iter(), |hash, &value| hash.id(value));
            hash.all(task.overwrites.iter(), |hash, pair| {
                hash.id(pair.input);
                hash.id(pair.output);
            });
            hash.all(
                task.modes.iter(),
                |hash,
                 Mode {
                     device, workspace, ..
                 }| {
                    hash.id(*device);
                    hash.number(if workspaces { *workspace } else { u64::MAX });
                },
            );
            hash.number(u64::from(task.rerunnable));
        });
        hash.all(problem.values().values(), |hash, value| {
            hash.number(value.bytes);
            match value.origin {
                Origin::Given(device) => hash.choice(0, device.index()),
                Origin::Task(task) => hash.choice(1, task.index()),
            }
            match value.keep {
                Keep::No => hash.choice(0, 0),
                Keep::Anywhere => hash.choice(1, 0),
                Keep::On(device) => hash.choice(2, device.index()),
            }
        });
        let devices = problem.devices().values();
        let concurrent = devices.filter(|device| device.concurrent).count();
        if !problem.together().is_empty() || concurrent > 0 {
            hash.number(u64::MAX);
            hash.all(problem.devices().values(), |hash, device| {
                hash.number(u64::from(device.concurrent))
            });
            hash.all(problem.together().iter(), |hash, group| {
                hash.all(group.iter(), |hash, &task| hash.id(task))
            });
        }
        Fingerprint(hash.0.digest128())
    }
}

/// For each device, the first device with the same arithmetic; `None` if every device has its own.
fn shared_arithmetic(problem: &Problem) -> Option<Vec<usize>> {
    let devices = problem.devices();
    let first = |arithmetic: &str| {
        let mut others = devices.values();
        others.position(|other| other.arithmetic == arithmetic)
    };
    let classes: Vec<usize> = devices
        .values()
        .filter_map(|device| first(&device.arithmetic))
        .collect();
    let shared = classes.iter().enumerate().any(|(i, &class)| i != class);
    shared.then_some(classes)
}

/// Feeds numbers in a fixed byte order, and lists preceded by their lengths, so that no two problems feed the
/// same bytes.
struct Hash(Xxh3);

impl Hash {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn id(&mut self, id: impl EntityRef) {
        self.number(id.index() as u64);
    }

    fn choice(&mut self, which: u64, number: usize) {
        self.number(which);
        self.number(number as u64);
    }

    fn all<T>(&mut self, items: impl ExactSizeIterator<Item = T>, each: impl Fn(&mut Hash, T)) {
        self.number(items.len() as u64);
        items.for_each(|item| each(self, item));
    }
}
