//! Annealing on the order alone: the runs of a sequence move one at a time, every use keeps the run that
//! serves it, and nothing is recomputed or dropped. The annealing lowers the excess over a budget.
//!
//! With these runs fixed, moving one run changes the memory profile between its old and its new place by a
//! few constants: the run's own growth, and each input's bytes from where its last reader changes. So one
//! pass over that stretch evaluates a move.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::TaskId;

use crate::cutoff::Cutoff;
use crate::ids::Position;
use crate::model::{Lists, Model};
use crate::random::Random;
use crate::search::links::{Instance, Links, Node};

/// The most work of one annealing, and the number of moves after which the cutoff is looked at again.
const MOST_WORK: u64 = 60_000_000;
const LOOK: u64 = 256;

/// What a move changes, and by how much it changes the excess.
#[derive(Debug)]
pub(super) struct Shift {
    from: Position,
    to: Position,
    /// Inputs whose last reader changes: the other reader's position and node, and the bytes.
    passed: Vec<(Position, Node, f64)>,
    /// Bytes in use while the run is at its new place.
    pub(super) own: f64,
    pub(super) excess: f64,
}

/// A sequence whose runs can be moved.
#[derive(Debug)]
pub(crate) struct Arrangement<'m> {
    model: &'m Model,
    pub(super) budget: f64,
    task: PrimaryMap<Node, TaskId>,
    pub(super) seq: Vec<Node>,
    pub(super) pos: PrimaryMap<Node, Position>,
    /// Bytes in use by position.
    pub(super) mem: Vec<f64>,
    /// Per node, the nodes that must come before and after it.
    pub(super) before: Lists<Node, Node>,
    pub(super) after: Lists<Node, Node>,
    /// Per node, the instances that it reads and that end with their last reader.
    reads: Lists<Node, Instance>,
    /// Per instance, its readers, its bytes and the node that reads it last.
    readers: Lists<Instance, Node>,
    bytes: PrimaryMap<Instance, f64>,
    last: PrimaryMap<Instance, PackedOption<Node>>,
    /// Bytes that are freed after each node.
    frees: PrimaryMap<Node, f64>,
    /// The sum of bytes times positions over the budget.
    pub(super) excess: f64,
    pub(super) shift: Shift,
    /// Scratch: stretches, and by how much they rise.
    raised: Vec<(usize, usize, f64)>,
}

