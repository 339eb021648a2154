//! Who reads what in a sequence of runs, and which runs must come before which, where every use keeps the run
//! that serves it.

use crate::model::{Model, NONE, Task};

/// Index of a run in the sequence that an arrangement was made from.
pub(super) type Node = u32;

/// Who reads what, of a sequence as it stands.
pub(super) struct Links {
    pub before: Vec<Vec<Node>>,
    pub after: Vec<Vec<Node>>,
    pub reads: Vec<Vec<u32>>,
    pub readers: Vec<Vec<Node>>,
    pub bytes: Vec<f64>,
    pub last: Vec<Node>,
}

impl Links {
    pub fn new(model: &Model, task: &[Task], free: bool) -> Links {
        let n = task.len();
        let mut links = Links {
            before: vec![Vec::new(); n],
            after: vec![Vec::new(); n],
            reads: vec![Vec::new(); n],
            readers: Vec::new(),
            bytes: Vec::new(),
            last: Vec::new(),
        };
        // Per value, its instance that is there now; per task, its latest run.
        let mut instance = vec![NONE; model.bytes.len()];
        let mut writer = vec![NONE; model.tasks as usize + 2];
        let mut producer: Vec<Node> = Vec::new();
        let mut last_first = 0;
        for (x, &t) in task.iter().enumerate() {
            let x = x as Node;
            for i in model.inputs.of(t) {
                let inst = instance[i.value as usize] as usize;
                links.precede(producer[inst], x);
                links.readers[inst].push(x);
                links.last[inst] = x;
                if i.overwritten {
                    // Everything else that reads it comes first.
                    for k in 0..links.readers[inst].len() - 1 {
                        links.precede(links.readers[inst][k], x);
                    }
                    links.last[inst] = NONE;
                }
            }
            // What the task's previous run serves comes before this run.
            let previous = writer[t as usize];
            if previous == NONE && !free && x > 0 {
                links.precede(last_first, x);
                last_first = x;
            }
            if previous != NONE {
                links.precede(previous, x);
                for &v in model.outputs.of(t) {
                    let inst = instance[v as usize] as usize;
                    for k in 0..links.readers[inst].len() {
                        links.precede(links.readers[inst][k], x);
                    }
                }
            }
            writer[t as usize] = x;
            for &v in model.outputs.of(t) {
                instance[v as usize] = producer.len() as u32;
                producer.push(x);
                links.readers.push(Vec::new());
                links.bytes.push(model.bytes[v as usize]);
                links.last.push(x);
            }
        }
        for (inst, readers) in links.readers.iter().enumerate() {
            // One that is overwritten ends there, wherever its other readers are.
            if links.last[inst] != NONE {
                for &x in readers {
                    links.reads[x as usize].push(inst as u32);
                }
            }
        }
        links
    }

    fn precede(&mut self, x: Node, y: Node) {
        if !self.after[x as usize].contains(&y) {
            self.after[x as usize].push(y);
            self.before[y as usize].push(x);
        }
    }
}
