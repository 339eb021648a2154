//! The stay program: what a budget costs, including what the reruns themselves need.
//!
//! Rows are a few tasks of a chain that runs in this order ([`super::order`]). Block `i` is the time between
//! the first runs of rows `i − 1` and `i`. Of each value the program knows only the rows at which it is in
//! memory and the blocks in which its producer runs again:
//!
//! 1. Made or made again in block `j`, and next made again in block `n`, a value is in memory at rows
//!    `j … l − 1` and absent at rows `l … n − 1`, for some `l`. Reads by first runs constrain `l` or `n`.
//! 2. At each row, the bytes in memory are within the budget.
//! 3. For each input `w` of the producer of `v`, row `k` and block `e > k`: if `v` is made again in a
//!    block of `k + 1 … e`, then `w` is in memory at row `k` or made again in one of these blocks.
//!
//! Every plan obeys these rules, so the least seconds of reruns under them are a lower bound. The third rule
//! makes the bound strong: whatever is dropped at row `k` and made again by block `e` needs a whole tree of
//! runs that starts from what row `k` holds. (Checkmate's program has this rule for each single block
//! instead, which is weaker: its linear relaxation spreads a run thinly over many blocks.)
//!
//! With a price for each row of rule 2 and for each instance of rule 3, the values become independent, and
//! the cheapest stays of each are a shortest path over its blocks. So the Lagrangian is evaluated in
//! `O(values · rows² + rules)`.

use super::floor::lasting;
use super::order::{Chain, Place};
use cranelift_entity::{EntityRef, PrimaryMap, entity_impl};
use scrimp_plan::ValueId;

use crate::model::Model;

/// Rounding errors of the Lagrangian are below this share of the sum of its terms.
pub(super) const ROUNDING: f64 = 1e-12;

/// Stands for a value that isn't made again.
pub(super) const NEVER: u32 = u32::MAX;

/// What the program knows about one value.
pub(super) struct Stay {
    pub bytes: f64,
    /// Seconds of making the value again; infinite if that is impossible.
    pub seconds: f64,
    /// The first row by which the value has certainly been made.
    pub begin: usize,
    /// By next block, where the last entry stands for none: the `l` that reads before that block force on a
    /// value that was made before those reads.
    pub forced: Vec<u32>,
    pub gone: Option<Gone>,
    /// The rules in which the value is made, and the rules in which another value is made from it.
    inputs: Vec<RuleId>,
    readers: Vec<RuleId>,
}

/// For a value that is overwritten: if made in a block before `from`, it isn't in memory at row `cap` or
/// later.
#[derive(Clone, Copy)]
pub(super) struct Gone {
    pub from: usize,
    pub cap: usize,
    /// The row whose run overwrites the value.
    pub row: Option<usize>,
}

/// Value `made` is made from value `from`.
pub(super) struct Rule {
    pub made: ValueId,
    pub from: ValueId,
}

/// Names a [`Rule`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct RuleId(u32);
entity_impl!(RuleId, "rule");

/// The program for some rows.
pub(super) struct Stays {
    pub rows: usize,
    pub stays: PrimaryMap<ValueId, Stay>,
    pub rules: PrimaryMap<RuleId, Rule>,
    /// Bytes by which each row exceeds the budget without the values.
    pub lack: Vec<f64>,
    /// The bytes of all values together.
    bytes: f64,
}

/// A price for each row, and for each rule, row and block.
#[derive(Clone)]
pub(super) struct Prices {
    pub of_row: Vec<f64>,
    /// By rule, row `k` and block `e`, in one array.
    pub of_rule: Vec<f64>,
    /// By rule and row: whether any of its prices is positive.
    pub positive: Vec<bool>,
}

/// The cheapest stays at given prices.
pub(super) struct Answer {
    /// Bytes over the budget at each row.
    pub excess: Vec<f64>,
    /// By value and row: whether the value is in memory, and the next block in which it is made again.
    pub held: Vec<bool>,
    pub next: Vec<u32>,
}

/// Buffers of one evaluation, by row or block.
struct Scratch {
    /// The price of being in memory at all earlier rows; and per row, the reward for being in memory.
    rent: Vec<f64>,
    reward: Vec<f64>,
    /// By row and block: the price of being made again next in that block.
    toll: Vec<f64>,
    tolled: Vec<bool>,
    /// The least cost from a block on, and the next block and `l` that achieve it.
    least: Vec<f64>,
    choice: Vec<(u32, u32)>,
}

