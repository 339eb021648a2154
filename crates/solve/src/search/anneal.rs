//! Ruin and recreate: drops some recomputations, or takes some from another plan, repairs, and accepts the result as
//! annealing does.

use scrimp_plan::TaskId;

use crate::cutoff::Cutoff;
use crate::ids::{Position, Run};
use crate::model::Model;
use crate::random::Random;
use crate::search::arrange::Arrangement;
use crate::search::elite::{Elite, MOST_STEP};
use crate::search::first::MANY;
use crate::search::lean::Lean;
use crate::search::repair::{Repairer, Taste};
use crate::search::squeeze::BATCHES;
use crate::search::state::State;
use crate::search::stretch::anneals;
use crate::search::ties::Ties;
use crate::search::timing::Timing;

/// The most moves of one rearrangement.
const MOVES: u64 = 300_000;
/// The most tasks for which reruns are rearranged though the order of first runs is given.
const RERUN_TASKS: u32 = 150;
/// The temperature at the end of an epoch, as a share of that at its start.
const COOLING: f64 = 0.02;

/// The most growth of the bound that a rerun may cause, as shares of the seconds between bound and plan.
const GROWTHS: [f64; 5] = [0.05, 0.2, 0.5, 1.0, f64::INFINITY];
/// What a second of copying may cost a repair, in seconds.
const COPYING: [f64; 6] = [0.0, 0.1, 0.3, 0.5, 0.7, 1.0];
/// One step in this many drops all runs that the budget doesn't need, and not just a few random ones: several of them may
/// have become needless together.
const POLISHES: usize = 2;
/// One step in this many takes reruns from another plan.
const RELINKS: usize = 4;
/// One step in this many remakes a stretch, where annealing does so, within a share of all work.
const REMAKES: usize = 10;
const REMAKE_SHARE: f64 = 0.2;

/// One walk through the sequences that fit.
pub(crate) struct Walk<'m> {
    pub(super) model: &'m Model,
    pub repairer: Repairer<'m>,
    /// The budget to meet; the repairer's budget is above it during the search for a first plan.
    pub(super) target: f64,
    pub(super) cutoff: Cutoff<'m>,
    pub state: State<'m>,
    pub rng: Random,
    /// The cheapest sequence that fits, with its cost.
    pub best: Option<(f64, Vec<TaskId>)>,
    /// The leanest sequence, with its peak.
    pub leanest: (f64, Vec<TaskId>),
    /// Plans to go back to: first ones that fit, and those that took long to make, before they were improved.
    pub origins: Vec<Vec<TaskId>>,
    /// Units of work for starts that take long, and for stretches remade in annealing.
    pub(super) dear_work: u64,
    pub(super) remake_work: u64,
    /// How often wide beams, and plans above the budget, have made no start since they made one.
    pub(super) dear_failures: [usize; 2],
    /// How often search from the end has made no start since it made one.
    pub(super) backward_failures: usize,
    /// Good plans of this walk and others, from which it takes reruns.
    pub elite: Elite,
    /// Plans as cheap as the best one.
    pub ties: Ties,
    /// Cheap plans that leave a part of the budget free. Large problems, whose layouts lose little, have none.
    pub lean: Option<Lean>,
    /// Units of work that the last start over took, or a guess.
    pub(super) start_work: u64,
    /// Times sequences with copies.
    pub(super) timing: Option<Timing<'m>>,
    /// Seconds of the present sequence while it is annealed.
    pub(super) now: f64,
    /// The most evictions by one estimate where the sequence may be far over the budget.
    pub(super) batch: usize,
}

