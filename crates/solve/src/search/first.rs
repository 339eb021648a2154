//! The first plan within a budget, at whatever cost.

use scrimp_plan::TaskId;

use std::time::Duration;

use crate::cutoff::Cutoff;
use crate::model::Model;
use crate::random::Random;
use crate::search::anneal::Walk;
use crate::search::backward::{self, Estimate, Verdict};
use crate::search::beam::{self, Breadth};
use crate::search::front::{self, Prices};
use crate::search::order;
use crate::search::space;
use crate::search::starts::BEAM_TASKS;
use crate::search::walks::{WALKS, each, first_found};

/// How often the search for a first plan starts over, with other random choices each time.
const ROUNDS: u64 = 16;
/// The same number if beams have failed.
const ROUNDS_AFTER_BEAMS: u64 = 6;
/// The widths of the beams, in the order in which they are tried. The third is only for few tasks, and the last for problems whose sets
/// take the fewest words.
pub(super) const WIDTHS: [usize; 4] = [1, 8, 64, 1024];
pub(super) const FEW: u32 = 400;
/// The widest beam whose states may choose the next task, which takes several times as long.
const CHOOSING: usize = 64;
/// The most words of a problem's sets for the widest beams, and where the least budget is sought.
const WIDEST_WORDS: usize = 1;
pub(super) const WIDE_WORDS: usize = 2;
/// With more tasks, repair is limited, because it takes long, and plans are built from the front.
pub(super) const MANY: u32 = 1000;
/// In that case, the first prices that are tried; the last ones take long with [`front::TOO_MANY`] tasks.
const PRICES: [Prices; 3] = [
    Prices::Excess(1.0),
    Prices::Excess(0.0),
    Prices::Proven(1.0),
];
/// The number of those that very many tasks have time for.
const QUICK_PRICES: usize = 2;
/// A repaired plan is preferred to one built from the front if it adds at most this share of the seconds.
const MUCH_LESS: f64 = 0.9;
/// The number of widths that are quick.
const QUICK_WIDTHS: usize = 2;
/// How much a lean order for them prefers tasks close to the last one.
const INERTIA: f64 = 5.0;
/// The most states of each search from the end for any plan, times the number of tasks.
const ANY_STATES: usize = 20_000_000;
/// A first plan that takes more than this many times all tasks' seconds is annealed, with so many units of work per task, from
/// this temperature in mean seconds of a recomputation.
const TOO_DEAR: f64 = 2.0;
const IMPROVE: u64 = 20_000;
const HEAT: f64 = 0.2;
/// A plan found after the time for first plans is annealed so many times longer, and for this long even past the limit.
const LATE_IMPROVE: u64 = 8;
const LATE_TIME: Duration = Duration::from_millis(300);
/// If no plan was found in time, the search for the least budget takes at least this long.
const LEAST_TIME: Duration = Duration::from_millis(500);

/// The search for a sequence that fits, at whatever cost.
#[derive(Clone, Copy)]
pub(super) struct FirstPlan<'a> {
    pub model: &'a Model,
    pub budget: f64,
    /// A proven floor: no plan takes fewer bytes.
    pub floor: f64,
    pub free: bool,
    /// When the search ends, and when the search for the least budget ends.
    pub cutoff: Cutoff<'a>,
    pub late: Cutoff<'a>,
    /// Units of work for squeezing the leanest plan, per walk.
    pub squeeze: u64,
    /// Whether the search for the least budget, and annealing a plan that is found late, may overrun the limit.
    pub patient: bool,
    /// Whether any plan will do, however dear.
    pub any: bool,
    /// A lean plan that is known but doesn't fit: if there is one, the search begins with squeezing it.
    pub known: Option<&'a [TaskId]>,
    pub seed: u64,
    pub threads: usize,
}

/// What a search for the least budget learned.
pub(super) struct Lean {
    /// The least budget for which a plan was found, with that plan.
    pub least: f64,
    pub runs: Vec<TaskId>,
    /// No plan takes fewer bytes.
    pub floor: f64,
}

/// A sequence that fits and, if the order is free, perhaps one that also keeps the given order.
pub(super) type Plans = (Vec<TaskId>, Option<Vec<TaskId>>);

