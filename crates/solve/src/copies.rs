//! Copies between the computing device and memories beside it, as flat arrays.
//!
//! Bringing a value back is a task without inputs, seconds or workspace, which writes the value: it is one
//! more way to have the value at some position. Its seconds on the link are apart from the task's.

use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::{Capacities, DeviceId, Keep, LinkId, Origin, Problem, TaskId, ValueId};

/// A memory to which values are sent.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub device: DeviceId,
    /// Bytes for values that are sent there, beside those that have their place there.
    pub room: f64,
    /// The bytes of those.
    pub resting: f64,
    /// The queues of the two links, as indices.
    pub out_queue: usize,
    pub in_queue: usize,
    /// Seconds of computing that a second of copying takes over the two links.
    pub out_drag: f64,
    pub in_drag: f64,
}

/// All memories, and what copies to and from them take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    pub memories: Vec<Memory>,
    /// The number of queues.
    pub queues: usize,
    /// Seconds of copies to and from each memory, by memory and value.
    out: Vec<f64>,
    back: Vec<f64>,
    /// Whether a value may be sent away.
    movable: PrimaryMap<ValueId, bool>,
    /// The memory in which a value is given, and the one in which it must end.
    pub given: PrimaryMap<ValueId, Option<usize>>,
    pub kept: PrimaryMap<ValueId, Option<usize>>,
    /// The values that are given in one memory and must end in another, and the first task that passes one on.
    pub passed: Vec<ValueId>,
    first_pass: u32,
    /// The first task that brings a value.
    first: u32,
}

impl Copies {
    /// The memories that have a link to and from the device. The problem has `tasks` tasks; those that pass values
    /// on come after them, then `start` and `end`, then those that bring values.
    pub fn new(
        problem: &Problem,
        device: DeviceId,
        capacities: &Capacities,
        tasks: usize,
    ) -> Copies {
        let mut copies = Copies {
            first_pass: tasks as u32,
            ..Copies::default()
        };
        let values = problem.values();
        let mut queues: Vec<LinkId> = Vec::new();
        let mut queue_of = |link| {
            let queue = problem.queue(link);
            queues.iter().position(|&q| q == queue).unwrap_or_else(|| {
                queues.push(queue);
                queues.len() - 1
            })
        };
        let mut index = PrimaryMap::new();
        for (id, what) in problem.devices().iter() {
            let links = problem
                .link_between(device, id)
                .zip(problem.link_between(id, device));
            index.push(links.map(|_| copies.memories.len()));
            let Some((out, back)) = links else { continue };
            let resting = values.values().filter(|v| v.origin == Origin::Given(id));
            let resting: u64 = resting.map(|v| v.bytes).sum();
            let room = capacities.bytes(id).map_or(f64::INFINITY, |bytes| {
                bytes as f64 - what.resident as f64 - resting as f64
            });
            copies.memories.push(Memory {
                device: id,
                room,
                resting: resting as f64,
                out_queue: queue_of(out),
                in_queue: queue_of(back),
                out_drag: problem.links()[out].drag,
                in_drag: problem.links()[back].drag,
            });
            copies
                .out
                .extend(values.keys().map(|v| problem.copy_seconds(out, v)));
            copies
                .back
                .extend(values.keys().map(|v| problem.copy_seconds(back, v)));
        }
        let at = |device: DeviceId| index[device];
        copies.queues = queues.len();
        copies.given = values
            .values()
            .map(|v| match v.origin {
                Origin::Given(device) => at(device),
                Origin::Task(_) => None,
            })
            .collect();
        copies.kept = values
            .values()
            .map(|v| match v.keep {
                Keep::On(device) => at(device),
                _ => None,
            })
            .collect();
        let elsewhere = |&v: &ValueId| {
            let ends = copies.given[v].zip(copies.kept[v]);
            ends.is_some_and(|(given, kept)| given != kept)
        };
        copies.passed = values.keys().filter(elsewhere).collect();
        copies.first = copies.first_pass + copies.passed.len() as u32 + 2;
        copies.movable = values.values().map(|v| v.bytes > 0).collect();
        for head in problem.fixed(device) {
            for value in problem.chain(head) {
                copies.movable[value] = false;
            }
        }
        copies
    }

    /// Whether there is no memory.
    #[inline]
    pub fn none(&self) -> bool {
        self.memories.is_empty()
    }

    /// The number of tasks that bring values.
    pub fn tasks(&self) -> usize {
        self.out.len()
    }

    /// The task that brings a value from a memory.
    #[inline]
    pub fn bringing(&self, memory: usize, v: ValueId) -> TaskId {
        TaskId::from_u32(self.first + (memory * self.movable.len() + v.index()) as u32)
    }

    /// What a task brings, and from where, if it is one that does.
    #[inline]
    pub fn brought(&self, t: TaskId) -> Option<(usize, ValueId)> {
        let k = t.as_u32().checked_sub(self.first)? as usize;
        let values = self.movable.len();
        (!self.none()).then(|| (k / values, ValueId::new(k % values)))
    }

    /// The value that a task sends on to the memory in which it must end.
    #[inline]
    pub fn passes(&self, t: TaskId) -> Option<ValueId> {
        let k = t.as_u32().checked_sub(self.first_pass)? as usize;
        self.passed.get(k).copied()
    }

    /// The index of a task that brings a value.
    #[inline]
    pub fn index(&self, t: TaskId) -> usize {
        (t.as_u32() - self.first) as usize
    }

    /// Whether a value may be in a memory for a while.
    #[inline]
    pub fn may_move(&self, v: ValueId) -> bool {
        !self.none() && self.movable[v]
    }

    /// Whether a value needs no copy out to be brought from a memory.
    #[inline]
    pub fn rests(&self, memory: usize, v: ValueId) -> bool {
        self.given[v] == Some(memory)
    }

    /// Whether a value is copied to a memory anyway, or is there.
    #[inline]
    pub fn is_there(&self, memory: usize, v: ValueId) -> bool {
        self.rests(memory, v) || self.kept[v] == Some(memory)
    }

    /// Seconds of a copy out.
    #[inline]
    pub fn out_seconds(&self, memory: usize, v: ValueId) -> f64 {
        self.out[memory * self.movable.len() + v.index()]
    }

    /// Seconds of a copy back.
    #[inline]
    pub fn back_seconds(&self, memory: usize, v: ValueId) -> f64 {
        self.back[memory * self.movable.len() + v.index()]
    }

    /// Seconds that a copy out takes from computing.
    #[inline]
    pub fn out_drag(&self, memory: usize, v: ValueId) -> f64 {
        self.memories[memory].out_drag * self.out_seconds(memory, v)
    }

    /// Seconds that a copy back takes from computing.
    #[inline]
    pub fn back_drag(&self, memory: usize, v: ValueId) -> f64 {
        self.memories[memory].in_drag * self.back_seconds(memory, v)
    }
}
