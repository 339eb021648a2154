//! Plans built from the front, for any number of tasks: as quick as a few passes over the graph.
//!
//! Runs are only ever appended. When a run needs a value that was made before, the value is either kept from
//! its last use until now, if there was room for it all the time, or made again now. Prices of bytes say
//! which is cheaper. Where values that should be kept find no room, the price rises for the next plan, and
//! where room is left over, it falls.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::{TaskId, ValueId};

use crate::bound;
use crate::cutoff::Cutoff;
use crate::ids::Position;
use crate::model::{Lists, Model};
use crate::random::Random;
use crate::search::crests::Crests;
use crate::search::repair::{Repairer, Taste};
use crate::search::state::State;

/// How many plans are built at most, and how many in a row may bring nothing.
const BUILDS: u32 = 40;
const PATIENCE: u32 = 8;
/// After this many plans of which none fits, repair of the order itself does better, unless there are more
/// tasks than this.
const HOPELESS: u32 = 12;
pub(super) const TOO_MANY: u32 = 20_000;
/// The first step of the prices' logarithms, for a position that exceeds the budget by all that planning can
/// change. Steps grow until a plan fits and are fine from then on.
const STEP: f64 = 1.0;
const LONGER: f64 = 1.15;
const FINE: f64 = 0.4;
const SHORTER: f64 = 0.9;
/// What holding the whole budget throughout costs at the first prices, as a share of the seconds of all
/// tasks.
const FIRST_PRICE: f64 = 0.05;
/// What planning may add, as a share of the seconds of all tasks, where the gap program makes them.
const KNOWN: f64 = 0.3;
/// The factor on all prices after a sequence that can't be built: it made again what needs too much.
const CHEAPER: f64 = 0.5;
/// A price that is zero grows by this share of the mean price.
const SEED: f64 = 0.01;
/// How many values the price of one run looks at, and how deep producers of producers run again.
const VISITS: u32 = 40;
const DEPTH: u32 = 60;
/// The last part of that depth is only for values that have been overwritten.
const GONE_DEPTH: u32 = 20;
/// A value that has been overwritten counts as this many more.
const GONE_VISITS: u32 = 8;
/// If very many tasks find no plan, a value without room is made again though inputs find none either, if each of those
/// has at most this share of its bytes.
const SPILL: f64 = 0.125;
/// How many evictions repair makes by one estimate.
const BATCH: usize = 64;
/// Rounds of making missing inputs, because making one may overwrite another.
const ROUNDS: u32 = 3;

/// The cheapest sequence within the budget, of those built at prices that learn; its first runs keep `order`.
/// With very many tasks, the one with the lowest peak is repaired if none fits. If `first` is set, the first sequence
/// that fits is enough.
pub(super) fn cheapest(
    model: &Model,
    order: Vec<TaskId>,
    budget: f64,
    prices: Prices,
    first: bool,
    cutoff: Cutoff<'_>,
) -> Option<Vec<TaskId>> {
    let mut front = Front::new(model, order, budget, prices, cutoff);
    // Sequences, with what they are chosen by.
    let mut fits: Option<(f64, Vec<TaskId>)> = None;
    let mut leanest: Option<(f64, Vec<TaskId>)> = None;
    let (mut idle, mut step) = (0, STEP);
    let repairs = model.tasks > TOO_MANY;
    for k in 0..BUILDS {
        let hopeless = k == HOPELESS && fits.is_none() && !repairs;
        let found = first && fits.is_some();
        let stuck = fits.is_none() && (idle == PATIENCE || k == HOPELESS);
        if stuck && repairs && !front.spills {
            (front.spills, idle) = (true, 0);
        }
        if found || idle == PATIENCE || hopeless || cutoff.reached() {
            break;
        }
        idle += 1;
        if !front.build() {
            front.price.iter_mut().for_each(|price| *price *= CHEAPER);
            continue;
        }
        let peak = front.levels.most(0);
        let runs = &front.runs[1..front.runs.len() - 1];
        let seconds = runs.iter().map(|&t| model.cost[t]).sum();
        let (key, best) = match peak <= budget {
            true => (seconds, &mut fits),
            false => (peak, &mut leanest),
        };
        if best.as_ref().is_none_or(|b| key < b.0) {
            *best = Some((key, runs.to_vec()));
            if peak <= budget || fits.is_none() {
                idle = 0;
            }
        }
        step *= match &fits {
            None => LONGER,
            Some(_) if step > FINE => FINE / step,
            Some(_) => SHORTER,
        };
        front.learn(step);
    }
    if !repairs || fits.is_some() {
        return fits.map(|(_, runs)| runs);
    }
    let mut state = State::new(model, &leanest?.1);
    let mut repairer = Repairer::new(model, budget, false, cutoff);
    repairer.batch = BATCH;
    let taste = Taste {
        tries: 4,
        noise: 0.0,
    };
    repairer
        .repair(&mut state, taste, f64::INFINITY, &mut Random::new(0, 0))
        .then(|| state.order())
}