impl Stays {
    pub fn new(model: &Model, chain: &Chain, rows: &[usize], budget: f64) -> Stays {
        let t = rows.len();
        let place = |p: Place| Place {
            after: rows.partition_point(|&r| r < p.after),
            until: rows.partition_point(|&r| r < p.until),
            exact: p.exact && rows.binary_search(&p.until).is_ok(),
        };
        let lasting = lasting(model);
        let mut lack: Vec<f64> = rows
            .iter()
            .map(|&r| model.workspace[chain.tasks[r]] + model.fixed_bytes - budget)
            .collect();
        let mut stays: PrimaryMap<ValueId, Stay> = PrimaryMap::with_capacity(model.bytes.len());
        for v in model.value_ids() {
            let make = model.producer[v];
            let made = place(chain.place(make));
            let mut need = vec![0; t + 2];
            if made.exact {
                need[made.until] = made.until + 1;
            }
            let mut gone = None;
            for &reader in model.consumers.of(v) {
                let at = place(chain.place(reader));
                let least = at.after + usize::from(at.exact);
                need[at.until] = need[at.until].max(least);
                if model.overwrites(reader, v) {
                    gone = Gone::new(at, made.until);
                    if at.exact {
                        // The value's buffer belongs to the output.
                        lack[at.until] -= model.size(v);
                    }
                }
            }
            let mut forced = vec![0u32; t + 2];
            for block in 0..=t {
                forced[block + 1] = forced[block].max(need[block] as u32);
            }
            let share = model.outputs.of(make).len() as f64;
            stays.push(Stay {
                bytes: model.size(v),
                seconds: if lasting[v] {
                    f64::INFINITY
                } else {
                    model.cost[make] / share
                },
                begin: made.until,
                forced,
                gone,
                inputs: Vec::new(),
                readers: Vec::new(),
            });
        }
        let mut program = Stays {
            rows: t,
            stays,
            rules: PrimaryMap::new(),
            lack,
            bytes: model.bytes.values().sum(),
        };
        program.add_rules(model);
        program
    }

    fn add_rules(&mut self, model: &Model) {
        for made in self.stays.keys() {
            let stay = &self.stays[made];
            if !stay.seconds.is_finite() || stay.bytes <= 0.0 {
                continue;
            }
            for input in model.inputs.of(model.producer[made]) {
                let from = input.value;
                if self.stays[from].bytes > 0.0 {
                    let rule = self.rules.push(Rule { made, from });
                    self.stays[made].inputs.push(rule);
                    self.stays[from].readers.push(rule);
                }
            }
        }
    }

    /// Prices of rows, with all prices of rules zero.
    pub fn prices(&self, of_row: Vec<f64>) -> Prices {
        Prices {
            of_row,
            of_rule: vec![0.0; self.rules.len() * self.rows * (self.rows + 1)],
            positive: vec![false; self.rules.len() * self.rows],
        }
    }

    pub fn answer(&self) -> Answer {
        Answer {
            excess: vec![0.0; self.rows],
            held: vec![false; self.rows * self.stays.len()],
            next: vec![NEVER; self.rows * self.stays.len()],
        }
    }

    fn scratch(&self) -> Scratch {
        let t = self.rows;
        Scratch {
            rent: vec![0.0; t + 1],
            reward: vec![0.0; t],
            toll: vec![0.0; t * (t + 1)],
            tolled: vec![false; t],
            least: vec![0.0; t + 1],
            choice: vec![(NEVER, 0); t + 1],
        }
    }

    /// The Lagrangian at these prices: a lower bound on the seconds of reruns. It is rounded down, because
    /// sums that nearly cancel are inexact where prices are high.
    pub fn evaluate(&self, prices: &Prices, answer: &mut Answer) -> f64 {
        let mut scratch = self.scratch();
        let rent = prices.of_row.iter().sum::<f64>();
        let of_rule = prices.of_rule.chunks_exact(self.rows + 1);
        let tolls: f64 = of_rule
            .zip(&prices.positive)
            .filter(|(_, positive)| **positive)
            .map(|(of_block, _)| of_block.iter().sum::<f64>())
            .sum();
        let summed =
            rent * (self.bytes + self.lack.iter().fold(0.0, |a, l| l.abs().max(a))) + tolls;
        answer.excess.copy_from_slice(&self.lack);
        let mut total: f64 = prices
            .of_row
            .iter()
            .zip(&self.lack)
            .map(|(p, l)| p * l)
            .sum();
        for (v, stay) in self.stays.iter() {
            if stay.bytes > 0.0 && stay.begin < self.rows {
                self.set_tolls(stay, prices, &mut scratch);
                self.shortest(stay, &mut scratch);
                total += scratch.least[stay.begin];
                self.trace(v, &scratch, answer);
            }
        }
        total - ROUNDING * summed
    }

