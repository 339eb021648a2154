//! Search for any plan within a budget, from the end of the sequence to its start.
//!
//! A state says which tasks have run by a moment and which values the rest of the sequence reads, and a step puts one more run
//! before that rest. A search from the front decides at every run what to drop; here that never comes up, because what
//! the rest doesn't read isn't in memory. A state that reads fewer values is never worse, and under a tight budget few
//! sets of values fit beside a run. So there are the fewer states the tighter the budget is, and where none is left,
//! no plan exists: the least budgets of most problems of up to 150 tasks are found and proven by some thousands of states.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{PrimaryMap, entity_impl};
use rustc_hash::FxHashMap;
use scrimp_plan::{TaskId, ValueId};

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::cutoff::Cutoff;
use crate::model::{Input, Model};
use crate::search::beam::Over;
use crate::search::space::{Place, Space, Tasks, Values, words};
use crate::search::walks::first_found;

/// The most words of sets in the states that the searches for one budget make: some 600 MB.
const MOST_WORDS: usize = 4_000_000;
/// The most states with the same finished tasks to which a new one is compared.
const COMPARED: usize = 4096;
/// States made between two looks at the cutoff.
const LOOK: usize = 1000;

/// What a search says of a budget.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    Plan(Vec<TaskId>),
    NoPlan,
    /// The search ended early.
    Unknown,
}

/// What a search looks for, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sought<'a> {
    pub budget: f64,
    /// The order of the first runs, or `None` for any.
    pub order: Option<&'a [TaskId]>,
    pub by: Estimate,
    /// The most states to make.
    pub states: usize,
    /// The runs take fewer seconds than this.
    pub below: f64,
}

/// What says how far a state is from the start; either gets stuck where the other doesn't.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Estimate {
    /// The number of tasks that make what the rest of the sequence reads.
    Makers,
    /// The same, but the states with each number of first runs to come take turns, so that no choice near the end of the sequence is
    /// kept for long where everything that follows from it fails.
    MakersInTurn,
    /// The bytes of what it reads.
    Bytes,
    /// The seconds of the runs so far and of those that are still necessary: the first plan that is found is the cheapest.
    Seconds,
    /// The same seconds, but states with the fewest first runs to come go first: a plan soon, and not the dearest.
    Greedy,
}

impl Estimate {
    /// Those for any plan, and others where these have failed.
    pub const ANY: [Estimate; 2] = [Estimate::Makers, Estimate::Bytes];
    pub const OTHERS: [Estimate; 2] = [Estimate::MakersInTurn, Estimate::Bytes];
}

/// Looks for a plan. Problems with more than 1024 tasks or values are skipped. Adds the states made to `made`.
pub(crate) fn any(model: &Model, sought: Sought<'_>, over: Over<'_>, made: &mut usize) -> Verdict {
    make(model, sought, None, over, made)
}

/// Looks for other runs for a stretch of a sequence, after which the rest of the sequence has what it reads; the order is that
/// of the tasks that run first in the stretch. Otherwise like [`any`].
pub(crate) fn between(
    model: &Model,
    stretch: (&[TaskId], Range<usize>),
    sought: Sought<'_>,
    over: Over<'_>,
    made: &mut usize,
) -> Verdict {
    make(model, sought, Some(stretch), over, made)
}

/// A sequence and its stretch.
type Stretch<'a> = (&'a [TaskId], Range<usize>);

fn make(
    model: &Model,
    sought: Sought<'_>,
    stretch: Option<Stretch<'_>>,
    over: Over<'_>,
    made: &mut usize,
) -> Verdict {
    let search = match words(model) {
        0 | 1 => sized::<1>,
        2 => sized::<2>,
        3 | 4 => sized::<4>,
        5..=8 => sized::<8>,
        9..=16 => sized::<16>,
        _ => return Verdict::Unknown,
    };
    search(model, sought, stretch, over, made)
}

/// Units of work for one state.
pub(crate) fn state_work(model: &Model) -> u64 {
    64 + u64::from(model.tasks)
}

