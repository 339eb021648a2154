//! Repair: brings a sequence under the budget by evicting values where it exceeds it most.
//!
//! To evict a value at a position is to run its producer again just before its next use, so that its
//! bytes are free in between. The new run's inputs must be there: each is either kept longer or made
//! again too, whichever is cheaper at the current price of a byte for one position.

use crate::model::{Model, Task, Value};
use crate::search::driver::Cutoff;
use crate::search::rng::Random;
use crate::search::state::State;

/// Choices of one repair that the annealing varies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taste {
    /// Candidates tried for real at each eviction.
    pub tries: usize,
    /// Scores are multiplied by a random number between 1 and 1 + noise.
    pub noise: f64,
}

/// An eviction that may be worth trying.
#[derive(Clone, Copy, Debug)]
pub(super) enum Eviction {
    /// Run the task again just before the run at this position.
    Rerun { task: Task, before: u32 },
    /// Move the run at `from` to the earlier position `to`.
    Advance { from: u32, to: u32 },
    /// Move the run at `from`, and what depends on it until then, to just before position `to`.
    Postpone { from: u32, to: u32 },
}

/// A rerun before its inputs are priced.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    /// No score after pricing is higher.
    bound: f64,
    relief: f64,
    seconds: f64,
    noise: f64,
    task: Task,
    before: u32,
}

/// Repairs sequences of one problem under one budget.
pub(crate) struct Repairer<'m> {
    model: &'m Model,
    /// Bytes that the values and workspaces may take.
    pub budget: f64,
    /// Whether first runs may change their order.
    pub free: bool,
    /// Seconds that count as nothing.
    epsilon: f64,
    /// Seconds per byte and position over the budget: what the last evictions cost.
    price: f64,
    /// Positions over the budget before each position, and the bytes over it.
    over_count: Vec<f64>,
    over_bytes: Vec<f64>,
    ranked: Vec<Ranked>,
    candidates: Vec<(f64, Eviction)>,
    moves: Vec<(f64, Eviction)>,
    /// Units of work done: a deterministic clock.
    pub work: u64,
    cutoff: Cutoff<'m>,
}

/// How deep producers of producers are run again for one eviction.
const DEPTH: u32 = 60;
/// Most edits of the sequence that one eviction makes.
const EDITS: usize = 300;
/// How many values one estimate looks at.
const VISITS: u32 = 40;
/// Evictions tried beyond the promising ones when none of those helps.
const FALLBACKS: usize = 24;