    /// For each value and block, the least growth of the Lagrangian if the value is made again in that block.
    pub fn growth(&self, prices: &Prices) -> PrimaryMap<ValueId, Vec<f64>> {
        let mut scratch = self.scratch();
        let t = self.rows;
        let mut growth = PrimaryMap::with_capacity(self.stays.len());
        for stay in self.stays.values() {
            // A rerun that the program doesn't model adds its own seconds.
            let mut by_block = vec![stay.seconds; t + 1];
            if stay.bytes > 0.0 && stay.begin < t && stay.seconds.is_finite() {
                self.set_tolls(stay, prices, &mut scratch);
                self.shortest(stay, &mut scratch);
                let least = scratch.least[stay.begin];
                // The least cost up to a rerun in each block.
                let mut before = vec![f64::INFINITY; t + 1];
                before[stay.begin] = 0.0;
                for next in stay.begin + 1..=t {
                    let mut leave = Leave::new(next);
                    let mut toll = 0.0;
                    for j in (stay.begin..next).rev() {
                        toll += scratch.toll(t, j, next);
                        let first = j == stay.begin;
                        let (rent, _) = leave.cheapest(stay, &scratch.rent, j, next, first);
                        let cost = before[j] + rent - scratch.rent[j] + toll + stay.seconds;
                        before[next] = before[next].min(cost);
                    }
                    by_block[next] = (before[next] + scratch.least[next] - least).max(0.0);
                }
            }
            growth.push(by_block);
        }
        growth
    }

    /// Computes what a stay of this value pays: rent by row, and tolls by row and next block.
    fn set_tolls(&self, stay: &Stay, prices: &Prices, scratch: &mut Scratch) {
        let t = self.rows;
        scratch.clear(t, stay.begin);
        for &rule in &stay.inputs {
            for (k, of_block) in self.paid(prices, rule, stay.begin) {
                let tolls = &mut scratch.toll[k * (t + 1)..(k + 1) * (t + 1)];
                tolls
                    .iter_mut()
                    .zip(of_block)
                    .for_each(|(toll, price)| *toll += price);
                scratch.tolled[k] = true;
            }
        }
        for &rule in &stay.readers {
            for (k, of_block) in self.paid(prices, rule, stay.begin) {
                let tolls = &mut scratch.toll[k * (t + 1)..(k + 1) * (t + 1)];
                tolls
                    .iter_mut()
                    .zip(of_block)
                    .for_each(|(toll, price)| *toll -= price);
                scratch.tolled[k] = true;
                scratch.reward[k] += of_block.iter().sum::<f64>();
            }
        }
        for k in (stay.begin..t).filter(|&k| scratch.tolled[k]) {
            // A value made again in a block counts as made again for every later `e`.
            for e in (k * (t + 1)..k * (t + 1) + t).rev() {
                scratch.toll[e] += scratch.toll[e + 1];
            }
        }
        if let Some(row) = stay.gone.and_then(|gone| gone.row) {
            scratch.reward[row] = 0.0;
        }
        scratch.rent[stay.begin] = 0.0;
        for k in stay.begin..t {
            scratch.rent[k + 1] =
                scratch.rent[k] + prices.of_row[k] * stay.bytes - scratch.reward[k];
        }
    }