/// The most states of each search for a budget in so many orders.
pub(crate) fn most_states(model: &Model, orders: usize) -> usize {
    MOST_WORDS / (words(model).max(1) * orders * Estimate::ANY.len())
}

/// Orders and estimates.
pub(crate) type Ways<'a> = (&'a [Option<&'a [TaskId]>], [Estimate; 2]);

/// What is known of a budget from searches by two estimates in several orders, of which the last, or any order if that is `None`, is
/// the problem's own.
pub(crate) fn decided(
    model: &Model,
    (budget, states): (f64, usize),
    (orders, by): Ways<'_>,
    (threads, cutoff): (usize, Cutoff<'_>),
) -> Verdict {
    let own = orders.len() - 1;
    let states = states.min(most_states(model, orders.len()));
    let jobs: Vec<_> = (0..orders.len())
        .flat_map(|k| by.map(|by| (k, by)))
        .collect();
    let found = first_found(threads, &jobs, &|&(k, by), over| {
        let sought = Sought {
            budget,
            order: orders[k],
            by,
            states,
            below: f64::INFINITY,
        };
        let over = || over() || cutoff.reached();
        match any(model, sought, &over, &mut 0) {
            Verdict::Unknown => None,
            Verdict::NoPlan if k != own => None,
            decided => Some(decided),
        }
    });
    found.unwrap_or(Verdict::Unknown)
}

fn sized<const W: usize>(
    model: &Model,
    sought: Sought<'_>,
    stretch: Option<Stretch<'_>>,
    over: Over<'_>,
    made: &mut usize,
) -> Verdict {
    let Some(mut space) = Space::<W>::new(model, sought.budget, sought.order.is_none()) else {
        return Verdict::Unknown;
    };
    if let Some((runs, stretch)) = stretch {
        space = space.between(runs, stretch);
    }
    let Some(start) = space.start() else {
        return Verdict::NoPlan;
    };
    let mut search = Search::new(&space, start, sought);
    let verdict = search.run(over);
    *made += search.nodes.len();
    verdict
}

/// Names a [`Node`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
struct NodeId(u32);
entity_impl!(NodeId, "node");

/// A state: the tasks that have run by then, and as `live` the values that the rest of the sequence reads.
struct Node<const W: usize> {
    place: Place<W>,
    /// Seconds of the runs that aren't first ones, if seconds matter, and else 0.
    again: f64,
    /// The first run of the rest, and what follows it; none at the end.
    next: PackedOption<NodeId>,
    task: TaskId,
}

/// A state by its estimate, the least one first, and of equal ones the latest.
type Entry = (Reverse<(u64, u64)>, NodeId);

/// States yet to visit, in levels.
struct Open {
    levels: Vec<BinaryHeap<Entry>>,
    /// Whether the levels take turns. Otherwise the lowest one with a state has it.
    by_turns: bool,
    /// The level whose turn it is, or below which there are no states.
    level: usize,
}

impl Open {
    fn new(levels: usize, by_turns: bool) -> Open {
        Open {
            levels: std::iter::repeat_with(BinaryHeap::new)
                .take(levels)
                .collect(),
            by_turns,
            level: 0,
        }
    }

    fn push(&mut self, level: usize, estimate: (u64, u64), node: NodeId) {
        self.levels[level].push((Reverse(estimate), node));
        if !self.by_turns {
            self.level = self.level.min(level);
        }
    }

    fn pop(&mut self) -> Option<NodeId> {
        let levels = self.levels.len();
        let step = if self.by_turns { levels - 1 } else { 1 };
        for _ in 0..levels {
            let found = self.levels[self.level].pop();
            if found.is_none() || self.by_turns {
                self.level = (self.level + step) % levels;
            }
            if let Some((_, node)) = found {
                return Some(node);
            }
        }
        None
    }
}

struct Search<'s, 'm, const W: usize> {
    space: &'s Space<'m, W>,
    start: Place<W>,
    sought: Sought<'s>,
    /// Values that no run can make any more: they must be in memory at the start, and aren't.
    lost: Values<W>,
    /// Values that are in memory from the start, or are made once, until they are read for the last time.
    once: Values<W>,
    /// Values that a task overwrites.
    overwritten: Values<W>,
    /// By task, those that read what it writes.
    readers: PrimaryMap<TaskId, Tasks<W>>,
    nodes: PrimaryMap<NodeId, Node<W>>,
    /// The fewest seconds of runs again to each state that was made.
    seen: FxHashMap<Place<W>, f64>,
    /// By finished tasks, what the states that have been visited read, and their seconds.
    left: FxHashMap<Tasks<W>, Vec<(Values<W>, f64)>>,
    /// Runs again take fewer seconds than this.
    below: f64,
    open: Open,
    /// The states before one, their seconds and their first runs, while it is expanded.
    steps: Vec<(Place<W>, f64, TaskId)>,
}

impl<'s, 'm, const W: usize> Search<'s, 'm, W> {
    fn new(space: &'s Space<'m, W>, start: Place<W>, sought: Sought<'s>) -> Search<'s, 'm, W> {
        let model = space.model;
        let readers = |t: TaskId| {
            let values = model.outputs.of(t).iter();
            let readers = values.flat_map(|&v| model.consumers.of(v).iter().copied());
            Tasks::of(readers.filter(|&t| model.has(t)))
        };
        let lost = |&v: &ValueId| {
            let t = model.producer[v];
            let again = model.has(t) && (model.rerunnable[t] || !start.done.has(t));
            !again && !start.live.has(v)
        };
        let once = |&v: &ValueId| {
            let t = model.producer[v];
            !model.has(t) || !model.rerunnable[t]
        };
        let overwritten = model.task_ids().flat_map(|t| model.inputs.of(t).iter());
        let overwritten = overwritten.filter(|i| i.overwritten).map(|i| i.value);
        let first = model.task_ids().filter(|&t| !start.done.has(t));
        let first = first.map(|t| model.cost[t]);
        Search {
            space,
            start,
            sought,
            below: sought.below - first.sum::<f64>(),
            lost: Values::of(model.bytes.keys().filter(lost)),
            once: Values::of(model.bytes.keys().filter(once)),
            overwritten: Values::of(overwritten),
            readers: model.cost.keys().map(readers).collect(),
            nodes: PrimaryMap::new(),
            seen: FxHashMap::default(),
            left: FxHashMap::default(),
            open: Open::new(
                model.tasks as usize + 1,
                sought.by == Estimate::MakersInTurn,
            ),
            steps: Vec::new(),
        }
    }

    fn run(&mut self, over: Over<'_>) -> Verdict {
        let model = self.space.model;
        let end = Place {
            done: Tasks::of(model.task_ids()),
            live: *self.space.reads(model.end()),
        };
        if self.space.bytes(&end.live) > self.space.budget {
            return Verdict::NoPlan;
        }
        self.add(end, 0.0, None, model.end());
        let mut look = LOOK;
        while let Some(node) = self.open.pop() {
            let looks = self.nodes.len() >= look;
            if looks {
                look = self.nodes.len() + LOOK;
            }
            if self.nodes.len() > self.sought.states || (looks && over()) {
                return Verdict::Unknown;
            }
            let Node { place, again, .. } = self.nodes[node];
            if self.seen[&place] < again || self.is_dominated(&place, again) {
                continue;
            }
            if place.done == self.start.done && place.live.within(&self.start.live) {
                return Verdict::Plan(self.path(node));
            }
            self.expand(node, place, again);
        }
        Verdict::NoPlan
    }

    /// Whether a state with the same finished tasks that reads no more and takes no more seconds has been visited.
    fn is_dominated(&mut self, place: &Place<W>, again: f64) -> bool {
        let left = self.left.entry(place.done).or_default();
        let mut latest = left.iter().rev().take(COMPARED);
        if latest.any(|(read, seconds)| *seconds <= again && read.within(&place.live)) {
            return true;
        }
        left.push((place.live, again));
        false
    }

    /// Puts every run before the rest of the sequence that some plan needs there.
    fn expand(&mut self, node: NodeId, place: Place<W>, seconds: f64) {
        let model = self.space.model;
        let open = place.done.minus(&self.start.done);
        let producers = place.live.iter().map(|v| model.producer[v]);
        let again = producers.filter(|&t| model.has(t) && model.rerunnable[t]);
        let again = Tasks::<W>::of(again);
        let firsts = match self.sought.order {
            Some(order) => Tasks::of(open.len().checked_sub(1).map(|k| order[k])),
            None => Tasks::of(
                open.iter()
                    .filter(|&t| self.readers[t].and(&open).is_empty()),
            ),
        };
        let mut steps = std::mem::take(&mut self.steps);
        steps.clear();
        for t in again.or(&firsts).iter() {
            let overwrites = |i: &Input| i.overwritten && place.live.has(i.value);
            if model.inputs.of(t).iter().any(overwrites) {
                continue;
            }
            let read = place.live.minus(self.space.writes(t));
            let live = read.or(self.space.reads(t));
            let mut before = Place { live, ..place };
            if !live.and(&self.lost).is_empty() || self.space.lack(&before, t) > 0.0 {
                continue;
            }
            // Nothing that runs before reads what such a task writes, so it needn't run before.
            let first = firsts.has(t);
            let mut again = seconds;
            match first {
                true => before.done = before.done.minus(&Tasks::of([t])),
                false => again += model.cost[t],
            }
            let never_worse = (first || !self.counts_seconds())
                && (live.within(&place.live) || self.holds_less(&place, t));
            let step = (before, again, t);
            if never_worse {
                steps.clear();
                steps.push(step);
                break;
            }
            steps.push(step);
        }
        for &(before, again, t) in &steps {
            self.add(before, again, Some(node), t);
        }
        self.steps = steps;
    }

    /// Whether nothing that runs before a state reads what a task writes, and holding all that the task reads takes no more bytes
    /// than what it writes: then it needn't run earlier.
    fn holds_less(&self, place: &Place<W>, t: TaskId) -> bool {
        if !self.readers[t].and(&place.done).is_empty()
            || !self.space.reads(t).and(&self.overwritten).is_empty()
        {
            return false;
        }
        let written = self.space.writes(t).and(&place.live);
        let held = self.space.reads(t).minus(&place.live.and(&self.once));
        self.space.bytes(&held) <= self.space.bytes(&written)
    }

    /// Whether seconds matter.
    fn counts_seconds(&self) -> bool {
        self.below < f64::INFINITY || self.sought.by == Estimate::Greedy
    }

    fn add(&mut self, place: Place<W>, again: f64, next: Option<NodeId>, task: TaskId) {
        let counts = self.counts_seconds();
        let again = if counts { again } else { 0.0 };
        let known = self.seen.entry(place).or_insert(f64::INFINITY);
        if again >= *known {
            return;
        }
        *known = again;
        let missing = place.live.minus(&self.start.live);
        let makers = match self.sought.by {
            Estimate::Makers | Estimate::MakersInTurn => true,
            _ => counts && !self.start.done.is_empty(),
        };
        let makers = match makers {
            true => self.space.makers(missing, &self.start.live),
            false => Tasks::EMPTY,
        };
        // Tasks that have run before the start run again.
        let rerun = makers.and(&self.start.done);
        let to_go: f64 = rerun.iter().map(|t| self.space.model.cost[t]).sum();
        if again + to_go >= self.below {
            return;
        }
        let node = self.nodes.push(Node {
            place,
            again,
            next: next.into(),
            task,
        });
        let first = place.done.minus(&self.start.done).len();
        let (level, estimate) = match self.sought.by {
            Estimate::Makers | Estimate::MakersInTurn => (first, (makers.len() as u64, 0)),
            Estimate::Bytes => (first, (self.space.bytes(&missing) as u64, 0)),
            // As integers, positive numbers compare as they do.
            Estimate::Greedy => (first, ((again + to_go).to_bits(), 0)),
            Estimate::Seconds => (0, ((again + to_go).to_bits(), first as u64)),
        };
        self.open.push(level, estimate, node);
    }

    /// The runs from a state to the end.
    fn path(&self, node: NodeId) -> Vec<TaskId> {
        let mut runs = Vec::new();
        let mut at = node;
        while let Some(next) = self.nodes[at].next.expand() {
            runs.push(self.nodes[at].task);
            at = next;
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound;
    use crate::random::Random;
    use crate::search::exact;
    use crate::search::state::State;
    use crate::testing::{Shape, problem};

    /// A small random problem of this round, a tight budget for it, and whether the order is free.
    fn tight(round: usize, rng: &mut Random) -> (Model, f64, bool) {
        let shape = Shape {
            tasks: 5 + round % 6,
            rich: !round.is_multiple_of(3),
        };
        let p = problem(shape, rng);
        let model = Model::new(&p).unwrap().0;
        let floor = bound::floor(&model);
        let peak = State::new(&model, &model.given_order()).peak();
        let budget = (floor + (peak - floor) * rng.unit() * 0.5).floor() - model.resident;
        (model, budget, round.is_multiple_of(2))
    }

    /// The cheapest plan by the exact search.
    fn cheapest(model: &Model, budget: f64, free: bool) -> exact::Verdict {
        let limits = exact::Limits {
            states: 3_000_000,
            below: f64::INFINITY,
            cutoff: Cutoff::NEVER,
        };
        exact::cheapest(model, budget, free, limits)
    }

    /// What the search says by an estimate and below so many seconds.
    fn found(model: &Model, budget: f64, free: bool, by: Estimate, below: f64) -> Verdict {
        let given = model.given_order();
        let sought = Sought {
            budget,
            order: (!free).then_some(&given[..]),
            by,
            states: 3_000_000,
            below,
        };
        any(model, sought, &|| false, &mut 0)
    }

    #[test]
    fn it_finds_a_plan_where_there_is_one_and_proves_where_there_is_none() {
        let mut rng = Random::new(21, 0);
        let (mut plans, mut none) = (0, 0);
        for round in 0..300 {
            let (model, budget, free) = tight(round, &mut rng);
            let known = cheapest(&model, budget, free);
            let other = [Estimate::MakersInTurn, Estimate::Greedy];
            for by in Estimate::ANY.into_iter().chain(other) {
                match found(&model, budget, free, by, f64::INFINITY) {
                    Verdict::Plan(runs) => {
                        plans += 1;
                        assert!(matches!(known, exact::Verdict::Optimal(_)), "round {round}");
                        let state = State::new(&model, &runs);
                        assert!(state.is_sound() && state.peak() <= budget);
                        assert!(model.task_ids().all(|t| runs.contains(&t)));
                    }
                    Verdict::NoPlan => {
                        none += 1;
                        assert_eq!(known, exact::Verdict::Infeasible, "round {round}");
                    }
                    Verdict::Unknown => panic!("these problems are small"),
                }
            }
        }
        assert!(plans > 100 && none > 100, "{plans} and {none}");
    }

    #[test]
    fn by_seconds_the_first_plan_is_the_cheapest() {
        let mut rng = Random::new(23, 0);
        let mut dear = 0;
        for round in 0..200 {
            let (model, budget, free) = tight(round, &mut rng);
            let exact::Verdict::Optimal(runs) = cheapest(&model, budget, free) else {
                continue;
            };
            let least = State::new(&model, &runs).cost();
            dear += usize::from(least > model.base_cost());
            let below = |seconds| found(&model, budget, free, Estimate::Seconds, seconds);
            let Verdict::Plan(runs) = below(2.0 * least) else {
                panic!("round {round}: there is a plan");
            };
            let cost = State::new(&model, &runs).cost();
            assert!((cost - least).abs() < 1e-9 * least, "{cost} for {least}");
            assert_eq!(below(least * (1.0 - 1e-9)), Verdict::NoPlan);
        }
        assert!(dear > 50, "{dear}");
    }
}
