//! Bounds from single moments ([`super::moment`]): the best row, and where whole values matter, a branch and bound for it.
//!
//! The best price of a row leaves two sets of choices, one of which exceeds the budget and the other doesn't fill it. Branching on a task about
//! which they differ raises the bound to the seconds of the best choices that fit, which for training graphs are often those of the best
//! plan. So these choices are also a start for the search. The leaf with the lowest bound is next; that bound is the row's.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::TaskId;

use super::ascent::PER_UNIT;
use super::floor::made_once;
use super::moment::{Choice, Least, Moment};
use super::order;
use super::precedence::{Cuts, Precedence};
use crate::method::Order;
use crate::model::Model;

/// The number of rows after which the best of them is branched on, or no more are tried if something else proves more than so many
/// times what they do. Those that hold most come first.
const ROWS: usize = 40;
pub(super) const HOPELESS: f64 = 1.1;
/// How many times the work of branching on which of two tasks runs first goes to branching on rows, if both are possible.
const ON_ROWS: u64 = 3;
/// Prices that are tried for a row, and the growth below which no more are, as a share of the bound.
const PRICES: usize = 24;
pub(super) const GAIN: f64 = 1e-4;
/// The factor between prices as long as all choices exceed the budget, and if none do.
const FACTOR: f64 = 4.0;
const TINY: f64 = 1e-6;
/// The most leaves of a tree, which take up to some kilobytes each.
const LEAVES: usize = 20_000;
/// What a plan must save if all costs are multiples of a number, as a share of that.
const WHOLE: f64 = 0.99;

/// A bound from one row, which is the best one of those tried so far.
pub(super) struct Moments {
    order: Order,
    /// A number of seconds of which all costs are multiples, or zero.
    whole: f64,
    /// Whether a task can't run again, so that what it writes can't either.
    once: PrimaryMap<TaskId, bool>,
    /// Rows to be tried, the next one last, and the number of rows that were.
    rows: Vec<TaskId>,
    tried: usize,
    /// What rows prove together in a free order, once some were tried.
    precedence: Option<Precedence>,
    /// Edges that were looked at for branching on which of two tasks runs first, and for branching on rows.
    spent: [u64; 2],
    /// The trees of rows that were tried, and may prove more.
    trees: Vec<Tree>,
    /// The best seconds per byte so far, or a guess.
    price: f64,
    /// The best choices that fit at the best row, if they are new.
    best: Option<Least>,
    /// Seconds beyond those of running every task once that every plan takes.
    pub proven: f64,
}

/// A row with some choices made.
pub(super) struct Leaf {
    /// What is proven if they are.
    pub bound: f64,
    price: f64,
    made: Vec<Choice>,
    /// The task about which choices are made next; without one, nothing more can be proven.
    next: Option<TaskId>,
}

/// A row's leaves.
pub(super) struct Tree {
    row: TaskId,
    leaves: BinaryHeap<Leaf>,
    /// The seconds of the best choices that fit. The row proves no more.
    most: f64,
}

/// The lowest bound is the greatest leaf.
impl Ord for Leaf {
    fn cmp(&self, other: &Leaf) -> Ordering {
        let bounds = other.bound.total_cmp(&self.bound);
        bounds.then_with(|| other.made.cmp(&self.made))
    }
}

impl PartialOrd for Leaf {
    fn partial_cmp(&self, other: &Leaf) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Leaf {
    fn eq(&self, other: &Leaf) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Leaf {}

/// What ends the work on a bound.
pub(super) struct Limits<'a> {
    /// Edges that may still be looked at.
    left: u64,
    stop: &'a dyn Fn() -> bool,
    /// Seconds that needn't be exceeded, because no better plan takes more.
    enough: f64,
}

impl Moments {
    /// `held` are the bytes that each task's first run finds in memory, or about as many. All costs are multiples of `whole` unless that is zero.
    pub fn new(model: &Model, order: Order, held: &PrimaryMap<TaskId, f64>, whole: f64) -> Moments {
        let values = made_once(model);
        let once = |t: TaskId| {
            let mut outputs = model.outputs.of(t).iter();
            !model.rerunnable[t] || outputs.any(|&v| values[v])
        };
        let bytes: f64 = model.value_ids().map(|v| model.size(v)).sum();
        Moments {
            order,
            whole,
            once: model.cost.keys().map(once).collect(),
            rows: fullest_last(model, held),
            tried: 0,
            precedence: None,
            spent: [0; 2],
            trees: Vec::new(),
            price: model.base_cost() / bytes.max(1.0),
            best: None,
            proven: 0.0,
        }
    }

