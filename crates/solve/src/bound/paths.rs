//! The cheapest stays of one value at given prices: a shortest path over the blocks in which it is made or
//! copied back.
//!
//! With other memories, a path has two layers: until the value has been copied out for the first time, and from
//! then on. The copy there stays valid, so only the first return pays for a copy out.

use cranelift_entity::{EntityRef, PrimaryMap};
use scrimp_plan::ValueId;

use super::lanes::{Charge, Cheapest};
use super::leave::Leave;
use super::stays::{Answer, NEVER, Prices, ROUNDING, RuleId, Stay, Stays};
use crate::outside::End;

/// One arc of a path: in memory up to row `leave − 1`, and back in block `next`.
#[derive(Clone, Copy)]
struct Arc {
    next: u32,
    leave: u32,
    /// Whether the value comes back by a copy.
    copied: bool,
}

/// An arc while it is being compared.
#[derive(Clone, Copy)]
struct Return {
    /// The block from which it leads, and the layer there.
    from: usize,
    layer: usize,
    copied: bool,
    /// The rent up to the row at which the value leaves, and that row.
    left: f64,
    leave: usize,
    toll: f64,
    /// Of making the value again or copying it back.
    price: f64,
}

/// Buffers of one evaluation, by row or block.
struct Scratch {
    /// The price of being in memory at all earlier rows; and per row, the reward for being in memory.
    rent: Vec<f64>,
    reward: Vec<f64>,
    /// The rent with the price of a copy out that ends before the row; and that with which a value that was
    /// never copied out may leave for good.
    rent_out: Vec<f64>,
    rent_end: Vec<f64>,
    /// By row and block: the price of being made again next in that block, and of being copied back next.
    toll: [Vec<f64>; 2],
    tolled: Vec<bool>,
    /// At the shares of the evaluation.
    cheapest: Cheapest,
    /// By block: what making again, a copy out before the next row, and a copy back take.
    run: Vec<Charge>,
    out: Vec<Charge>,
    back: Vec<Charge>,
    /// By layer, the least cost from a block on, and the arc that achieves it.
    least: [Vec<f64>; 2],
    arc: [Vec<Arc>; 2],
    /// The same before a value given elsewhere comes for the first time.
    first: (f64, u32),
}