impl FirstPlan<'_> {
    /// A sequence that fits, by search from the end or by squeezing a lean one. With at most [`MANY`] tasks it loses the runs that it
    /// doesn't need, and one that is much too dear is annealed a little, because the bound converges badly from it.
    pub fn by_squeezing(&self) -> Result<Vec<TaskId>, Lean> {
        let runs = self.tight_plan()?;
        if self.any || self.model.tasks > MANY {
            return Ok(runs);
        }
        let (cutoff, work) = match self.cutoff.reached() {
            true => (self.late_by(LATE_TIME), LATE_IMPROVE * IMPROVE),
            false => (self.cutoff, IMPROVE),
        };
        let timed = FirstPlan { cutoff, ..*self };
        let mut walk = timed.walk(&runs);
        walk.polish_all();
        walk.state.commit();
        let polished = walk.state.order();
        if walk.state.cost() <= TOO_DEAR * self.model.base_cost() {
            return Ok(polished);
        }
        walk.record();
        walk.anneal(work * u64::from(self.model.tasks), HEAT);
        Ok(walk.best.map_or(polished, |best| best.1))
    }

    /// A sequence that fits, or what was learned without finding one.
    fn tight_plan(&self) -> Result<Vec<TaskId>, Lean> {
        // A caller that asked for too little should learn what is enough, however late it is.
        let late = self.late_by(LEAST_TIME);
        let mut floor = self.floor;
        if self.budget >= floor {
            match self.any_from_the_end() {
                Verdict::Plan(runs) => return Ok(runs),
                Verdict::NoPlan => floor = self.budget + 1.0,
                Verdict::Unknown => {}
            }
        }
        let Lean { least, runs, floor } = FirstPlan {
            late,
            floor,
            ..*self
        }
        .leanest();
        if least <= self.budget {
            return Ok(runs);
        }
        let mut leanest = (least, runs);
        let rounds = match beam::takes(self.model) {
            true => ROUNDS_AFTER_BEAMS,
            false => ROUNDS,
        };
        let open = floor <= self.budget;
        for round in 1..if open { rounds } else { 0 } {
            if self.cutoff.reached() {
                break;
            }
            if let Some(runs) = self.walks(round, &mut leanest) {
                return Ok(runs);
            }
        }
        let (least, runs) = leanest;
        Err(Lean { least, runs, floor })
    }

    /// When work ends that may go on for this time past the limit, if the search is patient.
    fn late_by(&self, time: Duration) -> Cutoff<'_> {
        match self.patient {
            true => self.late.not_within(time),
            false => self.late,
        }
    }

    /// What a short search from the end says of this budget.
    fn any_from_the_end(&self) -> Verdict {
        let given = self.given();
        let orders = [Some(&given[..]), None];
        let orders = &orders[..if self.free { 2 } else { 1 }];
        let states = ANY_STATES / self.model.tasks.max(1) as usize;
        let tools = (self.threads, self.cutoff);
        backward::decided(
            self.model,
            (self.budget, states),
            (orders, Estimate::ANY),
            tools,
        )
    }

    /// A sequence that fits, if beams or walks find one at once. Beams are quicker with few tasks.
    fn directly(&self) -> Option<Vec<TaskId>> {
        let widths = match space::words(self.model) {
            ..=WIDEST_WORDS => WIDTHS.len(),
            _ => WIDTHS.len() - 1,
        };
        let beams = || self.beams(widths);
        let walks = || self.walks(0, &mut (f64::INFINITY, Vec::new()));
        match !self.free && self.model.tasks <= BEAM_TASKS {
            true => beams().or_else(walks),
            false => walks().or_else(beams),
        }
    }

    /// Walks that repair and squeeze. Costs steer them, sometimes astray if the budget is tight. So each
    /// round blurs the costs to a different degree, from their real values to all equal.
    fn walks(&self, round: u64, leanest: &mut (f64, Vec<TaskId>)) -> Option<Vec<TaskId>> {
        let blurred = blurred(self.model, [1.0, 0.5, 0.0, 0.8][round as usize % 4]);
        let given = self.given();
        let mut walks: Vec<Walk<'_>> = (0..WALKS as u64)
            .map(|k| {
                let random = Random::new(self.seed, round * WALKS as u64 + k);
                Walk::new(
                    &blurred,
                    &given,
                    self.budget,
                    self.free,
                    self.cutoff,
                    random,
                )
            })
            .collect();
        each(self.threads, &mut walks, &|k, walk| {
            walk.first_plan(k, round > 0);
        });
        for walk in &walks {
            if walk.leanest.0 < leanest.0 {
                leanest.clone_from(&walk.leanest);
            }
        }
        let found = walks.iter().filter_map(|walk| walk.best.as_ref());
        let found = found.map(|(_, runs)| runs);
        found
            .min_by(|a, b| self.seconds(a).total_cmp(&self.seconds(b)))
            .cloned()
    }

    pub(super) fn given(&self) -> Vec<TaskId> {
        self.model.given_order()
    }

    /// The same search in the given order.
    pub fn keeping(&self) -> Self {
        FirstPlan {
            free: false,
            ..*self
        }
    }

    /// A sequence that fits; if the order is free, also one that keeps the given order, if such a sequence is
    /// found quickly.
    pub fn plans(&self) -> Result<Plans, Lean> {
        let quick = self.known.is_none().then(|| self.plans_at_once()).flatten();
        quick.map_or_else(|| Ok((self.by_squeezing()?, None)), Ok)
    }

    /// [`Self::plans`] if no squeezing is needed.
    pub fn plans_at_once(&self) -> Option<Plans> {
        let possible = self.budget >= self.floor;
        let quick = possible.then(|| self.quick_plans()).flatten();
        let few = possible && self.model.tasks <= MANY;
        quick.or_else(|| Some((few.then(|| self.directly()).flatten()?, None)))
    }

    /// Of many tasks, plans as they are made for them; of others, one that keeps the given order and perhaps a cheaper one.
    fn quick_plans(&self) -> Option<Plans> {
        if self.model.tasks > MANY {
            return self.of_many();
        }
        let kept = self.free.then(|| self.keeping().quickly()).flatten()?;
        let seconds = |runs: &Vec<TaskId>| self.seconds(runs);
        let found = self.quickly().into_iter().chain([kept.clone()]);
        let cheapest = found.min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        Some((cheapest.unwrap_or_else(|| kept.clone()), Some(kept)))
    }

    /// A known sequence, repaired if it doesn't fit, or `None` if that fails.
    pub fn fitted(&self, known: &[TaskId]) -> Option<Vec<TaskId>> {
        self.walk(known).fit()
    }

    /// A walk from a sequence.
    fn walk(&self, runs: &[TaskId]) -> Walk<'_> {
        Walk::new(
            self.model,
            runs,
            self.budget,
            self.free,
            self.cutoff,
            Random::new(self.seed, 0),
        )
    }

    /// The cheaper of a known sequence that fits and one that is found quickly.
    pub fn beside(&self, known: Vec<TaskId>) -> Vec<TaskId> {
        let quick = match self.model.tasks > MANY {
            true => self.of_many().map(|(runs, _)| runs),
            false => self.quickly(),
        };
        self.cheaper(known, quick)
    }

    /// The cheaper of two sequences.
    pub fn cheaper(&self, known: Vec<TaskId>, other: Option<Vec<TaskId>>) -> Vec<TaskId> {
        match other {
            Some(other) if self.seconds(&other) < self.seconds(&known) => other,
            _ => known,
        }
    }

    /// Seconds of a sequence.
    pub fn seconds(&self, runs: &[TaskId]) -> f64 {
        runs.iter().map(|&t| self.model.cost[t]).sum()
    }

    /// A sequence that fits, if the quick methods find one.
    fn quickly(&self) -> Option<Vec<TaskId>> {
        let few = self.model.tasks <= BEAM_TASKS;
        let found = self.walks(0, &mut (f64::INFINITY, Vec::new()));
        found.or_else(|| few.then(|| self.beams(QUICK_WIDTHS)).flatten())
    }

    /// How many of the widths a problem of this size may try.
    pub(super) fn widths(&self) -> usize {
        match space::words(self.model) {
            ..=WIDE_WORDS => WIDTHS.len(),
            _ if self.model.tasks <= FEW => WIDTHS.len() - 1,
            _ => QUICK_WIDTHS,
        }
    }

    /// Tries beams of the first few widths, in the given order and, if the order is free, in lean orders.
    pub(super) fn beams(&self, widths: usize) -> Option<Vec<TaskId>> {
        let mut rng = Random::new(self.seed, 0);
        if !beam::takes(self.model) {
            return None;
        }
        let orders = self.orders(&mut rng);
        let mut jobs = Vec::new();
        for &width in &WIDTHS[..widths.min(self.widths())] {
            let free = orders
                .iter()
                .take(usize::from(self.free && width <= CHOOSING));
            jobs.extend(orders.iter().map(|order| (width, order, false)));
            jobs.extend(free.map(|order| (width, order, true)));
        }
        first_found(self.threads, &jobs, &|&(width, order, free), over| {
            self.beam(width, order, free, over)
        })
    }

    /// What a beam finds before the cutoff or until it may end.
    fn beam(
        &self,
        width: usize,
        order: &[TaskId],
        free: bool,
        over: &dyn Fn() -> bool,
    ) -> Option<Vec<TaskId>> {
        let breadth = Breadth {
            width,
            rent: 1.0,
            noise: 0.0,
            free,
        };
        let over = || over() || self.cutoff.reached();
        let mut rng = Random::new(self.seed, 0);
        let tools = (&over as _, &mut rng, &mut 0);
        beam::search(self.model, order, self.budget, breadth, tools)
    }

    /// [`Self::plans`] for many tasks: the given order repaired, or built from the front in that and, if the order is free, in a
    /// lean one.
    pub(super) fn of_many(&self) -> Option<Plans> {
        let given = self.given();
        let kept = self.keeping().repaired();
        let rearranged = self.free.then(|| self.repaired()).flatten();
        let kept = self.preferred(self.fronts(&given), kept);
        if !self.free {
            return kept.map(|kept| (kept, None));
        }
        let mut rng = Random::new(self.seed, 0);
        let lean = order::lean(self.model, 0.0, INERTIA, self.cutoff, &mut rng);
        let whole = lean.len() == self.model.tasks as usize;
        let lean = whole.then(|| self.fronts(&lean)).flatten();
        let fronts = self.cheapest([lean, kept.clone()]);
        Some((self.preferred(fronts, rearranged)?, kept))
    }

    /// A plan built from the front, unless a repaired one adds much less: the former treats equal layers alike, and annealing gets
    /// further from there.
    fn preferred(
        &self,
        front: Option<Vec<TaskId>>,
        repaired: Option<Vec<TaskId>>,
    ) -> Option<Vec<TaskId>> {
        let (Some(front), Some(repaired)) = (&front, &repaired) else {
            return front.or(repaired);
        };
        let added = |runs| self.seconds(runs) - self.model.base_cost();
        let better = added(repaired) < MUCH_LESS * added(front);
        Some(if better { repaired } else { front }.clone())
    }

    /// What walks find at once, unless there are so many tasks that it takes too long.
    fn repaired(&self) -> Option<Vec<TaskId>> {
        let walks = || self.walks(0, &mut (f64::INFINITY, Vec::new()));
        (self.model.tasks <= front::TOO_MANY).then(walks).flatten()
    }

    /// The cheapest sequence of those built from the front at different first prices.
    fn fronts(&self, order: &[TaskId]) -> Option<Vec<TaskId>> {
        let prices = match self.model.tasks > front::TOO_MANY {
            true => &PRICES[..QUICK_PRICES],
            false => &PRICES[..],
        };
        let mut plans: Vec<_> = prices.iter().map(|&prices| (prices, None)).collect();
        for some in plans.chunks_mut(self.threads.max(1)) {
            each(self.threads, some, &|_, (prices, plan)| {
                let order = order.to_vec();
                let FirstPlan { budget, any, .. } = *self;
                *plan = front::cheapest(self.model, order, budget, *prices, any, self.cutoff);
            });
        }
        self.cheapest(plans.into_iter().map(|(_, plan)| plan))
    }

    fn cheapest(
        &self,
        found: impl IntoIterator<Item = Option<Vec<TaskId>>>,
    ) -> Option<Vec<TaskId>> {
        let found = found.into_iter().flatten();
        found.min_by(|a, b| self.seconds(a).total_cmp(&self.seconds(b)))
    }

    pub(super) fn orders(&self, rng: &mut Random) -> Vec<Vec<TaskId>> {
        let mut orders = vec![self.given()];
        if self.free {
            let random = rng.clone();
            let mut walk = Walk::new(
                self.model,
                &orders[0],
                self.budget,
                true,
                self.cutoff,
                random,
            );
            walk.rearrange(100, 100.0, 0.01);
            orders.push(walk.state.order());
            for inertia in [0.0, 20.0] {
                orders.push(order::lean(self.model, 0.0, inertia, self.cutoff, rng));
            }
            orders.retain(|o| o.len() == self.model.tasks as usize);
        }
        orders
    }
}