    /// Tries rows and branches on the best of them for about `work` units, until that proves `known` seconds, or until `stop`.
    /// Something else proves `other` seconds. Returns the work left over.
    pub fn advance(
        &mut self,
        (model, budget): (&Model, f64),
        work: u64,
        (known, other): (f64, f64),
        stop: &dyn Fn() -> bool,
    ) -> u64 {
        let mut limits = Limits {
            left: work.saturating_mul(PER_UNIT),
            stop,
            enough: known - WHOLE * self.whole,
        };
        while self.proven < limits.enough {
            let proven = self.proven * (1.0 + GAIN);
            self.trees.retain(|tree| tree.most > proven);
            let done = match self.rows.last().filter(|_| self.tried < ROWS) {
                Some(&row) => self.try_row((model, budget), row, &mut limits),
                None => self.branch((model, budget), other, &mut limits),
            };
            match done {
                Some(true) => {}
                Some(false) => break,
                None => return 0,
            }
        }
        limits.left / PER_UNIT
    }

    /// The sequence of the best choices that fit at the best row, if they are new.
    pub fn start(&mut self, model: &Model) -> Option<Vec<TaskId>> {
        self.best.take().map(|best| best.runs(model))
    }

    /// Branches on which of two tasks runs first, or on the best row, whichever has had less work, or else tries another row. Returns
    /// whether there was anything to do; `None` if there is too little work.
    fn branch(
        &mut self,
        (model, budget): (&Model, f64),
        other: f64,
        limits: &mut Limits<'_>,
    ) -> Option<bool> {
        if self.proven * HOPELESS < other {
            self.rows.clear();
            self.trees.clear();
        }
        let before = limits.left;
        let by_bound = |a: &&mut Tree, b: &&mut Tree| a.bound().total_cmp(&b.bound());
        let tree = self.trees.iter_mut().max_by(by_bound);
        let [on_order, on_rows] = &mut self.spent;
        let unknown = || {
            let mut rows = fullest_last(model, &order::held(model, Order::Fixed));
            Precedence::new(rows.split_off(rows.len().saturating_sub(ROWS)), self.proven)
        };
        let precedence = match self.order {
            Order::Free => Some(self.precedence.get_or_insert_with(unknown)),
            Order::Fixed => None,
        };
        let precedence = precedence.filter(|precedence| !precedence.is_done());
        if let Some(precedence) =
            precedence.filter(|_| tree.is_none() || ON_ROWS * *on_order <= *on_rows)
        {
            let any = moment(model, budget, self.order, &self.once, model.start());
            let price = self.price;
            let found = precedence.advance(&Cuts { any, price }, other, limits);
            // A step for which there is too little work counts, too, so that it doesn't keep the other from its turn.
            *on_order += before - limits.left;
            let found = found?;
            self.proven = self.proven.max(precedence.bound());
            if precedence.bound() >= self.proven {
                self.best = found.or(self.best.take());
            }
        } else if let Some(tree) = tree {
            let moment = moment(model, budget, self.order, &self.once, tree.row);
            let found = tree.grow(&moment, limits);
            *on_rows += before - limits.left;
            let found = found?;
            self.proven = self.proven.max(tree.bound());
            if tree.bound() >= self.proven {
                self.best = found.or(self.best.take());
            }
        } else if let Some(&row) = self.rows.last() {
            return self.try_row((model, budget), row, limits);
        } else {
            return Some(false);
        }
        Some(true)
    }