impl<'m> Walk<'m> {
    pub fn new(
        model: &'m Model,
        order: &[TaskId],
        budget: f64,
        free: bool,
        cutoff: Cutoff<'m>,
        rng: Random,
    ) -> Walk<'m> {
        let state = State::new(model, order);
        Walk {
            model,
            repairer: Repairer::new(model, budget, free, cutoff),
            target: budget,
            cutoff,
            leanest: (state.peak(), order.to_vec()),
            state,
            rng,
            best: None,
            origins: Vec::new(),
            dear_work: 0,
            remake_work: 0,
            dear_failures: [0; 2],
            backward_failures: 0,
            elite: Elite::default(),
            ties: Ties::default(),
            lean: (model.tasks <= MANY && model.copies.none()).then(|| Lean::new(budget)),
            start_work: u64::from(model.tasks) * u64::from(model.tasks) / 4,
            timing: (!model.copies.none()).then(|| Timing::new(model, budget)),
            now: 0.0,
            batch: if model.tasks > MANY { BATCHES[0] } else { 1 },
        }
    }

    /// Seconds of the present sequence, with its copies.
    pub(super) fn seconds(&mut self) -> f64 {
        match &mut self.timing {
            Some(timing) => {
                self.repairer.work += self.state.len() as u64 / 2;
                timing.makespan(&self.state)
            }
            None => self.state.cost(),
        }
    }

    /// Repairs the present sequence; if that fails, returns false and leaves the sequence unchanged.
    pub(super) fn settle(&mut self, taste: Taste) -> bool {
        let ok = self.repair_much(taste);
        if ok {
            self.polish_all();
            self.state.commit();
        } else {
            self.state.restore();
        }
        ok
    }

    /// Repairs the present sequence, which may be far over the budget.
    pub(super) fn repair_much(&mut self, taste: Taste) -> bool {
        self.repairer.batch = self.batch;
        let ok = self.repair(taste);
        self.repairer.batch = 1;
        ok
    }

    pub(super) fn repair(&mut self, taste: Taste) -> bool {
        let limit = f64::INFINITY;
        (self.repairer).repair(&mut self.state, taste, limit, &mut self.rng)
    }

    /// Repairs the first sequence at a price of a copied second, and records what comes of it.
    pub fn repair_at(&mut self, copying: f64) {
        let first = self.leanest.1.clone();
        self.state.reset(&first);
        self.repairer.copying = copying;
        let taste = Taste {
            tries: 4,
            noise: 0.0,
        };
        if self.settle(taste) {
            self.record();
        }
    }

    pub(super) fn taste_of(&self, k: usize) -> Taste {
        Taste {
            tries: [4, 8, 1, 16][k % 4],
            noise: [0.0, 0.3, 1.0, 3.0][(k / 2) % 4],
        }
    }

    /// Anneals the order alone with this many moves per run, between two temperatures in mean bytes of a
    /// value times positions. Forgets the log.
    pub fn rearrange(&mut self, moves: u64, hot: f64, cold: f64) {
        let m = self.model;
        let mean = m.bytes.values().sum::<f64>() / m.bytes.len().max(1) as f64;
        let order = self.state.order();
        let free = self.repairer.free;
        let mut arrangement = Arrangement::new(m, &order, self.repairer.budget, free);
        let moves = (moves * order.len() as u64).min(MOVES);
        self.repairer.work += 4 * order.len() as u64
            + arrangement.anneal(moves, hot * mean, cold * mean, self.cutoff, &mut self.rng);
        self.state.reset(&arrangement.order());
    }

    /// Draws how closely repairs follow the bound.
    pub(super) fn follow(&mut self) {
        if let Some(guide) = &self.repairer.guide {
            let share = GROWTHS[self.rng.below(GROWTHS.len())];
            self.repairer.most_growth = share * guide.slack;
        }
        if self.timing.is_some() {
            self.repairer.copying = COPYING[self.rng.below(COPYING.len())];
        }
    }

    /// Anneals the present sequence for `length` units of work, from a temperature of `heat` times the mean
    /// seconds of a recomputation.
    pub(super) fn anneal(&mut self, length: u64, heat: f64) {
        let end = self.repairer.work + length;
        self.now = self.seconds();
        let hot = self.repairer.mean_cost(&self.state, self.now) * heat;
        while self.repairer.work < end && !self.cutoff.reached() {
            let left = (end - self.repairer.work) as f64 / length as f64;
            let temperature = hot * COOLING.powf(1.0 - left);
            self.follow();
            for _ in 0..8 {
                if self.remakes_next() {
                    let limit = self.limit(temperature);
                    self.remake_below(limit);
                } else {
                    let (x, y) = (self.rng.below(4), self.rng.below(3));
                    let tries = [1, 2, 4, 8][y + usize::from(x == 0)];
                    let noise = [0.0, 0.3, 1.0, 3.0][x];
                    self.step(temperature, Taste { tries, noise });
                }
                // Steps that find nothing to do count as work too, so that the epoch ends.
                self.repairer.work += 20;
            }
        }
    }

    pub fn record(&mut self) {
        if self.repairer.budget > self.target {
            return;
        }
        let cost = self.seconds();
        self.ties.add(cost, &self.state);
        if let Some(lean) = &mut self.lean {
            lean.add(cost, &self.state);
        }
        let known = self.best.as_ref().map_or(f64::INFINITY, |best| best.0);
        if cost >= known * (1.0 - 1e-12) {
            return;
        }
        debug_assert!(self.state.is_sound(), "edits leave a plan");
        self.best = Some((cost, self.state.order()));
    }

    /// The runs that may be dropped: all but each task's first, or, if the order is free, all but one.
    pub(super) fn extra_runs(&self) -> Vec<Run> {
        let mut extra = Vec::new();
        for p in (Position::FIRST + 1).until(self.state.last()) {
            let run = self.state.run_at(p);
            if self.repairer.may_drop(&self.state, run) {
                extra.push(run);
            }
        }
        extra
    }

    /// Removes a run and the runs that only it needed. If uses would lose their value, returns false and
    /// changes nothing.
    pub(super) fn drop_run(&mut self, run: Run) -> bool {
        let t = self.state.task_of(run);
        if !self.repairer.may_drop(&self.state, run) || !self.state.can_remove(run) {
            return false;
        }
        self.state.remove(run);
        for i in self.model.inputs.of(t) {
            let make = self.model.producer[i.value];
            if self.model.has(make) {
                self.repairer.drop_useless(&mut self.state, make);
            }
        }
        true
    }

    /// Drops every run that the budget doesn't need, expensive runs first.
    pub fn polish_all(&mut self) {
        let mut extra = self.extra_runs();
        let cost = |s: &State<'_>, r: Run| s.model.cost[s.task_of(r)];
        extra.sort_by(|&a, &b| cost(&self.state, b).total_cmp(&cost(&self.state, a)));
        for run in extra {
            if self.cutoff.reached() {
                break;
            }
            self.try_drop(run);
        }
    }

    fn try_drop(&mut self, run: Run) {
        if !self.state.has(run) {
            return;
        }
        let mark = self.state.mark();
        self.repairer.work += self.state.len() as u64 / 4 + 20;
        if !self.drop_run(run) || !self.repairer.fits(&self.state) {
            self.state.undo_to(mark);
        }
    }

    /// Drops some of these runs, neighbours or random ones.
    fn ruin(&mut self, extra: &[Run]) {
        let most = if self.rng.below(4) == 0 {
            extra.len().min(30)
        } else {
            (extra.len() / 4).clamp(3, 12)
        };
        let count = match self.rng.below(2) {
            0 => 1 + self.rng.below(most),
            _ => (most as f64).powf(self.rng.unit()) as usize,
        };
        if self.rng.below(3) == 0 {
            for _ in 0..count {
                let run = extra[self.rng.below(extra.len())];
                if self.state.has(run) {
                    self.drop_run(run);
                }
            }
        } else {
            let from = self.rng.below(extra.len());
            for k in 0..count {
                let run = extra[(from + k) % extra.len()];
                if self.state.has(run) {
                    self.drop_run(run);
                }
            }
        }
    }

    /// The seconds that annealing accepts at a temperature in seconds.
    fn limit(&mut self, temperature: f64) -> f64 {
        self.now - temperature * (1.0 - self.rng.unit()).ln()
    }

    /// Whether the next step of annealing remakes a stretch.
    fn remakes_next(&mut self) -> bool {
        let most = REMAKE_SHARE * self.repairer.work as f64;
        anneals(self.model) && self.rng.below(REMAKES) == 0 && self.remake_work as f64 <= most
    }

    /// Does one ruin and recreate at a temperature in seconds.
    pub fn step(&mut self, temperature: f64, taste: Taste) {
        let extra = self.extra_runs();
        self.repairer.work += self.state.len() as u64 / 4;
        if extra.is_empty() {
            return;
        }
        // A rearrangement forgets the log, so the state to return to is saved.
        let rearranged = match self.repairer.free {
            true => self.rng.below(4) == 0,
            false => self.model.tasks <= RERUN_TASKS && self.rng.below(12) == 0,
        };
        let saved = rearranged.then(|| self.state.order());
        let limit = self.limit(temperature);
        if rearranged || self.rng.below(RELINKS) > 0 || !self.relink(MOST_STEP) {
            self.ruin(&extra);
        }
        if saved.is_some() {
            let hot = 30f64.powf(self.rng.unit());
            self.rearrange(10, hot, 0.01);
        }
        let mut ok = self
            .repairer
            .repair(&mut self.state, taste, limit, &mut self.rng);
        let mut after = f64::INFINITY;
        if ok {
            if saved.is_some() || self.rng.below(POLISHES) == 0 {
                self.polish_all();
            } else {
                for _ in 0..4 {
                    let run = extra[self.rng.below(extra.len())];
                    self.try_drop(run);
                }
            }
            after = self.seconds();
            ok = after <= limit;
        }
        if ok {
            self.state.commit();
            self.now = after;
            self.record();
        } else if let Some(order) = saved {
            self.state.reset(&order);
        } else {
            self.state.restore();
        }
    }
}