impl<'m> Arrangement<'m> {
    /// Makes an arrangement of a sequence in which every task's inputs are in memory when it runs. First runs
    /// may change their order only if `free` is set.
    pub fn new(model: &'m Model, order: &[TaskId], budget: f64, free: bool) -> Arrangement<'m> {
        let task: PrimaryMap<Node, TaskId> = std::iter::once(model.start())
            .chain(order.iter().copied())
            .chain([model.end()])
            .collect();
        let links = Links::new(model, &task, free);
        let n = task.len();
        let mut a = Arrangement {
            model,
            budget,
            seq: task.keys().collect(),
            pos: (0..n).map(Position::new).collect(),
            mem: vec![0.0; n],
            last: links.last,
            frees: task.values().map(|_| 0.0).collect(),
            bytes: links.bytes,
            readers: Lists::new(links.readers.values()),
            reads: Lists::new(links.reads.values()),
            before: Lists::new(links.before.values()),
            after: Lists::new(links.after.values()),
            task,
            excess: 0.0,
            shift: Shift {
                from: Position::FIRST,
                to: Position::FIRST,
                passed: Vec::new(),
                own: 0.0,
                excess: 0.0,
            },
            raised: Vec::new(),
        };
        for (i, last) in a.last.iter() {
            if let Some(last) = last.expand() {
                a.frees[last] += a.bytes[i];
            }
        }
        let mut level = 0.0;
        for x in a.task.keys() {
            let mem = level + a.grows(x);
            a.mem[x.index()] = mem;
            level = mem - a.workspace(x) - a.frees[x];
        }
        a.excess = a.mem.iter().map(|&m| (m - budget).max(0.0)).sum();
        a
    }

    /// The tasks in the order they run.
    pub fn order(&self) -> Vec<TaskId> {
        self.seq[1..self.seq.len() - 1]
            .iter()
            .map(|&x| self.task[x])
            .collect()
    }

    fn grows(&self, x: Node) -> f64 {
        self.model.grows[self.task[x]]
    }

    fn workspace(&self, x: Node) -> f64 {
        self.model.workspace[self.task[x]]
    }

    /// The first and the last position to which a node may move.
    pub(super) fn room(&self, x: Node) -> (Position, Position) {
        let before = self.before.of(x).iter().map(|&y| self.pos[y]);
        let after = self.after.of(x).iter().map(|&y| self.pos[y]);
        let last = Position::new(self.seq.len() - 1);
        (
            before.max().unwrap_or(Position::FIRST) + 1,
            after.min().unwrap_or(last) - 1,
        )
    }

    /// Computes the effect of moving a node to a position within its room.
    pub(super) fn judge(&mut self, x: Node, to: Position) {
        let from = self.pos[x];
        let mut passed = std::mem::take(&mut self.shift.passed);
        passed.clear();
        let grows = self.grows(x);
        let net = grows - self.workspace(x) - self.frees[x];
        let own: f64;
        let old: f64;
        let mut new = 0.0;
        if to > from {
            for &i in self.reads.of(x) {
                let Some(y) = self.last[i].expand() else {
                    continue;
                };
                let p = self.pos[y];
                if p > from && p <= to {
                    passed.push((p, y, self.bytes[i]));
                }
            }
            passed.sort_unstable_by_key(|a| a.0);
            let (mut level, mut start) = (-net, from + 1);
            for &(p, _, bytes) in &passed {
                new += self.over(start, p + 1, level);
                level += bytes;
                start = p + 1;
            }
            new += self.over(start, to + 1, level);
            // Before the last of the passed inputs, the level grows only by the bytes that were summed up
            // earlier.
            let y = self.seq[to.index()];
            let before = self.mem[to.index()] - self.workspace(y) - self.frees[y];
            own = before + level + grows;
            old = self.over(from, to + 1, 0.0);
        } else {
            let mut kept = 0.0;
            for &i in self.reads.of(x) {
                if self.last[i] != x.into() {
                    continue;
                }
                let other = self
                    .readers
                    .of(i)
                    .iter()
                    .map(|&y| (self.pos[y], y))
                    .filter(|&(p, _)| p >= to && p < from)
                    .max();
                if let Some((p, y)) = other {
                    passed.push((p, y, self.bytes[i]));
                    kept += self.bytes[i];
                }
            }
            passed.sort_unstable_by_key(|a| a.0);
            let (mut level, mut start) = (net + kept, to);
            for &(p, _, bytes) in &passed {
                new += self.over(start, p + 1, level);
                level -= bytes;
                start = p + 1;
            }
            new += self.over(start, from, level);
            let y = self.seq[to.index()];
            own = self.mem[to.index()] - self.grows(y) + grows;
            old = self.over(to, from + 1, 0.0);
        }
        new += (own - self.budget).max(0.0);
        self.shift = Shift {
            from,
            to,
            passed,
            own,
            excess: new - old,
        };
    }

    /// The excess of a stretch with every position raised.
    #[inline]
    pub(super) fn over(&self, from: Position, to: Position, raised: f64) -> f64 {
        let budget = self.budget - raised;
        let mut sums = [0.0; 8];
        let stretch = &self.mem[from.index()..to.index()];
        let (eights, rest) = stretch.as_chunks::<8>();
        for eight in eights {
            for k in 0..8 {
                sums[k] += (eight[k] - budget).max(0.0);
            }
        }
        rest.iter().map(|&m| (m - budget).max(0.0)).sum::<f64>() + sums.iter().sum::<f64>()
    }

    /// Makes the move that [`Self::judge`] computed.
    pub(super) fn apply(&mut self, x: Node) {
        let (from, to) = (self.shift.from.index(), self.shift.to.index());
        let later = to > from;
        let mut raised = std::mem::take(&mut self.raised);
        self.stretches(x, |from, to, level| raised.push((from, to, level)));
        for (from, to, level) in raised.drain(..) {
            self.mem[from..to].iter_mut().for_each(|m| *m += level);
        }
        self.raised = raised;
        for &(_, y, bytes) in &self.shift.passed {
            let (loses, gains) = if later { (y, x) } else { (x, y) };
            self.frees[loses] -= bytes;
            self.frees[gains] += bytes;
        }
        if later {
            self.seq[from..=to].rotate_left(1);
            self.mem[from..=to].rotate_left(1);
        } else {
            self.seq[to..=from].rotate_right(1);
            self.mem[to..=from].rotate_right(1);
        }
        self.mem[to] = self.shift.own;
        for p in from.min(to)..=from.max(to) {
            self.pos[self.seq[p]] = Position::new(p);
        }
        for k in 0..self.reads.of(x).len() {
            let i = self.reads.of(x)[k];
            let last = self.readers.of(i).iter().map(|&y| (self.pos[y], y));
            self.last[i] = last.max().map_or(x, |(_, y)| y).into();
        }
        self.excess += self.shift.excess;
    }

    /// Moves runs until the excess is gone or the moves are used up, at temperatures in bytes times positions
    /// that fall from `hot` to `cold`. Returns units of work.
    pub fn anneal(
        &mut self,
        moves: u64,
        hot: f64,
        cold: f64,
        cutoff: Cutoff<'_>,
        rng: &mut Random,
    ) -> u64 {
        let n = self.seq.len();
        let mut work = 0;
        for k in 0..moves {
            if self.excess <= 0.0 || n < 3 || work > MOST_WORK {
                break;
            }
            if k.is_multiple_of(LOOK) && cutoff.reached() {
                break;
            }
            let x = Node::new(1 + rng.below(n - 2));
            work += 4 + (self.before.of(x).len() + self.after.of(x).len()) as u64;
            let Some(to) = self.place_for(x, rng) else {
                continue;
            };
            self.judge(x, to);
            work += u64::from(to.distance(self.pos[x])) / 32;
            let up = self.shift.excess;
            let accepted = up <= 0.0 || {
                let temperature = hot * (cold / hot).powf(k as f64 / moves as f64);
                up < -temperature * (1.0 - rng.unit()).ln()
            };
            if accepted {
                self.apply(x);
            }
        }
        work
    }

    /// Calls `tell` with the stretches between a node's old and new place, and with what raises each.
    pub(super) fn stretches(&self, x: Node, mut tell: impl FnMut(usize, usize, f64)) {
        let (from, to) = (self.shift.from, self.shift.to);
        let net = self.grows(x) - self.workspace(x) - self.frees[x];
        let all: f64 = self.shift.passed.iter().map(|a| a.2).sum();
        let (mut level, mut start, end) = match to > from {
            true => (-net, from + 1, to + 1),
            false => (net + all, to, from),
        };
        for &(p, _, bytes) in &self.shift.passed {
            tell(start.index(), p.index() + 1, level);
            start = p + 1;
            level += if to > from { bytes } else { -bytes };
        }
        tell(start.index(), end.index(), level);
    }

    /// Another position for a node, either near it on a logarithmic scale or anywhere.
    pub(super) fn place_for(&self, x: Node, rng: &mut Random) -> Option<Position> {
        let (lo, hi) = self.room(x);
        if lo >= hi {
            return None;
        }
        let from = self.pos[x];
        let to = if rng.below(2) == 0 {
            let far = f64::from(hi - lo).powf(rng.unit()) as u32;
            if rng.below(2) == 0 {
                (from + far).min(hi)
            } else {
                lo.max(from - far.min(from - Position::FIRST))
            }
        } else {
            let to = lo + rng.below((hi - lo) as usize) as u32;
            to + u32::from(to >= from)
        };
        (to != from).then_some(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::state::State;
    use crate::testing::{Shape, problem};

    /// The given order, with some tasks running again where they can.
    fn with_reruns<'m>(model: &'m Model, rng: &mut Random) -> State<'m> {
        let mut state = State::new(model, &model.given_order());
        for _ in 0..rng.below(12) {
            let t = TaskId::new(rng.below(model.tasks as usize));
            let p = Position::new(1 + rng.below(state.len() - 1));
            if model.rerunnable[t] && state.can_insert(t, p) {
                state.insert(t, p);
            }
        }
        state
    }

    #[test]
    fn the_profile_follows_every_move() {
        let mut rng = Random::new(12, 0);
        let mut moved = 0;
        for round in 0..300 {
            let shape = Shape {
                tasks: 4 + round % 20,
                rich: round % 4 != 0,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let state = with_reruns(&model, &mut rng);
            let budget = (state.peak() * 0.8).floor();
            let mut a = Arrangement::new(&model, &state.order(), budget, true);
            assert_eq!(a.mem, state.mem());
            for _ in 0..40 {
                let x = Node::new(1 + rng.below(a.seq.len() - 2));
                let Some(to) = a.place_for(x, &mut rng) else {
                    continue;
                };
                a.judge(x, to);
                a.apply(x);
                moved += 1;
                let fresh = State::new(&model, &a.order());
                assert_eq!(a.mem, fresh.mem(), "after a move to {to}");
                assert_eq!(fresh.cost(), state.cost());
                let excess: f64 = a.mem.iter().map(|&m| (m - budget).max(0.0)).sum();
                assert_eq!(a.excess, excess);
            }
            let plan = scrimp_plan::Plan::from_runs(&p, crate::testing::device(), &a.order());
            scrimp_plan::check(&p, plan.unwrap()).unwrap();
        }
        assert!(moved > 1000, "only {moved} moves");
    }

    #[test]
    fn tidying_shortens_waits_within_the_budget() {
        let mut rng = Random::new(14, 0);
        let (mut before, mut after) = (0.0, 0.0);
        for round in 0..200 {
            let shape = Shape {
                tasks: 4 + round % 30,
                rich: round % 4 != 0,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let state = with_reruns(&model, &mut rng);
            let free = round % 3 > 0;
            let mut a = Arrangement::new(&model, &state.order(), state.peak(), free);
            if round % 2 == 0 {
                a.stir(10.0, Cutoff::NEVER, &mut rng);
            }
            a.tidy(Cutoff::NEVER);
            let tidy = State::new(&model, &a.order());
            assert_eq!(a.mem, tidy.mem());
            assert!(tidy.peak() <= state.peak());
            assert_eq!(tidy.cost(), state.cost());
            before += state.mem().iter().sum::<f64>();
            after += tidy.mem().iter().sum::<f64>();
            let plan = |order: &[TaskId]| {
                let plan = scrimp_plan::Plan::from_runs(&p, crate::testing::device(), order);
                scrimp_plan::check(&p, plan.unwrap()).unwrap()
            };
            let kept = plan(&state.order()).keeps_order();
            assert!(free || !kept || plan(&a.order()).keeps_order());
        }
        assert!(after < 0.95 * before, "{after} of {before}");
    }

    #[test]
    fn annealing_takes_off_excess() {
        let mut rng = Random::new(13, 0);
        let (mut before, mut after) = (0.0, 0.0);
        for _ in 0..20 {
            let p = problem(
                Shape {
                    tasks: 60,
                    rich: false,
                },
                &mut rng,
            );
            let model = Model::new(&p).unwrap().0;
            let given = model.given_order();
            let budget = (State::new(&model, &given).peak() * 0.7).floor();
            let mut a = Arrangement::new(&model, &given, budget, true);
            before += a.excess;
            a.anneal(20_000, 100.0, 0.1, Cutoff::NEVER, &mut rng);
            after += a.excess;
        }
        assert!(after < 0.5 * before, "{after} of {before} is left");
    }
}
