//! The evictions that may help at a position, with estimates of what they cost and bring.

use scrimp_plan::ValueId;

use super::{EARLY, Eviction, LOOK, Repairer, Taste};
use crate::ids::{Position, Run};
use crate::random::Random;
use crate::search::price::{Limit, Pricing};
use crate::search::state::{Idle, State};

/// The best scores so far, while evictions are priced.
#[derive(Debug, Default)]
struct Found {
    enough: usize,
    /// At most `enough` scores, best first.
    scores: Vec<f64>,
    scanned: u64,
    pricing: Pricing,
}

impl Found {
    /// The score that others must exceed to matter.
    fn least(&self) -> f64 {
        if self.scores.len() < self.enough {
            0.0
        } else {
            self.scores[self.enough - 1]
        }
    }

    fn add(&mut self, score: f64) {
        let at = self.scores.partition_point(|&x| x >= score);
        self.scores.insert(at, score);
        self.scores.truncate(self.enough);
    }
}

impl<'m> Repairer<'m> {
    /// Gathers moves that cost nothing. If the order is free, these move groups of runs to later positions,
    /// readers to earlier ones, and runs that nothing uses yet to where they are used.
    pub(super) fn gather_moves(
        &mut self,
        state: &State<'m>,
        peak: Position,
        taste: Taste,
        rng: &mut Random,
    ) {
        let m = self.model;
        self.moves.clear();
        self.idle.clear();
        if !self.free {
            return;
        }
        self.gather_postponed(state, m, peak, taste.noise, rng);
        self.work += m.bytes.len() as u64 / 2;
        for v in m.value_ids() {
            if m.bytes[v] <= 0.0 {
                continue;
            }
            if let Some(idle) = state.idle_across(v, peak) {
                if self.moves_along(state, v, idle) {
                    self.idle.push((v, idle));
                }
                self.gather_advance(state, v, peak, idle.next, taste, rng);
            }
        }
    }

    /// Whether the run that wrote a value can run later instead of again.
    fn moves_along(&self, state: &State<'m>, v: ValueId, idle: Idle) -> bool {
        let t = self.model.producer[v];
        idle.last == idle.start
            && self.model.rerunnable[t]
            && state.task_of(state.run_at(idle.start)) == t
            && self.may_move(state, state.run_at(idle.start))
            && state.serves_only_from(idle.start, idle.next)
    }

    /// Whether a run may be at a later position instead.
    fn may_move(&self, state: &State<'m>, r: Run) -> bool {
        let t = state.task_of(r);
        state.runs(t)[0] != r || self.free && !state.is_sent(t)
    }

    /// Prices the evictions at a position until `enough` of them are better than the rest can be. Those that
    /// aren't priced or seem useless are candidates only if the others fail. Returns the lowest score of the best ones.
    pub(super) fn estimate(
        &mut self,
        state: &State<'m>,
        peak: Position,
        taste: Taste,
        rng: &mut Random,
    ) -> f64 {
        let m = self.model;
        self.candidates.clear();
        let mut found = Found {
            enough: taste.tries.max(self.batch),
            ..Found::default()
        };
        for k in 0..self.idle.len() {
            let (v, idle) = self.idle[k];
            self.consider(state, v, idle, true, taste, &mut found, rng);
        }
        let all = self.over_count.len() - 1;
        let (crowded, over) = (self.over_count[all], self.over_bytes[all]);
        for k in 0..self.dense.len() {
            let (most, v) = self.dense[k];
            let (highest, least) = (1.0 + taste.noise, found.least());
            if most * crowded * highest <= least {
                break;
            }
            let cost = m.cost[m.producer[v]] + self.epsilon;
            if over / cost * highest <= least {
                continue;
            }
            found.scanned += 1;
            if let Some(idle) = state.idle_across(v, peak) {
                let moves = self.moves_along(state, v, idle);
                if !(moves && self.free) {
                    self.consider(state, v, idle, moves, taste, &mut found, rng);
                }
            }
        }
        self.work += found.scanned / 2;
        if !m.copies.none() {
            self.estimate_fetches(state, peak, taste, rng);
        }
        found.scores.last().copied().unwrap_or(f64::INFINITY)
    }

