//! The ascent to good prices of the stay program, which adds rows to the program as it goes.

use super::gaps;
use super::integer::Integer;
use super::moments::Moments;
use super::order::Chain;
use super::stays::{Answer, Prices, Stays};
use super::step;
use cranelift_entity::PrimaryMap;
use scrimp_plan::{TaskId, ValueId};

use crate::cutoff::Cutoff;
use crate::divisor;
use crate::method::Order;
use crate::model::Model;

/// Steps of the gap program's ascent.
const GAP_STEPS: usize = 2500;
/// Rows at the start, rows at most, and rows added at a time.
const FIRST_ROWS: usize = 12;
const MOST_ROWS: usize = 28;
const MORE_ROWS: usize = 3;
/// The most prices of rules; each takes eight bytes, and there are two sets of them.
const MOST_PRICES: usize = 10_000_000;
/// Steps without progress after which the step is shortened, and the factor by which it shrinks; and the
/// factor by which it grows after a step in a good direction.
const PATIENCE: u32 = 20;
const SHORTER: f64 = 0.7;
const LONGER: f64 = 1.1;
/// The share of the newest slopes in their mean at first, the factor by which it shrinks together with the
/// step, and the least.
const NEWEST: f64 = 0.2;
const STEADIER: f64 = 0.8;
const LEAST_NEWEST: f64 = 0.002;
/// The step's first length, as a share of Polyak's, and the length at which the ascent has converged.
const FIRST_STEP: f64 = 0.3;
const MOST_STEP: f64 = 2.0;
const LAST_STEP: f64 = 2e-4;
const RESTARTS: u32 = 3;
/// The least growth that counts as progress, as a share of the distance to the known plan.
const PROGRESS: f64 = 1e-5;
/// A byte's weight against a rule's in the direction of a step, with bytes in units of the mean value.
const WEIGHT: f64 = 10.0;
/// Every `SAMPLE` steps the bytes in use at all rows of the chain are sampled, and enter the mean with this
/// share.
const SAMPLE: u64 = 8;
const SAMPLE_SHARE: f64 = 0.1;
/// Rows are added as long as the last ones gained this share of the distance to the known plan.
const GAIN: f64 = 0.005;
/// Floating-point operations per unit of work, so that a unit takes about as long as a unit of the search.
pub(super) const PER_UNIT: u64 = 4;

/// A lower bound on the seconds that a budget adds, which grows with the work put into it.
pub(crate) struct Ascent<'m> {
    model: &'m Model,
    chain: Chain,
    budget: f64,
    rows: Vec<usize>,
    program: Stays<'m>,
    prices: Prices,
    best: Best,
    answer: Answer,
    mean: Mean,
    scale: f64,
    /// The share of the newest slopes in their mean.
    newest: f64,
    idle: u32,
    /// How often the step may become long again when no row is worth adding.
    restarts: u32,
    steps: u64,
    /// Mean bytes over the budget at every row of the chain, from the samples so far.
    excess: Vec<f64>,
    /// The bound when rows were last added.
    before: f64,
    converged: bool,
    /// A number of seconds of which all costs are whole multiples; zero if there is none.
    whole: f64,
    /// The weight of a squared byte against a rule.
    unit: f64,
    /// What single moments prove; none with other memories.
    moments: Option<Moments>,
    proven: f64,
}

/// The best prices so far.
struct Best {
    prices: Prices,
    value: f64,
}

/// The mean of the slopes of the Lagrangian at the prices tried so far; newer ones weigh more. It describes a
/// mixture of stays that nearly obeys the rules.
pub(super) struct Mean {
    pub of_row: Vec<f64>,
    /// By rule, row and block like [`Prices::of_rule`].
    pub of_rule: Vec<f64>,
    /// Like [`Prices::shares`].
    pub of_share: Vec<f64>,
    /// By rule and row: whether the rule was ever violated or priced there. The others' means aren't needed.
    pub live: Vec<bool>,
    pub empty: bool,
}

impl Mean {
    /// No slopes yet; a step is to start from these prices.
    fn new(prices: &Prices) -> Mean {
        Mean {
            of_row: vec![0.0; prices.of_row.len()],
            of_rule: vec![0.0; prices.of_rule.len()],
            of_share: vec![0.0; prices.shares.len()],
            live: prices.positive.clone(),
            empty: true,
        }
    }
}

