//! Exact search for small problems: best-first over the states of [`Space`]. So the first plan that it
//! reaches is the cheapest, and if it reaches none, none exists.
//!
//! Making room for a run is a part of the path, too: values are dropped one at a time, largest first. So of the many sets of
//! values that could be dropped, only those are made that a cheap plan may drop.

use cranelift_entity::{PrimaryMap, entity_impl};
use rustc_hash::FxHashMap;
use scrimp_plan::{TaskId, ValueId};

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::cutoff::Cutoff;
use crate::model::Model;
use crate::search::space::{Place, Space, Tasks, Values};

/// The most states that any search makes, and the most words of sets in those that it remembers, and in those that it has yet
/// to visit: some 600 MB.
pub(crate) const MOST_STATES: usize = 20_000_000;
const MOST_WORDS: usize = 4_000_000;
/// States made between two looks at the cutoff; a visit to one counts as so many.
const LOOK: usize = 10_000;
const VISIT: usize = 40;

/// The result of an exact search.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// No plan is cheaper than this one.
    Optimal(Vec<TaskId>),
    /// There is no plan, or none that takes fewer seconds than the limits say.
    Infeasible,
    /// The search ended early; no plan takes fewer seconds than this.
    AtLeast(f64),
}

/// The limits of an exact search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    /// The most states to make.
    pub states: usize,
    /// Only plans that take fewer seconds than this count.
    pub below: f64,
    pub cutoff: Cutoff<'a>,
}

/// Looks for the cheapest plan within `budget` bytes. Problems that are too
/// large are skipped.
pub(crate) fn cheapest(model: &Model, budget: f64, free: bool, limits: Limits<'_>) -> Verdict {
    if let Some(space) = Space::<1>::new(model, budget, free) {
        return Frontier::new(&space, limits).search();
    }
    if let Some(space) = Space::<2>::new(model, budget, free) {
        return Frontier::new(&space, limits).search();
    }
    if let Some(space) = Space::<4>::new(model, budget, free) {
        return Frontier::new(&space, limits).search();
    }
    Verdict::AtLeast(model.base_cost())
}

/// Names a [`Node`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
struct NodeId(u32);
entity_impl!(NodeId, "node");

/// A state on the way to a plan.
struct Node<const W: usize> {
    place: Place<W>,
    seconds: f64,
    /// How the state was reached: by running the task in the state of that node; none for the start.
    from: Option<(NodeId, TaskId)>,
}

/// What to do next. The greatest has the fewest seconds in total; of equal ones, the one furthest along is the greatest, and
/// then the latest.
struct Open<const W: usize> {
    seconds: f64,
    spent: f64,
    made: usize,
    next: Next<W>,
}

enum Next<const W: usize> {
    Visit(NodeId),
    MakeRoom(Room<W>),
}

/// Room for a run, for which some values have been dropped.
#[derive(Clone, Copy)]
struct Room<const W: usize> {
    node: NodeId,
    task: TaskId,
    dropped: Values<W>,
    /// How many of the values that may be dropped, largest first, have been decided on.
    decided: usize,
}

impl<const W: usize> Ord for Open<W> {
    fn cmp(&self, other: &Open<W>) -> Ordering {
        let fewest = other.seconds.total_cmp(&self.seconds);
        let furthest = self.spent.total_cmp(&other.spent);
        fewest.then(furthest).then(self.made.cmp(&other.made))
    }
}