    /// Prices the evictions that send a value away and bring it back.
    fn estimate_fetches(
        &mut self,
        state: &State<'m>,
        peak: Position,
        taste: Taste,
        rng: &mut Random,
    ) {
        let m = self.model;
        self.work += m.bytes.len() as u64 / 2;
        for v in m.value_ids().filter(|&v| m.copies.may_move(v)) {
            let Some(idle) = state.idle_across(v, peak) else {
                continue;
            };
            let Some((bring, seconds)) = self.fetch(state, v, idle.next) else {
                continue;
            };
            let relief = self.relief(m.bytes[v], idle.last + 1, idle.next);
            // A copy back that nothing uses yet moves along.
            let moves = idle.last == idle.start
                && m.copies
                    .brought(state.task_of(state.run_at(idle.start)))
                    .is_some();
            let own = if moves { 0.0 } else { seconds } + self.epsilon;
            if relief > 0.0 {
                let score = relief / own * (1.0 + taste.noise * rng.unit());
                let before = idle.next;
                self.candidates.push((
                    score,
                    Eviction::Fetch {
                        value: v,
                        bring,
                        before,
                    },
                ));
            }
        }
    }

    /// Prices an eviction if it may be good enough.
    #[allow(clippy::too_many_arguments, reason = "one step of the loop above")]
    fn consider(
        &mut self,
        state: &State<'m>,
        v: ValueId,
        idle: Idle,
        moves: bool,
        taste: Taste,
        found: &mut Found,
        rng: &mut Random,
    ) {
        let m = self.model;
        let task = m.producer[v];
        let early = self.clear < idle.next && rng.unit() < EARLY;
        let before = if early { self.clear } else { idle.next };
        if !self.may(task, before) {
            return;
        }
        let relief = self.relief(m.bytes[v], idle.last + 1, before);
        let noise = 1.0 + taste.noise * rng.unit();
        if relief <= 0.0 {
            return;
        }
        let own = if moves { 0.0 } else { m.cost[task] } + self.epsilon;
        let bound = relief / own * noise;
        let least = found.least();
        let mut score = bound * 1e-9;
        if bound > least {
            // The score exceeds the least one if the inputs take less than this.
            let per_second = least / noise;
            let limit = Limit {
                per_second,
                per_area: 1.0,
                most: relief - per_second * own,
            };
            (found.pricing.visits, found.pricing.looks) = (self.visits, 0);
            let taken = self.inputs_price(state, task, before, &mut found.pricing, limit);
            self.work += 10 + LOOK * found.pricing.looks;
            if let Some(taken) = taken {
                score = (relief - taken.area) / (taken.seconds + own) * noise;
                found.add(score);
            }
        }
        self.candidates
            .push((score, Eviction::Rerun { task, before }));
    }

    /// Gathers the move of the last use of `v` to before the peak, if its other inputs are in memory by then.
    fn gather_advance(
        &mut self,
        state: &State<'m>,
        v: ValueId,
        peak: Position,
        next: Position,
        taste: Taste,
        rng: &mut Random,
    ) {
        let m = self.model;
        let t = state.task_of(state.run_at(next));
        if !m.has(t) || state.needed_from(v, next + 1) {
            return;
        }
        let mut to = Position::FIRST;
        for i in m.inputs.of(t) {
            let Some(start) = state.written(i.value, next) else {
                return;
            };
            to = to.max(start + 1);
        }
        let written = |&v: &ValueId| state.written(v, next).is_some_and(|p| p >= to);
        if to > peak
            || state.latest(t, next).is_some_and(|p| p >= to)
            || m.outputs.of(t).iter().any(written)
        {
            return;
        }
        let (mut freed, mut area) = (0.0, 0.0);
        for i in m.inputs.of(t) {
            if !state.needed_from(i.value, next + 1) {
                let start = state.written(i.value, next).unwrap_or(to);
                let last = state.last_use(i.value, start, next).max(to);
                freed += self.relief(m.bytes[i.value], last + 1, next + 1);
            }
        }
        for &o in m.outputs.of(t) {
            area += m.bytes[o] * self.crowded(to, next);
        }
        let net = freed - area;
        if net > 0.0 {
            let net = net * (1.0 + taste.noise * rng.unit());
            self.offer(net, Eviction::Advance { from: next, to });
        }
    }

    /// Adds a candidate that costs no seconds and takes `net` bytes × positions off the excess.
    pub(in crate::search) fn offer(&mut self, net: f64, eviction: Eviction) {
        self.moves.push((net, eviction));
    }
}