    /// The rows from `begin` on at which a rule has prices, with the prices of their blocks.
    fn paid<'p>(
        &self,
        prices: &'p Prices,
        rule: RuleId,
        begin: usize,
    ) -> impl Iterator<Item = (usize, &'p [f64])> {
        let t = self.rows;
        let at = rule.index() * t;
        (begin..t)
            .filter(move |k| prices.positive[at + k])
            .map(move |k| {
                (
                    k,
                    &prices.of_rule[(at + k) * (t + 1)..(at + k + 1) * (t + 1)],
                )
            })
    }

    /// Finds the cheapest stays from each block on.
    fn shortest(&self, stay: &Stay, scratch: &mut Scratch) {
        let t = self.rows;
        let begin = stay.begin;
        let mut leave = Leave::new(t);
        for j in (begin..=t).rev() {
            let (rent, l) = leave.cheapest(stay, &scratch.rent, j, t + 1, j == begin);
            scratch.least[j] = rent - scratch.rent[j];
            scratch.choice[j] = (NEVER, l as u32);
        }
        if !stay.seconds.is_finite() {
            return;
        }
        for next in (begin + 1..=t).rev() {
            let rest = scratch.least[next] + stay.seconds;
            let mut leave = Leave::new(next);
            let mut toll = 0.0;
            for j in (begin..next).rev() {
                toll += scratch.toll(t, j, next);
                let (rent, l) = leave.cheapest(stay, &scratch.rent, j, next, j == begin);
                let cost = rent - scratch.rent[j] + toll + rest;
                if cost < scratch.least[j] {
                    scratch.least[j] = cost;
                    scratch.choice[j] = (next as u32, l as u32);
                }
            }
        }
    }

    /// Writes down the cheapest stays of a value.
    fn trace(&self, v: ValueId, scratch: &Scratch, answer: &mut Answer) {
        let (t, stay) = (self.rows, &self.stays[v]);
        let held = &mut answer.held[v.index() * t..(v.index() + 1) * t];
        let nexts = &mut answer.next[v.index() * t..(v.index() + 1) * t];
        held.fill(false);
        let mut j = stay.begin;
        loop {
            let (next, l) = scratch.choice[j];
            for k in j..(next as usize).min(t) {
                nexts[k] = next;
                if k < l as usize {
                    held[k] = true;
                    answer.excess[k] += stay.bytes;
                }
            }
            if next == NEVER {
                break;
            }
            j = next as usize;
        }
        if let Some(row) = stay.gone.and_then(|gone| gone.row) {
            held[row] = false;
        }
    }
}

impl Scratch {
    fn clear(&mut self, rows: usize, begin: usize) {
        self.reward[begin..].fill(0.0);
        for k in begin..rows {
            if self.tolled[k] {
                self.toll[k * (rows + 1)..(k + 1) * (rows + 1)].fill(0.0);
                self.tolled[k] = false;
            }
        }
    }

    fn toll(&self, rows: usize, k: usize, block: usize) -> f64 {
        if self.tolled[k] {
            self.toll[k * (rows + 1) + block]
        } else {
            0.0
        }
    }
}

impl Gone {
    /// `made` is the row by which the value is made. `None` if the value may be overwritten before that row,
    /// because then nothing is known.
    fn new(at: Place, made: usize) -> Option<Gone> {
        let row = at.exact.then_some(at.until);
        let gone = Gone {
            from: at.after + usize::from(at.exact),
            cap: at.until + usize::from(at.exact),
            row,
        };
        (gone.from > made).then_some(gone)
    }
}

/// Finds the cheapest row at which to leave memory, for descending `j` and one next block.
struct Leave {
    best: (f64, usize),
    /// Rows from this one on have been considered.
    seen: usize,
    last: usize,
}

impl Leave {
    fn new(last: usize) -> Leave {
        Leave {
            best: (f64::INFINITY, 0),
            seen: last + 1,
            last,
        }
    }

    /// The least rent up to leaving memory, infinite if leaving is impossible, and the `l` that achieves it.
    fn cheapest(
        &mut self,
        stay: &Stay,
        rent: &[f64],
        j: usize,
        next: usize,
        first: bool,
    ) -> (f64, usize) {
        let low = j.max(stay.forced[next] as usize);
        if let Some(gone) = stay.gone
            && (j < gone.from || first)
            && gone.cap < self.last
        {
            let range = low..=gone.cap;
            let rows = range.map(|l| (rent[l], l));
            return rows.fold((f64::INFINITY, 0), |a, b| if b.0 < a.0 { b } else { a });
        }
        while self.seen > low {
            self.seen -= 1;
            if rent[self.seen] < self.best.0 {
                self.best = (rent[self.seen], self.seen);
            }
        }
        self.best
    }
}