    /// Finds a row's best price, or that it is no better than the best row so far. `None` if there is too little work.
    fn try_row(
        &mut self,
        (model, budget): (&Model, f64),
        row: TaskId,
        limits: &mut Limits<'_>,
    ) -> Option<bool> {
        let moment = moment(model, budget, self.order, &self.once, row);
        let (leaf, fits) = climb(&moment, (self.price, Vec::new()), self.proven, limits)?;
        let tree = Tree::new(row, leaf, fits.as_ref());
        if let Some(leaf) = tree.leaves.peek().filter(|leaf| leaf.bound > self.proven) {
            (self.proven, self.price) = (leaf.bound, leaf.price);
            self.best = fits;
        }
        self.trees.push(tree);
        self.rows.pop();
        self.tried += 1;
        Some(true)
    }
}

/// The tasks in the order of these bytes.
fn fullest_last(model: &Model, held: &PrimaryMap<TaskId, f64>) -> Vec<TaskId> {
    let mut tasks: Vec<TaskId> = model.task_ids().collect();
    tasks.sort_by(|&a, &b| held[a].total_cmp(&held[b]).then(b.cmp(&a)));
    tasks
}

fn moment<'m>(
    model: &'m Model,
    budget: f64,
    order: Order,
    once: &'m PrimaryMap<TaskId, bool>,
    row: TaskId,
) -> Moment<'m> {
    Moment {
        model,
        budget,
        order,
        row,
        once,
        before: &[],
    }
}

impl Tree {
    /// The tree of a row's best price and of the choices there that fit.
    pub fn new(row: TaskId, leaf: Leaf, fits: Option<&Least>) -> Tree {
        let mut tree = Tree {
            row,
            leaves: BinaryHeap::from([leaf]),
            most: fits.map_or(f64::INFINITY, Least::seconds),
        };
        tree.close();
        tree
    }

    pub fn bound(&self) -> f64 {
        self.leaves.peek().map_or(self.most, |leaf| leaf.bound)
    }

    /// Whether there is no choice left to make, or so many that none is made.
    pub fn is_closed(&self) -> bool {
        self.most == 0.0
    }

    /// Makes the next choice in the leaf with the lowest bound, and returns the best choices that fit if they are new. `None` if there is
    /// too little work.
    pub fn grow(&mut self, moment: &Moment<'_>, limits: &mut Limits<'_>) -> Option<Option<Least>> {
        let leaf = self.leaves.peek()?;
        let next = leaf.next?;
        let (mut children, mut best) = (Vec::new(), None);
        for choice in [true, false] {
            let made = [leaf.made.as_slice(), &[(next, choice)]].concat();
            let (mut child, fits) = climb(moment, (leaf.price, made), 0.0, limits)?;
            child.bound = child.bound.max(leaf.bound);
            children.push(child);
            if let Some(fits) = fits.filter(|fits| fits.seconds() < self.most) {
                self.most = fits.seconds();
                best = Some(fits);
            }
        }
        self.leaves.pop();
        self.leaves.extend(children);
        self.close();
        Some(best)
    }

    /// Ends the tree if its lowest leaf can't be branched on, or if it has too many.
    fn close(&mut self) {
        let ends = self.leaves.peek().is_none_or(|leaf| leaf.next.is_none());
        if ends || self.leaves.len() > LEAVES {
            self.most = 0.0;
        }
    }
}