impl<'m> Ascent<'m> {
    /// `known` is the number of seconds that a known plan adds.
    pub(super) fn new(
        model: &'m Model,
        chain: Chain,
        budget: f64,
        known: f64,
        cutoff: Cutoff<'_>,
    ) -> Ascent<'m> {
        let outside = model.outside.as_ref();
        let step = outside.and_then(|outside| step::best(model, outside, &chain, budget, cutoff));
        let gaps = gaps::prices(
            model,
            &chain,
            budget,
            known,
            (GAP_STEPS, cutoff),
            step.as_ref(),
        );
        let rules: usize = model
            .task_ids()
            .map(|t| model.inputs.of(t).len() * model.outputs.of(t).len())
            .sum();
        let (mut rows, mut of_row) = first_rows(&gaps.of_row, affordable(rules));
        if let Some(step) = &step
            && let Err(at) = rows.binary_search(&step.row)
        {
            rows.insert(at, step.row);
            of_row.insert(at, 0.0);
        }
        let program = Stays::new(model, &chain, &rows, budget);
        let best = step.as_ref().map(|step| (step.row, step.weights));
        let prices = program.prices(of_row, program.shares(best));
        let sizes = program.stays.values().map(|s| s.bytes).filter(|&b| b > 0.0);
        let (count, sum) = sizes.fold((0.0, 0.0), |(c, s), b| (c + 1.0, s + b));
        Ascent {
            answer: program.answer(),
            mean: Mean::new(&prices),
            best: Best {
                prices: prices.clone(),
                value: f64::NEG_INFINITY,
            },
            converged: rows.is_empty() && outside.is_none(),
            rows,
            program,
            prices,
            scale: FIRST_STEP,
            newest: NEWEST,
            idle: 0,
            restarts: RESTARTS,
            steps: 0,
            excess: vec![0.0; chain.tasks.len()],
            before: f64::NEG_INFINITY,
            unit: WEIGHT / (sum / f64::max(count, 1.0)).powi(2).max(1e-300),
            proven: match (&step, outside) {
                (Some(step), _) => step.seconds - model.base_cost(),
                (None, Some(_)) => 0.0,
                (None, None) => gaps.added,
            },
            whole: match outside {
                Some(_) => 0.0,
                None => common_divisor(model.cost.values()),
            },
            model,
            chain,
            budget,
            moments: None,
        }
    }

    /// The same, beside what single moments prove.
    pub(super) fn beside(self, order: Order, held: &PrimaryMap<TaskId, f64>) -> Ascent<'m> {
        Ascent {
            moments: Some(Moments::new(self.model, order, held, self.whole)),
            ..self
        }
    }

    /// A proven lower bound on the seconds of every plan.
    pub fn proven(&self) -> f64 {
        let base = self.model.base_cost();
        // The sums' rounding errors are far below this.
        let added = (self.proven - 1e-9 * base).max(0.0);
        if self.whole > 0.0 {
            base + (added / self.whole - 1e-6).ceil().max(0.0) * self.whole
        } else {
            base + added
        }
    }

    /// Works on the bound for about `work` units, until the bound meets what a known plan adds, or until
    /// `stop`. Single moments have the work that the program leaves. Returns the work left over.
    pub fn advance(&mut self, work: u64, known: f64, stop: &dyn Fn() -> bool) -> u64 {
        let mut left = work;
        let met = self.model.base_cost() + known * (1.0 - 1e-9);
        while !self.converged && self.proven() < met && !stop() {
            let cost = self.program.work();
            if left < cost {
                return 0;
            }
            left -= cost;
            self.step(known);
        }
        match self.converged {
            true => self.at_moments(left, known, stop),
            false => left,
        }
    }

    /// Works on single moments, as [`Ascent::advance`] does on the program. Their prices steer no search.
    pub fn at_moments(&mut self, work: u64, known: f64, stop: &dyn Fn() -> bool) -> u64 {
        let Some(moments) = &mut self.moments else {
            return work;
        };
        let proven = (known, self.proven);
        let left = moments.advance((self.model, self.budget), work, proven, stop);
        self.proven = self.proven.max(moments.proven);
        left
    }

    /// The sequence of the choices that fit best at the moment that proves most, if they are new. It may exceed the budget
    /// elsewhere.
    pub fn start(&mut self) -> Option<Vec<TaskId>> {
        self.moments.as_mut()?.start(self.model)
    }

    fn step(&mut self, known: f64) {
        let value = self.program.evaluate(&self.prices, &mut self.answer);
        self.steps += 1;
        self.proven = self.proven.max(value);
        if self.steps.is_multiple_of(SAMPLE) {
            self.program
                .sample(
                    self.model,
                    &self.chain,
                    &self.rows,
                    self.budget,
                    &self.answer,
                )
                .iter()
                .zip(&mut self.excess)
                .for_each(|(now, mean)| *mean += SAMPLE_SHARE * (now - *mean));
        }
        let newest = if self.mean.empty { 1.0 } else { self.newest };
        let ahead = self
            .program
            .join(&mut self.mean, &self.answer, newest, self.unit);
        if value > self.best.value {
            let progress = PROGRESS * (known - self.best.value);
            self.idle = if value > self.best.value + progress || self.best.value.is_infinite() {
                0
            } else {
                self.idle + 1
            };
            if ahead {
                self.scale = (self.scale * LONGER).min(MOST_STEP);
            }
            self.best.value = value;
            self.best.prices.clone_from(&self.prices);
        } else {
            self.idle += 1;
        }
        if self.idle >= PATIENCE {
            self.scale *= SHORTER;
            self.newest = (self.newest * STEADIER).max(LEAST_NEWEST);
            self.idle = 0;
            self.prices.clone_from(&self.best.prices);
            if self.scale < LAST_STEP {
                if self.add_rows(known) {
                    return;
                }
                self.converged = self.restarts == 0;
                self.restarts = self.restarts.saturating_sub(1);
                (self.scale, self.newest) = (FIRST_STEP, NEWEST);
            }
        }
        let gain = self.scale * (known - value);
        let moved = self
            .program
            .climb(&mut self.prices, &self.mean, self.unit, gain);
        self.converged |= !moved;
    }

    /// Adds the rows that exceed the budget by most; returns false if none is worth adding.
    fn add_rows(&mut self, known: f64) -> bool {
        let missing = known - self.best.value;
        let gained = self.best.value - self.before;
        let count = self.rows.len();
        let most = MOST_ROWS.min(affordable(self.program.rules.len()));
        if count >= most || gained < GAIN * missing {
            return false;
        }
        self.before = self.best.value;
        let mut worst: Vec<(f64, usize)> = Vec::new();
        let mut from = 0;
        for &row in self.rows.iter().chain([&self.chain.tasks.len()]) {
            let inner = (from..row).map(|r| (self.excess[r], r));
            if let Some(most) = inner.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))) {
                worst.push(most);
            }
            from = row + 1;
        }
        worst.retain(|w| w.0 > 1e-3 * self.budget);
        worst.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        worst.truncate(MORE_ROWS.min(most - count));
        if worst.is_empty() {
            return false;
        }
        let mut rows = self.rows.clone();
        rows.extend(worst.iter().map(|w| w.1));
        rows.sort_unstable();
        let program = Stays::new(self.model, &self.chain, &rows, self.budget);
        self.prices = carry(
            &self.best.prices,
            (&self.program, &self.rows),
            (&program, &rows),
        );
        self.best.prices = self.prices.clone();
        self.answer = program.answer();
        self.mean = Mean::new(&self.prices);
        (self.rows, self.program) = (rows, program);
        (self.scale, self.newest) = (FIRST_STEP / 3.0, NEWEST);
        true
    }

    /// The stay program in whole numbers, with those reruns only that are worth it.
    pub fn integer(&self, worthwhile: &Worthwhile) -> Integer {
        Integer::new(self.model, &self.program, worthwhile, self.budget)
    }

    /// Where a rerun can be part of a plan that takes less than `cost` seconds in all.
    pub fn worthwhile(&self, cost: f64) -> Worthwhile {
        let growth = self.growth(cost);
        let worth = |of: &Vec<f64>| {
            let worth = |&by: &f64| self.rows.is_empty() || by < growth.slack;
            of.iter().map(worth).collect()
        };
        Worthwhile {
            blocks: growth.blocks.values().map(worth).collect(),
            rows: growth.rows,
        }
    }

    /// By how much reruns raise the bound, and how far it is from a plan that takes `cost` seconds in all.
    pub fn growth(&self, cost: f64) -> Growth {
        let of_value = match self.rows.is_empty() {
            true => PrimaryMap::new(),
            false => self.program.growth(&self.best.prices),
        };
        let growth = |t: TaskId, block: usize| {
            let outputs = self.model.outputs.of(t).iter();
            let of = |v: &ValueId| of_value.get(*v).map_or(0.0, |g: &Vec<f64>| g[block]);
            outputs.map(of).sum()
        };
        let blocks = |t: TaskId| (0..=self.rows.len()).map(|b| growth(t, b)).collect();
        Growth {
            rows: self.rows.iter().map(|&r| self.chain.tasks[r]).collect(),
            blocks: self.model.task_ids().map(blocks).collect(),
            slack: cost * (1.0 + 1e-9) - self.model.base_cost() - self.best.value,
        }
    }
}

