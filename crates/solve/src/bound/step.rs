//! The seconds that one step proves a plan to take, where values may be made again or wait in other memories.
//!
//! While a row `p` of the chain runs for the first time, some idle values must be absent if not all fit. Every
//! copy out of a value that is absent ended before `p` began, because its bytes came back before, and every
//! copy that brings it back begins after `p` has ended, because it takes the bytes after that. So the time
//! `T_f` before `p` is at least the compute before `p`, and at least `e` and all those copies out, where `e` is
//! when the first of the values is made. The time `T_b` after `p` is at least the compute after it and all
//! reruns of absent values, and at least all copies back and `τ`, the compute that follows the last one.
//!
//! With weights `α` and `β` in [0, 1], `T_f ≥ α · compute + (1 − α) · (e + copies out)`, and likewise `T_b`
//! with `β`. Then a value's absence costs the less of `β · rerun` and `(1 − α) · out + (1 − β) · back`, the
//! cheapest absent bytes are a fractional knapsack, and the sum is a bound for any weights. It is concave in
//! them. Copies before and after `p` don't meet in a queue, so the bound holds for half duplex too.

use scrimp_plan::TaskId;

use super::gaps::{self, Gap};
use super::order::Chain;
use crate::cutoff::Cutoff;
use crate::model::Model;
use crate::outside::{End, Outside};

/// Comparisons of values that looking for the best row may take.
const MOST_WORK: usize = 20_000_000;
/// Weights per direction when rows are compared, and refinements at the best rows.
const GRID: [f64; 7] = [0.0, 0.5, 0.75, 0.875, 0.94, 0.97, 1.0];
const REFINED: usize = 4;
/// Steps of the search for the best weight in one direction.
const STEPS: usize = 24;

/// What the best row proves.
pub(super) struct Step {
    /// No plan takes fewer seconds.
    pub seconds: f64,
    /// The row, by its place in the chain, and the weights of compute before and after it.
    pub row: usize,
    pub weights: [f64; 2],
}

impl Step {
    /// What a value's absence from a gap costs with these weights.
    pub fn price(&self, model: &Model, outside: &Outside, chain: &Chain, gap: &Gap) -> f64 {
        price(
            self.weights,
            gap.seconds,
            copies(model, outside, chain, gap),
        )
    }
}

/// Seconds of the copies out and back with which a value waits elsewhere during a gap.
fn copies(model: &Model, outside: &Outside, chain: &Chain, gap: &Gap) -> [f64; 2] {
    let v = gap.value;
    let out = match outside.away[v] {
        true => 0.0,
        false => outside.pooled_out(v),
    };
    let mut readers = model.consumers.of(v).iter();
    let read = readers.any(|&r| model.has(r) && chain.place(r).after >= gap.to);
    let back = match outside.end[v] == End::Anywhere && !read {
        true => 0.0,
        false => outside.pooled_back(v),
    };
    [out, back]
}

/// What a value's absence costs.
fn price([a, b]: [f64; 2], rerun: f64, [out, back]: [f64; 2]) -> f64 {
    // A weight of zero makes something impossible no cheaper.
    let weighted = |weight: f64, seconds: f64| match seconds.is_finite() {
        true => weight * seconds,
        false => seconds,
    };
    weighted(b, rerun).min(weighted(1.0 - a, out) + weighted(1.0 - b, back))
}

/// The best bound of one row; `None` if no row exceeds the budget. After a cutoff, the best of what was tried.
pub(super) fn best(
    model: &Model,
    outside: &Outside,
    chain: &Chain,
    budget: f64,
    cutoff: Cutoff<'_>,
) -> Option<Step> {
    let gaps = gaps::gaps(model, chain);
    let lack = gaps::lacks(model, chain, &gaps, budget);
    let clock = Clock::new(model, chain);
    let rows = rows(&gaps, &lack);
    let row = |&row: &usize| Row::new(model, outside, chain, &clock, &gaps, (row, lack[row]));
    let mut tried: Vec<(f64, Row)> = Vec::new();
    for at in &rows {
        let mut row = row(at);
        tried.push((row.on_grid(), row));
        if cutoff.reached() {
            break;
        }
    }
    tried.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.at.cmp(&b.1.at)));
    tried.truncate(REFINED);
    let refined = tried.into_iter().map(|(_, row)| row.refined(cutoff));
    refined.reduce(|a, b| if b.seconds > a.seconds { b } else { a })
}

/// The rows to compare, worst first: those that exceed the budget, or of many the worst of each stretch.
fn rows(gaps: &[Gap], lack: &[f64]) -> Vec<usize> {
    let rows: Vec<usize> = (0..lack.len()).filter(|&row| lack[row] > 0.0).collect();
    let most = (MOST_WORK / (GRID.len().pow(2) * gaps.len().max(1))).max(1);
    let length = rows.len().div_ceil(most).max(1);
    let by_lack = |&a: &usize, &b: &usize| lack[a].total_cmp(&lack[b]);
    let worst = |rows: &[usize]| rows.iter().copied().max_by(by_lack);
    let mut rows: Vec<usize> = rows.chunks(length).filter_map(worst).collect();
    rows.sort_by(|a, b| by_lack(b, a));
    rows
}

/// Seconds of compute that certainly run before and after rows.
struct Clock {
    /// By row: seconds of the tasks that run before it in any plan, and of those that run after its
    /// predecessor, itself included.
    before: Vec<f64>,
    from: Vec<f64>,
    total: f64,
}