/// The best price of a moment with some choices made, from a first one on, or a price that says that `worth` seconds can't be exceeded; and the
/// best choices that fit. `None` if there is too little work.
pub(super) fn climb(
    moment: &Moment<'_>,
    (first, made): (f64, Vec<Choice>),
    worth: f64,
    limits: &mut Limits<'_>,
) -> Option<(Leaf, Option<Least>)> {
    // The last ones that don't fit and that do: each has fewer seconds, and more bytes, than those before.
    let (mut low, mut high): (Option<Least>, Option<Least>) = (None, None);
    let mut leaf = Leaf {
        bound: 0.0,
        price: first,
        made,
        next: None,
    };
    let mut price = first;
    for _ in 0..PRICES {
        if (limits.stop)() {
            return None;
        }
        let here = moment.least(price, &leaf.made, &mut limits.left)?;
        if here.value > leaf.bound {
            (leaf.bound, leaf.price) = (here.value, price);
        }
        if here.slope > 0.0 {
            low = Some(here);
        } else {
            high = Some(here);
        }
        price = match (&low, &high) {
            _ if leaf.bound >= limits.enough => return Some((leaf, high)),
            (Some(low), None) => FACTOR * low.price,
            (None, Some(high)) if high.price < first => break,
            (None, high) => TINY * high.as_ref()?.price,
            (Some(low), Some(high)) => {
                let meet = (high.seconds() - low.seconds()) / (low.slope - high.slope);
                if low.at(meet) <= leaf.bound.max(worth) * (1.0 + GAIN) {
                    break;
                }
                meet
            }
        };
    }
    if let (Some(low), Some(high)) = (&low, &high) {
        let differ = |t: &TaskId| low.stays[t.index()] != high.stays[t.index()];
        let model = moment.model;
        let bytes = |t: TaskId| -> f64 {
            let outputs = model.outputs.of(t).iter();
            outputs.map(|&v| model.size(v)).sum()
        };
        let tasks = model.task_ids().filter(differ);
        leaf.next = tasks.max_by(|&a, &b| bytes(a).total_cmp(&bytes(b)).then(b.cmp(&a)));
    }
    Some((leaf, high))
}

#[cfg(test)]
mod tests {
    use cranelift_entity::EntityRef;
    use scrimp_plan::{DeviceId, ValueId};

    use super::*;
    use crate::bound::{floor, seconds};
    use crate::copies::Copies;
    use crate::cutoff::Cutoff;
    use crate::model::{Input, Parts};
    use crate::random::Random;
    use crate::search::exact::{self, Limits, Verdict};
    use crate::search::state::State;
    use crate::testing::{Shape, problem};

    /// Layers of tasks, each of which reads two values of the layer before.
    fn layered(layers: usize, width: usize, rng: &mut Random) -> Model {
        let tasks = layers * width;
        let read = |v: usize| Input {
            value: ValueId::new(v),
            overwritten: false,
        };
        let mut inputs = vec![Vec::new(); width];
        for layer in 1..layers {
            for _ in 0..width {
                let (one, step) = (rng.below(width), 1 + rng.below(width - 1));
                let before = (layer - 1) * width;
                inputs.push(vec![
                    read(before + one),
                    read(before + (one + step) % width),
                ]);
            }
        }
        Model::from_lists(Parts {
            device: DeviceId::from_u32(0),
            cost: (0..tasks).map(|_| 1.0 + rng.unit()).collect(),
            workspace: vec![0.0; tasks],
            rerunnable: (0..tasks).map(|_| rng.below(20) > 0).collect(),
            inputs,
            outputs: (0..tasks).map(|t| vec![ValueId::new(t)]).collect(),
            bytes: (0..tasks).map(|_| (1 + rng.below(20)) as f64).collect(),
            given: Vec::new(),
            kept: vec![read(tasks - 1)],
            resident: 0.0,
            copies: Copies::default(),
        })
    }

