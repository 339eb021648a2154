//! The gap program: what a budget costs if the reruns themselves needed no memory.
//!
//! A value is idle at a row of the chain that runs after the value was made and before it is read again.
//! Either it is in memory at that row, or its producer runs again after the row and before the reader. Let
//! `x = 1` for the gaps in which the value is absent at some row, at the producer's seconds `c`. Gaps of one
//! value are chosen such that no run can serve two of them, and a task with several outputs shares its
//! seconds among them. If a row exceeds the budget by `d` bytes when all idle values are in memory, the
//! values with `x = 1` must make up for `d` there.
//!
//! This is a covering program. Its Lagrangian bounds its linear relaxation: for any prices `λ ≥ 0` per row,
//! `Σ λ d + Σ min(0, c − bytes · Σ λ over the gap)` is below the optimum. A subgradient ascent finds good
//! prices. The prices show which rows matter; [`super::stays`] goes on from there.

use scrimp_plan::ValueId;

use super::floor::made_once;
use super::order::Chain;
use super::stays::ROUNDING;
use super::step::Step;
use crate::cutoff::Cutoff;
use crate::model::Model;

/// The most steps of an ascent times gaps and rows.
const MOST_WORK: usize = 60_000_000;

/// A stretch `[from, to)` of rows in which a value is idle.
pub(super) struct Gap {
    pub value: ValueId,
    pub from: usize,
    pub to: usize,
    pub bytes: f64,
    /// Seconds of making the value again; infinite if that is impossible.
    pub seconds: f64,
}

/// Prices of a byte at each row.
pub(super) struct Prices {
    /// The seconds that these prices prove the budget to add.
    pub added: f64,
    pub of_row: Vec<f64>,
}