impl Clock {
    fn new(model: &Model, chain: &Chain) -> Clock {
        let n = chain.tasks.len();
        let (mut before, mut from) = (vec![0.0; n + 2], vec![0.0; n + 2]);
        for t in model.task_ids() {
            let place = chain.place(t);
            before[place.until + usize::from(place.exact)] += model.cost[t];
            from[place.after] += model.cost[t];
        }
        for k in 1..n + 2 {
            before[k] += before[k - 1];
        }
        for k in (0..n).rev() {
            from[k] += from[k + 1];
        }
        Clock {
            before,
            from,
            total: model.base_cost(),
        }
    }

    /// Seconds of compute before a task has ended.
    fn ended(&self, model: &Model, chain: &Chain, t: TaskId) -> f64 {
        let place = chain.place(t);
        let before = match place.after.checked_sub(1) {
            _ if place.exact => self.before[place.until],
            Some(row) => self.before[row] + model.cost[chain.tasks[row]],
            None => 0.0,
        };
        before + model.cost[t]
    }

    /// Seconds of compute from the beginning of a task on.
    fn ahead(&self, model: &Model, chain: &Chain, t: TaskId) -> f64 {
        let place = chain.place(t);
        match chain.tasks.get(place.until) {
            Some(_) if place.exact => self.from[place.until + 1] + model.cost[t],
            Some(&row) => self.from[place.until + 1] + model.cost[row] + model.cost[t],
            None => model.cost[t],
        }
    }
}

/// A value that may be absent at a row.
struct Absent {
    bytes: f64,
    rerun: f64,
    /// Out and back.
    copies: [f64; 2],
    /// Its price per byte with some weights.
    price: f64,
}

/// A row and what may be absent there.
struct Row {
    at: usize,
    lack: f64,
    /// Compute before the row, during it, after it, and on either side.
    compute: [f64; 4],
    /// `e` and `τ`.
    ends: [f64; 2],
    absent: Vec<Absent>,
}

impl Row {
    fn new(
        model: &Model,
        outside: &Outside,
        chain: &Chain,
        clock: &Clock,
        gaps: &[Gap],
        (at, lack): (usize, f64),
    ) -> Row {
        let task = chain.tasks[at];
        let [before, during, after] = [clock.before[at], model.cost[task], clock.from[at + 1]];
        let either = (clock.total - before - during - after).max(0.0);
        let mut ends = [f64::INFINITY; 2];
        let mut absent = Vec::new();
        for gap in gaps.iter().filter(|gap| gap.from <= at && at < gap.to) {
            let v = gap.value;
            let [out, back] = copies(model, outside, chain, gap);
            let readers = model.consumers.of(v).iter().copied();
            let later = readers.filter(|&r| model.has(r) && chain.place(r).after > at);
            if out > 0.0 {
                ends[0] = ends[0].min(clock.ended(model, chain, model.producer[v]));
            }
            if back > 0.0 {
                let ahead = later.map(|r| clock.ahead(model, chain, r));
                ends[1] = ends[1].min(ahead.fold(0.0, f64::max));
            }
            absent.push(Absent {
                bytes: gap.bytes,
                rerun: gap.seconds,
                copies: [out, back],
                price: 0.0,
            });
        }
        Row {
            at,
            lack,
            compute: [before, during, after, either],
            ends: ends.map(|end| if end.is_finite() { end } else { 0.0 }),
            absent,
        }
    }

    /// What these weights prove.
    fn proven(&mut self, [a, b]: [f64; 2]) -> f64 {
        let [before, during, after, either] = self.compute;
        let fixed = during + a * before + b * after + a.min(b) * either;
        let fixed = fixed + (1.0 - a) * self.ends[0] + (1.0 - b) * self.ends[1];
        for absent in &mut self.absent {
            absent.price = price([a, b], absent.rerun, absent.copies) / absent.bytes;
        }
        self.absent
            .sort_unstable_by(|a, b| a.price.total_cmp(&b.price));
        let (mut lack, mut seconds) = (self.lack, 0.0);
        for absent in &self.absent {
            if lack <= 0.0 || !absent.price.is_finite() {
                break;
            }
            seconds += absent.price * absent.bytes.min(lack);
            lack -= absent.bytes;
        }
        fixed + seconds
    }

    fn on_grid(&mut self) -> f64 {
        let weights = GRID.iter().flat_map(|&a| GRID.map(|b| [a, b]));
        weights.fold(0.0, |best, weights| self.proven(weights).max(best))
    }

    /// The bound with the best weights.
    fn refined(mut self, cutoff: Cutoff<'_>) -> Step {
        let mut inner = |a: f64| greatest(|b| self.proven([a, b]), cutoff);
        let (a, _) = greatest(|a| inner(a).1, cutoff);
        let (b, seconds) = inner(a);
        Step {
            seconds,
            row: self.at,
            weights: [a, b],
        }
    }
}

/// Where a concave function is greatest on [0, 1], and its value there, by golden sections. A cutoff ends them
/// early.
fn greatest(mut f: impl FnMut(f64) -> f64, cutoff: Cutoff<'_>) -> (f64, f64) {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    let (mut low, mut high) = (0.0, 1.0);
    let mut best = [0.0, 1.0]
        .map(|x| (x, f(x)))
        .into_iter()
        .fold((0.0, f64::NEG_INFINITY), better);
    let (mut left, mut right) = (1.0 - GOLDEN, GOLDEN);
    let (mut at_left, mut at_right) = (f(left), f(right));
    for _ in 0..STEPS {
        if cutoff.reached() {
            break;
        }
        best = better(better(best, (left, at_left)), (right, at_right));
        if at_left < at_right {
            low = left;
            (left, at_left) = (right, at_right);
            right = low + GOLDEN * (high - low);
            at_right = f(right);
        } else {
            high = right;
            (right, at_right) = (left, at_left);
            left = high - GOLDEN * (high - low);
            at_left = f(left);
        }
    }
    best
}

fn better(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    if b.1 > a.1 { b } else { a }
}