    #[test]
    fn moments_prove_what_no_chain_does() {
        let mut rng = Random::new(41, 0);
        let limits = Limits {
            states: 200_000,
            below: f64::INFINITY,
            cutoff: Cutoff::NEVER,
        };
        // The sums of what the best plans add, of what moments prove, and of what the chain alone proves.
        let (mut added, mut proven, mut chain) = (0.0, 0.0, 0.0);
        for round in 0..60 {
            let model = layered(3 + round % 3, 4 + round % 2, &mut rng);
            let (low, high) = (
                floor(&model),
                State::new(&model, &model.given_order()).peak(),
            );
            let budget = (low + 0.4 * (high - low) * rng.unit()).floor();
            let Verdict::Optimal(runs) = exact::cheapest(&model, budget, true, limits) else {
                continue;
            };
            let least = State::new(&model, &runs).cost() - model.base_cost();
            let mut moments =
                Moments::new(&model, Order::Free, &order::held(&model, Order::Free), 0.0);
            let known = 2.0 * least + 1.0;
            moments.advance((&model, budget), u64::MAX / PER_UNIT, (known, 0.0), &|| {
                false
            });
            assert!(moments.rows.is_empty());
            assert!(
                moments.proven <= least + 1e-9,
                "{} is above {least} at {budget}",
                moments.proven
            );
            let alone = seconds(&model, budget, Order::Free, known, Cutoff::NEVER);
            added += least;
            proven += moments.proven;
            chain += alone.proven() - model.base_cost();
        }
        assert!(
            proven > 0.25 * added && proven > 2.0 * chain,
            "{added} {proven} {chain}"
        );
    }

    #[test]
    fn which_of_two_tasks_runs_first_proves_more_but_never_too_much() {
        let mut rng = Random::new(45, 0);
        let limits = Limits {
            states: 200_000,
            below: f64::INFINITY,
            cutoff: Cutoff::NEVER,
        };
        // The sums of what the best plans add, of what rows prove alone, and of what they prove together.
        let (mut added, mut alone, mut together) = (0.0, 0.0, 0.0);
        for round in 0..240 {
            let model = match round % 5 {
                0 => layered(3 + round % 3, 4, &mut rng),
                _ => {
                    let (tasks, rich) = (5 + round % 10, round % 3 > 0);
                    let p = problem(Shape { tasks, rich }, &mut rng);
                    Model::new(&p).unwrap().0
                }
            };
            let low = floor(&model) - model.resident;
            let high = State::new(&model, &model.given_order()).peak();
            let budget = (low + 0.5 * (high - low) * rng.unit()).floor();
            let Verdict::Optimal(runs) = exact::cheapest(&model, budget, true, limits) else {
                continue;
            };
            let least = State::new(&model, &runs).cost() - model.base_cost();
            let held = order::held(&model, Order::Free);
            let proven = |precedence| {
                let mut moments = Moments::new(&model, Order::Free, &held, 0.0);
                moments.precedence = precedence;
                let known = (2.0 * least + 1.0, 0.0);
                moments.advance((&model, budget), 2_000_000, known, &|| false);
                let proven = moments.proven;
                assert!(proven <= least + 1e-9, "{proven}, not {least}: {round}");
                proven
            };
            alone += proven(Some(Precedence::new(Vec::new(), 0.0)));
            together += proven(None);
            added += least;
        }
        assert!(together > alone + 0.1 * added, "{alone} {together} {added}");
    }