/// The best prices that an ascent of so many steps, or until a cutoff, finds. `known` is the number of seconds that a known plan
/// adds. With other memories, a gap costs what it costs with the weights of a step, and the prices
/// prove nothing.
pub(super) fn prices(
    model: &Model,
    chain: &Chain,
    budget: f64,
    known: f64,
    (steps, cutoff): (usize, Cutoff<'_>),
    step: Option<&Step>,
) -> Prices {
    let unit = budget.max(1.0);
    let gaps = gaps(model, chain);
    let lack = lacks(model, chain, &gaps, budget);
    let share: Vec<f64> = lack.iter().map(|d| d.max(0.0) / unit).collect();
    let mut lacking = vec![0usize; lack.len() + 1];
    for (p, &d) in share.iter().enumerate() {
        lacking[p + 1] = lacking[p] + usize::from(d > 0.0);
    }
    let returns = |gap: &Gap| gap.seconds.is_finite() || step.is_some();
    let matters = |gap: &Gap| returns(gap) && lacking[gap.to] > lacking[gap.from];
    let gaps: Vec<Gap> = gaps
        .into_iter()
        .filter(matters)
        .map(|gap| Gap {
            bytes: gap.bytes / unit,
            seconds: match (&model.outside, step) {
                (Some(outside), Some(step)) => step.price(model, outside, chain, &gap),
                _ => gap.seconds,
            },
            ..gap
        })
        .collect();
    let steps = steps.min(MOST_WORK / (gaps.len() + share.len()).max(1));
    let (added, mut of_row) = ascend(&gaps, &share, known, (steps, cutoff));
    of_row.iter_mut().for_each(|price| *price /= unit);
    Prices { added, of_row }
}

/// Each value's gaps.
pub(super) fn gaps(model: &Model, chain: &Chain) -> Vec<Gap> {
    let once = made_once(model);
    let mut gaps = Vec::new();
    for v in model.value_ids() {
        let bytes = model.size(v);
        if bytes <= 0.0 {
            continue;
        }
        let make = model.producer[v];
        let seconds = if once[v] {
            f64::INFINITY
        } else {
            model.cost[make] / model.outputs.of(make).len() as f64
        };
        let made = chain.place(make);
        let mut from = made.until + usize::from(made.exact);
        let mut readers: Vec<_> = model
            .consumers
            .of(v)
            .iter()
            .map(|&r| chain.place(r))
            .collect();
        readers.sort_unstable_by_key(|r| (r.until, r.after));
        // Of the readers after `from`, the one that certainly comes first ends the gap: a rerun for a later
        // gap comes after it.
        for reader in &readers {
            let to = reader.after.min(reader.until);
            if to > from {
                gaps.push(Gap {
                    value: v,
                    from,
                    to,
                    bytes,
                    seconds,
                });
            }
            from = from.max(reader.until + usize::from(reader.exact));
        }
    }
    gaps
}

/// Bytes over the budget at each row if all idle values are in memory.
pub(super) fn lacks(model: &Model, chain: &Chain, gaps: &[Gap], budget: f64) -> Vec<f64> {
    let n = chain.tasks.len();
    let mut change = vec![0.0; n + 1];
    for gap in gaps {
        change[gap.from] += gap.bytes;
        change[gap.to] -= gap.bytes;
    }
    let mut idle = 0.0;
    let rows = chain.tasks.iter().zip(&change).map(|(&t, change)| {
        idle += change;
        let inputs = model.inputs.of(t).iter().filter(|i| !i.overwritten);
        let inputs: f64 = inputs.map(|i| model.size(i.value)).sum();
        let outputs: f64 = model.outputs.of(t).iter().map(|&v| model.size(v)).sum();
        idle + inputs + outputs + model.workspace[t] + model.fixed_bytes - budget
    });
    rows.collect()
}

/// The best value of the Lagrangian that a subgradient ascent finds, and its prices.
fn ascend(
    gaps: &[Gap],
    lack: &[f64],
    known: f64,
    (steps, cutoff): (usize, Cutoff<'_>),
) -> (f64, Vec<f64>) {
    let n = lack.len();
    let mut price = vec![0.0; n];
    let mut best_price = price.clone();
    let (mut best, mut scale, mut idle) = (0.0f64, 1.0, 0);
    let mut sums = vec![0.0; n + 1];
    let mut change = vec![0.0; n + 1];
    let bytes: f64 = gaps
        .iter()
        .map(|gap| gap.bytes)
        .chain(lack.iter().copied())
        .sum();
    for _ in 0..steps {
        if cutoff.reached() {
            break;
        }
        for p in 0..n {
            sums[p + 1] = sums[p] + price[p];
        }
        let mut value: f64 = price.iter().zip(lack).map(|(l, d)| l * d).sum();
        value -= ROUNDING * sums[n] * bytes;
        change.iter_mut().for_each(|c| *c = 0.0);
        for gap in gaps {
            let reduced = gap.seconds - gap.bytes * (sums[gap.to] - sums[gap.from]);
            if reduced < 0.0 {
                value += reduced;
                change[gap.from] -= gap.bytes;
                change[gap.to] += gap.bytes;
            }
        }
        if value > best {
            best = value;
            best_price.copy_from_slice(&price);
            idle = 0;
        } else {
            idle += 1;
            if idle == 30 {
                (scale, idle) = (scale * 0.6, 0);
                price.copy_from_slice(&best_price);
                continue;
            }
        }
        if best >= known {
            break;
        }
        let mut level = 0.0;
        let mut square = 0.0;
        for p in 0..n {
            level += change[p];
            // A zero price can't fall.
            let slope = if lack[p] > 0.0 { lack[p] + level } else { 0.0 };
            sums[p] = if slope < 0.0 && price[p] <= 0.0 {
                0.0
            } else {
                slope
            };
            square += sums[p] * sums[p];
        }
        if square <= 0.0 {
            break;
        }
        let step = scale * (known * 1.02 - value).max(known * 1e-3) / square;
        for p in 0..n {
            price[p] = (price[p] + step * sums[p]).max(0.0);
        }
        sums[0] = 0.0;
    }
    (best, best_price)
}