/// By task and block between the first runs of some tasks, the seconds by which a rerun raises the bound.
pub(crate) struct Growth {
    pub rows: Vec<TaskId>,
    pub blocks: PrimaryMap<TaskId, Vec<f64>>,
    /// The seconds between the bound and a known plan.
    pub slack: f64,
}

/// By task and block between the first runs of some tasks, whether a rerun is worth it.
pub(crate) struct Worthwhile {
    rows: Vec<TaskId>,
    pub(super) blocks: PrimaryMap<TaskId, Vec<bool>>,
}

impl Worthwhile {
    /// Whether a rerun of `task` between the first runs of tasks `stage - 1` and `stage` of a fixed order is
    /// worth it.
    pub fn before(&self, task: TaskId, stage: TaskId) -> bool {
        self.blocks[task][self.block(stage)]
    }

    /// The block between the first runs of tasks `stage - 1` and `stage`.
    pub fn block(&self, stage: TaskId) -> usize {
        self.rows.partition_point(|&row| row < stage)
    }

    /// Only these reruns, given as tasks and blocks.
    pub fn only(&self, reruns: impl IntoIterator<Item = (TaskId, usize)>) -> Worthwhile {
        let none = |(_, blocks): (_, &Vec<bool>)| vec![false; blocks.len()];
        let mut only = Worthwhile {
            rows: self.rows.clone(),
            blocks: self.blocks.iter().map(none).collect(),
        };
        for (task, block) in reruns {
            only.blocks[task][block] = true;
        }
        only
    }
}