/// The prices of a byte with which building begins.
#[derive(Clone, Copy)]
pub(super) enum Prices {
    /// The bytes over the budget, raised to this power.
    Excess(f64),
    /// Those of the gap program, times this.
    Proven(f64),
}

impl Prices {
    /// The price of each row of an order and of its end.
    fn first(self, model: &Model, order: &[TaskId], budget: f64) -> Vec<f64> {
        match self {
            Prices::Excess(power) => {
                let over = |&bytes: &f64| match bytes > budget {
                    true => (bytes - budget).powf(power),
                    false => 0.0,
                };
                let state = State::new(model, order);
                let mut prices: Vec<f64> = state.mem()[1..].iter().map(over).collect();
                let sum: f64 = prices.iter().sum();
                if sum > 0.0 {
                    let scale = FIRST_PRICE * model.base_cost() / (sum * budget);
                    prices.iter_mut().for_each(|price| *price *= scale);
                }
                prices
            }
            Prices::Proven(factor) => {
                let known = KNOWN * model.base_cost();
                let prices = bound::position_prices(model, order, budget, known);
                prices[1..].iter().map(|price| factor * price).collect()
            }
        }
    }
}

/// A sequence that is being built, and the prices at which it is built.
struct Front<'m> {
    model: &'m Model,
    cutoff: Cutoff<'m>,
    order: Vec<TaskId>,
    budget: f64,
    /// By row, which is a place in the order or the end: the price of a byte.
    price: Vec<f64>,
    /// The sum of the prices before each row.
    sums: Vec<f64>,
    /// By value that can't be made again or is kept: the last row at which it is needed.
    lasting: PrimaryMap<ValueId, Option<usize>>,
    /// By row, the bytes of those values.
    reserved: Vec<f64>,
    /// Bytes that one run allocates for other values and its workspace.
    grows: PrimaryMap<TaskId, f64>,
    /// By value, the rows that read it.
    uses: Lists<ValueId, u32>,
    /// The bytes that planning can change.
    changeable: f64,
    /// Whether small inputs of what is made again are kept even without room; see [`SPILL`].
    spills: bool,

    runs: Vec<TaskId>,
    /// Bytes in use by position.
    levels: Crests,
    /// By position, the sum of the prices before it.
    rent: Vec<f64>,
    /// The present row.
    row: usize,
    /// By value, the position until which it is in memory so far.
    last: PrimaryMap<ValueId, PackedOption<Position>>,
    /// Values that runs in preparation need.
    pinned: Vec<ValueId>,
    /// By value, the position that counts it already.
    counted: PrimaryMap<ValueId, Position>,
    /// Stretches of positions at which values found no room, and their bytes.
    refused: Vec<(usize, usize, f64)>,
}

