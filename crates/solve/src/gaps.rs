//! The gap bound: seconds that a budget adds to any plan in the given order.
//!
//! Between two uses of a value by first runs, `p` and `u`, the value is idle. While the first run of a
//! task between them runs, the value is in memory, or else its producer runs again after that and
//! before the first run of `u`. Gaps of one value don't overlap, so no run is counted twice; a task
//! with several outputs shares its seconds among them. Let `x = 1` for the gaps in which the value is
//! absent at some time, at the producer's seconds `c`. At each first run over the budget by `d` bytes
//! without recomputation, the idle values with `x = 1` must make up for `d`.
//!
//! This is a covering program. Its linear form is bounded by its Lagrangian: for any prices `λ ≥ 0`
//! per position, `Σ λ d + Σ min(0, c − bytes · Σ λ over the gap)` is below its optimum. So whatever the
//! prices, the bound holds; a subgradient ascent makes them good.

use crate::model::{Model, Task};
use crate::search::state::State;

/// Steps of the ascent, for a bound and for prices.
const STEPS: usize = 2500;
const PRICE_STEPS: usize = 300;

/// A stretch `[from, to)` of positions in which a value is idle.
struct Gap {
    from: usize,
    to: usize,
    bytes: f64,
    seconds: f64,
}

/// Seconds that every plan within `budget` bytes that keeps the given order takes. `cost` is that of a
/// known plan, which sets the ascent's step size.
pub(crate) fn fixed_order(model: &Model, budget: f64, cost: f64) -> f64 {
    let base = model.base_cost();
    let given: Vec<Task> = (0..model.tasks).collect();
    let (added, _) = ascent(
        model,
        &State::new(model, &given),
        budget,
        (cost - base, STEPS),
    );
    // The sums' rounding errors are far below this.
    base + (added - 1e-9 * base).max(0.0)
}

/// What a byte is worth in each position of a sequence in which every task runs once, in seconds:
/// prices that the ascent ends with. `cost` as above.
pub(crate) fn prices(model: &Model, once: &State<'_>, budget: f64, cost: f64) -> Vec<f64> {
    let (_, mut prices) = ascent(model, once, budget, (cost - model.base_cost(), PRICE_STEPS));
    prices.iter_mut().for_each(|p| *p /= budget.max(1.0));
    prices
}

fn ascent(
    model: &Model,
    once: &State<'_>,
    budget: f64,
    (known, steps): (f64, usize),
) -> (f64, Vec<f64>) {
    let lack: Vec<f64> = once
        .mem()
        .iter()
        .map(|&m| (m - budget).max(0.0) / budget.max(1.0))
        .collect();
    let gaps: Vec<Gap> = gaps(model, once, budget, &lack);
    ascend(&gaps, &lack, known, steps)
}

/// The gaps that lie over a position which lacks bytes; bytes as shares of the budget.
fn gaps(model: &Model, state: &State<'_>, budget: f64, lack: &[f64]) -> Vec<Gap> {
    let mut lacking = vec![0usize; lack.len() + 1];
    for (p, &d) in lack.iter().enumerate() {
        lacking[p + 1] = lacking[p] + usize::from(d > 0.0);
    }
    let mut gaps = Vec::new();
    for v in 0..model.bytes.len() as u32 {
        let make = model.producer[v as usize];
        if !model.rerunnable[make as usize] || model.bytes[v as usize] <= 0.0 {
            continue;
        }
        let mut last = state.pos(state.runs(make)[0]);
        loop {
            let next = state.next_use(v, last + 1);
            if next as usize >= state.len() {
                break;
            }
            let (from, to) = (last as usize + 1, next as usize);
            if lacking[to] > lacking[from] {
                gaps.push(Gap {
                    from,
                    to,
                    bytes: model.bytes[v as usize] / budget.max(1.0),
                    seconds: model.cost[make as usize] / model.outputs.of(make).len() as f64,
                });
            }
            last = next;
        }
    }
    gaps
}

/// The best value of the Lagrangian that a subgradient ascent finds, and its prices.
fn ascend(gaps: &[Gap], lack: &[f64], known: f64, steps: usize) -> (f64, Vec<f64>) {
    let n = lack.len();
    let mut price = vec![0.0; n];
    let mut best_price = price.clone();
    let (mut best, mut scale, mut idle) = (0.0f64, 1.0, 0);
    let mut sums = vec![0.0; n + 1];
    let mut change = vec![0.0; n + 1];
    for _ in 0..steps {
        for p in 0..n {
            sums[p + 1] = sums[p] + price[p];
        }
        let mut value: f64 = price.iter().zip(lack).map(|(l, d)| l * d).sum();
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
            return (best.min(known), best_price);
        }
        let mut level = 0.0;
        let mut square = 0.0;
        for p in 0..n {
            level += change[p];
            // A price of zero that would fall stays.
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