impl<const W: usize> PartialOrd for Open<W> {
    fn partial_cmp(&self, other: &Open<W>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const W: usize> PartialEq for Open<W> {
    fn eq(&self, other: &Open<W>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<const W: usize> Eq for Open<W> {}

struct Frontier<'s, 'm, const W: usize> {
    space: &'s Space<'m, W>,
    limits: Limits<'s>,
    nodes: PrimaryMap<NodeId, Node<W>>,
    open: BinaryHeap<Open<W>>,
    /// The fewest seconds to each state; fewer than any number if no plan goes through it.
    least: FxHashMap<Place<W>, f64>,
    /// By finished tasks: the live sets already left, with their seconds. More live values are never worse.
    left: FxHashMap<Tasks<W>, Vec<(Values<W>, f64)>>,
    needed: FxHashMap<Tasks<W>, Values<W>>,
    /// The number of states made, those on the way to room for a run included, which limits memory and time.
    made: usize,
}

impl<'s, 'm, const W: usize> Frontier<'s, 'm, W> {
    fn new(space: &'s Space<'m, W>, limits: Limits<'s>) -> Self {
        Frontier {
            space,
            limits,
            nodes: PrimaryMap::new(),
            open: BinaryHeap::new(),
            least: FxHashMap::default(),
            left: FxHashMap::default(),
            needed: FxHashMap::default(),
            made: 0,
        }
    }

    fn search(mut self) -> Verdict {
        let Some(start) = self.space.start() else {
            return Verdict::Infeasible;
        };
        self.reach(start, 0.0, None);
        let (mut visits, mut look) = (0, 0);
        while let Some(Open {
            seconds: at_least,
            next,
            ..
        }) = self.open.pop()
        {
            // Sums of seconds are rounded, so the bound is lowered a little.
            let unknown = Verdict::AtLeast(at_least * (1.0 - 1e-12));
            visits += 1;
            let passed = self.made + VISIT * visits;
            let looks = passed >= look;
            if looks {
                look = passed + LOOK;
            }
            if self.made > self.limits.states
                || self.least.len().max(self.open.len()) > MOST_WORDS / W
                || (looks && self.limits.cutoff.reached())
            {
                return unknown;
            }
            let node = match next {
                Next::Visit(node) => node,
                Next::MakeRoom(room) => {
                    self.make_room(room);
                    continue;
                }
            };
            let Node { place, seconds, .. } = self.nodes[node];
            if self.least.get(&place).is_some_and(|&s| s < seconds)
                || self.is_dominated(&place, seconds)
            {
                continue;
            }
            if self.space.is_end(&place) {
                return Verdict::Optimal(self.path(node));
            }
            self.expand(node, place);
        }
        Verdict::Infeasible
    }

    fn is_dominated(&mut self, place: &Place<W>, seconds: f64) -> bool {
        let left = self.left.entry(place.done).or_default();
        if left
            .iter()
            .any(|(live, s)| *s <= seconds && place.live.within(live))
        {
            return true;
        }
        left.push((place.live, seconds));
        false
    }

    /// Adds every possible run in a state.
    fn expand(&mut self, node: NodeId, place: Place<W>) {
        let space = self.space;
        let next = space.model.task_ids().find(|&t| !place.done.has(t));
        for t in space.model.task_ids() {
            let first = !place.done.has(t);
            if !space.reads(t).within(&place.live) || (first && !space.free && next != Some(t)) {
                continue;
            }
            let gained = space.writes(t).and(&self.needed_after(&place, t));
            let gained = gained.minus(&place.live);
            if !first && (!space.model.rerunnable[t] || gained.is_empty()) {
                continue;
            }
            self.add(Room {
                node,
                task: t,
                dropped: Values::EMPTY,
                decided: 0,
            });
        }
    }

    /// The values that some plan could read after this run.
    fn needed_after(&mut self, place: &Place<W>, t: TaskId) -> Values<W> {
        let mut done = place.done;
        done.add(t);
        let space = self.space;
        let needed = self.needed.entry(done);
        *needed.or_insert_with(|| space.needed(&done))
    }

    /// Drops one more value for a run, in every way. Those after the first are smaller, so no set that makes room has one too
    /// many.
    fn make_room(&mut self, room: Room<W>) {
        let (space, place) = (self.space, self.nodes[room.node].place);
        let bytes = |v: ValueId| space.model.bytes[v];
        let lack = space.lack(&place, room.task) - space.bytes(&room.dropped);
        let values = space.droppable(&place, room.task);
        let mut rest: f64 = values.iter().skip(room.decided).map(|&v| bytes(v)).sum();
        for (k, &v) in values.iter().enumerate().skip(room.decided) {
            if rest < lack {
                return;
            }
            rest -= bytes(v);
            let mut dropped = room.dropped;
            dropped.add(v);
            self.add(Room {
                dropped,
                decided: k + 1,
                ..room
            });
        }
    }

    /// Adds a run if there is room, and else what makes room for it, if a plan may follow.
    fn add(&mut self, room: Room<W>) {
        let Node { place, seconds, .. } = self.nodes[room.node];
        let space = self.space;
        let seconds = seconds + space.model.cost[room.task];
        let needed = self.needed_after(&place, room.task);
        let after = space.after(&place, room.task, &room.dropped, &needed);
        if space.lack(&place, room.task) <= space.bytes(&room.dropped) {
            self.reach(after, seconds, Some((room.node, room.task)));
            return;
        }
        self.made += 1;
        if let Some((to_go, _)) = space.to_go(&after) {
            self.open(seconds, to_go, Next::MakeRoom(room));
        }
    }

    fn reach(&mut self, place: Place<W>, spent: f64, from: Option<(NodeId, TaskId)>) {
        self.made += 1;
        let known = self.least.entry(place).or_insert(f64::INFINITY);
        if spent >= *known {
            return;
        }
        let Some((to_go, _)) = self.space.to_go(&place) else {
            *known = f64::NEG_INFINITY;
            return;
        };
        *known = spent;
        let node = self.nodes.push(Node {
            place,
            seconds: spent,
            from,
        });
        self.open(spent, to_go, Next::Visit(node));
    }

    /// Adds what may follow, unless that takes too many seconds.
    fn open(&mut self, spent: f64, to_go: f64, next: Next<W>) {
        let seconds = spent + to_go;
        // Sums of seconds are rounded, so equal ones may differ a little.
        if seconds < self.limits.below * (1.0 - 1e-12) {
            self.open.push(Open {
                seconds,
                spent,
                made: self.made,
                next,
            });
        }
    }

    /// The runs that lead to a node.
    fn path(&self, node: NodeId) -> Vec<TaskId> {
        let mut runs = Vec::new();
        let mut at = node;
        while let Some((from, task)) = self.nodes[at].from {
            runs.push(task);
            at = from;
        }
        runs.reverse();
        runs
    }
}
