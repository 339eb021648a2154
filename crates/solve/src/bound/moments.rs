//! What a budget costs at one moment, in the given order or in whatever order tasks run: a minimum cut.
//!
//! The moment is the first run of a task, the *row*. Tasks before it in every order have run by then and tasks
//! after it haven't; of the others, the cut decides. Let `s(t) = 1` if `t` has run by then, `e(t) = 1` if it has and
//! doesn't run again after it, and `d(v) = 1` if no later run needs `v` from before. Then in every plan
//!
//! * `s(u) ≤ s(t)` if `u` reads what `t` writes, because `t` runs first;
//! * `e(t) ≤ s(t)`, and making `t` again costs `c(t) · (s(t) − e(t))` seconds;
//! * `d(v) ≤ e(u)` for each reader `u`: who has yet to run, or runs again, needs `v` in memory at the row or made again after it;
//! * `v` from `t` is in memory at the row if `e(t) = 1` and `d(v) = 0`, and what is in memory there must fit beside what the
//!   row's own run uses.
//!
//! At a price `λ` per byte of the last rule, every rule is an implication between two of these choices, and every cost is paid if one holds and another doesn't.
//! So the least seconds less `λ` times the room are a minimum cut for any `λ`, exactly, and the best `λ` is the maximum of a concave function.
//!
//! The third rule carries what the stay program ([`super::stays`]) has as its third: what is dropped and needed again
//! takes a whole tree of runs that begins with what the row holds. That program has many rows but needs to know where tasks are
//! between them, which a random graph leaves open, and its trees are fractions; this one has one row, needs to know nothing and is exact
//! but for its one price.

use cranelift_entity::PrimaryMap;
use scrimp_plan::TaskId;

use super::ascent::PER_UNIT;
use super::floor::made_once;
use crate::flow::{Network, Node, SINK, SOURCE};
use crate::method::Order;
use crate::model::Model;

/// The number of rows after which no more are tried if something else proves more. Those that hold most in any order come first.
const ROWS: usize = 40;
/// Prices that are tried for a row, and the growth below which no more are, as a share of the bound.
const PRICES: usize = 16;
const GAIN: f64 = 1e-3;
/// The factor between prices as long as the best one is on one side of all.
const FACTOR: f64 = 4.0;

/// A bound from one row, which is the best one of those tried so far.
pub(super) struct Moments {
    /// Rows to be tried, the next one last, and the number of rows that were.
    rows: Vec<TaskId>,
    tried: usize,
    order: Order,
    /// The best seconds per byte so far, or a guess.
    price: f64,
    /// Whether a task can't run again, so that what it writes can't either.
    once: PrimaryMap<TaskId, bool>,
    /// Seconds beyond those of running every task once that every plan takes.
    pub proven: f64,
}

/// What the cut at one price proves: seconds that every plan adds, and the bytes over the budget by which they grow with the price.
#[derive(Clone, Copy)]
struct Tangent {
    price: f64,
    value: f64,
    slope: f64,
}

impl Tangent {
    fn at(self, price: f64) -> f64 {
        self.value + self.slope * (price - self.price)
    }
}

impl Moments {
    /// `held` are the bytes that each task's first run finds in memory, or about as many.
    pub fn new(model: &Model, order: Order, held: &PrimaryMap<TaskId, f64>) -> Moments {
        let mut rows: Vec<TaskId> = model.task_ids().collect();
        rows.sort_by(|&a, &b| held[b].total_cmp(&held[a]).then(a.cmp(&b)));
        rows.reverse();
        let values = made_once(model);
        let once = |t: TaskId| {
            let mut outputs = model.outputs.of(t).iter();
            !model.rerunnable[t] || outputs.any(|&v| values[v])
        };
        let bytes: f64 = model.value_ids().map(|v| model.size(v)).sum();
        Moments {
            price: model.base_cost() / bytes.max(1.0),
            once: model.cost.keys().map(once).collect(),
            proven: 0.0,
            tried: 0,
            order,
            rows,
        }
    }

    /// Tries rows for about `work` units, until one proves `known` seconds, or until `stop`. Something else proves `other` seconds. Returns
    /// the work left over.
    pub fn advance(
        &mut self,
        (model, budget): (&Model, f64),
        work: u64,
        (known, other): (f64, f64),
        stop: &dyn Fn() -> bool,
    ) -> u64 {
        let mut left = work * PER_UNIT;
        while let Some(&row) = self.rows.last()
            && self.proven < known
            && !stop()
        {
            if self.climb((model, budget), row, &mut left, stop).is_none() {
                return 0;
            }
            self.rows.pop();
            self.tried += 1;
            if self.tried >= ROWS && self.proven < other {
                self.rows.clear();
            }
        }
        left / PER_UNIT
    }

    /// Finds a row's best price, or that it is no better than the best row so far. `None` if there is too little work.
    fn climb(
        &mut self,
        (model, budget): (&Model, f64),
        row: TaskId,
        left: &mut u64,
        stop: &dyn Fn() -> bool,
    ) -> Option<()> {
        let (mut low, mut high): (Option<Tangent>, Option<Tangent>) = (None, None);
        let mut price = self.price;
        for _ in 0..PRICES {
            if stop() {
                return None;
            }
            let here = self.cut((model, budget), row, price, left)?;
            if here.value > self.proven {
                (self.proven, self.price) = (here.value, price);
            }
            *(if here.slope > 0.0 {
                &mut low
            } else {
                &mut high
            }) = Some(here);
            price = match (low, high) {
                (Some(low), None) => FACTOR * low.price,
                (None, high) => high?.price / FACTOR,
                (Some(low), Some(high)) => {
                    let meet = (high.at(0.0) - low.at(0.0)) / (low.slope - high.slope);
                    if low.at(meet) <= self.proven * (1.0 + GAIN) {
                        break;
                    }
                    meet
                }
            };
        }
        Some(())
    }