impl<'m> Repairer<'m> {
    pub fn new(model: &'m Model, budget: f64, free: bool, cutoff: Cutoff<'m>) -> Repairer<'m> {
        let base = model.base_cost();
        Repairer {
            model,
            budget,
            free,
            epsilon: (base / f64::from(model.tasks.max(1)) * 1e-3).max(f64::MIN_POSITIVE),
            price: 0.0,
            over_count: Vec::new(),
            over_bytes: Vec::new(),
            ranked: Vec::new(),
            candidates: Vec::new(),
            moves: Vec::new(),
            work: 0,
            cutoff,
        }
    }

    /// Bytes times positions over the budget.
    pub fn excess(&self, state: &State<'_>) -> f64 {
        state
            .mem()
            .iter()
            .map(|&m| (m - self.budget).max(0.0))
            .sum()
    }

    /// Whether the sequence stays under the budget.
    pub fn fits(&self, state: &State<'_>) -> bool {
        state.peak() <= self.budget
    }

    /// Seconds that a recomputation of the sequence takes on average, or a task if there is none.
    pub fn mean_cost(&self, state: &State<'_>) -> f64 {
        let base = self.model.base_cost();
        let extra = state.len() as f64 - f64::from(self.model.tasks) - 2.0;
        if extra > 0.0 && state.cost() > base {
            (state.cost() - base) / extra
        } else {
            base / f64::from(self.model.tasks.max(1))
        }
    }

    /// Evicts until the sequence fits, costs `limit` or more, or nothing helps. Says whether it fits.
    pub fn repair(
        &mut self,
        state: &mut State<'m>,
        taste: Taste,
        limit: f64,
        rng: &mut Random,
    ) -> bool {
        let mut steps = 4 * state.len() + 100;
        loop {
            let (peak, bytes) = worst(state.mem());
            if bytes <= self.budget {
                return true;
            }
            if steps == 0 || state.cost() >= limit || self.cutoff.reached() {
                return false;
            }
            steps -= 1;
            if !self.evict_at(state, peak, taste, rng) {
                return false;
            }
        }
    }

    fn survey(&mut self, state: &State<'_>) {
        self.over_count.clear();
        self.over_bytes.clear();
        let (mut count, mut bytes) = (0.0, 0.0);
        for &m in state.mem() {
            self.over_count.push(count);
            self.over_bytes.push(bytes);
            let over = (m - self.budget).max(0.0);
            count += if over > 0.0 { 1.0 } else { 0.0 };
            bytes += over;
        }
        self.over_count.push(count);
        self.over_bytes.push(bytes);
        self.work += state.len() as u64 / 8;
    }

    /// Positions over the budget in `[from, to)`.
    #[inline]
    pub(super) fn crowded(&self, from: u32, to: u32) -> f64 {
        if to <= from {
            return 0.0;
        }
        let last = self.over_count.len() - 1;
        self.over_count[(to as usize).min(last)] - self.over_count[(from as usize).min(last)]
    }

    /// What taking `bytes` away from `[from, to)` takes off the excess, at most.
    #[inline]
    pub(super) fn relief(&self, bytes: f64, from: u32, to: u32) -> f64 {
        if to <= from {
            return 0.0;
        }
        let last = self.over_count.len() - 1;
        let over =
            self.over_bytes[(to as usize).min(last)] - self.over_bytes[(from as usize).min(last)];
        over.min(bytes * self.crowded(from, to))
    }

    /// Applies the best eviction at a position; false if none takes anything off the excess.
    fn evict_at(
        &mut self,
        state: &mut State<'m>,
        peak: u32,
        taste: Taste,
        rng: &mut Random,
    ) -> bool {
        self.survey(state);
        self.rank(state, peak, taste, rng);
        let price = self.price;
        // Where nothing helps at the usual price, bytes are dearer: more is made again.
        for dearer in [1.0, 10.0, 1000.0] {
            self.price = price.max(self.epsilon / self.budget.max(1.0)) * dearer;
            self.estimate(state, taste.tries);
            if let Some((eviction, paid)) = self.best_candidate(state, taste, rng) {
                let done = self.apply(state, eviction);
                debug_assert!(done, "what could be applied can be applied again");
                self.price = price;
                if paid > 0.0 {
                    self.price = if price == 0.0 {
                        paid
                    } else {
                        0.9 * price + 0.1 * paid
                    };
                }
                return done;
            }
        }
        self.price = price;
        false
    }

    /// Tries the most promising moves and reruns for real; the best one and its seconds per byte and
    /// position taken off the excess.
    fn best_candidate(
        &mut self,
        state: &mut State<'m>,
        taste: Taste,
        rng: &mut Random,
    ) -> Option<(Eviction, f64)> {
        let before = self.over_bytes[self.over_bytes.len() - 1];
        let cost = state.cost();
        let mut best: Option<(f64, Eviction, f64)> = None;
        for moves in [true, false] {
            let list = if moves {
                &mut self.moves
            } else {
                &mut self.candidates
            };
            list.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
            let most = if moves {
                taste.tries + 4
            } else {
                taste.tries + FALLBACKS
            };
            for k in 0..list.len().min(most) {
                if !moves && k >= taste.tries && best.is_some() {
                    break;
                }
                let list = if moves { &self.moves } else { &self.candidates };
                let eviction = list[k].1;
                self.work += state.len() as u64 / 4 + 50;
                let mark = state.mark();
                if self.apply(state, eviction) {
                    let gain = before - self.excess(state);
                    if gain > 0.0 {
                        let added = state.cost() - cost;
                        let score = if added > -0.5 * self.epsilon {
                            gain / (added + self.epsilon)
                        } else {
                            gain / self.epsilon * (2.0 - added / self.epsilon)
                        };
                        let score = score * (1.0 + taste.noise * rng.unit());
                        if best.is_none_or(|b| score > b.0) {
                            best = Some((score, eviction, added / gain));
                        }
                    }
                }
                state.undo_to(mark);
            }
        }
        best.map(|(_, eviction, paid)| (eviction, paid))
    }

    /// Lists what could be evicted at a position, with scores that ignore what the new runs' inputs take.
    fn rank(&mut self, state: &State<'m>, peak: u32, taste: Taste, rng: &mut Random) {
        let m = self.model;
        self.ranked.clear();
        self.moves.clear();
        if self.free {
            self.gather_postponed(state, m, peak, taste.noise, rng);
        }
        self.work += m.bytes.len() as u64 / 2;
        for v in 0..m.bytes.len() as Value {
            let bytes = m.bytes[v as usize];
            let t = m.producer[v as usize];
            if bytes <= 0.0 {
                continue;
            }
            let next = state.next_use(v, peak);
            if next as usize >= state.len() || next == peak {
                continue;
            }
            let Some(start) = state.latest(t, peak + 1) else {
                continue;
            };
            if start == peak || state.next_run(t, peak) < next {
                continue;
            }
            if m.rerunnable[t as usize] {
                let last = state.last_use(v, start, peak);
                let moves = last == start
                    && (self.free || state.runs(t)[0] != state.run_at(start))
                    && state.serves_only_from(start, next);
                let relief = self.relief(bytes, last + 1, next);
                let seconds = if moves { 0.0 } else { m.cost[t as usize] } + self.epsilon;
                let noise = 1.0 + taste.noise * rng.unit();
                let bound = relief / seconds * noise;
                if relief > 0.0 {
                    self.ranked.push(Ranked {
                        bound,
                        relief,
                        seconds,
                        noise,
                        task: t,
                        before: next,
                    });
                }
            }
            if self.free {
                self.gather_advance(state, v, peak, next, taste, rng);
            }
        }
        self.ranked
            .sort_unstable_by(|a, b| b.bound.total_cmp(&a.bound));
    }

    /// Prices the inputs of the ranked evictions until `enough` are better than the rest can be.
    fn estimate(&mut self, state: &State<'m>, enough: usize) {
        let mut kept: Vec<f64> = Vec::with_capacity(enough + 1);
        self.candidates.clear();
        for k in 0..self.ranked.len() {
            let r = self.ranked[k];
            let eviction = Eviction::Rerun {
                task: r.task,
                before: r.before,
            };
            // Those that aren't priced, or seem useless, are tried only when the others fail.
            let mut score = r.bound * 1e-9;
            if kept.len() < enough || r.bound > kept[enough - 1] {
                let mut visits = VISITS;
                let (seconds, area) =
                    self.inputs_price(state, r.task, r.before, &mut visits, r.relief);
                self.work += 10 + u64::from(VISITS - visits);
                let net = r.relief - area;
                if net > 0.0 {
                    score = net / (seconds + r.seconds) * r.noise;
                    let at = kept.partition_point(|&x| x >= score);
                    kept.insert(at, score);
                    kept.truncate(enough);
                }
            }
            self.candidates.push((score, eviction));
        }
    }

    /// The move of the last use of `v` to before the peak, if its other inputs are there by then.
    fn gather_advance(
        &mut self,
        state: &State<'m>,
        v: Value,
        peak: u32,
        next: u32,
        taste: Taste,
        rng: &mut Random,
    ) {
        let m = self.model;
        let t = state.task_of(state.run_at(next));
        if t >= m.tasks || state.needed_from(v, next + 1) {
            return;
        }
        let mut to = 0;
        for i in m.inputs.of(t) {
            let Some(start) = state.latest(m.producer[i.value as usize], next) else {
                return;
            };
            to = to.max(start + 1);
        }
        if to > peak || state.latest(t, next).is_some_and(|p| p >= to) {
            return;
        }
        let (mut freed, mut area) = (0.0, 0.0);
        for i in m.inputs.of(t) {
            if !state.needed_from(i.value, next + 1) {
                let start = state
                    .latest(m.producer[i.value as usize], next)
                    .unwrap_or(to);
                let last = state.last_use(i.value, start, next).max(to);
                freed += self.relief(m.bytes[i.value as usize], last + 1, next + 1);
            }
        }
        for &o in m.outputs.of(t) {
            area += m.bytes[o as usize] * self.crowded(to, next);
        }
        let net = freed - area;
        if net > 0.0 {
            let score = net / self.epsilon * (1.0 + taste.noise * rng.unit());
            self.candidates
                .push((score, Eviction::Advance { from: next, to }));
        }
    }

    /// Adds a candidate that costs no seconds and takes `net` bytes × positions off the excess.
    pub(super) fn offer(&mut self, net: f64, eviction: Eviction) {
        self.moves.push((net, eviction));
    }

    /// Seconds and bytes × positions that having the inputs of `t` at `p` takes. Stops where the area
    /// exceeds `limit`; after `visits` values the rest is kept.
    fn inputs_price(
        &self,
        state: &State<'m>,
        t: Task,
        p: u32,
        visits: &mut u32,
        limit: f64,
    ) -> (f64, f64) {
        let (mut seconds, mut area) = (0.0, 0.0);
        for i in self.model.inputs.of(t) {
            let (s, a) = self.input_price(state, i.value, p, visits, limit - area);
            seconds += s;
            area += a;
            if area > limit {
                break;
            }
        }
        (seconds, area)
    }

    /// The cheaper of keeping a value until `p` and making it again there.
    fn input_price(
        &self,
        state: &State<'m>,
        v: Value,
        p: u32,
        visits: &mut u32,
        limit: f64,
    ) -> (f64, f64) {
        let m = self.model;
        let t = m.producer[v as usize];
        let keep = match state.available(v, p) {
            Some(_) if state.needed_from(v, p) => return (0.0, 0.0),
            Some((_, last)) => m.bytes[v as usize] * self.crowded(last + 1, p + 1),
            None => f64::INFINITY,
        };
        let kept = keep * self.price;
        let cost = m.cost[t as usize];
        if keep == 0.0 || kept <= cost || *visits == 0 || !m.rerunnable[t as usize] {
            return (0.0, keep);
        }
        *visits -= 1;
        let (s, a) = self.inputs_price(state, t, p, visits, limit.min(keep));
        if kept <= s + cost + a * self.price {
            (0.0, keep)
        } else {
            (s + cost, a)
        }
    }

    /// Tries an eviction; false if it can't be done, and then the caller undoes what it left.
    fn apply(&self, state: &mut State<'m>, eviction: Eviction) -> bool {
        match eviction {
            Eviction::Rerun { task, before } => {
                let anchor = state.run_at(before);
                let until = state.mark() + EDITS;
                let ok = self.rerun(state, task, anchor, DEPTH, until);
                if ok {
                    self.drop_useless(state, task);
                }
                ok
            }
            Eviction::Postpone { from, to } => self.postpone(state, self.model, from, to),
            Eviction::Advance { from, to } => {
                let run = state.run_at(from);
                let task = state.task_of(run);
                state.remove(run);
                let ok = state.can_insert(task, to);
                if ok {
                    state.insert(task, to);
                }
                ok
            }
        }
    }

    /// Runs `t` just before the run `anchor`, with whatever inputs must be made again before it.
    fn rerun(&self, state: &mut State<'m>, t: Task, anchor: u32, depth: u32, until: usize) -> bool {
        let m = self.model;
        if !m.rerunnable[t as usize] || state.mark() > until {
            return false;
        }
        for i in m.inputs.of(t) {
            let p = state.pos(anchor);
            let again = match state.available(i.value, p) {
                None => true,
                Some(_) if depth == 0 || state.needed_from(i.value, p) => false,
                Some((_, last)) => {
                    let keep =
                        m.bytes[i.value as usize] * self.crowded(last + 1, p + 1) * self.price;
                    let make = m.producer[i.value as usize];
                    keep > m.cost[make as usize] && m.rerunnable[make as usize] && {
                        let mut visits = VISITS;
                        let (s, a) = self.inputs_price(state, make, p, &mut visits, f64::INFINITY);
                        keep > m.cost[make as usize] + s + a * self.price
                    }
                }
            };
            if again
                && (depth == 0
                    || !self.rerun(
                        state,
                        m.producer[i.value as usize],
                        anchor,
                        depth - 1,
                        until,
                    ))
            {
                return false;
            }
        }
        let p = state.pos(anchor);
        if !state.can_insert(t, p) {
            return false;
        }
        let run = state.insert(t, p);
        self.merge_next(state, t, state.pos(run));
        true
    }

    /// Removes the next run of `t` after the one at `p` if keeping the value until then is cheaper.
    /// Values on their way to being overwritten are left alone: each such use needs its own run.
    fn merge_next(&self, state: &mut State<'m>, t: Task, p: u32) {
        let m = self.model;
        let next = state.next_run(t, p + 1);
        let passing = m.outputs.of(t).iter().any(|&v| {
            let by = m.overwriter[v as usize];
            by < m.tasks && m.rerunnable[by as usize]
        });
        if passing || next as usize >= state.len() {
            return;
        }
        let again = state.run_at(next);
        if (!self.free && state.runs(t)[0] == again) || !state.can_remove(again) {
            return;
        }
        let mut area = 0.0;
        for &v in m.outputs.of(t) {
            if state.needed_from(v, next + 1) {
                let last = state.last_use(v, p, next);
                area += m.bytes[v as usize] * self.crowded(last + 1, next);
            }
        }
        if area * self.price <= m.cost[t as usize] {
            state.remove(again);
        }
    }

    /// Removes runs of a task that serve no use, and then those of its inputs' producers.
    pub fn drop_useless(&self, state: &mut State<'m>, t: Task) {
        let m = self.model;
        let mut k = state.runs(t).len();
        while k > 0 {
            k -= 1;
            if state.runs(t).len() < 2 {
                return;
            }
            let run = state.runs(t)[k];
            if (k > 0 || self.free) && state.serves_nothing(run) {
                state.remove(run);
                for i in m.inputs.of(t) {
                    let make = m.producer[i.value as usize];
                    if make < m.tasks {
                        self.drop_useless(state, make);
                    }
                }
            }
        }
    }
}

/// The position with the most bytes in use, and how many; the first of several.
fn worst(mem: &[f64]) -> (u32, f64) {
    let most = mem.iter().fold(f64::MIN, |a, &m| a.max(m));
    let at = mem.iter().position(|&m| m == most).unwrap_or(0);
    (at as u32, most)
}
