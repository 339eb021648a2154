//! The sequence that follows from saying where each task runs.

use cranelift_entity::{EntityRef, SecondaryMap};
use std::collections::{BTreeSet, VecDeque};

use crate::ids::{DeviceId, TaskId, ValueId};
use crate::problem::{Keep, Origin, Problem};
use crate::sequence::{Move, Sequence};

impl Sequence {
    /// Runs tasks in this order, each on its device, and copies each value to every device that reads it or must
    /// hold it at the end, over as few links as possible, right before it is needed there. What has no links to
    /// a device isn't copied there, and [`Sequence::plan`] then says so.
    ///
    /// # Panics
    /// If the problem has no such task or device.
    #[must_use]
    pub fn placed(
        problem: &Problem,
        order: impl IntoIterator<Item = (TaskId, DeviceId)>,
    ) -> Sequence {
        let mut placing = Placing {
            problem,
            there: SecondaryMap::new(),
            moves: Vec::new(),
        };
        for (value, what) in problem.values().iter() {
            if let Origin::Given(device) = what.origin {
                placing.there[value].insert(device);
            }
        }
        for (task, device) in order {
            let what = problem.task(task);
            for &input in &what.inputs {
                placing.bring(input, device);
            }
            placing.moves.push(Move::Run { task, device });
            for pair in &what.overwrites {
                placing.there[pair.input].remove(&device);
            }
            for &output in &what.outputs {
                placing.there[output].insert(device);
            }
        }
        for (value, what) in problem.values().iter() {
            if let Keep::On(device) = what.keep {
                placing.bring(value, device);
            }
        }
        Sequence {
            moves: placing.moves,
        }
    }
}

struct Placing<'a> {
    problem: &'a Problem,
    /// The devices that have each value.
    there: SecondaryMap<ValueId, BTreeSet<DeviceId>>,
    moves: Vec<Move>,
}

impl Placing<'_> {
    fn bring(&mut self, value: ValueId, to: DeviceId) {
        if self.there[value].contains(&to) {
            return;
        }
        // Breadth first: for each device that is reached, the one from which it is.
        let mut reached: Vec<Option<DeviceId>> = vec![None; self.problem.devices().len()];
        let mut queue: VecDeque<DeviceId> = self.there[value].iter().copied().collect();
        let mut path = Vec::new();
        while let Some(from) = queue.pop_front() {
            if from == to {
                let mut at = to;
                while let Some(before) = reached[at.index()] {
                    path.push((before, at));
                    at = before;
                }
                break;
            }
            for next in self.problem.devices().keys() {
                let new = reached[next.index()].is_none() && !self.there[value].contains(&next);
                if new && self.problem.link_between(from, next).is_some() {
                    reached[next.index()] = Some(from);
                    queue.push_back(next);
                }
            }
        }
        for (from, to) in path.into_iter().rev() {
            self.moves.push(Move::Copy { value, from, to });
            self.there[value].insert(to);
        }
    }
}