/// The most rows that a program with this many rules may have.
fn affordable(rules: usize) -> usize {
    (MOST_PRICES / rules.max(1)).isqrt().max(2) - 1
}

/// The greatest common divisor of all costs if they are whole numbers.
fn common_divisor<'c>(costs: impl Iterator<Item = &'c f64> + Clone) -> f64 {
    const EXACT: f64 = (1u64 << 52) as f64;
    if costs.clone().any(|&c| c.fract() != 0.0 || c >= EXACT) {
        return 0.0;
    }
    divisor::common(costs.map(|&c| c as u64)) as f64
}

/// Up to [`FIRST_ROWS`] rows with about equal shares of the prices, and their prices.
fn first_rows(prices: &[f64], most: usize) -> (Vec<usize>, Vec<f64>) {
    let share = prices.iter().sum::<f64>() / FIRST_ROWS.min(most) as f64;
    let (mut rows, mut of_row) = (Vec::new(), Vec::new());
    let (mut sum, mut top) = (0.0, 0);
    for (k, &price) in prices.iter().enumerate() {
        if price > prices[top] || sum <= 0.0 {
            top = k;
        }
        sum += price;
        if sum > share || (k + 1 == prices.len() && sum > 0.0) {
            rows.push(top);
            of_row.push(sum);
            sum = 0.0;
        }
    }
    (rows, of_row)
}

/// The same prices for a program with more rows; the Lagrangian stays the same.
fn carry(
    prices: &Prices,
    (before, rows): (&Stays<'_>, &[usize]),
    (program, more): (&Stays<'_>, &[usize]),
) -> Prices {
    let (t, s) = (rows.len(), more.len());
    let at = |k: usize| {
        rows.get(k)
            .map_or(s, |row| more.partition_point(|r| r < row))
    };
    let mut of_row = vec![0.0; s];
    for k in 0..t {
        of_row[at(k)] = prices.of_row[k];
    }
    let shares = match (&before.copies, &program.copies) {
        (Some(before), Some(now)) => before.lanes.carried(&prices.shares, &now.lanes),
        _ => Vec::new(),
    };
    let mut carried = program.prices(of_row, shares);
    for rule in 0..program.rules.len() {
        for k in (0..t).filter(|k| prices.positive[rule * t + k]) {
            let to = rule * s + at(k);
            carried.positive[to] = true;
            for e in k + 1..=t {
                carried.of_rule[to * (s + 1) + at(e)] =
                    prices.of_rule[(rule * t + k) * (t + 1) + e];
            }
        }
    }
    carried
}
