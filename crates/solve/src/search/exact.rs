//! Exact search for small problems: best-first over the states of [`Space`]. So the first plan that it
//! reaches is the cheapest, and if it reaches none, none exists.

use cranelift_entity::{PrimaryMap, entity_impl};
use scrimp_plan::{TaskId, ValueId};

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use crate::cutoff::Cutoff;
use crate::model::Model;
use crate::search::space::{Place, Space, Tasks, Values};
use crate::search::state::State;

/// The most states that any search makes, and the most words of sets in those that it remembers: some 400 MB.
pub(crate) const MOST_STATES: usize = 20_000_000;
const MOST_WORDS: usize = 4_000_000;
/// The most ways of making room for one run. With more, the search ends.
const MOST_WAYS: usize = 200_000;
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

/// What an exact search looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Cheapest,
    Any,
}

/// Looks for the cheapest plan within `budget` bytes. Problems that are too
/// large are skipped.
pub(crate) fn cheapest(model: &Model, budget: f64, free: bool, limits: Limits<'_>) -> Verdict {
    search(model, budget, free, Goal::Cheapest, limits)
}

/// Looks for any plan within `budget` bytes.
pub(crate) fn any(model: &Model, budget: f64, free: bool, limits: Limits<'_>) -> Verdict {
    search(model, budget, free, Goal::Any, limits)
}

/// Narrows the gap between a budget without a plan and a budget with one. Returns the bytes that every plan
/// needs, and the least budget for which a plan was found, with that plan. The two meet if every budget in
/// between was decided. Budgets that weren't are tried again with more states until the cutoff is reached.
pub(crate) fn leanest(
    model: &Model,
    (mut none, mut known): (f64, (f64, Vec<TaskId>)),
    free: bool,
    mut limits: Limits<'_>,
) -> (f64, (f64, Vec<TaskId>)) {
    while known.0 - none > 1.0 && limits.states < MOST_STATES {
        let mut open = none;
        while known.0 - open > 1.0 && !limits.cutoff.reached() {
            let budget = ((open + known.0) / 2.0).floor();
            match search(model, budget, free, Goal::Any, limits) {
                Verdict::Optimal(runs) => known = (State::new(model, &runs).peak(), runs),
                Verdict::Infeasible => (none, open) = (budget, budget),
                Verdict::AtLeast(_) => open = budget,
            }
        }
        limits.states *= 8;
    }
    (none + 1.0, known)
}