impl<'m> Front<'m> {
    fn new(
        model: &'m Model,
        order: Vec<TaskId>,
        budget: f64,
        prices: Prices,
        cutoff: Cutoff<'m>,
    ) -> Front<'m> {
        let n = order.len();
        let mut row_of: PrimaryMap<TaskId, usize> = model.cost.values().map(|_| 0).collect();
        for (row, &t) in order.iter().enumerate() {
            row_of[t] = row;
        }
        row_of[model.end()] = n;
        let mut lasting = bound::lasting(model);
        for i in model.inputs.of(model.end()) {
            lasting[i.value] = true;
        }
        let mut change = vec![0.0; n + 2];
        let last_row = |v: ValueId| {
            let readers = model.consumers.of(v).iter().map(|&t| row_of[t]);
            let made = row_of[model.producer[v]];
            let until = readers.max().unwrap_or(made);
            // What takes over the buffer counts from the row of the overwriting task on.
            let end = until + usize::from(model.overwriter(v).is_none());
            change[made] += model.bytes[v];
            change[end.max(made)] -= model.bytes[v];
            until
        };
        let mut last_row = last_row;
        let last_rows: PrimaryMap<ValueId, Option<usize>> = lasting
            .iter()
            .map(|(v, &lasts)| lasts.then(|| last_row(v)))
            .collect();
        let mut level = 0.0;
        let levels = change.iter().map(|change| {
            level += change;
            level
        });
        let reserved: Vec<f64> = levels.collect();
        let bytes = |v: ValueId| if lasting[v] { 0.0 } else { model.bytes[v] };
        let grows = model.cost.keys().map(|t| {
            let outputs: f64 = model.outputs.of(t).iter().map(|&v| bytes(v)).sum();
            let overwritten = model.inputs.of(t).iter().filter(|i| i.overwritten);
            model.workspace[t] + outputs - overwritten.map(|i| bytes(i.value)).sum::<f64>()
        });
        let uses = model.value_ids().map(|v| {
            let rows = model.consumers.of(v).iter().map(|&t| row_of[t] as u32);
            let mut rows: Vec<u32> = rows.collect();
            rows.sort_unstable();
            rows
        });
        let price = prices.first(model, &order, budget);
        let least = reserved.iter().copied().fold(0.0, f64::max);
        Front {
            grows: grows.collect(),
            uses: Lists::new(uses),
            last: model.bytes.values().map(|_| None.into()).collect(),
            counted: model.bytes.values().map(|_| Position::FIRST).collect(),
            sums: vec![0.0; n + 2],
            changeable: (budget - least).max(1.0),
            spills: false,
            model,
            cutoff,
            order,
            budget,
            price,
            lasting: last_rows,
            reserved,
            runs: Vec::new(),
            levels: Crests::default(),
            rent: Vec::new(),
            row: 0,
            pinned: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Builds a sequence at the present prices; returns false if that is impossible or the cutoff is reached.
    fn build(&mut self) -> bool {
        self.runs.clear();
        self.levels = Crests::default();
        self.rent.clear();
        self.refused.clear();
        self.pinned.clear();
        self.last.values_mut().for_each(|last| *last = None.into());
        self.counted
            .values_mut()
            .for_each(|at| *at = Position::FIRST);
        for (row, price) in self.price.iter().enumerate() {
            self.sums[row + 1] = self.sums[row] + price;
        }
        self.row = 0;
        if !self.push(self.model.start(), true) {
            return false;
        }
        for row in 0..=self.order.len() {
            self.row = row;
            let t = self.order.get(row).copied().unwrap_or(self.model.end());
            if !self.make(t, DEPTH, true) {
                return false;
            }
        }
        true
    }

    /// Moves the prices towards those at which what should be kept fits exactly.
    fn learn(&mut self, step: f64) {
        let mut change = vec![0.0; self.runs.len() + 1];
        for &(from, to, bytes) in &self.refused {
            change[from] += bytes;
            change[to] -= bytes;
        }
        let seed = SEED * self.price.iter().sum::<f64>() / self.price.len() as f64;
        let (mut level, mut row, mut most) = (0.0, 0, 0.0f64);
        for (p, change) in change[..self.runs.len()].iter().enumerate() {
            level += change;
            most = most.max(self.levels.at(p) + level);
            if self.order.get(row) == Some(&self.runs[p]) {
                let over = ((most - self.budget) / self.changeable).clamp(-1.0, 1.0);
                let up = if over > 0.0 { seed } else { 0.0 };
                self.price[row] = (self.price[row] + up) * (step * over).exp();
                (most, row) = (0.0, row + 1);
            }
        }
    }

    /// A value's bytes, if they aren't reserved at the present row.
    fn bytes(&self, v: ValueId) -> f64 {
        match self.lasting[v].is_some_and(|until| self.row <= until) {
            true => 0.0,
            false => self.model.bytes[v],
        }
    }

    /// Whether there is room for keeping a value until now, and the price of that; `None` if it is gone.
    fn keeping(&self, v: ValueId) -> Option<(bool, f64)> {
        let last = self.last[v].expand()?.index();
        let bytes = self.bytes(v);
        let price = bytes * (self.sums[self.row] - self.rent[last]).max(0.0);
        let room = || self.levels.most(last + 1) + bytes <= self.budget;
        Some((bytes == 0.0 || room(), price))
    }

    /// The price of holding a value from now until the next first run that reads it.
    fn held_anyway(&self, v: ValueId) -> f64 {
        let uses = self.uses.of(v);
        let next = uses.partition_point(|&row| row as usize <= self.row);
        uses.get(next).map_or(f64::INFINITY, |&row| {
            self.bytes(v) * (self.sums[row as usize] - self.sums[self.row])
        })
    }

    /// The seconds of running a task now, with what its inputs take, if that is less than `most`. Inputs of at most
    /// `spill` bytes are kept even without room.
    fn again(&self, t: TaskId, most: f64, spill: f64, visits: &mut u32) -> Option<f64> {
        let model = self.model;
        if !model.has(t) || !model.rerunnable[t] || *visits == 0 {
            return None;
        }
        *visits -= 1;
        let mut sum = model.cost[t];
        for i in model.inputs.of(t) {
            if sum >= most {
                return None;
            }
            // What a later row reads must be had then anyway.
            let kept = match self.keeping(i.value) {
                Some((room, price)) if room || self.bytes(i.value) <= spill => {
                    price.min(self.held_anyway(i.value))
                }
                Some(_) => self.held_anyway(i.value),
                None => {
                    *visits = visits.saturating_sub(GONE_VISITS);
                    f64::INFINITY
                }
            };
            if kept > 0.0 {
                let limit = kept.min(most - sum);
                let made = self.again(model.producer[i.value], limit, spill, visits);
                sum += made.unwrap_or(kept);
            }
        }
        (sum < most).then_some(sum)
    }

    /// Appends a run, after those of the producers that must run again for it; returns false if that is
    /// impossible or the cutoff is reached.
    fn make(&mut self, t: TaskId, depth: u32, first: bool) -> bool {
        if self.cutoff.reached() {
            return false;
        }
        let model = self.model;
        let (pins, begin) = (self.pinned.len(), self.runs.len());
        for _ in 0..ROUNDS {
            for i in model.inputs.of(t) {
                let known = self.last[i.value].expand();
                if known.is_none_or(|p| p.index() < begin) && !self.provide(i.value, depth) {
                    return false;
                }
                self.pinned.push(i.value);
            }
            if model
                .inputs
                .of(t)
                .iter()
                .all(|i| self.last[i.value].is_some())
            {
                break;
            }
        }
        self.pinned.truncate(pins);
        self.push(t, first)
    }

    /// Keeps a value until now or makes it again, whichever is cheaper.
    fn provide(&mut self, v: ValueId, depth: u32) -> bool {
        let make = self.model.producer[v];
        let keeping = self.keeping(v);
        if keeping.is_some_and(|(room, price)| room && price == 0.0) {
            return self.keep(v);
        }
        let most = keeping.filter(|k| k.0).map_or(f64::INFINITY, |k| k.1);
        let mut made = self.again(make, most, 0.0, &mut { VISITS });
        if self.spills && made.is_none() && keeping.is_some_and(|k| !k.0) {
            let spill = SPILL * self.bytes(v);
            made = self.again(make, most, spill, &mut { VISITS });
        }
        if let (Some((false, price)), Some(last)) = (keeping, self.last[v].expand())
            && made.is_none_or(|made| price < made)
        {
            let stretch = (last.index() + 1, self.levels.len(), self.bytes(v));
            self.refused.push(stretch);
        }
        let gone = keeping.is_none() && self.model.rerunnable[make];
        let again = match gone {
            true => depth > 0,
            false => depth > GONE_DEPTH && made.is_some(),
        };
        match again {
            true => self.make(make, depth - 1, false),
            false => self.keep(v),
        }
    }

    /// Keeps a value until now; returns false if it is gone.
    fn keep(&mut self, v: ValueId) -> bool {
        let Some(last) = self.last[v].expand() else {
            return false;
        };
        let (bytes, len) = (self.bytes(v), self.levels.len());
        if bytes > 0.0 {
            self.levels.raise(last.index() + 1, bytes);
        }
        self.last[v] = Position::new(len - 1).into();
        true
    }

    /// Appends a run; returns false if an input is gone.
    fn push(&mut self, t: TaskId, first: bool) -> bool {
        let model = self.model;
        let p = Position::new(self.runs.len());
        let mut level = self.reserved[self.row] + self.grows[t];
        for &v in model.outputs.of(t) {
            self.counted[v] = p;
        }
        for i in model.inputs.of(t) {
            if !self.keep(i.value) {
                return false;
            }
            level += self.bytes(i.value);
            self.counted[i.value] = p;
        }
        for k in 0..self.pinned.len() {
            let v = self.pinned[k];
            if self.counted[v] != p && self.keep(v) {
                level += self.bytes(v);
                self.last[v] = p.into();
                self.counted[v] = p;
            }
        }
        for i in model.inputs.of(t) {
            self.last[i.value] = (!i.overwritten).then_some(p).into();
        }
        for &v in model.outputs.of(t) {
            self.last[v] = p.into();
        }
        self.runs.push(t);
        self.levels.push(level);
        self.rent.push(self.sums[self.row + usize::from(first)]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Shape, device, problem};

    #[test]
    fn plans_from_the_front_are_right() {
        let mut rng = Random::new(32, 0);
        let mut found = 0;
        for round in 0..200 {
            let shape = Shape {
                tasks: 10 + round % 50,
                rich: round % 2 == 0,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let given = model.given_order();
            let (peak, floor) = (State::new(&model, &given).peak(), bound::floor(&model));
            let budget = (floor + 0.6 * (peak - floor)).floor();
            let prices = match round % 3 {
                0 => Prices::Proven(1.0),
                _ => Prices::Excess(1.0),
            };
            let Some(runs) = cheapest(&model, given, budget, prices, false, Cutoff::NEVER) else {
                continue;
            };
            assert!(State::new(&model, &runs).peak() <= budget);
            let plan = scrimp_plan::Plan::from_runs(&p, device(), &runs).unwrap();
            assert!(scrimp_plan::check(&p, plan).unwrap().keeps_order());
            found += 1;
        }
        assert!(found > 100, "only {found} plans");
    }
}
