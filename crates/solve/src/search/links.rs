//! Which run reads what in a sequence, and which runs must precede which, if every use keeps the run that
//! serves it.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntityRef, PrimaryMap, entity_impl};
use scrimp_plan::{TaskId, ValueId};

use crate::model::Model;

/// A run of the sequence from which an arrangement was made, by its place there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(super) struct Node(u32);
entity_impl!(Node, "node");

/// What one run wrote into one value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(super) struct Instance(u32);
entity_impl!(Instance, "instance");

/// The reads of a sequence, and the precedences between its runs.
pub(super) struct Links {
    pub before: PrimaryMap<Node, Vec<Node>>,
    pub after: PrimaryMap<Node, Vec<Node>>,
    pub reads: PrimaryMap<Node, Vec<Instance>>,
    pub readers: PrimaryMap<Instance, Vec<Node>>,
    pub bytes: PrimaryMap<Instance, f64>,
    /// The node that reads an instance last, or writes it if nothing reads it; `None` if its buffer is taken
    /// over.
    pub last: PrimaryMap<Instance, PackedOption<Node>>,
}

impl Links {
    pub fn new(model: &Model, task: &PrimaryMap<Node, TaskId>, free: bool) -> Links {
        let none = || task.values().map(|_| Vec::new()).collect();
        let mut links = Links {
            before: none(),
            after: none(),
            reads: task.values().map(|_| Vec::new()).collect(),
            readers: PrimaryMap::new(),
            bytes: PrimaryMap::new(),
            last: PrimaryMap::new(),
        };
        // Per value, its present instance; per task, its latest run.
        let mut instance: PrimaryMap<ValueId, Option<Instance>> =
            model.bytes.values().map(|_| None).collect();
        let mut writer: PrimaryMap<TaskId, Option<Node>> =
            model.cost.values().map(|_| None).collect();
        let mut producer: PrimaryMap<Instance, Node> = PrimaryMap::new();
        let mut last_first = Node::new(0);
        for (x, &t) in task.iter() {
            for i in model.inputs.of(t) {
                let Some(inst) = instance[i.value] else {
                    continue;
                };
                links.precede(producer[inst], x);
                links.readers[inst].push(x);
                links.last[inst] = x.into();
                if i.overwritten {
                    // All other readers of the instance come first.
                    for k in 0..links.readers[inst].len() - 1 {
                        links.precede(links.readers[inst][k], x);
                    }
                    links.last[inst] = None.into();
                }
            }
            // The uses that the instances before serve come before this run.
            match writer[t] {
                None if !free && x.index() > 0 && model.copies.brought(t).is_none() => {
                    links.precede(last_first, x);
                    last_first = x;
                }
                None => {}
                Some(previous) => links.precede(previous, x),
            }
            for inst in model.outputs.of(t).iter().filter_map(|&v| instance[v]) {
                links.precede(producer[inst], x);
                for k in 0..links.readers[inst].len() {
                    links.precede(links.readers[inst][k], x);
                }
            }
            writer[t] = Some(x);
            for &v in model.outputs.of(t) {
                instance[v] = Some(producer.push(x));
                links.readers.push(Vec::new());
                links.bytes.push(model.bytes[v]);
                links.last.push(x.into());
            }
        }
        for (inst, readers) in links.readers.iter() {
            // An overwritten instance ends with the overwriting run, wherever its other readers are.
            if links.last[inst].is_some() {
                for &x in readers {
                    links.reads[x].push(inst);
                }
            }
        }
        links
    }

    fn precede(&mut self, x: Node, y: Node) {
        if !self.after[x].contains(&y) {
            self.after[x].push(y);
            self.before[y].push(x);
        }
    }
}