/// The model with costs raised to a power, from 1 (unchanged) to 0 (all equal).
pub(super) fn blurred(model: &Model, power: f64) -> Model {
    let mut model = model.clone();
    let mean = model.base_cost() / f64::from(model.tasks.max(1));
    if power < 1.0 && mean > 0.0 {
        for t in model.task_ids() {
            model.cost[t] = mean * (model.cost[t] / mean).powf(power);
        }
    }
    model
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::bound;
    use crate::search::state::State;
    use crate::testing::{Shape, base_peak, problem};

    /// A random problem of so many tasks, its floor, and a budget a little above that.
    fn tight(tasks: usize, rng: &mut Random) -> (Model, f64, f64) {
        let p = problem(Shape { tasks, rich: false }, rng);
        let model = Model::new(&p).unwrap().0;
        let floor = bound::floor(&model);
        let budget = floor + (base_peak(&p) as f64 - floor) / 20.0;
        (model, floor, budget)
    }

    /// The search for a first plan, without squeezing.
    fn sought(model: &Model, floor: f64, budget: f64, free: bool) -> FirstPlan<'_> {
        FirstPlan {
            model,
            budget,
            floor,
            free,
            cutoff: Cutoff::NEVER,
            late: Cutoff::NEVER,
            squeeze: 0,
            patient: false,
            any: false,
            known: None,
            seed: 0,
            threads: 2,
        }
    }

    /// Of plans that are hard to find, how many are cheaper than they were found, and how many are no longer much too dear.
    fn improved(rounds: usize, cutoff: Cutoff<'_>) -> (usize, usize) {
        let mut rng = Random::new(8, 0);
        let (mut cheaper, mut annealed) = (0, 0);
        for round in 0..rounds {
            let (model, floor, budget) = tight(30 + 2 * round, &mut rng);
            let first = FirstPlan {
                cutoff,
                ..sought(&model, floor, budget, round % 2 > 0)
            };
            let (Ok(before), Ok(after)) = (first.tight_plan(), first.by_squeezing()) else {
                continue;
            };
            let state = State::new(&model, &after);
            assert!(state.is_sound() && state.peak() <= budget);
            let (before, after) = (first.seconds(&before), first.seconds(&after));
            assert!(after <= before, "{after} after {before}");
            cheaper += usize::from(after < before);
            let dear = TOO_DEAR * model.base_cost();
            annealed += usize::from(before > dear && after < dear);
        }
        (cheaper, annealed)
    }

    #[test]
    fn plans_that_are_hard_to_find_are_not_much_too_dear() {
        let (cheaper, annealed) = improved(20, Cutoff::NEVER);
        assert!(cheaper > 10 && annealed > 2, "{cheaper}, {annealed}");
    }

    #[test]
    fn plans_found_late_are_not_much_too_dear_either() {
        let (_, annealed) = improved(12, Cutoff::NEVER.by(Some(Instant::now())));
        assert!(annealed > 5, "{annealed}");
    }

    #[test]
    fn many_tasks_are_repaired_where_plans_from_the_front_fail() {
        let mut rng = Random::new(9, 0);
        let mut repaired = 0;
        for round in 0..4 {
            let shape = Shape {
                tasks: MANY as usize + 100,
                rich: round % 2 > 0,
            };
            let p = problem(shape, &mut rng);
            let model = Model::new(&p).unwrap().0;
            let floor = bound::floor(&model);
            let budget = (floor + 0.3 * (base_peak(&p) as f64 - floor)).floor();
            let first = sought(&model, floor, budget, round >= 2);
            let Some((runs, kept)) = first.of_many() else {
                continue;
            };
            for runs in kept.iter().chain([&runs]) {
                let state = State::new(&model, runs);
                assert!(state.is_sound() && state.peak() <= budget);
            }
            repaired += usize::from(first.fronts(&first.given()).is_none());
        }
        assert!(repaired > 0);
    }

    #[test]
    fn wide_beams_in_lean_orders_find_plans_that_narrow_ones_do_not() {
        let mut rng = Random::new(7, 0);
        let (mut narrow, mut wide) = (0, 0);
        for round in 0..6 {
            let (model, floor, budget) = tight(32 + 2 * round, &mut rng);
            let first = sought(&model, floor, budget, true);
            let count = |widths| {
                let found = first.beams(widths);
                assert!(
                    found
                        .iter()
                        .all(|runs| State::new(&model, runs).peak() <= budget)
                );
                usize::from(found.is_some())
            };
            narrow += count(WIDTHS.len() - 1);
            wide += count(WIDTHS.len());
        }
        assert!(wide > narrow && narrow > 0, "{wide}, not {narrow}");
    }
}