impl Stays<'_> {
    fn scratch(&self) -> Scratch {
        let t = self.rows;
        let never = Arc {
            next: NEVER,
            leave: 0,
            copied: false,
        };
        let blocks = if self.copies.is_some() { t + 1 } else { 0 };
        Scratch {
            rent: vec![0.0; t + 1],
            reward: vec![0.0; t],
            rent_out: vec![0.0; blocks],
            rent_end: vec![0.0; blocks],
            toll: [vec![0.0; t * (t + 1)], vec![0.0; t * blocks]],
            tolled: vec![false; t],
            cheapest: Cheapest::default(),
            run: vec![Charge::NEVER; t + 1],
            out: vec![Charge::NEVER; blocks],
            back: vec![Charge::NEVER; blocks],
            least: [vec![0.0; t + 1], vec![0.0; blocks]],
            arc: [vec![never; t + 1], vec![never; blocks]],
            first: (0.0, NEVER),
        }
    }

    /// The Lagrangian at these prices: a lower bound on the seconds beyond running every task once. It is
    /// rounded down, because sums that nearly cancel are inexact where prices are high.
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
        if let Some(copies) = &self.copies {
            scratch.cheapest = copies.lanes.cheapest(&prices.shares);
            total += copies.lanes.base(&scratch.cheapest, &mut answer.load);
        }
        for (v, stay) in self.stays.iter() {
            if self.knows(stay) {
                self.prepare(v, prices, &mut scratch);
                total += scratch.cost(stay);
                self.trace(v, &scratch, answer);
            }
        }
        total - ROUNDING * summed
    }

    /// For each value and block, the least growth of the Lagrangian if the value is made again in that block.
    pub fn growth(&self, prices: &Prices) -> PrimaryMap<ValueId, Vec<f64>> {
        let mut scratch = self.scratch();
        if let Some(copies) = &self.copies {
            scratch.cheapest = copies.lanes.cheapest(&prices.shares);
        }
        let t = self.rows;
        let mut growth = PrimaryMap::with_capacity(self.stays.len());
        for (v, stay) in self.stays.iter() {
            self.charge(v, &mut scratch);
            // A rerun that the program doesn't model adds its own seconds.
            let mut by_block: Vec<f64> = scratch.run.iter().map(|run| run.price).collect();
            if stay.bytes > 0.0 && stay.begin < t && stay.seconds.is_finite() {
                self.prepare(v, prices, &mut scratch);
                let least = scratch.cost(stay);
                // By layer, the least cost up to a return in each block.
                let mut before = [vec![f64::INFINITY; t + 1], vec![f64::INFINITY; t + 1]];
                before[0][stay.begin] = 0.0;
                for next in stay.begin + 1..=t {
                    let mut again = [f64::INFINITY; 2];
                    let mut back = f64::INFINITY;
                    self.arcs(stay, &scratch, next, |to| {
                        let (before, rent) = (before[to.layer][to.from], scratch.rent[to.from]);
                        let cost = before + to.left - rent + to.toll + to.price;
                        let best = match to.copied {
                            true => &mut back,
                            false => &mut again[to.layer],
                        };
                        *best = best.min(cost);
                    });
                    by_block[next] = f64::INFINITY;
                    for layer in 0..self.layers() {
                        let with = again[layer] + scratch.least[layer][next] - least;
                        by_block[next] = by_block[next].min(with.max(0.0));
                        before[layer][next] = again[layer];
                    }
                    before[1][next] = before[1][next].min(back);
                }
            }
            growth.push(by_block);
        }
        growth
    }

    fn layers(&self) -> usize {
        1 + usize::from(self.copies.is_some())
    }

    /// Finds a value's cheapest stays.
    fn prepare(&self, v: ValueId, prices: &Prices, scratch: &mut Scratch) {
        let stay = &self.stays[v];
        self.charge(v, scratch);
        self.set_tolls(stay, prices, scratch);
        self.shortest(stay, scratch);
    }

    /// Computes what it takes to make a value again and to copy it.
    fn charge(&self, v: ValueId, scratch: &mut Scratch) {
        let seconds = self.stays[v].seconds;
        let Some(copies) = &self.copies else {
            let run = Charge {
                price: seconds,
                seconds,
                lane: 0,
            };
            scratch.run.fill(run);
            return;
        };
        let (lanes, outside) = (&copies.lanes, copies.outside);
        for (block, run) in scratch.run.iter_mut().enumerate() {
            *run = lanes.rerun(&scratch.cheapest, block, seconds);
        }
        lanes.back(&scratch.cheapest, &outside.back, v, &mut scratch.back);
        if outside.away[v] {
            scratch.out.fill(Charge::FREE);
        } else {
            lanes.out(&scratch.cheapest, &outside.out, v, &mut scratch.out);
        }
    }

    /// Computes what a stay of this value pays: rent by row, and tolls by row and next block.
    fn set_tolls(&self, stay: &Stay, prices: &Prices, scratch: &mut Scratch) {
        let t = self.rows;
        scratch.clear(t, stay.begin);
        for &rule in &stay.inputs {
            for (k, of_block) in self.paid(prices, rule, stay.begin) {
                let tolls = &mut scratch.toll[0][k * (t + 1)..(k + 1) * (t + 1)];
                tolls
                    .iter_mut()
                    .zip(of_block)
                    .for_each(|(toll, price)| *toll += price);
                scratch.tolled[k] = true;
            }
        }
        for &rule in &stay.readers {
            for (k, of_block) in self.paid(prices, rule, stay.begin) {
                for toll in &mut scratch.toll[..self.layers()] {
                    let tolls = &mut toll[k * (t + 1)..(k + 1) * (t + 1)];
                    tolls
                        .iter_mut()
                        .zip(of_block)
                        .for_each(|(toll, price)| *toll -= price);
                }
                scratch.tolled[k] = true;
                scratch.reward[k] += of_block.iter().sum::<f64>();
            }
        }
        for k in (stay.begin..t).filter(|&k| scratch.tolled[k]) {
            // A value that comes back in a block counts as back for every later `e`.
            for toll in &mut scratch.toll[..self.layers()] {
                for e in (k * (t + 1)..k * (t + 1) + t).rev() {
                    toll[e] += toll[e + 1];
                }
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
        if self.copies.is_some() {
            for l in stay.begin..=t {
                let out = scratch.rent[l] + scratch.out[l].price;
                let pays = pays_at_end(stay, l, t);
                scratch.rent_out[l] = out;
                scratch.rent_end[l] = if pays { out } else { scratch.rent[l] };
            }
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

    /// Visits the arcs to block `next`, by descending block from which they lead.
    #[inline(always)]
    fn arcs(&self, stay: &Stay, scratch: &Scratch, next: usize, mut visit: impl FnMut(Return)) {
        let t = self.rows;
        let begin = stay.begin;
        let rent = &scratch.rent;
        let again = scratch.run[next].price;
        let back = scratch.back.get(next).map_or(f64::INFINITY, |b| b.price);
        let layers = if stay.away.is_some() {
            1..2
        } else {
            0..self.layers()
        };
        let (mut leave, mut leave_out) = (Leave::new(next), Leave::new(next));
        let mut tolls = [0.0; 2];
        for from in (begin..next).rev() {
            let first = from == begin;
            let (left, l) = leave.cheapest(stay, rent, from, next, first);
            tolls[0] += scratch.toll(0, t, from, next);
            let mut to = Return {
                from,
                layer: 0,
                copied: false,
                left,
                leave: l,
                toll: tolls[0],
                price: again,
            };
            if again.is_finite() {
                for layer in layers.clone() {
                    visit(Return { layer, ..to });
                }
            }
            if back.is_finite() {
                tolls[1] += scratch.toll(1, t, from, next);
                (to.copied, to.toll, to.price) = (true, tolls[1], back);
                visit(Return { layer: 1, ..to });
                if stay.away.is_none() {
                    let rent = &scratch.rent_out;
                    (to.left, to.leave) = leave_out.cheapest(stay, rent, from, next, first);
                    visit(to);
                }
            }
        }
    }

    /// Finds the cheapest stays from each block on.
    fn shortest(&self, stay: &Stay, scratch: &mut Scratch) {
        let (t, begin) = (self.rows, stay.begin);
        for layer in 0..self.layers() {
            let mut leave = Leave::new(t);
            let never_out = layer == 0 && self.copies.is_some();
            let rent = match never_out {
                true => &scratch.rent_end,
                false => &scratch.rent,
            };
            for j in (begin..=t).rev() {
                let (left, l) = leave.cheapest(stay, rent, j, t + 1, j == begin);
                scratch.least[layer][j] = left - scratch.rent[j];
                scratch.arc[layer][j] = Arc {
                    next: NEVER,
                    leave: l as u32,
                    copied: false,
                };
            }
        }
        let mut least = std::mem::take(&mut scratch.least);
        let mut arcs = std::mem::take(&mut scratch.arc);
        for next in (begin + 1..=t).rev() {
            let rest = [
                least[0][next],
                least[1].get(next).copied().unwrap_or(f64::INFINITY),
            ];
            self.arcs(stay, scratch, next, |to| {
                let rest = rest[if to.copied { 1 } else { to.layer }] + to.price;
                let cost = to.left - scratch.rent[to.from] + to.toll + rest;
                let least = &mut least[to.layer][to.from];
                if cost < *least {
                    *least = cost;
                    arcs[to.layer][to.from] = Arc {
                        next: next as u32,
                        leave: to.leave as u32,
                        copied: to.copied,
                    };
                }
            });
        }
        (scratch.least, scratch.arc) = (least, arcs);
        if let Some(due) = stay.away {
            scratch.first = self.first_return(due, scratch);
        }
    }

    /// The least cost of a value that is given elsewhere, and the block in which it comes first.
    fn first_return(&self, due: u32, scratch: &Scratch) -> (f64, u32) {
        let t = self.rows;
        let mut best = match due {
            NEVER => (0.0, NEVER),
            _ => (f64::INFINITY, NEVER),
        };
        for next in 0..=t.min(due as usize) {
            let toll: f64 = (0..next).map(|k| scratch.toll(1, t, k, next)).sum();
            let cost = toll + scratch.back[next].price + scratch.least[1][next];
            if cost < best.0 {
                best = (cost, next as u32);
            }
        }
        best
    }

    /// Writes down the cheapest stays of a value.
    fn trace(&self, v: ValueId, scratch: &Scratch, answer: &mut Answer) {
        let (t, stay) = (self.rows, &self.stays[v]);
        let held = &mut answer.held[v.index() * t..(v.index() + 1) * t];
        let nexts = &mut answer.next[v.index() * t..(v.index() + 1) * t];
        let again = &mut answer.again[v.index() * t..(v.index() + 1) * t];
        let load = &mut answer.load;
        let mut charge = |charge: &Charge| load[charge.lane] += charge.seconds;
        held.fill(false);
        let (mut j, mut layer) = (stay.begin, 0);
        if stay.away.is_some() {
            let next = scratch.first.1;
            nexts[..(next as usize).min(t)].fill(next);
            again[..(next as usize).min(t)].fill(NEVER);
            if next == NEVER {
                return;
            }
            charge(&scratch.back[next as usize]);
            (j, layer) = (next as usize, 1);
        }
        loop {
            let Arc {
                next,
                leave: l,
                copied,
            } = scratch.arc[layer][j];
            for k in j..(next as usize).min(t) {
                nexts[k] = next;
                again[k] = if copied { NEVER } else { next };
                if k < l as usize {
                    held[k] = true;
                    answer.excess[k] += stay.bytes;
                }
            }
            if self.copies.is_some() {
                let l = l as usize;
                if layer == 0 && (copied || next == NEVER && pays_at_end(stay, l, t)) {
                    charge(&scratch.out[l]);
                    layer = 1;
                }
                if copied {
                    charge(&scratch.back[next as usize]);
                } else if next != NEVER {
                    charge(&scratch.run[next as usize]);
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

/// Whether a value that was never copied out, and leaves memory for good at row `l` of `t`, must be copied out.
fn pays_at_end(stay: &Stay, l: usize, t: usize) -> bool {
    match stay.end {
        End::Away => stay.away.is_none(),
        End::Anywhere => l < t,
        End::Nowhere | End::Here => false,
    }
}

impl Scratch {
    fn clear(&mut self, rows: usize, begin: usize) {
        self.reward[begin..].fill(0.0);
        for k in begin..rows {
            if self.tolled[k] {
                for toll in self.toll.iter_mut().filter(|toll| !toll.is_empty()) {
                    toll[k * (rows + 1)..(k + 1) * (rows + 1)].fill(0.0);
                }
                self.tolled[k] = false;
            }
        }
    }

    fn toll(&self, kind: usize, rows: usize, k: usize, block: usize) -> f64 {
        if self.tolled[k] {
            self.toll[kind][k * (rows + 1) + block]
        } else {
            0.0
        }
    }

    /// The cost of a value's cheapest stays.
    fn cost(&self, stay: &Stay) -> f64 {
        match stay.away {
            Some(_) => self.first.0,
            None => self.least[0][stay.begin],
        }
    }
}