    /// The cut of one row at one price.
    fn cut(
        &self,
        (model, budget): (&Model, f64),
        row: TaskId,
        price: f64,
        left: &mut u64,
    ) -> Option<Tangent> {
        let mut network = Network::new();
        let (ran, stays) = self.choices(model, row, &mut network);
        for t in model.task_ids().filter(|&t| ran[t] != SINK) {
            for input in model.inputs.of(t) {
                network.edge(ran[t], ran[model.producer[input.value]], f64::INFINITY);
            }
            if ran[t] != stays[t] {
                network.edge(ran[t], stays[t], model.cost[t]);
                network.edge(stays[t], ran[t], f64::INFINITY);
            }
        }
        let mut room = budget - model.fixed_bytes - model.workspace[row];
        let inputs = model.inputs.of(row);
        let used = inputs.iter().filter(|i| !i.overwritten);
        let used = used
            .map(|i| i.value)
            .chain(model.outputs.of(row).iter().copied());
        room -= used.map(|v| model.size(v)).sum::<f64>();
        // The pairs of sides that pay for a value in memory, and its bytes.
        let mut held = Vec::new();
        for v in model.value_ids() {
            let (bytes, made) = (model.size(v), stays[model.producer[v]]);
            let read = inputs.iter().find(|i| i.value == v);
            if bytes <= 0.0 || made == SINK || read.is_some_and(|i| !i.overwritten) {
                continue;
            }
            let readers = model.consumers.of(v).iter();
            let mut others = readers.filter(|&&r| r != row).map(|&r| stays[r]).peekable();
            if others.peek().is_none() {
                continue;
            }
            let needed = network.node();
            let pays = match read {
                Some(_) => f64::INFINITY,
                None => price * bytes,
            };
            network.edge(made, needed, pays);
            held.push((made, needed, bytes));
            for reader in others {
                network.edge(needed, reader, f64::INFINITY);
            }
        }
        let cut = network.cut_within(left)?;
        let here = held.iter().filter(|(made, needed, _)| {
            cut.source_side.get(*made) == Some(&true) && !cut.source_side[*needed]
        });
        Some(Tangent {
            price,
            value: cut.capacity - price * room,
            slope: here.map(|(_, _, bytes)| bytes).sum::<f64>() - room,
        })
    }

    /// By task, also `start` and `end`: the node that says whether it has run by the row, and the one that says whether it doesn't
    /// run again either.
    fn choices(
        &self,
        model: &Model,
        row: TaskId,
        network: &mut Network,
    ) -> (PrimaryMap<TaskId, Node>, PrimaryMap<TaskId, Node>) {
        const OPEN: Node = Node::MAX;
        let mut ran: PrimaryMap<TaskId, Node> = model.cost.values().map(|_| OPEN).collect();
        ran[model.start()] = SOURCE;
        ran[model.end()] = SINK;
        ran[row] = SINK;
        if self.order == Order::Fixed {
            for t in model.task_ids() {
                ran[t] = if t < row { SOURCE } else { SINK };
            }
        }
        for t in model.task_ids().rev().filter(|&t| t <= row) {
            let outputs = model.outputs.of(t).iter();
            let mut readers = outputs.flat_map(|&v| model.consumers.of(v));
            if readers.any(|&r| r == row || (r < row && ran[r] == SOURCE)) {
                ran[t] = SOURCE;
            }
        }
        for t in model.task_ids().filter(|&t| t > row) {
            let makers = model.inputs.of(t).iter().map(|i| model.producer[i.value]);
            if makers.into_iter().any(|m| ran[m] == SINK) {
                ran[t] = SINK;
            }
        }
        let mut stays = ran.clone();
        for t in model.task_ids() {
            if ran[t] == OPEN {
                ran[t] = network.node();
            }
            stays[t] = match self.once[t] || ran[t] == SINK {
                true => ran[t],
                false => network.node(),
            };
        }
        (ran, stays)
    }
}

#[cfg(test)]
mod tests {
    use cranelift_entity::EntityRef;
    use scrimp_plan::{DeviceId, ValueId};

    use super::*;
    use crate::bound::{floor, order, seconds};
    use crate::copies::Copies;
    use crate::cutoff::Cutoff;
    use crate::model::{Input, Parts};
    use crate::random::Random;
    use crate::search::exact::{self, Limits, Verdict};
    use crate::search::state::State;

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
            let mut moments = Moments::new(&model, Order::Free, &order::held(&model, Order::Free));
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
            proven > 0.05 * added && proven > 2.0 * chain,
            "{added} {proven} {chain}"
        );
    }

    #[test]
    fn a_cut_that_takes_too_much_work_proves_nothing() {
        let model = layered(6, 12, &mut Random::new(42, 0));
        let budget = floor(&model);
        let mut moments = Moments::new(&model, Order::Free, &order::held(&model, Order::Free));
        let rows = moments.rows.len();
        let left = moments.advance((&model, budget), 10, (1.0, 0.0), &|| false);
        assert_eq!((left, moments.rows.len(), moments.proven), (0, rows, 0.0));
        let left = moments.advance((&model, budget), 1 << 40, (1e9, 0.0), &|| false);
        assert!(left > 0 && moments.rows.is_empty() && moments.proven > 0.0);
    }
}
