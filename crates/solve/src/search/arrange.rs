//! Annealing on the order alone: the runs of a sequence move one at a time, every use keeps the run
//! that serves it, and nothing is recomputed or dropped. What comes down is the excess over a budget.
//!
//! With the servers fixed, moving a run shifts the memory profile between its old and its new place
//! by a few constants: its own growth, and each input's bytes from where its last reader changes. So
//! a move is judged by one pass over that stretch.

use crate::model::{Lists, Model, NONE, Task};
use crate::search::links::{Links, Node};
use crate::search::rng::Random;

/// How a move changes the excess, and what it changes besides.
#[derive(Debug, Default)]
pub(super) struct Shift {
    from: u32,
    to: u32,
    /// Inputs whose last reader changes: position and node of the other reader, and the bytes.
    passed: Vec<(u32, Node, f64)>,
    /// Bytes in use while the run is at its new place.
    pub(super) own: f64,
    pub(super) excess: f64,
}

/// A sequence whose runs may change places.
#[derive(Debug)]
pub(crate) struct Arrangement<'m> {
    model: &'m Model,
    pub(super) budget: f64,
    task: Vec<Task>,
    pub(super) seq: Vec<Node>,
    pub(super) pos: Vec<u32>,
    /// Bytes in use by position.
    pub(super) mem: Vec<f64>,
    /// Per node, the nodes that must come before and after it.
    pub(super) before: Lists<Node>,
    pub(super) after: Lists<Node>,
    /// Per node, the instances it reads that end with their last reader.
    reads: Lists<u32>,
    /// Per instance, its readers, its bytes and the node that reads it last.
    readers: Lists<Node>,
    bytes: Vec<f64>,
    last: Vec<Node>,
    /// Bytes that end after each node.
    frees: Vec<f64>,
    /// Bytes times positions over the budget.
    pub(super) excess: f64,
    pub(super) shift: Shift,
    /// Scratch: stretches and what they are raised by.
    raised: Vec<(usize, usize, f64)>,
}

