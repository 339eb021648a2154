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
//! With other memories, a value may also be copied back in a block, after a copy out. It is then in memory as
//! if it were made again, but needs no inputs. Runs and copies cost their seconds times the shares of
//! [`super::lanes`], so the shares are prices too.
//!
//! With a price for each row of rule 2 and for each instance of rule 3, the values become independent, and
//! the cheapest stays of each are a shortest path over its blocks. So the Lagrangian is evaluated in
//! `O(values · rows² + rules)`.

use super::floor::made_once;
use super::lanes::Lanes;
use super::order::{Chain, Place};
use cranelift_entity::{PrimaryMap, entity_impl};
use scrimp_plan::ValueId;

use crate::model::Model;
use crate::outside::{End, Outside};

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
    /// Where it must be at the end.
    pub end: End,
    /// If it is given on another device: the last block in which its first copy back may be; [`NEVER`] if
    /// nothing reads it.
    pub away: Option<u32>,
    /// The rules in which the value is made, and the rules in which another value is made from it.
    pub inputs: Vec<RuleId>,
    pub readers: Vec<RuleId>,
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

/// What other memories add to the program.
pub(super) struct Copies<'m> {
    pub outside: &'m Outside,
    pub lanes: Lanes,
}

/// The program for some rows.
pub(super) struct Stays<'m> {
    pub copies: Option<Copies<'m>>,
    pub rows: usize,
    pub stays: PrimaryMap<ValueId, Stay>,
    pub rules: PrimaryMap<RuleId, Rule>,
    /// Bytes by which each row exceeds the budget without the values.
    pub lack: Vec<f64>,
    /// The bytes of all values together.
    pub bytes: f64,
}

/// A price for each row, and for each rule, row and block.
#[derive(Clone)]
pub(super) struct Prices {
    pub of_row: Vec<f64>,
    /// By rule, row `k` and block `e`, in one array.
    pub of_rule: Vec<f64>,
    /// By rule and row: whether any of its prices is positive.
    pub positive: Vec<bool>,
    /// With other memories: the shares of [`Lanes`].
    pub shares: Vec<f64>,
}

/// The cheapest stays at given prices.
pub(super) struct Answer {
    /// Bytes over the budget at each row.
    pub excess: Vec<f64>,
    /// By value and row: whether the value is in memory, and the next block in which it comes back.
    pub held: Vec<bool>,
    pub next: Vec<u32>,
    /// The same block if the value doesn't come back by a copy, and [`NEVER`] if it does.
    pub again: Vec<u32>,
    /// Seconds of each of the shares.
    pub load: Vec<f64>,
}

impl<'m> Stays<'m> {
    pub fn new(model: &'m Model, chain: &Chain, rows: &[usize], budget: f64) -> Stays<'m> {
        let t = rows.len();
        let outside = model.outside.as_ref();
        let copies = outside.map(|outside| Copies {
            outside,
            lanes: Lanes::new(model, outside, chain, rows),
        });
        let place = |p: Place| Place {
            after: rows.partition_point(|&r| r < p.after),
            until: rows.partition_point(|&r| r < p.until),
            exact: p.exact && rows.binary_search(&p.until).is_ok(),
        };
        let once = made_once(model);
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
            let (mut gone, mut due) = (None, NEVER);
            let end = outside.map_or(End::Here, |outside| outside.end[v]);
            let readers = model.consumers.of(v).iter();
            for &reader in readers.filter(|&&r| model.has(r) || end == End::Here) {
                let at = place(chain.place(reader));
                due = due.min(at.until as u32);
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
                seconds: if once[v] {
                    f64::INFINITY
                } else {
                    model.cost[make] / share
                },
                begin: made.until,
                forced,
                gone,
                end,
                away: model.is_away(v).then_some(due),
                inputs: Vec::new(),
                readers: Vec::new(),
            });
        }
        let mut program = Stays {
            copies,
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

    /// Whether the program says anything about a value.
    pub fn knows(&self, stay: &Stay) -> bool {
        let copied = stay.away.is_some() || stay.end == End::Away;
        stay.bytes > 0.0 && (stay.begin < self.rows || self.copies.is_some() && copied)
    }

    /// The first shares: see [`Lanes::shares`].
    pub fn shares(&self, step: Option<(usize, [f64; 2])>) -> Vec<f64> {
        let copies = self.copies.as_ref();
        copies.map_or(Vec::new(), |c| c.lanes.shares(c.outside, step))
    }

    /// Prices of rows, with all prices of rules zero.
    pub fn prices(&self, of_row: Vec<f64>, shares: Vec<f64>) -> Prices {
        Prices {
            of_row,
            shares,
            of_rule: vec![0.0; self.rules.len() * self.rows * (self.rows + 1)],
            positive: vec![false; self.rules.len() * self.rows],
        }
    }

    pub fn answer(&self) -> Answer {
        Answer {
            excess: vec![0.0; self.rows],
            held: vec![false; self.rows * self.stays.len()],
            next: vec![NEVER; self.rows * self.stays.len()],
            again: vec![NEVER; self.rows * self.stays.len()],
            load: vec![0.0; self.copies.as_ref().map_or(0, |c| c.lanes.shares_len())],
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
