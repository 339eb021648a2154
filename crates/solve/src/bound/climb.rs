//! A step of the ascent: slopes of the stay program at an answer, their mean, and the prices that follow.

use cranelift_entity::EntityRef;

use super::ascent::{Mean, PER_UNIT};
use super::order::Chain;
use super::stays::{Answer, NEVER, Prices, Stays};
use crate::model::Model;

impl Stays<'_> {
    /// Units of work of one step.
    pub fn work(&self) -> u64 {
        let t = self.rows as u64;
        let values = self.stays.len() as u64 + self.rules.len() as u64 / 2;
        // Copies double the layers, and the arcs between them.
        let layers = if self.copies.is_some() { 3 } else { 1 };
        layers * values * (t + 2) * (t + 2) / 2 / PER_UNIT + 1
    }

    /// Lets the slopes at this answer join the mean with this share. Returns whether they point the same way
    /// as the mean did.
    pub fn join(&self, mean: &mut Mean, answer: &Answer, share: f64, unit: f64) -> bool {
        let t = self.rows;
        let mut product = 0.0;
        mean.empty = false;
        for (mean, excess) in mean.of_row.iter_mut().zip(&answer.excess) {
            product += *mean * excess * unit;
            *mean += share * (excess - *mean);
        }
        let of_rule = &mut mean.of_rule;
        self.slopes(&mut mean.live, answer, &mut |at, e, slope| {
            let mean = &mut of_rule[at * (t + 1) + e];
            product += *mean * slope;
            *mean += share * (slope - *mean);
        });
        if let Some(copies) = &self.copies {
            let unit = copies.lanes.unit();
            let mut centered = answer.load.clone();
            copies.lanes.center(&mut centered);
            for (mean, slope) in mean.of_share.iter_mut().zip(&centered) {
                product += *mean * slope * unit;
                *mean += share * (slope - *mean);
            }
        }
        product > 0.0
    }

    /// Takes a step along the mean slopes, of a length at which the bound would grow by `gain` if it were
    /// linear. Returns false if no price can change.
    pub fn climb(&self, prices: &mut Prices, mean: &Mean, unit: f64, gain: f64) -> bool {
        let t = self.rows;
        // A rule's blocks `e` come after its row.
        let live = || {
            (0..mean.live.len())
                .filter(|&at| mean.live[at])
                .map(|at| (at, at * (t + 1) + at % t + 1..(at + 1) * (t + 1)))
        };
        let mut square = 0.0;
        for (slope, price) in mean.of_row.iter().zip(&prices.of_row) {
            if *slope > 0.0 || *price > 0.0 {
                square += slope * slope * unit;
            }
        }
        for (_, blocks) in live() {
            for e in blocks {
                let slope = mean.of_rule[e];
                if slope > 0.0 || prices.of_rule[e] > 0.0 {
                    square += slope * slope;
                }
            }
        }
        if let Some(copies) = &self.copies {
            for (slope, share) in mean.of_share.iter().zip(&prices.shares) {
                if *slope > 0.0 || *share > 0.0 {
                    square += slope * slope * copies.lanes.unit();
                }
            }
        }
        if square <= 0.0 {
            return false;
        }
        let step = gain / square;
        for (price, slope) in prices.of_row.iter_mut().zip(&mean.of_row) {
            *price = (*price + step * unit * slope).max(0.0);
        }
        for (at, blocks) in live() {
            let mut positive = false;
            for e in blocks {
                let price = &mut prices.of_rule[e];
                *price = (*price + step * mean.of_rule[e]).max(0.0);
                positive |= *price > 0.0;
            }
            prices.positive[at] = positive;
        }
        if let Some(copies) = &self.copies {
            let step = step * copies.lanes.unit();
            for (share, slope) in prices.shares.iter_mut().zip(&mean.of_share) {
                *share += step * slope;
            }
            copies.lanes.project(&mut prices.shares);
        }
        true
    }

    /// Visits the rules and rows that are violated or `live`, with their blocks, and marks them as live.
    fn slopes(&self, live: &mut [bool], answer: &Answer, visit: &mut dyn FnMut(usize, usize, f64)) {
        let t = self.rows;
        for (number, rule) in self.rules.iter() {
            let (made, from) = (rule.made.index() * t, rule.from.index() * t);
            for k in self.stays[rule.made].begin..t {
                let at = number.index() * t + k;
                let (mine, its) = (answer.again[made + k], answer.next[from + k]);
                let held = answer.held[from + k];
                if !live[at] && (mine == NEVER || held || its <= mine) {
                    continue;
                }
                live[at] = true;
                for e in k + 1..=t {
                    let mine = f64::from(u8::from(mine as usize <= e));
                    let its = f64::from(u8::from(its as usize <= e)) + f64::from(u8::from(held));
                    visit(at, e, mine - its);
                }
            }
        }
    }

    /// Bytes over the budget at every row of the chain, given the stays at this program's rows.
    pub fn sample(
        &self,
        model: &Model,
        chain: &Chain,
        rows: &[usize],
        budget: f64,
        answer: &Answer,
    ) -> Vec<f64> {
        let (t, n) = (self.rows, chain.tasks.len());
        if n == 0 {
            return Vec::new();
        }
        let mut change = vec![0.0; n + 1];
        for (v, stay) in self.stays.iter().filter(|(_, s)| s.bytes > 0.0) {
            let made = chain.place(model.producer[v]).until;
            let readers = model.consumers.of(v).iter().map(|&r| chain.place(r).until);
            let mut reads: Vec<usize> = readers.collect();
            reads.sort_unstable();
            let held = &answer.held[v.index() * t..(v.index() + 1) * t];
            let next = &answer.next[v.index() * t..(v.index() + 1) * t];
            let mut j = stay.begin;
            let mut start = made;
            loop {
                let until = next.get(j).map_or(t, |&n| (n as usize).min(t));
                let after = next.get(j).is_some_and(|&n| n != NEVER);
                let l = (j..until).find(|&k| !held[k]).unwrap_or(until);
                // The value is in memory through row `l - 1`, and then until its last read before the next
                // row.
                let limit = rows.get(l).copied().unwrap_or(n);
                let last = reads.iter().rev().find(|&&r| r < limit).copied();
                let row = if l > j { rows[l - 1] } else { start };
                let end = last.map_or(row, |last| last.max(row)).min(n - 1);
                if start <= end {
                    change[start] += stay.bytes;
                    change[end + 1] -= stay.bytes;
                }
                if !after {
                    break;
                }
                j = until;
                let block = rows[j - 1]..rows.get(j).copied().unwrap_or(n);
                let first = reads.iter().find(|&&r| r > block.start && r < block.end);
                start = first.copied().unwrap_or(block.end).min(n - 1);
            }
        }
        let mut level = 0.0;
        let in_use = chain.tasks.iter().zip(&change).map(|(&task, change)| {
            level += change;
            level + model.workspace[task] + model.fixed_bytes - budget
        });
        in_use.collect()
    }
}