impl<'m> Arrangement<'m> {
    /// Of a sequence in which every task's inputs are there when it runs. First runs change their order only
    /// if it is free.
    pub fn new(model: &'m Model, order: &[Task], budget: f64, free: bool) -> Arrangement<'m> {
        let task: Vec<Task> = std::iter::once(model.start())
            .chain(order.iter().copied())
            .chain([model.end()])
            .collect();
        let links = Links::new(model, &task, free);
        let n = task.len();
        let mut a = Arrangement {
            model,
            budget,
            seq: (0..n as Node).collect(),
            pos: (0..n as u32).collect(),
            mem: vec![0.0; n],
            last: links.last,
            frees: vec![0.0; n],
            bytes: links.bytes,
            readers: Lists::new(links.readers),
            reads: Lists::new(links.reads),
            before: Lists::new(links.before),
            after: Lists::new(links.after),
            task,
            excess: 0.0,
            shift: Shift::default(),
            raised: Vec::new(),
        };
        for (i, &last) in a.last.iter().enumerate() {
            if last != NONE {
                a.frees[last as usize] += a.bytes[i];
            }
        }
        let mut level = 0.0;
        for p in 0..n as Node {
            a.mem[p as usize] = level + a.grows(p);
            level = a.mem[p as usize] - a.workspace(p) - a.frees[p as usize];
        }
        a.excess = a.mem.iter().map(|&m| (m - budget).max(0.0)).sum();
        a
    }

    /// The tasks in the order they run.
    pub fn order(&self) -> Vec<Task> {
        self.seq[1..self.seq.len() - 1]
            .iter()
            .map(|&x| self.task[x as usize])
            .collect()
    }

    fn grows(&self, x: Node) -> f64 {
        self.model.grows[self.task[x as usize] as usize]
    }

    fn workspace(&self, x: Node) -> f64 {
        self.model.workspace[self.task[x as usize] as usize]
    }

    /// First and last position a node may move to.
    pub(super) fn room(&self, x: Node) -> (u32, u32) {
        let before = self.before.of(x).iter().map(|&y| self.pos[y as usize]);
        let after = self.after.of(x).iter().map(|&y| self.pos[y as usize]);
        let last = self.seq.len() as u32 - 1;
        (
            before.max().unwrap_or(0) + 1,
            after.min().unwrap_or(last) - 1,
        )
    }

    /// Works out what moving a node to a position within its room does.
    pub(super) fn judge(&mut self, x: Node, to: u32) {
        let from = self.pos[x as usize];
        let mut shift = std::mem::take(&mut self.shift);
        shift.passed.clear();
        (shift.from, shift.to) = (from, to);
        let x = x as usize;
        let grows = self.grows(x as Node);
        let net = grows - self.workspace(x as Node) - self.frees[x];
        let old: f64;
        let mut new = 0.0;
        if to > from {
            for &i in self.reads.of(x as Node) {
                let y = self.last[i as usize];
                let p = self.pos[y as usize];
                if p > from && p <= to {
                    shift.passed.push((p, y, self.bytes[i as usize]));
                }
            }
            shift.passed.sort_unstable_by_key(|a| a.0);
            let (mut level, mut start) = (-net, from + 1);
            for &(p, _, bytes) in &shift.passed {
                new += self.over(start, p + 1, level);
                level += bytes;
                start = p + 1;
            }
            new += self.over(start, to + 1, level);
            // The level before the last of those passed grows by what was summed up before it only.
            let y = self.seq[to as usize];
            let before = self.mem[to as usize] - self.workspace(y) - self.frees[y as usize];
            shift.own = before + level + grows;
            old = self.over(from, to + 1, 0.0);
        } else {
            let mut kept = 0.0;
            for &i in self.reads.of(x as Node) {
                if self.last[i as usize] as usize != x {
                    continue;
                }
                let other = self
                    .readers
                    .of(i)
                    .iter()
                    .map(|&y| (self.pos[y as usize], y))
                    .filter(|&(p, _)| p >= to && p < from)
                    .max();
                if let Some((p, y)) = other {
                    shift.passed.push((p, y, self.bytes[i as usize]));
                    kept += self.bytes[i as usize];
                }
            }
            shift.passed.sort_unstable_by_key(|a| a.0);
            let (mut level, mut start) = (net + kept, to);
            for &(p, _, bytes) in &shift.passed {
                new += self.over(start, p + 1, level);
                level -= bytes;
                start = p + 1;
            }
            new += self.over(start, from, level);
            let y = self.seq[to as usize];
            shift.own = self.mem[to as usize] - self.grows(y) + grows;
            old = self.over(to, from + 1, 0.0);
        }
        new += (shift.own - self.budget).max(0.0);
        shift.excess = new - old;
        self.shift = shift;
    }

    /// Excess of a stretch with every position raised.
    #[inline]
    pub(super) fn over(&self, from: u32, to: u32, raised: f64) -> f64 {
        let budget = self.budget - raised;
        let mut sums = [0.0; 8];
        let stretch = &self.mem[from as usize..to as usize];
        let (eights, rest) = stretch.as_chunks::<8>();
        for eight in eights {
            for k in 0..8 {
                sums[k] += (eight[k] - budget).max(0.0);
            }
        }
        rest.iter().map(|&m| (m - budget).max(0.0)).sum::<f64>() + sums.iter().sum::<f64>()
    }

    /// Does what [`Self::judge`] worked out.
    pub(super) fn apply(&mut self, x: Node) {
        let shift = std::mem::take(&mut self.shift);
        let (from, to) = (shift.from as usize, shift.to as usize);
        let later = to > from;
        self.shift = shift;
        let mut raised = std::mem::take(&mut self.raised);
        self.stretches(x, |from, to, level| raised.push((from, to, level)));
        for (from, to, level) in raised.drain(..) {
            self.mem[from..to].iter_mut().for_each(|m| *m += level);
        }
        self.raised = raised;
        let shift = std::mem::take(&mut self.shift);
        for &(_, y, bytes) in &shift.passed {
            let (loses, gains) = if later { (y, x) } else { (x, y) };
            self.frees[loses as usize] -= bytes;
            self.frees[gains as usize] += bytes;
        }
        if later {
            self.seq[from..=to].rotate_left(1);
            self.mem[from..=to].rotate_left(1);
        } else {
            self.seq[to..=from].rotate_right(1);
            self.mem[to..=from].rotate_right(1);
        }
        self.mem[to] = shift.own;
        for p in from.min(to)..=from.max(to) {
            self.pos[self.seq[p] as usize] = p as u32;
        }
        for k in 0..self.reads.of(x).len() {
            let i = self.reads.of(x)[k];
            let last = self
                .readers
                .of(i)
                .iter()
                .map(|&y| (self.pos[y as usize], y));
            self.last[i as usize] = last.max().map_or(x, |(_, y)| y);
        }
        self.excess += shift.excess;
        self.shift = shift;
    }

    /// Moves runs until the excess is gone or the moves are used up, at temperatures in bytes times
    /// positions that fall from `hot` to `cold`; returns units of work.
    pub fn anneal(&mut self, moves: u64, hot: f64, cold: f64, rng: &mut Random) -> u64 {
        let n = self.seq.len();
        let mut work = 0;
        for k in 0..moves {
            if self.excess <= 0.0 || n < 3 {
                break;
            }
            let x = 1 + rng.below(n - 2) as Node;
            work += 4 + (self.before.of(x).len() + self.after.of(x).len()) as u64;
            let Some(to) = self.place_for(x, rng) else {
                continue;
            };
            self.judge(x, to);
            work += u64::from(to.abs_diff(self.pos[x as usize])) / 32;
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

    /// Tells the stretches between a node's old and new place with what each is raised by.
    pub(super) fn stretches(&self, x: Node, mut tell: impl FnMut(usize, usize, f64)) {
        let Shift { from, to, .. } = self.shift;
        let net = self.grows(x) - self.workspace(x) - self.frees[x as usize];
        let all: f64 = self.shift.passed.iter().map(|a| a.2).sum();
        let (mut level, mut start, end) = match to > from {
            true => (-net, from + 1, to + 1),
            false => (net + all, to, from),
        };
        for &(p, _, bytes) in &self.shift.passed {
            tell(start as usize, p as usize + 1, level);
            start = p + 1;
            level += if to > from { bytes } else { -bytes };
        }
        tell(start as usize, end as usize, level);
    }

    /// Another position for a node: near it, on a logarithmic scale, or anywhere.
    pub(super) fn place_for(&self, x: Node, rng: &mut Random) -> Option<u32> {
        let (lo, hi) = self.room(x);
        if lo >= hi {
            return None;
        }
        let from = self.pos[x as usize];
        let to = if rng.below(2) == 0 {
            let far = f64::from(hi - lo).powf(rng.unit()) as u32;
            if rng.below(2) == 0 {
                (from + far).min(hi)
            } else {
                from.saturating_sub(far).max(lo)
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

    /// The given order with some tasks run again where they can be.
    fn with_reruns<'m>(model: &'m Model, rng: &mut Random) -> State<'m> {
        let given: Vec<Task> = (0..model.tasks).collect();
        let mut state = State::new(model, &given);
        for _ in 0..rng.below(12) {
            let t = rng.below(model.tasks as usize) as Task;
            let p = 1 + rng.below(state.len() - 1) as u32;
            if model.rerunnable[t as usize] && state.can_insert(t, p) {
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
                let x = 1 + rng.below(a.seq.len() - 2) as Node;
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
            let plan =
                scrimp_plan::Plan::from_runs(&p, crate::testing::device(), &Model::ids(&a.order()));
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
                a.stir(10.0, &mut rng);
            }
            a.tidy();
            let tidy = State::new(&model, &a.order());
            assert_eq!(a.mem, tidy.mem());
            assert!(tidy.peak() <= state.peak());
            assert_eq!(tidy.cost(), state.cost());
            before += state.mem().iter().sum::<f64>();
            after += tidy.mem().iter().sum::<f64>();
            let plan = |order: &[Task]| {
                let ids = Model::ids(order);
                let plan = scrimp_plan::Plan::from_runs(&p, crate::testing::device(), &ids);
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
            let given: Vec<Task> = (0..model.tasks).collect();
            let budget = (State::new(&model, &given).peak() * 0.7).floor();
            let mut a = Arrangement::new(&model, &given, budget, true);
            before += a.excess;
            a.anneal(20_000, 100.0, 0.1, &mut rng);
            after += a.excess;
        }
        assert!(after < 0.5 * before, "{after} of {before} is left");
    }
}