fn search(model: &Model, budget: f64, free: bool, goal: Goal, limits: Limits<'_>) -> Verdict {
    if let Some(space) = Space::<1>::new(model, budget, free) {
        return Frontier::new(&space, goal, limits).search();
    }
    if let Some(space) = Space::<2>::new(model, budget, free) {
        return Frontier::new(&space, goal, limits).search();
    }
    if let Some(space) = Space::<4>::new(model, budget, free) {
        return Frontier::new(&space, goal, limits).search();
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

/// A node to be visited. The greatest node has the fewest seconds in total; of equal nodes, the one furthest
/// along is the greatest.
struct Open {
    seconds: f64,
    spent: f64,
    node: NodeId,
}

impl Ord for Open {
    fn cmp(&self, other: &Open) -> Ordering {
        let fewest = other.seconds.total_cmp(&self.seconds);
        let furthest = self.spent.total_cmp(&other.spent);
        fewest.then(furthest).then(other.node.cmp(&self.node))
    }
}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Open) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Open {
    fn eq(&self, other: &Open) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Open {}

struct Frontier<'s, 'm, const W: usize> {
    space: &'s Space<'m, W>,
    goal: Goal,
    limits: Limits<'s>,
    nodes: PrimaryMap<NodeId, Node<W>>,
    open: BinaryHeap<Open>,
    /// The fewest seconds to each state; fewer than any number if no plan goes through it.
    least: HashMap<Place<W>, f64>,
    /// By finished tasks: the live sets already left, with their seconds. More live values are never worse.
    left: HashMap<Tasks<W>, Vec<(Values<W>, f64)>>,
    needed: HashMap<Tasks<W>, Values<W>>,
    /// The number of children made, which limits memory and time.
    made: usize,
}

impl<'s, 'm, const W: usize> Frontier<'s, 'm, W> {
    fn new(space: &'s Space<'m, W>, goal: Goal, limits: Limits<'s>) -> Self {
        Frontier {
            space,
            goal,
            limits,
            nodes: PrimaryMap::new(),
            open: BinaryHeap::new(),
            least: HashMap::new(),
            left: HashMap::new(),
            needed: HashMap::new(),
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
            node,
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
                || self.least.len() > MOST_WORDS / W
                || (looks && self.limits.cutoff.reached())
            {
                return unknown;
            }
            let Node { place, seconds, .. } = self.nodes[node];
            if self.least.get(&place).is_some_and(|&s| s < seconds)
                || self.is_dominated(&place, seconds)
            {
                continue;
            }
            if self.space.is_end(&place) {
                return Verdict::Optimal(self.path(node));
            }
            if !self.expand(node, place, seconds) {
                return unknown;
            }
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

    /// Adds every possible run in a state, with every minimal set of values to drop for it. Returns whether none
    /// was left out.
    fn expand(&mut self, node: NodeId, place: Place<W>, seconds: f64) -> bool {
        let space = self.space;
        let mut whole = true;
        let next = space.model.task_ids().find(|&t| !place.done.has(t));
        for t in space.model.task_ids() {
            let first = !place.done.has(t);
            if !space.reads(t).within(&place.live) || (first && !space.free && next != Some(t)) {
                continue;
            }
            let mut done = place.done;
            done.add(t);
            let needed = *self
                .needed
                .entry(done)
                .or_insert_with(|| space.needed(&done));
            let gained = space.writes(t).and(&needed).minus(&place.live);
            if !first && (!space.model.rerunnable[t] || gained.is_empty()) {
                continue;
            }
            let seconds = seconds + space.model.cost[t];
            let lack = space.lack(&place, t);
            let mut drops = Drops {
                values: space.droppable(&place, t),
                chosen: Values::EMPTY,
                found: Vec::new(),
                most: MOST_WAYS.min(self.limits.states.saturating_sub(self.made) + 1),
            };
            drops.choose(space.model, 0, lack);
            whole &= drops.found.len() < drops.most;
            for dropped in drops.found {
                let after = space.after(&place, t, &dropped, &needed);
                self.reach(after, seconds, Some((node, t)));
            }
        }
        whole
    }

    fn reach(&mut self, place: Place<W>, spent: f64, from: Option<(NodeId, TaskId)>) {
        self.made += 1;
        // If any plan will do, the seconds spent don't matter; the seconds still to come lead the search.
        let spent = if self.goal == Goal::Any { 0.0 } else { spent };
        let known = self.least.entry(place).or_insert(f64::INFINITY);
        if spent >= *known {
            return;
        }
        let Some((to_go, _)) = self.space.to_go(&place) else {
            *known = f64::NEG_INFINITY;
            return;
        };
        *known = spent;
        let seconds = spent + to_go;
        // Sums of seconds are rounded, so equal ones may differ a little.
        if seconds >= self.limits.below * (1.0 - 1e-12) {
            return;
        }
        let node = self.nodes.push(Node {
            place,
            seconds: spent,
            from,
        });
        self.open.push(Open {
            seconds,
            spent,
            node,
        });
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

/// Finds the minimal sets of values that make room, by depth-first search over values in descending size. A
/// set is minimal if its last, and so smallest, value was needed.
struct Drops<const W: usize> {
    values: Vec<ValueId>,
    chosen: Values<W>,
    found: Vec<Values<W>>,
    most: usize,
}

impl<const W: usize> Drops<W> {
    fn choose(&mut self, model: &Model, from: usize, lack: f64) {
        if lack <= 0.0 {
            self.found.push(self.chosen);
            return;
        }
        let before = self.chosen;
        for k in from..self.values.len() {
            let rest: f64 = self.values[k..].iter().map(|&v| model.bytes[v]).sum();
            if rest < lack || self.found.len() >= self.most {
                return;
            }
            let v = self.values[k];
            self.chosen.add(v);
            self.choose(model, k + 1, lack - model.bytes[v]);
            self.chosen = before;
        }
    }
}