    #[test]
    fn choices_that_fit_are_a_sequence_that_fits_at_the_row() {
        let mut rng = Random::new(44, 0);
        let (mut exact, mut sound, mut tried) = (0, 0, 0);
        for round in 0..200 {
            let shape = Shape {
                tasks: 10 + round % 20,
                rich: round % 2 > 0,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let (low, high) = (
                floor(&model) - model.resident,
                State::new(&model, &model.given_order()).peak(),
            );
            let budget = (low + 0.5 * (high - low)).floor();
            for order in [Order::Fixed, Order::Free] {
                let held = order::held(&model, order);
                let mut moments = Moments::new(&model, order, &held, 0.0);
                moments.advance((&model, budget), 1000, (1e9, 0.0), &|| false);
                let Some(best) = moments.best.take() else {
                    continue;
                };
                tried += 1;
                let runs = best.runs(&model);
                let state = State::new(&model, &runs);
                if !state.is_sound() {
                    continue;
                }
                sound += 1;
                // Where buffers are taken over, more may have to run again, and be in memory for that.
                if state.cost() - model.base_cost() > best.seconds() + 1e-9 {
                    assert!(shape.rich, "what runs again does so once");
                    continue;
                }
                exact += 1;
                // The first position is that of the given values.
                let row = 1 + runs.iter().position(|&t| t == best.row).unwrap();
                assert!(state.mem()[row] <= budget, "{shape:?}");
            }
        }
        let counts = format!("{exact} of {sound} of {tried}");
        assert!(exact > tried * 9 / 10 && tried > 150, "{counts}");
    }

    /// The fewest seconds that any choices which fit at a row add, by trying all; infinite if none fit.
    fn least_by_trying(model: &Model, budget: f64, row: TaskId) -> f64 {
        // By task: whether it hasn't run, runs again, or has run and doesn't run again.
        let mut state = vec![0; model.tasks as usize];
        let inputs = |t: TaskId| model.inputs.of(t).iter().map(|i| i.value);
        let mut least = f64::INFINITY;
        loop {
            let of = |t: TaskId| if model.has(t) { state[t.index()] } else { 0 };
            let rules = |t: TaskId| {
                let makers = inputs(t).all(|v| of(model.producer[v]) > 0);
                of(t) == 0 && t != row || (of(t) != 1 || model.rerunnable[t]) && makers
            };
            let held = |v: ValueId| {
                let mut others = model.consumers.of(v).iter().filter(|&&r| r != row);
                of(model.producer[v]) == 2 && others.any(|&r| of(r) != 2)
            };
            if of(row) == 0 && model.task_ids().all(rules) {
                let own =
                    |v: ValueId| inputs(row).any(|input| input == v) || model.producer[v] == row;
                let bytes = model
                    .value_ids()
                    .filter(|&v| own(v) || held(v))
                    .map(|v| model.size(v));
                if bytes.sum::<f64>() <= budget {
                    let again = model.task_ids().filter(|&t| of(t) == 1);
                    least = least.min(again.map(|t| model.cost[t]).sum());
                }
            }
            let Some(digit) = state.iter().position(|&digit| digit < 2) else {
                return least;
            };
            state[digit] += 1;
            state[..digit].fill(0);
        }
    }

    #[test]
    fn branching_ends_with_the_best_choices_of_the_best_row() {
        let mut rng = Random::new(43, 0);
        let mut branched = 0;
        for round in 0..60 {
            let model = layered(3, 3, &mut rng);
            let low = floor(&model);
            let budget = low + (round % 4) as f64;
            let rows = model
                .task_ids()
                .map(|row| least_by_trying(&model, budget, row));
            let best = rows.fold(0.0, f64::max);
            if best.is_infinite() {
                continue;
            }
            let mut moments =
                Moments::new(&model, Order::Free, &order::held(&model, Order::Free), 0.0);
            // One row's choices don't say which of two tasks runs first.
            moments.precedence = Some(Precedence::new(Vec::new(), 0.0));
            let (mut work, mut first) = (40, None);
            while !moments.rows.is_empty() || !moments.trees.is_empty() {
                // A little work at a time.
                moments.advance((&model, budget), work, (1e9, 0.0), &|| false);
                if moments.rows.is_empty() {
                    first = first.or(Some(moments.proven));
                }
                work += work / 8;
            }
            let proven = moments.proven;
            assert!(
                proven <= best + 1e-9 && proven >= best * (1.0 - 2.0 * GAIN) - 1e-9,
                "{proven}, not {best}, within {budget}"
            );
            branched += usize::from(first.is_some_and(|first| first < proven * (1.0 - 1e-3)));
        }
        assert!(branched > 3, "{branched}");
    }

    #[test]
    fn a_cut_that_takes_too_much_work_proves_nothing() {
        let model = layered(6, 12, &mut Random::new(42, 0));
        let budget = floor(&model);
        let mut moments = Moments::new(&model, Order::Free, &order::held(&model, Order::Free), 0.0);
        let rows = moments.rows.len();
        let left = moments.advance((&model, budget), 10, (1.0, 0.0), &|| false);
        assert_eq!((left, moments.rows.len(), moments.proven), (0, rows, 0.0));
        let left = moments.advance((&model, budget), 1 << 40, (1e9, 0.0), &|| false);
        assert!(left > 0 && moments.rows.is_empty() && moments.proven > 0.0);
    }
}
