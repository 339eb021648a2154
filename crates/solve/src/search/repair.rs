//! Repair: brings a sequence under the budget by evicting values where the sequence exceeds it most.
//!
//! Evicting a value at a position means running its producer again, just before its next use or, now and then,
//! as soon as the sequence is under the budget again, so that its bytes are free in between. The new run needs its
//! inputs: each is either kept longer or made again too, whichever is cheaper at the current price of a byte for
//! one position.

use cranelift_entity::EntityRef;
use scrimp_plan::{TaskId, ValueId};

use std::sync::Arc;

use crate::bound::Growth;
use crate::cutoff::Cutoff;
use crate::ids::{Position, Run};
use crate::model::Model;
use crate::random::Random;
use crate::search::rooms::Rooms;
use crate::search::state::{Idle, State};

mod candidates;

/// Choices of one repair that annealing varies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taste {
    /// The number of candidates that each eviction tries for real.
    pub tries: usize,
    /// The random factor on scores is between 1 and 1 + noise.
    pub noise: f64,
}

/// An eviction that may be worth trying.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Eviction {
    /// Run the task again just before the run at this position.
    Rerun { task: TaskId, before: Position },
    /// Bring the value back, with this task, just before the run at this position.
    Fetch {
        value: ValueId,
        bring: TaskId,
        before: Position,
    },
    /// Move the run at `from` to the earlier position `to`.
    Advance { from: Position, to: Position },
    /// Move the run at `from`, and what depends on it until then, to just before position `to`.
    Postpone { from: Position, to: Position },
}

impl Eviction {
    /// Where a run is inserted, if that is what the eviction does.
    fn before(self) -> Option<Position> {
        match self {
            Eviction::Rerun { before, .. } | Eviction::Fetch { before, .. } => Some(before),
            Eviction::Advance { .. } | Eviction::Postpone { .. } => None,
        }
    }

    /// The same, inserting elsewhere.
    fn moved(mut self, to: Position) -> Eviction {
        if let Eviction::Rerun { before, .. } | Eviction::Fetch { before, .. } = &mut self {
            *before = to;
        }
        self
    }
}

/// Repairs sequences of one problem under one budget.
pub(crate) struct Repairer<'m> {
    pub(super) model: &'m Model,
    /// The bytes that values and workspaces may take.
    pub budget: f64,
    /// Whether first runs may change their order.
    pub free: bool,
    /// The first position after the peak that isn't over the budget.
    clear: Position,
    /// Seconds below which a cost counts as zero.
    epsilon: f64,
    /// Seconds per byte and position over the budget, as the last evictions cost.
    pub(super) price: f64,
    /// Seconds that one second of copying costs, besides those that are hidden behind runs.
    pub copying: f64,
    /// For each position, the number of earlier positions over the budget, and the bytes over it.
    over_count: Vec<f64>,
    over_bytes: Vec<f64>,
    /// Values that may be made again, with their bytes per second, in descending order of that.
    dense: Vec<(f64, ValueId)>,
    /// Values whose writers can run later instead of again.
    idle: Vec<(ValueId, Idle)>,
    candidates: Vec<(f64, Eviction)>,
    moves: Vec<(f64, Eviction)>,
    /// Units of work so far: a deterministic clock.
    pub work: u64,
    cutoff: Cutoff<'m>,
    /// By how much reruns raise the bound.
    pub guide: Option<Arc<Growth>>,
    /// Reruns that raise the bound by this much or more are left out.
    pub most_growth: f64,
    /// The positions of the guide's rows.
    rows: Vec<Position>,
    /// Room in other memories.
    pub(super) rooms: Rooms,
    /// The most evictions by one estimate of all candidates; with more than one, later ones may be based on what has changed.
    pub(super) batch: usize,
    /// The most evictions of a repair.
    pub(super) most: usize,
    /// How many values one estimate of a candidate looks at.
    pub(super) visits: u32,
}

/// The share of reruns that are tried right after the stretch that is over the budget: their inputs, which are
/// still there, may be too large to be kept until the use.
pub(super) const EARLY: f64 = 0.1;
/// How many values one estimate looks at.
pub(super) const VISITS: u32 = 40;
/// Units of work of one edit of the sequence, with undoing it, and of looking at one input.
const EDIT: u64 = 75;
const LOOK: u64 = 4;
/// A further eviction by the same estimate must bring at least this share of its score.
const STILL_GOOD: f64 = 0.5;
/// Evictions beyond the promising ones that are tried if none of those helps.
const FALLBACKS: usize = 24;

impl<'m> Repairer<'m> {
    pub fn new(model: &'m Model, budget: f64, free: bool, cutoff: Cutoff<'m>) -> Repairer<'m> {
        let mean = model.base_cost() / f64::from(model.tasks.max(1));
        let epsilon = (mean * 1e-3).max(f64::MIN_POSITIVE);
        let mut dense: Vec<(f64, ValueId)> = model
            .value_ids()
            .map(|v| (v, model.producer[v]))
            .filter(|&(v, t)| model.rerunnable[t] && model.bytes[v] > 0.0)
            .map(|(v, t)| (model.bytes[v] / (model.cost[t] + epsilon), v))
            .collect();
        dense.sort_by(|a, b| b.0.total_cmp(&a.0));
        Repairer {
            model,
            budget,
            free,
            clear: Position::FIRST,
            epsilon,
            price: 0.0,
            copying: 0.0,
            over_count: Vec::new(),
            over_bytes: Vec::new(),
            dense,
            idle: Vec::new(),
            candidates: Vec::new(),
            moves: Vec::new(),
            work: 0,
            cutoff,
            guide: None,
            most_growth: f64::INFINITY,
            rows: Vec::new(),
            rooms: Rooms::new(model),
            batch: 1,
            most: usize::MAX,
            visits: VISITS,
        }
    }

    /// Seconds of a sequence, with the price of its copies.
    fn seconds(&self, state: &State<'_>) -> f64 {
        state.cost() + self.copying * state.copying()
    }

    /// The sum of bytes times positions over the budget.
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

    /// The mean seconds that a recomputation or copy adds in a sequence that takes these seconds, or of a task if there is no recomputation.
    pub fn mean_cost(&self, state: &State<'_>, seconds: f64) -> f64 {
        let base = self.model.base_cost();
        let extra = state.len() as f64 - f64::from(self.model.tasks) - 2.0;
        if extra > 0.0 && seconds > base {
            (seconds - base) / extra
        } else {
            base / f64::from(self.model.tasks.max(1))
        }
    }

    /// Evicts until the sequence fits, costs `limit` or more, or nothing helps. Returns whether it fits.
    pub fn repair(
        &mut self,
        state: &mut State<'m>,
        taste: Taste,
        limit: f64,
        rng: &mut Random,
    ) -> bool {
        let mut steps = self.most.min(4 * state.len() + 100);
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

    /// Whether a task may run again at a position.
    #[inline]
    pub(super) fn may(&self, task: TaskId, at: Position) -> bool {
        self.model.rerunnable[task]
            && (self.rows.is_empty()
                || self.guide.as_ref().is_none_or(|guide| {
                    let block = self.rows.partition_point(|&row| row < at);
                    guide.blocks[task][block] < self.most_growth
                }))
    }

    /// Makes an eviction, whether it helps or not. If it can't be made, nothing changes.
    pub(super) fn force(&mut self, state: &mut State<'m>, eviction: Eviction) {
        self.survey(state);
        let mark = state.mark();
        if !self.apply(state, eviction) {
            state.undo_to(mark);
        }
    }

    /// Notes where a sequence is over the budget, and where other memories may be full.
    pub(super) fn survey(&mut self, state: &State<'_>) {
        self.rows.clear();
        if let Some(guide) = &self.guide
            && self.most_growth.is_finite()
        {
            let first = |&t: &TaskId| state.pos(state.runs(t)[0]);
            self.rows.extend(guide.rows.iter().map(first));
        }
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
        self.rooms.survey(state);
        self.work += state.len() as u64 / 8;
    }

    /// The number of positions over the budget in `[from, to)`.
    #[inline]
    pub(super) fn crowded(&self, from: Position, to: Position) -> f64 {
        if to <= from {
            return 0.0;
        }
        let last = self.over_count.len() - 1;
        self.over_count[to.index().min(last)] - self.over_count[from.index().min(last)]
    }

    /// The most that freeing `bytes` during `[from, to)` takes off the excess.
    #[inline]
    pub(super) fn relief(&self, bytes: f64, from: Position, to: Position) -> f64 {
        if to <= from {
            return 0.0;
        }
        let last = self.over_count.len() - 1;
        let over = self.over_bytes[to.index().min(last)] - self.over_bytes[from.index().min(last)];
        over.min(bytes * self.crowded(from, to))
    }

    /// Applies the best eviction at a position; returns false if none lowers the excess.
    pub(super) fn evict_at(
        &mut self,
        state: &mut State<'m>,
        peak: Position,
        taste: Taste,
        rng: &mut Random,
    ) -> bool {
        self.survey(state);
        let rest = &state.mem()[peak.index()..];
        let crowd = rest.iter().position(|&m| m <= self.budget);
        self.clear = crowd.map_or(state.end(), |crowd| peak + crowd as u32);
        self.gather_moves(state, peak, taste, rng);
        let price = self.price;
        // If nothing helps at the usual price, a higher price of bytes makes more runs worthwhile.
        for dearer in [1.0, 10.0, 1000.0] {
            self.price = price.max(self.epsilon / self.budget.max(1.0)) * dearer;
            let least = self.estimate(state, peak, taste, rng);
            if let Some((eviction, paid)) = self.best_candidate(state, taste, rng) {
                let at = state.run_at(peak);
                let others = self.others(state, eviction, least);
                let done = self.apply(state, eviction);
                debug_assert!(done, "what could be applied can be applied again");
                self.price = price;
                self.learn(paid);
                self.evict_more(state, at, &others);
                return done;
            }
        }
        self.price = price;
        false
    }

    /// Adjusts the price of a byte to what an eviction has paid.
    fn learn(&mut self, paid: f64) {
        if paid > 0.0 {
            self.price = match self.price == 0.0 {
                true => paid,
                false => 0.9 * self.price + 0.1 * paid,
            };
        }
    }

    /// The candidates with at least this score but one, best first, and before which runs they insert; none if each eviction has an
    /// estimate of its own.
    fn others(&self, state: &State<'m>, done: Eviction, least: f64) -> Vec<(f64, Eviction, Run)> {
        if self.batch == 1 {
            return Vec::new();
        }
        let good = self
            .candidates
            .iter()
            .filter(|c| c.0 >= least && c.1 != done);
        good.filter_map(|&(score, eviction)| {
            let before = eviction.before().filter(|&p| p < state.end())?;
            Some((score, eviction, state.run_at(before)))
        })
        .collect()
    }

    /// Makes further evictions until the run `at` has room, unless what came before leaves too little of their scores.
    fn evict_more(&mut self, state: &mut State<'m>, at: Run, others: &[(f64, Eviction, Run)]) {
        for &(score, eviction, run) in others {
            if !state.has(at) || state.mem()[state.pos(at).index()] <= self.budget {
                return;
            }
            if !state.has(run) {
                continue;
            }
            self.survey(state);
            let mark = state.mark();
            let tried = self.tried(state, eviction.moved(state.pos(run)));
            if let Some((gain, added)) = tried
                && gain >= STILL_GOOD * score * (added + self.epsilon)
            {
                self.learn(added / gain);
            } else {
                state.undo_to(mark);
            }
        }
    }

    /// Tries the most promising moves and reruns for real. Returns the best one, and its seconds per byte and
    /// position taken off the excess.
    fn best_candidate(
        &mut self,
        state: &mut State<'m>,
        taste: Taste,
        rng: &mut Random,
    ) -> Option<(Eviction, f64)> {
        let mut best: Option<(f64, Eviction, f64)> = None;
        for moves in [true, false] {
            let list = if moves {
                &mut self.moves
            } else {
                &mut self.candidates
            };
            let most = if moves {
                taste.tries + 4
            } else {
                taste.tries.max(self.batch) + FALLBACKS
            };
            let order = |a: &(f64, Eviction), b: &(f64, Eviction)| b.0.total_cmp(&a.0);
            if most < list.len() {
                list.select_nth_unstable_by(most, order);
                list.truncate(most);
            }
            list.sort_unstable_by(order);
            for k in 0..list.len().min(most) {
                if !moves && k >= taste.tries && best.is_some() {
                    break;
                }
                let list = if moves { &self.moves } else { &self.candidates };
                let eviction = list[k].1;
                let mark = state.mark();
                if let Some((gain, added)) = self.tried(state, eviction) {
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
                state.undo_to(mark);
            }
        }
        best.map(|(_, eviction, paid)| (eviction, paid))
    }

    /// Makes an eviction. If it takes something off the excess, returns the bytes times positions and the seconds that it adds;
    /// otherwise, the caller must undo the changes so far.
    fn tried(&mut self, state: &mut State<'m>, eviction: Eviction) -> Option<(f64, f64)> {
        self.work += state.len() as u64 / 4 + 50;
        let (mark, before) = (state.mark(), self.seconds(state));
        let applied = self.apply(state, eviction);
        let gain = match applied {
            true => self.over_bytes[self.over_bytes.len() - 1] - self.excess(state),
            false => 0.0,
        };
        self.work += EDIT * (state.mark() - mark) as u64;
        (gain > 0.0).then(|| (gain, self.seconds(state) - before))
    }
}

/// The position with the most bytes in use, and those bytes; of several positions, the first.
pub(super) fn worst(mem: &[f64]) -> (Position, f64) {
    let most = mem.iter().fold(f64::MIN, |a, &m| a.max(m));
    let at = mem.iter().position(|&m| m == most).unwrap_or(0);
    (Position::new(at), most)
}

#[cfg(test)]
mod tests;
